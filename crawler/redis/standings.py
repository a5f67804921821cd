"""How the shared passes of a database stand, as anybody may see it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from crawler.redis.client import user_errors


@dataclass(frozen=True, slots=True)
class PassStanding:
    """One pass at work: entries that wait, entries that are leased, workers alive."""

    spider: str
    waiting: int
    leased: int
    workers: int


async def standings(client: Redis, database: str) -> list[PassStanding]:
    """All passes at work, by spider."""
    pattern = re.sub(r"([\\*?^\[\]-])", r"\\\1", f"{{freshet:{database}:") + "*}:pass"
    with user_errors(client):
        keys = sorted([key.decode() async for key in client.scan_iter(pattern, count=1000)])
        found = [await _standing(client, key.removesuffix("pass")) for key in keys]
    return [one for one in found if one is not None]


async def _standing(client: Redis, base: str) -> PassStanding | None:
    run: Any = await client.hget(f"{base}pass", "id")
    if run is None:
        return None
    seconds, micros = await client.time()
    of = f"{base}{run.decode()}:"
    async with client.pipeline(transaction=False) as pipe:
        for name in ("pending", "suspects", "leased"):
            pipe.zcard(f"{of}{name}")
        pipe.zcount(f"{of}workers", seconds * 1000 + micros // 1000, "+inf")
        pending, suspects, leased, workers = await pipe.execute()
    spider = base.removesuffix("}:").rpartition(":")[2]
    return PassStanding(spider, pending + suspects, leased, workers)
