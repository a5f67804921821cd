"""Conversion of planned targets to the dispatcher's input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schedules.dispatch import Waiting

NAN = np.nan


def waiting(n: int, **columns: list[float]) -> Waiting:
    """Return targets that are visited daily and are just due; `columns` override fields."""
    usual: dict[str, Any] = {
        "worth": [1] * n, "every": [24] * n, "waited": [24] * n, "overdue": [0] * n,
        "visits": [10] * n, "missed": [0] * n, "seconds": [1] * n,
    } | columns  # fmt: skip
    arrays = {name: np.array(column, float) for name, column in usual.items()}
    return Waiting(**arrays, host=np.zeros(n, np.int64))


def test_each_elapsed_period_adds_a_request() -> None:
    targets = waiting(3, overdue=[0, 23, 49], missed=[0, 3, 0]).due(672)
    assert targets.requested.tolist() == [11, 14, 13]
    assert targets.refreshed.tolist() == [10, 10, 10]
    assert targets.asked.tolist() == [0, 23, 1]


def test_value_grows_once_interval_is_exceeded() -> None:
    targets = waiting(3, worth=[2, 2, 2], waited=[12, 24, 60]).due(672)
    assert targets.value.tolist() == [2, 2, 5]


def test_unplanned_targets_get_the_mean_value() -> None:
    targets = waiting(3, worth=[1, NAN, 3], every=[24, NAN, 24]).due(672)
    assert targets.value.tolist() == [1, 2, 3]
    assert targets.requested.tolist() == [11, 11, 11]
    assert targets.period.tolist() == [24, np.inf, 24]
    nothing = waiting(2, worth=[NAN, NAN], every=[NAN, NAN])
    assert nothing.due(672).value.tolist() == [0, 0]


def test_unplanned_value_assumes_one_change_per_period() -> None:
    hourly, daily = waiting(2, worth=[NAN, NAN], every=[1, 24], waited=[1, 24]).due(672).value
    assert daily == pytest.approx(24 * hourly)
    assert hourly == pytest.approx(1 - 2 / np.e)


def test_unknown_duration_defaults_to_mean() -> None:
    timed = [
        waiting(3, seconds=seconds).due(672, by_time=True).cost.tolist()
        for seconds in ([2, NAN, 4], [2, 0, 4], [NAN] * 3, [0] * 3)
    ]
    assert timed == [[2, 3, 4], [2, 3, 4], [1, 1, 1], [1, 1, 1]]


def test_requests_have_equal_costs_by_default() -> None:
    assert waiting(3, seconds=[2, NAN, 4]).due(672).cost.tolist() == [1, 1, 1]


def test_expected_ratio_ignores_targets_without_period() -> None:
    targets = waiting(3, every=[12, 24, NAN], seconds=[10, 10, 10]).due(672, by_time=True)
    assert targets.expected == pytest.approx([0.8, 0.8, 1])
