"""The demand of sites at a grid of prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from schedules.allocation.optimal import demand, price_grid, sampled_by_site
from schedules.allocation.plan import Plan, plan
from schedules.estimation.estimate import estimate
from schedules.history import Histories
from schedules.population import Population, min_per_day
from schedules.terms import Terms
from tests.unit.populations import NOW, mixed

N = 240
AIM = Terms().aim


def histories(n: int, seed: int = 3) -> Histories:
    """Return five weeks with changes at rates from none to several a day."""
    rng = np.random.default_rng(seed)
    count = rng.integers(0, 60, n) * (rng.random(n) < 0.9)
    first = np.concatenate([[0], np.cumsum(count)])
    begin = NOW - 5 * 168
    at = np.concatenate([np.sort(rng.uniform(begin + 1, NOW - 1, k)) for k in count])
    return Histories(np.full(n, begin), np.full(n, NOW), first, at - 0.5, at)


def planned(population: Population, budget: float) -> Plan:
    """Return the plan with a budget."""
    return plan(population, histories(len(population)), Terms(budget_per_day=budget), NOW)


@pytest.fixture(scope="module")
def population() -> Population:
    """Return targets of six sites, some with closed hours, weights and costs."""
    return mixed(N)


def test_curve_matches_results_of_plans(population: Population) -> None:
    estimates = estimate(population, histories(N))
    curve = demand(estimates, np.ones(N), AIM, price_grid(estimates, AIM, 64))
    per_day = curve.requests_per_day.sum(axis=1)
    assert per_day[0] == pytest.approx(min_per_day(population))
    for budget in (0.5 * N, 1.0 * N, 3.0 * N):
        result = planned(population, budget)
        expected = 1 - np.interp(budget, per_day, curve.stale.sum(axis=1)) / N
        age = np.interp(budget, per_day, curve.age_days.sum(axis=1)) / N
        assert 1 - result.stale.mean() == pytest.approx(expected, abs=0.02)
        assert result.age_days.mean() == pytest.approx(age, rel=0.15, abs=0.01)
        assert result.price == pytest.approx(
            np.interp(budget, per_day[1:], curve.price[1:]), rel=0.25
        )


@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
def test_curve_does_not_depend_on_the_unit_of_weights(population: Population, unit: float) -> None:
    usual = estimate(population, histories(N))
    scaled = estimate(replace(population, weight=population.weight * unit), histories(N))
    prices, more = price_grid(usual, AIM, 24), price_grid(scaled, AIM, 24)
    np.testing.assert_allclose(more, prices * unit)
    curve, other = (
        demand(estimates, np.ones(N), AIM, grid)
        for estimates, grid in ((usual, prices), (scaled, more))
    )
    np.testing.assert_allclose(other.requests_per_day, curve.requests_per_day)
    np.testing.assert_allclose(other.stale, curve.stale)


def test_more_requests_never_increase_staleness(population: Population) -> None:
    estimates = estimate(population, histories(N))
    curve = demand(estimates, np.ones(N), AIM, price_grid(estimates, AIM, 24))
    assert curve.price[0] == np.inf
    assert (np.diff(curve.price) < 0).all()
    assert (np.diff(curve.requests_per_day, axis=0) >= -1e-9).all()
    assert (np.diff(curve.requests_per_day.sum(axis=1)) > 0).all()
    # The objective mixes staleness, age and delay, so that one of them may grow a little.
    assert (np.diff(curve.stale, axis=0) <= 0.05).all()
    assert (np.diff(curve.age_days, axis=0) <= 0.05).all()


def test_sites_stay_within_daily_caps(population: Population) -> None:
    estimates = estimate(population, histories(N))
    prices = price_grid(estimates, AIM, 24)
    free = demand(estimates, np.ones(N), AIM, prices)
    caps = free.requests_per_day[12]
    capped = np.isin(np.arange(population.sites), (2, 3))
    limits = np.where(capped, caps, np.inf)
    limited = estimate(replace(population, site_day=limits), histories(N))
    curve = demand(limited, np.ones(N), AIM, prices)
    assert curve.requests_per_day.max(axis=0)[2:4] == pytest.approx(caps[2:4])
    assert curve.stale[-1, 2:4] == pytest.approx(free.stale[12, 2:4])
    assert np.allclose(curve.stale[:, ~capped], free.stale[:, ~capped])


def test_sample_represents_every_site() -> None:
    rng = np.random.default_rng(5)
    site = np.repeat([0, 1, 2, 4], [9_000, 900, 90, 3])
    rng.shuffle(site)
    key = rng.integers(0, 2**63, len(site)).astype(np.uint64)
    rows, scale = sampled_by_site(key, site, 1000, 20)
    counts = np.bincount(site)
    taken = np.bincount(site[rows], minlength=5)
    assert taken[:3].tolist() == [901, 91, 20]
    assert taken[3:].tolist() == [0, 3]
    assert np.bincount(site[rows], scale) == pytest.approx(counts)
    everything, ones = sampled_by_site(key, site, 10_000, 20)
    assert len(everything) == len(site)
    assert (ones == 1).all()


def test_sample_does_not_depend_on_order() -> None:
    rng = np.random.default_rng(6)
    key = rng.integers(0, 2**63, 5000).astype(np.uint64)
    site = rng.integers(0, 7, 5000)
    order = rng.permutation(5000)
    rows, _ = sampled_by_site(key, site, 500, 10)
    again, _ = sampled_by_site(key[order], site[order], 500, 10)
    assert set(key[rows].tolist()) == set(key[order][again].tolist())
