"""The one place that reads the time: UTC, cut to the milliseconds that MongoDB keeps.

Times are stored and compared by many processes, so all of them read MongoDB's clock. It is measured
when a database is opened, and again at intervals; in between a steady clock tells how much time has
passed, and nobody who sets this machine's clock moves Freshet's. Before that it is this machine's.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The next visit of what is not to be visited again.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def in_milliseconds(moment: datetime) -> datetime:
    """`moment` as MongoDB will return it: whole milliseconds."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def milliseconds(moment: datetime) -> int:
    """Whole milliseconds since 1970."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def from_milliseconds(count: int) -> datetime:
    """The moment so many milliseconds after the beginning of 1970."""
    return EPOCH + timedelta(milliseconds=count)


# On Linux it goes on while the machine sleeps, as the clocks of others do.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_seconds() -> float:
    """Return the seconds of a clock that nobody sets; only differences mean anything."""
    return time.clock_gettime(_STEADY)


class ServerTime:
    """The time by the clock of a server; it never goes back once it follows one."""

    def __init__(self) -> None:
        self._then: datetime | None = None
        self._at = self._slow_seconds = 0.0

    def now(self) -> datetime:
        """Return the time by the server's clock; by this machine's before the first `follow`."""
        if self._then is None:
            return datetime.now(UTC)
        passed = steady_seconds() - self._at
        # Time that is ahead of the server's goes at half its speed until the server has caught up.
        return self._then + timedelta(seconds=passed - min(passed, self._slow_seconds) / 2)

    def follow(self, server: datetime, at: float, within_seconds: float) -> float:
        """Take over what a server's clock said; returns the seconds that this moves the time by.

        at:             `steady_seconds()` when the server said it
        within_seconds: by which the two may be apart; what is closer than that changes nothing
        """
        now, steady = self.now(), steady_seconds()
        moved = (server - now).total_seconds() + steady - at
        if self._then is None:
            self._then, self._at = server, at
        elif abs(moved) > within_seconds:
            self._then, self._at = now + timedelta(seconds=max(0.0, moved)), steady
            self._slow_seconds = 2 * max(0.0, -moved)
        return moved


# Of this process: it works with one database server.
SERVER_TIME = ServerTime()


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a crawl; `offset_hours` moves it for demonstrations and rehearsals."""

    offset_hours: float = 0.0

    def now(self) -> datetime:
        """The present by MongoDB's clock, aware and in UTC."""
        return in_milliseconds(SERVER_TIME.now() + timedelta(hours=self.offset_hours))


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_PER_DAY = re.compile(rf"{_NUMBER}\s*(?:/\s*d(?:ay)?)?", re.I)
_PER_HOUR = re.compile(rf"{_NUMBER}\s*(?:/\s*h(?:our)?)?", re.I)
_DURATION = re.compile(rf"{_NUMBER}\s*(m|h|d|w)", re.I)
_SHARE = re.compile(rf"{_NUMBER}\s*(%?)")
_PERIOD = re.compile(rf"{_NUMBER}\s*(s|m|h|d|w)", re.I)
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_SECONDS = {"s": 1.0} | {unit: 3600 * hours for unit, hours in _HOURS.items()}


def per_day(text: str) -> float:
    """Requests a day, >= 0, from `265` or `265/day`; ValueError says what is wrong."""
    if not (found := _PER_DAY.fullmatch(text.strip())):
        raise ValueError(f"{text!r} is no number of requests a day, such as 265, 265/day or 0.5")
    return float(found[1])


def per_hour(text: str) -> float:
    """Requests an hour, >= 0, from `40` or `40/hour`; ValueError says what is wrong."""
    if not (found := _PER_HOUR.fullmatch(text.strip())):
        raise ValueError(f"{text!r} is no number of requests an hour, such as 40 or 40/hour")
    return float(found[1])


def hours(text: str) -> float:
    """Hours, > 0, from `90m`, `6h`, `2d` or `1w`; ValueError says what is wrong."""
    found = _DURATION.fullmatch(text.strip())
    if not found or not (amount := float(found[1])):
        raise ValueError(f"{text!r} is no time such as 90m, 6h, 2d or 1w")
    return amount * _HOURS[found[2].lower()]


def seconds(text: str) -> float:
    """Seconds, > 0, from `30s`, `5m`, `2h`, `1d` or `1w`; ValueError says what is wrong."""
    found = _PERIOD.fullmatch(text.strip())
    if not found or not (amount := float(found[1])):
        raise ValueError(f"{text!r} is no time such as 30s, 5m, 2h, 1d or 1w")
    return amount * _SECONDS[found[2].lower()]


def share(text: str) -> float:
    """A share, > 0 and < 1, from `0.95` or `95%`; ValueError says what is wrong."""
    found = _SHARE.fullmatch(text.strip())
    amount = float(found[1]) / (100 if found[2] else 1) if found else math.nan
    if not 0 < amount < 1:
        raise ValueError(f"{text!r} is no share between 0 and 1, such as 0.95 or 95%")
    return amount
