"""What a feed asks of its readers: not to come too often, nor at certain hours and days."""

from __future__ import annotations

import math
from collections.abc import Iterable

from crawler.documents import Bounds

MINUTES = 60.0
# Longer than that, somebody has taken one unit for another.
MOST_SAID_HOURS = 30 * 24.0
MOST_BELIEVED_HOURS = 7 * 24.0
PERIOD_HOURS = {
    "hourly": 1.0, "daily": 24.0, "weekly": 7 * 24.0, "monthly": 30 * 24.0, "yearly": 365 * 24.0,
}  # fmt: skip
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def bounds(
    ttl: object = None,
    period: object = None,
    frequency: object = None,
    hours: Iterable[str] = (),
    days: Iterable[str] = (),
) -> Bounds:
    """Bounds from what stands in a document; what makes no sense is as if it were not there.

    ttl:       minutes                    period, frequency: of sy:, so often in each period
    hours:     of skipHours, GMT; 24 is midnight too       days: of skipDays, English names
    """
    said = (_ttl_hours(ttl), _period_hours(period, frequency))
    every = [hours for hours in said if hours is not None and 0 < hours <= MOST_SAID_HOURS]
    skipped_hours = {int(hour or 0) % 24 for hour in map(_number, hours) if hour in range(25)}
    named = [day.strip().lower() for day in days]
    skipped_days = {DAYS.index(day) for day in named if day in DAYS}
    return Bounds(
        every_hours=min(max(every), MOST_BELIEVED_HOURS) if every else None,
        skip_hours=tuple(sorted(skipped_hours)) if len(skipped_hours) < 24 else (),
        skip_days=tuple(sorted(skipped_days)) if len(skipped_days) < 7 else (),
    )


def _ttl_hours(ttl: object) -> float | None:
    minutes = _number(ttl)
    return None if minutes is None else minutes / MINUTES


def _period_hours(period: object, frequency: object) -> float | None:
    """RSS 1.0's syndication module: without a period it is a day, without a frequency one."""
    times = 1.0 if frequency is None else _number(frequency)
    if (period is None and frequency is None) or times is None or times <= 0:
        return None
    name = str(period or "daily").strip().lower()
    return PERIOD_HOURS[name] / times if name in PERIOD_HOURS else None


def _number(said: object) -> float | None:
    if not isinstance(said, str) or len(said) > 20:
        return None
    try:
        number = float(said)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
