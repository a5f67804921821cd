"""When a target is visited next as long as no plan says so: a fixed interval, and back-off."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

MOST_DOUBLINGS = 20
# Failures in a row after which a target is tried again soon; from the next one on it waits.
QUICK_RETRIES = 2
# A visit after a failure is never due at the moment of the failure itself.
SHORTEST = timedelta(milliseconds=1)


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
        return min(now + max(SHORTEST, timedelta(hours=self.retry_hours)), longest)

    def after_refusals(self, now: datetime, errors: int) -> datetime:
        """After `errors` >= 1 refusals in a row: doubling, never beyond the longest interval."""
        hours = self.error_hours * 2 ** min(errors - 1, MOST_DOUBLINGS)
        return now + timedelta(hours=min(hours, self.longest_hours))

    def after_gone(self, now: datetime, *, confirmed: bool) -> datetime:
        """After a 404 or 410: soon again until it is confirmed, then as rarely as allowed."""
        hours = self.longest_hours if confirmed else min(self.usual_hours, self.longest_hours)
        return now + timedelta(hours=hours)
