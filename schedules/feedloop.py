"""A period planned anew every few days, from what its own fetches have seen until then.

Feeds do not go on as they did: some fall silent, others wake up. A fetch shows the times of the
posts it collects. A full document tells nothing of the time before its oldest post, which is
neither counted as watched nor as silent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.compiled import compiled
from schedules.feedmarket import FIRST_GUESS, Feeds, Fetches, Period, bought
from schedules.history import Floats, Ints
from schedules.posting import Posting
from schedules.score import Times

REPLAN_HOURS = 72
# What was seen before counts as no more than so many posts, so that a busy feed may change.
MOST_POSTS = 50.0
# Posts of one moment are not posts without end.
SHORTEST_HOURS = 0.1


class Evidence(NamedTuple):
    """What the fetches of n feeds have shown; see Posting. seen: (n,) hour of the last fetch."""

    posts: Floats
    hours: Floats
    seen: Ints


def replanned(
    posting: Posting, feeds: Feeds, posts: Times | None, visits: int, split: float, stop: float
) -> Times:
    """At most `visits` fetches of all feeds after `split`, at the latest at `stop`.

    posting: believed at `split`     posts: what truly happens, of which the plan learns what its
    fetches see; None: the plan of the first day stays
    """
    hours = int(np.floor(stop - split))
    known = Evidence(posting.posts.copy(), posting.hours.copy(), np.zeros(len(feeds), np.int64))
    step = REPLAN_HOURS if posts is not None else hours + 1
    went, left, guess = list[Fetches](), visits, FIRST_GUESS
    for now in range(0, hours, step):
        believed = posting.with_evidence(known.posts, known.hours)
        until = now + step if now + step < hours else hours + 1
        period = Period(believed, feeds, known.seen, split, hours, now + 1)
        plan, guess = bought(period, left, until, guess)
        due = _until(plan, until)
        went.append(due)
        left -= len(due.hour)
        if posts is not None:
            _learn(Fetches(posts.first, posts.at - split), feeds.window, due, known)
    return _joined(went, len(feeds), split)


def _until(plan: Fetches, hour: int) -> Fetches:
    """The fetches up to this hour."""
    due = plan.hour <= hour
    before = np.concatenate([[0], np.cumsum(due)])
    return Fetches(before[plan.first], plan.hour[due])


def _joined(went: list[Fetches], n: int, split: float) -> Times:
    feed = [np.repeat(np.arange(n), np.diff(one.first)) for one in went]
    owner = np.concatenate([np.empty(0, np.int64), *feed])
    hour = np.concatenate([np.empty(0, np.int64), *(one.hour for one in went)])
    order = np.argsort(owner, kind="stable")
    return Times(np.searchsorted(owner[order], np.arange(n + 1)), split + hour[order])


@compiled
def _learn(posts: Fetches, window: Ints, due: Fetches, known: Evidence) -> None:
    """What the fetches that were due add to what is known; all in hours of the period."""
    for i in range(len(window)):
        if due.first[i + 1] == due.first[i]:
            continue
        at = posts.hour[posts.first[i] : posts.first[i + 1]]
        old = np.searchsorted(at, known.seen[i], "right")
        for hour in due.hour[due.first[i] : due.first[i + 1]]:
            new = np.searchsorted(at, hour, "right")
            number, since = new - old, float(known.seen[i])
            if number >= window[i]:
                number, since = window[i], at[new - window[i]]
            kept = min(1.0, MOST_POSTS / max(known.posts[i], 1.0))
            known.posts[i] = known.posts[i] * kept + number
            known.hours[i] = known.hours[i] * kept + max(hour - since, SHORTEST_HOURS)
            old, known.seen[i] = new, hour
