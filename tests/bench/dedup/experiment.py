"""The paper's experiment on generated posts or a file of posts: `make bench ARGS=--experiment`.

Looks up copies of posts, with a few changed words, among the posts: by the paper's three layouts,
by Freshet's schemes and by datasketch. The database is that of MONGO_URI, or a temporary one; the
experiment leaves nothing in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from crawler.cli.base import print_json
from crawler.cli.options import positive_int
from crawler.config import Config
from crawler.dedup.minhash import by_characters, jaccard
from crawler.dedup.sketch import SHAPES
from crawler.errors import ConfigError, FreshetError
from crawler.storage.client import Database, Document
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import opened
from crawler.utils.process import INTERRUPTED, interruptible
from crawler.utils.terminal import working
from crawler.utils.text import count
from tests.bench.dedup import results
from tests.bench.dedup.corpus import KINDS, Corpus, File, Synthetic, edited, is_cjk, words_of
from tests.bench.dedup.indexes import METHODS, NOTHING, RULES, Index, Key, Tell
from tests.bench.dedup.layouts import Found, explained, ping_seconds

DOCUMENTS, QUERIES, EDITS, SEED = 10_000, 1000, (1, 5), 1
# A post other than the copied one is a correct result from this exact similarity on: Freshet's
# threshold minus the error of its estimate.
ALIKE = 0.67
MAX_JUDGED = 20
TOLD_EVERY, PING_EVERY = 1000, 10
Flags = npt.NDArray[np.bool_]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the posts, the copies and the methods."""
    option = parser.add_argument_group("near-duplicate experiment").add_argument
    option(
        "--experiment", metavar="FILE", type=Path, nargs="?", const=Path(),
        help='look up copies of posts; FILE: {"id", "text"} as JSON on each line, may be '
        "compressed by xz or gzip (default: generated posts, whose recall is not realistic)",
    )  # fmt: skip
    option(
        "--documents", metavar="D", type=positive_int,
        help="posts to index (default: all of the file; 10000 generated posts)",
    )  # fmt: skip
    option(
        "--queries", metavar="N", type=positive_int, default=QUERIES,
        help="copies to look up (default: 1000)",
    )  # fmt: skip
    option(
        "--edits", metavar="N-M", type=_span, default=EDITS,
        help="words changed in a copy (default: 1-5); a Chinese word is two characters",
    )  # fmt: skip
    option(
        "--kinds", choices=KINDS, default="replace",
        help="kind of change to a word; all: replace, delete or insert",
    )  # fmt: skip
    option(
        "--method", metavar="NAME", action="append", choices=METHODS,
        help=f"method to run, can be repeated (default: all): {', '.join(METHODS)}",
    )  # fmt: skip
    option("--json", action="store_true", help="with --experiment: print JSON")


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        least, most = positive_int(first), positive_int(last or first)
    except argparse.ArgumentTypeError:
        least, most = 1, 0
    if least > most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of words. Examples: 3, 1-5")
    return least, most


def run(options: argparse.Namespace) -> int:
    """Run the experiment and print the results; return 130 if it was interrupted."""
    with tempfile.TemporaryDirectory(prefix="fr-") as folder:
        config = Config.load()
        is_own = config.mongo_uri is None
        if is_own:
            config = Config.load(data_dir=Path(folder))
        try:
            with working(config.progress, "reading posts") as tell:
                done = _experiment(config, options, tell)
        except KeyboardInterrupt:
            done = None
        except FreshetError as error:
            _complain(error)
            return 1
        finally:
            if is_own:
                EmbeddedServer.of(config).stop()
    if done is None:
        _complain("stopped; nothing of the experiment is left in the database")
        return INTERRUPTED
    print_json(done) if options.json else results.show(done)
    return 0


def _complain(problem: object) -> None:
    print(f"make bench: {problem}", file=sys.stderr)


def _experiment(config: Config, options: argparse.Namespace, tell: Tell) -> Document | None:
    """Return the results, or None if the experiment was interrupted."""
    names = list(dict.fromkeys(options.method or METHODS))
    rules = list(dict.fromkeys(METHODS[name].rule for name in names))
    seed = SEED if options.seed is None else options.seed
    random = Random(seed)
    corpus: Corpus
    if options.experiment == Path():
        corpus = Synthetic(options.documents or DOCUMENTS, seed)
    else:
        corpus = File(options.experiment, options.documents)
    prepared = prepare(corpus, rules, options.queries, random, tell)
    _tell_problems(corpus, prepared.documents, options)
    skipped = corpus.skipped  # counts all lines; judging reads only some of them
    queries = copies(prepared.sample, options.edits, KINDS[options.kinds], random)
    measured = interruptible(_measured(config, names, prepared, queries, tell))
    if measured is None:
        return None
    tell("judging the results")
    right = judge(corpus, queries, measured)
    return {
        "posts": corpus.name,
        "synthetic": corpus.synthetic,
        "skipped": skipped,
        "edits": list(options.edits),
        "kinds": options.kinds,
        "seed": seed,
    } | results.of_all(queries, measured, right, prepared.documents)


def _tell_problems(corpus: Corpus, documents: int, options: argparse.Namespace) -> None:
    """Print messages about skipped lines and missing posts."""
    for problem in corpus.problems:
        _complain(problem)
    if (more := corpus.skipped - len(corpus.problems)) > 0:
        _complain(f"{corpus.name}: {count(more, 'more line')} skipped")
    if not documents:
        raise ConfigError(f'{corpus.name}: no posts (a line of it is {{"id": "1", "text": "…"}})')
    if options.documents and documents < options.documents:
        lacking = f"has {count(documents, 'post')}, not {options.documents:,}: all of them are used"
        _complain(f"{corpus.name} {lacking}")
    if documents < options.queries:
        _complain(f"one copy of each post: {documents:,}, not {options.queries:,}")


async def _measured(
    config: Config,
    names: Sequence[str],
    prepared: Prepared,
    queries: Sequence[Query],
    tell: Tell,
) -> list[Measured]:
    """Return the results of each method, one after the other."""
    async with opened(config) as db:
        with explained():
            return [await measure(db, name, prepared, queries, tell) for name in names]


@dataclass(frozen=True, slots=True)
class Query:
    """A copy of a post.

    original: number of the copied post
    words:    number of words of the post
    edits:    number of changed words
    """

    original: int
    text: str
    words: int
    edits: int
    cjk: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """The data of the posts that the methods need.

    keys:   of all posts, by rule
    sample: numbers and texts of a uniform random sample
    """

    documents: int
    keys: dict[str, list[Key]]
    sample: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a method; arrays have the shape (n,) for n queries.

    seconds:       time of each lookup, for the queries that can be compared
    ping_seconds: median time of a no-op command during the lookups, to detect other load
    build_seconds: time of storing and indexing the posts, without sketches
    """

    method: str
    found: list[Found]
    seconds: npt.NDArray[np.float64]
    ping_seconds: float
    index_bytes: int
    build_seconds: float

    def mean(self, name: str) -> float:
        """Return the mean of a field of `Found` over the queries."""
        return float(np.mean([getattr(one, name) for one in self.found]))


def prepare(
    corpus: Corpus, rules: Sequence[str], queries: int, random: Random, tell: Tell
) -> Prepared:
    """Read the corpus once: the keys of all posts, and `queries` posts to copy."""
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
    """Make a copy of each sampled post, with words from the other posts."""
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
    """Return the results, the seconds of each lookup, and the seconds of pings in between."""
    if first := next(filter(None, keys), None):
        # The first lookup on a connection is slower.
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
    """Return by method whether each query found the copied post or an equally good one, (n,).

    Reads these posts again, because posts are not kept in memory.
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
    return [] if query.original in found.posts else found.posts[:MAX_JUDGED]


def _is_right(query: Query, found: Found, texts: dict[int, str]) -> bool:
    if query.original in found.posts:
        return True
    return any(alikeness(query.text, texts[post]) >= ALIKE for post in _doubtful(query, found))


def alikeness(one: str, other: str) -> float:
    """Return the exact Jaccard similarity of two texts, the maximum over the shapes."""
    sketches = by_characters(one), by_characters(other)
    shapes = {code for code in SHAPES.values() if all(s and code in s.parts for s in sketches)}
    return max((jaccard(one, other, shape) for shape in shapes if shape.width), default=0.0)
