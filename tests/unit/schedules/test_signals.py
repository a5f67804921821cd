"""Pages that show changes of other pages: what they are worth, and how far they are trusted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.allocation.plan import plan
from schedules.allocation.signals import Coverage, signaled
from schedules.cost import Objective
from schedules.estimation.estimate import NODES, estimate
from schedules.evaluation.lists import Crawled, Lists, simulate_lists
from schedules.evaluation.pages import simulate
from schedules.evaluation.score import score
from schedules.evaluation.world import Span, World, even_population
from schedules.history import Floats, Histories, Ints, Times, offsets
from schedules.population import Population
from schedules.schedule import WEEK_HOURS
from schedules.terms import Terms

START = 470_000.0
WEEKS = 8
STOP = START + WEEKS * WEEK_HOURS
SPAN = Span(START, START + 2 * WEEK_HOURS, STOP)
PAGES, SOURCES = 240, 4
# Requests a day: a sixth of the pages.
BUDGET = 40.0
AIM = Objective()


def population(n: int, seed: int = 0) -> Population:
    rng = np.random.default_rng(seed)
    site = np.arange(n) * SOURCES // n
    return even_population(
        rng.integers(0, 2**63, n, dtype=np.uint64), site, np.ones(n), (1.0, 672.0), START, STOP
    )


def world(seed: int = 0) -> tuple[World, Ints]:
    """Return pages that change at rates from one in 20 weeks to one in two days."""
    rng = np.random.default_rng(seed)
    rates = np.geomspace(0.05, 4.0, PAGES)[rng.permutation(PAGES)]
    counts = rng.poisson(rates * WEEKS)
    at = [np.sort(rng.uniform(START, STOP, count)) for count in counts]
    changes = Times(offsets(counts), np.concatenate(at))
    pages = population(PAGES, seed)
    never = np.full(PAGES, np.nan)
    return World(pages, changes, never, np.full(PAGES, np.inf)), pages.site


def freshness(known: World, visits: Times) -> float:
    totals = score(
        known.changes, visits, known.population.site, known.ends, SPAN.split, STOP
    ).totals()
    return float(totals.by_page.freshness)


@cache
def crawled(recall: float, false: float = 0.0, fails: float = np.inf) -> tuple[World, Crawled]:
    known, source = world()
    rng = np.random.default_rng(1)
    lists = replace(Lists.drawn(known, source, 30, recall, rng), false=false, fails=fails)
    terms = Terms(budget_per_day=BUDGET)
    return known, simulate_lists(known, lists, terms, SPAN, rng, closed_loop=True)


def requests_per_day(result: Crawled) -> float:
    at = np.concatenate([result.visits.at, result.list_visits.at])
    return float((at >= SPAN.split).sum()) * 24 / (STOP - SPAN.split)


@pytest.fixture(scope="module")
def without_lists() -> float:
    known, _ = world()
    visits = simulate(known, Terms(budget_per_day=BUDGET), SPAN, closed_loop=True)
    return freshness(known, visits)


@pytest.mark.parametrize(("recall", "gain"), [(1.0, 0.05), (0.8, 0.03), (0.5, 0.008)])
def test_lists_make_copies_fresher_for_the_same_requests(
    without_lists: float, recall: float, gain: float
) -> None:
    known, result = crawled(recall)
    assert freshness(known, result.visits) >= without_lists + gain
    assert requests_per_day(result) <= 1.06 * BUDGET


def test_useless_lists_cost_little(without_lists: float) -> None:
    known, result = crawled(0.0)
    assert freshness(known, result.visits) >= without_lists - 0.02
    assert result.recall[-1].mean() <= 0.1


@pytest.mark.parametrize("recall", [0.5, 0.8])
def test_recall_is_learned_from_what_visits_find(recall: float) -> None:
    _, result = crawled(recall)
    assert result.recall[-1].mean() == pytest.approx(recall, abs=0.1)


def test_flags_without_changes_are_paid_from_the_budget() -> None:
    _, result = crawled(0.8, false=0.02)
    assert requests_per_day(result) <= 1.05 * BUDGET


def test_lists_that_fail_lose_their_trust(without_lists: float) -> None:
    failed_at = START + 4 * WEEK_HOURS
    known, result = crawled(0.9, fails=failed_at)
    assert result.recall[-1].mean() <= 0.15
    assert freshness(known, result.visits) >= without_lists - 0.01


def histories(rates: Floats) -> Histories:
    """Return four weeks of daily visits to pages with these changes a week."""
    rng = np.random.default_rng(2)
    days = np.arange(28)
    changed = [days[rng.random(28) < -np.expm1(-rate / 7)] for rate in rates]
    after = np.concatenate(changed) * 24.0 + START
    n = len(rates)
    first = offsets(np.array([len(each) for each in changed]))
    since, until = np.full(n, START), np.full(n, START + 28 * 24)
    return Histories(since, until, first, after, after + 24)


def covered(recall: float) -> Coverage:
    """Return one source, in the last row, that shows nine pages."""
    return Coverage(np.array([9]), np.array([0, 9]), np.arange(9), np.full(9, recall))


def test_items_are_polled_for_what_their_source_misses() -> None:
    estimates = estimate(population(10), histories(np.geomspace(0.5, 3, 10)))
    shows = signaled(estimates, covered(0.75), price=10.0, aim=AIM)
    before, after = estimates.all_rates.node, shows.estimates.all_rates.node
    assert after[:9] == pytest.approx(before[:9] / 4)
    assert shows.estimates.population.weight[9] == pytest.approx(0.75 * 9 + 1)
    # The nodes of the source have the mean of what it shows.
    means, weights = before.mean(axis=1), np.append(np.full(9, 0.75), 1)
    assert after[9].mean() == pytest.approx((means * weights).sum() / weights.sum())
    assert shows.estimates.profiles(slice(0, 10)).sum(axis=1) == pytest.approx(np.ones(10))


def test_flags_of_items_that_change_too_fast_are_ignored() -> None:
    rates = np.append(np.full(8, 1.0), [60.0, 1.0])
    estimates = estimate(population(10), histories(rates))
    shows = signaled(estimates, covered(0.9), price=100.0, aim=AIM)
    assert 8 not in shows.shown.item
    assert len(shows.shown.item) == 8
    assert shows.estimates.all_rates.node[8] == pytest.approx(estimates.all_rates.node[8])


def test_source_is_visited_for_all_of_its_items() -> None:
    past = histories(np.full(10, 1.0))
    terms, now = Terms(budget_per_day=3.0), START + 28 * 24
    alone = plan(population(10), past, terms, now)
    made = plan(population(10), past, terms, now, coverage=covered(0.95))
    visits = made.schedules.visits_per_week
    assert visits[9] > 3 * alone.schedules.visits_per_week[9]
    assert visits[:9].sum() < 0.5 * alone.schedules.visits_per_week[:9].sum()
    assert made.follows[:9].all()
    assert not made.follows[9]
    assert made.requests_per_day + made.flags_per_day <= 3.0 * 1.05
    assert made.stale[:9].mean() < alone.stale[:9].mean()
    # What is expected of the pages counts all of their changes.
    assert made.rate == pytest.approx(alone.rate)


def test_plan_without_any_source_is_the_same() -> None:
    past = histories(np.geomspace(0.5, 3, 10))
    terms, now = Terms(budget_per_day=3.0), START + 28 * 24
    alone = plan(population(10), past, terms, now)
    made = plan(population(10), past, terms, now, coverage=Coverage.none())
    assert made.schedules.same_as(alone.schedules).all()


def test_coverage_of_some_targets_has_their_rows() -> None:
    both = Coverage(np.array([3, 7]), np.array([0, 2, 4]), np.array([0, 1, 4, 5]), np.full(4, 0.5))
    some = both.of(np.array([1, 4, 6, 7]), 8)
    assert some.source.tolist() == [3]
    assert some.item.tolist() == [1]
    assert some.owner.tolist() == [0]


@given(
    weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=12),
    rates=st.lists(st.floats(0.01, 100), min_size=NODES, max_size=NODES),
)
@settings(deadline=None)
def test_nodes_of_a_source_keep_the_mean_rate(weights: list[float], rates: list[float]) -> None:
    n = len(weights)
    estimates = estimate(population(n + 1), histories(np.ones(n + 1)))
    node = np.sort(np.outer(np.arange(1, n + 2), rates), axis=1)
    known = replace(
        estimates,
        all_rates=estimates.all_rates._replace(node=node, mean=node.mean(axis=1)),
        population=replace(estimates.population, weight=np.append(weights, 1.0)),
    )
    only = Coverage(np.array([n]), np.array([0, n]), np.arange(n), np.full(n, 0.5))
    shows = signaled(known, only, price=1e-9, aim=AIM)
    own = np.append(np.array(weights) / 2, 1.0)
    expected = (node.mean(axis=1) * own).sum() / own.sum()
    found = shows.estimates.all_rates.node[n]
    assert found.mean() == pytest.approx(expected)
    assert (np.diff(found) >= -1e-9).all()
