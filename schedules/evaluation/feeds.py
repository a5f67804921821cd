"""Feeds in simulation as `crawl` and `replan` treat them: standing plans, from what is known.

Each plan is made by the code of a replan and holds until the next. Before the first plan either
all posts since some moment are known, or, in a closed loop, one document of each feed, whose dates
are a past. After it a plan knows what its own fetches saw. A full document that has none of the
posts before shows that some were lost: as many as the feed's mean rate gives for that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from schedules.evaluation.world import Span, joined, visits_of
from schedules.feeds import plan as aggregation
from schedules.feeds.plan import plan_feeds
from schedules.first_look import FIRST_HOURS, USUAL_WINDOW
from schedules.history import DAY_HOURS, Floats, Histories, Ints, Times
from schedules.population import Population, walls_of
from schedules.schedule import LONGEST_FEED_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import Terms, least_per_day

PAPER_POLICIES = ("uniform", "min-delay", "min-missing")
FEED_POLICIES = ("optimal", *PAPER_POLICIES)


@dataclass(frozen=True, slots=True)
class Feeds:
    """n feeds to be fetched.

    key:    (n,) a number that stays with the feed, for choices that are to look random
    window: (n,) >= 1 posts that the feed's document holds     weight: (n,) importance
    """

    key: NDArray[np.uint64]
    window: Ints
    weight: Floats

    def __len__(self) -> int:
        return len(self.key)


def paper_visits(policy: str, feeds: Feeds, past: Times, visits: int, span: Span) -> Times:
    """Return at most `visits` fetches of all feeds from split to stop, ascending for each feed.

    policy: one of PAPER_POLICIES   past: posts of the feeds, of which those from the start of the
    span to its split are known

    Posts of a feed are in the order of time. ValueError for another policy, or moments that are
    not in order.
    """
    since, split, stop = span
    if policy not in PAPER_POLICIES:
        raise ValueError(f"{policy!r} is none of {', '.join(PAPER_POLICIES)}")
    if not since < split < stop:
        raise ValueError(f"{since}, {split} and {stop} are not one after the other")
    rate = counts(past, since, split) * ((stop - split) / (split - since))
    return evenly(_shares(policy, feeds, rate, visits), split, stop)


def _shares(policy: str, feeds: Feeds, rate: Floats, visits: int) -> Ints:
    """(n,) fetches of each feed. rate: (n,) posts expected in the period."""
    if policy == "uniform":
        return aggregation.uniform(rate, visits)
    if policy == "min-delay":
        return aggregation.min_delay(rate, feeds.weight, visits)
    return aggregation.min_missing(rate, feeds.window.astype(np.float64), visits)


def counts(posts: Times, since: float, until: float) -> Floats:
    """(n,) posts of each feed after `since` up to `until`."""
    feed = np.repeat(np.arange(len(posts.first) - 1), np.diff(posts.first))
    known = (posts.at > since) & (posts.at <= until)
    return np.bincount(feed[known], minlength=len(posts.first) - 1).astype(np.float64)


def evenly(fetches: Ints, start: float, stop: float) -> Times:
    """Fetches of each feed at even distances, the last at the end of the period."""
    first = np.concatenate([[0], np.cumsum(fetches)])
    number = np.arange(first[-1]) - np.repeat(first[:-1], fetches) + 1
    return Times(first, start + number * ((stop - start) / np.repeat(fetches, fetches)))


MINUTE = 1 / 60
TOUCH = 1e-6
UTC = ZoneInfo("UTC")


@dataclass(slots=True)
class Watched:
    """What is known of one feed. after, by: of each post, hours since 1970 (UTC).

    window: posts that may come between two visits without a loss, as far as was seen
    """

    since: float
    until: float
    after: list[float]
    by: list[float]
    window: int


def standing(
    policy: str,
    feeds: Feeds,
    posts: Times,
    visits: int,
    span: Span,
    every_hours: float,
    *,
    closed_loop: bool = False,
) -> Times:
    """Return at most `visits` fetches from split to stop, ascending for each feed.

    policy: one of FEED_POLICIES   posts: what truly happens, ascending for each feed
    every_hours: between two replans
    closed_loop: all that is known at the split is one document of each feed, which is no visit;
    else the posts of each from the start of the span to the split, as if none had been missed
    """
    start, split, stop = span
    population = _population(feeds, min(start, split - FIRST_HOURS), stop)
    mine = [(_of(posts, i), int(feeds.window[i])) for i in range(len(feeds))]
    if closed_loop:
        known = [_first_look(some, window, split) for some, window in mine]
    else:
        known = [_all_seen(some, window, start, split) for some, window in mine]
    per_day = visits * DAY_HOURS / (stop - split)
    terms = Terms(policy, max(per_day, least_per_day(population)))
    present, went, now = Schedules.none(len(feeds)), list[Times](), split
    while now < stop:
        until = min(now + every_hours, stop)
        window = np.array([one.window for one in known])
        made = plan_feeds(population, _histories(known), window, terms, now, present)
        present = made.schedules
        # Each feed was just looked at: what is due at the first moment is done.
        due = visits_of(present, population, now + TOUCH, until + TOUCH)
        went.append(due)
        _learn(known, feeds, posts, due)
        now = until
    return _no_more(joined(len(feeds), went), visits)


def _population(feeds: Feeds, start: float, stop: float) -> Population:
    n = len(feeds)
    zeros = np.zeros(n, np.int64)
    return Population(
        key=feeds.key,
        site=zeros,
        group=zeros,
        parent=np.zeros(1, np.int64),
        zones=(UTC,),
        open_hours=np.ones((1, WEEK_HOURS), np.bool_),
        weight=feeds.weight,
        cost=np.ones(n),
        min_hours=np.ones(n),
        max_hours=np.full(n, float(LONGEST_FEED_WEEKS * WEEK_HOURS)),
        site_day=np.full(1, np.inf),
        site_hour=np.full(1, np.inf),
        walls=walls_of((UTC,), start, stop),
    )


def _of(posts: Times, i: int) -> Floats:
    return posts.at[posts.first[i] : posts.first[i + 1]]


def _all_seen(posts: Floats, window: int, since: float, until: float) -> Watched:
    """Return what is known of a feed if no post between two moments was missed."""
    seen = posts[np.searchsorted(posts, since, "right") : np.searchsorted(posts, until, "right")]
    after = seen.tolist()
    return Watched(since, until, after, [moment + MINUTE for moment in after], window)


def _first_look(posts: Floats, window: int, at: float) -> Watched:
    """The dates of a first document are a past, all after its oldest one; one for all is none."""
    shown = posts[: np.searchsorted(posts, at, "right")][-window:]
    seen = max(USUAL_WINDOW, len(shown))
    if len(shown) < 2 or shown[-1] - shown[0] < MINUTE:
        return Watched(at, at, [], [], seen)
    since = max(float(shown[0]), at - FIRST_HOURS)
    dated = shown[shown > since].tolist()
    return Watched(since, at, dated, [moment + MINUTE for moment in dated], seen)


def _histories(known: list[Watched]) -> Histories:
    counts = [len(one.by) for one in known]
    return Histories(
        np.array([one.since for one in known]),
        np.array([one.until for one in known]),
        np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        np.array([moment for one in known for moment in one.after]),
        np.array([moment for one in known for moment in one.by]),
    )


def _learn(known: list[Watched], feeds: Feeds, posts: Times, due: Times) -> None:
    """What fetches add to what is known."""
    for i, (begin, end) in enumerate(pairwise(due.first.tolist())):
        mine, window = _of(posts, i), int(feeds.window[i])
        for at in due.at[begin:end].tolist():
            _see(known[i], mine, window, at)


def _see(one: Watched, posts: Floats, window: int, at: float) -> None:
    before, count = np.searchsorted(posts, [one.until, at], "right")
    new = posts[before:count]
    shown = new[-window:].tolist()
    # Once posts have been seen to leave, the document is as long as it gets.
    one.window = window if len(new) and count > window else max(one.window, min(window, int(count)))
    if len(new) > window:
        gap, rest = shown[0] - one.until, at - shown[0]
        span = one.until - one.since + rest
        lost = round((len(one.by) + len(shown)) / span * gap) if span > 0 else 0
        one.after += [one.until] * lost
        one.by += [shown[0]] * lost
    one.after += shown
    one.by += [moment + MINUTE for moment in shown]
    one.until = at


def _no_more(visits: Times, most: int) -> Times:
    """The first `most` visits of all feeds together."""
    if len(visits.at) <= most:
        return visits
    keep = np.zeros(len(visits.at), np.bool_)
    keep[np.argsort(visits.at, kind="stable")[:most]] = True
    before = np.concatenate([[0], np.cumsum(keep)])
    return Times(before[visits.first], visits.at[keep])
