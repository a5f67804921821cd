"""Work for many hosts at once: bounded in all, and a little at a time for each host."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from crawler.errors import FreshetError
from crawler.utils import tasks

logger = logging.getLogger(__name__)
Work = Callable[[], Awaitable[None]]
AT_ONCE = 16
AT_ONCE_OF_HOST = 2
MOST_WAITING = 1000
MOST_WAITING_OF_HOST = 200


@dataclass(slots=True)
class Lanes:
    """Runs what it is offered, each key once at a time; errors end in the log."""

    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _waiting: Counter[str] = field(default_factory=Counter)
    _of_host: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    @property
    def are_full(self) -> bool:
        """Whether nothing more is taken for now."""
        return len(self._tasks) >= MOST_WAITING

    def offer(self, key: str, host: str, work: Work) -> bool:
        """Begin a piece of work; False if its key is at work or there is no room for it."""
        if key in self._tasks or self.are_full or self._waiting[host] >= MOST_WAITING_OF_HOST:
            return False
        self._waiting[host] += 1
        self._tasks[key] = asyncio.create_task(self._run(key, host, work))
        return True

    async def put(self, key: str, host: str, work: Work) -> None:
        """Begin a piece of work as soon as there is room for it."""
        while not self.offer(key, host, work):
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    async def drain(self, seconds: float) -> None:
        """Wait for what is at work, so long at most; what is not done then is cancelled."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks.values(), timeout=seconds)
        await tasks.end(*late)

    async def _run(self, key: str, host: str, work: Work) -> None:
        lane = self._of_host.setdefault(host, asyncio.Semaphore(AT_ONCE_OF_HOST))
        try:
            async with lane, self._places:
                await work()
        except FreshetError as error:
            logger.warning("%s: %s", key, error)
        except Exception:  # One piece of work must not end the others.
            logger.exception("%s: not done", key)
        finally:
            del self._tasks[key]
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host], self._of_host[host]
