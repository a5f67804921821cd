"""Scores of schedules, by example."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest

from schedules.evaluation.score import Score, score
from schedules.history import Times

NEVER = math.inf
MONDAY = 24 * (7 * 2822 + 4)


def ragged(*pages: list[float]) -> Times:
    """Return the times of pages, given in hours since Monday."""
    flat = np.array([hour for page in pages for hour in page], np.float64)
    return Times(np.cumsum([0, *map(len, pages)]), MONDAY + flat)


def scored(
    changes: list[list[float]],
    visits: list[list[float]],
    *,
    sources: list[int] | None = None,
    ends: list[float] | None = None,
    hours: float = 100,
) -> Score:
    """Return the score of the hours since Monday."""
    n = len(changes)
    return score(
        ragged(*changes),
        ragged(*visits),
        np.array(sources or [0] * n, np.int64),
        np.array([math.inf if end is NEVER else MONDAY + end for end in ends or [NEVER] * n]),
        MONDAY,
        MONDAY + hours,
    )


def test_copy_is_stale_from_change_to_next_visit() -> None:
    result = scored([[10, 50]], [[20, 60]])
    assert result.stale_h.tolist() == [20]
    assert result.freshness.tolist() == [0.8]
    assert result.delay_h.tolist() == [20]
    assert result.captured.tolist() == [2]


def test_age_counts_from_oldest_unseen_change() -> None:
    result = scored([[10, 15]], [[20]])
    assert result.age_h2.tolist() == [10 * 10 / 2]
    assert result.age_days.tolist() == [50 / 100 / 24]


def test_visit_captures_newest_of_several_changes() -> None:
    result = scored([[10, 12, 15]], [[20]])
    assert result.lost.tolist() == [2]
    assert result.captured.tolist() == [1]
    assert result.delay_h.tolist() == [5]
    assert result.delay_all_h.tolist() == [10 + 8 + 5]


def test_unseen_changes_are_stale_until_the_end() -> None:
    result = scored([[90, 95]], [[20]])
    assert result.lost.tolist() == [1]
    assert result.captured.tolist() == [0]
    assert result.stale_h.tolist() == [10]
    assert result.delay_all_h.tolist() == [10 + 5]
    assert math.isnan(result.totals().by_page.delay_h)


def test_visit_at_time_of_change_captures_it() -> None:
    assert scored([[10]], [[10]]).stale_h.tolist() == [0]


def test_rounding_error_is_not_a_delay() -> None:
    rounded = 10 + 1e-10
    assert MONDAY + rounded > MONDAY + 10
    assert scored([[rounded]], [[10]]).stale_h.tolist() == [0]


def test_span_includes_changes_at_its_end_only() -> None:
    result = scored([[0, 100]], [[]])
    assert result.changes.tolist() == [1]
    assert result.stale_h.tolist() == [0]


def test_span_includes_visits_at_both_ends() -> None:
    assert scored([[]], [[-1, 0, 100, 101]]).visits.tolist() == [2]


def test_ended_page_counts_until_its_end() -> None:
    result = scored([[10, 60]], [[20, 70]], ends=[50])
    assert result.watched_h.tolist() == [50]
    assert result.changes.tolist() == result.visits.tolist() == [1]
    assert result.freshness.tolist() == [0.8]


def test_page_that_ended_before_span_is_not_counted() -> None:
    result = scored([[10], [10]], [[0, 20], [20]], ends=[0, NEVER], sources=[5, 1])
    assert math.isnan(result.freshness[0])
    totals = result.totals()
    assert (totals.pages, totals.sources, totals.visits) == (1, 1, 1)
    assert totals.by_page.freshness == totals.by_source.freshness == 0.9


def test_visits_of_one_page_do_not_refresh_another() -> None:
    result = scored([[10], [10], []], [[], [20], [10]])
    assert result.stale_h.tolist() == [90, 10, 0]
    assert result.totals().never_visited == 1


def test_means_by_page_and_by_source() -> None:
    totals = scored([[50], [], []], [[], [60], []], sources=[1, 0, 0]).totals()
    assert totals.by_page.freshness == pytest.approx((0.5 + 1 + 1) / 3)
    assert totals.by_source.freshness == pytest.approx((0.5 + 1) / 2)


def test_source_without_changes_is_not_in_change_means() -> None:
    totals = scored([[10, 15], []], [[20], [5]], sources=[0, 1]).totals()
    assert totals.by_source.lost_share == 0.5
    assert totals.by_source.delay_h == 5


def test_load_counts_clock_hours_and_utc_days() -> None:
    load = scored([[], []], [[1, 1.5, 30], [1.9, 2]], hours=50).load
    assert load.per_day == 5 / 50 * 24
    assert load.busiest_hour == 3
    assert load.busiest_day == 4
    assert load.hour_peak == 3 / (5 / 50)


def test_load_without_visits_is_zero() -> None:
    load = scored([[10]], [[]]).load
    assert (load.per_day, load.busiest_hour, load.busiest_day) == (0, 0, 0)
    assert math.isnan(load.hour_peak)


def test_totals_without_pages_are_empty() -> None:
    totals = scored([], []).totals()
    assert totals.pages == totals.sources == totals.visits == 0
    assert all(math.isnan(value) for value in astuple(totals.by_page))
    assert all(math.isnan(value) for value in astuple(totals.by_source))


@pytest.mark.parametrize("hours", [0, -1])
def test_rejects_empty_time_span(hours: float) -> None:
    with pytest.raises(ValueError, match="is empty"):
        scored([[]], [[]], hours=hours)
