"""Score schedules: compare their visits with the true changes.

The copy of a page is fresh at the start of the scored period. A change makes it stale until the
first visit at or after the change; a visit at exactly the same time sees it. Of several changes
between two visits only the newest is captured; the others are lost. A change that no visit sees
waits until the end of the period, or until the page's trace ends if that is earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.history import DAY_HOURS, Floats, Ints, Times

# Compare times in whole milliseconds. Sums of hours are inexact, and a visit that is early by a
# rounding error would miss the change that it should see.
TICKS = 3_600_000
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Figures:
    """Hold means over pages or sources; NaN where there is nothing to average.

    freshness:   share of time in which the copy equals the page
    age_days:    mean time since the oldest change not yet seen, 0 while fresh
    delay_h:     hours from a captured change to the visit that saw it
    delay_all_h: hours from any change to the first visit after it, or to the end
    lost_share:  share of changes that a later one overwrote before any visit
    """

    freshness: float
    age_days: float
    delay_h: float
    delay_all_h: float
    lost_share: float


@dataclass(frozen=True, slots=True)
class Load:
    """Describe how the requests spread over the scored period, in UTC hours and days.

    per_day:      requests a day
    busiest_hour: maximum requests in one clock hour
    busiest_day:  maximum requests on one day
    hour_peak:    requests in the busiest hour / mean requests per hour; NaN without requests
    """

    per_day: float
    busiest_hour: int
    busiest_day: int
    hour_peak: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Hold the totals of all pages.

    never_visited: number of pages without any visit
    by_page:       means in which every page, or every change, has the same weight
    by_source:     means in which every source has the same weight
    """

    pages: int
    sources: int
    changes: int
    visits: int
    never_visited: int
    by_page: Figures
    by_source: Figures
    load: Load


@dataclass(frozen=True, slots=True)
class Score:
    """Hold the outcome of the visits and changes of n pages. Every array is (n,).

    A page whose trace ends at or before the start of the period has 0 watched hours and is left out
    of all totals.

    source:      index of the page's source
    watched_h:   hours of the period that the page's trace covers
    visits:      visits in these hours
    changes:     changes in these hours = captured + lost + those still unseen at the end
    captured:    changes that were the newest when a visit came
    lost:        changes that were overwritten before a visit came
    stale_h:     hours in which the copy differed from the page
    age_h2:      integral of the copy's age over time, in hours squared
    delay_h:     total hours that captured changes waited for their visit
    delay_all_h: total hours that changes waited for a visit or the end
    load:        how the visits of all pages spread over the period
    """

    source: Ints
    watched_h: Floats
    visits: Ints
    changes: Ints
    captured: Ints
    lost: Ints
    stale_h: Floats
    age_h2: Floats
    delay_h: Floats
    delay_all_h: Floats
    load: Load

    def __len__(self) -> int:
        return len(self.source)

    @property
    def freshness(self) -> Floats:
        """Return the (n,) share of time in which each copy equals its page; NaN if not watched."""
        return 1 - _ratio(self.stale_h, self.watched_h)

    @property
    def age_days(self) -> Floats:
        """Return the (n,) mean age of each copy in days; NaN if not watched."""
        return _ratio(self.age_h2, self.watched_h) / DAY_HOURS

    def totals(self) -> Totals:
        """Return the totals of all pages, averaged by page and by source."""
        watched = self.watched_h > 0
        pages = int(np.count_nonzero(watched))
        return Totals(
            pages=pages,
            sources=len(np.unique(self.source[watched])),
            changes=int(self.changes.sum()),
            visits=int(self.visits.sum()),
            never_visited=pages - int(np.count_nonzero(self.visits)),
            by_page=self._figures(np.zeros_like(self.source)),
            by_source=self._figures(self.source),
            load=self.load,
        )

    def _figures(self, part: Ints) -> Figures:
        """Return means over the pages or changes of each part, then over the non-empty parts."""

        def mean(sums: NDArray[Any], counts: NDArray[Any]) -> float:
            ratios = _ratio(_sums(part, sums), _sums(part, counts))
            finite = ratios[~np.isnan(ratios)]
            return float(finite.mean()) if len(finite) else np.nan

        watched = self.watched_h > 0
        return Figures(
            freshness=mean(np.where(watched, self.freshness, 0), watched),
            age_days=mean(np.where(watched, self.age_days, 0), watched),
            delay_h=mean(self.delay_h, self.captured),
            delay_all_h=mean(self.delay_all_h, self.changes),
            lost_share=mean(self.lost, self.changes),
        )


def score(
    changes: Times, visits: Times, source: Ints, ends: Floats, start: float, stop: float
) -> Score:
    """Score the visits from `start` to `stop` against the changes after `start` up to `stop`.

    source:      (n,) index of each page's source, >= 0
    ends:        (n,) end of each page's trace, in hours since 1970 (UTC); inf: none
    start, stop: hours since 1970 (UTC)

    Raises ValueError unless start < stop. Memory is linear in pages, changes and visits.
    """
    if not start < stop:
        raise ValueError(f"the period from {start} to {stop} is empty")
    began = int(_ticks(start))
    watched = np.maximum(_ticks(np.minimum(ends, stop)) - began, 0)
    # Put all pages on one axis, each with its own stretch, one tick longer than the longest period.
    stretch = int(watched.max(initial=0)) + 1
    visited_at = _on_axis(visits, watched, began, stretch)
    changed_at = _on_axis(changes, watched, began, stretch)
    changed_at = changed_at[changed_at % stretch > 0]
    at = visited_at % stretch + began
    busiest_hour, busiest_day = (
        int(np.unique(at // (length * TICKS), return_counts=True)[1].max(initial=0))
        for length in (1, DAY_HOURS)
    )
    mean = len(visited_at) / (stop - start)
    peak = busiest_hour / mean if mean else np.nan
    return Score(
        source=source,
        watched_h=watched / TICKS,
        visits=np.bincount(visited_at // stretch, minlength=len(watched)),
        load=Load(mean * DAY_HOURS, busiest_hour, busiest_day, peak),
        **_outcomes(changed_at, visited_at, watched, stretch),
    )


def _outcomes(changed_at: Ints, visited_at: Ints, watched: Ints, stretch: int) -> dict[str, Any]:
    """Return per-page sums over the changes. Times are positions on the axis of all pages."""
    page = changed_at // stretch
    end = page * stretch + watched[page]
    visit = np.append(visited_at, NEVER)[np.searchsorted(visited_at, changed_at)]
    until = np.minimum(visit, end)
    hours = (until - changed_at) / TICKS
    # Consecutive changes can wait for the same visit. The oldest of them made the copy stale, and
    # the newest is the one that the visit captures.
    stale = np.where(np.diff(until, prepend=-1) != 0, hours, 0)
    newest = np.diff(until, append=-1) != 0
    captured = newest & (visit <= end)
    n = len(watched)
    return {
        "changes": np.bincount(page, minlength=n),
        "captured": np.bincount(page[captured], minlength=n),
        "lost": np.bincount(page[~newest], minlength=n),
        "stale_h": _sums(page, stale, n),
        "age_h2": _sums(page, stale**2 / 2, n),
        "delay_h": _sums(page, np.where(captured, hours, 0), n),
        "delay_all_h": _sums(page, hours, n),
    }


def _ticks(hours: Floats | float) -> Ints:
    """Convert hours to whole milliseconds."""
    return np.rint(np.multiply(hours, TICKS)).astype(np.int64)


def _on_axis(times: Times, watched: Ints, began: int, stretch: int) -> Ints:
    """Return the ascending positions of the times on the axis of all pages.

    The position is page * stretch + ticks. Times outside the watched period are dropped.

    """
    page = np.repeat(np.arange(len(watched)), np.diff(times.first))
    after = _ticks(times.at) - began
    inside = (after >= 0) & (after <= watched[page]) & (watched[page] > 0)
    # The stable sort is fast here, because the times are mostly sorted already.
    return np.sort((page * stretch + after)[inside], kind="stable")


def _sums(part: Ints, each: NDArray[Any], parts: int = 0) -> Floats:
    """Return the sum of `each` over each part, for at least `parts` parts."""
    return np.bincount(part, each, parts).astype(np.float64, copy=False)


def _ratio(sums: Floats, counts: Floats) -> Floats:
    """Return quotients; NaN where the count is 0."""
    quotients = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=quotients, where=counts > 0)
    return quotients


@dataclass(frozen=True, slots=True)
class CollectedTotals:
    """Hold the totals of all feeds; NaN where there is nothing to average.

    missed_pct, uncollected_pct, lost_pct: percentages of posts; lost = missed + uncollected
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
    """Hold the outcome of the posts of n feeds. Every array is (n,).

    posts = missed + uncollected + got

    missed:      pushed out of the document before a fetch or the end
    uncollected: still in the document at the end, but not fetched
    got:         collected
    delay_h:     total hours that collected posts waited for their fetch
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
        """Return (n,) flags of the feeds that were never fetched."""
        never: NDArray[np.bool_] = self.visits == 0
        return never

    def totals(self) -> CollectedTotals:
        """Return the totals of all feeds, in which every post has the same weight."""
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
    """Score the fetches from `start` to `stop` against the posts after `start` up to `stop`.

    window:      (n,) posts that each document holds, >= 1
    start, stop: hours since 1970 (UTC)

    Raises ValueError unless start < stop. Memory is linear in feeds, posts and fetches.
    """
    if not start < stop:
        raise ValueError(f"the period from {start} to {stop} is empty")
    n, began = len(window), int(_ticks(start))
    length = int(_ticks(stop)) - began
    # Put all feeds on one axis, each with its own stretch.
    stretch = length + 1
    whole = np.full(n, length)
    posted, fetched = (_on_axis(times, whole, began, stretch) for times in (posts, visits))
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


def _counts(feed: NDArray[Any], n: int) -> Ints:
    """Return the (n,) number of entries of each feed."""
    return np.bincount(feed, minlength=n).astype(np.int64, copy=False)
