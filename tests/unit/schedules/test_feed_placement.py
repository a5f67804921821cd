"""Placement of fetches, compared with brute force over all placements."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.feeds.optimal import (
    Course,
    Room,
    best_split,
    course,
    hull,
    insert,
    interval_cost,
    interval_posts,
    refine,
)
from schedules.feeds.post_rates import table
from schedules.schedule import MAX_FEED_WEEKS, WEEK_HOURS

ALWAYS = np.ones(WEEK_HOURS, np.bool_)
FOREVER = 1e9


@dataclass(frozen=True)
class Feed:
    """A feed of the examples."""

    per_week: float
    window: int
    peak: int
    hours: int = 14

    def course(self) -> Course:
        profile = np.full(WEEK_HOURS, 0.5 / WEEK_HOURS)
        profile[self.peak] += 0.5
        mass, lever = course(profile, self.per_week)
        t = table(float(mass[self.hours + 1]), 2.0, self.window)
        return Course(mass, lever, t, 0.002)

    def room(self, **other: float) -> Room:
        """Return the room for fetches in these hours and in the first hour of the next cycle."""
        least, most = other.get("least", 1.0), other.get("most", FOREVER)
        return Room(0, self.hours + 1, ALWAYS, float(least), float(most))


def cost(c: Course, room: Room, fetches: tuple[int, ...]) -> float:
    stops = [room.begin, *fetches, room.end]
    return sum(interval_cost(c, a, n) for a, n in pairwise(stops))


@given(
    st.floats(0.01, 500), st.integers(0, 167), st.integers(0, 167),
    st.integers(1, MAX_FEED_WEEKS * WEEK_HOURS),
)  # fmt: skip
def test_posts_of_long_interval_match_hourly_sum(
    per_week: float, peak: int, begin: int, length: int
) -> None:
    profile = np.full(WEEK_HOURS, 0.5 / WEEK_HOURS)
    profile[peak] += 0.5
    hour = np.arange(begin, begin + length)
    of_hour = per_week * profile[hour % WEEK_HOURS]
    posts, waits = interval_posts(*course(profile, per_week), begin, begin + length)
    assert posts == pytest.approx(of_hour.sum(), rel=1e-6)
    assert waits == pytest.approx((of_hour * (begin + length - hour - 0.5)).sum(), rel=1e-6)


FEEDS = st.builds(Feed, st.floats(1, 2000), st.integers(1, 20), st.integers(0, 13))


@given(FEEDS)
def test_first_fetch_is_optimal(feed: Feed) -> None:
    c, room = feed.course(), feed.room()
    saved, where = best_split(c, room, room.begin, room.end)
    best = min(cost(c, room, (z,)) for z in range(1, room.end))
    assert cost(c, room, (where,)) == pytest.approx(best)
    assert saved == pytest.approx(cost(c, room, ()) - best)


@given(FEEDS, st.integers(2, 3))
def test_refined_fetches_are_nearly_optimal(feed: Feed, count: int) -> None:
    c, room = feed.course(), feed.room()
    saved, order, _, _ = insert(c, room, 0.0, count)
    at = refine(c, room, order)
    placed_cost = cost(c, room, tuple(at))
    best = min(cost(c, room, some) for some in combinations(range(1, room.end), len(at)))
    whole = cost(c, room, ())
    assert placed_cost <= whole - saved.sum() + 1e-9
    assert whole - placed_cost >= 0.8 * (whole - best)


@given(FEEDS)
def test_savings_of_fetches_add_up(feed: Feed) -> None:
    c, room = feed.course(), feed.room()
    saved, order, _, _ = insert(c, room, 0.0, 6)
    after = cost(c, room, tuple(sorted(order)))
    assert saved.sum() == pytest.approx(cost(c, room, ()) - after, abs=1e-9)
    assert (saved > 0).all()


@given(FEEDS, st.integers(2, 4), st.integers(6, 9))
def test_fetches_keep_interval_limits(feed: Feed, least: int, most: int) -> None:
    c, room = feed.course(), feed.room(least=least, most=most)
    _, order, needed, _ = insert(c, room, 1e9, 14)
    at = [0, *sorted(order[:needed])]
    assert all(least <= n - a <= most for a, n in pairwise(at))
    assert room.end - at[-1] <= most


def test_hull_merges_steps_into_decreasing_values() -> None:
    more, saved = np.array([1.0, 1, 1, 1]), np.array([2.0, 5, 1, 0.5])
    count, value, last = hull(more, saved, 0)
    assert (count.tolist(), value.tolist(), last.tolist()) == ([2, 1, 1], [3.5, 1, 0.5], [1, 2, 3])


def test_required_fetches_are_one_step_of_infinite_value() -> None:
    count, value, _ = hull(np.ones(4), np.array([2.0, 5, 1, 0.5]), 2)
    assert (count.tolist(), value.tolist()) == ([2, 1, 1], [np.inf, 1, 0.5])
