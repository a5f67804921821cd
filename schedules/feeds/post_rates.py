"""Estimate how feeds post (number, batches and hours of posts) and what fetches miss.

All estimates are shrunk toward other feeds, because a feed has few posts in three weeks: its rate
toward that of a typical feed, its batch size toward a typical one, and its hours toward its own
weekdays and hours of the day and toward the hours of all feeds. The number of posts in an interval
is negative binomial. Posts beyond the feed size are missed, the others wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.compiled import Part, compiled
from schedules.history import DAY_HOURS, Flags, Floats, Ints, Times, offsets, places_of
from schedules.population import MONDAY_HOURS
from schedules.schedule import WEEK_HOURS

# The prior of a rate counts as this many posts at the mean rate of all feeds. A larger prior would
# underestimate the few feeds that post most.
PRIOR_POSTS = 0.2
# Without any observation, one post a week is assumed.
UNKNOWN_HOURS = 168.0
# Prior of a day's variance-to-mean ratio less one, its maximum, and its weight in posts.
TYPICAL_BATCH, MAX_BATCH, BATCH_POSTS = 3.0, 10.0, 10.0
# Weights of a feed's own weekday and hour product, and of all feeds, in hours with posts.
OWN_CELLS, COMMON_CELLS, EVEN_CELLS = 8.0, 30.0, 14.0
NEIGHBORS = 0.25
# Maximum number of feeds that determine the hours of all, and how many of a feed's hours have half
# of its maximum weight.
TELLING_FEEDS, TELLING_CELLS = 20_000, 5.0

# Tolerance for sums of hours, which are inexact.
TOUCH = 1e-6
# Number of points in a table of losses.
POINTS = 64
# From this many standard deviations above the feed size, every document is full and losses are
# linear.
FULL = 6.0
HUGE = 1e200
TINY = 1e-9

Hours = NDArray[np.uint8]


class Cells(NamedTuple):
    """Hold the hours of the week in which feeds posted, once for each clock hour with posts.

    first: (n + 1,) offsets
    hour:  (c,) 0 = Monday 00:00

    A burst of posts within an hour is one event and counts once.
    """

    first: Ints
    hour: Hours


@dataclass(frozen=True, slots=True)
class Posting:
    """Hold the estimates of how n feeds post.

    posts, hours: (n,) posts observed in this many usual hours, including the prior
    batch:        (n,) variance of a day's posts divided by their mean, less one
    cells:        hours with posts
    common:       (168,) profile of all feeds
    """

    posts: Floats
    hours: Floats
    batch: Floats
    cells: Cells
    common: Floats

    def __len__(self) -> int:
        return len(self.posts)

    @property
    def per_week(self) -> Floats:
        """Return the (n,) expected posts a week; more than 0."""
        return WEEK_HOURS * self.posts / self.hours

    def of(self, rows: Ints) -> Posting:
        """Return the estimates of some of the feeds."""
        first, place = places_of(rows, self.cells.first)
        return replace(
            self,
            posts=self.posts[rows],
            hours=self.hours[rows],
            batch=self.batch[rows],
            cells=Cells(first, self.cells.hour[place]),
        )

    def cells_of(self, part: Part) -> Cells:
        """Return the hours of the feeds of a part."""
        first = self.cells.first[part.start : part.stop + 1]
        return Cells(first - first[0], self.cells.hour[first[0] : first[-1]])


def estimate_posting(
    posts: Times, since: Floats, until: Floats, fresh: Floats | None = None
) -> Posting:
    """Estimate how n feeds post from their posts after `since` up to `until`.

    posts:        in hours since 1970 on the clock of their fetches, ascending for each feed
    since, until: (n,) period in which each feed's posts are known, on that clock; equal if unknown
    fresh:        (n,) time in that period from which posts count for the rate; None: from the start
    """
    n = len(since)
    feed = np.repeat(np.arange(n), np.diff(posts.first))
    counts = (posts.at > since[feed]) & (posts.at <= until[feed])
    feed, at = feed[counts], posts.at[counts]
    fresh = since if fresh is None else fresh
    number = np.bincount(feed[at > fresh[feed]], minlength=n).astype(np.float64)
    hours = np.maximum(until - since, 0.0)
    # Use whole weeks (whole days in the first week), because the weekdays of a partial week would
    # look busier than the others.
    weeks, days = (np.floor(hours / length + TOUCH) for length in (WEEK_HOURS, DAY_HOURS))
    counted_hours = np.where(weeks > 0, weeks * WEEK_HOURS, days * DAY_HOURS)
    even = at > (until - counted_hours)[feed] - TOUCH
    cells = _posting_hours(n, feed[even], at[even], weeks == 0)
    common = _common_profile(cells)
    watched = usual_hours(common, fresh, until)
    # Weight of the prior: hours in which the average feed posts PRIOR_POSTS posts.
    prior_hours = float(PRIOR_POSTS * (watched.sum() + UNKNOWN_HOURS) / (number.sum() + 1))
    batch = _batch_sizes(feed, at, since, hours)
    return Posting(number + PRIOR_POSTS, watched + prior_hours, batch, cells, common)


def usual_hours(common: Floats, since: Floats, until: Floats) -> Floats:
    """Return the (n,) hours from `since` to `until`, weighted by the profile of all feeds.

    A weekend without posts carries little information, so a short period counts by its expected
    posts.
    """
    up_to = np.concatenate([[0.0], np.cumsum(common)])

    def mass(at: Floats) -> Floats:
        week, hour = np.divmod(at - MONDAY_HOURS, WEEK_HOURS)
        passed: Floats = week + np.interp(hour, np.arange(WEEK_HOURS + 1), up_to)
        return passed

    result: Floats = WEEK_HOURS * np.maximum(mass(until) - mass(since), 0.0)
    return result


def _batch_sizes(feed: Ints, at: Floats, since: Floats, hours: Floats) -> Floats:
    """Return the (n,) batch parameters from the posts of each day."""
    n, days = len(since), np.maximum(np.ceil(hours / DAY_HOURS), 1)
    longest = int(days.max(initial=1)) + 1
    code = feed * longest + ((at - since[feed]) // DAY_HOURS).astype(np.int64)
    place = np.flatnonzero(np.diff(code, prepend=-1))
    of_day = np.diff(np.append(place, len(code))).astype(np.float64)
    squares = np.bincount(feed[place], of_day**2, n)
    posts = np.bincount(feed, minlength=n)
    spread = (squares - posts**2 / days) * days / np.maximum(days - 1, 1)
    shrunk = (spread + BATCH_POSTS * (TYPICAL_BATCH + 1)) / (posts + BATCH_POSTS) - 1
    result: Floats = np.clip(shrunk, 0.0, MAX_BATCH)
    return result


def _posting_hours(n: int, feed: Ints, at: Floats, few: Flags) -> Cells:
    """Return the hours with posts. few: (n,) flags of feeds observed for less than a week.

    A few days show only the hour of the day, so their hours are spread over the weekdays.
    """
    hour = np.floor(at).astype(np.int64) - MONDAY_HOURS
    new = (np.diff(feed, prepend=-1) > 0) | (np.diff(hour, prepend=-1) != 0)
    feed, hour = feed[new], hour[new] % WEEK_HOURS
    first = offsets(np.bincount(feed, minlength=n))
    day = (np.arange(len(feed)) - first[feed]) % 7
    spread = hour % DAY_HOURS + DAY_HOURS * day
    return Cells(first, np.where(few[feed], spread, hour).astype(np.uint8))


def _common_profile(cells: Cells) -> Floats:
    """Return the (168,) profile of all feeds, half of it as the product of weekday and hour."""
    n = len(cells.first) - 1
    step = max(1, n // TELLING_FEEDS)
    count = np.diff(cells.first)
    feed = np.repeat(np.arange(n), count)
    telling = feed % step == 0
    weight = 1 / (count[feed[telling]] + TELLING_CELLS)
    sums = np.bincount(cells.hour[telling], weight, WEEK_HOURS) + 1 / WEEK_HOURS
    whole = _smoothed(sums / sums.sum())
    table = whole.reshape(7, DAY_HOURS)
    product: Floats = np.outer(table.sum(1), table.sum(0)).ravel()
    return (whole + product) / 2


@compiled
def _smoothed(profile: Floats) -> Floats:
    """Return a profile in which each hour shares a part with its neighbors, across week ends."""
    result = np.empty(WEEK_HOURS)
    for h in range(WEEK_HOURS):
        neighbors = profile[h - 1] + profile[h + 1 - WEEK_HOURS]
        result[h] = (1 - 2 * NEIGHBORS) * profile[h] + NEIGHBORS * neighbors
    return result


@compiled
def profile_of(hours: Hours, common: Floats) -> Floats:
    """Return the (168,) share of a feed's posts in each hour of the week; sums to 1, all positive.

    hours:  hours of the week with posts
    common: (168,) profile of all feeds
    """
    own = np.zeros(WEEK_HOURS)
    for hour in hours:
        own[hour] += 1
    own = _smoothed(own)
    days, times = np.zeros(7), np.zeros(DAY_HOURS)
    for h in range(WEEK_HOURS):
        days[h // DAY_HOURS] += own[h] + EVEN_CELLS * common[h]
        times[h % DAY_HOURS] += own[h] + EVEN_CELLS * common[h]
    scale = OWN_CELLS / days.sum() ** 2
    for h in range(WEEK_HOURS):
        own[h] += scale * days[h // DAY_HOURS] * times[h % DAY_HOURS] + COMMON_CELLS * common[h]
    result: Floats = own / own.sum()
    return result


class Table(NamedTuple):
    """Hold losses and waits of intervals, tabulated by the square root of the expected posts.

    lost: (POINTS,) posts missed
    wait: (POINTS,) share of the waiting time of all posts that collected posts account for
    top:  expected posts at the last point; 0 at the first
    """

    lost: Floats
    wait: Floats
    top: float


@compiled
def expected(mean: float, batch: float, window: int) -> tuple[float, float]:
    """Return the posts missed, and the share of waiting time left, in an interval of `mean` posts.

    The number of posts is negative binomial with variance mean * (1 + batch); Poisson if batch is
    0.
    """
    if mean <= 0:
        return 0.0, 1.0
    shape = mean / batch if batch > TINY else 0.0
    log = -shape * np.log1p(batch) if batch > TINY else -mean
    # Sum over documents that are not full. The terms are scaled, because probabilities may
    # underflow.
    chance, below, short, early = 1.0, 0.0, 0.0, 0.0
    for posts in range(window + 1):
        below += chance
        short += chance * (window - posts)
        early += chance * posts
        growth = (shape + posts) * batch / (1 + batch) if batch > TINY else mean
        chance *= growth / (posts + 1)
        if chance > HUGE or below > HUGE:
            chance, below, short, early = chance / HUGE, below / HUGE, short / HUGE, early / HUGE
            log += np.log(HUGE)
    scale = np.exp(log)
    lost = max(mean - window + scale * short, 0.0)
    full, wait = max(1 - scale * below, 0.0), scale * early
    # Compare relative to the mean. If posts are few, full documents are rare, but with batches they
    # can hold most of the posts.
    if full > TINY * min(mean, 1.0):
        # With evenly spaced posts, the j-th newest of N waits j / (N + 1) of the interval.
        wait += full * window * (window + 1) / (window + lost / full + 1)
    return lost, min(wait / mean, 1.0)


@compiled
def table(most: float, batch: float, window: int) -> Table:
    """Return the table of a feed whose intervals have at most `most` expected posts.

    The first point is the limit for short intervals, not the value at 0 posts. A batch longer than
    the feed size misses posts in even the shortest interval, so the share of waiting time
    approaches a value below 1. With 1 in its place, interpolation would overestimate the wait of
    all intervals up to the second point.
    """
    full = window + FULL * np.sqrt(window * (1 + batch)) + FULL * batch
    top = max(min(most, full), TINY)
    lost, wait = np.empty(POINTS), np.empty(POINTS)
    for j in range(POINTS):
        mean = max(top * (j / (POINTS - 1)) ** 2, TINY)
        lost[j], wait[j] = expected(mean, batch, window)
    lost[0] = 0.0
    return Table(lost, wait, top)


@compiled
def looked_up(lost: Floats, wait: Floats, top: float, mean: float) -> tuple[float, float]:
    """Return posts missed and share of waiting time as in `expected`, from a table's fields."""
    if mean >= top:
        shrunk = top / mean
        return lost[-1] + mean - top, wait[-1] * shrunk * shrunk
    place = np.sqrt(max(mean, 0.0) / top) * (POINTS - 1)
    j = min(int(place), POINTS - 2)
    part = place - j
    return lost[j] + part * (lost[j + 1] - lost[j]), wait[j] + part * (wait[j + 1] - wait[j])
