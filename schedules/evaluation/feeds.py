"""Simulate fetches of feeds, planned once as in the papers or replanned regularly.

`replanned_visits` makes each plan with the code of `scrapy replan` and follows it until the next
replan. Before the first plan, either all posts since some time are known or, in a closed loop, one
document of each feed, whose dates serve as history. Later plans use only what the simulated fetches
observed. If a full document contains none of the previous posts, some were missed; their
number is estimated from the feed's mean rate and the length of the gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schedules.evaluation.world import Span, even_population, joined, visits_of
from schedules.feeds.plan import plan_feeds, shares_of
from schedules.history import DAY_HOURS, Floats, Histories, Ints, Times, offsets
from schedules.intervals import DEFAULT_FEED_SIZE, FIRST_HISTORY_HOURS
from schedules.population import min_per_day
from schedules.schedule import MAX_FEED_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import Terms

PAPER_POLICIES = ("uniform", "min-delay", "min-missing")
FEED_POLICIES = ("optimal", *PAPER_POLICIES)
MINUTE = 1 / 60
# Tolerance for sums of hours, which are inexact.
TOUCH = 1e-6


@dataclass(frozen=True, slots=True)
class Feeds:
    """Describe n feeds to fetch.

    key:    (n,) stable pseudorandom number of each feed, used to break ties and to sample
    window: (n,) feed size: posts that the document holds, >= 1
    weight: (n,) importance
    """

    key: NDArray[np.uint64]
    window: Ints
    weight: Floats

    def __len__(self) -> int:
        return len(self.key)


def paper_visits(policy: str, feeds: Feeds, past: Times, visits: int, span: Span) -> Times:
    """Return at most `visits` fetches of all feeds from split to stop, ascending for each feed.

    policy: one of PAPER_POLICIES
    past:   posts of each feed in chronological order; only those from the start of the span to its
            split are known

    Raises ValueError for another policy, and if start, split and stop are not ascending.
    """
    since, split, stop = span
    if policy not in PAPER_POLICIES:
        raise ValueError(f"unknown policy: {policy!r}. Available: {', '.join(PAPER_POLICIES)}")
    if not since < split < stop:
        raise ValueError(f"start, split and stop must be ascending: {since}, {split}, {stop}")
    # Expected posts in the simulated period.
    rate = counts(past, since, split) * ((stop - split) / (split - since))
    return evenly(shares_of(policy, rate, feeds.window, feeds.weight, visits), split, stop)


def counts(posts: Times, since: float, until: float) -> Floats:
    """Return the (n,) number of posts of each feed after `since` up to `until`."""
    feed = np.repeat(np.arange(len(posts.first) - 1), np.diff(posts.first))
    counted = (posts.at > since) & (posts.at <= until)
    return np.bincount(feed[counted], minlength=len(posts.first) - 1).astype(np.float64)


def evenly(fetches: Ints, start: float, stop: float) -> Times:
    """Return evenly spaced fetches of each feed, the last one at the end of the period."""
    first = np.concatenate([[0], np.cumsum(fetches)])
    number = np.arange(first[-1]) - np.repeat(first[:-1], fetches) + 1
    return Times(first, start + number * ((stop - start) / np.repeat(fetches, fetches)))


@dataclass(slots=True)
class FeedState:
    """Track what fetches observed of one feed. Times are in hours since 1970 (UTC).

    posts:     true posts, ascending
    size:      posts that the document holds
    after, by: of each known post: it appeared in (after, by]
    window:    posts between two visits without a miss, as far as the fetches show
    """

    posts: Floats
    size: int
    since: float
    until: float
    after: list[float]
    by: list[float]
    window: int

    @classmethod
    def fully_observed(cls, posts: Floats, size: int, since: float, until: float) -> FeedState:
        """Return a feed of which every post between two times was observed."""
        after = posts[slice(*np.searchsorted(posts, [since, until], "right"))].tolist()
        return cls(posts, size, since, until, after, [at + MINUTE for at in after], size)

    @classmethod
    def first_document(cls, posts: Floats, size: int, at: float) -> FeedState:
        """Return a feed of which one document was read.

        Its dates serve as history after the oldest one, unless all posts have the same date.
        """
        shown = posts[: np.searchsorted(posts, at, "right")][-size:]
        window = max(DEFAULT_FEED_SIZE, len(shown))
        if len(shown) < 2 or shown[-1] - shown[0] < MINUTE:
            return cls(posts, size, at, at, [], [], window)
        since = max(float(shown[0]), at - FIRST_HISTORY_HOURS)
        dated = shown[shown > since].tolist()
        return cls(posts, size, since, at, dated, [moment + MINUTE for moment in dated], window)

    def fetch(self, at: float) -> None:
        """Record what a fetch observes."""
        before, count = np.searchsorted(self.posts, [self.until, at], "right")
        new = self.posts[before:count]
        shown = new[-self.size :].tolist()
        if len(new) and count > self.size:
            # Once posts have left the document, it has reached its maximum size.
            self.window = self.size
        else:
            self.window = max(self.window, min(self.size, int(count)))
        if len(new) > self.size:
            gap, later = shown[0] - self.until, at - shown[0]
            span = self.until - self.since + later
            lost = round((len(self.by) + len(shown)) / span * gap) if span > 0 else 0
            self.after += [self.until] * lost
            self.by += [shown[0]] * lost
        self.after += shown
        self.by += [moment + MINUTE for moment in shown]
        self.until = at


def replanned_visits(
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

    policy:      one of FEED_POLICIES
    posts:       true posts, ascending for each feed
    every_hours: interval between replans
    closed_loop: if true, only one document of each feed is known at the split, which does not count
                 as a visit; else all posts from the start of the span to the split are known
    """
    start, split, stop = span
    population = even_population(
        feeds.key, np.zeros(len(feeds), np.int64), feeds.weight,
        (1.0, float(MAX_FEED_WEEKS * WEEK_HOURS)), min(start, split - FIRST_HISTORY_HOURS), stop,
    )  # fmt: skip
    bounds = pairwise(posts.first.tolist())
    feed_posts = zip((posts.at[a:b] for a, b in bounds), feeds.window.tolist(), strict=True)
    if closed_loop:
        states = [FeedState.first_document(each, size, split) for each, size in feed_posts]
    else:
        states = [FeedState.fully_observed(each, size, start, split) for each, size in feed_posts]
    per_day = visits * DAY_HOURS / (stop - split)
    terms = Terms(policy, max(per_day, min_per_day(population)))
    current, done, now = Schedules.none(len(feeds)), list[Times](), split
    while now < stop:
        until = min(now + every_hours, stop)
        window = np.array([state.window for state in states], np.int64)
        past = Histories(
            np.array([state.since for state in states]),
            np.array([state.until for state in states]),
            offsets(np.array([len(state.by) for state in states], np.int64)),
            np.array([moment for state in states for moment in state.after]),
            np.array([moment for state in states for moment in state.by]),
        )
        made = plan_feeds(population, past, window, terms, now, current)
        current = made.schedules
        # A fetch due exactly at `now` was already made in the previous period.
        due = visits_of(current, population, now + TOUCH, until + TOUCH)
        done.append(due)
        for state, (begin, end) in zip(states, pairwise(due.first.tolist()), strict=True):
            for at in due.at[begin:end].tolist():
                state.fetch(at)
        now = until
    fetches = joined(len(feeds), done)
    # The first ones of all feeds together.
    chosen = np.sort(np.argsort(fetches.at, kind="stable")[:visits])
    return Times(np.searchsorted(chosen, fetches.first), fetches.at[chosen])
