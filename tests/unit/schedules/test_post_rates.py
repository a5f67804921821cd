"""Estimates of the posting rates and profiles of feeds."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.feeds.post_rates import PRIOR_POSTS, Posting, estimate_posting, profile_of
from schedules.history import Times
from schedules.schedule import WEEK_HOURS

MONDAY = 24.0 * (7 * 2822 + 4)


def estimated(*feeds: list[float], weeks: float = 3) -> Posting:
    """Return estimates for feeds with posts at these hours since a Monday."""
    flat = np.array([hour for feed in feeds for hour in feed], np.float64)
    posts = Times(np.cumsum([0, *map(len, feeds)]), MONDAY + flat)
    since = np.full(len(feeds), MONDAY)
    return estimate_posting(posts, since, since + weeks * WEEK_HOURS)


def test_a_silent_feed_is_expected_to_post_but_less_than_others() -> None:
    silent, busy = estimated([], [*range(1, 301)]).per_week
    assert 0 < silent < busy == pytest.approx(100, rel=0.05)


def test_a_feed_that_nobody_watched_posts_as_feeds_do_in_the_mean() -> None:
    posts = Times(np.array([0, 30, 30]), MONDAY + np.arange(1.0, 31))
    since, until = np.full(2, MONDAY), MONDAY + np.array([3.0 * WEEK_HOURS, 0])
    assert estimate_posting(posts, since, until).per_week[1] == pytest.approx(10, rel=0.4)


def test_where_no_feed_was_watched_each_posts_once_a_week() -> None:
    assert estimated([], [], weeks=0).per_week.tolist() == [1, 1]


def test_posts_before_and_after_what_is_known_do_not_count() -> None:
    assert estimated([-1, 0, 1, 504, 505]).posts.tolist() == [2 + PRIOR_POSTS]


def test_posts_of_one_day_are_a_batch_those_of_each_day_are_none() -> None:
    batch = estimated([30 + j / 60 for j in range(60)], [24 * j + 12 for j in range(21)]).batch
    assert batch[0] > 5
    assert batch[1] < 1


def test_the_hours_of_posts_are_those_of_the_local_week_and_a_burst_tells_once() -> None:
    cells = estimated([1, 1.5, 1.9, 25, 170]).cells
    assert cells.hour.tolist() == [1, 25, 2]


def test_a_profile_leans_to_the_hours_that_had_posts() -> None:
    feed = estimated([24 * day + 9 for day in range(21)])
    profile = profile_of(feed.cells.hour, feed.common)
    assert profile.sum() == pytest.approx(1)
    assert (profile > 0).all()
    assert set(np.argsort(-profile)[:7] % 24) == {9}


def test_some_feeds_are_believed_to_be_as_among_all() -> None:
    feeds = estimated([5, 6], [], [7, 100, 400])
    some = feeds.of(np.array([2, 0]))
    assert some.per_week.tolist() == feeds.per_week[[2, 0]].tolist()
    assert some.cells.hour.tolist() == [7, 100, 400 % 168, 5, 6]


def test_hours_are_told_by_whole_weeks_so_that_no_day_counts_twice() -> None:
    ten_days = np.arange(1.0, 240, 4).tolist()
    days = np.bincount(estimated(ten_days, weeks=10 / 7).cells.hour // 24, minlength=7)
    assert days.tolist() == [6] * 7


def test_some_days_tell_the_hour_of_the_day_alone() -> None:
    mornings = [day * 24 + 9.5 for day in range(6)]
    hours = estimated(mornings, weeks=6 / 7).cells.hour
    assert (hours % 24 == 9).all()
    assert sorted(hours // 24) == [0, 1, 2, 3, 4, 5], "each hour counts for another day"
    assert len(estimated([1, 2, 3], weeks=0.5 / 7).cells.hour) == 0
