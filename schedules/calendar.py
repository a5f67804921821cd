"""Visits in time: when the slots of a local week, or an even interval, come due.

A slot is visited when the site's wall clock reaches it (see `wallclock`): one that daylight saving
skips at the jump, one that it repeats once. Two slots that fall on one instant are one visit.

Inside, all is in whole milliseconds since 1970, the finest that MongoDB keeps: sums of hours are
not exact, and what follows a visit has to be later than it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from schedules.history import Floats, Ints
from schedules.schedule import WEEK_HOURS, Schedule, Schedules
from schedules.wallclock import EPOCH, FAR, HOUR, WallClock

SHORTEST = HOUR // 3600
MILLISECOND = timedelta(milliseconds=1)


def next_visit(schedule: Schedule, zone: ZoneInfo, after: datetime) -> datetime:
    """The first visit later than `after`; aware times, the result in UTC.

    ValueError where the schedule has neither slots nor an interval.
    """
    since = (after - EPOCH) // MILLISECOND
    if schedule.every_hours:
        every, phase = _even(schedule.every_hours, schedule.phase_hours)
        at = int(_turn_at(every, phase, _turn(every, phase, since)))
    elif schedule.slots:
        at = _next_slot(schedule, zone, since)
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
    after = _milliseconds(after_hours)
    visits = np.full(len(schedules), np.inf)
    some = np.diff(schedules.first) > 0
    if some.any():
        clock = WallClock.of(zone, after, after)
        begin = clock.next_hour(after)
        wait = np.minimum.reduceat(_waits(schedules, begin), schedules.first[:-1][some])
        visits[some] = clock.reached(begin + wait)
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
    start, end = _milliseconds(start_hours), _milliseconds(end_hours)
    slotted, even = _slotted(schedules, zone, start, end), _evenly(schedules, start, end)
    target, at = (np.concatenate(parts) for parts in zip(slotted, even, strict=True))
    order = np.argsort(target, kind="stable")
    first = np.searchsorted(target[order], np.arange(len(schedules) + 1))
    return first, at[order] / HOUR


def _milliseconds(hours: float) -> int:
    return round(hours * HOUR)


def _next_slot(schedule: Schedule, zone: ZoneInfo, after: int) -> int:
    """As `next_visits`, for one; in milliseconds."""
    clock = WallClock.of(zone, after, after)
    begin, cycle = clock.next_hour(after), schedule.weeks * WEEK_HOURS
    wait = min((slot - begin) % cycle for slot in schedule.slots)
    return int(clock.reached(np.array(begin + wait)))


def _cycles(schedules: Schedules) -> Ints:
    """(k,) hours of the cycle of each slot."""
    return np.repeat(schedules.weeks.astype(np.int64) * WEEK_HOURS, np.diff(schedules.first))


def _waits(schedules: Schedules, begin: int) -> Ints:
    """(k,) wall hours from the hour `begin` to each slot."""
    return (schedules.slots.astype(np.int64) - begin) % _cycles(schedules)


def _slotted(schedules: Schedules, zone: ZoneInfo, start: int, end: int) -> tuple[Ints, Ints]:
    """Targets and milliseconds of the visits at slots, from `start` on and before `end`."""
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
    at = clock.reached(begin + hour)
    once = (np.diff(target, prepend=-1) > 0) | (np.diff(at, prepend=-FAR) > 0)
    return target[once], at[once]


def _evenly(schedules: Schedules, start: int, end: int) -> tuple[Ints, Ints]:
    """Targets and milliseconds of the visits of even intervals, from `start` on, before `end`."""
    rows = np.flatnonzero(schedules.every_hours)
    every, phase = _even(schedules.every_hours[rows], schedules.phase_hours[rows])
    turn = _turn(every, phase, start - 1)
    times = (_turn(every, phase, end - 1) - turn).clip(0).astype(np.int64)
    turns = np.repeat(turn, times) + _counted(times)
    at = _turn_at(np.repeat(every, times), np.repeat(phase, times), turns)
    return np.repeat(rows, times), at.astype(np.int64)


def _counted(counts: Ints) -> Ints:
    """0, 1, … below each count, one count after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _even(every_hours: Floats | float, phase_hours: Floats | float) -> tuple[Floats, Floats]:
    """Interval and phase in milliseconds."""
    every = np.multiply(every_hours, HOUR)
    if np.any(every < SHORTEST):
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
