"""Invariants of the intervals of targets without a plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from schedules.intervals import Intervals

HOURS = st.floats(0.001, 24 * 365)
INTERVALS = st.builds(Intervals, HOURS, HOURS, HOURS, st.just(0.0) | HOURS)
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2900, 1, 1), timezones=st.just(UTC))
ERRORS = st.integers(1, 10**6)


@given(INTERVALS, MOMENTS, ERRORS, st.booleans())
def test_next_visit_is_within_longest_interval(
    intervals: Intervals, now: datetime, errors: int, confirmed: bool
) -> None:
    latest = now + timedelta(hours=intervals.longest_hours)
    for due in (
        intervals.after_seen(now),
        intervals.after_errors(now, errors),
        intervals.after_refusals(now, errors),
        intervals.after_gone(now, confirmed=confirmed),
    ):
        assert now < due <= latest


@given(INTERVALS, MOMENTS, ERRORS, ERRORS)
def test_more_errors_never_shorten_the_wait(
    intervals: Intervals, now: datetime, some: int, more: int
) -> None:
    fewer, most = sorted((some, more))
    assert intervals.after_errors(now, fewer) <= intervals.after_errors(now, most)
    assert intervals.after_refusals(now, fewer) <= intervals.after_refusals(now, most)
    assert intervals.after_errors(now, most) <= intervals.after_refusals(now, most)


@given(INTERVALS, MOMENTS)
def test_confirmed_gone_page_waits_longer(intervals: Intervals, now: datetime) -> None:
    unconfirmed = intervals.after_gone(now, confirmed=False)
    assert unconfirmed <= intervals.after_gone(now, confirmed=True)


@given(INTERVALS, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=1000)), ERRORS)
def test_the_wait_does_not_depend_on_the_day(
    intervals: Intervals, now: datetime, shift: timedelta, errors: int
) -> None:
    wait = intervals.after_errors(now, errors) - now
    assert intervals.after_errors(now + shift, errors) - (now + shift) == wait
