"""Numbers and names as sentences have them."""

from __future__ import annotations

import math
from collections.abc import Sequence

SHOWN_NAMES = 5
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


def listed(names: Sequence[str], shown: int = SHOWN_NAMES) -> str:
    """Some names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def span(seconds: float) -> str:
    """A length of time in its largest unit: `45 s`, `3 min`, `5 h`, `12 days`."""
    for most, unit_seconds, name in ((90, 1, "s"), (90 * MINUTE, MINUTE, "min")):
        if seconds < most:
            return f"{seconds / unit_seconds:.0f} {name}"
    if seconds < 36 * HOUR:
        return f"{seconds / HOUR:.0f} h"
    return f"{seconds / DAY:.0f} days"
