"""Priority under overload: the order in which due targets are visited."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.config import Config
from schedules.dispatch import POLICIES, Capacity, Due, dispatch

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


def test_value_policy_orders_by_value_per_cost() -> None:
    assert visit_order("value", due(3, value=[1, 3, 2])) == [1, 2, 0]
    assert visit_order("value", due(3, value=[1, 3, 2], cost=[0.1, 3, 1])) == [0, 2, 1]
    assert visit_order("value", due(0)) == []


def test_targets_below_minimum_ratio_precede_valuable_ones() -> None:
    # The minimum is 0.8 of the equal ratio of 0.5.
    few = due(3, value=[9, 1, 1], requested=[11] * 3, refreshed=[9, 4, 3.9])
    assert visit_order("value", few) == [2, 0, 1]
    long = due(3, value=[9, 1, 1], waited=[HOUR, 2.4 * HOUR, 2.5 * HOUR])
    assert visit_order("value", long) == [2, 0, 1]
    assert visit_order("value", long, equal_ratio=0.4) == [0, 2, 1], (
        "of equal targets, the longer wait goes first"
    )


def test_latest_target_below_minimum_ratio_goes_first() -> None:
    starving = due(3, refreshed=[0, 0, 9], waited=[HOUR, 3 * HOUR, HOUR], value=[1, 1, 9])
    assert visit_order("value", starving) == [1, 0, 2]
    longer = due(2, refreshed=[0, 0], period=[HOUR, 8 * HOUR], waited=[2 * HOUR, 9 * HOUR])
    assert visit_order("value", longer) == [0, 1], "measured in periods, not in hours"


def test_targets_beyond_longest_interval_go_first() -> None:
    longest = [5 * HOUR] * 3
    targets = due(3, value=[9, 0, 0], waited=[HOUR, 5 * HOUR, 6 * HOUR], longest=longest)
    assert visit_order("value", targets, equal_ratio=0) == [2, 1, 0]


def test_paper_policy_takes_lowest_ratio_to_expected() -> None:
    # 0.9 of 0.9, 0.5 of 1, and 0.4 of 0.5
    targets = due(3, refreshed=[9, 5, 4], expected=[0.9, 1, 0.5])
    assert visit_order("expected-ratio", targets) == [1, 2, 0]


def test_starved_first_takes_most_starved_requests() -> None:
    targets = due(3, requested=[100, 12, 10], refreshed=[96, 9, 1])
    assert visit_order("starved-first", targets) == [2, 0, 1]


def test_round_robin_orders_by_wait() -> None:
    assert visit_order("round-robin", due(3, waited=[5, 9, 7], value=[9, 1, 1])) == [1, 2, 0]


def test_earliest_deadline_uses_next_request() -> None:
    targets = due(3, period=[HOUR, 2 * HOUR, HOUR], asked=[10, 2 * HOUR - 5, 20])
    assert visit_order("earliest-deadline", targets) == [1, 2, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_longest_wait_breaks_ties(policy: str) -> None:
    assert visit_order(policy, due(3, waited=[1, 3, 2])) == [1, 2, 0]


def test_requests_seconds_and_hosts_limit_capacity() -> None:
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
def test_capacity_is_respected_without_duplicates(
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
    all_targets = dispatch(policy, targets, Capacity(), 0.5)
    assert sorted(all_targets.tolist()) == list(range(len(rows)))


def test_setting_accepts_every_policy() -> None:
    assert get_args(Config.model_fields["dispatch"].annotation) == POLICIES
