"""Net differences between two contents, and which differences are the same edit.

Contents are untrusted, so all steps take linear time. The words that an edit added and removed are
its identity: an exact digest finds identical edits, and sketches (MinHash) find edits that differ
in a few words, such as the name of the page in the same announcement.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from crawler.storage.client import Document
from crawler.utils.diff import Change, Matcher, by_word
from crawler.utils.text import MAX_CHARACTERS

if TYPE_CHECKING:
    from crawler.dedup.sketch import Sketch

# Characters of the added and of the removed words that a difference keeps.
MAX_KEPT = 4000
# Edits with fewer words resemble too many others: they fold only if they are identical.
MIN_WORDS = 20
MIN_SIMILARITY = 0.8
# Earlier edits that one edit is compared with.
MAX_CANDIDATES = 50
# Characters of a field that are compared word by word for display, in about 50 ms.
MAX_COMPARED = 100_000
# Pairs of words that the comparison of a page may compare.
WORD_PAIRS = 50_000_000
# Characters of unchanged text around an edit, of one part, and of all parts of a field.
CONTEXT, MAX_PART, MAX_SHOWN = 120, 2000, 20_000
Part = tuple[str, str]


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
        less, more = _only_in_one(old, new)
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


def _only_in_one(old: str, new: str) -> tuple[list[str], list[str]]:
    """Return the words that one text has more often than the other."""
    before, after = Counter(old.splitlines()), Counter(new.splitlines())
    # Equal lines need not be split into words.
    old_words = [word for line in (before - after).elements() for word in line.split()]
    new_words = [word for line in (after - before).elements() for word in line.split()]
    return _surplus(old_words, new_words), _surplus(new_words, old_words)


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
    long = [
        (index, each) for index, each in enumerate(differences)
        if each is not None and each.n_words >= MIN_WORDS
    ]  # fmt: skip
    if len(long) < 2:
        return first
    # Loads machine code, which inboxes without long edits do not need.
    from crawler.dedup.signature import by_words

    owners: dict[int, list[int]] = {}
    sketches: dict[int, Sketch] = {}
    for index, each in long:
        sketch = by_words(f"{each.removed}\n{each.added}")
        if sketch is None:
            continue
        bands = sketch.bands.tolist()
        candidates = dict.fromkeys(owner for band in bands for owner in owners.get(band, ()))
        for owner in islice(candidates, MAX_CANDIDATES):
            if (
                differences[owner].fields == each.fields  # type: ignore[union-attr]
                and sketch.similarity(sketches[owner]) >= MIN_SIMILARITY
            ):
                first[index] = owner
                break
        else:
            sketches[index] = sketch
            for band in bands:
                owners.setdefault(band, []).append(index)
    return first


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
        for kind, text in (("removed", change.old), ("added", change.new)):
            if text:
                yield kind, text[:MAX_PART]
            if len(text) > MAX_PART:
                yield "omitted", f"{len(text) - MAX_PART:,} characters"


def _context(text: str, *, is_start: bool, is_end: bool) -> Iterator[Part]:
    """Yield unchanged text, without what is far from the edits around it."""
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
