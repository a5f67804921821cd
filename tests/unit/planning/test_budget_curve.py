"""Forecasts of a budget from a computed curve."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.errors import ConfigError
from crawler.planning.budget_curve import (
    FEEDS,
    PAGES,
    BudgetCurve,
    BudgetResults,
    Measure,
    Objective,
    forecast,
    place_of,
    sample_points,
    usual_budget,
    value_at,
)
from crawler.planning.options import OBJECTIVES
from crawler.reports.jobs import POLICY_NAMES
from schedules.terms import POLICIES


def results_of(per_day: float, share: float, hours: float | None) -> BudgetResults:
    return {"requests_per_day": per_day, "share": share, "hours": hours}


def curve() -> BudgetCurve:
    """Return the curve of a busy site, which has most of the current requests, and a quiet site."""
    points = [10.0, 20.0, 40.0]
    return {
        "kind": "pages", "at": datetime(2026, 3, 2, tzinfo=UTC), "objective": "balanced",
        "targets": 30, "sampled": 30, "budget_per_day": 30.0, "plans": [], "amount": 30.0,
        "requests_per_day": points, "price": [None, 5.0, 1.0], "share": [0.5, 0.7, 0.8],
        "hours": [4.0, 2.0, 1.0], "current": results_of(30.0, 0.6, None), "warnings": [],
        "parts": [
            {"site": "busy", "url": "", "amount": 10, "requests_per_day": [5.0, 15.0, 30.0],
             "share": [0.2, 0.5, 0.7], "hours": [8.0, 3.0, 1.5],
             "current": results_of(28.0, 0.69, 1.6)},
            {"site": "quiet", "url": "", "amount": 20, "requests_per_day": [5.0, 5.0, 10.0],
             "share": [0.65, 0.8, 0.85], "hours": [2.0, 1.5, 0.75],
             "current": results_of(2.0, 0.55, None)},
        ],
    }  # fmt: skip


def test_forecast_interpolates_between_points() -> None:
    result = forecast(curve(), 30)
    assert result["planned"] == results_of(30.0, pytest.approx(0.75), pytest.approx(1.5))
    assert result["price"] == 1.0, "the value of the next step"
    assert sum(site["planned"]["requests_per_day"] for site in result["parts"]) == 30.0
    assert [(site["site"], site["verdict"]) for site in result["parts"]] == [
        ("busy", "loses"), ("quiet", "wins"),
    ]  # fmt: skip
    assert (result["wins"], result["loses"]) == (1, 1)


def test_budgets_outside_the_curve() -> None:
    assert forecast(curve(), 10)["planned"]["share"] == 0.5
    assert forecast(curve(), 1e6)["planned"]["share"] == 0.8, "more requests save nothing"
    with pytest.raises(ConfigError, match=r"need 10/day\. Use 10/day or more"):
        forecast(curve(), 9.9)


def test_default_budget_is_current_one_within_curve() -> None:
    assert usual_budget(curve()) == 30
    assert usual_budget(curve() | {"budget_per_day": 500.0}) == 40
    assert usual_budget(curve() | {"budget_per_day": None}) == 30


def test_sample_points_include_both_ends() -> None:
    assert [point["requests_per_day"] for point in sample_points(curve())] == [10, 20, 40]
    many = curve() | {
        "requests_per_day": list(range(1, 65)), "share": [0.5] * 64, "hours": [1.0] * 64,
    }  # fmt: skip
    points = [point["requests_per_day"] for point in sample_points(many)]
    assert (points[0], points[-1], len(points)) == (1, 64, 12)


@pytest.mark.parametrize(
    ("measure", "before", "after", "verdict"),
    [
        (PAGES, (0.5, 1.0), (0.6, 2.0), "wins"),
        (PAGES, (0.5, 1.0), (0.499, 1.0), "same"),
        (PAGES, (0.5, 1.0), (0.5, 0.5), "wins"),
        (PAGES, (0.5, 1.0), (0.5, 1.5), "loses"),
        (PAGES, (0.5, None), (0.5, 1.0), "wins"),
        (PAGES, (0.5, None), (0.5, None), "same"),
        (PAGES, (1.0, 0.0), (1.0, 0.0), "same"),
        (FEEDS, (0.1, 10.0), (0.05, 20.0), "wins"),
        (FEEDS, (0.1, 10.0), (0.2, 1.0), "loses"),
        (FEEDS, (0.1, 10.0), (0.1, 9.0), "wins"),
        (FEEDS, (0.1, 10.0), (0.101, 11.0), "loses"),
        (FEEDS, (0.1, 10.0), (0.1, 10.2), "same"),
        (FEEDS, (0.0, 0.0), (0.0, 0.0), "same"),
    ],
)
def test_verdicts(
    measure: Measure, before: tuple[float, float | None], after: tuple[float, float | None],
    verdict: str,
) -> None:  # fmt: skip
    assert measure.verdict(results_of(1, *before), results_of(1, *after)) == verdict


def test_names_match_planner() -> None:
    assert get_args(Objective) == tuple(OBJECTIVES)
    assert POLICY_NAMES == POLICIES


@given(
    st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20, unique=True).map(sorted),
    st.floats(0, 2e6),
)
def test_place_lies_between_neighbors(points: list[float], x: float) -> None:
    place = place_of(points, x)
    assert 0 <= place.share <= 1
    inside = min(max(x, points[0]), points[-1])
    assert value_at(points, place) == pytest.approx(inside, rel=1e-9)
