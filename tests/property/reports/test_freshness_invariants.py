"""Invariants of current freshness, for any known rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.reports.estimates import Rates, age_hours, freshness
from schedules.history import Floats

shapes = st.floats(1, 50)
means = st.floats(0.01, 50)
hours = st.floats(0, 2000)


def rates(shape: float, mean: float) -> Rates:
    """Return the values that the planner would store for a gamma-distributed rate."""
    # Not in every test process: it loads slowly.
    from scipy.stats import gamma

    prior = gamma(shape, scale=mean / shape)
    return Rates(*(np.array([value]) for value in (mean, prior.ppf(0.05), prior.ppf(0.95))))


def exact(shape: float, mean: float, weeks: Floats) -> Floats:
    result: Floats = (1 + mean * weeks / shape) ** -shape
    return result


@given(shapes, means, hours)
def test_freshness_from_three_rates_is_accurate(shape: float, mean: float, since: float) -> None:
    estimated = freshness(rates(shape, mean), np.array([since]))
    assert estimated == pytest.approx(exact(shape, mean, np.array([since / 168])), abs=0.024)


@given(shapes, means, st.floats(1, 2000))
def test_age_is_integral_of_staleness(shape: float, mean: float, since: float) -> None:
    grid = np.linspace(0, since, 4001)
    stale = 1 - exact(shape, mean, grid / 168)
    expected = np.trapezoid(stale, grid)
    estimated = age_hours(rates(shape, mean), np.array([since]))[0]
    assert estimated == pytest.approx(expected, abs=0.02 * since)


@given(shapes, means, hours, hours)
def test_copies_age_and_never_get_fresher(
    shape: float, mean: float, one: float, other: float
) -> None:
    since = np.sort([one, other])
    estimates = Rates(*(np.repeat(column, 2) for column in rates(shape, mean)))
    fresh, age = freshness(estimates, since), age_hours(estimates, since)
    assert 1 >= fresh[0] >= fresh[1] >= 0
    assert 0 <= age[0] <= age[1] + 1e-9
    assert (age <= since).all()


def test_new_and_unchanging_copies_are_fresh() -> None:
    never = Rates(*np.zeros((3, 2)))
    assert freshness(never, np.array([0.0, 1e6])).tolist() == [1, 1]
    assert age_hours(never, np.array([0.0, 1e6])) == pytest.approx([0, 0], abs=1e-2)
    assert freshness(rates(2, 3), np.zeros(1)).tolist() == [1]


def test_unknown_rates_give_unknown_freshness() -> None:
    unknown = Rates(*np.full((3, 1), np.nan))
    assert np.isnan(freshness(unknown, np.ones(1))).all()
    assert np.isnan(age_hours(unknown, np.ones(1))).all()
