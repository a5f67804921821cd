"""Workers return their permits when they leave, and get them one by one if a host has a delay."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from crawler.frontier.rate_limits import IDLE_SECONDS, REUSE_SECONDS, HostHeld, Permit, Permits
from crawler.storage.redis import RedisRetry, open_redis


async def leftovers(url: str, pause_seconds: float) -> tuple[bool, int]:
    """Return whether tasks are still running after a worker's end, and the number of keys left.

    pause_seconds: time from the first permit to the end, when all permits are returned
    """
    client, prefix = await open_redis(url, retry_seconds=0), f"freshet:{uuid.uuid4().hex}"
    permits = Permits(RedisRetry(client, 5.0), prefix, "ann", 30.0)
    taken = [await permits.take("shop.example", 16, 0.0, 60.0) for _ in range(4)]
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.sleep(pause_seconds)
    for permit in taken:
        permits.give(permit)
    await permits.close()
    left = [key async for key in client.scan_iter(f"*{prefix}*")]
    await client.aclose()
    return any(not task.done() for task in others), len(left)


@pytest.mark.parametrize("pause_ms", range(0, 200, 20))
def test_closed_worker_leaves_no_tasks_or_keys(redis: str, pause_ms: int) -> None:
    assert asyncio.run(leftovers(redis, pause_ms / 1000)) == (False, 0)


async def seconds_of_three(url: str, delay_seconds: float) -> float:
    """Return the time that a worker takes for three requests, one after another."""
    client, prefix = await open_redis(url, retry_seconds=0), f"freshet:{uuid.uuid4().hex}"
    permits, now = Permits(RedisRetry(client, 5.0), prefix, "ann", 30.0), time.monotonic
    began = now()
    for _ in range(3):
        permits.give(await permits.take("shop.example", 16, delay_seconds, 60.0))
    seconds = now() - began
    await permits.close()
    await client.aclose()
    return seconds


def test_permits_of_a_host_are_spaced_by_its_delay(redis: str) -> None:
    assert asyncio.run(seconds_of_three(redis, 0.15)) >= 0.3


@pytest.mark.parametrize(
    ("given", "now", "is_expired"),
    [
        (100.95, 100.99, False),
        (100.95, 101.01, True),
        (100.0, 100.09, False),
        (100.0, 100.11, True),
    ],
)
def test_permit_expires_when_old_or_unused(given: float, now: float, is_expired: bool) -> None:
    assert Permit("shop.example", "ann 1", False, 100.0, given).is_expired(now) == is_expired


async def pause_after(url: str, seconds: list[float]) -> float:
    """Return for how long a host is paused after these pauses, one directly after another."""
    client, prefix = await open_redis(url, retry_seconds=0), f"freshet:{uuid.uuid4().hex}"
    permits = Permits(RedisRetry(client, 5.0), prefix, "ann", 30.0)
    for each in seconds:
        await permits.hold("shop.example", each)
    try:
        with pytest.raises(HostHeld) as held:
            await permits.take("shop.example", 16, 0.0, 1.0)
    finally:
        await permits.close()
        await client.delete(permits._key("shop.example", "hold"))
        await client.aclose()
    return held.value.seconds


@pytest.mark.parametrize("seconds", [[90.0], [30.0, 90.0], [90.0, 30.0]])
def test_shorter_pause_does_not_end_a_longer_one(redis: str, seconds: list[float]) -> None:
    assert asyncio.run(pause_after(redis, seconds)) == pytest.approx(90.0, abs=5.0)


async def kept_after(url: str, hosts: int) -> list[int]:
    """Return the sizes of what a worker keeps of many hosts when their permits have expired."""
    client, prefix = await open_redis(url, retry_seconds=0), f"freshet:{uuid.uuid4().hex}"
    permits = Permits(RedisRetry(client, 5.0), prefix, "ann", 30.0)
    for n in range(hosts):
        permits.give(await permits.take(f"shop{n}.example", 16, 0.0, 60.0))
    await asyncio.sleep(REUSE_SECONDS + 3 * IDLE_SECONDS)
    sizes = [
        len(each) for each in (permits._free, permits._locks, permits._waiting, permits._given)
    ]
    await permits.close()
    left = [key async for key in client.scan_iter(f"*{prefix}*")]
    await client.aclose()
    return [*sizes, len(left)]


def test_idle_hosts_take_no_time(redis: str) -> None:
    assert asyncio.run(kept_after(redis, 50)) == [0] * 5
