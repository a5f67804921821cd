"""Compare two texts: the size of their difference, and the lines and words that differ.

`crawler.utils.edits` shows differences. The texts are untrusted, so time is bounded. Sequences are
compared exactly until a budget of pairs is used up. After that, items that occur once in both
sequences serve as anchors, and everything between two anchors counts as replaced. The result is
still correct, but not minimal.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rapidfuzz.distance import Indel, LCSseq, Postfix, Prefix

# Above this many pairs of characters, the exact distance takes more than 1 s: compare lines.
EXACT_PAIRS = 40_000_000_000
# Up to this many pairs, the exact distance takes about 30 ms. Other threads are blocked meanwhile,
# because the library holds the GIL.
QUICK_PAIRS = 1_000_000_000
# Above this many pairs of lines, ignore the order of the lines.
LINE_PAIRS = 100_000_000
# Pairs of lines and words that one diff may compare, in about 0.2 s and 50 MB.
MAX_PAIRS = 400_000_000
# Recursion depth of anchors between anchors. Hostile texts can have a single anchor at each level.
MAX_LEVELS = 20
# Longer texts are not split into words.
MAX_WORD_CHARACTERS = 2_000_000
# Scripts without spaces: each character is a word.
UNSPACED = "\u3040-\u30ff\u3400-\u9fff"
LETTER = rf"[^\W{UNSPACED}]"
# A number with its separators and sign of currency, and a word with its hyphens, are one word.
WORD = re.compile(rf"[£$€¥]?{LETTER}+(?:[.,:'\u2019/-]{LETTER}+)*(?: ?[€£%])?|\s+|.", re.S)
WITHIN_WORD = re.compile(rf"(?:{LETTER}|[.,:'\u2019/£$€¥%-]){{2}}")
# A line without spaces is not searched further for the start of a word.
MAX_WORD_LENGTH = 40
Run = tuple[int, int, int]
Opcode = tuple[bool, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Change:
    """A part of two texts: unchanged text (`same`), then `old` was replaced with `new`."""

    same: str
    old: str
    new: str


def diff_size(before: str, after: str) -> int:
    """Return the number of characters to delete from `before` and insert to get `after`.

    The result is minimal if both texts have up to about 200,000 characters between their common
    start and end. For longer texts, whole lines are compared, and beyond 10,000 lines on both
    sides the order of the lines is ignored.
    """
    first, second = _without_common_ends(before, after)
    if len(first) * len(second) <= EXACT_PAIRS:
        return int(Indel.distance(first, second))
    old, new = first.splitlines(keepends=True), second.splitlines(keepends=True)
    if len(old) * len(new) > LINE_PAIRS:
        return _moved_diff_size(old, new)
    common = sum(sum(map(len, old[i : i + n])) for i, _, n in Matcher(LINE_PAIRS).runs(old, new))
    return sum(map(len, old)) + sum(map(len, new)) - 2 * common


def is_quick(before: str, after: str) -> bool:
    """Return True if `diff_size` of two texts is fast enough to block other work meanwhile."""
    first, second = _without_common_ends(before, after)
    return len(first) * len(second) <= QUICK_PAIRS


def estimated_diff_size(before: str, after: str) -> int:
    """Estimate the size of a difference in linear time, by whole lines regardless of their order.

    The result is larger than `diff_size` if lines changed in part, and smaller if lines moved.
    """
    first, second = _without_common_ends(before, after)
    return _moved_diff_size(first.splitlines(keepends=True), second.splitlines(keepends=True))


def _without_common_ends(before: str, after: str) -> tuple[str, str]:
    """Sort two texts, and cut off their common start and end."""
    first, second = sorted((before, after))
    start, end = _common_ends(first, second)
    return first[start : len(first) - end], second[start : len(second) - end]


def _common_ends(first: str, second: str) -> tuple[int, int]:
    """Return the lengths of the common start and of the common end after it."""
    start = Prefix.similarity(first, second)
    # Start and end must not overlap.
    room = min(len(first), len(second)) - start
    return start, min(room, Postfix.similarity(first, second))


def _moved_diff_size(old: list[str], new: list[str]) -> int:
    """Return the number of characters in lines that one text has more often than the other."""
    before, after = Counter(old), Counter(new)
    return sum(len(line) * n for line, n in ((before - after) + (after - before)).items())


class Matcher:
    """Finds common items of sequences, with one budget of pairs for all comparisons."""

    def __init__(self, pairs: int = MAX_PAIRS) -> None:
        self._pairs_left = pairs

    def runs(self, old: Sequence[str], new: Sequence[str]) -> list[Run]:
        """Return runs of equal items as (start in `old`, start in `new`, length).

        The runs are a longest common subsequence if the budget suffices.
        """
        numbers: dict[str, int] = {}
        first = [numbers.setdefault(item, len(numbers)) for item in old]
        second = [numbers.setdefault(item, len(numbers)) for item in new]
        joined: list[Run] = []
        i = j = n = 0
        for at, to, length in self._within(
            first, second, (0, len(first)), (0, len(second)), MAX_LEVELS
        ):
            if (at, to) == (i + n, j + n):
                n += length
            elif length:
                if n:
                    joined.append((i, j, n))
                i, j, n = at, to, length
        return [*joined, (i, j, n)] if n else joined

    def opcodes(self, old: Sequence[str], new: Sequence[str]) -> Iterator[Opcode]:
        """Yield the parts of both sequences in order: (is equal, bounds in `old`, in `new`)."""
        i = j = 0
        for at, to, n in (*self.runs(old, new), (len(old), len(new), 0)):
            if i < at or j < to:
                yield False, i, at, j, to
            if n:
                yield True, at, at + n, to, to + n
            i, j = at + n, to + n

    def _within(
        self,
        old: list[int],
        new: list[int],
        of_old: tuple[int, int],
        of_new: tuple[int, int],
        levels_left: int,
    ) -> Iterator[Run]:
        (i, i_end), (j, j_end) = of_old, of_new
        start = i
        while i < i_end and j < j_end and old[i] == new[j]:
            i, j = i + 1, j + 1
        yield start, of_new[0], i - start
        tail = i_end
        while i < i_end and j < j_end and old[i_end - 1] == new[j_end - 1]:
            i_end, j_end = i_end - 1, j_end - 1
        yield from self._between(old, new, (i, i_end), (j, j_end), levels_left)
        yield i_end, j_end, tail - i_end

    def _between(
        self,
        old: list[int],
        new: list[int],
        of_old: tuple[int, int],
        of_new: tuple[int, int],
        levels_left: int,
    ) -> Iterator[Run]:
        (i, i_end), (j, j_end) = of_old, of_new
        pairs = (i_end - i) * (j_end - j)
        if pairs <= self._pairs_left:
            self._pairs_left -= pairs
            codes = LCSseq.opcodes(old[i:i_end], new[j:j_end]) if pairs else ()
            for code in codes:
                if code.tag == "equal":
                    yield i + code.src_start, j + code.dest_start, code.src_end - code.src_start
        elif levels_left and (anchors := _anchors(old, new, of_old, of_new)):
            ends = ((i - 1, j - 1), *anchors, (i_end, j_end))
            for (i0, j0), (i1, j1) in pairwise(ends):
                yield from self._within(old, new, (i0 + 1, i1), (j0 + 1, j1), levels_left - 1)
                if i1 < i_end:
                    yield i1, j1, 1


def _anchors(
    old: list[int], new: list[int], of_old: tuple[int, int], of_new: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return the positions of items that occur once in both parts, in the same order.

    If the order differs, the result is a longest possible selection.
    """
    first, second = old[slice(*of_old)], new[slice(*of_new)]
    first_counts, second_counts = Counter(first), Counter(second)
    places = {item: j for j, item in enumerate(second, of_new[0]) if second_counts[item] == 1}
    pairs = [
        (i, places[item])
        for i, item in enumerate(first, of_old[0])
        if first_counts[item] == 1 and item in places
    ]
    # Find the longest increasing subsequence of positions in the new part.
    lowest: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for n, (_, j) in enumerate(pairs):
        length = bisect_left(lowest, j)
        before.append(ends[length - 1] if length else -1)
        lowest[length : length + 1] = [j]
        ends[length : length + 1] = [n]
    chosen, n = [], ends[-1] if ends else -1
    while n >= 0:
        chosen.append(pairs[n])
        n = before[n]
    return chosen[::-1]


def by_word(before: str, after: str, matcher: Matcher) -> list[Change]:
    """Return the changes between two texts, word by word."""
    start, end = _common_ends(before, after)
    # Extend the differing middle to word boundaries.
    first, last = start, end
    while start and (_in_word(before, start) | _in_word(after, start)):
        start -= 1
        if first - start > MAX_WORD_LENGTH:
            start = first
            break
    while end and _in_word(before, len(before) - end) | _in_word(after, len(after) - end):
        end -= 1
        if last - end > MAX_WORD_LENGTH:
            end = last
            break
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    changes = [Change(before[:start], "", "")]
    if max(len(old), len(new)) > MAX_WORD_CHARACTERS:
        changes.append(Change("", old, new))
    else:
        words, others = WORD.findall(old), WORD.findall(new)
        for equal, i, i_end, j, j_end in matcher.opcodes(words, others):
            text, other = "".join(words[i:i_end]), "".join(others[j:j_end])
            changes.append(Change(text, "", "") if equal else Change("", text, other))
    return _merged([*changes, Change(before[len(before) - end :], "", "")])


def _in_word(text: str, at: int) -> bool:
    if not 0 < at < len(text):
        return False
    return WITHIN_WORD.fullmatch(text, at - 1, at + 1) is not None


def _merged(changes: Sequence[Change]) -> list[Change]:
    """Merge changes that are separated by less text than they contain, for readability."""
    merged: list[Change] = []
    same, gap = "", ""
    # Collect parts in lists: concatenating strings would be quadratic with many small changes.
    old: list[str] = []
    new: list[str] = []
    size = 0
    for change in changes:
        gap += change.same
        if not (change.old or change.new):
            continue
        more = max(len(change.old), len(change.new))
        if size and len(gap) > min(size, more):
            merged.append(Change(same, "".join(old), "".join(new)))
            old, new, size, same = [], [], 0, gap
        elif size:
            old.append(gap)
            new.append(gap)
            size += len(gap)
        else:
            same = gap
        old.append(change.old)
        new.append(change.new)
        size, gap = size + more, ""
    if size:
        merged.append(Change(same, "".join(old), "".join(new)))
    return [*merged, Change(gap, "", "")] if gap else merged
