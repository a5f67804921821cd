"""Numbers that take longer to compute than a page may take, kept until they are too old.

The age up to which a number is used grows with the time that it took, and with the time that all
numbers in use took together, so that computing takes a small share of the time whatever the size of
the database and the number of sites.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crawler.errors import FreshetError
from crawler.storage.outages import raising_unreachable
from crawler.utils.process import end_tasks

logger = logging.getLogger(__name__)
# Time for which a page waits for numbers before it uses the former ones.
PATIENCE_SECONDS = 0.2
# Age up to which a number is used, as a multiple of the time it took; 20: 5 % of the time.
AGE_FACTOR = 20.0
# The same as a multiple of the time that all numbers in use took; 5: 20 % of the time.
TOTAL_AGE_FACTOR = 5.0
MAX_SECONDS = 120.0
MAX_KEYS = 2000
# Time for computations in progress at the end of the app. Connections are opened in less.
CLOSE_SECONDS = 0.3
# Numbers computed at a time, of those that are quick and those that are slow: requests need the
# server, too.
MAX_QUICK, MAX_SLOW = 2, 1
Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry:
    """A number, and its computation in progress.

    value:   None before the first computation has ended
    version: of the value
    since:   time of the monotonic clock after which another version is computed
    until:   time of the monotonic clock up to which the value is used
    seconds: time that the last computation took
    """

    value: Any = None
    version: Hashable = None
    since: float = 0.0
    until: float = 0.0
    seconds: float = 0.0
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Figures:
    """Computes numbers in the background and keeps the newest of each.

    patience_seconds: time for which `get` waits for a number that is missing or too old
    """

    patience_seconds: float = PATIENCE_SECONDS
    _entries: OrderedDict[Hashable, _Entry] = field(default_factory=OrderedDict)
    _quick: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_QUICK))
    _slow: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SLOW))

    async def get(
        self,
        key: Hashable,
        compute: Callable[[], Awaitable[Value]],
        min_seconds: float = 0.0,
        version: Hashable = None,
    ) -> Value | None:
        """Return a number; an old one if it takes too long, None if there is none.

        If computing took longer than `patience_seconds` the last time, returns the old number
        immediately, because waiting would hardly help.

        min_seconds: age up to which the number is used in any case
        version:     numbers of other versions are too old, for example of the time before a run;
                     slow ones are still used for AGE_FACTOR times the time they took
        """
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        self._forget_oldest()
        now = time.monotonic()
        is_old = now >= entry.until or (entry.version != version and now >= entry.since)
        if entry.task is None and is_old:
            entry.task = asyncio.create_task(self._compute(entry, compute, min_seconds, version))
        if entry.task is not None and not (
            entry.value is not None and entry.seconds > self.patience_seconds
        ):
            # The task goes on if the request is cancelled or has no more time.
            await asyncio.wait({entry.task}, timeout=self.patience_seconds)
        value: Value | None = entry.value
        return value

    def drop(self, key: Hashable) -> None:
        """Compute a number again when it is next needed."""
        if (entry := self._entries.get(key)) is not None:
            entry.since = entry.until = 0.0

    async def close(self) -> None:
        """Wait a moment for computations in progress, then cancel them."""
        tasks = [entry.task for entry in self._entries.values() if entry.task]
        if tasks:
            # The driver does not close a connection that it was opening when it was cancelled.
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            await end_tasks(*tasks)

    async def _compute(
        self,
        entry: _Entry,
        compute: Callable[[], Awaitable[Any]],
        min_seconds: float,
        version: Hashable,
    ) -> None:
        try:
            async with self._slow if entry.seconds > self.patience_seconds else self._quick:
                began = time.monotonic()
                try:
                    async with asyncio.timeout(MAX_SECONDS):
                        with raising_unreachable():
                            entry.value = await compute()
                except TimeoutError:
                    logger.warning("Numbers of the web app not computed in %g s", MAX_SECONDS)
                except FreshetError as error:
                    # Pages report an unavailable database on their own.
                    logger.warning("Numbers of the web app not computed: %s", error)
                except Exception:
                    # Nobody awaits the result of the task.
                    logger.exception("Numbers of the web app not computed")
                ended = time.monotonic()
                entry.version = version
                entry.seconds = ended - began
                in_use = sum(each.seconds for each in self._entries.values() if each.until > began)
                age = AGE_FACTOR * entry.seconds, TOTAL_AGE_FACTOR * (in_use + entry.seconds)
                if entry.seconds > self.patience_seconds:
                    # The service may run a site every minute.
                    entry.since = ended + age[0]
                entry.until = ended + max(min_seconds, *age)
        finally:
            entry.task = None

    def _forget_oldest(self) -> None:
        for key in list(self._entries):
            if len(self._entries) <= MAX_KEYS:
                break
            if self._entries[key].task is None:
                del self._entries[key]
