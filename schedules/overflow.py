"""Posts that a feed's document pushes out before a fetch, in expectation, and the wait of the rest.

Posts of an interval are negative binomial: `mean` expected, with variance mean (1 + batch), as
posts come in batches. Of N posts the newest `window` are collected; those before them are lost. An
interval is looked up in a table by its expected posts, so that it costs no sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.compiled import compiled
from schedules.history import Floats

POINTS = 64
# So many deviations above the window no document is not full: from there on all is linear.
FULL = 6.0
HUGE = 1e200
LEAST = 1e-9


class Table(NamedTuple):
    """What is lost and how long the rest waits, by the square root of the expected posts.

    lost:  (POINTS,) posts lost     wait: (POINTS,) share of all posts' wait that is paid: those
           lost wait for nobody     top: expected posts at the last point; the first has none
    """

    lost: Floats
    wait: Floats
    top: float


@compiled
def expected(mean: float, batch: float, window: float) -> tuple[float, float]:
    """Posts lost, and share of the wait that is left, of an interval with `mean` posts."""
    if mean <= 0:
        return 0.0, 1.0
    shape = mean / batch if batch > LEAST else 0.0
    log = -shape * np.log1p(batch) if batch > LEAST else -mean
    # Sums over documents that are not full; scaled, as chances may be too small for a number.
    chance, some, short, early = 1.0, 0.0, 0.0, 0.0
    for posts in range(int(window) + 1):
        some += chance
        short += chance * (window - posts)
        early += chance * posts
        growth = (shape + posts) * batch / (1 + batch) if batch > LEAST else mean
        chance *= growth / (posts + 1)
        if chance > HUGE or some > HUGE:
            chance, some, short, early = chance / HUGE, some / HUGE, short / HUGE, early / HUGE
            log += np.log(HUGE)
    scale = np.exp(log)
    lost = max(mean - window + scale * short, 0.0)
    full, wait = max(1 - scale * some, 0.0), scale * early
    # Relative to the mean, as the result is: full documents are rare where there are few posts,
    # but hold most of them if posts come in batches.
    if full > LEAST * min(mean, 1.0):
        # Posts that come evenly: the j-th newest of N waits j / (N + 1) of the interval.
        wait += full * window * (window + 1) / (window + lost / full + 1)
    return lost, min(wait / mean, 1.0)


@compiled
def table(most: float, batch: float, window: float) -> Table:
    """Return the table of a feed whose intervals have at most `most` expected posts.

    The first point is the limit for short intervals, not the value at 0 posts: a batch that is
    longer than the window loses posts in however short an interval, so the share of the wait
    approaches less than 1. With 1 in its place, interpolation would make all intervals up to the
    second point wait too long.
    """
    full = window + FULL * np.sqrt(window * (1 + batch)) + FULL * batch
    top = max(min(most, full), LEAST)
    lost, wait = np.empty(POINTS), np.empty(POINTS)
    for j in range(POINTS):
        mean = max(top * (j / (POINTS - 1)) ** 2, LEAST)
        lost[j], wait[j] = expected(mean, batch, window)
    lost[0] = 0.0
    return Table(lost, wait, top)


@compiled
def looked_up(lost: Floats, wait: Floats, top: float, mean: float) -> tuple[float, float]:
    """Posts lost and share of the wait, as `expected`, from the fields of a table."""
    if mean >= top:
        shrunk = top / mean
        return lost[-1] + mean - top, wait[-1] * shrunk * shrunk
    place = np.sqrt(max(mean, 0.0) / top) * (POINTS - 1)
    j = min(int(place), POINTS - 2)
    part = place - j
    return lost[j] + part * (lost[j + 1] - lost[j]), wait[j] + part * (wait[j + 1] - wait[j])
