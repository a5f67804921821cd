"""How much of a text is really new: characters inserted and deleted, and the lines of a diff."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import Indel, Prefix

# Above this many pairs of characters the exact distance takes a second; lines are compared then.
EXACT_PAIRS = 40_000_000_000
# Above this many pairs of lines difflib may take minutes, or hours of lines made for that.
LINE_PAIRS = 100_000_000


def diff_size(before: str, after: str) -> int:
    """Fewest characters to delete from `before` and insert to make `after`.

    Exact where what differs (without the common start and end) is up to about 200,000 characters
    on both sides; beyond, whole lines count, and where they stand only up to 10,000 on both sides.
    """
    first, second = sorted((before, after))
    start = _common_start(first, second)
    first, second = first[start:], second[start:]
    end = _common_start(first[::-1], second[::-1])
    first, second = first[: len(first) - end], second[: len(second) - end]
    if len(first) * len(second) <= EXACT_PAIRS:
        return int(Indel.distance(first, second))
    return _line_diff_size(first.splitlines(keepends=True), second.splitlines(keepends=True))


def _common_start(first: str, second: str) -> int:
    return Prefix.similarity(first, second)


def _line_diff_size(old: list[str], new: list[str]) -> int:
    if len(old) * len(new) > LINE_PAIRS:
        before, after = Counter(old), Counter(new)
        return sum(len(line) * n for line, n in ((before - after) + (after - before)).items())
    return sum(
        sum(map(len, old[i1:i2])) + sum(map(len, new[j1:j2]))
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new).get_opcodes()
        if tag != "equal"
    )


def unified(before: Sequence[str], after: Sequence[str], names: tuple[str, str]) -> list[str]:
    """A unified diff of two contents, line by line."""
    return list(difflib.unified_diff(before, after, *names, lineterm="", n=2))
