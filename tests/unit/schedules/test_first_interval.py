"""Next visits of targets without a plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from schedules.intervals import Intervals

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
DAILY = Intervals(usual_hours=24, error_hours=1, longest_hours=100)


def hours(moment: datetime) -> float:
    """Return the hours from now."""
    return (moment - NOW) / timedelta(hours=1)


def test_fetched_page_is_due_after_usual_interval() -> None:
    assert hours(DAILY.after_seen(NOW)) == 24


@pytest.mark.parametrize(
    ("errors", "expected"), [(3, 1), (4, 2), (5, 4), (9, 64), (10, 100), (5000, 100)]
)
def test_wait_doubles_with_each_error_up_to_maximum(errors: int, expected: float) -> None:
    assert hours(DAILY.after_errors(NOW, errors)) == expected


@pytest.mark.parametrize("errors", [1, 2])
def test_first_two_failures_are_due_at_next_run(errors: int) -> None:
    assert timedelta(0) < DAILY.after_errors(NOW, errors) - NOW <= timedelta(milliseconds=1)


@pytest.mark.parametrize(("retry_hours", "expected"), [(0.5, 0.5), (3, 1)])
def test_retry_delay_is_limited_by_error_interval(retry_hours: float, expected: float) -> None:
    slow = Intervals(usual_hours=24, error_hours=1, longest_hours=100, retry_hours=retry_hours)
    waits = [hours(slow.after_errors(NOW, errors)) for errors in (1, 2, 3)]
    assert waits == [expected, expected, 1]


@pytest.mark.parametrize(
    ("refusals", "expected"), [(1, 1), (2, 2), (3, 4), (7, 64), (8, 100), (5000, 100)]
)
def test_refusal_is_not_retried_quickly(refusals: int, expected: float) -> None:
    assert hours(DAILY.after_refusals(NOW, refusals)) == expected


def test_possibly_gone_page_keeps_usual_interval() -> None:
    assert hours(DAILY.after_gone(NOW, confirmed=False)) == 24


def test_gone_page_gets_longest_interval() -> None:
    assert hours(DAILY.after_gone(NOW, confirmed=True)) == 100


def test_longest_interval_limits_all_others() -> None:
    rare = Intervals(usual_hours=1000, error_hours=1000, longest_hours=100)
    assert hours(rare.after_seen(NOW)) == 100
    assert hours(rare.after_errors(NOW, 3)) == 100
    assert hours(rare.after_refusals(NOW, 1)) == 100
    assert hours(rare.after_gone(NOW, confirmed=False)) == 100
