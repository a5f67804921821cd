"""The paper's policies as the paper has them: a number of fetches, spread evenly over a period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedules import aggregation
from schedules.history import Floats, Ints, Times
from schedules.world import Span

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
