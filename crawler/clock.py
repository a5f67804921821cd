"""The one place that reads the time: UTC, cut to the milliseconds that MongoDB keeps."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a crawl; `offset_hours` moves it for demonstrations and rehearsals."""

    offset_hours: float = 0.0

    def now(self) -> datetime:
        """The present, aware and in UTC."""
        return in_milliseconds(datetime.now(UTC) + timedelta(hours=self.offset_hours))
