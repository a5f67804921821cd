"""Dates stated by pages: how they become trusted, and their use in histories."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.estimation.rates import DateCounts, correct_dates, timed
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
    ids=["between", "at previous visit", "just before", "a minute before the visit", "at the visit",
         "later", "before previous visit", "none"],
)  # fmt: skip
def test_date_is_right_if_between_two_visits(stated: float, expected: bool) -> None:
    assert correct_dates(*visits((0, 24, stated))).tolist() == [expected]


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
         "time of request", "two false dates", "three false dates"],
)  # fmt: skip
def test_dates_are_trusted_after_enough_correct_ones(
    changes: list[tuple[float, float, float]], false_dates: int, expected: bool
) -> None:
    trusted = DateCounts.of(*visits(*changes), np.array([false_dates]), np.array([0]), 1).reliable()
    assert trusted.tolist() == [expected]


def test_sites_are_judged_separately() -> None:
    histories, stated = visits(*days(20, 5), *days(20, 24), targets=2)
    nothing, site = np.zeros(2, np.int64), np.array([1, 0])
    counts = DateCounts.of(histories, stated, nothing, site, 3)
    assert counts.reliable().tolist() == [False, True, False]


def test_trusted_date_narrows_change_to_a_minute() -> None:
    histories, stated = visits((0, 24, 10), (24, 48, NAN), (48, 72, 72))
    exact = timed(histories, stated, np.array([True]))
    assert exact.after.tolist() == [10, 24, 48]
    assert exact.by.tolist() == [10 + MINUTE, 48, 72]
    assert (exact.since, exact.until) == (histories.since, histories.until)


def test_untrusted_date_is_ignored() -> None:
    histories, stated = visits((0, 24, 10), (0, 24, 10), targets=2)
    assert timed(histories, stated, np.array([False, True])).by.tolist() == [24, 10 + MINUTE]


def test_date_is_not_used_in_a_long_gap() -> None:
    histories, stated = visits((0, 168, 160))
    assert timed(histories, stated, np.array([True])).after.tolist() == [0]


def test_no_changes_give_no_reliable_dates() -> None:
    histories, stated = visits(targets=2)
    assert timed(histories, stated, np.array([True, True])).by.tolist() == []
    counts = DateCounts.of(histories, stated, np.zeros(2, np.int64), np.array([0, 0]), 1)
    assert counts.reliable().tolist() == [False]
