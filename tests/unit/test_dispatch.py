"""Who goes first when not all that is due can go."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.dispatch import least, most_valuable, room

NAN = np.nan


def order(
    value: list[float], waited: list[float] | None = None, every: list[float] | None = None,
    most: int = 100,
) -> list[int]:  # fmt: skip
    """Indices in the order of going; by default nobody has waited longer than planned."""
    n = len(value)
    return most_valuable(
        np.array(value, float),
        np.array(waited or [24] * n, float),
        np.array(every or [24] * n, float),
        most,
        longest_hours=672,
    ).tolist()


@pytest.mark.parametrize(
    ("cap", "used", "left"), [(0, 9, None), (10, 0, 10), (10, 9, 1), (10, 10, 0), (10, 15, 0)]
)
def test_a_cap_leaves_what_is_not_spent(cap: int, used: int, left: int | None) -> None:
    assert room(cap, used) == left


@pytest.mark.parametrize(
    ("rooms", "tightest"),
    [((), None), ((None,), None), ((None, 3), 3), ((7, 3), 3), ((0, None), 0)],
)
def test_the_tightest_cap_counts(rooms: tuple[int | None, ...], tightest: int | None) -> None:
    assert least(*rooms) == tightest


def test_the_most_valuable_go_first() -> None:
    assert order([1, 3, 2]) == [1, 2, 0]
    assert order([1, 3, 2], most=2) == [1, 2]
    assert order([1, 3, 2], most=0) == []
    assert order([]) == []


def test_equally_valuable_ones_go_as_they_have_waited() -> None:
    assert order([1, 1, 1], waited=[5, 9, 7]) == [1, 2, 0]


def test_a_visit_put_off_gains_until_it_goes() -> None:
    assert order([1, 3], waited=[24, 24]) == [1, 0]
    assert order([1, 3], waited=[24 * 4, 24]) == [0, 1]
    assert order([1, 3], waited=[24 * 4, 24 * 4]) == [1, 0]


def test_nobody_waits_longer_than_the_longest_interval() -> None:
    assert order([0, 9, 0], waited=[700, 24, 672], every=[672, 24, 672]) == [0, 2, 1]


def test_what_no_plan_values_stands_in_the_middle() -> None:
    assert order([1, NAN, 3], every=[24, NAN, 24]) == [2, 1, 0]
    assert order([NAN, NAN], waited=[3, 5], every=[NAN, np.inf]) == [1, 0]
