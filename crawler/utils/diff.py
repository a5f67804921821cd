"""How two texts differ: the size of the difference, and the changed lines and words to show.

Texts come from outside, so all of it is bounded in time and size. Sequences are compared exactly
within a budget of pairs; when the budget is used up, items that occur once in both are the anchors,
and what lies between them counts as replaced. That gives a larger difference, never a wrong one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rapidfuzz.distance import Indel, LCSseq, Postfix, Prefix

from crawler.utils.terminal import visible

# Above this many pairs of characters the exact distance takes a second; lines are compared then.
EXACT_PAIRS = 40_000_000_000
# Up to this many it takes about 30 ms, in which no other thread runs: the library keeps the lock.
QUICK_PAIRS = 1_000_000_000
# Above this many pairs of lines their places no longer count.
LINE_PAIRS = 100_000_000
# Pairs of lines and words that one diff may compare: 0.2 s and 50 MB.
MAX_PAIRS = 400_000_000
# Anchors within parts between anchors; a text can be made so that each level finds a single one.
MAX_LEVELS = 20
# Longer texts are not split into words.
MAX_WORD_CHARACTERS = 2_000_000
CONTEXT_LINES = 2
CONTEXT_CHARACTERS = 60
# Longer lines that differ are compared by word.
LONG_LINE = 160
# Of longer changed parts the beginning and the end are shown.
MAX_PART = 2000
# Of the lines by word in one place, and of all lines of a diff together.
MAX_WORD_LINES = 20_000
MAX_CHARACTERS = 200_000
WORD = re.compile(r"\w+|\s+|.", re.S)
Run = tuple[int, int, int]
Opcode = tuple[bool, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Change:
    """A part of two texts: `same` in both, then `old` in the one where the other has `new`."""

    same: str
    old: str
    new: str


def diff_size(before: str, after: str) -> int:
    """Fewest characters to delete from `before` and insert to make `after`.

    Exact where what differs (without the common start and end) is up to about 200,000 characters
    on both sides; beyond, whole lines count, and where they stand only up to 10,000 on both sides.
    """
    first, second = _differing(before, after)
    if len(first) * len(second) <= EXACT_PAIRS:
        return int(Indel.distance(first, second))
    old, new = first.splitlines(keepends=True), second.splitlines(keepends=True)
    if len(old) * len(new) > LINE_PAIRS:
        return _moved_diff_size(old, new)
    common = sum(sum(map(len, old[i : i + n])) for i, _, n in Matcher(LINE_PAIRS).runs(old, new))
    return sum(map(len, old)) + sum(map(len, new)) - 2 * common


def is_quick(before: str, after: str) -> bool:
    """Return whether `diff_size` of two texts takes less time than other work can wait."""
    first, second = _differing(before, after)
    return len(first) * len(second) <= QUICK_PAIRS


def estimated_diff_size(before: str, after: str) -> int:
    """Return the size of a difference by whole lines wherever they are, in linear time.

    It may be larger than `diff_size` where lines differ in part, and smaller where lines moved.
    """
    first, second = _differing(before, after)
    return _moved_diff_size(first.splitlines(keepends=True), second.splitlines(keepends=True))


def _differing(before: str, after: str) -> tuple[str, str]:
    """Two texts, in a fixed order, without what they have in common at both ends."""
    first, second = sorted((before, after))
    start, end = _common_ends(first, second)
    return first[start : len(first) - end], second[start : len(second) - end]


def _common_ends(first: str, second: str) -> tuple[int, int]:
    """How many characters two texts have in common at their start, and then at their end."""
    start = Prefix.similarity(first, second)
    # One character may not belong to both.
    room = min(len(first), len(second)) - start
    return start, min(room, Postfix.similarity(first, second))


def _moved_diff_size(old: list[str], new: list[str]) -> int:
    """Characters of the lines that one text has more often than the other."""
    before, after = Counter(old), Counter(new)
    return sum(len(line) * n for line, n in ((before - after) + (after - before)).items())


class Matcher:
    """Finds what sequences have in common, within one budget of pairs for all of them."""

    def __init__(self, pairs: int = MAX_PAIRS) -> None:
        self._pairs_left = pairs

    def runs(self, old: Sequence[str], new: Sequence[str]) -> list[Run]:
        """Runs of equal items in order, each as its start in `old` and in `new` and its length.

        A longest common subsequence, as far as the budget goes.
        """
        numbers: dict[str, int] = {}
        one = [numbers.setdefault(item, len(numbers)) for item in old]
        other = [numbers.setdefault(item, len(numbers)) for item in new]
        return list(_joined(self._within(one, other, (0, len(one)), (0, len(other)), MAX_LEVELS)))

    def opcodes(self, old: Sequence[str], new: Sequence[str]) -> Iterator[Opcode]:
        """All of both sequences in order: whether it is equal, and its bounds in each."""
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
            found = LCSseq.opcodes(old[i:i_end], new[j:j_end]) if pairs else ()
            for code in found:
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
    """Places of items that both parts have once, as many as are in the same order in both."""
    one, other = old[slice(*of_old)], new[slice(*of_new)]
    count_one, count_other = Counter(one), Counter(other)
    places = {item: j for j, item in enumerate(other, of_new[0]) if count_other[item] == 1}
    pairs = [
        (i, places[item])
        for i, item in enumerate(one, of_old[0])
        if count_one[item] == 1 and item in places
    ]
    # The longest increasing subsequence of places in the new part.
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


def _joined(runs: Iterator[Run]) -> Iterator[Run]:
    """Runs without empty ones; those that follow one another are one."""
    i = j = n = 0
    for at, to, length in runs:
        if (at, to) == (i + n, j + n):
            n += length
        elif length:
            if n:
                yield i, j, n
            i, j, n = at, to, length
    if n:
        yield i, j, n


def by_word(before: str, after: str, matcher: Matcher) -> list[Change]:
    """Two texts by what they have in common and what not, word by word."""
    start, end = _common_ends(before, after)
    # Words are not cut.
    while start and _in_word(before, start) | _in_word(after, start):
        start -= 1
    while end and _in_word(before, len(before) - end) | _in_word(after, len(after) - end):
        end -= 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    found = [Change(before[:start], "", "")]
    if max(len(old), len(new)) > MAX_WORD_CHARACTERS:
        found.append(Change("", old, new))
    else:
        words, others = WORD.findall(old), WORD.findall(new)
        for equal, i, i_end, j, j_end in matcher.opcodes(words, others):
            text, other = "".join(words[i:i_end]), "".join(others[j:j_end])
            found.append(Change(text, "", "") if equal else Change("", text, other))
    return _readable([*found, Change(before[len(before) - end :], "", "")])


def _in_word(text: str, at: int) -> bool:
    return 0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()


def _readable(changes: Sequence[Change]) -> list[Change]:
    """Changes with what is between them; too little between two counts as changed in both."""
    found: list[Change] = []
    same, gap = "", ""
    # Parts of one change, joined at its end: a text may have a change in every other word.
    old: list[str] = []
    new: list[str] = []
    size = 0
    for change in changes:
        gap += change.same
        if not (change.old or change.new):
            continue
        more = max(len(change.old), len(change.new))
        if size and len(gap) > min(size, more):
            found.append(Change(same, "".join(old), "".join(new)))
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
        found.append(Change(same, "".join(old), "".join(new)))
    return [*found, Change(gap, "", "")] if gap else found


def unified(before: Sequence[str], after: Sequence[str], names: tuple[str, str]) -> list[str]:
    """A diff of two contents for readers: by line, and of long lines by word.

    Lines begin with a blank (in both), `-`, `+`, or `~`: then `[-…-]` went and `{+…+}` came. Long
    parts are folded, characters that a terminal would act on are escaped, and what is more than
    MAX_CHARACTERS is left out, which the last line reports.
    """
    matcher = Matcher()
    hunks = _hunks(list(matcher.opcodes(before, after)))
    lines: list[str] = []
    room = MAX_CHARACTERS
    for line in _shown(before, after, hunks, matcher):
        room -= len(line)
        if room < 0:
            lines.append("… more differs than is shown; --json has both versions in full")
            break
        lines.append(line)
    return [f"--- {names[0]}", f"+++ {names[1]}", *lines] if lines else []


def _hunks(opcodes: list[Opcode]) -> Iterator[list[Opcode]]:
    """Changes with a few equal lines around them; those that are near one another together."""
    hunk: list[Opcode] = []
    for n, (equal, i, i_end, j, j_end) in enumerate(opcodes):
        if not equal:
            hunk.append((equal, i, i_end, j, j_end))
            continue
        first, last = n == 0, n == len(opcodes) - 1
        head = 0 if first else min(CONTEXT_LINES, i_end - i)
        tail = 0 if last else min(CONTEXT_LINES, i_end - i)
        if not first and not last and i_end - i <= 2 * CONTEXT_LINES:
            hunk.append((equal, i, i_end, j, j_end))
            continue
        if head:
            yield [*hunk, (True, i, i + head, j, j + head)]
        hunk = [(True, i_end - tail, i_end, j_end - tail, j_end)] if tail else []
    if any(not equal for equal, *_ in hunk):
        yield hunk


def _shown(
    before: Sequence[str], after: Sequence[str], hunks: Iterator[list[Opcode]], matcher: Matcher
) -> Iterator[str]:
    for hunk in hunks:
        (_, i, _, j, _), (_, _, i_end, _, j_end) = hunk[0], hunk[-1]
        yield f"@@ -{_range(i, i_end)} +{_range(j, j_end)} @@"
        for equal, start, stop, to, to_stop in hunk:
            old, new = before[start:stop], after[to:to_stop]
            if equal:
                yield from (f" {_folded(line, 2 * CONTEXT_CHARACTERS)}" for line in old)
            else:
                yield from _replaced(old, new, matcher)


def _replaced(old: Sequence[str], new: Sequence[str], matcher: Matcher) -> Iterator[str]:
    """Lines in place of others: from the first long one on by word."""
    pairs = list(zip(old, new, strict=False))
    long = (n for n, pair in enumerate(pairs) if max(map(len, pair)) > LONG_LINE)
    if (at := next(long, None)) is None:
        at = max(len(old), len(new))
    yield from (f"-{_folded(line, MAX_PART)}" for line in old[:at])
    yield from (f"+{_folded(line, MAX_PART)}" for line in new[:at])
    if at < len(pairs):
        yield from _word_lines("\n".join(old[at:]), "\n".join(new[at:]), matcher)


def _range(start: int, stop: int) -> str:
    """Lines of a hunk as `diff -u` numbers them."""
    first = start + 1 if stop > start else start
    return f"{first}" if stop - start == 1 else f"{first},{stop - start}"


def _word_lines(before: str, after: str, matcher: Matcher) -> Iterator[str]:
    """Lines of a diff by word, as many as there is room for."""
    changes = by_word(before, after, matcher)
    parts: list[str] = []
    room = MAX_WORD_LINES
    for n, change in enumerate(changes):
        last = n == len(changes) - 1 and not (change.old or change.new)
        parts.append(_context(change.same, first=n == 0, last=last))
        parts += _marked(change.old, "[-", "-]"), _marked(change.new, "{+", "+}")
        room -= sum(map(len, parts[-3:]))
        if room < 0:
            parts.append(f"\n… {len(changes) - n - 1:,} more changes …")
            break
    for line in "".join(parts).split("\n"):
        yield f"~{line}"


def _marked(text: str, begin: str, end: str) -> str:
    """A changed part, each of its lines between marks."""
    lines = _folded(text, MAX_PART).split("\n")
    return "\n".join(f"{begin}{line}{end}" if line else "" for line in lines)


def _context(text: str, *, first: bool, last: bool) -> str:
    """What stands before a change, or after the last one; a long one is folded into three lines."""
    head = CONTEXT_CHARACTERS // 2 if first else CONTEXT_CHARACTERS
    tail = 0 if last else CONTEXT_CHARACTERS
    if len(text) <= head + tail + CONTEXT_CHARACTERS:
        return visible(text, blanks=True)
    begin, end = text[:head].rstrip("\n"), text[len(text) - tail :] if tail else ""
    blank = end.find(" ")
    end = end[blank + 1 :] if 0 <= blank < CONTEXT_CHARACTERS // 3 else end
    left_out = len(text) - len(begin) - len(end)
    shown = visible(begin, blanks=True), visible(end, blanks=True)
    return f"\n… {left_out:,} characters …\n".join(shown).rstrip("\n")


def _folded(text: str, longest: int) -> str:
    """A text as it can be shown; of a long one the beginning and the end."""
    half, left_out = longest // 2, len(text) - longest
    if left_out <= CONTEXT_CHARACTERS:
        return visible(text, blanks=True)
    shown = visible(text[:half], blanks=True), visible(text[-half:], blanks=True)
    return f" … {left_out:,} characters … ".join(shown)
