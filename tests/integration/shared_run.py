"""A shared run without a crawl: workers and a queue in a real Redis."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis as driver
from scrapy import Spider

from crawler.frontier.redis_queue import LeasedQueue
from crawler.storage.redis import RedisRetry, open_redis

# Longer than any test: leases expire when the test expires them.
LEASE_MS = 3_600_000
Result = TypeVar("Result")


class SharedRun:
    """A shared run whose workers send their requests one after the other."""

    def __init__(self, url: str, lease_ms: int = LEASE_MS) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = self.loop.run_until_complete(open_redis(url))
        self.key = f"{{freshet:{uuid.uuid4().hex}:shop}}:"
        self.steady = RedisRetry(self.client, 0.0)
        self.driver = driver.Redis.from_url(url, decode_responses=True)
        self.lease_ms = lease_ms
        self.queues: dict[str, LeasedQueue] = {}

    def enter(self, worker: str) -> LeasedQueue:
        """Let a worker join the run, or prepare the run if there is none."""
        queue = LeasedQueue(self.steady, Spider("shop"), self.key, worker, self.lease_ms)
        joined = self.ask(queue.join("first"))
        if joined.todo == "prepare":
            assert self.ask(queue.open("run", 0))
        self.queues[worker] = queue
        return queue

    def ask(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(call)

    def names(self, key: str) -> set[str]:
        return set(self.driver.zrange(f"{self.key}first:{key}", 0, -1))

    def of(self, worker: str) -> list[str]:
        """Return the entries that Redis has leased to a worker."""
        holders = self.driver.hgetall(f"{self.key}first:holders")
        return [entry for entry, holder in holders.items() if holder == worker]

    def run_out(self, worker: str) -> None:
        for entry in self.of(worker):
            self.driver.zadd(f"{self.key}first:leased", {entry: 1}, xx=True)

    def die(self, worker: str) -> None:
        """Simulate a worker that has not renewed its lease in time."""
        self.run_out(worker)
        self.driver.zadd(f"{self.key}first:workers", {worker: 1}, xx=True)
        del self.queues[worker]

    def close(self) -> None:
        for key in self.driver.scan_iter(f"{self.key}*"):
            self.driver.delete(key)
        self.driver.close()
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


@contextmanager
def opened_run(url: str, lease_ms: int = LEASE_MS) -> Iterator[SharedRun]:
    """Open a shared run; delete its keys at the end."""
    shared = SharedRun(url, lease_ms)
    try:
        yield shared
    finally:
        shared.close()


async def nothing_to_feed() -> None:
    """Wait, as if another worker were looking for due targets."""
    await asyncio.sleep(60)
