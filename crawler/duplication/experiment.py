"""The paper's experiment: copies of posts, a few words changed, are looked up among the posts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from crawler.dedup.signature import by_characters, jaccard
from crawler.dedup.sketch import SHAPES
from crawler.duplication.corpus import Corpus
from crawler.duplication.edits import edited, is_cjk, words_of
from crawler.duplication.indexes import NOTHING, Index, Key, Tell
from crawler.duplication.methods import METHODS, RULES
from crawler.storage.client import Database
from crawler.storage.layouts import Found
from crawler.storage.scratch import ping_seconds

# Another post than the copied one is a right answer from this exact similarity on: the threshold
# of Freshet less the error of its estimate.
ALIKE = 0.67
MOST_JUDGED = 20
TOLD_EVERY, PING_EVERY = 1000, 10
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Query:
    """A copy.

    original: number of the post that it is a copy of
    words:    that the post has
    edits:    words of it that were changed
    """

    original: int
    text: str
    words: int
    edits: int
    cjk: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is needed of the posts.

    keys:   of all posts, by rule
    sample: numbers and texts of some, each as likely as any other
    """

    documents: int
    keys: dict[str, list[Key]]
    sample: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a method did; (n,) of n queries where not said otherwise.

    seconds:       of the look-ups, of queries that can be compared at all
    ping_seconds:  median of a command that does nothing, meanwhile: others use the machine too
    build_seconds: to store and index the posts, sketches not included
    """

    method: str
    found: list[Found]
    seconds: npt.NDArray[np.float64]
    ping_seconds: float
    index_bytes: int
    build_seconds: float

    def mean(self, name: str) -> float:
        """Mean over the queries of a number of `Found`."""
        return float(np.mean([getattr(one, name) for one in self.found]))


def prepare(
    corpus: Corpus, rules: Sequence[str], queries: int, random: Random, tell: Tell
) -> Prepared:
    """Read the corpus once: keys of all posts, and `queries` of the posts."""
    keys: dict[str, list[Key]] = {rule: [] for rule in rules}
    sample: list[tuple[int, str]] = []
    number = -1
    for number, text in enumerate(corpus.texts()):
        for rule, made in keys.items():
            made.append(RULES[rule](text))
        if len(sample) < queries:
            sample.append((number, text))
        elif (place := random.randrange(number + 1)) < queries:
            sample[place] = (number, text)
        if number % TOLD_EVERY == 0:
            tell(f"reading posts: {number:,}")
    return Prepared(number + 1, keys, sample)


def copies(
    sample: Sequence[tuple[int, str]], edits: tuple[int, int], kinds: Sequence[str], random: Random
) -> list[Query]:
    """A copy of each post of the sample, with words of the others put in."""
    others = [word for _, text in sample for word in words_of(text)]
    return [_copy(number, text, random.randint(*edits), kinds, others, random)
            for number, text in sample]  # fmt: skip


def _copy(
    number: int, text: str, edits: int, kinds: Sequence[str], others: Sequence[str], random: Random
) -> Query:
    words = len(words_of(text))
    new = edited(text, edits, kinds, others, random)
    return Query(number, new, words, min(edits, words), is_cjk(text))


async def measure(
    db: Database, name: str, prepared: Prepared, queries: Sequence[Query], tell: Tell
) -> Measured:
    """Index all posts by a method, then look up the queries one after the other."""
    method = METHODS[name]
    keys = [RULES[method.rule](query.text) for query in queries]
    start = time.perf_counter()

    def tell_posts(done: str) -> None:
        tell(f"{name}: indexing {done} of {prepared.documents:,} posts")

    async with method.opened(db, prepared.keys[method.rule], tell_posts) as index:
        build_seconds = time.perf_counter() - start
        size = await index.size()
        tell(f"{name}: looking up {len(queries):,} copies")
        found, seconds, pings = await _look_up(db, index, keys)
    median = float(np.median(pings))
    return Measured(name, found, np.array(seconds), median, size, build_seconds)


async def _look_up(
    db: Database, index: Index, keys: Sequence[Key]
) -> tuple[list[Found], list[float], list[float]]:
    """What was found, seconds of each look-up, and of pings between them."""
    if first := next(filter(None, keys), None):
        # The first look-up of a connection takes longer.
        await index.find(first)
    all_found, seconds, pings = [], [], []
    for place, key in enumerate(keys):
        if place % PING_EVERY == 0:
            pings.append(await ping_seconds(db))
        start = time.perf_counter()
        found = await index.find(key) if key else NOTHING
        if key:
            seconds.append(time.perf_counter() - start)
        all_found.append(found)
    return all_found, seconds, pings


def judge(
    corpus: Corpus, queries: Sequence[Query], measured: Sequence[Measured]
) -> dict[str, Flags]:
    """By method: (n,) whether the copied post was found, or one that is as good as it.

    The posts in question are read again, as the posts are not kept.
    """
    doubtful = {
        post
        for one in measured
        for query, found in zip(queries, one.found, strict=True)
        for post in _doubtful(query, found)
    }
    texts = corpus.texts_of(doubtful)
    return {
        one.method: np.array([_is_right(query, found, texts)
                              for query, found in zip(queries, one.found, strict=True)])
        for one in measured
    }  # fmt: skip


def _doubtful(query: Query, found: Found) -> list[int]:
    return [] if query.original in found.posts else found.posts[:MOST_JUDGED]


def _is_right(query: Query, found: Found, texts: dict[int, str]) -> bool:
    if query.original in found.posts:
        return True
    return any(alikeness(query.text, texts[post]) >= ALIKE for post in _doubtful(query, found))


def alikeness(one: str, other: str) -> float:
    """Exact Jaccard of two texts by characters; by the shape that shows more of it."""
    sketches = by_characters(one), by_characters(other)
    shapes = {code for code in SHAPES.values() if all(s and code in s.parts for s in sketches)}
    return max((jaccard(one, other, shape) for shape in shapes if shape.width), default=0.0)
