"""Fetches of feeds in simulation: as the paper plans them once, or by the plans of replans.

In `standing`, each plan is made by the code of a replan and holds until the next. Before the first
plan either all posts since some moment are known, or, in a closed loop, one document of each feed,
whose dates are a past. After it a plan knows what its own fetches saw. A full document that has
none of the posts before shows that some were lost: as many as the feed's mean rate gives for that
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schedules.evaluation.world import Span, even_population, joined, visits_of
from schedules.feeds import plan
from schedules.feeds.plan import plan_feeds
from schedules.first_look import FIRST_HOURS, USUAL_WINDOW
from schedules.history import DAY_HOURS, Floats, Histories, Ints, Times, offsets
from schedules.schedule import MAX_FEED_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import Terms, least_per_day

PAPER_POLICIES = ("uniform", "min-delay", "min-missing")
FEED_POLICIES = ("optimal", *PAPER_POLICIES)
MINUTE = 1 / 60
# Moments as sums of hours are not exact.
TOUCH = 1e-6


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
    # Posts that are expected in the period.
    rate = counts(past, since, split) * ((stop - split) / (split - since))
    if policy == "uniform":
        fetches = plan.uniform(rate, visits)
    elif policy == "min-delay":
        fetches = plan.min_delay(rate, feeds.weight, visits)
    else:
        fetches = plan.min_missing(rate, feeds.window.astype(np.float64), visits)
    return evenly(fetches, split, stop)


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


@dataclass(slots=True)
class FeedState:
    """What is known of one feed. after, by: of each post, hours since 1970 (UTC).

    posts, size: what truly happens, ascending, and how many of them a document holds
    window: posts that may come between two visits without a loss, as far as was seen
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
        """A feed of which no post between two moments was missed."""
        after = posts[slice(*np.searchsorted(posts, [since, until], "right"))].tolist()
        return cls(posts, size, since, until, after, [at + MINUTE for at in after], size)

    @classmethod
    def first_document(cls, posts: Floats, size: int, at: float) -> FeedState:
        """A feed with one document.

        Its dates are a past, all after the oldest one; one date for all posts is none.
        """
        shown = posts[: np.searchsorted(posts, at, "right")][-size:]
        window = max(USUAL_WINDOW, len(shown))
        if len(shown) < 2 or shown[-1] - shown[0] < MINUTE:
            return cls(posts, size, at, at, [], [], window)
        since = max(float(shown[0]), at - FIRST_HOURS)
        dated = shown[shown > since].tolist()
        return cls(posts, size, since, at, dated, [moment + MINUTE for moment in dated], window)

    def fetch(self, at: float) -> None:
        """What a fetch adds to what is known."""
        before, count = np.searchsorted(self.posts, [self.until, at], "right")
        new = self.posts[before:count]
        shown = new[-self.size :].tolist()
        if len(new) and count > self.size:
            # Once posts have been seen to leave, the document is as long as it gets.
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

    policy: one of FEED_POLICIES   posts: what truly happens, ascending for each feed
    every_hours: between two replans
    closed_loop: all that is known at the split is one document of each feed, which is no visit;
    else the posts of each from the start of the span to the split, as if none had been missed
    """
    start, split, stop = span
    population = even_population(
        feeds.key, np.zeros(len(feeds), np.int64), feeds.weight,
        (1.0, float(MAX_FEED_WEEKS * WEEK_HOURS)), min(start, split - FIRST_HOURS), stop,
    )  # fmt: skip
    bounds = pairwise(posts.first.tolist())
    own = zip((posts.at[a:b] for a, b in bounds), feeds.window.tolist(), strict=True)
    if closed_loop:
        states = [FeedState.first_document(each, size, split) for each, size in own]
    else:
        states = [FeedState.fully_observed(each, size, start, split) for each, size in own]
    per_day = visits * DAY_HOURS / (stop - split)
    terms = Terms(policy, max(per_day, least_per_day(population)))
    current, done, now = Schedules.none(len(feeds)), list[Times](), split
    while now < stop:
        until = min(now + every_hours, stop)
        window = np.array([state.window for state in states])
        past = Histories(
            np.array([state.since for state in states]),
            np.array([state.until for state in states]),
            offsets(np.array([len(state.by) for state in states], np.int64)),
            np.array([moment for state in states for moment in state.after]),
            np.array([moment for state in states for moment in state.by]),
        )
        made = plan_feeds(population, past, window, terms, now, current)
        current = made.schedules
        # Each feed was just looked at: what is due at the first moment is done.
        due = visits_of(current, population, now + TOUCH, until + TOUCH)
        done.append(due)
        for state, (begin, end) in zip(states, pairwise(due.first.tolist()), strict=True):
            for at in due.at[begin:end].tolist():
                state.fetch(at)
        now = until
    return _first_visits(joined(len(feeds), done), visits)


def _first_visits(visits: Times, most: int) -> Times:
    """The first `most` visits of all feeds together."""
    if len(visits.at) <= most:
        return visits
    keep = np.zeros(len(visits.at), np.bool_)
    keep[np.argsort(visits.at, kind="stable")[:most]] = True
    before = np.concatenate([[0], np.cumsum(keep)])
    return Times(before[visits.first], visits.at[keep])
