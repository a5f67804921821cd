"""Sampling phases: proportional and stable samples, their rotation, and poll times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.population import (
    Keys,
    joining_order,
    pages_at_once,
    phases,
    polls_per_day,
    rotations_of,
)

MINUTE = 1 / 60
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def pages(sizes: list[int], seed: int = 1) -> tuple[Keys, np.ndarray]:
    """Return the keys and strata of pages in random order, with `sizes[i]` pages in stratum i."""
    random = np.random.default_rng(seed)
    stratum = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return random.integers(0, 2**64, len(stratum), np.uint64), stratum


@pytest.mark.parametrize(
    ("every_hours", "polls"),
    [
        (20 * MINUTE, 72), (30 * MINUTE, 48), (MINUTE, 1440), (1, 24), (24, 1), (50 * MINUTE, 29),
        (7, 4),
    ],
)  # fmt: skip
def test_polls_per_day(every_hours: float, polls: int) -> None:
    assert polls_per_day(every_hours) == polls


@pytest.mark.parametrize(("budget", "pages"), [(71.9, 0), (72, 1), (143, 1), (720, 10), (1000, 13)])
def test_budget_limits_pages_polled_concurrently(budget: float, pages: int) -> None:
    assert pages_at_once(budget, 20 * MINUTE) == pages


def test_sample_has_proportional_strata_with_minimum_one() -> None:
    key, stratum = pages([600, 300, 97, 3])
    joined = stratum[joining_order(key, stratum)]
    assert np.bincount(joined[:4]).tolist() == [1, 1, 1, 1]
    assert np.bincount(joined[:21]).tolist() == [12, 6, 2, 1]
    assert np.bincount(joined[:100]).tolist() == [59, 30, 10, 1]
    assert np.bincount(joined).tolist() == [600, 300, 97, 3]


def test_small_sample_takes_largest_strata() -> None:
    key, stratum = pages([5, 50, 20])
    assert stratum[joining_order(key, stratum)][:2].tolist() == [1, 2]


@given(SIZES, st.integers(0, 99))
def test_sample_does_not_depend_on_order(sizes: list[int], seed: int) -> None:
    key, stratum = pages(sizes, seed)
    shuffled = np.random.default_rng(seed + 1).permutation(len(key))
    again = joining_order(key[shuffled], stratum[shuffled])
    assert key[joining_order(key, stratum)].tolist() == key[shuffled][again].tolist()


@given(SIZES, st.data())
def test_shares_are_fair(sizes: list[int], data: st.DataObject) -> None:
    """Check Webster's rule: no claim to one more page exceeds any claim to a last page."""
    key, stratum = pages(sizes)
    n = data.draw(st.integers(len(sizes), len(key)))
    seats = np.bincount(stratum[joining_order(key, stratum)[:n]], minlength=len(sizes))
    assert seats.sum() == n
    assert (seats >= 1).all()
    more = np.array([s / (2 * have + 1) for s, have in zip(sizes, seats, strict=True)])
    last = np.array([s / (2 * have - 1) for s, have in zip(sizes, seats, strict=True)])
    assert (more[seats < sizes].max(initial=0) <= last[seats > 1] + 1e-9).all()


@given(SIZES, st.integers(1, 50))
def test_rotations_are_even_samples(sizes: list[int], at_once: int) -> None:
    key, stratum = pages(sizes)
    turn = rotations_of(key, stratum, at_once)
    size = np.bincount(turn)
    assert len(size) == -(-len(key) // at_once)
    assert size.max() <= at_once
    assert np.ptp(size) <= 1
    for i in range(len(sizes)):
        assert np.ptp(np.bincount(turn[stratum == i], minlength=len(size))) <= 1


@given(SIZES, st.integers(1, 50), st.floats(MINUTE, 24))
def test_phases_spread_each_rotation_evenly(
    sizes: list[int], at_once: int, every_hours: float
) -> None:
    key, stratum = pages(sizes)
    turn = rotations_of(key, stratum, at_once)
    phase = phases(key, turn, every_hours)
    for i in range(turn.max() + 1):
        own = np.sort(phase[turn == i])
        assert own == pytest.approx(every_hours * np.arange(len(own)) / len(own))


def test_no_pages_give_empty_samples() -> None:
    key, stratum = np.empty(0, np.uint64), np.empty(0, np.int64)
    assert len(joining_order(key, stratum)) == 0
    turn = rotations_of(key, stratum, 3)
    assert len(turn) == len(phases(key, turn, 1.0)) == 0
