"""When a feed may be asked again, by its own account."""

from __future__ import annotations

from datetime import datetime, timedelta

from crawler.documents import Bounds

WEEK_HOURS = 168
HOUR = timedelta(hours=1)
# A feed that asks to be left alone for longer has lost count.
MOST_HOURS = 7 * 24.0


def not_before(
    when: datetime, seen: datetime, bounds: Bounds, at_least_hours: float | None
) -> datetime:
    """The first moment from `when` on (UTC) that suits a feed seen at `seen`.

    at_least_hours: how long the answer is good (Cache-Control); None: it does not say
    """
    hours = min(MOST_HOURS, max(bounds.every_hours or 0.0, at_least_hours or 0.0))
    return _open(max(when, seen + timedelta(hours=hours)), bounds)


def _open(when: datetime, bounds: Bounds) -> datetime:
    """The moment itself, or the beginning of the next hour in which the feed wants readers."""
    if not bounds.skip_hours and not bounds.skip_days:
        return when
    moment = when
    for _ in range(WEEK_HOURS + 1):
        if moment.hour not in bounds.skip_hours and moment.weekday() not in bounds.skip_days:
            return moment
        moment = moment.replace(minute=0, second=0, microsecond=0) + HOUR
    return when
