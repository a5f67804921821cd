"""Limits per host during a run: caps, holds, and repeated refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crawler.frontier.run_limits import HostLimits

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_a_cap_is_spent_request_by_request_and_host_by_host() -> None:
    limits = HostLimits(cap=2)
    assert [limits.spend("a"), limits.spend("a"), limits.spend("a")] == [True, True, False]
    assert limits.spend("b")


def test_a_refused_request_is_not_counted() -> None:
    limits = HostLimits(cap=1)
    limits.spend("a")
    limits.spend("a")
    assert limits.requests["a"] == 1


def test_without_a_cap_nothing_is_refused() -> None:
    limits = HostLimits()
    assert all(limits.spend("a") for _ in range(1000))
    assert limits.closed(NOON, MINUTE) == []


def test_a_host_on_hold_is_waited_for() -> None:
    limits = HostLimits()
    limits.hold("a", NOON + timedelta(seconds=30))
    assert limits.wait_seconds("a", NOON) == 30
    assert limits.wait_seconds("a", NOON + MINUTE) == 0
    assert limits.wait_seconds("b", NOON) == 0


def test_of_two_holds_the_longer_stands() -> None:
    limits = HostLimits()
    limits.hold("a", NOON + 2 * MINUTE)
    limits.hold("a", NOON + MINUTE)
    assert limits.wait_seconds("a", NOON) == 120


@pytest.mark.parametrize(
    ("answers", "struck"),
    [
        ([True, True, True], [False, False, True]),
        ([True, True, False, True, True], [False] * 5),
        ([True, True, True, True], [False, False, True, False]),
        ([True, True, True, False, True, True, True], [False] * 2 + [True] + [False] * 3 + [True]),
    ],
    ids=["three in a row", "a good answer forgives", "said once", "and again after a good one"],
)
def test_a_host_that_refuses_in_a_row_is_left_alone(
    answers: list[bool], struck: list[bool]
) -> None:
    limits = HostLimits(strikes=3)
    assert [limits.note("a", blocked=blocked) for blocked in answers] == struck


def test_strikes_of_one_host_are_not_another_s() -> None:
    limits = HostLimits(strikes=2)
    assert not limits.note("a", blocked=True)
    assert not limits.note("b", blocked=True)


def test_capped_hosts_and_those_on_a_long_hold_are_closed() -> None:
    limits = HostLimits(cap=1)
    limits.spend("capped")
    limits.hold("long", NOON + 2 * MINUTE)
    limits.hold("short", NOON + MINUTE)
    limits.hold("over", NOON - MINUTE)
    assert sorted(limits.closed(NOON, MINUTE)) == ["capped", "long"]


def test_a_host_that_was_given_up_gets_no_more_requests() -> None:
    limits = HostLimits()
    limits.given_up.add("a")
    assert limits.closed(NOON, MINUTE) == ["a"]


def test_a_host_is_unreachable_after_failures_in_a_row() -> None:
    limits = HostLimits(tries=3)
    assert [limits.note_failure("a") for _ in range(2)] == [False, False]
    limits.note("a", blocked=False)
    assert [limits.note_failure("a") for _ in range(4)] == [False, False, True, False]
    assert limits.is_unreachable("a")
    assert not limits.is_unreachable("b")
