"""Politeness across workers: how many requests a host gets at a time, and how long after another.

A turn is taken before a request is sent. Where there is no delay a turn is used again for a second,
so that Redis is not asked for each request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from redis.asyncio.client import Pipeline

from crawler.storage.redis import RedisRetry, user_errors
from crawler.utils.process import end_tasks

SCRIPT = Path(__file__).parent / "lua" / "turn.lua"
# Others wait for a turn that is used again; they ask so often.
REUSE_SECONDS, IDLE_SECONDS, ASK_SECONDS = 1.0, 0.1, 0.03
LONGEST_SLEEP_SECONDS = 1.0
# A worker that says nothing for so long has lost its turns: it is dead as a rule, and was it
# asleep, the host gets a few requests more at a time for a moment.
FORGET_SECONDS = 6.0


class HostHeld(Exception):
    """The host has asked to be left alone for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(slots=True, eq=False)
class Turn:
    """Leave to send; times are of the event loop's clock. once: it is not used again."""

    host: str
    token: str
    once: bool
    taken: float
    given: float = 0.0

    def is_left(self, now: float) -> bool:
        """Whether others should have it."""
        return self.once or now > self.taken + REUSE_SECONDS or now > self.given + IDLE_SECONDS


class Turns:
    """The turns of one worker, at all hosts."""

    def __init__(self, steady: RedisRetry, prefix: str, worker: str, lease_seconds: float) -> None:
        self._steady, self._prefix, self._worker = steady, prefix, worker
        self._forget_seconds = min(lease_seconds, FORGET_SECONDS)
        self._script = steady.client.register_script(SCRIPT.read_text())
        self._numbers = count()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._used: dict[str, Turn] = {}
        self._free: defaultdict[str, list[Turn]] = defaultdict(list)
        self._given = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._is_closed = False
        self._now = asyncio.get_running_loop().time

    async def take(
        self, host: str, most: int, delay_seconds: float, patience_seconds: float
    ) -> Turn:
        """Return when a request may be sent.

        most: requests to the host at a time, of all workers. Raises HostHeld where that would be
        later than `patience_seconds`, as the host has asked for that.
        """
        async with self._locks[host]:
            while True:
                turn = None if delay_seconds else self._freed(host)
                turn = turn or await self._ask(host, most, delay_seconds, patience_seconds)
                if turn is not None:
                    return turn

    def give(self, turn: Turn) -> None:
        """The request has been answered."""
        self._used.pop(turn.token, None)
        turn.given = self._now()
        self._free[turn.host].append(turn)
        self._given.set()

    async def hold(self, host: str, seconds: float) -> None:
        """Nobody asks the host for anything for a time."""
        key, ms = self._key(host, "hold"), max(1, round(seconds * 1000))
        with user_errors(self._steady.client):
            await self._steady.ask(lambda: self._steady.client.set(key, self._worker, px=ms))

    async def close(self) -> None:
        """Give back all turns, and leave all hosts to others."""
        self._is_closed = True
        self._given.set()
        if self._keeping is not None:
            await end_tasks(self._keeping)
        await self._forget(self._all())
        gone = [Turn(host, self._worker, True, 0.0) for host in self._locks]
        await self._change(gone, lambda pipe, key, name: pipe.zrem(key, name), "users")

    def _all(self) -> list[Turn]:
        return [*self._used.values(), *chain.from_iterable(self._free.values())]

    def _freed(self, host: str) -> Turn | None:
        free, now = self._free[host], self._now()
        young = [turn for turn in free if not turn.is_left(now)]
        if not young:
            return None
        free.remove(young[-1])
        self._used[young[-1].token] = young[-1]
        return young[-1]

    async def _ask(
        self, host: str, most: int, delay_seconds: float, patience_seconds: float
    ) -> Turn | None:
        token = f"{self._worker} {next(self._numbers)}"
        keys = [self._key(host, name) for name in ("running", "next", "hold", "users")]
        forget_ms = round(self._forget_seconds * 1000)
        words: list[str | int] = [token, most, round(delay_seconds * 1000), forget_ms]
        with user_errors(self._steady.client):
            reply, ms = await self._steady.ask(lambda: self._script(keys=keys, args=words))
        if reply == b"go":
            return await self._begun(Turn(host, token, bool(delay_seconds), self._now()), ms / 1000)
        if reply == b"hold" and ms / 1000 > patience_seconds:
            raise HostHeld(ms / 1000)
        await self._pause(ms / 1000 if reply == b"hold" else ASK_SECONDS)
        return None

    async def _begun(self, turn: Turn, seconds: float) -> Turn:
        """A turn that begins after so many seconds."""
        self._used[turn.token] = turn
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.ensure_future(self._keep())
        try:
            await asyncio.sleep(seconds)
        except BaseException:
            self.give(turn)
            raise
        return turn

    async def _pause(self, seconds: float) -> None:
        """Wait a little, or until a turn of this worker is given back."""
        self._given.clear()
        try:
            await asyncio.wait_for(self._given.wait(), min(seconds, LONGEST_SLEEP_SECONDS))
        except TimeoutError:
            return

    async def _keep(self) -> None:
        """Give back turns that are left to others, and keep those that are used."""
        renewed = self._now()
        while not self._is_closed and (self._used or any(self._free.values())):
            await self._pause(IDLE_SECONDS)
            now = self._now()
            left = [turn for turns in self._free.values() for turn in turns if turn.is_left(now)]
            for turn in left:
                self._free[turn.host].remove(turn)
            await self._forget(left)
            if now > renewed + self._forget_seconds / 4:
                renewed = now
                await self._renew(self._all())

    async def _forget(self, turns: list[Turn]) -> None:
        await self._change(turns, lambda pipe, key, token: pipe.zrem(key, token))

    async def _renew(self, turns: list[Turn]) -> None:
        seconds, micros = await self._steady.ask(self._steady.client.time)
        until = seconds * 1000 + micros // 1000 + round(self._forget_seconds * 1000)
        await self._change(turns, lambda pipe, key, token: pipe.zadd(key, {token: until}, xx=True))

    async def _change(
        self,
        turns: list[Turn],
        change: Callable[[Pipeline, str, str], object],
        of: str = "running",
    ) -> None:
        async def sent() -> None:
            async with self._steady.client.pipeline(transaction=False) as pipe:
                for turn in turns:
                    change(pipe, self._key(turn.host, of), turn.token)
                await pipe.execute()

        if turns:
            with user_errors(self._steady.client):
                await self._steady.ask(sent)

    def _key(self, host: str, name: str) -> str:
        return f"{{{self._prefix}:host:{host}}}:{name}"
