"""Simulations: a policy's inputs, its visits, and the effects of caps and of pages that end."""

from __future__ import annotations

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.evaluation.pages import CappedDispatcher, daily, polled, simulate
from schedules.evaluation.world import Span, World, never, seen, while_there
from schedules.history import Floats, Histories, Times
from schedules.population import Population, walls_of
from schedules.terms import POLICIES, BudgetTooSmall, Terms
from tests.unit.populations import polls

MONDAY = 2820 * 168 + 96.0  # 2024-01-22 00:00 UTC, the start of a cycle of weeks
WEEK, DAY = 168.0, 24.0
SPAN = Span(MONDAY - 3 * WEEK, MONDAY, MONDAY + 4 * WEEK)
UTC = ZoneInfo("UTC")


def population_of(n: int, zone: ZoneInfo = UTC, longest: float = 672.0) -> Population:
    """Return targets that alternate between two sites."""
    return Population(
        key=np.frombuffer(np.random.default_rng(n).bytes(8 * n), np.uint64),
        site=np.arange(n) % 2,
        group=np.arange(n) % 2,
        parent=np.arange(2),
        zones=(zone, UTC),
        open_hours=np.ones((2, 168), np.bool_),
        weight=np.ones(n),
        cost=np.ones(n),
        min_hours=np.ones(n),
        max_hours=np.full(n, longest),
        site_day=np.full(2, np.inf),
        walls=walls_of(tuple(dict.fromkeys((zone, UTC))), SPAN.start, MONDAY + 60 * WEEK),
    )


def world_of(changes: list[list[float]]) -> World:
    """Return targets that change at these hours after the split."""
    n = len(changes)
    first = np.cumsum([0, *map(len, changes)])
    at = MONDAY + np.array([hour for hours in changes for hour in hours], float)
    nan, inf = np.full(n, np.nan), np.full(n, np.inf)
    return World(population_of(n), Times(first, at), nan, inf)


def lively(n: int = 30, seed: int = 5) -> World:
    """Return targets with very different rates, from no changes to many changes a day."""
    random = np.random.default_rng(seed)
    means = np.geomspace(0.5, 300, n)
    changes = [
        np.sort(np.round(random.uniform(-3 * WEEK, 4 * WEEK, random.poisson(mean)) * 60) / 60)
        for mean in means
    ]
    return world_of([list(hours) for hours in changes])


def visits_of(visits: Times, i: int) -> Floats:
    """Return the visits of a target in hours after the split."""
    return visits.at[visits.first[i] : visits.first[i + 1]] - MONDAY


def by_day(visits: Times) -> Floats:
    """Return the number of visits on each UTC day."""
    return np.bincount(((visits.at - SPAN.start) // DAY).astype(int))


def owners(visits: Times) -> Floats:
    return np.repeat(np.arange(len(visits.first) - 1), np.diff(visits.first))


# Changes that polls observe


@pytest.mark.parametrize("seed", range(5))
def test_polled_histories_match_single_observations(seed: int) -> None:
    world = lively(12, seed)
    random = np.random.default_rng(seed)
    world = replace(
        world,
        began=np.where(random.random(12) < 0.5, MONDAY - random.uniform(0, 4 * WEEK, 12), np.nan),
        ends=np.where(random.random(12) < 0.5, MONDAY - random.uniform(0, 3 * WEEK, 12), np.inf),
    )
    visits = while_there(world, polls(12, SPAN.start, SPAN.split, 1 / 3))
    expected = seen(never(12), visits, world.changes)
    observed = polled(world, SPAN.start, SPAN.split)
    for name in Histories.__dataclass_fields__:
        assert getattr(observed, name) == pytest.approx(getattr(expected, name), nan_ok=True), name


def test_poll_observes_change_at_same_time() -> None:
    world = world_of([[-1.0, -1 / 3, -1e-9, 0.0]])
    observed = polled(world, SPAN.start, SPAN.split)
    assert observed.by - MONDAY == pytest.approx([-1, -1 / 3, 0])
    assert observed.after - MONDAY == pytest.approx([-4 / 3, -2 / 3, -1 / 3])


# Inputs of a policy


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("closed_loop", [False, True], ids=["open", "closed"])
def test_future_changes_do_not_affect_visits(policy: str, closed_loop: bool) -> None:
    world = lively()
    until = MONDAY + WEEK
    past = world.changes.at <= until
    first = np.concatenate([[0], np.cumsum(past)])[world.changes.first]
    other = replace(world, changes=Times(first, world.changes.at[past]))
    visits = [
        simulate(each, Terms(policy, 20), SPAN, closed_loop=closed_loop) for each in (world, other)
    ]
    before = [times.at[times.at <= until].tolist() for times in visits]
    assert before[0] == before[1]
    assert len(before[0]) > 50


def test_closed_loop_visits_follow_observed_changes() -> None:
    world = lively()
    still = replace(world, changes=Times(np.zeros(31, np.int64), np.empty(0)))
    counts = [
        np.diff(simulate(each, Terms("optimal", 20), SPAN, closed_loop=True).first)
        for each in (world, still)
    ]
    assert counts[0][-10:].sum() > 2 * counts[0][:10].sum()
    assert counts[1][-10:].sum() < 1.2 * counts[1][:10].sum()


@pytest.mark.parametrize("policy", POLICIES)
def test_simulation_does_not_depend_on_target_order(policy: str) -> None:
    world, order = lively(), np.random.default_rng(1).permutation(30)
    pieces = [world.changes.at[world.changes.first[i] : world.changes.first[i + 1]] for i in order]
    other = replace(
        world,
        population=world.population.of(order),
        changes=Times(np.cumsum([0, *map(len, pieces)]), np.concatenate(pieces)),
    )
    terms = Terms(policy, 20, daily_cap=25)
    one, two = simulate(world, terms, SPAN), simulate(other, terms, SPAN)
    for place, i in enumerate(order):
        assert visits_of(two, place).tolist() == visits_of(one, i).tolist()


# Times of visits


@pytest.mark.parametrize("policy", POLICIES)
def test_open_loop_visits_lie_between_split_and_end(policy: str) -> None:
    visits = simulate(lively(), Terms(policy, 20), SPAN)
    assert visits.at.min() >= SPAN.split
    assert visits.at.max() <= SPAN.stop
    assert all((np.diff(visits_of(visits, i)) > 0).all() for i in range(30))
    assert (np.diff(visits.first) > 0).all()


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "adaptive"])
def test_closed_loop_starts_with_a_week_of_daily_visits(policy: str) -> None:
    visits = simulate(lively(), Terms(policy, 20, daily_cap=25), SPAN, closed_loop=True)
    for i in range(30):
        week = visits_of(visits, i) + 3 * WEEK
        week = week[week < WEEK]
        assert (week // DAY).tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert len(set(week % DAY)) > 2
    hours = np.bincount((visits.at[visits.at < SPAN.start + WEEK] % DAY).astype(int), minlength=24)
    assert hours.min() > 0


def test_open_loop_classes_do_not_change() -> None:
    world = lively()
    shifted = Span(SPAN.start, SPAN.split, SPAN.split + 8 * WEEK)
    visits = simulate(world, Terms("groups"), shifted)
    for i in range(30):
        own = visits_of(visits, i)
        early, late = own[own < 4 * WEEK], own[own >= 4 * WEEK]
        assert (late - 4 * WEEK).tolist() == early.tolist()


def test_adaptive_intervals_halve_or_grow_by_a_fifth() -> None:
    visits = visits_of(simulate(world_of([[]]), Terms("adaptive"), SPAN), 0)
    gaps = np.diff(visits)
    assert gaps[0] == pytest.approx(24 * 1.2)
    assert gaps[1:] / gaps[:-1] == pytest.approx([1.2] * (len(gaps) - 1))
    frequently_changing = world_of([[hour / 2 for hour in range(-1000, 1300)]])
    gaps = np.diff(visits_of(simulate(frequently_changing, Terms("adaptive"), SPAN), 0))
    assert gaps[:6] == pytest.approx([12, 6, 3, 1.5, 1, 1])


def test_adaptive_intervals_are_at_most_four_weeks() -> None:
    long = Span(SPAN.start, SPAN.split, SPAN.split + 50 * WEEK)
    gaps = np.diff(visits_of(simulate(world_of([[]]), Terms("adaptive"), long), 0))
    assert gaps.max() == pytest.approx(28 * DAY)


@pytest.mark.parametrize("policy", ["optimal", "freshness", "age"])
def test_replans_keep_longest_interval(policy: str) -> None:
    world = lively()
    world = replace(world, population=population_of(30, longest=14 * DAY))
    visits = simulate(world, Terms(policy, 6), SPAN, replan_hours=2 * DAY)
    for i in range(30):
        times = np.concatenate([[0.0], visits_of(visits, i), [4 * WEEK]])
        assert np.diff(times).max() <= 14 * DAY + 1


def test_slots_follow_site_time_zone() -> None:
    world = world_of([[hour + 0.5 for hour in range(-480, 640, 24)]] * 2)
    tokyo = replace(world, population=population_of(2, ZoneInfo("Asia/Tokyo")))
    visits = simulate(tokyo, Terms("groups"), SPAN)
    assert set((visits_of(visits, 0) + 9) % 24) <= {0, 12}
    assert set(visits_of(visits, 1) % 24) <= {0, 12}


# Pages that appear and disappear


@pytest.mark.parametrize("policy", POLICIES)
def test_ended_page_is_not_visited_again(policy: str) -> None:
    world = lively()
    ends = np.full(30, np.inf)
    ends[-10:] = MONDAY + 1.4 * WEEK
    visits = simulate(replace(world, ends=ends), Terms(policy, 20), SPAN)
    for i in range(20, 30):
        assert visits_of(visits, i).max(initial=0) <= 1.4 * WEEK


def test_budget_of_ended_page_goes_to_others() -> None:
    world = lively()
    ends = np.full(30, np.inf)
    ends[-10:] = MONDAY + 0.9 * WEEK
    visits = simulate(replace(world, ends=ends), Terms("uniform", 20), SPAN)
    weeks = np.bincount(((visits.at - MONDAY) // WEEK).astype(int))
    assert weeks[2:] == pytest.approx([140, 140], abs=6)
    assert (owners(visits)[visits.at > MONDAY + WEEK] < 20).all()


def test_new_page_is_visited_after_next_replan() -> None:
    world = lively()
    began = np.full(30, np.nan)
    began[0] = MONDAY + 10
    visits = visits_of(simulate(replace(world, began=began), Terms("optimal", 20), SPAN), 0)
    assert visits[0] == WEEK


def test_no_visits_after_all_pages_end() -> None:
    world = replace(lively(), ends=np.full(30, MONDAY + WEEK))
    visits = simulate(world, Terms("optimal", 20), SPAN)
    assert visits.at.max() <= MONDAY + WEEK


def test_daily_visits_use_one_hour_per_page() -> None:
    visits = daily(lively(), SPAN.split, SPAN.stop)
    assert (np.diff(visits.first) == 28).all()
    assert len(np.unique(visits.at % DAY)) > 5


# Budgets and caps


def test_rejects_budget_below_minimum() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        simulate(lively(), Terms("optimal", 1), SPAN)
    assert caught.value.min_per_day == pytest.approx(30 / 28)


@pytest.mark.parametrize("policy", POLICIES)
def test_days_stay_within_daily_cap(policy: str) -> None:
    visits = simulate(lively(), Terms(policy, 20, daily_cap=20), SPAN)
    assert by_day(visits).max() == 20
    assert (np.diff(visits.first) > 0).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_unreached_cap_changes_nothing(policy: str) -> None:
    world = lively()
    free, capped = (
        simulate(world, Terms(policy, 20, daily_cap=cap), SPAN) for cap in (None, 10_000)
    )
    assert capped.at.tolist() == free.at.tolist()


def test_capped_visit_goes_first_on_next_day() -> None:
    # Frequency classes visit these pages at noon on Mondays, Wednesdays, and Fridays.
    world = world_of([list(range(-500, 600, 56))] * 5)
    visits = simulate(world, Terms("groups", daily_cap=3), SPAN)
    assert by_day(visits)[21:26].tolist() == [3, 2, 3, 2, 3]
    first = visits.at < MONDAY + 2 * DAY
    assert sorted(visits.at[first] - MONDAY) == [12, 12, 12, 24, 24]
    assert sorted(owners(visits)[first]) == [0, 1, 2, 3, 4]


def test_capped_dispatcher_prefers_value_and_counts_by_day() -> None:
    dispatcher = CappedDispatcher(3)
    ones = np.ones(2)
    assert dispatcher.choose(0, ones, ones, ones).tolist() == [0, 1]
    value = np.array([1.0, 3.0, 2.0])
    assert dispatcher.choose(5, value, np.ones(3), np.ones(3)).tolist() == [1]
    assert dispatcher.choose(23, value, np.ones(3), np.ones(3)).tolist() == []
    assert dispatcher.choose(24, value, np.ones(3), np.ones(3)).tolist() == [0, 1, 2]
