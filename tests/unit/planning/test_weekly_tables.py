"""Requests and changes by hour of the local week."""

from __future__ import annotations

import numpy as np

from crawler.planning import report


def test_slots_of_longer_cycles_count_as_fractions() -> None:
    slots = [
        {"weeks": 1, "slot": 0, "targets": 3},
        {"weeks": 4, "slot": 168 * 2 + 5, "targets": 2},
        {"weeks": 2, "slot": 5, "targets": 1},
    ]
    week = report.requests(slots)
    assert (week[0], week[5], week.sum()) == (3, 1, 4)


def test_even_intervals_spread_over_all_hours() -> None:
    week = report.requests([], [{"per_week": 84.0}, {"per_week": 84.0}])
    assert week.min() == week.max() == 1


def test_sums_by_day_and_hour() -> None:
    week = report.sums([{"day": 6, "hour": 23, "changes": 2}], "changes")
    assert (week[167], week.sum()) == (2, 2)
    assert report.matrix(week)["Sun"] == [0] * 23 + [2]


def test_many_hours_are_grouped_into_columns() -> None:
    few = np.zeros(168)
    few[[0, 12, 36]] = 1, 2, 4
    times, sums = report.columns(few)
    assert times == ["00:00", "12:00"]
    assert sums[:2].tolist() == [[1, 2], [0, 4]]
    times, sums = report.columns(np.ones(168))
    assert times[:2] == ["00-03", "03-06"]
    assert sums.shape == (7, 8)
    assert sums.sum() == 168
