"""When feeds are fetched, by policy, for a number of fetches: what a simulation compares."""

from __future__ import annotations

import numpy as np

from schedules import aggregation
from schedules.feedloop import replanned
from schedules.feedmarket import Feeds
from schedules.history import Floats, Ints
from schedules.posting import posting
from schedules.score import Times

__all__ = ["FEED_POLICIES", "Feeds", "counts", "evenly", "feed_visits"]
FEED_POLICIES = ("optimal", "uniform", "min-delay", "min-missing")


def feed_visits(  # noqa: PLR0913 - a plan of a period needs its three moments
    policy: str,
    feeds: Feeds,
    past: Times,
    visits: int,
    since: float,
    split: float,
    stop: float,
    *,
    posts: Times | None = None,
) -> Times:
    """At most `visits` fetches of all feeds from `split` to `stop`, ascending for each feed.

    policy: one of FEED_POLICIES   past: posts of the feeds, of which those after `since` up to
    `split` are known   since, split, stop: hours since 1970, since < split < stop
    posts: what truly happens, also after `split`: `optimal` is planned anew every few days from
    what its own fetches have seen of it; without, all is planned at `split`

    Posts of a feed are in the order of time.
    """
    if policy not in FEED_POLICIES:
        raise ValueError(f"{policy!r} is none of {', '.join(FEED_POLICIES)}")
    if not since < split < stop:
        raise ValueError(f"{since}, {split} and {stop} are not one after the other")
    if policy == "optimal":
        since_of, until = np.full(len(feeds), since), np.full(len(feeds), split)
        believed = posting(past, since_of, until)
        return replanned(believed, feeds, posts, visits, split, stop)
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
