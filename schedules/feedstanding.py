"""Feeds in a closed loop: one look at each, then standing plans from what their own fetches saw.

It is what `crawl` and `replan` do. The first documents tell a past by their dates; each plan holds
until the next, and is made by the code of a replan. A full document that has none of the posts
before tells that some were lost: as many as the feed's mean rate gives for that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np

from schedules.feedmarket import Feeds
from schedules.feedplan import plan_feeds
from schedules.firstlook import FIRST_HOURS, USUAL_WINDOW
from schedules.history import Floats, Histories
from schedules.population import Population, walls_of
from schedules.schedule import LONGEST_WEEKS, WEEK_HOURS, Schedules
from schedules.score import DAY_HOURS, Times
from schedules.terms import Terms, least_per_day
from schedules.world import joined, visits_of

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
    split: float,
    stop: float,
    every_hours: float,
) -> Times:
    """At most `visits` fetches from `split` to `stop`, besides the first look at each feed.

    policy: one of FEED_POLICIES   posts: what truly happens, ascending for each feed
    every_hours: between two replans
    """
    population = _population(feeds, split, stop)
    known = [_first_look(_of(posts, i), int(feeds.window[i]), split) for i in range(len(feeds))]
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


def _population(feeds: Feeds, split: float, stop: float) -> Population:
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
        max_hours=np.full(n, float(LONGEST_WEEKS * WEEK_HOURS)),
        site_day=np.full(1, np.inf),
        site_hour=np.full(1, np.inf),
        walls=walls_of((UTC,), split - FIRST_HOURS, stop),
    )


def _of(posts: Times, i: int) -> Floats:
    return posts.at[posts.first[i] : posts.first[i + 1]]


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
