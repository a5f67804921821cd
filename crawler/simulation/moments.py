"""From when to when is simulated: what is asked, or what is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crawler.errors import ConfigError
from crawler.traces.files import iso
from schedules.history import Floats
from schedules.world import Span

# Three weeks in nine are enough to learn from.
LEARNING_SHARE = 1 / 3

# Start, split and stop in hours since 1970 (UTC); None where nothing was asked.
Moments = tuple[float | None, float | None, float | None]


def span_of(known: Sequence[Floats], moments: Moments) -> Span:
    """The span that was asked for, else that of what is known; ConfigError if it is none."""
    at = np.concatenate([part[np.isfinite(part)] for part in known])
    if not len(at):
        raise ConfigError("nothing is known of any change (scrapy crawl finds them)")
    start, split, stop = moments
    start = float(at.min()) if start is None else start
    stop = float(at.max()) if stop is None else stop
    if start == stop:
        raise ConfigError(
            f"nothing to simulate yet: all visits were at about {iso(start)} "
            "(crawl for a few days first)"
        )
    split = start + (stop - start) * LEARNING_SHARE if split is None else split
    if not start < split:
        raise ConfigError(f"--from {iso(start)} has to be before --split {iso(split)}")
    if not split < stop:
        raise ConfigError(f"--split {iso(split)} has to be before --to {iso(stop)}")
    return Span(start, split, stop)


def days(span: Span) -> str:
    """The days that count, in words."""
    return f"{iso(span.split)[:10]} to {iso(span.stop)[:10]}"
