"""Estimates of a server's clock between two readings."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from crawler.utils.time import ServerTime, steady_seconds

HOUR = timedelta(hours=1)


def read(server: ServerTime, server_time: datetime, within_seconds: float = 0.0) -> float:
    return server.follow(server_time, steady_seconds(), within_seconds)


def test_local_clock_is_used_until_first_reading() -> None:
    server = ServerTime()
    assert abs(server.now() - datetime.now(UTC)) < timedelta(seconds=1)
    server_time = datetime.now(UTC) - 5 * HOUR
    assert -18001 < read(server, server_time) < -17999
    assert server_time <= server.now() < server_time + timedelta(seconds=1)


def test_reading_is_adjusted_for_its_age() -> None:
    server, server_time = ServerTime(), datetime.now(UTC)
    server.follow(server_time, steady_seconds() - 10, 0.0)
    assert server_time + timedelta(seconds=10) <= server.now() < server_time + timedelta(seconds=11)


def test_clock_never_goes_back() -> None:
    server, server_time = ServerTime(), datetime.now(UTC)
    read(server, server_time)
    times = [server.now()]
    for seconds in (0.05, -0.1, 0.02, -0.2, 0.0, -0.03):
        read(server, server_time + timedelta(seconds=seconds))
        for _ in range(20):
            time.sleep(0.001)
            times.append(server.now())
    assert all(earlier < later for earlier, later in pairwise(times))


def test_clock_ahead_of_server_slows_down() -> None:
    server, server_time = ServerTime(), datetime.now(UTC)
    read(server, server_time + timedelta(seconds=0.1))
    began = steady_seconds()
    assert -0.11 < read(server, server_time) < -0.09
    time.sleep(0.1)
    half = (server.now() - server_time).total_seconds() - 0.1
    assert 0.04 < half < (steady_seconds() - began) / 2 + 0.01
    time.sleep(0.15)
    passed = steady_seconds() - began
    assert abs((server.now() - server_time).total_seconds() - passed) < 0.005


def test_late_clock_jumps_but_ignores_noise() -> None:
    server, server_time = ServerTime(), datetime.now(UTC)
    read(server, server_time)
    read(server, server_time + HOUR, within_seconds=4000)
    assert server.now() < server_time + HOUR / 2
    read(server, server_time + HOUR)
    assert server.now() >= server_time + HOUR
