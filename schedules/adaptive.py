"""An interval that follows the page by itself: shorter after a change, longer after none."""

from __future__ import annotations

AFTER_CHANGE = 0.5
AFTER_NONE = 1.2
SHORTEST_HOURS = 1 / 60


def next_interval(every: float, least: float, most: float, *, changed: bool) -> float:
    """The interval from here on; all in hours, `least` and `most` bound it where they are > 0."""
    every *= AFTER_CHANGE if changed else AFTER_NONE
    if most:
        every = min(every, most)
    return max(every, least, SHORTEST_HOURS)
