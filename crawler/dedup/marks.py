"""Marks: samples of a text by which its passages are found in other texts. Compiled code.

A text is cut into overlapping windows of about 30 characters, or 10 of Chinese, Japanese or Korean.
One window in four is a mark. A hash of the window's characters decides which, so two texts with a
common passage have the same marks in it, at any position, with or without line breaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from numba import njit

from crawler.dedup.points import Bytes, CodePoints, Flags, Values, is_of_cjk
from schedules.compiled import compiled

Places = npt.NDArray[np.int32]

# A Chinese, Japanese or Korean character has about as much information as three others.
CJK_WEIGHT = 3
# A window is longer than idioms and names, and shorter than most entries of a menu.
WINDOW_WEIGHT = 30
SAMPLED = 4
# Characters between two neighboring chosen marks are covered too, up to this many.
MAX_GAP = 40
# Shorter passages between covered ones are dates, numbers, or the rest of an edited window.
MIN_PASSAGE_WEIGHT = 16
BASE, SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
# BASE is odd, so it has an inverse mod 2**64, which removes a window's first character from its
# hash.
INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
LOW = np.uint64(0xFFFFFFFF)
# Flag in a tally's states; the other bits are the number of posts.
COMMON = 0x80
MIN_SLOTS = 64


class Marks(NamedTuple):
    """(m,) marks of a text in order: hashes (never 0), and the positions of start and end."""

    hashes: Values
    starts: Places
    ends: Places


def marks_of(points: CodePoints) -> Marks:
    """Return the marks of a normal text; none for a text shorter than a window."""
    hashes, places = np.empty(points.size, np.uint32), np.empty((2, points.size), np.int32)
    count = _marks(points, hashes, places[0], places[1])
    starts, ends = places[:, :count].copy()
    return Marks(hashes[:count].copy(), starts, ends)


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
        # The upper half decides whether the window is a mark, the lower half is the mark's hash.
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
        """Return the (n,) code points."""

    @property
    def marks(self) -> Marks:
        """Return the marks."""


class CountedMarks(NamedTuple):
    """The marks counted for a post.

    marks:    (m,) counted marks, without repetitions
    frequent: (f,) marks among these that enough posts have now, and that are not common yet
    """

    marks: Values
    frequent: Values


class Tally:
    """A hash table of marks: the number of posts that have a mark, and whether it is common."""

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
        """Return (m,) states of marks: the number of posts, and the flag COMMON; 0 if unknown."""
        states = np.empty(hashes.size, np.uint8)
        _states(hashes, self._keys, self._states, states)
        return states

    def covered(self, text: Text) -> tuple[int, Flags]:
        """Return the number of a text's characters in common marks, and an (n,) mask of them."""
        (hashes, starts, ends), points = text.marks, text.points
        chosen, mask = np.empty(hashes.size, np.bool_), np.zeros(points.size, np.bool_)
        marks = (hashes, starts, ends)  # Numba takes microseconds to recognize a named tuple
        return _cover_common(points, marks, self._keys, self._states, chosen, mask), mask

    def add(self, hashes: Values) -> None:
        """Add the marks of a post, which must not be repeated, to the counts."""
        self._change(hashes, 1)

    def remove(self, hashes: Values) -> None:
        """Remove the marks of a post from the counts."""
        self._change(hashes, -1)

    def make_common(self, hashes: Values) -> None:
        """Flag these marks as common."""
        self._change(hashes, 0)

    def learn(self, text: Text, most: int, least_own: int, least_posts: int) -> CountedMarks | None:
        """Count a post's marks if it has a passage of its own; return None otherwise.

        most:        maximum number of marks to count, those with the smallest hashes
        least_own:   minimum weight of the passage, which must not have known marks
        least_posts: number of posts that make a mark frequent
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
        # Rebuild the table, which also frees the slots of marks that no post has anymore.
        kept = self._states > 0
        keys, states = self._keys[kept], self._states[kept]
        slots = 1 << (2 * (keys.size + more)).bit_length()
        self._keys, self._states = np.zeros(slots, np.uint32), np.zeros(slots, np.uint8)
        self._used = keys.size
        _fill(keys, states, self._keys, self._states)


@njit(inline="always")
def _slot(mark: np.uint32, keys: Values) -> int:
    """Return the slot of a mark, or the free slot for it."""
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
def _cover_common(
    points: CodePoints,
    marks: tuple[Values, Places, Places],
    keys: Values,
    states: Bytes,
    chosen: Flags,
    mask: Flags,
) -> int:
    """Choose the common marks, and mask the characters in them; return the number of these."""
    hashes, starts, ends = marks
    count = 0
    for i in range(hashes.size):
        slot = _slot(hashes[i], keys)
        chosen[i] = keys[slot] == hashes[i] and states[slot] >= COMMON
        count += chosen[i]
    if count == 0:
        return 0
    _cover(points, starts, ends, chosen, mask)
    masked = 0
    for is_masked in mask:
        masked += is_masked
    return masked


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
    """Count a post's marks and fill `its` and `frequent`; return their sizes, and the new slots.

    seen: zeros; its size is a power of two, and at least twice that of `its`
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
    """Return an (n,) mask of the characters in chosen marks. chosen: (m,) mask of the marks."""
    mask = np.zeros(points.size, np.bool_)
    _cover(points, marks.starts, marks.ends, chosen, mask)
    return mask


@compiled
def _cover(points: CodePoints, starts: Places, ends: Places, chosen: Flags, mask: Flags) -> None:
    done = 0  # the mask is complete up to here
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
