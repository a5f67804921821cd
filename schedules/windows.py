"""Windows of the local week: when a site may be visited, and when not.

A window is days, hours, or both: `Mon-Fri 08:00-18:00`, `22:00-06:00`, `Sat,Sun`. Days are names
and ranges of names; a range may run over the weekend (`Fri-Mon`). Without days it is every day,
without hours the whole day. A window that crosses midnight belongs to the day on which it begins
and goes on into the next, listed or not: `Fri 22:00-06:00` ends on Saturday morning.
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
    """(168,) hours of the local week that lie in a window and not in the blackout.

    No windows at all: always, but for the blackout. ValueError, in one line, for a window that
    cannot be read, and where nothing stays open.
    """
    hours = _covered(tuple(windows) or DAYS) & ~_covered(blackout)
    if not hours.any():
        raise ValueError("windows and blackout leave no hour of the week open")
    return hours


def describe(hours: Week) -> list[str]:
    """Windows that open these (168,) hours and no others; none where all or none are open."""
    if hours.all():
        return []
    starts = np.flatnonzero(hours & ~np.roll(hours, 1))
    ends = np.flatnonzero(hours & ~np.roll(hours, -1)) + 1
    # The stretch that begins last ends first where it runs into the next week.
    if len(starts) and ends[0] <= starts[0]:
        ends = np.append(ends[1:], ends[0] + WEEK_HOURS)
    stretches = zip(starts.tolist(), ends.tolist(), strict=True)
    days: dict[str, list[int]] = {}
    for day, start, end in sorted(window for stretch in stretches for window in _split(*stretch)):
        whole = end - start == DAY_HOURS
        days.setdefault("" if whole else f"{start:02}:00-{end:02}:00", []).append(day)
    return [f"{day_names(listed)} {clock}".strip() for clock, listed in days.items()]


def _covered(windows: Iterable[str]) -> Week:
    """(168,) hours of the local week that lie in any of the windows."""
    covered = np.zeros(WEEK_HOURS, np.bool_)
    for window in windows:
        days, start, length = _read(window)
        for day in days:
            begin = day * DAY_HOURS + start
            covered[np.arange(begin, begin + length) % WEEK_HOURS] = True
    return covered


def _read(window: str) -> tuple[list[int], int, int]:
    """Days on which a window begins, at which hour, and for how many hours."""
    match = _WINDOW.fullmatch(window.strip())
    if not match or not match[0]:
        raise ValueError(
            f"{window!r} is no window: write days, hours or both, such as "
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
        raise ValueError(f"{window!r}: a window begins and ends on the hour, minutes are 00")
    if start >= DAY_HOURS or end > DAY_HOURS:
        raise ValueError(f"{window!r}: hours begin at 00:00 to 23:00 and end at 00:00 to 24:00")
    if start == end:
        raise ValueError(f"{window!r} ends as it begins; a whole day is 00:00-24:00")
    return days, start, (end - start - 1) % DAY_HOURS + 1


def _split(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Day, first hour and end of windows for the hours of the week from `start` to `end`.

    `end` may lie in the next week. A window that ends before its first hour ends on the next day.
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
    """The names of days in order, three or more in a row as a range; nothing for all seven."""
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
