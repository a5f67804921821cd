"""Invariants of allocation: within the budget, highest value first, and independent of order."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from schedules.allocation.allocate import Allocation, Steps, allocate, least_visits
from schedules.history import Floats

FIRST = st.sampled_from([0.25, 1 / 3, 0.5, 1.0, 4.0])
# Few different values, so that many are equal.
VALUES = st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0, 8.0]), max_size=5, unique=True)
SHARES = st.floats(0.0, 1.2)


@st.composite
def markets(draw: st.DrawFn) -> tuple[Steps, np.ndarray]:
    """Draw the steps of a few targets, and their keys."""
    rows = [
        (draw(FIRST), sorted(draw(VALUES), reverse=True)) for _ in range(draw(st.integers(1, 8)))
    ]
    visits, value, option = [], [], []
    for least, values in rows:
        pace = draw(st.sampled_from([0.5, 1.0, 2.0]))
        visits += [least + pace * i for i in range(len(values) + 1)]
        value += [np.inf, *values]
        option += range(len(values) + 1)
    first = np.cumsum([0, *(len(values) + 1 for _, values in rows)])
    key = np.random.default_rng(draw(st.integers(0, 99))).permutation(len(rows)).astype(np.uint64)
    steps = Steps(
        first, np.array(visits, np.float32), np.array(value, np.float32), np.array(option, np.uint8)
    )
    return steps, key


def budget_of(steps: Steps, share: float) -> float:
    """Return a budget between the required minimum and somewhat more than the maximum."""
    most = float(steps.visits[steps.first[1:] - 1].sum())
    return least_visits(steps) + share * (most - least_visits(steps))


def visits_of(steps: Steps, allocation: Allocation) -> Floats:
    visits: Floats = steps.visits[allocation.chosen].astype(float)
    return visits


def saved(steps: Steps, allocation: Allocation) -> float:
    """Return the total value of the allocated visits."""
    total = 0.0
    for begin, end in zip(steps.first[:-1], allocation.chosen, strict=True):
        more = np.diff(steps.visits[begin : end + 1].astype(float))
        total += float(more @ steps.value[begin + 1 : end + 1])
    return total


def in_order(steps: Steps, key: np.ndarray, order: np.ndarray) -> tuple[Steps, np.ndarray]:
    """Return the same steps with the targets in another order."""
    counts = np.diff(steps.first)[order]
    place = np.concatenate([np.arange(steps.first[i], steps.first[i + 1]) for i in order])
    first = np.concatenate([[0], np.cumsum(counts)])
    return Steps(first, steps.visits[place], steps.value[place], steps.option[place]), key[order]


@given(markets(), SHARES)
def test_the_budget_is_never_exceeded(market: tuple[Steps, np.ndarray], share: float) -> None:
    steps, key = market
    budget = budget_of(steps, share)
    allocation = allocate(steps, key, budget)
    assert visits_of(steps, allocation).sum() <= budget * (1 + 1e-6)
    assert np.all(allocation.chosen >= steps.first[:-1])
    assert np.all(allocation.chosen < steps.first[1:])


@given(markets(), SHARES)
def test_highest_values_are_allocated_first(market: tuple[Steps, np.ndarray], share: float) -> None:
    """Compare values with the price: at least as high for allocated steps, at most for others."""
    steps, key = market
    allocation = allocate(steps, key, budget_of(steps, share))
    for begin, end, last in zip(steps.first[:-1], steps.first[1:], allocation.chosen, strict=True):
        assert np.all(steps.value[begin : last + 1] >= allocation.price * (1 - 1e-6))
        assert np.all(steps.value[last + 1 : end] <= allocation.price * (1 + 1e-6))


@given(markets())
def test_large_budget_allocates_all_steps(market: tuple[Steps, np.ndarray]) -> None:
    steps, key = market
    allocation = allocate(steps, key, budget_of(steps, 1.0) + 1)
    assert allocation.exhausted
    assert (allocation.chosen == steps.first[1:] - 1).all()


@given(markets())
def test_minimum_budget_allocates_only_minimums(market: tuple[Steps, np.ndarray]) -> None:
    """Check that the price is finite, because other modules calculate with it."""
    steps, key = market
    allocation = allocate(steps, key, least_visits(steps))
    assert (allocation.chosen == steps.first[:-1]).all()
    assert 0 <= allocation.price < np.inf


@given(markets(), SHARES, st.randoms(use_true_random=False))
def test_allocation_does_not_depend_on_target_order(
    market: tuple[Steps, np.ndarray], share: float, random: object
) -> None:
    steps, key = market
    order = np.array(random.sample(range(len(key)), len(key)))  # type: ignore[attr-defined]
    budget = budget_of(steps, share)
    original, reordered = (
        allocate(steps, key, budget),
        allocate(*in_order(steps, key, order), budget),
    )
    assert original.price == reordered.price
    shuffled, _ = in_order(steps, key, order)
    np.testing.assert_array_equal(visits_of(steps, original)[order], visits_of(shuffled, reordered))


@given(markets(), SHARES, SHARES)
def test_more_budget_never_removes_visits(
    market: tuple[Steps, np.ndarray], one: float, other: float
) -> None:
    steps, key = market
    low, high = (allocate(steps, key, budget_of(steps, share)) for share in sorted([one, other]))
    assert np.all(low.chosen <= high.chosen)
    assert low.price >= high.price
    assert saved(steps, low) <= saved(steps, high) + 1e-6


@given(markets(), SHARES)
def test_current_allocation_is_kept(market: tuple[Steps, np.ndarray], share: float) -> None:
    steps, key = market
    budget = budget_of(steps, share)
    present = visits_of(steps, allocate(steps, key, budget))
    np.testing.assert_array_equal(visits_of(steps, allocate(steps, key, budget, present)), present)


@given(markets(), SHARES)
def test_dead_band_ignores_targets_without_visits(
    market: tuple[Steps, np.ndarray], share: float
) -> None:
    steps, key = market
    budget = budget_of(steps, share)
    first, again = allocate(steps, key, budget), allocate(steps, key, budget, np.zeros(len(key)))
    np.testing.assert_array_equal(again.chosen, first.chosen)
    assert again.price == first.price


@given(markets(), SHARES, st.integers(0, 99))
def test_small_value_changes_remove_no_visits(
    market: tuple[Steps, np.ndarray], share: float, seed: int
) -> None:
    """Check that a change within the dead band removes no visit; leftover budget may add visits."""
    steps, key = market
    budget = budget_of(steps, share)
    allocation = allocate(steps, key, budget)
    assume(np.isfinite(allocation.price))
    present = visits_of(steps, allocation)
    # One factor per target, so that its values still decrease.
    factor = 1 + 0.04 * np.random.default_rng(seed).uniform(-1, 1, len(key))
    value = steps.value * np.repeat(factor, np.diff(steps.first)).astype(np.float32)
    again = allocate(steps._replace(value=value.astype(np.float32)), key, budget, present)
    assert np.all(visits_of(steps, again) >= present)
