"""Patience with a Redis that is unavailable: ask again, with growing pauses, for a time.

Unavailable is also a Redis that takes no writes, as its memory or its disk is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from crawler.outages import Outage
from crawler.redis.client import address, is_unavailable, user_errors

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
# Until all others have noticed that the server is back, and said what they hold.
GRACE_SECONDS = LONGEST_PAUSE_SECONDS + 1.0


class Steady:
    """Asks a server what may safely be asked twice."""

    def __init__(self, client: Redis, seconds: float) -> None:
        self.client = client
        self._outage = Outage(logger, f"Redis at {address(client)}")
        self._seconds = seconds
        self._settled_at = 0.0

    @property
    def outages(self) -> int:
        """How often it was unavailable so far."""
        return self._outage.count

    @property
    def is_settled(self) -> bool:
        """Whether the server has been there for long enough that all know it."""
        return not self._outage.is_on and asyncio.get_running_loop().time() >= self._settled_at

    def hurry(self) -> None:
        """Wait no longer for a server that is unavailable."""
        self._seconds = 0.0

    async def ask(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `call`; raises Unreachable when the server stays away."""
        now = asyncio.get_running_loop().time
        began, pause_seconds = now(), FIRST_PAUSE_SECONDS
        has_failed = False
        while True:
            try:
                result = await call()
            except RedisError as error:
                if not is_unavailable(error):
                    raise
                has_failed = True
                said = " ".join(str(error).split())[:200]
                self._outage.lasts(now(), said, self._seconds)
                if now() > began + self._seconds:
                    with user_errors(self.client):
                        raise
            else:
                if self._outage.succeeds(now(), has_failed=has_failed):
                    self._settled_at = now() + GRACE_SECONDS
                return result
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)
