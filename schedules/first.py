"""When a target is visited next as long as no plan says so: a fixed interval, and back-off."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Intervals:
    """Hours between visits of a target; all > 0."""

    usual_hours: float
    error_hours: float
    longest_hours: float

    def after_seen(self, now: datetime) -> datetime:
        """After a page was read, or not modified."""
        return now + timedelta(hours=min(self.usual_hours, self.longest_hours))

    def after_errors(self, now: datetime, errors: int) -> datetime:
        """After `errors` >= 1 failures in a row: doubling, never beyond the longest interval."""
        hours = self.error_hours * 2 ** min(errors - 1, MOST_DOUBLINGS)
        return now + timedelta(hours=min(hours, self.longest_hours))

    def after_gone(self, now: datetime, *, confirmed: bool) -> datetime:
        """After a 404 or 410: soon again until it is confirmed, then as rarely as allowed."""
        hours = self.longest_hours if confirmed else min(self.usual_hours, self.longest_hours)
        return now + timedelta(hours=hours)
