"""The next visit of targets without a plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from schedules.intervals import Intervals

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
DAILY = Intervals(usual_hours=24, error_hours=1, longest_hours=100)


def hours(moment: datetime) -> float:
    """Return the hours from now."""
    return (moment - NOW) / timedelta(hours=1)


def test_a_page_that_was_read_is_due_after_the_usual_interval() -> None:
    assert hours(DAILY.after_seen(NOW)) == 24


@pytest.mark.parametrize(
    ("errors", "expected"), [(3, 1), (4, 2), (5, 4), (9, 64), (10, 100), (5000, 100)]
)
def test_the_wait_doubles_with_each_error_up_to_the_longest(errors: int, expected: float) -> None:
    assert hours(DAILY.after_errors(NOW, errors)) == expected


@pytest.mark.parametrize("errors", [1, 2])
def test_what_failed_once_or_twice_is_due_at_the_next_run(errors: int) -> None:
    assert timedelta(0) < DAILY.after_errors(NOW, errors) - NOW <= timedelta(milliseconds=1)


@pytest.mark.parametrize(("retry_hours", "expected"), [(0.5, 0.5), (3, 1)])
def test_a_retry_may_wait_but_no_longer_than_after_further_errors(
    retry_hours: float, expected: float
) -> None:
    slow = Intervals(usual_hours=24, error_hours=1, longest_hours=100, retry_hours=retry_hours)
    waits = [hours(slow.after_errors(NOW, errors)) for errors in (1, 2, 3)]
    assert waits == [expected, expected, 1]


@pytest.mark.parametrize(
    ("refusals", "expected"), [(1, 1), (2, 2), (3, 4), (7, 64), (8, 100), (5000, 100)]
)
def test_a_refusal_is_never_followed_by_a_quick_retry(refusals: int, expected: float) -> None:
    assert hours(DAILY.after_refusals(NOW, refusals)) == expected


def test_a_page_that_may_be_gone_is_asked_for_at_its_usual_pace() -> None:
    assert hours(DAILY.after_gone(NOW, confirmed=False)) == 24


def test_a_page_that_is_gone_is_asked_for_as_rarely_as_allowed() -> None:
    assert hours(DAILY.after_gone(NOW, confirmed=True)) == 100


def test_the_usual_interval_gives_way_to_the_longest() -> None:
    rare = Intervals(usual_hours=1000, error_hours=1000, longest_hours=100)
    assert hours(rare.after_seen(NOW)) == 100
    assert hours(rare.after_errors(NOW, 3)) == 100
    assert hours(rare.after_refusals(NOW, 1)) == 100
    assert hours(rare.after_gone(NOW, confirmed=False)) == 100
