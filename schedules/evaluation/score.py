"""How good a schedule was: its visits held against the changes that truly happened.

The copy of a page is fresh at the start of the window. A change makes it stale until the first
visit at or after it; a visit at the very moment of a change sees it. Of several changes between
two visits only the newest is captured, the others are lost. What no visit has seen waits until the
window ends, or the page's trace where that is earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.history import DAY_HOURS, Floats, Ints, Times

# Moments are compared in whole milliseconds: sums of hours are not exact, and a visit that is early
# by a rounding error would miss the change it is meant to see.
TICKS = 3_600_000
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over pages, or over sources; NaN where there is nothing to take a mean of.

    freshness:   share of time the copy equals the page
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
    """How the requests spread over the window; hours and days are those of UTC.

    per_day:      requests a day
    busiest_hour: most requests in one clock hour
    busiest_day:  most requests on one day
    hour_peak:    requests in the busiest hour / mean requests an hour; NaN without requests
    """

    per_day: float
    busiest_hour: int
    busiest_day: int
    hour_peak: float


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of all pages together.

    never_visited: pages without any visit
    by_page:       every page, or every change, counts the same
    by_source:     every source counts the same
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
    """What the visits of n pages saw of their changes; every array is (n,).

    A page whose trace ends where the window begins, or before, is watched for 0 hours and counts in
    no total.

    source:      index of the page's source
    watched_h:   hours of the window that the page's trace covers
    visits:      visits in them
    changes:     changes in them, of which
    captured:    were the page's newest when a visit came, and
    lost:        were overwritten before one came
    stale_h:     hours in which the copy differed from the page
    age_h2:      integral of the copy's age over time, in square hours
    delay_h:     sum of the hours that captured changes waited for their visit
    delay_all_h: sum of the hours that changes waited for a visit or the end
    load:        how the visits of all pages spread over the window
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
        """(n,) share of time each copy equals its page; NaN where it is not watched."""
        return 1 - _ratio(self.stale_h, self.watched_h)

    @property
    def age_days(self) -> Floats:
        """(n,) mean age of each copy in days; NaN where it is not watched."""
        return _ratio(self.age_h2, self.watched_h) / DAY_HOURS

    def totals(self) -> Totals:
        """The figures of all pages together, by page and by source."""
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
        """Means over the pages or changes of each part, then over the parts that have any."""

        def mean(sums: NDArray[Any], counts: NDArray[Any]) -> float:
            ratios = _ratio(_sums(part, sums), _sums(part, counts))
            known = ratios[~np.isnan(ratios)]
            return float(known.mean()) if len(known) else np.nan

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
    """What visits from `start` to `stop` saw of the changes after `start` up to `stop`.

    source: (n,) index of each page's source, >= 0
    ends:   (n,) where each page's trace ends, in hours since 1970 (UTC); inf: nowhere
    start, stop: hours since 1970 (UTC), start < stop

    Memory is linear in pages, changes and visits.
    """
    if not start < stop:
        raise ValueError(f"a window from {start} to {stop} holds no time")
    began = int(_ticks(start))
    watched = np.maximum(_ticks(np.minimum(ends, stop)) - began, 0)
    # One axis for all pages: each has a stretch of its own, one tick longer than the longest.
    stretch = int(watched.max(initial=0)) + 1
    looked = _on_axis(visits, watched, began, stretch)
    happened = _on_axis(changes, watched, began, stretch)
    happened = happened[happened % stretch > 0]
    at = looked % stretch + began
    busiest_hour, busiest_day = (
        int(np.unique(at // (length * TICKS), return_counts=True)[1].max(initial=0))
        for length in (1, DAY_HOURS)
    )
    mean = len(looked) / (stop - start)
    peak = busiest_hour / mean if mean else np.nan
    return Score(
        source=source,
        watched_h=watched / TICKS,
        visits=np.bincount(looked // stretch, minlength=len(watched)),
        load=Load(mean * DAY_HOURS, busiest_hour, busiest_day, peak),
        **_fates(happened, looked, watched, stretch),
    )


def _fates(happened: Ints, looked: Ints, watched: Ints, stretch: int) -> dict[str, Any]:
    """What became of the changes, by page; moments are those on the axis of all pages."""
    page = happened // stretch
    end = page * stretch + watched[page]
    visit = np.append(looked, NEVER)[np.searchsorted(looked, happened)]
    until = np.minimum(visit, end)
    hours = (until - happened) / TICKS
    # Changes that wait for the same moment follow one another: the oldest of them made the copy
    # stale, the newest is what the visit got.
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
    return np.rint(np.multiply(hours, TICKS)).astype(np.int64)


def _on_axis(times: Times, watched: Ints, began: int, stretch: int) -> Ints:
    """Where the moments in the pages' watched time stand, ascending: page * stretch + ticks."""
    page = np.repeat(np.arange(len(watched)), np.diff(times.first))
    after = _ticks(times.at) - began
    inside = (after >= 0) & (after <= watched[page]) & (watched[page] > 0)
    # The stable sort is quick where most is in order already.
    return np.sort((page * stretch + after)[inside], kind="stable")


def _sums(part: Ints, each: NDArray[Any], parts: int = 0) -> Floats:
    """(parts,) sum of `each` over each part; at least as many as there are."""
    return np.bincount(part, each, parts).astype(np.float64, copy=False)


def _ratio(sums: Floats, counts: Floats) -> Floats:
    """Quotients; NaN where the count is 0."""
    quotients = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=quotients, where=counts > 0)
    return quotients


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
    return np.bincount(feed, minlength=n).astype(np.int64, copy=False)
