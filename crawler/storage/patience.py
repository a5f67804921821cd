"""Patience with a server that is away for a while: ask again, with growing pauses, for a time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pymongo.errors import AutoReconnect, ConnectionFailure, PyMongoError

from crawler.errors import StorageError, Unreachable

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


@dataclass(slots=True)
class Patience:
    """How long to bear with a server, and how to bring it back.

    seconds: after this long without success the call fails
    revive:  starts the embedded server again; does nothing for a server by URI
    counts:  `retries` so far
    """

    seconds: float
    revive: Callable[[], Awaitable[None]]
    counts: Counter[str] = field(default_factory=Counter)

    def hurry(self) -> None:
        """Wait no longer for a server that is away."""
        self.seconds = 0.0

    async def ask(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `call`, which has to be safe to repeat.

        Raises Unreachable when the server stays away; other errors of the driver pass.
        """
        now = asyncio.get_running_loop().time
        began, pause_seconds = now(), FIRST_PAUSE_SECONDS
        while True:
            try:
                return await call()
            except (AutoReconnect, ConnectionFailure) as error:
                if now() > began + self.seconds:
                    raise Unreachable(f"MongoDB went away: {in_short(error)}") from None
                logger.warning("MongoDB went away, trying again: %s", in_short(error))
            self.counts["retries"] += 1
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)
            await self.revive()

    async def read(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """As `ask`, with every error of the driver as a StorageError."""
        try:
            return await self.ask(call)
        except PyMongoError as error:
            raise StorageError(f"MongoDB: {in_short(error)}") from None


def in_short(error: PyMongoError) -> str:
    """The first part of a driver's message, in one line."""
    return " ".join(str(error).split(" (configured")[0].split())[:200]
