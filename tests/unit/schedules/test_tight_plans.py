"""Plans of intervals that no schedule keeps exactly, of small budgets, and of other weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from schedules.allocation.plan import plan
from schedules.feeds.plan import plan_feeds
from schedules.placement.load import fullest_week
from schedules.population import Population, least_visits
from schedules.schedule import Schedules
from schedules.terms import Terms
from tests.unit.populations import NOW, ZONES, changes, gaps, population, rates, watched

IMPOSSIBLE = [(200.0, 300.0), (400.0, 450.0), (90.0, 100.0), (50.0, 50.5), (5.5, 5.9), (30.0, 30.0)]


def limited(shortest: float, longest: float) -> Population:
    """Return six targets; the first and the last one have these limits."""
    some = population(6, ZONES[:1])
    least, most = some.min_hours.copy(), some.max_hours.copy()
    least[[0, 5]], most[[0, 5]] = shortest, longest
    return replace(some, min_hours=least, max_hours=most)


@pytest.mark.parametrize(("shortest", "longest"), IMPOSSIBLE)
def test_longest_interval_decides_if_no_cycle_keeps_both(shortest: float, longest: float) -> None:
    some = limited(shortest, longest)
    past = watched(some, changes(some, rates(6)), every=24)
    pages = plan(some, past, Terms(budget_per_day=20), NOW).schedules
    window = np.full(6, 20)
    feeds = plan_feeds(
        some, past, window, Terms(budget_per_day=20), NOW, Schedules.none(6)
    ).schedules
    for schedules in (pages, feeds):
        for i in (0, 5):
            assert gaps(schedules[i]).max() <= longest
            slots, weeks = schedules[i].slots, schedules[i].weeks
            assert max(slots) < 168 * weeks
            fewest = np.ceil(168 / np.floor(longest)) if longest < 168 else least_visits(some)[i]
            assert schedules[i].visits_per_week == pytest.approx(fewest)


@pytest.mark.parametrize("per_day", [1.0, 1.5, 2.0])
def test_small_budget_is_used(per_day: float) -> None:
    some = population(3, ZONES[:1])
    past = watched(some, changes(some, np.full(3, 9.0)))
    made = plan(some, past, Terms(budget_per_day=per_day), NOW)
    assert 7 * per_day - 1 < 7 * made.requests_per_day <= 7 * per_day + 1e-6
    assert fullest_week(made.schedules) <= 7 * per_day + 1e-6


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_budget_is_used_whatever_the_unit_of_weights(unit: float) -> None:
    some = population(12, ZONES[:1])
    past = watched(some, changes(some, rates(12)))
    terms = Terms(budget_per_day=60)
    usual = plan(some, past, terms, NOW)
    scaled = plan(replace(some, weight=some.weight * unit), past, terms, NOW)
    assert scaled.requests_per_day == pytest.approx(usual.requests_per_day, rel=0.01)
    assert scaled.stale.sum() == pytest.approx(usual.stale.sum(), rel=0.02)


@pytest.mark.parametrize(
    ("targets", "per_week", "used"), [(1, 0.95, 0.5), (2, 1.0, 0.58), (6, 2.9, 2.5)]
)
def test_budget_of_few_visits_a_week_is_used(targets: int, per_week: float, used: float) -> None:
    """A week has whole visits, so a budget of 0.95 a week allows one in every other week."""
    some = population(targets, ZONES[:1])
    past = watched(some, changes(some, np.full(targets, 9.0)))
    made = plan(some, past, Terms(budget_per_day=per_week / 7), NOW)
    assert used <= 7 * made.requests_per_day <= per_week + 1e-6
    assert fullest_week(made.schedules) <= np.ceil(per_week)


@pytest.mark.parametrize(
    ("targets", "per_week", "used"), [(1, 0.95, 0.5), (1, 2.0, 2), (3, 4.6, 4)]
)
def test_budget_of_few_fetches_a_week_is_used(targets: int, per_week: float, used: float) -> None:
    some = population(targets, ZONES[:1])
    past = watched(some, changes(some, np.full(targets, 9.0)))
    terms, none = Terms(budget_per_day=per_week / 7), Schedules.none(targets)
    made = plan_feeds(some, past, np.full(targets, 5), terms, NOW, none)
    assert used <= 7 * made.requests_per_day <= per_week + 1e-6
    assert fullest_week(made.schedules) <= np.ceil(per_week)


@pytest.mark.parametrize("shortest", [2.0, 5.0, 24.0, 33.5])
def test_shortest_interval_leaves_room_for_all_visits(shortest: float) -> None:
    """Halving intervals until none can be halved again would leave out up to half of the visits."""
    some = replace(population(2, ZONES[3:4]), min_hours=np.full(2, shortest))
    past = watched(some, changes(some, np.full(2, 160.0)), every=1)
    made = plan(some, past, Terms(budget_per_day=48), NOW).schedules
    assert made.visits_per_week.tolist() == 2 * [168 // np.ceil(shortest)]
    for i in range(2):
        assert gaps(made[i]).min() >= shortest


def test_feeds_are_planned_if_their_longest_intervals_need_the_whole_budget() -> None:
    """Open hours by night make the longest interval of 36 hours need a visit every day."""
    some = replace(
        population(3, ZONES[:1]), max_hours=np.full(3, 36.0),
        open_hours=(np.arange(168) % 24 < 6)[None, :],
    )  # fmt: skip
    past = watched(some, changes(some, rates(3)), every=24)
    terms, none = Terms(budget_per_day=3.05), Schedules.none(3)
    made = plan_feeds(some, past, np.full(3, 20), terms, NOW, none)
    assert made.requests_per_day == pytest.approx(3)
    for i in range(3):
        assert gaps(made.schedules[i]).max() <= 36
