"""Exploration: targets with little history are visited around the clock without more requests."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.allocation.plan import Plan, Terms, plan
from schedules.calendar import visits_between
from schedules.evaluation.world import never
from schedules.population import Population
from schedules.schedule import WEEK_HOURS
from schedules.terms import LIMITS
from tests.unit.populations import HOUR, NOW, OFFICE, all_of, changes, gaps, population, watched

UTC = (ZoneInfo("UTC"),)
BUDGET = 120.0


def planned(some: Population, weeks: float, budget: float = BUDGET) -> Plan:
    happened = changes(some, np.full(len(some), 8.0), OFFICE, weeks)
    past = watched(some, happened, every=3, weeks=weeks)
    return plan(some, past, Terms(budget_per_day=budget), NOW)


def test_week_old_page_is_visited_at_even_intervals() -> None:
    made = planned(population(40, UTC), weeks=1)
    often = made.schedules.visits_per_week > 1
    assert often.sum() > 30
    assert (made.schedules.every_hours[often] > 0).all()
    assert {LIMITS[code] for code in made.bound[often]} == {"exploration"}


def test_page_with_long_history_gets_fixed_hours() -> None:
    made = planned(population(40, UTC), weeks=3)
    assert not made.schedules.every_hours.any()
    assert "exploration" not in {LIMITS[code] for code in made.bound}


def test_exploration_stays_within_budget() -> None:
    some = population(40, UTC)
    made = planned(some, weeks=1)
    assert made.requests_per_day <= BUDGET
    first, _ = visits_between(made.schedules, UTC[0], NOW, NOW + WEEK_HOURS)
    assert first[-1] <= 7 * BUDGET * 1.02


def test_even_intervals_cover_the_whole_week() -> None:
    some = population(40, UTC)
    young, old = planned(some, weeks=1), planned(some, weeks=3)
    longest = [
        np.mean(
            [gaps(schedule).max() * schedule.visits_per_week for schedule in all_of(made.schedules)]
        )
        for made in (young, old)
    ]
    assert longest[0] == pytest.approx(WEEK_HOURS)
    assert longest[1] > 1.5 * WEEK_HOURS


def test_unvisited_page_is_explored() -> None:
    some = population(10, UTC)
    made = plan(some, never(10), Terms(budget_per_day=30), NOW)
    assert (made.schedules.every_hours > 0).all()
    assert {LIMITS[code] for code in made.bound} == {"prior"}


def test_closed_hours_are_not_explored() -> None:
    some = population(40, UTC, open_hours=(HOUR % 24 >= 6)[None, :])
    made = planned(some, weeks=1)
    assert not made.schedules.every_hours.any()
    assert (made.schedules.slots % 24 >= 6).all()


@pytest.mark.parametrize("least_hours", [1.0, 30.0])
def test_exploration_keeps_shortest_interval(least_hours: float) -> None:
    some = population(20, UTC, min_hours=np.full(20, least_hours))
    every = planned(some, weeks=1).schedules.every_hours
    assert every[every > 0].min(initial=np.inf) >= least_hours
