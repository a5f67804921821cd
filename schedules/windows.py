"""Parse and format windows of the local week: the hours at which a site may be visited.

A window consists of days, hours, or both: `Mon-Fri 08:00-18:00`, `22:00-06:00`, `Sat,Sun`. Days are
              names and ranges of names; a range may cross the weekend (`Fri-Mon`). A window without
              days applies to every day, and one without hours to the whole day. A window that
              crosses midnight belongs to the day on which it starts and continues into the next
              day, even if that day is not listed: `Fri 22:00-06:00` ends on Saturday morning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from schedules.history import DAY_HOURS
from schedules.schedule import WEEK_HOURS

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


def open_hours(windows: Iterable[str], blackout: Iterable[str] = ()) -> Week:
    """Return the (168,) hours of the local week inside a window and outside the blackout.

    Without windows, all hours are open except for the blackout. Raises ValueError with a one-line
    message for an invalid window, and if no hour remains open.
    """
    hours = _hours_of(tuple(windows) or DAYS) & ~_hours_of(blackout)
    if not hours.any():
        raise ValueError("windows and blackout leave no hour of the week open")
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
