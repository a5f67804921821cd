"""What fetches collect of the posts of feeds, and what they miss.

A feed's document holds its newest `window` posts. A post is collected by the first fetch at or
after it, unless as many newer posts have pushed it out by then: so it is missed. What no fetch has
seen at the end is missed too if it was pushed out until then, else it still stands in the document,
uncollected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.history import Floats, Ints, Times
from schedules.score import NEVER, TICKS


@dataclass(frozen=True, slots=True)
class CollectedTotals:
    """The figures of all feeds together; NaN where there is nothing to take a mean of.

    missed_pct, uncollected_pct, lost_pct: of the posts; the last is the sum of the others
    delay_h: mean hours from a collected post to its fetch
    """

    feeds: int
    posts: int
    visits: int
    never_visited: int
    missed: int
    uncollected: int
    got: int
    missed_pct: float
    uncollected_pct: float
    lost_pct: float
    delay_h: float


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of the posts of n feeds; every array is (n,).

    posts = missed + uncollected + got
    missed: pushed out before a fetch or the end      uncollected: in the document at the end
    got: collected     delay_h: sum of the hours that those collected waited for their fetch
    """

    posts: Ints
    visits: Ints
    missed: Ints
    uncollected: Ints
    got: Ints
    delay_h: Floats

    def __len__(self) -> int:
        return len(self.posts)

    @property
    def never_visited(self) -> NDArray[np.bool_]:
        """(n,) whether no fetch came."""
        never: NDArray[np.bool_] = self.visits == 0
        return never

    def totals(self) -> CollectedTotals:
        """The figures of all feeds together: every post counts the same."""
        posts, got = int(self.posts.sum()), int(self.got.sum())
        missed, uncollected = int(self.missed.sum()), int(self.uncollected.sum())
        share = 100 / posts if posts else np.nan
        return CollectedTotals(
            feeds=len(self),
            posts=posts,
            visits=int(self.visits.sum()),
            never_visited=int(self.never_visited.sum()),
            missed=missed,
            uncollected=uncollected,
            got=got,
            missed_pct=share * missed,
            uncollected_pct=share * uncollected,
            lost_pct=share * (missed + uncollected),
            delay_h=float(self.delay_h.sum()) / got if got else np.nan,
        )


def collected(posts: Times, visits: Times, window: Ints, start: float, stop: float) -> Collected:
    """What fetches from `start` to `stop` collect of the posts after `start` up to `stop`.

    window: (n,) >= 1 posts that each document holds   start, stop: hours since 1970, start < stop

    Memory is linear in feeds, posts and fetches.
    """
    if not start < stop:
        raise ValueError(f"a window from {start} to {stop} holds no time")
    n, began = len(window), int(_ticks(start))
    length = int(_ticks(stop)) - began
    # One axis for all feeds: each has a stretch of its own.
    stretch = length + 1
    posted, fetched = (_on_axis(times, began, length, stretch) for times in (posts, visits))
    posted = posted[posted % stretch > 0]
    feed = posted // stretch
    fetch = np.append(fetched, NEVER)[np.searchsorted(fetched, posted)]
    end = feed * stretch + length
    seen = fetch <= end
    until = np.where(seen, fetch, end)
    newer = np.searchsorted(posted, until, "right") - 1 - np.arange(len(posted))
    out = newer >= window[feed]
    got = seen & ~out
    return Collected(
        posts=_counts(feed, n),
        visits=_counts(fetched // stretch, n),
        missed=_counts(feed[out], n),
        uncollected=_counts(feed[~seen & ~out], n),
        got=_counts(feed[got], n),
        delay_h=np.bincount(feed[got], (fetch - posted)[got] / TICKS, n).astype(np.float64),
    )


def _ticks(hours: Floats | float) -> Ints:
    return np.rint(np.multiply(hours, TICKS)).astype(np.int64)


def _on_axis(times: Times, began: int, length: int, stretch: int) -> Ints:
    """Where the moments within the window stand, ascending: feed * stretch + ticks."""
    feed = np.repeat(np.arange(len(times.first) - 1), np.diff(times.first))
    after = _ticks(times.at) - began
    inside = (after >= 0) & (after <= length)
    return np.sort((feed * stretch + after)[inside], kind="stable")


def _counts(feed: NDArray[Any], n: int) -> Ints:
    return np.bincount(feed, minlength=n).astype(np.int64, copy=False)
