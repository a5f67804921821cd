"""Compute intervals of targets without a plan: usual, after failures, adaptive, for new feeds.

This module does not import NumPy, because every crawl imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

# The dates of the posts of a feed's first document count as history, at most this far back.
FIRST_HISTORY_HOURS = 90 * 24.0
# Feed size that nearly every feed reaches. A document that was never seen full may hold more.
DEFAULT_FEED_SIZE = 10
# Number of consecutive failures after which a target is retried soon; later failures back off.
QUICK_RETRIES = 2
MAX_DOUBLINGS = 20
MILLISECOND = timedelta(milliseconds=1)
# Factors by which the adaptive policy changes the interval after a change and after no change.
AFTER_CHANGE, AFTER_NONE = 0.5, 1.2
MIN_HOURS = 1 / 60


@dataclass(frozen=True, slots=True)
class Intervals:
    """Hold the fixed intervals of a target, in hours.

    All are positive, except that `retry_hours` may be 0.

    retry_hours:   delay after each of the first QUICK_RETRIES consecutive failures; 0: due in the
                   next run
    error_hours:   delay after the next failure; doubles with each further error or refusal
    planned_hours: longest time to a planned visit; None: longest_hours
    """

    usual_hours: float
    error_hours: float
    longest_hours: float
    retry_hours: float = 0.0
    planned_hours: float | None = None

    def after_seen(self, now: datetime) -> datetime:
        """Return the next visit after the page was read or was not modified."""
        return now + timedelta(hours=min(self.usual_hours, self.longest_hours))

    def after_errors(self, now: datetime, errors: int) -> datetime:
        """Return the next visit after `errors` >= 1 consecutive failures.

        The first QUICK_RETRIES failures are retried soon; later ones back off as in
        `after_refusals`.
        """
        longest = self.after_refusals(now, max(1, errors - QUICK_RETRIES))
        if errors > QUICK_RETRIES:
            return longest
        # Even with retry_hours = 0, the next visit must be later than the failed one.
        return min(now + max(MILLISECOND, timedelta(hours=self.retry_hours)), longest)

    def after_refusals(self, now: datetime, errors: int) -> datetime:
        """Return the next visit after `errors` >= 1 consecutive refusals, with back-off.

        The delay doubles with each refusal and never exceeds the longest interval.
        """
        hours = self.error_hours * 2 ** min(errors - 1, MAX_DOUBLINGS)
        return now + timedelta(hours=min(hours, self.longest_hours))

    def after_gone(self, now: datetime, *, confirmed: bool) -> datetime:
        """Return the next visit after a 404 or 410.

        An unconfirmed loss is checked again soon, a confirmed one after the longest interval.

        """
        hours = self.longest_hours if confirmed else min(self.usual_hours, self.longest_hours)
        return now + timedelta(hours=hours)


def next_interval(every: float, least: float, most: float, *, changed: bool) -> float:
    """Return the next interval of the adaptive policy, in hours.

    `least` and `most` limit the interval if they are positive.
    """
    every *= AFTER_CHANGE if changed else AFTER_NONE
    if most:
        every = min(every, most)
    return max(every, least, MIN_HOURS)
