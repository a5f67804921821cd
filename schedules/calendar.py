"""Convert schedules to times: find when slots of the local week or even intervals are due.

A slot is due when the site's wall clock reaches it (see `WallClock`). A slot that daylight saving
time skips is due at the jump, and one that it repeats is due only the first time. Two slots that
fall on the same instant count as one visit.

All calculations use whole milliseconds since 1970, the resolution of MongoDB. Sums of fractional
hours are inexact and could put the next visit at or before the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from schedules.history import Floats, Ints
from schedules.schedule import WEEK_HOURS, Schedule, Schedules

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
# The constants below are in milliseconds.
SECOND, HOUR, YEAR = 1000, 3_600_000, 8766 * 3_600_000
# 1970-01-01 was a Thursday. Weeks are counted from the following Monday.
MONDAY = 96 * HOUR
FAR = 2**62


@dataclass(frozen=True, slots=True)
class WallClock:
    """Hold the wall clock of a zone over some years, as p periods of constant UTC offset.

    All values are in milliseconds.

    starts:  (p,) start of each period; the first is unbounded
    offsets: (p,) wall time minus UTC
    shown:   (p,) ascending; every wall time before this one was reached before the period starts
    """

    starts: Ints
    offsets: Ints
    shown: Ints

    @classmethod
    def of(cls, zone: ZoneInfo, start: float, end: float) -> WallClock:
        """Return the clock from `start` to `end`, with at least one year on either side."""
        first, last = 1970 + start // YEAR, 1970 + end // YEAR
        return _clock_of_years(zone, max(int(first) - 2, 2), min(int(last) + 2, 9997))

    def wall(self, at: Ints) -> Ints:
        """Return the wall time at these instants."""
        return at + self.offsets[np.searchsorted(self.starts, at, "right") - 1]

    def next_hour(self, after: int) -> int:
        """Return the number of the first full wall hour reached after this instant."""
        part = np.searchsorted(self.starts, after, "right") - 1
        latest = max(after + self.offsets[part], self.shown[part] - 1)
        return int(latest) // HOUR + 1

    def reached(self, hours: Ints) -> Ints:
        """Return the instants at which the wall clock reaches these full hours."""
        wall = hours * HOUR
        part = np.searchsorted(self.shown, wall, "right") - 1
        reached: Ints = np.maximum(wall - self.offsets[part], self.starts[part])
        return reached


@lru_cache(maxsize=4096)
def _clock_of_years(zone: ZoneInfo, first: int, last: int) -> WallClock:
    """Return the clock from the first to the last of these years, both included."""
    jumps = [jump for year in range(first, last + 1) for jump in _offset_changes(zone, year)]
    begin = (-FAR, _offset(zone, datetime(first, 1, 1, tzinfo=UTC)))
    starts, offsets = np.array([begin, *jumps], np.int64).T.copy()
    shown = np.maximum.accumulate(starts[1:] + offsets[:-1])
    return WallClock(starts, offsets, np.concatenate([starts[:1], shown]))


@lru_cache(maxsize=65536)
def _offset_changes(zone: ZoneInfo, year: int) -> tuple[tuple[int, int], ...]:
    """Return the UTC offset changes in a year as pairs of instant and new offset.

    The search compares the offsets of consecutive days, because no zone changes its offset twice
    within one day.
    """
    begin, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    days = [begin + timedelta(days=day) for day in range((end - begin).days + 1)]
    offsets = [_offset(zone, day) for day in days]
    jumps = []
    for day, offset, later in zip(days[:-1], offsets[:-1], offsets[1:], strict=True):
        if offset != later:
            # Bisect for the second of the day at which the offset changes.
            before, after = 0, 24 * 3600
            while after - before > 1:
                middle = (before + after) // 2
                is_before = _offset(zone, day + timedelta(seconds=middle)) == offset
                before, after = (middle, after) if is_before else (before, middle)
            jumps.append(((day - EPOCH) // MILLISECOND + after * SECOND, later))
    return tuple(jumps)


def _offset(zone: ZoneInfo, at: datetime) -> int:
    """Return wall time minus UTC, in milliseconds, counted from Monday 1970-01-05."""
    offset = at.astimezone(zone).utcoffset() or timedelta(0)
    return offset // MILLISECOND - MONDAY


def next_visit(schedule: Schedule, zone: ZoneInfo, after: datetime) -> datetime:
    """Return the first visit after `after`, in UTC. Both times are timezone-aware.

    Raises ValueError if the schedule has neither slots nor an interval.
    """
    since = (after - EPOCH) // MILLISECOND
    if schedule.every_hours:
        every, phase = _even(schedule.every_hours, schedule.phase_hours)
        at = int(_turn_at(every, phase, _turn(every, phase, since)))
    elif schedule.slots:
        clock = WallClock.of(zone, since, since)
        begin, cycle = clock.next_hour(since), schedule.weeks * WEEK_HOURS
        wait = min((slot - begin) % cycle for slot in schedule.slots)
        at = int(clock.reached(np.array(begin + wait)))
    else:
        raise ValueError("a schedule with neither slots nor an interval has no next visit")
    return EPOCH + at * MILLISECOND


def upcoming(
    schedule: Schedule, zone: ZoneInfo, after: datetime, hours: float = 48, most: int = 1000
) -> list[datetime]:
    """Return the visits in the `hours` hours after `after`, at most `most` of them."""
    until = after + timedelta(hours=hours)
    visits: list[datetime] = []
    while len(visits) < most and (after := next_visit(schedule, zone, after)) <= until:
        visits.append(after)
    return visits


def next_visits(schedules: Schedules, zone: ZoneInfo, after_hours: float) -> Floats:
    """Return the (n,) first visit of each target after `after_hours`.

    Times are hours since 1970 (UTC); inf if a schedule has neither slots nor an interval.
    """
    after = round(after_hours * HOUR)
    visits = np.full(len(schedules), np.inf)
    slotted = np.diff(schedules.first) > 0
    if slotted.any():
        clock = WallClock.of(zone, after, after)
        begin = clock.next_hour(after)
        wait = np.minimum.reduceat(_waits(schedules, begin), schedules.first[:-1][slotted])
        visits[slotted] = clock.reached(begin + wait)
    rows = np.flatnonzero(schedules.every_hours)
    every, phase = _even(schedules.every_hours[rows], schedules.phase_hours[rows])
    visits[rows] = _turn_at(every, phase, _turn(every, phase, after))
    return visits / HOUR


def visits_between(
    schedules: Schedules, zone: ZoneInfo, start_hours: float, end_hours: float
) -> tuple[Ints, Floats]:
    """Return all visits of n targets from `start_hours` (inclusive) to `end_hours` (exclusive).

    Returns (n + 1,) offsets into the visits, and the (v,) times of the visits in hours since 1970
    (UTC), ascending for each target.
    """
    start, end = round(start_hours * HOUR), round(end_hours * HOUR)
    clock = WallClock.of(zone, start, end)
    begin = clock.next_hour(start - 1)
    length = max(clock.next_hour(end - 1) - begin, 0)
    target = np.repeat(np.arange(len(schedules)), np.diff(schedules.first))
    wait, cycle = _waits(schedules, begin), _cycles(schedules)
    times = np.where(schedules.every_hours[target] > 0, 0, -((wait - length) // cycle))
    # Put all targets on one axis, each with its own stretch, so that a single sort orders all
    # visits.
    stretch = length + 1
    place = np.repeat(target * stretch + wait, times) + _counted(times) * np.repeat(cycle, times)
    place.sort(kind="stable")  # fast, because the visits are mostly sorted already
    target, hour = np.divmod(place, stretch)
    reached = clock.reached(begin + hour)
    # Slots that daylight saving time moves to the same instant count as one visit.
    once = (np.diff(target, prepend=-1) > 0) | (np.diff(reached, prepend=-FAR) > 0)

    rows = np.flatnonzero(schedules.every_hours)
    every, phase = _even(schedules.every_hours[rows], schedules.phase_hours[rows])
    turn = _turn(every, phase, start - 1)
    times = (_turn(every, phase, end - 1) - turn).clip(0).astype(np.int64)
    turns = np.repeat(turn, times) + _counted(times)
    evenly = _turn_at(np.repeat(every, times), np.repeat(phase, times), turns)

    target = np.concatenate([target[once], np.repeat(rows, times)])
    at = np.concatenate([reached[once], evenly.astype(np.int64)])
    order = np.argsort(target, kind="stable")
    first = np.searchsorted(target[order], np.arange(len(schedules) + 1))
    return first, at[order] / HOUR


def _cycles(schedules: Schedules) -> Ints:
    """Return the (k,) cycle length of each slot, in hours."""
    return np.repeat(schedules.weeks.astype(np.int64) * WEEK_HOURS, np.diff(schedules.first))


def _waits(schedules: Schedules, begin: int) -> Ints:
    """Return the (k,) wall hours from hour `begin` to each slot."""
    return (schedules.slots.astype(np.int64) - begin) % _cycles(schedules)


def _counted(counts: Ints) -> Ints:
    """Return 0, 1, … up to each count (exclusive), concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _even(every_hours: Floats | float, phase_hours: Floats | float) -> tuple[Floats, Floats]:
    """Return interval and phase in milliseconds. Raises ValueError below one second."""
    every = np.multiply(every_hours, HOUR)
    if np.any(every < SECOND):
        raise ValueError("the interval between visits must be at least one second")
    return every, np.multiply(phase_hours, HOUR)


def _turn(every: Floats, phase: Floats, after: int) -> Floats:
    """Return the number of the first visit of an even interval after `after`."""
    # Rounding in `_turn_at` can move a visit to `after` or earlier, so correct by up to two steps.
    turn = np.floor((after - phase) / every)
    turn = turn + (_turn_at(every, phase, turn) <= after)
    return turn + (_turn_at(every, phase, turn) <= after)


def _turn_at(every: Floats, phase: Floats, turn: Floats) -> Floats:
    """Return the times of the visits with these numbers, in milliseconds."""
    return np.rint(phase + turn * every)
