"""The wall clock of a time zone against UTC.

A wall clock jumps, but the latest time it has shown so far never falls. So every wall time is
reached at one instant, the first at which the clock shows it or a later one: a time that is skipped
when the clock jumps over it, a time that comes twice at its first coming.

Instants are milliseconds since 1970 (UTC), wall times milliseconds since Monday 1970-01-05 00:00
(local): all weeks are counted from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from schedules.history import Ints

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3_600_000
MONDAY = 96 * HOUR
YEAR = 8766 * HOUR
FAR = 2**62


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
    return tuple(
        (_jump(zone, day, offset), later)
        for day, offset, later in zip(days[:-1], offsets[:-1], offsets[1:], strict=True)
        if offset != later
    )


def _jump(zone: ZoneInfo, day: datetime, offset: int) -> int:
    """The instant in the day from `day` on, to the second, at which the clock leaves an offset."""
    before, after = 0, 24 * 3600
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, day + timedelta(seconds=middle)) == offset:
            before = middle
        else:
            after = middle
    return (day - EPOCH) // timedelta(milliseconds=1) + after * 1000


def _offset(zone: ZoneInfo, at: datetime) -> int:
    """Wall time minus instant, in milliseconds."""
    offset = at.astimezone(zone).utcoffset() or timedelta(0)
    return offset // timedelta(milliseconds=1) - MONDAY
