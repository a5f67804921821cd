"""Invariants of the cost of an interval, and of slots placed at the lowest cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedules.cost import (
    Costs,
    Curves,
    Objective,
    costs_of,
    curves,
    even_cost,
    interval_cost,
    split_costs,
    weeks_costs,
    whole_cost,
)
from schedules.history import Floats
from schedules.placement.placement import (
    MAX_WEEKS,
    RARE,
    Limits,
    allows,
    best_gain,
    best_single,
    cycle_cost,
    insert,
    options,
    refine,
    tilted,
)
from schedules.schedule import WEEK_HOURS

STALE, AGE, DELAY = Objective(1.0, 0.0, 0.0), Objective(0.0, 1.0, 0.0), Objective(0.0, 0.0, 1.0)
AIMS = st.sampled_from([Objective(), STALE, AGE, Objective(0.5, 0.5, 0.5)])
RATES = st.one_of(st.sampled_from([0.005, 1.0, 36.0, 168.0, 300.0]), st.floats(0.005, 300.0))
FREE = np.zeros(WEEK_HOURS)


@dataclass(frozen=True)
class Target:
    """A target with few parameters; a higher `sharp` concentrates changes in fewer hours."""

    seed: int
    sharp: float
    rate: tuple[float, ...]

    @property
    def parts(self) -> tuple[Floats, Floats, Floats]:
        """Return the profile, the rates, and their weights."""
        rng = np.random.default_rng(self.seed)
        profile = rng.gamma(1 / self.sharp, 1.0, WEEK_HOURS) + 1e-4
        weight = rng.random(len(self.rate)) + 0.1
        return profile / profile.sum(), np.array(self.rate), weight / weight.sum()

    @property
    def curves(self) -> Curves:
        return curves(*self.parts)

    def costs(self, aim: Objective) -> Costs:
        """Return the costs for an objective."""
        return costs_of(self.curves, aim)


@dataclass(frozen=True)
class Bound:
    """Limits with few parameters: closed hours a day from `begin` on, and random surcharges."""

    seed: int
    closed: int
    begin: int
    least: float
    most: float
    slope: float

    @property
    def limits(self) -> Limits:
        surcharge = np.random.default_rng(self.seed).choice([0.0, 0.1, 2.0], WEEK_HOURS)
        surcharge[(np.arange(WEEK_HOURS) - self.begin) % 24 < self.closed] = np.inf
        tilt = tilted(self.seed % WEEK_HOURS, self.slope)
        return Limits(surcharge, tilt, self.least, self.most)


TARGETS = st.builds(
    Target,
    st.integers(0, 1000),
    st.sampled_from([0.01, 2.0, 20.0]),
    st.lists(RATES, min_size=1, max_size=3).map(tuple),
)
# All limits can be met, because the longest interval is longer than a night.
LIMITS = st.builds(
    Bound,
    st.integers(0, 1000),
    st.integers(0, 10),
    st.integers(0, 23),
    st.sampled_from([1.0, 1.5, 3.0, 12.0]),
    st.sampled_from([36.0, 60.5, 168.0, 400.0, 672.0]),
    st.sampled_from([0.0, 1e-4]),
)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[int, int]:
    a = draw(st.integers(0, 2 * WEEK_HOURS - 1))
    return a, draw(st.integers(a + 1, 2 * WEEK_HOURS))


@st.composite
def week_bounds(draw: st.DrawFn) -> tuple[int, int]:
    a = draw(st.integers(0, WEEK_HOURS - 1))
    return a, a + draw(st.integers(1, WEEK_HOURS))


def integrated(target: Target, a: int, n: int) -> tuple[float, float]:
    """Return staleness in hours and age in days from `a` to `n`, by Gaussian quadrature."""
    profile, rate, weight = target.parts
    point, share = np.polynomial.legendre.leggauss(24)
    within, share = (point + 1) / 2, share / 2
    hours = np.arange(a, n)
    mass = np.concatenate([[0.0], np.cumsum(profile[hours % WEEK_HOURS])])
    passed = mass[:-1, None] + within * profile[hours % WEEK_HOURS, None]
    stale = -np.expm1(-rate * passed[..., None]) @ weight
    left = n - (hours[:, None] + within)
    return float((stale @ share).sum()), float(((left * stale) @ share).sum() / 24)


@given(TARGETS, bounds())
def test_interval_cost_matches_integration(target: Target, bounds: tuple[int, int]) -> None:
    c, (a, n) = target.curves, bounds
    stale, age = integrated(target, a, n)
    assert interval_cost(c, STALE, a, n) == pytest.approx(stale, rel=1e-5, abs=1e-9)
    assert interval_cost(c, AGE, a, n) == pytest.approx(age, rel=1e-4, abs=1e-6)


@given(TARGETS, st.integers(0, 167), st.integers(1, MAX_WEEKS * WEEK_HOURS))
def test_cost_of_weeks_matches_integration(target: Target, a: int, hours: int) -> None:
    c = target.curves
    stale, age = integrated(target, a, a + hours)
    assert interval_cost(c, STALE, a, a + hours) == pytest.approx(stale, rel=1e-5, abs=1e-9)
    assert interval_cost(c, AGE, a, a + hours) == pytest.approx(age, rel=1e-4, abs=1e-6)


@given(TARGETS, st.integers(0, 167), st.integers(1, MAX_WEEKS * WEEK_HOURS))
def test_delay_cost_is_sum_of_hourly_waits(target: Target, a: int, hours: int) -> None:
    profile, rate, weight = target.parts
    at = np.arange(a, a + hours)
    expected = (rate @ weight) * profile[at % WEEK_HOURS] @ (a + hours - at - 0.5) / 24
    cost = interval_cost(target.curves, DELAY, a, a + hours)
    assert cost == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(TARGETS, AIMS, week_bounds())
def test_whole_cost_matches_interval_cost(
    target: Target, aim: Objective, bounds: tuple[int, int]
) -> None:
    cost = interval_cost(target.curves, aim, *bounds)
    assert whole_cost(target.costs(aim), *bounds) == pytest.approx(cost, rel=1e-6, abs=1e-6)


@given(st.floats(0.005, 300.0), bounds())
def test_even_profile_matches_known_formula(rate: float, bounds: tuple[int, int]) -> None:
    """Check Cho and Garcia-Molina 2003: the freshness of an interval is (1 - e^-x) / x."""
    a, n = bounds
    x = rate * (n - a) / WEEK_HOURS
    c = curves(np.full(WEEK_HOURS, 1 / WEEK_HOURS), np.array([rate]), np.ones(1))
    fresh = 1 - interval_cost(c, STALE, a, n) / (n - a)
    assert fresh == pytest.approx(-np.expm1(-x) / x, abs=1e-7)


@given(st.lists(RATES, min_size=1, max_size=3), AIMS, st.sampled_from([1, 2, 3, 4, 7, 21, 168]))
def test_even_cost_matches_slots_of_an_even_profile(
    rate: list[float], aim: Objective, visits: int
) -> None:
    weight, hours = np.full(len(rate), 1 / len(rate)), WEEK_HOURS // visits
    c = curves(np.full(WEEK_HOURS, 1 / WEEK_HOURS), np.array(rate), weight)
    expected = visits * interval_cost(c, aim, 0, hours)
    cost = even_cost(np.array(rate), weight, aim, float(visits))
    assert cost == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(TARGETS, AIMS, week_bounds(), st.data())
def test_additional_visit_never_raises_cost(
    target: Target, aim: Objective, bounds: tuple[int, int], data: Any
) -> None:
    c = target.curves
    a, n = bounds
    assume(n - a > 1)
    z = data.draw(st.integers(a + 1, n - 1))
    whole = interval_cost(c, aim, a, n)
    parted = interval_cost(c, aim, a, z) + interval_cost(c, aim, z, n)
    assert parted <= whole + 1e-6
    split = split_costs(target.costs(aim), a, n, z, z)[0]
    assert split == pytest.approx(parted, rel=1e-6, abs=1e-6)


@given(TARGETS, bounds())
def test_staleness_is_at_most_the_interval(target: Target, bounds: tuple[int, int]) -> None:
    c = target.curves
    a, n = bounds
    assert -1e-6 <= interval_cost(c, STALE, a, n) <= n - a + 1e-6
    assert -1e-6 <= interval_cost(c, AGE, a, n) <= (n - a) ** 2 / 48 + 1e-6


@given(TARGETS, AIMS, st.integers(1, MAX_WEEKS))
def test_whole_weeks_match_long_intervals(target: Target, aim: Objective, weeks: int) -> None:
    c = target.curves
    expected = [interval_cost(c, aim, z, z + weeks * WEEK_HOURS) for z in range(WEEK_HOURS)]
    np.testing.assert_allclose(weeks_costs(target.costs(aim), weeks), expected, 1e-6, 1e-6)


@given(TARGETS, AIMS, LIMITS, st.integers(1, MAX_WEEKS))
def test_single_visit_has_lowest_cost(
    target: Target, aim: Objective, bound: Bound, weeks: int
) -> None:
    c = target.costs(aim)
    limits = bound.limits._replace(tilt=FREE)
    cost = (weeks_costs(c, weeks) + limits.surcharge) / weeks
    best_cost, where = best_single(c, limits, weeks)
    assert best_cost == cost[where] == cost.min()


@given(TARGETS, AIMS, LIMITS, week_bounds())
def test_best_split_has_highest_gain(
    target: Target, aim: Objective, bound: Bound, bounds: tuple[int, int]
) -> None:
    c = target.costs(aim)
    a, n = bounds
    limits = bound.limits._replace(tilt=FREE, max_hours=672.0)
    least = int(np.ceil(limits.min_hours))
    saved = {
        z: whole_cost(c, a, n) - split_costs(c, a, n, z, z)[0] - limits.surcharge[z % 168]
        for z in range(a + least, n - least + 1)
        if np.isfinite(limits.surcharge[z % 168])
    }
    most, where = best_gain(c, limits, a, n)
    if not saved:
        assert where == -1
    else:
        assert most == pytest.approx(max(saved.values()), abs=1e-6)
        assert saved[where] == pytest.approx(most, abs=1e-6)


@given(TARGETS, AIMS, LIMITS, st.sampled_from([0.05, 1.0, 10.0]))
def test_inserted_slots_are_open_and_within_limits(
    target: Target, aim: Objective, bound: Bound, least: float
) -> None:
    c = target.costs(aim)
    limits = bound.limits
    _, first = best_single(c, limits, 1)
    saved, order, needed, _ = insert(c, limits, first, least)
    slots = np.sort(order)
    assert len(set(order.tolist())) == len(order) == len(saved) + 1
    assert np.all(np.isfinite(limits.surcharge[slots]))
    wait = np.diff([*slots, slots[0] + WEEK_HOURS])
    assert wait.max() <= limits.max_hours
    assert len(slots) == 1 or wait.min() >= limits.min_hours
    assert np.all(saved[needed - 1 :] > least)


@given(TARGETS, AIMS, LIMITS, st.sampled_from([0.05, 1.0, 10.0]))
def test_options_are_convex_with_correct_values(
    target: Target, aim: Objective, bound: Bound, least: float
) -> None:
    c = target.curves
    limits = bound.limits
    limits = limits._replace(surcharge=np.where(np.isfinite(limits.surcharge), 0.0, np.inf))
    choice = options(target.costs(aim), limits, least)
    assert np.all(np.diff(choice.visits) > 0)
    assert choice.value[0] == np.inf
    assert np.all(np.diff(choice.value[1:]) <= 0)
    assert np.all(choice.value > 0)
    cost = []
    for option in choice.option:
        rare = option < RARE
        weeks = MAX_WEEKS - int(option) if rare else 1
        slots = choice.rare[option : option + 1] if rare else choice.slots[: option - RARE + 1]
        assert allows(limits, weeks, np.sort(slots))
        cost.append(cycle_cost(c, aim, weeks, np.sort(slots)))
    saved = -np.diff(cost) / np.diff(choice.visits)
    np.testing.assert_allclose(saved, choice.value[1:], rtol=1e-4, atol=1e-4)


@given(TARGETS, AIMS, LIMITS, st.sampled_from([0.3, 3.0]))
def test_refinement_never_raises_cost(
    target: Target, aim: Objective, bound: Bound, least: float
) -> None:
    c, costs = target.curves, target.costs(aim)
    limits = bound.limits
    _, first = best_single(costs, limits, 1)
    order = insert(costs, limits, first, least)[1]
    before = np.sort(order)
    after = refine(costs, limits, order)
    assert len(set(after.tolist())) == len(before)
    assert np.all(np.diff(after) > 0)
    if len(after) > 1:
        assert allows(limits, 1, after) or not allows(limits, 1, before)
    was, now = (cycle_cost(c, aim, 1, s) + limits.surcharge[s].sum() for s in (before, after))
    tilts = len(before) * WEEK_HOURS * bound.slope
    assert now <= was + tilts + 1e-6
