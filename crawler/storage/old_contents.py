"""Old contents of changed pages, read for several pages in one command.

A batch with changed pages takes about ten commands of MongoDB more than one of unchanged pages. So
changed items wait for each other before their old contents are read. Then they are also stored in
one batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from crawler.items import Fetched, Kind, Target
from crawler.storage.client import Document

# Limits of a group: the wait of its first page, and the bytes of its pages. Scrapy stops fetching
# at 5 MB of responses in progress.
MAX_SECONDS, MAX_BYTES = 0.5, 1_000_000
Contents = dict[str, Document]


class Group:
    """Changed pages that wait for each other. is_full: set when their contents are to be read."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.bytes = 0
        self.is_full = asyncio.Event()
        self.contents: asyncio.Task[Contents]


class OldContents:
    """Reads the contents of changed pages before the change, in groups.

    read:       returns the contents of targets by key
    max_pages:  maximum number of pages in a group
    can_come:   returns whether further pages can come, if this number of pages waits here
    """

    def __init__(
        self,
        read: Callable[[Sequence[Target]], Awaitable[Contents]],
        max_pages: int,
        can_come: Callable[[int], bool],
    ) -> None:
        self._read, self._max_pages, self._can_come = read, max_pages, can_come
        self._group: Group | None = None

    async def of(self, fetched: Fetched) -> Document | None:
        """Return the content at the last visit of a page; None if it is not stored.

        Only items wait: list pages may have new links, and feeds and cells are to be up to date.
        """
        group = self._group
        if group is None:
            group = self._group = Group()
            group.contents = asyncio.create_task(self._contents(group))
        group.targets.append(fetched.target)
        group.bytes += fetched.size
        is_full = len(group.targets) >= self._max_pages or group.bytes >= MAX_BYTES
        if is_full or fetched.target.kind is not Kind.ITEM:
            self.end_wait()
        self.check()
        # Shielded, because the other pages of the group wait for the same task.
        return (await asyncio.shield(group.contents)).get(fetched.target.key)

    def check(self) -> None:
        """End the wait if no further page can come."""
        if self._group is not None and not self._can_come(len(self._group.targets)):
            self.end_wait()

    def end_wait(self) -> None:
        """Read the old contents of the waiting pages now."""
        if self._group is not None:
            self._group.is_full.set()
            self._group = None

    async def _contents(self, group: Group) -> Contents:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_SECONDS):
                await group.is_full.wait()
        if self._group is group:
            self._group = None
        return await self._read(group.targets)
