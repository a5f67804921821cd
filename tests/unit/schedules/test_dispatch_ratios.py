"""Expected refresh ratios, loads, fairness, and the marginal value of a visit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.dispatch import equal_ratio, expected_ratio, gain_of_visit, jain, load_of

positive = st.floats(0.01, 1000)
cells = st.lists(st.tuples(positive, positive), min_size=1, max_size=20)


def test_equations_of_paper_computed_by_hand() -> None:
    # P_s = 60; P_s / P = 6, 3, 2; shares 6/11, 3/11, 2/11; 360, 180, and 120 requests an hour.
    period, cost = np.array([10.0, 20.0, 30.0]), np.array([10.0, 4.0, 6.0])
    executed = 3600 * np.array([6, 3, 2]) / 11
    affordable = executed / cost
    assert expected_ratio(period, cost, 3600) == pytest.approx(
        [affordable[0] / 360, 1.0, affordable[2] / 120]
    )


@given(cells, positive)
def test_expected_ratio_matches_closed_form(rows: list[tuple[float, float]], time: float) -> None:
    period, cost = np.array(rows).T
    closed = np.minimum(1, 1 / (cost * (1 / period).sum()))
    assert expected_ratio(period, cost, time) == pytest.approx(closed)


@given(cells)
def test_expected_load_never_exceeds_available_time(
    rows: list[tuple[float, float]],
) -> None:
    period, cost = np.array(rows).T
    assert load_of(period, cost * expected_ratio(period, cost, 1)) <= 1 + 1e-9


def test_equal_costs_give_equal_expectations() -> None:
    period, cost = np.array([1.0, 5.0, 9.0]), np.full(3, 2.0)
    load = load_of(period, cost)
    assert expected_ratio(period, cost, 1) == pytest.approx([equal_ratio(load)] * 3)
    assert equal_ratio(0.3) == 1


def test_jain_fairness_bounds() -> None:
    assert jain(np.array([0.3, 0.3])) == pytest.approx(1)
    assert jain(np.array([1.0, 0, 0, 0])) == pytest.approx(0.25)
    assert np.isnan(jain(np.zeros(3)))


@given(st.floats(0.01, 10), st.floats(0.01, 10))
def test_gain_of_visit_is_slope_of_freshness(rate: float, waited: float) -> None:
    def freshness(visits: float) -> float:
        r = rate / visits
        return float(-np.expm1(-r) / r)

    often, step = 1 / waited, 1e-5 / waited
    slope = (freshness(often + step) - freshness(often - step)) / (2 * step)
    gain = gain_of_visit(np.array([rate]), np.array([waited]))
    assert gain[0] == pytest.approx(slope, rel=1e-3, abs=1e-6)
