"""Visits in time: when the slots of a local week, or an even interval, come due.

A slot is visited when the site's wall clock reaches it (see `wallclock`): one that daylight saving
skips at the jump, one that it repeats once. Two slots that fall on one instant are one visit.

Inside, all is in whole milliseconds since 1970, the finest that MongoDB keeps: sums of hours are
not exact, and what follows a visit has to be later than it.
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
# In milliseconds, as all that follows.
SECOND, HOUR, YEAR = 1000, 3_600_000, 8766 * 3_600_000
# 1970 began on a Thursday; weeks are counted from the Monday after.
MONDAY = 96 * HOUR
FAR = 2**62
MAX_DOUBLINGS = 20
# Failures in a row after which a target is tried again soon; from the next one on it waits.
QUICK_RETRIES = 2
# How a page that is visited adaptively has its interval changed by what a visit finds.
AFTER_CHANGE, AFTER_NONE = 0.5, 1.2
MIN_HOURS = 1 / 60


@dataclass(frozen=True, slots=True)
class WallClock:
    """The wall clock of a zone over some years, in p parts of one offset; all in milliseconds.

    starts:  (p,) when each part begins; the first has no beginning
    offsets: (p,) wall time minus instant
    shown:   (p,) all wall times before this were reached before the part; ascending
    """

    starts: Ints
    offsets: Ints
    shown: Ints

    @classmethod
    def of(cls, zone: ZoneInfo, start: float, end: float) -> WallClock:
        """The clock from `start` to `end`, and for a year at least before and after."""
        first, last = 1970 + start // YEAR, 1970 + end // YEAR
        return _of_years(zone, max(int(first) - 2, 2), min(int(last) + 2, 9997))

    def wall(self, at: Ints) -> Ints:
        """What the clock shows at these instants."""
        return at + self.offsets[np.searchsorted(self.starts, at, "right") - 1]

    def next_hour(self, after: int) -> int:
        """The first full wall hour, as a number, that is reached later than this instant."""
        part = np.searchsorted(self.starts, after, "right") - 1
        latest = max(after + self.offsets[part], self.shown[part] - 1)
        return int(latest) // HOUR + 1

    def reached(self, hours: Ints) -> Ints:
        """The instants at which these full wall hours, as numbers, are reached."""
        wall = hours * HOUR
        part = np.searchsorted(self.shown, wall, "right") - 1
        reached: Ints = np.maximum(wall - self.offsets[part], self.starts[part])
        return reached


@lru_cache(maxsize=4096)
def _of_years(zone: ZoneInfo, first: int, last: int) -> WallClock:
    jumps = [jump for year in range(first, last + 1) for jump in _jumps(zone, year)]
    begin = (-FAR, _offset(zone, datetime(first, 1, 1, tzinfo=UTC)))
    starts, offsets = np.array([begin, *jumps], np.int64).T.copy()
    shown = np.maximum.accumulate(starts[1:] + offsets[:-1])
    return WallClock(starts, offsets, np.concatenate([starts[:1], shown]))


@lru_cache(maxsize=65536)
def _jumps(zone: ZoneInfo, year: int) -> tuple[tuple[int, int], ...]:
    """When the clock jumps in a year (UTC), and the offset from then on.

    Looked for day by day: no zone jumps twice within one.
    """
    begin, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    days = [begin + timedelta(days=day) for day in range((end - begin).days + 1)]
    offsets = [_offset(zone, day) for day in days]
    jumps = []
    for day, offset, later in zip(days[:-1], offsets[:-1], offsets[1:], strict=True):
        if offset != later:
            # The second of the day at which the clock leaves the offset.
            before, after = 0, 24 * 3600
            while after - before > 1:
                middle = (before + after) // 2
                is_before = _offset(zone, day + timedelta(seconds=middle)) == offset
                before, after = (middle, after) if is_before else (before, middle)
            jumps.append(((day - EPOCH) // MILLISECOND + after * SECOND, later))
    return tuple(jumps)


def _offset(zone: ZoneInfo, at: datetime) -> int:
    """Wall time minus instant, in milliseconds."""
    offset = at.astimezone(zone).utcoffset() or timedelta(0)
    return offset // MILLISECOND - MONDAY


def next_visit(schedule: Schedule, zone: ZoneInfo, after: datetime) -> datetime:
    """The first visit later than `after`; aware times, the result in UTC.

    ValueError where the schedule has neither slots nor an interval.
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
    """The visits later than `after`, at most `hours` later, and no more than `most`."""
    until = after + timedelta(hours=hours)
    visits: list[datetime] = []
    while len(visits) < most and (after := next_visit(schedule, zone, after)) <= until:
        visits.append(after)
    return visits


def next_visits(schedules: Schedules, zone: ZoneInfo, after_hours: float) -> Floats:
    """(n,) hours since 1970 (UTC) of the first visit of each target later than `after_hours`.

    inf where a schedule has neither slots nor an interval.
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
    """All visits of n targets from `start_hours` on and before `end_hours`, v in all.

    returns offsets (n + 1,) into the visits, and (v,) hours since 1970 (UTC), ascending for each
    target
    """
    start, end = round(start_hours * HOUR), round(end_hours * HOUR)
    clock = WallClock.of(zone, start, end)
    begin = clock.next_hour(start - 1)
    length = max(clock.next_hour(end - 1) - begin, 0)
    target = np.repeat(np.arange(len(schedules)), np.diff(schedules.first))
    wait, cycle = _waits(schedules, begin), _cycles(schedules)
    times = np.where(schedules.every_hours[target] > 0, 0, -((wait - length) // cycle))
    # One axis for all targets, each with a stretch of its own.
    stretch = length + 1
    place = np.repeat(target * stretch + wait, times) + _counted(times) * np.repeat(cycle, times)
    place.sort(kind="stable")  # quick, as most is in order
    target, hour = np.divmod(place, stretch)
    reached = clock.reached(begin + hour)
    # Slots that daylight saving brings to one instant are one visit.
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
    """(k,) hours of the cycle of each slot."""
    return np.repeat(schedules.weeks.astype(np.int64) * WEEK_HOURS, np.diff(schedules.first))


def _waits(schedules: Schedules, begin: int) -> Ints:
    """(k,) wall hours from the hour `begin` to each slot."""
    return (schedules.slots.astype(np.int64) - begin) % _cycles(schedules)


def _counted(counts: Ints) -> Ints:
    """0, 1, … below each count, one count after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _even(every_hours: Floats | float, phase_hours: Floats | float) -> tuple[Floats, Floats]:
    """Interval and phase in milliseconds."""
    every = np.multiply(every_hours, HOUR)
    if np.any(every < SECOND):
        raise ValueError("an interval between visits is a second at least")
    return every, np.multiply(phase_hours, HOUR)


def _turn(every: Floats, phase: Floats, after: int) -> Floats:
    """The number of the first visit of an even interval that is later than `after`."""
    # Rounding may bring the visit before forward, or leave this one where `after` is.
    turn = np.floor((after - phase) / every)
    turn = turn + (_turn_at(every, phase, turn) <= after)
    return turn + (_turn_at(every, phase, turn) <= after)


def _turn_at(every: Floats, phase: Floats, turn: Floats) -> Floats:
    """When the visits of these numbers are."""
    return np.rint(phase + turn * every)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Hours between visits of a target; all > 0, but for `retry_hours`, which may be 0.

    retry_hours: after each of the first QUICK_RETRIES failures in a row; 0: due at the next run
    error_hours: after the failure that follows them, doubling with each further one
    planned_hours: the longest time to a visit of a plan; None: longest_hours
    """

    usual_hours: float
    error_hours: float
    longest_hours: float
    retry_hours: float = 0.0
    planned_hours: float | None = None

    def after_seen(self, now: datetime) -> datetime:
        """After a page was read, or not modified."""
        return now + timedelta(hours=min(self.usual_hours, self.longest_hours))

    def after_errors(self, now: datetime, errors: int) -> datetime:
        """After `errors` >= 1 failures in a row: soon at first, then as `after_refusals`."""
        longest = self.after_refusals(now, max(1, errors - QUICK_RETRIES))
        if errors > QUICK_RETRIES:
            return longest
        # A visit after a failure is never due at the moment of the failure itself.
        return min(now + max(MILLISECOND, timedelta(hours=self.retry_hours)), longest)

    def after_refusals(self, now: datetime, errors: int) -> datetime:
        """After `errors` >= 1 refusals in a row: doubling, never beyond the longest interval."""
        hours = self.error_hours * 2 ** min(errors - 1, MAX_DOUBLINGS)
        return now + timedelta(hours=min(hours, self.longest_hours))

    def after_gone(self, now: datetime, *, confirmed: bool) -> datetime:
        """After a 404 or 410: soon again until it is confirmed, then as rarely as allowed."""
        hours = self.longest_hours if confirmed else min(self.usual_hours, self.longest_hours)
        return now + timedelta(hours=hours)


def next_interval(every: float, least: float, most: float, *, changed: bool) -> float:
    """The interval from here on; all in hours, `least` and `most` bound it where they are > 0."""
    every *= AFTER_CHANGE if changed else AFTER_NONE
    if most:
        every = min(every, most)
    return max(every, least, MIN_HOURS)
