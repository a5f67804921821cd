"""The one place that reads the time: UTC, cut to the milliseconds that MongoDB keeps.

Times are stored and compared by many processes, so all of them read MongoDB's clock. It is measured
when a database is opened, and again at intervals; in between a steady clock tells how much time has
passed, and nobody who sets this machine's clock moves Freshet's. Before that it is this machine's.
"""

from __future__ import annotations

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
