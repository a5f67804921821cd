"""Marks: samples of a text by which its passages are found in other texts. Machine code.

A text is cut into overlapping windows of some 30 characters, or 10 of Chinese, Japanese or Korean.
One window in four is a mark. The window's own characters decide whether it is one, so two texts
with a common passage have the same marks in it, wherever it stands, with or without line breaks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from crawler.sketches.arrays import CodePoints, Values
from crawler.sketches.kernels import is_of_cjk
from schedules.compiled import compiled

Places = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

# A character of Chinese, Japanese or Korean tells as much as three others.
CJK_WEIGHT = 3
# Longer than idioms and names, shorter than most entries of a menu.
WINDOW_WEIGHT = 30
SAMPLED = 4
# Characters between two neighboring known marks are known too, up to this many.
MAX_GAP = 40
# Passages of less weight between known ones are dates, numbers, or what an edit left of a window.
MIN_PASSAGE_WEIGHT = 16
BASE, SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
# BASE is odd, so it has an inverse: the hash of a window rolls in both directions.
INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
LOW = np.uint64(0xFFFFFFFF)


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


def occurrences(hashes: Values, pool: Values) -> Counts:
    """(m,) how often each of these marks is in a pool; zeros of the pool do not count."""
    slots = 1 << max(2, int(hashes.size * 2).bit_length())
    places, counts = np.full(slots, -1, np.int32), np.zeros(hashes.size, np.int32)
    _count(hashes, pool, places, counts)
    return counts


@compiled
def _count(hashes: Values, pool: Values, places: Places, counts: Counts) -> None:
    last = np.uint32(places.size - 1)
    for i in range(hashes.size):
        slot = hashes[i] & last
        while places[slot] >= 0 and hashes[places[slot]] != hashes[i]:
            slot = (slot + np.uint32(1)) & last
        if places[slot] < 0:
            places[slot] = i
    for mark in pool:
        if mark == np.uint32(0):
            continue
        slot = mark & last
        while places[slot] >= 0 and hashes[places[slot]] != mark:
            slot = (slot + np.uint32(1)) & last
        if places[slot] >= 0:
            counts[places[slot]] += 1
    # Of equal marks the first one has been counted.
    for i in range(hashes.size):
        slot = hashes[i] & last
        while hashes[places[slot]] != hashes[i]:
            slot = (slot + np.uint32(1)) & last
        counts[i] = counts[places[slot]]


def covered(points: CodePoints, marks: Marks, known: Flags) -> Flags:
    """(n,) which characters belong to known marks.

    known: (m,) which marks are known
    """
    mask = np.zeros(points.size, np.bool_)
    _cover(points, marks.starts, marks.ends, known, mask)
    return mask


@compiled
def _cover(points: CodePoints, starts: Places, ends: Places, known: Flags, mask: Flags) -> None:
    done = 0  # the mask is right up to here
    for i in range(starts.size):
        if not known[i]:
            continue
        begin = starts[i]
        if i > 0 and known[i - 1] and begin - ends[i - 1] <= MAX_GAP:
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


def longest_passage(points: CodePoints, mask: Flags) -> int:
    """Return the weight of the longest passage outside of a mask."""
    return int(_longest(points, mask))


@compiled
def _longest(points: CodePoints, mask: Flags) -> int:
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
