"""Represent schedules: slots in a cycle of weeks, or an even interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from schedules.history import Flags, Floats, Ints, offsets, places_of

WEEK_HOURS = 168
WEEK_DAYS = 7
# Frequency classes of the grouped policies, by visits a week: 4G1 is one visit in four weeks.
FREQUENCY_CLASSES = ("4G1", "2G1", *(f"G{visits}" for visits in range(1, 15)))
# (16,) visits a week of each class.
VISITS_OF_CLASSES = np.array([1 / 4, 1 / 2, *range(1, 15)])
# Cycle lengths in weeks, longest first, for pages and for feeds. All of them divide ROUND_WEEKS,
# after which all cycles start together again.
PAGE_CYCLES = (4, 3, 2, 1)
FEED_CYCLES = (24, 12, 8, 6, 4, 3, 2, 1)
ROUND_WEEKS = math.lcm(*PAGE_CYCLES, *FEED_CYCLES)
MAX_WEEKS, MAX_FEED_WEEKS = PAGE_CYCLES[0], FEED_CYCLES[0]
# Visits a week are summed in whole parts, so that the sum does not depend on its order. Visits in
# any cycle are a whole number of parts.
VISIT_PARTS = ROUND_WEEKS * 2**16


def in_parts(visits_per_week: NDArray[np.floating]) -> Ints:
    """Return visits a week as whole numbers of parts."""
    parts = visits_per_week.astype(np.float64)
    # Convert in place, because there may be millions of numbers.
    parts *= VISIT_PARTS
    return np.rint(parts, out=parts).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hold the schedule of one target.

    weeks:       length of the cycle, one of PAGE_CYCLES or FEED_CYCLES, counted from Monday
                 1970-01-05
    slots:       hours of the cycle in the site's wall clock, 0 = Monday 00:00, ascending
    every_hours: even interval instead of slots; 0 if slots apply
    phase_hours: phase of the even interval: visits at phase + k * every, in hours since 1970 (UTC)
    """

    weeks: int = 1
    slots: tuple[int, ...] = ()
    every_hours: float = 0.0
    phase_hours: float = 0.0

    @property
    def visits_per_week(self) -> float:
        """Return the mean number of visits a week."""
        if self.every_hours:
            return WEEK_HOURS / self.every_hours
        return len(self.slots) / self.weeks


@dataclass(frozen=True, slots=True)
class Schedules:
    """Hold the schedules of n targets with k slots in total; fields as in Schedule.

    weeks:                    (n,)
    first:                    (n + 1,) offsets into slots
    slots:                    (k,)
    every_hours, phase_hours: (n,)
    """

    weeks: NDArray[np.uint8]
    first: Ints
    slots: NDArray[np.uint16]
    every_hours: Floats
    phase_hours: Floats

    def __len__(self) -> int:
        return len(self.weeks)

    def __getitem__(self, i: int) -> Schedule:
        return Schedule(
            int(self.weeks[i]),
            tuple(self.slots[self.first[i] : self.first[i + 1]].tolist()),
            float(self.every_hours[i]),
            float(self.phase_hours[i]),
        )

    def of(self, rows: Ints) -> Schedules:
        """Return the schedules of some of the targets."""
        first, place = places_of(rows, self.first)
        return Schedules(
            self.weeks[rows], first, self.slots[place],
            self.every_hours[rows], self.phase_hours[rows],
        )  # fmt: skip

    @property
    def visits_per_week(self) -> Floats:
        """Return the (n,) mean number of visits a week."""
        slots = np.diff(self.first) / self.weeks
        even = np.divide(
            WEEK_HOURS, self.every_hours, where=self.every_hours > 0, out=np.zeros(len(self))
        )
        return np.where(self.every_hours > 0, even, slots)

    @classmethod
    def none(cls, n: int) -> Schedules:
        """Return empty schedules for n targets."""
        zeros = np.zeros(n)
        first = np.zeros(n + 1, np.int64)
        return cls(np.ones(n, np.uint8), first, np.zeros(0, np.uint16), zeros, zeros.copy())

    @classmethod
    def even(cls, visits_per_week: Floats, phase: Floats) -> Schedules:
        """Return even intervals. phase: (n,) start of each target in its interval, in [0, 1)."""
        every = WEEK_HOURS / visits_per_week
        return replace(cls.none(len(every)), every_hours=every, phase_hours=every * phase)

    @classmethod
    def of_each(cls, schedules: Sequence[Schedule]) -> Schedules:
        """Return the schedules of single targets as arrays."""
        return cls(
            np.array([each.weeks for each in schedules], np.uint8),
            np.cumsum([0, *(len(each.slots) for each in schedules)]),
            np.array([slot for each in schedules for slot in each.slots], np.uint16),
            np.array([each.every_hours for each in schedules], np.float64),
            np.array([each.phase_hours for each in schedules], np.float64),
        )

    @classmethod
    def joined(cls, parts: Sequence[Schedules]) -> Schedules:
        """Return the schedules of all targets of these parts."""
        weeks, slots, every, phase = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("weeks", "slots", "every_hours", "phase_hours")
        )
        counts = np.concatenate([np.diff(part.first) for part in parts])
        return cls(weeks, offsets(counts), slots, every, phase)

    def same_as(self, other: Schedules) -> Flags:
        """Return (n,) flags of the targets that have the same schedule in both."""
        count = np.diff(self.first)
        same = (self.weeks == other.weeks) & (count == np.diff(other.first))
        same &= (self.every_hours == other.every_hours) & (self.phase_hours == other.phase_hours)
        rows = np.flatnonzero(same & (count > 0))
        owner = np.repeat(rows, count[rows])
        place = np.arange(len(owner)) - np.repeat(offsets(count[rows])[:-1], count[rows])
        equal = self.slots[self.first[owner] + place] == other.slots[other.first[owner] + place]
        same[owner[~equal]] = False
        result: Flags = same
        return result


def chosen_of(left: Flags, a: Schedules, b: Schedules) -> Schedules:
    """Return the (n,) schedules of `a` where `left` is true, else those of `b`."""
    count = np.where(left, np.diff(a.first), np.diff(b.first))
    first = offsets(count)
    offset = np.where(left, a.first[:-1], b.first[:-1] + len(a.slots)) - first[:-1]
    slots = np.concatenate([a.slots, b.slots])[np.arange(first[-1]) + np.repeat(offset, count)]
    return Schedules(
        np.where(left, a.weeks, b.weeks),
        first,
        slots,
        np.where(left, a.every_hours, b.every_hours),
        np.where(left, a.phase_hours, b.phase_hours),
    )


def replace_slots(schedules: Schedules, rows: Ints, slots: Ints) -> Schedules:
    """Return the schedules with the only slot of each of these targets replaced."""
    changed = schedules.slots.copy()
    changed[schedules.first[rows]] = slots
    return replace(schedules, slots=changed)


def nearest_class(visits_per_week: Floats) -> Ints:
    """Return the (n,) indices of the FREQUENCY_CLASSES nearest to visits a week, halves up."""
    between = (VISITS_OF_CLASSES[1:] + VISITS_OF_CLASSES[:-1]) / 2
    return np.searchsorted(between, visits_per_week, "right").astype(np.int64)
