"""Limits per host during a run: caps, holds, and repeated refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crawler.frontier.run_limits import HostLimits

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_cap_counts_requests_per_host() -> None:
    limits = HostLimits(cap=2)
    assert [limits.spend("a"), limits.spend("a"), limits.spend("a")] == [True, True, False]
    assert limits.spend("b")


def test_rejected_request_is_not_counted() -> None:
    limits = HostLimits(cap=1)
    limits.spend("a")
    limits.spend("a")
    assert limits.requests["a"] == 1


def test_requests_are_unlimited_without_a_cap() -> None:
    limits = HostLimits()
    assert all(limits.spend("a") for _ in range(1000))
    assert limits.closed(NOON, MINUTE) == []


def test_wait_lasts_until_the_hold_ends() -> None:
    limits = HostLimits()
    limits.hold("a", NOON + timedelta(seconds=30))
    assert limits.wait_seconds("a", NOON) == 30
    assert limits.wait_seconds("a", NOON + MINUTE) == 0
    assert limits.wait_seconds("b", NOON) == 0


def test_longer_of_two_holds_applies() -> None:
    limits = HostLimits()
    limits.hold("a", NOON + 2 * MINUTE)
    limits.hold("a", NOON + MINUTE)
    assert limits.wait_seconds("a", NOON) == 120


@pytest.mark.parametrize(
    ("blocked_responses", "gave_up"),
    [
        ([True, True, True], [False, False, True]),
        ([True, True, False, True, True], [False] * 5),
        ([True, True, True, True], [False, False, True, False]),
        ([True, True, True, False, True, True, True], [False] * 2 + [True] + [False] * 3 + [True]),
    ],
    ids=["three in a row", "success resets the count", "reported once", "again after a success"],
)
def test_consecutive_blocked_responses_reach_the_limit(
    blocked_responses: list[bool], gave_up: list[bool]
) -> None:
    limits = HostLimits(max_blocked=3)
    assert [limits.note("a", blocked=blocked) for blocked in blocked_responses] == gave_up


def test_blocked_responses_are_counted_per_host() -> None:
    limits = HostLimits(max_blocked=2)
    assert not limits.note("a", blocked=True)
    assert not limits.note("b", blocked=True)


def test_capped_hosts_and_those_on_a_long_hold_are_closed() -> None:
    limits = HostLimits(cap=1)
    limits.spend("capped")
    limits.hold("long", NOON + 2 * MINUTE)
    limits.hold("short", NOON + MINUTE)
    limits.hold("over", NOON - MINUTE)
    assert sorted(limits.closed(NOON, MINUTE)) == ["capped", "long"]


def test_given_up_host_is_closed() -> None:
    limits = HostLimits()
    limits.given_up.add("a")
    assert limits.closed(NOON, MINUTE) == ["a"]


def test_a_host_is_unreachable_after_failures_in_a_row() -> None:
    limits = HostLimits(tries=3)
    assert [limits.note_failure("a") for _ in range(2)] == [False, False]
    assert not limits.note_failure("a", has_failed=False)
    assert [limits.note_failure("a") for _ in range(4)] == [False, False, True, False]
    assert limits.is_unreachable("a")
    assert not limits.is_unreachable("b")
