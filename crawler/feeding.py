"""Finding out what is due, for all workers of a shared pass: one of them does it at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crawler.choosing import chosen
from crawler.feeder import CLOSED, over_cap, over_limit, refuse
from crawler.items import CELL
from crawler.session import Session
from crawler.storage import targets
from crawler.worker import Worker

if TYPE_CHECKING:
    from crawler.redis.queue import Standing

PAUSE_SECONDS = 0.1


class Feeding:
    """Lets what is due wait in the queue until nothing is left; then the pass ends.

    limit: how many to hand out at most
    """

    def __init__(self, session: Session, worker: Worker, limit: int | None) -> None:
        self.session, self.worker, self.limit = session, worker, limit
        self.size = session.config.in_flight
        self.fed = 0

    async def feed(self) -> None:
        """Return when the pass is over. Where this worker dies, another begins anew."""
        if await self._best():
            await self._overdue()
        await self._until_closed()
        await self.worker.look()

    async def _until_closed(self) -> None:
        """Return when the last of what is worked on is done."""
        # Other processes are waited for: there is nothing here that could tell.
        while not await self.worker.queue.close():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_SECONDS)

    async def _best(self) -> bool:
        """What the dispatcher lets go, where there is no room for all; False if no more may."""
        if self.session.allowance.is_open():
            async for keys in chosen(self.session, self.size):
                if await self._let_wait(await self._room(), keys) is None:
                    return False
        return True

    async def _overdue(self) -> None:
        """What is due, the most overdue first, and what was found meanwhile.

        A visited target's next visit lies after the start of the pass: once nothing waits, nothing
        is worked on and nothing is due, all is done.
        """
        while True:
            standing = await self._room()
            new = await self._let_wait(standing, await self._due(standing))
            if new is None or (not new and standing.is_empty):
                return
            if not new:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _room(self) -> Standing:
        """How the pass stands once few enough entries wait."""
        while True:
            standing, _, self.fed = await self.worker.queue.feed(0, [])
            if standing.waiting < self.size * max(1, standing.workers):
                return standing
            await asyncio.sleep(PAUSE_SECONDS)

    async def _due(self, standing: Standing) -> list[str]:
        """Keys of what is due; what waits already, or is worked on, is among them."""
        session, most = self.session, self.size + standing.waiting + standing.leased
        closed = sorted({*session.closed_hosts(), *await self.worker.queue.shut_hosts()})
        return await session.patience.read(
            lambda: targets.due_keys(session.db, session.spider, session.started, most, closed)
        )

    async def _let_wait(self, standing: Standing, keys: list[str]) -> int | None:
        """How many of these were new and now wait; None if no more may, now or ever."""
        allowance, under_way = self.session.allowance, standing.waiting + standing.leased
        if self.limit is not None and self.fed >= self.limit:
            await refuse(self.session, *over_limit(self.limit), under_way)
            return None
        if not allowance.is_open():
            await refuse(self.session, *CLOSED, under_way)
            return None
        most = self.size if self.limit is None else min(self.size, self.limit - self.fed)
        allowed = await allowance.some(most, under_way) if keys else 0
        # What is worked on may be stored already, and so counted twice.
        if keys and not allowed and standing.is_empty:
            await refuse(self.session, *over_cap(self.session), under_way)
            return None
        _, new, self.fed = await self.worker.queue.feed(allowed, self._entries(keys))
        allowance.give_back(allowed - new)
        return new

    def _entries(self, keys: list[str]) -> list[tuple[str, str]]:
        """Name and body of each; all cells of a page are one entry, as one worker reads them."""
        spider, cells = self.session.spider, self.session.wrapper.cells
        entries: dict[str, str] = {}
        for key in keys:
            cell = cells.get(key.removeprefix(f"{spider} {CELL}"))
            if cell is None or cell.url is None or not key.startswith(f"{spider} {CELL}"):
                entries[key] = ""
            else:
                entries.setdefault(f"{spider} page {cell.url}", key)
        return list(entries.items())
