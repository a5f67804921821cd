"""Net differences between two contents, and which differences are the same edit.

Contents are untrusted, so all steps take linear time. The words that an edit added and removed are
its identity: an exact digest finds identical edits, and sketches (MinHash) find edits that differ
in a few words, such as the name of the page in the same announcement.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crawler.dedup.posts import normal_text
from crawler.storage.client import Document
from crawler.utils.diff import Change, Matcher, by_word
from crawler.utils.text import MAX_CHARACTERS

# Characters of the added and of the removed words that a difference keeps.
MAX_KEPT = 4000
# Edits with fewer words resemble too many others: they fold only if they are identical.
MIN_WORDS = 20
MIN_SIMILARITY = 0.8
# Words of a shingle, hashes of a sketch, and their seed: the same edits fold in each process.
WIDTH, VALUES, SEED = 5, 128, 1
# Characters of a field that are compared word by word for display, in about 50 ms.
MAX_COMPARED = 100_000
# Pairs of words that the comparison of a page may compare.
WORD_PAIRS = 50_000_000
# Characters of unchanged text around an edit, of one part, and of all parts of a field.
CONTEXT, MAX_PART, MAX_SHOWN = 120, 2000, 20_000
PartKind = Literal["same", "removed", "added", "omitted"]
Part = tuple[PartKind, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """A net difference between two contents.

    fields:  names of the fields that differ
    removed: words only in the earlier content, in their order; cut at MAX_KEPT characters
    added:   words only in the later content
    n_words: number of removed and added words
    size:    characters of the removed and added words
    digest:  equal for identical edits; None if only the order of words changed
    """

    fields: tuple[str, ...]
    removed: str
    added: str
    n_words: int
    size: int
    digest: bytes | None


def difference_of(before: Document, after: Document) -> Difference:
    """Return the net difference between two contents."""
    fields: list[str] = []
    removed: list[str] = []
    added: list[str] = []
    edits: list[tuple[str, list[str], list[str]]] = []
    for name in {**before, **after}:
        old, new = text_of(before.get(name)), text_of(after.get(name))
        if old == new:
            continue
        fields.append(name)
        was, now = Counter(old.splitlines()), Counter(new.splitlines())
        # Equal lines need not be split into words.
        old_words = [word for line in (was - now).elements() for word in line.split()]
        new_words = [word for line in (now - was).elements() for word in line.split()]
        less, more = _surplus(old_words, new_words), _surplus(new_words, old_words)
        removed += less
        added += more
        if less or more:
            edits.append((name, sorted(less), sorted(more)))
    digest = None
    if edits:
        packed = json.dumps(edits, ensure_ascii=True).encode()
        digest = hashlib.blake2b(packed, digest_size=16).digest()
    return Difference(
        fields=tuple(fields),
        removed=" ".join(removed)[:MAX_KEPT],
        added=" ".join(added)[:MAX_KEPT],
        n_words=len(removed) + len(added),
        size=sum(map(len, removed)) + sum(map(len, added)),
        digest=digest,
    )


def text_of(value: Any) -> str:
    """Return a stored value as text: lists by line, other values as they are printed."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(map(text_of, value))[:MAX_CHARACTERS]
    if isinstance(value, dict):
        return "\n".join(f"{name}: {text_of(each)}" for name, each in value.items())[
            :MAX_CHARACTERS
        ]
    return str(value)[:MAX_CHARACTERS]


def _surplus(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the words that `words` has more often than `others`, in their order."""
    left = Counter(words) - Counter(others)
    kept = []
    for word in words:
        if left[word] > 0:
            left[word] -= 1
            kept.append(word)
    return kept


def similar_edits(differences: Sequence[Difference | None]) -> list[int]:
    """Return for each difference the index of the first one that is nearly the same edit.

    A difference without a similar one, and None, gets its own index.
    """
    first = list(range(len(differences)))
    owners: dict[tuple[str, ...], list[int]] = {}
    sketches = np.empty((len(differences), VALUES), np.uint32)
    for index, each in enumerate(differences):
        if each is None or each.n_words < MIN_WORDS:
            continue
        sketch = _sketch(f"{each.removed}\n{each.added}")
        if sketch is None:
            continue
        earlier = owners.setdefault(each.fields, [])
        similar = (sketches[earlier] == sketch).mean(axis=1) >= MIN_SIMILARITY
        if similar.any():
            first[index] = earlier[int(similar.argmax())]
        else:
            sketches[index] = sketch
            earlier.append(index)
    return first


def _sketch(text: str) -> npt.NDArray[np.uint32] | None:
    """Return (VALUES,) minima of hashes of a text's shingles (MinHash); None if it is too short.

    The kernels of `crawler.dedup` are faster, but the web app would have to load their compiler.
    """
    words = normal_text(text).split()
    shingles = [" ".join(words[at : at + WIDTH]) for at in range(len(words) - WIDTH + 1)]
    if not shingles:
        return None
    hashes = np.array([zlib.crc32(shingle.encode("utf-8", "replace")) for shingle in shingles])
    # Multiply-shift hashing: the high half of a product with a random odd factor.
    mixed: npt.NDArray[np.uint64] = hashes.astype(np.uint64)[:, None] * _factors()
    return np.asarray((mixed >> np.uint64(32)).min(axis=0), np.uint32)


@cache
def _factors() -> npt.NDArray[np.uint64]:
    random = np.random.default_rng(SEED)
    return random.integers(0, 1 << 64, VALUES, dtype=np.uint64) | np.uint64(1)


def parts_of(before: Any, after: Any, matcher: Matcher) -> list[Part]:
    """Return the parts of a changed value: `same`, `removed`, `added` or `omitted`, and the text.

    Unchanged text far from an edit, and everything beyond MAX_SHOWN characters, is `omitted`: its
    text is the number of characters.
    """
    old, new = text_of(before), text_of(after)
    omitted = max(len(old), len(new)) - MAX_COMPARED
    changes = by_word(old[:MAX_COMPARED], new[:MAX_COMPARED], matcher)
    parts: list[Part] = []
    room = MAX_SHOWN
    for part in _parts(changes):
        room -= len(part[1])
        if room < 0:
            omitted = max(omitted, 1)
            break
        parts.append(part)
    return [*parts, ("omitted", "the rest")] if omitted > 0 else parts


def _parts(changes: Sequence[Change]) -> Iterator[Part]:
    last = len(changes) - 1
    for number, change in enumerate(changes):
        is_end = number == last and not (change.old or change.new)
        yield from _context(change.same, is_start=number == 0, is_end=is_end)
        sides: tuple[Part, Part] = ("removed", change.old), ("added", change.new)
        for kind, text in sides:
            if text:
                yield kind, text[:MAX_PART]
            if len(text) > MAX_PART:
                yield "omitted", f"{len(text) - MAX_PART:,} characters"


def _context(text: str, *, is_start: bool, is_end: bool) -> Iterator[Part]:
    """Yield unchanged text, but omit the middle, which is far from the edits around it."""
    head = 0 if is_start else CONTEXT
    tail = 0 if is_end else CONTEXT
    if len(text) <= head + tail + CONTEXT:
        if text:
            yield "same", text
        return
    if head:
        yield "same", text[:head]
    yield "omitted", f"{len(text) - head - tail:,} characters"
    if tail:
        yield "same", text[-tail:]
