"""Priority under overload: the order in which due targets are visited."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.config import Config
from schedules.dispatch import POLICIES, Capacity, Due, dispatch, least, room

HOUR = 3600.0


def due(n: int, **columns: list[float]) -> Due:
    """Return targets that are requested hourly and just became due; `columns` override fields."""
    usual = Due(
        requested=np.full(n, 10.0),
        refreshed=np.full(n, 9.0),
        period=np.full(n, HOUR),
        longest=np.full(n, np.inf),
        waited=np.full(n, HOUR),
        asked=np.zeros(n),
        cost=np.ones(n),
        value=np.ones(n),
        expected=np.ones(n),
        host=np.zeros(n, np.int64),
    )
    changed: dict[str, Any] = {name: np.array(column) for name, column in columns.items()}
    return replace(usual, **changed)


def visit_order(policy: str, targets: Due, equal_ratio: float = 0.5, **capacity: Any) -> list[int]:
    visited: list[int] = dispatch(policy, targets, Capacity(**capacity), equal_ratio).tolist()
    return visited


def test_value_is_by_cost() -> None:
    assert visit_order("value", due(3, value=[1, 3, 2])) == [1, 2, 0]
    assert visit_order("value", due(3, value=[1, 3, 2], cost=[0.1, 3, 1])) == [0, 2, 1]
    assert visit_order("value", due(0)) == []


def test_who_falls_below_the_floor_goes_before_the_valuable() -> None:
    # The minimum is 0.8 of the equal ratio of 0.5.
    few = due(3, value=[9, 1, 1], requested=[11] * 3, refreshed=[9, 4, 3.9])
    assert visit_order("value", few) == [2, 0, 1]
    long = due(3, value=[9, 1, 1], waited=[HOUR, 2.4 * HOUR, 2.5 * HOUR])
    assert visit_order("value", long) == [2, 0, 1]
    assert visit_order("value", long, equal_ratio=0.4) == [0, 2, 1], (
        "of equal targets, the longer wait goes first"
    )


def test_of_those_below_the_floor_the_latest_goes_first() -> None:
    starving = due(3, refreshed=[0, 0, 9], waited=[HOUR, 3 * HOUR, HOUR], value=[1, 1, 9])
    assert visit_order("value", starving) == [1, 0, 2]
    longer = due(2, refreshed=[0, 0], period=[HOUR, 8 * HOUR], waited=[2 * HOUR, 9 * HOUR])
    assert visit_order("value", longer) == [0, 1], "measured in periods, not in hours"


def test_nobody_waits_longer_than_the_longest_interval() -> None:
    longest = [5 * HOUR] * 3
    targets = due(3, value=[9, 0, 0], waited=[HOUR, 5 * HOUR, 6 * HOUR], longest=longest)
    assert visit_order("value", targets, equal_ratio=0) == [2, 1, 0]


def test_the_paper_s_policy_takes_the_lowest_ratio_against_the_expected() -> None:
    # 0.9 of 0.9, 0.5 of 1, and 0.4 of 0.5
    targets = due(3, refreshed=[9, 5, 4], expected=[0.9, 1, 0.5])
    assert visit_order("expected-ratio", targets) == [1, 2, 0]


def test_the_baseline_takes_the_most_starved_requests() -> None:
    targets = due(3, requested=[100, 12, 10], refreshed=[96, 9, 1])
    assert visit_order("starved-first", targets) == [2, 0, 1]


def test_in_turn_is_by_the_time_waited() -> None:
    assert visit_order("round-robin", due(3, waited=[5, 9, 7], value=[9, 1, 1])) == [1, 2, 0]


def test_a_deadline_is_the_next_request() -> None:
    targets = due(3, period=[HOUR, 2 * HOUR, HOUR], asked=[10, 2 * HOUR - 5, 20])
    assert visit_order("earliest-deadline", targets) == [1, 2, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_of_equals_who_has_waited_longest_goes_first(policy: str) -> None:
    assert visit_order(policy, due(3, waited=[1, 3, 2])) == [1, 2, 0]


def test_requests_seconds_and_hosts_cut() -> None:
    targets = due(5, value=[5, 4, 3, 2, 1], cost=[1] * 5, host=[0, 0, 0, 1, 1])
    assert visit_order("value", targets, requests=2) == [0, 1]
    assert visit_order("value", targets, requests=0) == []
    assert visit_order("value", targets, seconds=3.0) == [0, 1, 2]
    assert visit_order("value", targets, of_host=np.array([1, 5])) == [0, 3, 4]
    assert visit_order("value", targets, of_host=np.array([2, 0]), requests=1) == [0]
    assert visit_order("value", targets, of_host=np.array([1, 5]), seconds=2.0) == [0, 3]


@given(
    st.lists(st.tuples(*[st.floats(0.1, 10)] * 3, st.integers(0, 3)), max_size=30),
    st.sampled_from(POLICIES),
    st.integers(0, 40),
    st.floats(0, 50),
)
def test_the_capacity_is_kept_and_nobody_goes_twice(
    rows: list[tuple[float, float, float, int]], policy: str, requests: int, seconds: float
) -> None:
    value, cost, waited, host = zip(*rows, strict=True) if rows else ((),) * 4
    targets = due(len(rows), value=[*value], cost=[*cost], waited=[*waited])
    targets = replace(targets, host=np.array(host, np.int64))
    of_host = np.array([0, 1, 2, 100])
    capacity = Capacity(requests, seconds, of_host)
    visited = dispatch(policy, targets, capacity, 0.5)
    assert len(np.unique(visited)) == len(visited) <= requests
    assert targets.cost[visited].sum() <= seconds + 1e-9
    assert (np.bincount(targets.host[visited], minlength=4) <= of_host).all()
    everyone = dispatch(policy, targets, Capacity(), 0.5)
    assert sorted(everyone.tolist()) == list(range(len(rows)))


def test_each_policy_can_be_asked_for() -> None:
    assert get_args(Config.model_fields["dispatch"].annotation) == POLICIES


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
