"""Convert schedules to times and to words, and parse windows of the local week.

A slot is due when the site's wall clock reaches it (see `WallClock`). A slot that daylight saving
time skips is due at the jump, and one that it repeats is due only the first time. Two slots that
fall on the same instant count as one visit.

All calculations use whole milliseconds since 1970, the resolution of MongoDB. Sums of fractional
hours are inexact and could put the next visit at or before the previous one.

A window is a part of the local week in which a site may be visited. It consists of days, hours, or
both: `Mon-Fri 08:00-18:00`, `22:00-06:00`, `Sat,Sun`. Days are names and ranges of names; a range
may cross the weekend (`Fri-Mon`). A window without days applies to every day, and one without hours
to the whole day. A window that crosses midnight belongs to the day on which it starts and continues
into the next day, even if that day is not listed: `Fri 22:00-06:00` ends on Saturday morning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from schedules.history import DAY_HOURS, Floats, Ints
from schedules.schedule import WEEK_HOURS, Schedule, Schedules

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
# The constants below are in milliseconds.
SECOND, HOUR, YEAR = 1000, 3_600_000, 8766 * 3_600_000
# 1970-01-01 was a Thursday. Weeks are counted from the following Monday.
MONDAY = 96 * HOUR
FAR = 2**62
# Names of the weeks of the longest cycle.
_ORDINALS = (
    "1st", "2nd", "3rd", *(f"{week}th" for week in range(4, 21)), "21st", "22nd", "23rd", "24th",
)  # fmt: skip

Week = NDArray[np.bool_]
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = (
    "(mon(?:day)?|tue(?:sday)?|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)"
)
_RANGE = rf"{_DAY}(?:\s*-\s*{_DAY})?"
_CLOCK = r"(\d\d?):(\d\d)"
_RANGES = re.compile(_RANGE, re.I)
_WINDOW = re.compile(
    rf"(?P<days>{_RANGE}(?:\s*,\s*{_RANGE})*)?\s*(?P<hours>{_CLOCK}\s*-\s*{_CLOCK})?", re.I
)


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


def open_hours(windows: Iterable[str], blackout: Iterable[str] = ()) -> Week:
    """Return the (168,) hours of the local week inside a window and outside the blackout.

    Without windows, all hours are open except for the blackout. Raises ValueError with a one-line
    message for an invalid window, and if no hour remains open.
    """
    hours = _hours_of(tuple(windows) or DAYS) & ~_hours_of(blackout)
    if not hours.any():
        raise ValueError("visiting_hours and blackout leave no hour of the week open")
    return hours


def describe(hours: Week) -> list[str]:
    """Return windows for exactly these (168,) hours; an empty list if all or none are open."""
    if hours.all():
        return []
    starts = np.flatnonzero(hours & ~np.roll(hours, 1))
    ends = np.flatnonzero(hours & ~np.roll(hours, -1)) + 1
    # If the last stretch continues into the next week, its end is the first in the list.
    if len(starts) and ends[0] <= starts[0]:
        ends = np.append(ends[1:], ends[0] + WEEK_HOURS)
    stretches = zip(starts.tolist(), ends.tolist(), strict=True)
    days: dict[str, list[int]] = {}
    for day, start, end in sorted(window for stretch in stretches for window in _split(*stretch)):
        whole = end - start == DAY_HOURS
        days.setdefault("" if whole else f"{start:02}:00-{end:02}:00", []).append(day)
    return [f"{day_names(listed)} {clock}".strip() for clock, listed in days.items()]


def _hours_of(windows: Iterable[str]) -> Week:
    """Return the (168,) hours of the local week inside any of the windows."""
    covered = np.zeros(WEEK_HOURS, np.bool_)
    for window in windows:
        days, start, length = _parsed(window)
        for day in days:
            begin = day * DAY_HOURS + start
            covered[np.arange(begin, begin + length) % WEEK_HOURS] = True
    return covered


def _parsed(window: str) -> tuple[list[int], int, int]:
    """Return the days on which a window starts, its first hour and its length in hours."""
    match = _WINDOW.fullmatch(window.strip())
    if not match or not match[0]:
        raise ValueError(
            f"invalid window: {window!r}. Use days, hours or both, such as "
            "'Mon-Fri 08:00-18:00', '22:00-06:00' or 'Sat,Sun'"
        )
    days = [] if match["days"] else list(range(7))
    for first, last in _RANGES.findall(match["days"] or ""):
        begin = DAYS.index(first[:3].title())
        length = (DAYS.index((last or first)[:3].title()) - begin) % 7 + 1
        days += [(begin + day) % 7 for day in range(length)]
    if not match["hours"]:
        return days, 0, DAY_HOURS
    start, start_minute, end, end_minute = (int(part) for part in match.groups()[-4:])
    if start_minute or end_minute:
        raise ValueError(f"{window!r}: a window must start and end on the hour (minutes 00)")
    if start >= DAY_HOURS or end > DAY_HOURS:
        raise ValueError(
            f"{window!r}: a window must start at 00:00 to 23:00 and end at 00:00 to 24:00"
        )
    if start == end:
        raise ValueError(f"{window!r}: start and end are equal. For a whole day, use 00:00-24:00.")
    return days, start, (end - start - 1) % DAY_HOURS + 1


def _split(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield day, first hour and end of windows for the hours of the week from `start` to `end`.

    `end` may be in the next week. A window whose end is before its first hour ends on the next day.
    """
    day, hour = divmod(start, DAY_HOURS)
    if DAY_HOURS - hour < end - start < DAY_HOURS:
        yield day % 7, hour, end % DAY_HOURS
    elif end - start > DAY_HOURS - hour:
        yield day % 7, hour, DAY_HOURS
        yield from _split((day + 1) * DAY_HOURS, end)
    else:
        yield day % 7, hour, hour + end - start


def day_names(days: list[int]) -> str:
    """Return the names of sorted days, with three or more in a row as a range; "" for all seven."""
    if len(days) == 7:
        return ""
    rows: list[list[int]] = []
    for day in days:
        if rows and day == rows[-1][-1] + 1:
            rows[-1].append(day)
        else:
            rows.append([day])
    return ",".join(
        f"{DAYS[row[0]]}-{DAYS[row[-1]]}" if len(row) > 2 else ",".join(DAYS[day] for day in row)
        for row in rows
    )


def times_of(schedule: Schedule) -> list[tuple[str, str]]:
    """Return days and time of visits: (`Mon,Wed,Fri`, `00:00`), (`2nd and 4th Sat`, `12:00`)."""
    weeks_of: dict[tuple[int, int], list[int]] = {}
    for slot in schedule.slots:
        week, in_week = divmod(slot, WEEK_HOURS)
        day, hour = divmod(in_week, DAY_HOURS)
        weeks_of.setdefault((hour, day), []).append(week)
    days_of: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for (hour, day), weeks in sorted(weeks_of.items()):
        days_of.setdefault((hour, tuple(weeks)), []).append(day)
    times = []
    for (hour, weeks_of_cycle), days in days_of.items():
        names, cycle, listed = day_names(days) or "daily", schedule.weeks, weeks_of_cycle
        if len(listed) < cycle:
            if cycle == 2:
                listed, cycle = (listed[0], listed[0] + 2), 4
            ordinals = " and ".join(_ORDINALS[week] for week in listed)
            names = f"{ordinals} {names}" + ("" if cycle == 4 else f" of {cycle} weeks")
        times.append((names, f"{hour:02}:00"))
    return times
