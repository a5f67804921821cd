"""Numbers and names as sentences have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

SHOWN_NAMES = 5
# An estimate whose upper bound is more than this many times the lower one is not shown.
MAX_FACTOR = 10
NOT_KNOWN = "not known yet"
MINUTE, HOUR, DAY = 60, 3600, 86_400


def amount(number: float) -> str:
    """A number >= 0 with three digits at least: 1,234 or 26.5 or 0.125."""
    whole = number >= 99.95 or number == round(number)
    return f"{number:,.0f}" if whole else f"{number:.3g}"


def rounded_up(number: float) -> str:
    """A number no smaller than this, and not much larger."""
    if number > 10:
        return f"{math.ceil(number)}"
    return f"{math.ceil(number * 100) / 100:g}"


def count(n: int, noun: str) -> str:
    """So many of something: `1 target`, `1,200 targets`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def megabytes(n: float) -> str:
    """So many bytes as `0.3 MB`, `1,200 MB`."""
    mb = n / 1024**2
    return f"{mb:,.0f} MB" if mb >= 10 else f"{mb:.1f} MB"


def listed(names: Sequence[str], shown: int = SHOWN_NAMES) -> str:
    """Some names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def is_known(low: float | None, high: float | None) -> bool:
    """Whether a figure >= 0 is known: its interval is there and within a factor of MAX_FACTOR."""
    return low is not None and high is not None and bool(0 < high <= MAX_FACTOR * low)


def moment(at: datetime, now: datetime) -> str:
    """A time to come and how far off it is: `2026-05-01 20:10 UTC (in 65 min)`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC (in {span((at - now).total_seconds())})"


def span(seconds: float) -> str:
    """A length of time or an age: `45 s`, `39 min`, `10.7 h`, `3 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * MINUTE:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{round(seconds / HOUR, 1):g} h"
    days = seconds / DAY
    return f"{round(days, 1 if days < 10 else None):g} days"


def period(hours: float) -> str:
    """A period as after "every": `minute`, `5 minutes`, `hour`, `36 hours`, `28 days`."""
    amount, unit = hours * HOUR, "second"
    for seconds, name in ((MINUTE, "minute"), (HOUR, "hour"), (DAY, "day")):
        # Up to two days are as clear in hours.
        if round(hours * HOUR / seconds, 1) >= (2 if name == "day" else 1):
            amount, unit = hours * HOUR / seconds, name
    shown = f"{round(amount, 1):g}"
    return unit if shown == "1" else f"{shown} {unit}s"


def often(per_week: float) -> str:
    """Visits a week, > 0, as people say it: `3 visits a week`, `a visit every 2 weeks`."""
    if per_week >= 14:
        return f"{round(per_week / 7, 1):g} visits a day"
    if per_week >= 1:
        return "a visit a week" if per_week == 1 else f"{round(per_week, 1):g} visits a week"
    return f"a visit every {round(1 / per_week, 1):g} weeks"
