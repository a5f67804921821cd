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


def test_silent_feed_has_a_low_positive_rate() -> None:
    silent, busy = estimated([], [*range(1, 301)]).per_week
    assert 0 < silent < busy == pytest.approx(100, rel=0.05)


def test_unobserved_feed_gets_the_mean_rate() -> None:
    posts = Times(np.array([0, 30, 30]), MONDAY + np.arange(1.0, 31))
    since, until = np.full(2, MONDAY), MONDAY + np.array([3.0 * WEEK_HOURS, 0])
    assert estimate_posting(posts, since, until).per_week[1] == pytest.approx(10, rel=0.4)


def test_rate_defaults_to_one_post_a_week() -> None:
    assert estimated([], [], weeks=0).per_week.tolist() == [1, 1]


def test_posts_outside_of_observed_span_are_ignored() -> None:
    assert estimated([-1, 0, 1, 504, 505]).posts.tolist() == [2 + PRIOR_POSTS]


def test_batch_size_measures_bursts() -> None:
    batch = estimated([30 + j / 60 for j in range(60)], [24 * j + 12 for j in range(21)]).batch
    assert batch[0] > 5
    assert batch[1] < 1


def test_burst_counts_once_per_hour_of_week() -> None:
    cells = estimated([1, 1.5, 1.9, 25, 170]).cells
    assert cells.hour.tolist() == [1, 25, 2]


def test_profile_favors_hours_with_posts() -> None:
    feed = estimated([24 * day + 9 for day in range(21)])
    profile = profile_of(feed.cells.hour, feed.common)
    assert profile.sum() == pytest.approx(1)
    assert (profile > 0).all()
    assert set(np.argsort(-profile)[:7] % 24) == {9}


def test_selected_feeds_keep_their_estimates() -> None:
    feeds = estimated([5, 6], [], [7, 100, 400])
    some = feeds.of(np.array([2, 0]))
    assert some.per_week.tolist() == feeds.per_week[[2, 0]].tolist()
    assert some.cells.hour.tolist() == [7, 100, 400 % 168, 5, 6]


def test_profiles_use_whole_weeks_only() -> None:
    ten_days = np.arange(1.0, 240, 4).tolist()
    days = np.bincount(estimated(ten_days, weeks=10 / 7).cells.hour // 24, minlength=7)
    assert days.tolist() == [6] * 7


def test_less_than_a_week_gives_daily_profile_only() -> None:
    mornings = [day * 24 + 9.5 for day in range(6)]
    hours = estimated(mornings, weeks=6 / 7).cells.hour
    assert (hours % 24 == 9).all()
    assert sorted(hours // 24) == [0, 1, 2, 3, 4, 5], "each hour counts for another day"
    assert len(estimated([1, 2, 3], weeks=0.5 / 7).cells.hour) == 0
