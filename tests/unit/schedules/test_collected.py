"""Collected and missed posts, by example."""

from __future__ import annotations

import math

import numpy as np
import pytest

from schedules.evaluation.score import Collected, collected
from schedules.history import Times

MONDAY = 24 * (7 * 2822 + 4)


def ragged(*feeds: list[float]) -> Times:
    """Return the times of feeds, given in hours since Monday."""
    flat = np.array([hour for feed in feeds for hour in feed], np.float64)
    return Times(np.cumsum([0, *map(len, feeds)]), MONDAY + flat)


def result_of(
    posts: list[float], visits: list[float], window: int, hours: float = 100
) -> Collected:
    """Return the result for one feed's posts in the hours since Monday."""
    return collected(ragged(posts), ragged(visits), np.array([window]), MONDAY, MONDAY + hours)


def test_example_1_of_paper_delay_of_five_posts() -> None:
    of = result_of([2, 4, 6, 8, 9], [5, 10], 10)
    assert of.delay_h.tolist() == [3 + 1 + 4 + 2 + 1]
    assert of.got.tolist() == [5]


def test_example_3_of_paper_one_fetch_collects_newest_five() -> None:
    of = result_of([*range(1, 11)], [10], 5)
    assert (of.missed.tolist(), of.got.tolist()) == ([5], [5])
    assert of.delay_h.tolist() == [4 + 3 + 2 + 1 + 0]


def test_simultaneous_posts_displace_each_other() -> None:
    assert result_of([3, 3, 3], [4], 2).missed.tolist() == [1]


def test_unseen_posts_are_missed_or_uncollected() -> None:
    of = result_of([10, 60, 70, 80], [20], 2)
    assert (of.got.tolist(), of.missed.tolist(), of.uncollected.tolist()) == ([1], [1], [2])
    assert of.totals().lost_pct == 75


def test_fetch_at_time_of_post_collects_it() -> None:
    assert result_of([10], [10], 1).delay_h.tolist() == [0]
    assert result_of([10 + 1e-10], [10], 1).delay_h.tolist() == [0]


def test_span_bounds_of_posts_and_fetches() -> None:
    of = result_of([0, 100], [-1, 0, 100, 101], 5)
    assert (of.posts.tolist(), of.visits.tolist(), of.got.tolist()) == ([1], [2], [1])


def test_fetches_of_one_feed_do_not_collect_for_another() -> None:
    posts, visits = ragged([10], [20], []), ragged([], [30], [40])
    of = collected(posts, visits, np.array([5, 5, 5]), MONDAY, MONDAY + 100)
    assert of.got.tolist() == [0, 1, 0]
    assert of.never_visited.tolist() == [True, False, False]
    assert of.totals().never_visited == 1


def test_means_without_posts_are_nan() -> None:
    totals = result_of([], [10], 5).totals()
    assert math.isnan(totals.missed_pct)
    assert math.isnan(totals.delay_h)


def test_rejects_empty_time_span() -> None:
    with pytest.raises(ValueError, match="is empty"):
        result_of([], [], 5, hours=0)
