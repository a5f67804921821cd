"""Invariants of the times at which a channel sends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crawler.notify.channels import LONGEST_WAIT, Channel, digest_due, next_attempt, open_from

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
moments = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))
clocks = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from((0, 15, 30, 59)))
# Zones with clock changes of an hour and of half an hour, and with an offset of 5:45 hours.
zones = st.sampled_from(("UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"))


def channel(**keys: Any) -> Channel:
    return Channel.model_validate({"apprise": "json://localhost"} | keys)


@given(hours=st.floats(0, 720), seed=st.integers(0, 1000), took=st.floats(0, 60))
def test_attempts_back_off_and_end_within_retry_hours(hours: float, seed: int, took: float) -> None:
    patient, rng = channel(retry_hours=hours), Random(seed)
    now, attempts, waits = NOON, 1, []
    while (due := next_attempt(patient, attempts, NOON, now, rng)) is not None:
        waits.append(due - now)
        now, attempts = due + timedelta(seconds=took), attempts + 1
        assert NOON < due <= NOON + timedelta(hours=hours)
    growing = [wait for wait in waits if wait < LONGEST_WAIT * 0.7]
    assert growing == sorted(growing)
    assert all(MINUTE * 0.75 <= wait <= LONGEST_WAIT for wait in waits)
    # 9 attempts until the longest wait, then at least one every 6 hours and at most every 4.5.
    assert len(waits) <= 9 + hours / 4.5
    assert len(waits) >= min(9, hours / 6) - 1


@given(moment=moments, start=clocks, end=clocks, zone=zones)
def test_channel_opens_within_a_day(moment: datetime, start: str, end: str, zone: str) -> None:
    if start == end:
        return
    quiet = channel(quiet_hours=f"{start}-{end}", timezone=zone)
    opened = open_from(quiet, moment)
    assert moment <= opened <= moment + 25 * HOUR
    assert open_from(quiet, opened) == opened
    local = f"{opened.astimezone(quiet.zone):%H:%M}"
    assert not (start <= local < end if start < end else local >= start or local < end)


@given(moment=moments, kind=st.sampled_from(("hour", "day", "week")), clock=clocks, zone=zones)
def test_digest_is_due_once_per_period(moment: datetime, kind: str, clock: str, zone: str) -> None:
    digest = channel(digest=kind, digest_at=clock, timezone=zone)
    due = digest_due(digest, moment)
    longest = {"hour": HOUR, "day": 25 * HOUR, "week": (7 * 24 + 1) * HOUR}[kind]
    assert moment < due <= moment + longest
    # All events until then are in the same digest.
    assert digest_due(digest, moment + (due - moment) / 2) == due
