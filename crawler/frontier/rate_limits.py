"""Limit concurrency and request rate per host across workers.

A worker needs a permit for each request. For hosts without a delay, it reuses a permit for a second
instead of querying Redis for each request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, count

from redis.asyncio.client import Pipeline

from crawler.storage.redis import RedisRetry
from crawler.utils.process import end_tasks

# Read as package resources: a project that is deployed as an egg is not a folder.
SCRIPTS = files("crawler.frontier") / "lua"
# A permit is reused until it is REUSE_SECONDS old, or unused for IDLE_SECONDS while other workers
# use the host.
REUSE_SECONDS, IDLE_SECONDS = 1.0, 0.1
MAX_SLEEP_SECONDS = 1.0
# Longer than permit.lua counts a worker as a user of a host after its last request for permits.
GONE_SECONDS = 3.0
# Without a heartbeat for this time, a worker loses its permits. Usually it has crashed; if it was
# only suspended, the host briefly gets a few more concurrent requests than allowed.
EXPIRY_SECONDS = 6.0


class HostHeld(Exception):
    """Raised if a host is paused for longer than a request can wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(slots=True, eq=False)
class Permit:
    """Permission to send requests to a host; times are in seconds by the event loop's clock.

    once: the permit is for a single request
    idle: time in seconds for which it may be unused
    """

    host: str
    token: str
    once: bool
    taken: float
    given: float = 0.0
    idle: float = IDLE_SECONDS

    def is_expired(self, now: float) -> bool:
        """Return whether this worker should leave the permit to others."""
        return self.once or now > self.taken + REUSE_SECONDS or now > self.given + self.idle


class Permits:
    """Permits of one worker for all hosts.

    Only hosts with permits or waiting requests take time and memory.
    """

    def __init__(self, steady: RedisRetry, prefix: str, worker: str, lease_seconds: float) -> None:
        self._steady, self._prefix, self._worker = steady, prefix, worker
        self._expiry_seconds = min(lease_seconds, EXPIRY_SECONDS)
        self._script, self._hold_script = (
            steady.client.register_script((SCRIPTS / f"{name}.lua").read_text())
            for name in ("permit", "hold")
        )
        self._numbers = count()
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._used: dict[str, Permit] = {}
        self._free: dict[str, list[Permit]] = {}
        self._given: dict[str, asyncio.Event] = {}
        # Hosts of the last GONE_SECONDS with the time of the last request to Redis, oldest first.
        self._asked: dict[str, float] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._is_closed = False
        self._now = asyncio.get_running_loop().time

    async def take(
        self, host: str, concurrency: int, delay_seconds: float, patience_seconds: float
    ) -> Permit:
        """Wait for a permit for one request.

        concurrency:      maximum number of concurrent requests of all workers to the host
        delay_seconds:    minimum time between two requests to the host
        patience_seconds: maximum time to wait for the end of a pause

        Raises HostHeld if the host is paused for longer than `patience_seconds`.
        """
        self._waiting[host] += 1
        try:
            async with self._locks.setdefault(host, asyncio.Lock()):
                while True:
                    permit = None if delay_seconds else self._reused(host)
                    permit = permit or await self._ask(
                        host, concurrency, delay_seconds, patience_seconds
                    )
                    if permit is not None:
                        return permit
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host], self._locks[host]

    def give(self, permit: Permit) -> None:
        """Return a permit after the response."""
        self._used.pop(permit.token, None)
        permit.given = self._now()
        self._free.setdefault(permit.host, []).append(permit)
        if (given := self._given.get(permit.host)) is not None:
            given.set()

    async def hold(self, host: str, seconds: float) -> None:
        """Pause requests of all workers to a host for `seconds`, or until a longer pause ends."""
        keys = [self._key(host, "hold")]
        args: list[str | int] = [self._worker, max(1, round(seconds * 1000))]
        await self._steady.ask(lambda: self._hold_script(keys=keys, args=args))

    async def close(self) -> None:
        """Return all permits to Redis, and remove this worker from the users of all hosts."""
        self._is_closed = True
        for given in self._given.values():
            given.set()
        if self._keeping is not None:
            await end_tasks(self._keeping)
        await self._remove(self._all())
        # These keys have worker names in place of tokens.
        users = [Permit(host, self._worker, True, 0.0) for host in self._asked]
        for of in ("users", "ranks"):
            await self._change(users, lambda pipe, key, name: pipe.zrem(key, name), of)

    def _all(self) -> list[Permit]:
        return [*self._used.values(), *chain.from_iterable(self._free.values())]

    def _reused(self, host: str) -> Permit | None:
        now = self._now()
        valid = [permit for permit in self._free.get(host, ()) if not permit.is_expired(now)]
        if not valid:
            return None
        self._take_back(valid[-1])
        self._used[valid[-1].token] = valid[-1]
        return valid[-1]

    def _take_back(self, permit: Permit) -> None:
        """Remove a permit from those that may be reused."""
        free = self._free[permit.host]
        free.remove(permit)
        if not free:
            del self._free[permit.host]

    async def _ask(
        self, host: str, concurrency: int, delay_seconds: float, patience_seconds: float
    ) -> Permit | None:
        """Request permits for all requests that wait for the host; return one of them."""
        # Such a request makes this worker a user of the host for a while.
        now = self._now()
        self._asked.pop(host, None)
        self._asked[host] = now
        while (oldest := next(iter(self._asked))) and self._asked[oldest] < now - GONE_SECONDS:
            del self._asked[oldest]
        want = 1 if delay_seconds else min(self._waiting[host], concurrency)
        tokens = [f"{self._worker} {next(self._numbers)}" for _ in range(want)]
        keys = [self._key(host, name) for name in ("running", "next", "hold", "users", "ranks")]
        times_ms = [round(seconds * 1000) for seconds in (delay_seconds, self._expiry_seconds)]
        args: list[str | int] = [self._worker, concurrency, *times_ms, *tokens]
        reply, ms, *more = await self._steady.ask(lambda: self._script(keys=keys, args=args))
        if reply == b"go":
            (granted, workers), taken = more, self._now()
            idle = REUSE_SECONDS if workers == 1 else IDLE_SECONDS
            first, *others = (
                Permit(host, token, bool(delay_seconds), taken, idle=idle)
                for token in tokens[:granted]
            )
            first = await self._started(first, ms / 1000)
            for permit in others:
                self.give(permit)
            return first
        if reply == b"hold" and ms / 1000 > patience_seconds:
            raise HostHeld(ms / 1000)
        await self._pause(host, ms / 1000)
        return None

    async def _started(self, permit: Permit, seconds: float) -> Permit:
        """Return a permit after the delay of `seconds` that Redis has assigned to it."""
        self._used[permit.token] = permit
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.ensure_future(self._keep())
        try:
            await asyncio.sleep(seconds)
        except BaseException:
            self.give(permit)
            raise
        return permit

    async def _pause(self, host: str, seconds: float) -> None:
        """Wait for `seconds`, or until a permit of this worker for the host is returned."""
        given = self._given[host] = asyncio.Event()
        try:
            await asyncio.wait_for(given.wait(), min(seconds, MAX_SLEEP_SECONDS))
        except TimeoutError:
            return
        finally:
            del self._given[host]

    async def _keep(self) -> None:
        """Return expired permits to Redis, and renew all others."""
        renewed = self._now()
        while not self._is_closed and (self._used or self._free):
            await asyncio.sleep(IDLE_SECONDS)
            now = self._now()
            free = chain.from_iterable(self._free.values())
            expired = [permit for permit in free if permit.is_expired(now)]
            for permit in expired:
                self._take_back(permit)
            await self._remove(expired)
            if now > renewed + self._expiry_seconds / 4:
                renewed = now
                await self._renew(self._all())

    async def _remove(self, permits: list[Permit]) -> None:
        await self._change(permits, lambda pipe, key, token: pipe.zrem(key, token))

    async def _renew(self, permits: list[Permit]) -> None:
        seconds, micros = await self._steady.ask(self._steady.client.time)
        until = seconds * 1000 + micros // 1000 + round(self._expiry_seconds * 1000)
        await self._change(
            permits, lambda pipe, key, token: pipe.zadd(key, {token: until}, xx=True)
        )

    async def _change(
        self,
        permits: list[Permit],
        change: Callable[[Pipeline, str, str], object],
        of: str = "running",
    ) -> None:
        async def send() -> None:
            async with self._steady.client.pipeline(transaction=False) as pipe:
                for permit in permits:
                    change(pipe, self._key(permit.host, of), permit.token)
                await pipe.execute()

        if permits:
            await self._steady.ask(send)

    def _key(self, host: str, name: str) -> str:
        return f"{{{self._prefix}:host:{host}}}:{name}"
