"""Exploration: targets with little history are visited around the clock without more requests."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.allocation import optimal
from schedules.allocation.optimal import AGE
from schedules.allocation.plan import Plan, plan
from schedules.calendar import next_visits, visits_between
from schedules.cost import Objective
from schedules.estimation.estimate import estimate
from schedules.evaluation.pages import Planned
from schedules.evaluation.world import World, even_population, never, seen, times_of
from schedules.placement.placement import EVEN_VISITS, MAX_SLOTS, RARE
from schedules.population import MONDAY_HOURS, Population
from schedules.schedule import WEEK_HOURS
from schedules.terms import LIMITS, Terms
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


def test_all_options_of_a_page_fit_into_the_arrays_of_its_kernel() -> None:
    """Run the kernel in Python, which checks the indexes of arrays; machine code does not."""
    estimated = estimate(population(1, UTC), never(1))
    target = optimal.targets(estimated, slice(0, 1), np.zeros((1, WEEK_HOURS)))
    kernel: Any = optimal._candidates
    counts, visits, *_ = kernel.py_func(target, AGE, 0.0)
    assert counts == len(visits) == len(EVEN_VISITS) > RARE + MAX_SLOTS


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


@pytest.mark.parametrize("per_week", [0.7, 1.1, 1.5, 3.0, 5.0, 7.0])
@pytest.mark.parametrize("aim", [Objective(), Objective(1.0, 0.0, 0.0)])
def test_equal_pages_get_equal_intervals(per_week: float, aim: Objective) -> None:
    """Compare with the best plan for pages about which nothing is known: the same interval."""
    some = population(60, UTC)
    budget = 60 * per_week / 7
    made = plan(some, never(60), Terms(budget_per_day=budget, aim=aim), NOW)
    uniform = plan(some, never(60), Terms("uniform", budget), NOW)
    assert made.requests_per_day <= budget * (1 + 1e-6)
    assert cost(made, aim) <= cost(uniform, aim) * 1.005


def cost(made: Plan, aim: Objective) -> float:
    """Return the staleness and age that the plan minimizes."""
    return float(aim.stale * made.stale.mean() + aim.age * made.age_days.mean())


@given(st.integers(0, 999), st.integers(0, 6), st.floats(0.5, 8))
def test_plan_of_hardly_known_pages_is_no_worse_than_uniform(
    seed: int, visits: int, per_week: float
) -> None:
    """Visit pages up to six times in as many days, and compare the expected freshness."""
    some = population(60, UTC, seed=seed)
    happened = changes(some, np.exp(np.random.default_rng(seed).uniform(-4, 4, 60)), seed=seed)
    past = watched(some, happened, 24, (visits - 1) / 7) if visits else never(60)
    budget, aim = 60 * per_week / 7, Objective(1.0, 0.0, 0.0)
    made = plan(some, past, Terms(budget_per_day=budget, aim=aim), NOW)
    uniform = plan(some, past, Terms("uniform", budget), NOW)
    assert 1 - made.stale.mean() >= (1 - uniform.stale.mean()) * 0.997


def test_changed_interval_goes_on_from_the_current_one() -> None:
    """Change all intervals in a replan; a third of the way to the next visit remains a third.

    Some visits are delayed, because more visits would come than the budget has.
    """
    some = population(40, UTC)
    first = plan(some, never(40), Terms(budget_per_day=40 * 2 / 7), NOW).schedules
    later = NOW + 11.5
    made = plan(some, never(40), Terms(budget_per_day=40 * 4 / 7), later, first).schedules
    assert (made.every_hours < first.every_hours).all()
    rest = [
        (next_visits(schedules, UTC[0], later) - later) / schedules.every_hours
        for schedules in (first, made)
    ]
    later_by = rest[1] - rest[0]
    assert later_by.min() > -1e-4
    assert later_by.max() < 0.5
    assert np.median(later_by) < 0.1


def test_replanning_a_young_site_every_day_keeps_the_budget() -> None:
    """Follow daily plans from the first visit on; visits that find no change lengthen intervals."""
    n, budget, days = 400, 70.0, 4
    rng = np.random.default_rng(1)
    key = rng.integers(0, 2**64, n, dtype=np.uint64)
    begin = MONDAY_HOURS + 2800 * WEEK_HOURS
    end = begin + (days + 1) * 24
    pages = even_population(key, np.zeros(n, np.int64), np.ones(n), (1.0, 672.0), begin, end)
    wait = rng.exponential(1, (n, 200)) / rng.lognormal(-5, 1.2, (n, 1))
    times = begin + np.cumsum(wait, axis=1)
    happened = times_of(n, [(np.repeat(np.arange(n), 200), times.ravel())])
    world = World(pages, happened, np.full(n, np.nan), np.full(n, np.inf))
    crawl = Planned(world, Terms(budget_per_day=budget))
    past = seen(never(n), times_of(n, [(np.arange(n), np.full(n, begin))]), happened)
    spent = []
    for day in range(1, days + 1):
        now = begin + 24 * day
        crawl.replan(past, now)
        visits = crawl.visits(past, now, now + 24)
        past = seen(past, visits, happened)
        spent.append(len(visits.at))
    assert max(spent) <= 1.1 * budget, spent
    assert sum(spent) >= 0.8 * budget * days, spent
