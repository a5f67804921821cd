"""Patience with a Redis that is away for a while: ask again, with growing pauses, for a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, ReadOnlyError
from redis.exceptions import ConnectionError as ConnectionFailure
from redis.exceptions import TimeoutError as NoAnswer

from crawler.redis.client import address, user_errors

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
# Until all others have noticed that the server is back, and said what they hold.
GRACE_SECONDS = LONGEST_PAUSE_SECONDS + 1.0
AWAY = (ConnectionFailure, NoAnswer, BusyLoadingError, ReadOnlyError)


class Steady:
    """Asks a server what may safely be asked twice.

    outages: how often it was away so far
    """

    def __init__(self, client: Redis, seconds: float) -> None:
        self.client = client
        self.outages = 0
        self._seconds = seconds
        self._is_away = False
        self._settled_at = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the server has been there for long enough that all know it."""
        return not self._is_away and asyncio.get_running_loop().time() >= self._settled_at

    def hurry(self) -> None:
        """Wait no longer for a server that is away."""
        self._seconds = 0.0

    async def ask(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `call`; raises Unreachable when the server stays away."""
        now = asyncio.get_running_loop().time
        began, pause_seconds = now(), FIRST_PAUSE_SECONDS
        while True:
            try:
                result = await call()
            except AWAY as error:
                self._note(error)
                if now() > began + self._seconds:
                    with user_errors(self.client):
                        raise
            else:
                self._back(now())
                return result
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)

    def _note(self, error: Exception) -> None:
        if not self._is_away:
            self.outages += 1
            said = " ".join(str(error).split())[:200]
            logger.warning("Redis at %s went away, trying again: %s", address(self.client), said)
        self._is_away = True

    def _back(self, now: float) -> None:
        if self._is_away:
            self._is_away = False
            self._settled_at = now + GRACE_SECONDS
            logger.warning("Redis at %s is back", address(self.client))
