"""Invariants of plans in shards: the same plan for any number of shards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.allocation.allocate import Offers, Steps, allocate, cleared, least_parts
from schedules.allocation.plan import Plan, Shard, plan, plan_of, plan_shards
from schedules.estimation.estimate import estimate_shards
from schedules.history import Histories, Ints
from schedules.placement.load import PlacedShard, balance, balanced
from schedules.population import InMemory, Population, min_per_day, shard_of
from schedules.schedule import Schedules
from schedules.terms import BudgetTooSmall, Terms
from tests.property.schedules.test_allocate_invariants import SHARES, budget_of, markets
from tests.unit.populations import NOW, OFFICE, changes, mixed, rates, watched

SHARDS = st.sampled_from([1, 2, 3, 7])
SEEDS = st.integers(0, 9)


def case(seed: int, n: int) -> tuple[Population, Histories]:
    """Return targets of two sites in several groups, one of them never seen."""
    some = mixed(n, seed)
    past = watched(some, changes(some, rates(n, seed), OFFICE, seed=seed))
    past.since[0] = past.until[0] = np.nan
    first = np.concatenate([[0], past.first[1:] - past.first[1]])
    begin = past.first[1]
    return some, replace(past, first=first, after=past.after[begin:], by=past.by[begin:])


def in_shards(
    some: Population, past: Histories, current: Schedules, count: int
) -> tuple[InMemory[Shard], list[Ints]]:
    """Divide targets into shards; also return the rows of each."""
    number = shard_of(some.key, count)
    rows = [np.flatnonzero(number == shard) for shard in range(count)]
    shards = [
        Shard(
            population=some.of(own),
            histories=past.of(own),
            last=past.until[own],
            current=current.of(own),
        )
        for own in rows
    ]
    return InMemory(shards), rows


def planned(
    some: Population, past: Histories, terms: Terms, current: Schedules, count: int
) -> list[tuple[Ints, Plan]]:
    """Plan in shards; return the rows and the plan of each."""
    shards, rows = in_shards(some, past, current, count)
    estimate_shards(shards)
    counts = np.array([len(own) for own in rows])
    price = plan_shards(shards, counts, min_per_day(some), terms, NOW)
    plans = [plan_of(shard, price) for shard in shards.shards]
    return list(zip(rows, plans, strict=True))


@pytest.mark.soak
@given(SEEDS, st.sampled_from([1.02, 1.5, 4.0]))
@settings(max_examples=2)
def test_plan_does_not_depend_on_shard_count(seed: int, share: float) -> None:
    some, past = case(seed, 90)
    budget = min_per_day(some) * share
    terms = Terms(budget_per_day=budget, daily_cap=1.1 * budget)
    none = Schedules.none(len(some))
    try:
        whole = plan(some, past, terms, NOW)
    except BudgetTooSmall:
        for count in (1, 3):
            with pytest.raises(BudgetTooSmall):
                planned(some, past, terms, none, count)
        return
    for current, expected in (
        (none, whole),
        (whole.schedules, plan(some, past, terms, NOW, whole.schedules)),
    ):
        for count in (1, 7):
            for rows, result in planned(some, past, terms, current, count):
                assert result.price == pytest.approx(expected.price, rel=1e-9)
                assert result.schedules.same_as(expected.schedules.of(rows)).all()
                np.testing.assert_array_equal(result.bound, expected.bound[rows])
                np.testing.assert_array_equal(result.updated, expected.updated[rows])
                np.testing.assert_allclose(result.stale, expected.stale[rows], rtol=1e-9)
                np.testing.assert_allclose(result.rate, expected.rate[rows], rtol=1e-9)


@given(markets(), SHARES, SHARDS)
def test_price_of_shards_matches_single_allocation(
    market: tuple[Steps, np.ndarray], share: float, count: int
) -> None:
    steps, key = market
    budget = budget_of(steps, share)
    whole = allocate(steps, key, budget)
    order = np.argsort(key)
    offers, rows = [], np.array_split(order, count)
    for own in rows:
        place = [np.arange(steps.first[i], steps.first[i + 1]) for i in own.tolist()]
        of_shard = np.concatenate([np.zeros(0, np.int64), *place])
        first = np.cumsum([0, *map(len, place)])
        part = Steps(first, steps.visits[of_shard], steps.value[of_shard], steps.option[of_shard])
        offers.append(Offers.of(part, key[own]))
    clearing = cleared(
        lambda codes: [each.demand(codes) for each in offers], least_parts(steps), budget
    )
    taken = [
        each.taken(clearing.marginal, left)
        for each, left in zip(offers, clearing.left, strict=True)
    ]
    assert clearing.price([each.lowest for each in taken]) == whole.price
    assert clearing.exhausted == whole.exhausted
    for own, each, offered in zip(rows, taken, offers, strict=True):
        expected = whole.chosen[own] - steps.first[own]
        np.testing.assert_array_equal(each.chosen - offered.first[:-1], expected)


@given(SEEDS, st.integers(0, 300), SHARDS)
@settings(max_examples=20)
def test_balancing_does_not_depend_on_shard_count(seed: int, crowded: int, count: int) -> None:
    """Put many visits into one week, more than each shard offers to move at first."""
    n, rng = 400, np.random.default_rng(seed)
    some = mixed(n, seed)
    weeks = rng.integers(2, 5, n)
    week = np.where(np.arange(n) < crowded, 0, rng.integers(0, 4, n) % weeks)
    slots = (week * 168 + rng.integers(0, 168, n)).astype(np.uint16)
    drawn = replace(
        Schedules.none(n), weeks=weeks.astype(np.uint8), first=np.arange(n + 1), slots=slots
    )
    last = NOW - rng.uniform(0, 600, n)
    expected = balanced(drawn, some, last, NOW)
    number = shard_of(some.key, count)
    rows = [np.flatnonzero(number == shard) for shard in range(count)]
    shards = [PlacedShard(some.of(own), last[own], drawn.of(own), drawn.of(own)) for own in rows]
    balance(InMemory(shards), NOW)
    for own, shard in zip(rows, shards, strict=True):
        assert shard.schedules.same_as(expected.of(own)).all()
