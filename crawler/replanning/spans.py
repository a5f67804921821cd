"""Lengths of time in words."""

from __future__ import annotations

from schedules.windows import DAY_HOURS


def hours_text(hours: float) -> str:
    """`hour` or `6 hours`, as after "every"."""
    return "hour" if hours == 1 else f"{hours:g} hours"


def days(hours: float) -> str:
    """A time in days, or in hours where it is short."""
    return hours_text(hours) if hours < 2 * DAY_HOURS else f"{hours / DAY_HOURS:g} days"
