"""How a Redis or Valkey server is."""

from __future__ import annotations

import re
import statistics
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from crawler.redis.client import open_redis, user_errors

PINGS = 5
LIFE_MS = 10_000
# Written and read within a script, as claims and leases are; it goes by itself.
SCRIPT = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return redis.call('GET', KEYS[1])"


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself; None where it may not be asked.

    product:       Redis or Valkey
    policy:        what it does when its memory is full
    memory_bytes:  the most it may use; 0: no limit
    is_kept:       whether each write is appended to a file
    is_failing:    whether the last attempt to write that file, or a snapshot, failed
    runs_scripts:  whether a script wrote and read a key
    ahead_seconds: its clock less ours
    """

    product: str
    version: tuple[int, ...] | None
    policy: str | None
    memory_bytes: int | None
    is_kept: bool | None
    is_failing: bool
    runs_scripts: bool
    ahead_seconds: float
    round_trip_ms: float


async def server(url: str, timeout_seconds: float) -> Server:
    """Ask the server of a URL. Raises ConfigError and StorageError."""
    client = await open_redis(url, timeout_seconds, retry_seconds=0)
    try:
        with user_errors(client):
            return await _asked(client)
    finally:
        await client.aclose()


async def _asked(client: Redis) -> Server:
    info = await _info(client)
    times = []
    for _ in range(PINGS):
        before, began = datetime.now(UTC), time.perf_counter()
        seconds, micros = await client.time()
        times.append(time.perf_counter() - began)
    middle = before + timedelta(seconds=times[-1] / 2)
    told = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)
    text = info.get("valkey_version") or info.get("redis_version")
    return Server(
        product="Valkey" if "valkey_version" in info else "Redis",
        version=tuple(map(int, re.findall(r"\d+", str(text))[:3])) if text else None,
        policy=info.get("maxmemory_policy"),
        memory_bytes=info.get("maxmemory"),
        is_kept=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        is_failing=_fails(info),
        runs_scripts=await _runs_scripts(client),
        ahead_seconds=(told - middle).total_seconds(),
        round_trip_ms=statistics.median(times) * 1000,
    )


async def _info(client: Redis) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    try:
        for section in ("server", "memory", "persistence"):
            found |= await client.info(section)
    except NoPermissionError:
        return {}
    return found


def _fails(info: Mapping[str, Any]) -> bool:
    named = ("aof_last_write_status", "rdb_last_bgsave_status")
    return any(info.get(name, "ok") != "ok" for name in named)


async def _runs_scripts(client: Redis) -> bool:
    """A full server or one that may not run scripts raises an error of the driver."""
    value = uuid.uuid4().hex
    reply: Any = await client.eval(SCRIPT, 1, f"freshet:doctor:{value}", value, LIFE_MS)
    return bool(reply == value.encode())
