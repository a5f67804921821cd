"""Estimate how many posts filled a document without dates and left it before a fetch.

This module does not import Numba, because every crawl of feeds imports it.
"""

from __future__ import annotations

import numpy as np

from schedules.history import CHANGE, MINUTES, History

# If documents filled between all fetches, any higher rate explains them. Posts are then assumed to
# be known, without any, for this share of the gap.
PRIOR_SHARE = 0.1
# Earlier fetches that found full documents count with the estimates made then.
MAX_FILLED = 16
ROUNDS = 30
ENOUGH = 1e-5
# Standard deviations within which terms of a Poisson distribution count.
WIDTH = 10.0


def posts_beyond(history: History, feed_size: int, at: int, new: int) -> float:
    """Return the expected posts that left a document since the last observation; >= 0.

    history:   up to the last observation
    feed_size: posts that earlier documents held
    at:        time of the fetch in minutes since 1970, which found `new` posts, all others gone

    Posts are a Poisson process of constant rate. A fetch that found a full document of new posts
    shows only that there were at least as many. The rate is that of highest likelihood (by
    expectation maximization), so fetches that found fewer posts limit the estimate.
    """
    changes = np.frombuffer(history.changes, CHANGE)
    # A full history drops records, which may be a part of those of a fetch.
    changes = changes[changes["after"] >= history.since]
    begins = np.flatnonzero(np.diff(changes["after"].astype(np.int64), prepend=-1))
    filled: list[tuple[float, int]] = [((at - history.until) / MINUTES, new)]
    counted, hours = 0, (history.until - history.since) / MINUTES
    for rows in reversed(np.split(changes, begins[1:])):
        is_filled = feed_size and len(rows) >= feed_size and not rows["stated"].any()
        if is_filled and len(filled) < MAX_FILLED:
            length = float(rows["by"].max() - rows["after"].min()) / MINUTES
            filled.append((length, feed_size))
            hours -= length
        else:
            counted += len(rows)
    hours = max(hours, PRIOR_SHARE * filled[0][0])
    hours = max(hours, 1 / MINUTES)
    whole = hours + sum(length for length, _ in filled)
    # Begin near the result: expectation maximization is slow if few fetches found other documents.
    low = (counted + sum(size for _, size in filled)) / whole
    rate = max(low, counted / hours) if 2 * hours >= whole else low
    for _ in range(ROUNDS):
        posts = counted + sum(size + beyond(rate * length, size) for length, size in filled)
        before, rate = rate, posts / whole
        if abs(rate - before) <= ENOUGH * rate:
            break
    length, size = filled[0]
    return beyond(rate * length, size)


def beyond(mean: float, size: int) -> float:
    """Return the mean excess over `size` of a Poisson number that is at least `size`.

    mean: of the Poisson distribution, >= 0
    """
    deviations = WIDTH * max(mean, 1.0) ** 0.5
    if mean > size + deviations:
        return mean - size
    # Terms relative to the one at `size`.
    terms = int(max(mean - size, 0.0) + 2 * deviations) + 1
    ratio = mean / (size + np.arange(1, terms + 1))
    with np.errstate(divide="ignore"):
        log = np.cumsum(np.log(ratio))
    weights = np.exp(log - max(0.0, float(log.max())))
    own = np.exp(-max(0.0, float(log.max())))
    return float((weights * np.arange(1, terms + 1)).sum() / (weights.sum() + own))
