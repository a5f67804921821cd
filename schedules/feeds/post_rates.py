"""How feeds post: how many posts, in what batches, at what hours; and what fetches of them lose.

All is shrunk to what other feeds do, as three weeks of a feed are few posts: a rate to that of a
typical feed, batches to typical ones, hours to the feed's own weekdays and hours of the day and
those of all feeds. Posts of an interval are negative binomial; what is beyond the feed's document
is lost, the rest waits.
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

# What is believed of a feed before it is watched counts as much as a fifth of a post at the mean
# rate of all feeds: few feeds post most, so more would hold back who posts often.
PRIOR_POSTS = 0.2
# Feeds post once a week, where not one of them has been watched.
UNKNOWN_HOURS = 168.0
# Variance over mean of a day's posts, less one; the posts that this belief counts for.
TYPICAL_BATCH, MAX_BATCH, BATCH_POSTS = 3.0, 10.0, 10.0
# Hours with posts that the feed's own weekdays and hours of the day count for, and all feeds'.
OWN_CELLS, COMMON_CELLS, EVEN_CELLS = 8.0, 30.0, 14.0
NEIGHBOURS = 0.25
# So many feeds tell the hours of all; a feed tells as much as a few of its hours do, at most.
TELLING_FEEDS, TELLING_CELLS = 20_000, 5.0

# Sums of hours are not exact.
TOUCH = 1e-6
# Points of a table of losses.
POINTS = 64
# So many deviations above the window no document is not full: from there on all is linear.
FULL = 6.0
HUGE = 1e200
TINY = 1e-9

Hours = NDArray[np.uint8]


class Cells(NamedTuple):
    """Hours of the week of feeds in which posts came, once for each clock hour that had any.

    first: (n + 1,) offsets   hour: (c,) 0 = Monday 00:00
    A burst of posts in an hour is one event: it tells the hour once.
    """

    first: Ints
    hour: Hours


@dataclass(frozen=True, slots=True)
class Posting:
    """What is believed of how n feeds post.

    posts, hours: (n,) posts seen in so many usual hours, those believed before among them
    batch:        (n,) variance of a day's posts over their mean, less one
    cells:        hours in which posts came               common: (168,) those of all feeds
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
        """(n,) posts expected in a week; more than 0."""
        return WEEK_HOURS * self.posts / self.hours

    def of(self, rows: Ints) -> Posting:
        """Some of the feeds."""
        first, place = places_of(rows, self.cells.first)
        return replace(
            self,
            posts=self.posts[rows],
            hours=self.hours[rows],
            batch=self.batch[rows],
            cells=Cells(first, self.cells.hour[place]),
        )

    def cells_of(self, part: Part) -> Cells:
        """The hours of the feeds of a part."""
        first = self.cells.first[part.start : part.stop + 1]
        return Cells(first - first[0], self.cells.hour[first[0] : first[-1]])


def estimate_posting(
    posts: Times, since: Floats, until: Floats, fresh: Floats | None = None
) -> Posting:
    """What is believed of n feeds from their posts after `since` up to `until`.

    posts: in hours since 1970 on the clock that their fetches go by, ascending for each feed
    since, until: (n,) where each feed's posts are known, on that clock; equal where they are not
    fresh: (n,) moment between them from which on posts count for the rate; None: all of them do
    """
    n = len(since)
    feed = np.repeat(np.arange(n), np.diff(posts.first))
    counts = (posts.at > since[feed]) & (posts.at <= until[feed])
    feed, at = feed[counts], posts.at[counts]
    fresh = since if fresh is None else fresh
    number = np.bincount(feed[at > fresh[feed]], minlength=n).astype(np.float64)
    hours = np.maximum(until - since, 0.0)
    # Some days more than whole weeks would pass for the busiest ones.
    weeks, days = (np.floor(hours / length + TOUCH) for length in (WEEK_HOURS, DAY_HOURS))
    told = np.where(weeks > 0, weeks * WEEK_HOURS, days * DAY_HOURS)
    even = at > (until - told)[feed] - TOUCH
    cells = _cells(n, feed[even], at[even], weeks == 0)
    common = _common(cells)
    watched = usual_hours(common, fresh, until)
    # Hours in which feeds have posted as much as is believed of each, in the mean of all.
    prior_hours = float(PRIOR_POSTS * (watched.sum() + UNKNOWN_HOURS) / (number.sum() + 1))
    batch = _batch(feed, at, since, hours)
    return Posting(number + PRIOR_POSTS, watched + prior_hours, batch, cells, common)


def usual_hours(common: Floats, since: Floats, until: Floats) -> Floats:
    """(n,) hours in which as many posts come as from `since` to `until`, if all were alike.

    A weekend in which nothing is posted tells little: a short span is counted by its posts.
    """
    up_to = np.concatenate([[0.0], np.cumsum(common)])

    def mass(at: Floats) -> Floats:
        week, hour = np.divmod(at - MONDAY_HOURS, WEEK_HOURS)
        passed: Floats = week + np.interp(hour, np.arange(WEEK_HOURS + 1), up_to)
        return passed

    result: Floats = WEEK_HOURS * np.maximum(mass(until) - mass(since), 0.0)
    return result


def _batch(feed: Ints, at: Floats, since: Floats, hours: Floats) -> Floats:
    """(n,) from the posts of each day."""
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


def _cells(n: int, feed: Ints, at: Floats, few: Flags) -> Cells:
    """The hours of posts. few: (n,) feeds that were watched for less than a week.

    A few days tell the hour of the day only: what they saw is spread over the week.
    """
    hour = np.floor(at).astype(np.int64) - MONDAY_HOURS
    new = (np.diff(feed, prepend=-1) > 0) | (np.diff(hour, prepend=-1) != 0)
    feed, hour = feed[new], hour[new] % WEEK_HOURS
    first = offsets(np.bincount(feed, minlength=n))
    day = (np.arange(len(feed)) - first[feed]) % 7
    spread = hour % DAY_HOURS + DAY_HOURS * day
    return Cells(first, np.where(few[feed], spread, hour).astype(np.uint8))


def _common(cells: Cells) -> Floats:
    """(168,) the hours of all feeds; half of it is the product of weekday and hour of the day."""
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
    result = np.empty(WEEK_HOURS)
    for h in range(WEEK_HOURS):
        beside = profile[h - 1] + profile[h + 1 - WEEK_HOURS]
        result[h] = (1 - 2 * NEIGHBOURS) * profile[h] + NEIGHBOURS * beside
    return result


@compiled
def profile_of(hours: Hours, common: Floats) -> Floats:
    """(168,) share of a feed's posts in each hour of the week; sums to 1, nowhere 0.

    hours: hours of the week in which posts came     common: (168,) those of all feeds
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
    shape = mean / batch if batch > TINY else 0.0
    log = -shape * np.log1p(batch) if batch > TINY else -mean
    # Sums over documents that are not full; scaled, as chances may be too small for a number.
    chance, below, short, early = 1.0, 0.0, 0.0, 0.0
    for posts in range(int(window) + 1):
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
    # Relative to the mean, as the result is: full documents are rare where there are few posts,
    # but hold most of them if posts come in batches.
    if full > TINY * min(mean, 1.0):
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
    top = max(min(most, full), TINY)
    lost, wait = np.empty(POINTS), np.empty(POINTS)
    for j in range(POINTS):
        mean = max(top * (j / (POINTS - 1)) ** 2, TINY)
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
