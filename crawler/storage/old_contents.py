"""Read the contents of changed pages before the change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from crawler.config import Config
from crawler.items import Fetched, Kind, Target
from crawler.storage.client import Document
from crawler.storage.in_flight import InFlight
from crawler.storage.writer import MAX_BYTES, PATIENT_SECONDS, batch_size

Contents = dict[str, Document]
# The changed pages that wait for each other are at most a batch divided by this number.
CHANGED_SHARE = 4


class Group:
    """Changed pages that wait for each other. is_full: set when their old contents must be read."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.bytes = 0
        self.is_full = asyncio.Event()
        self.contents: asyncio.Task[Contents]


class OldContents:
    """Reads the contents of changed pages before the change, in groups.

    A batch with changed pages takes about ten commands of MongoDB more than one of unchanged pages.
    So changed items wait for each other before their old contents are read. Then they are also
    stored in one batch.

    read:      returns the contents of targets by key
    in_flight: targets that this process works on
    """

    def __init__(
        self, read: Callable[[Sequence[Target]], Awaitable[Contents]], config: Config,
        in_flight: InFlight,
    ) -> None:  # fmt: skip
        self._read, self._in_flight = read, in_flight
        self._max_pages = max(1, batch_size(config) // CHANGED_SHARE)
        self._group: Group | None = None
        self._is_closing = False
        in_flight.watch(self._check)

    async def of(self, fetched: Fetched) -> Document | None:
        """Return the content at the last visit of a page; None if it is not stored.

        Only items wait: list pages may have new links, and feeds and cells must be up to date.
        """
        group = self._group
        if group is None:
            group = self._group = Group()
            group.contents = asyncio.create_task(self._contents(group))
        group.targets.append(fetched.target)
        group.bytes += fetched.size
        is_full = len(group.targets) >= self._max_pages or group.bytes >= MAX_BYTES
        if is_full or fetched.target.kind is not Kind.ITEM:
            self._end_wait()
        self._check()
        # Shielded, because the other pages of the group wait for the same task.
        return (await asyncio.shield(group.contents)).get(fetched.target.key)

    def _check(self) -> None:
        """End the wait if no further page can come."""
        if self._group is None:
            return
        if self._is_closing or self._in_flight.coming <= len(self._group.targets):
            self._end_wait()

    def close(self) -> None:
        """Let no page wait any more."""
        self._is_closing = True
        self._end_wait()

    def _end_wait(self) -> None:
        """Read the old contents of the waiting pages now."""
        if self._group is not None:
            self._group.is_full.set()
            self._group = None

    async def _contents(self, group: Group) -> Contents:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENT_SECONDS):
                await group.is_full.wait()
        if self._group is group:
            self._group = None
        return await self._read(group.targets)
