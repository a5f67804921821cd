"""Weekly schedules of feeds, by example."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.feeds.optimal import FeedLimits, optimal_schedules
from schedules.feeds.post_rates import Posting, estimate_posting
from schedules.history import Times
from schedules.schedule import FEED_CYCLES, WEEK_HOURS, Schedule, Schedules
from schedules.terms import BudgetTooSmall

MONDAY = 24.0 * (7 * 2822 + 4)


def estimated(*feeds: list[float]) -> Posting:
    """Return estimates for feeds with posts at these hours of the three weeks since a Monday."""
    flat = np.array([hour for feed in feeds for hour in feed], np.float64)
    posts = Times(np.cumsum([0, *map(len, feeds)]), MONDAY + flat)
    since = np.full(len(feeds), MONDAY)
    return estimate_posting(posts, since, since + 3 * WEEK_HOURS)


def limits(n: int, least: float = 1, most: float = 672) -> FeedLimits:
    ones, zero = np.ones(n), np.zeros(n, np.int64)
    is_open = np.ones((1, WEEK_HOURS), np.bool_)
    key = np.arange(n, dtype=np.uint64) * np.uint64(131)
    return FeedLimits(key, zero + 10, ones, ones, least * ones, most * ones, zero, is_open)


DAILY = [24 * day + 9.5 + j / 60 for day in range(21) for j in range(6)]


def test_morning_feed_is_fetched_soon_after_its_posts() -> None:
    plan = optimal_schedules(estimated(DAILY), limits(1), Schedules.none(1), visits_per_week=7)
    slots = np.array(plan.schedules[0].slots)
    assert len(slots) == 7
    assert set(slots % 24) <= {10, 11, 12}


def test_silent_feed_gets_minimum_rate_at_high_price() -> None:
    plan = optimal_schedules(estimated([], DAILY), limits(2), Schedules.none(2), price=2.0)
    assert plan.schedules[0].visits_per_week == 0.25
    assert plan.schedules[1].visits_per_week >= 1


@pytest.mark.parametrize(
    ("most", "visits"),
    [
        (9999, 1 / 24), (4032, 1 / 24), (4031, 1 / 12), (1500, 1 / 8), (1100, 1 / 6),
        (672, 0.25), (504, 1 / 3), (168, 1), (24, 7),
    ],
)  # fmt: skip
def test_longest_interval_holds_at_any_price(most: float, visits: float) -> None:
    plan = optimal_schedules(estimated([]), limits(1, most=most), Schedules.none(1), price=1e6)
    assert plan.schedules[0].visits_per_week == pytest.approx(visits)


def test_cycles_lengthen_as_price_rises() -> None:
    feeds, bounds = estimated([9.5, 100, 300]), limits(1, most=4032)
    plans = [
        optimal_schedules(feeds, bounds, Schedules.none(1), price=price).schedules[0]
        for price in (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
    ]
    visits = [plan.visits_per_week for plan in plans]
    assert visits == sorted(visits, reverse=True)
    assert {plan.weeks for plan in plans} >= {8, 24}
    assert {plan.weeks for plan in plans} <= set(FEED_CYCLES)


def test_visits_keep_shortest_interval() -> None:
    plan = optimal_schedules(estimated(DAILY), limits(1, least=48), Schedules.none(1), price=1e-9)
    slots = np.array(plan.schedules[0].slots)
    assert np.diff(np.append(slots, slots[0] + WEEK_HOURS)).min() >= 48


def test_rejects_budget_below_minimum_rates() -> None:
    with pytest.raises(BudgetTooSmall):
        optimal_schedules(
            estimated([], []), limits(2, most=168), Schedules.none(2), visits_per_week=1
        )


def test_slightly_worse_current_schedule_is_kept() -> None:
    feeds, bounds = estimated(DAILY), limits(1)
    first = optimal_schedules(feeds, bounds, Schedules.none(1), visits_per_week=7)
    moved = Schedules(
        first.schedules.weeks, first.schedules.first, first.schedules.slots.copy(),
        first.schedules.every_hours, first.schedules.phase_hours,
    )  # fmt: skip
    moved.slots[-1] += 1
    again = optimal_schedules(feeds, bounds, moved, visits_per_week=7)
    assert again.schedules[0] == moved[0]


def test_current_schedule_in_closed_hour_is_replaced() -> None:
    feeds, bounds = estimated(DAILY), limits(1)
    bounds.open_hours[0, :10] = False
    slot, none = np.array([3], np.uint16), np.zeros(1)
    night = Schedules(np.ones(1, np.uint8), np.array([0, 1]), slot, none, none)
    again = optimal_schedules(feeds, bounds, night, visits_per_week=1)
    assert again.schedules[0] != Schedule(1, (3,))


def test_no_feeds_give_an_empty_plan() -> None:
    assert (
        len(optimal_schedules(estimated(), limits(0), Schedules.none(0), price=1.0).schedules) == 0
    )
