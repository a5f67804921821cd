"""Marks: samples of a text by which its passages are found in other texts. Machine code.

A text is cut into overlapping windows of some 30 characters, or 10 of Chinese, Japanese or Korean.
One window in four is a mark. The window's own characters decide whether it is one, so two texts
with a common passage have the same marks in it, wherever it stands, with or without line breaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from numba import njit

from crawler.dedup.arrays import Bytes, CodePoints, Values
from crawler.dedup.kernels import is_of_cjk
from schedules.compiled import compiled

Places = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

# A character of Chinese, Japanese or Korean tells as much as three others.
CJK_WEIGHT = 3
# Longer than idioms and names, shorter than most entries of a menu.
WINDOW_WEIGHT = 30
SAMPLED = 4
# Characters between two neighboring chosen marks are covered too, up to this many.
MAX_GAP = 40
# Passages of less weight between covered ones are dates, numbers, or what an edit left of a window.
MIN_PASSAGE_WEIGHT = 16
BASE, SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
# BASE is odd, so it has an inverse: the hash of a window rolls in both directions.
INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
LOW = np.uint64(0xFFFFFFFF)
# In a tally's states, over the number of posts.
COMMON = 0x80
MIN_SLOTS = 64


class Marks(NamedTuple):
    """(m,) the marks of a text in its order: their hashes (never 0), where they start and end."""

    hashes: Values
    starts: Places
    ends: Places


def marks_of(points: CodePoints) -> Marks:
    """Return the marks of a normal text; none for a text shorter than a window."""
    hashes = np.empty(points.size, np.uint32)
    starts, ends = np.empty(points.size, np.int32), np.empty(points.size, np.int32)
    count = _marks(points, hashes, starts, ends)
    return Marks(hashes[:count].copy(), starts[:count].copy(), ends[:count].copy())


@compiled
def _marks(points: CodePoints, hashes: Values, starts: Places, ends: Places) -> int:
    count, end, weight = 0, 0, 0
    rolling, power = np.uint64(0), np.uint64(1)  # power: BASE ** (end - start)
    for start in range(points.size):
        while weight < WINDOW_WEIGHT and end < points.size:
            rolling = rolling * BASE + np.uint64(points[end]) * SPREAD + np.uint64(1)
            power *= BASE
            weight += CJK_WEIGHT if is_of_cjk(points[end]) else 1
            end += 1
        if weight < WINDOW_WEIGHT:
            break
        value = (rolling ^ (rolling >> np.uint64(31))) * SPREAD
        value = (value ^ (value >> np.uint64(29))) * BASE
        first = CJK_WEIGHT if is_of_cjk(points[start]) else 1
        # The upper half decides whether it is a mark, the lower half is its hash.
        if (value >> np.uint64(32)) * np.uint64(SAMPLED) < np.uint64(first) << np.uint64(32):
            hashes[count] = max(np.uint32(1), np.uint32(value & LOW))
            starts[count], ends[count] = start, end
            count += 1
        weight -= first
        power *= INVERSE
        rolling -= (np.uint64(points[start]) * SPREAD + np.uint64(1)) * power
    return count


class Text(Protocol):
    """A normal text and its marks."""

    @property
    def points(self) -> CodePoints:
        """(n,) its code points."""

    @property
    def marks(self) -> Marks:
        """Its marks."""


class CountedMarks(NamedTuple):
    """What a post taught.

    marks:    (m,) those that were counted, each once
    frequent: (f,) those of them that enough posts have by now and that are not common yet
    """

    marks: Values
    frequent: Values


class Tally:
    """How many posts have each mark, and which marks are common: a hash table."""

    def __init__(self, posts: Iterable[Values], common: Values) -> None:
        self._used = 0
        self._keys, self._states = (
            np.zeros(MIN_SLOTS, np.uint32),
            np.zeros(MIN_SLOTS, np.uint8),
        )
        for its in posts:
            self.add(its)
        self.make_common(common)

    def states(self, hashes: Values) -> Bytes:
        """(m,) of marks: the number of posts that have it, and COMMON; 0 where it is unknown."""
        states = np.empty(hashes.size, np.uint8)
        _states(hashes, self._keys, self._states, states)
        return states

    def add(self, hashes: Values) -> None:
        """Count the marks of a post, which has each of them once."""
        self._change(hashes, 1)

    def remove(self, hashes: Values) -> None:
        """Count the marks of a post no more."""
        self._change(hashes, -1)

    def make_common(self, hashes: Values) -> None:
        """Note that these marks are common."""
        self._change(hashes, 0)

    def teach(self, text: Text, most: int, least_own: int, least_posts: int) -> CountedMarks | None:
        """Count a post's marks, if the post has a passage of its own.

        most:        marks that are counted, those with the smallest hashes
        least_own:   weight of a passage without any mark that is known
        least_posts: from how many posts on a mark is frequent
        Returns None where there is no such passage, and nothing is counted then.
        """
        hashes = text.marks.hashes
        counted = self.states(hashes) > 0
        is_own = hashes.size > 0
        if counted.any():
            mask = covered(text.points, text.marks, counted)
            is_own = longest_passage(text.points, mask) >= least_own
        if not is_own:
            return None
        if hashes.size > most:
            hashes = hashes[hashes < np.partition(hashes, most)[most]]
        self._make_room(hashes.size)
        its, frequent = np.empty((2, most), np.uint32)
        seen = np.zeros(1 << (2 * most).bit_length(), np.uint32)
        arrays = (self._keys, self._states, seen, its, frequent)
        size, number, new = _count(hashes, *arrays, least_posts)
        self._used += new
        return CountedMarks(its[:size], frequent[:number])

    def _change(self, hashes: Values, by: int) -> None:
        self._make_room(hashes.size)
        self._used += _change(hashes, self._keys, self._states, by)

    def _make_room(self, more: int) -> None:
        if (self._used + more) * 2 <= self._keys.size:
            return
        # Marks that no post has any more have kept their slots until now.
        kept = self._states > 0
        keys, states = self._keys[kept], self._states[kept]
        slots = 1 << (2 * (keys.size + more)).bit_length()
        self._keys, self._states = np.zeros(slots, np.uint32), np.zeros(slots, np.uint8)
        self._used = keys.size
        _fill(keys, states, self._keys, self._states)


@njit(inline="always")
def _slot(mark: np.uint32, keys: Values) -> int:
    """Where a mark is, or would be."""
    last = np.uint32(keys.size - 1)
    slot = mark & last
    while keys[slot] != mark and keys[slot] != np.uint32(0):
        slot = (slot + np.uint32(1)) & last
    return int(slot)


@compiled
def _states(hashes: Values, keys: Values, states: Bytes, result: Bytes) -> None:
    for i in range(hashes.size):
        slot = _slot(hashes[i], keys)
        result[i] = states[slot] if keys[slot] == hashes[i] else 0


@compiled
def _fill(marks: Values, given: Bytes, keys: Values, states: Bytes) -> None:
    for i in range(marks.size):
        slot = _slot(marks[i], keys)
        keys[slot], states[slot] = marks[i], given[i]


@compiled
def _change(hashes: Values, keys: Values, states: Bytes, by: int) -> int:
    new = 0
    for mark in hashes:
        slot = _slot(mark, keys)
        if keys[slot] != mark:
            keys[slot] = mark
            new += 1
        if by == 0:
            states[slot] |= COMMON
        else:
            states[slot] += by
    return new


@compiled
def _count(
    hashes: Values,
    keys: Values,
    states: Bytes,
    seen: Values,
    its: Values,
    frequent: Values,
    least: int,
) -> tuple[int, int, int]:
    """Count a post's marks and fill `its` and `frequent`; sizes of both, and new slots.

    seen: of zeros, a power of two of them, twice as many as there is room for in `its`
    """
    size, count, new = 0, 0, 0
    for mark in hashes:
        at = _slot(mark, seen)
        if seen[at] == mark:
            continue
        seen[at] = its[size] = mark
        size += 1
        slot = _slot(mark, keys)
        if keys[slot] != mark:
            keys[slot] = mark
            new += 1
        states[slot] += 1
        if least <= states[slot] < COMMON:
            frequent[count] = mark
            count += 1
    return size, count, new


def covered(points: CodePoints, marks: Marks, chosen: Flags) -> Flags:
    """(n,) which characters belong to chosen marks.

    chosen: (m,) which marks they are
    """
    mask = np.zeros(points.size, np.bool_)
    _cover(points, marks.starts, marks.ends, chosen, mask)
    return mask


@compiled
def _cover(points: CodePoints, starts: Places, ends: Places, chosen: Flags, mask: Flags) -> None:
    done = 0  # the mask is right up to here
    for i in range(starts.size):
        if not chosen[i]:
            continue
        begin = starts[i]
        if i > 0 and chosen[i - 1] and begin - ends[i - 1] <= MAX_GAP:
            begin = min(begin, ends[i - 1])
        for at in range(max(done, begin), ends[i]):
            mask[at] = True
        done = max(done, ends[i])
    begin, weight = 0, 0
    for at in range(mask.size):
        if mask[at]:
            if 0 < weight < MIN_PASSAGE_WEIGHT:
                mask[begin:at] = True
            weight = 0
            continue
        if weight == 0:
            begin = at
        weight += CJK_WEIGHT if is_of_cjk(points[at]) else 1
    if done and 0 < weight < MIN_PASSAGE_WEIGHT:
        mask[begin:] = True


@compiled
def longest_passage(points: CodePoints, mask: Flags) -> int:
    """Return the weight of the longest passage outside of a mask."""
    longest = weight = 0
    for at in range(points.size):
        if mask[at]:
            weight = 0
        else:
            weight += CJK_WEIGHT if is_of_cjk(points[at]) else 1
            longest = max(longest, weight)
    return longest


def outside(hashes: Values, mask: Flags, width: int) -> Values:
    """Return the hashes of those shingles that lie outside of a mask.

    hashes: (n - width + 1,) of all shingles; mask: (n,) of their units
    """
    kept = np.empty(hashes.size, np.uint32)
    return kept[: _outside(hashes, mask, width, kept)]


@compiled
def _outside(hashes: Values, mask: Flags, width: int, kept: Values) -> int:
    count = run = 0
    for at in range(mask.size):
        run = 0 if mask[at] else run + 1
        if run >= width:
            kept[count] = hashes[at - width + 1]
            count += 1
    return count
