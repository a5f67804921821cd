"""Even intervals: the optimality condition of each rule, the budget, and the limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaincinv

from schedules.history import Floats
from schedules.terms import EVEN, visits_per_week

RATE = np.geomspace(0.01, 100, 60)
WEIGHT = np.tile([0.5, 1.0, 4.0], 20)
LEAST, MOST = np.full(60, 1e-9), np.full(60, 1e9)
BUDGET = 120.0


def visits(rule: str, **other: Floats | float) -> Floats:
    given = {
        "rate": RATE, "weight": WEIGHT, "budget": BUDGET, "least": LEAST, "most": MOST
    } | other  # fmt: skip
    return visits_per_week(rule, **given)  # type: ignore[arg-type]


def gain(r: Floats) -> Floats:
    return -np.expm1(-r) - r * np.exp(-r)


def spread_of(values: Floats) -> float:
    return float(values.max() / values.min() - 1)


@pytest.mark.parametrize("rule", EVEN)
@pytest.mark.parametrize("budget", [30.0, 120.0, 5000.0])
def test_the_budget_is_spent_and_not_exceeded(rule: str, budget: float) -> None:
    least, most = np.full(60, 0.25), np.full(60, 168.0)
    spent = visits(rule, budget=budget, least=least, most=most).sum()
    assert spent <= budget
    assert spent == pytest.approx(budget, rel=1e-6)


@pytest.mark.parametrize("rule", EVEN)
def test_rates_stay_within_limits(rule: str) -> None:
    least, most = np.linspace(0.25, 2, 60), np.linspace(3, 2, 60)
    given = visits(rule, least=least, most=most)
    assert np.all((given >= least) & (given <= most))
    np.testing.assert_allclose(visits(rule, budget=least.sum(), least=least, most=most), least)
    np.testing.assert_allclose(visits(rule, budget=1e6, least=least, most=most), most)


def test_freshness_rule_equalizes_marginal_gains() -> None:
    """Check g(rate / visits) = price * rate / weight; pages where that exceeds 1 get no visits."""
    given = visits("freshness")
    some = given > 1e-6
    assert 10 < some.sum() < 60
    price = (gain(RATE / given) * WEIGHT / RATE)[some]
    assert spread_of(price) < 1e-4
    assert np.all(price.mean() * RATE[~some] >= WEIGHT[~some] * (1 - 1e-3))
    r = gammaincinv(2, price.mean() * RATE[some] / WEIGHT[some])
    np.testing.assert_allclose(given[some], RATE[some] / r, rtol=1e-3)


def test_age_rule_equalizes_marginal_gains() -> None:
    given = visits("age")
    r = RATE / given
    assert spread_of((r**2 / 2 - gain(r)) / RATE**2 * WEIGHT) < 1e-3
    order = np.argsort(RATE[1::3])
    assert np.all(np.diff(given[1::3][order]) > 0)


def test_harmonic_rule_equalizes_marginal_gains() -> None:
    """Check Kolobov et al. 2019, who maximize the importance-weighted log(1 + visits / rate)."""
    given = visits("harmonic")
    price = WEIGHT * RATE / (given * (given + RATE))
    assert spread_of(price) < 1e-6


def test_square_root_and_uniform_rules() -> None:
    assert spread_of(visits("sqrt") / np.sqrt(RATE * WEIGHT)) < 1e-9
    assert spread_of(visits("uniform")) < 1e-9


@pytest.mark.parametrize("rule", ["freshness", "age"])
def test_moving_visits_does_not_improve_rule(rule: str) -> None:
    def cost(given: Floats) -> float:
        r = RATE / given
        stale = 1 + np.expm1(-r) / r
        aged = (0.5 - stale / r) / given
        return float(WEIGHT @ (stale if rule == "freshness" else aged))

    given = visits(rule, least=np.full(60, 0.01))
    rng = np.random.default_rng(0)
    for _ in range(200):
        one, other = rng.choice(60, 2, replace=False)
        moved = given.copy()
        step = min(0.05, given[one] - 0.01)
        moved[one] -= step
        moved[other] += step
        assert cost(moved) >= cost(given) - 1e-6


@pytest.mark.parametrize("rule", EVEN)
def test_extreme_rates_get_finite_visits(rule: str) -> None:
    given = visits(rule, rate=np.array([0.0, 1e-9, 1e4]), weight=np.ones(3), budget=10.0,
                   least=np.full(3, 0.25), most=np.full(3, 168.0))  # fmt: skip
    assert np.isfinite(given).all()
    # Under `freshness`, pages that change constantly get only their minimum.
    assert given.sum() <= 10
    assert given.sum() == pytest.approx(0.75 if rule == "freshness" else 10)
