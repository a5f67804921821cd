"""Dates stated by pages: trusted after they proved right, and used to the minute."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.estimation.rates import DateCounts, right, timed
from schedules.history import Histories

MINUTE = 1 / 60
NAN = np.nan


def visits(*changes: tuple[float, float, float], targets: int = 1) -> tuple[Histories, np.ndarray]:
    """Return the histories and stated times of targets; each change is (after, by, stated)."""
    after, by, stated = np.array(changes, float).reshape(-1, 3).T
    first = np.linspace(0, len(changes), targets + 1).astype(np.int64)
    everything = np.zeros(targets), np.full(targets, 1e6)
    return Histories(*everything, first, after, by), stated


def days(n: int, stated: float) -> list[tuple[float, float, float]]:
    """Return daily visits that found a change, dated `stated` hours after the previous visit."""
    return [(24.0 * day, 24.0 * day + 24, 24.0 * day + stated) for day in range(n)]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (10.0, True), (0.0, True), (24 - 3 * MINUTE, True), (24 - MINUTE, False), (24.0, False),
        (25.0, False), (-1.0, False), (NAN, False),
    ],
    ids=["between", "at the look before", "just before", "a minute before the visit", "at it",
         "later", "before the look before", "nothing"],
)  # fmt: skip
def test_a_date_is_right_between_the_two_looks_and_not_at_the_second(
    stated: float, expected: bool
) -> None:
    assert right(*visits((0, 24, stated))).tolist() == [expected]


@pytest.mark.parametrize(
    ("changes", "false_dates", "expected"),
    [
        (days(20, 5), 0, True),
        (days(19, 5), 0, False),
        (days(30, NAN), 0, False),
        (days(18, 5) + days(2, 24), 0, True),
        (days(17, 5) + days(3, 24), 0, False),
        (days(40, 24), 0, False),
        (days(20, 5), 2, True),
        (days(20, 5), 3, False),
    ],
    ids=["enough", "too few", "undated", "nine of ten", "less than nine of ten",
         "the time of asking", "two false_dates", "three false_dates"],
)  # fmt: skip
def test_dates_are_believed_when_they_have_proved_right(
    changes: list[tuple[float, float, float]], false_dates: int, expected: bool
) -> None:
    trusted = DateCounts.of(*visits(*changes), np.array([false_dates]), np.array([0]), 1).reliable()
    assert trusted.tolist() == [expected]


def test_sites_are_judged_apart() -> None:
    histories, stated = visits(*days(20, 5), *days(20, 24), targets=2)
    nothing, site = np.zeros(2, np.int64), np.array([1, 0])
    counts = DateCounts.of(histories, stated, nothing, site, 3)
    assert counts.reliable().tolist() == [False, True, False]


def test_a_believed_change_happened_in_the_minute_it_says() -> None:
    histories, stated = visits((0, 24, 10), (24, 48, NAN), (48, 72, 72))
    exact = timed(histories, stated, np.array([True]))
    assert exact.after.tolist() == [10, 24, 48]
    assert exact.by.tolist() == [10 + MINUTE, 48, 72]
    assert (exact.since, exact.until) == (histories.since, histories.until)


def test_a_date_that_is_not_believed_is_not_used() -> None:
    histories, stated = visits((0, 24, 10), (0, 24, 10), targets=2)
    assert timed(histories, stated, np.array([False, True])).by.tolist() == [24, 10 + MINUTE]


def test_in_a_longer_gap_the_last_change_does_not_pass_for_the_only_one() -> None:
    histories, stated = visits((0, 168, 160))
    assert timed(histories, stated, np.array([True])).after.tolist() == [0]


def test_no_changes_at_all() -> None:
    histories, stated = visits(targets=2)
    assert timed(histories, stated, np.array([True, True])).by.tolist() == []
    counts = DateCounts.of(histories, stated, np.zeros(2, np.int64), np.array([0, 0]), 1)
    assert counts.reliable().tolist() == [False]
