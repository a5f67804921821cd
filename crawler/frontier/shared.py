"""The work that a worker of a shared pass has leased, as targets and as requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from scrapy import Request

from crawler.frontier.dispatch import chosen
from crawler.frontier.local import CLOSED, over_cap, over_limit, refuse
from crawler.frontier.session import Session
from crawler.frontier.worker import Worker
from crawler.items import CELL, Target
from crawler.storage import recovery as interrupted
from crawler.storage import runs, targets
from crawler.storage.runs import DeadLetter

if TYPE_CHECKING:
    from crawler.frontier.redis_queue import Lease

    Leased = tuple[Lease, Target | Request]
    from crawler.frontier.redis_queue import Standing

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
# Log lines about refused entries of a run, and characters of a reason.
MAX_LOGGED, MAX_REASON = 20, 300


class Leasing:
    """Turns leases into work, and gives up what has killed one worker after the other."""

    def __init__(self, session: Session, worker: Worker) -> None:
        self.session, self.worker = session, worker
        self._requests: set[str] = set()
        self._watching: asyncio.Task[None] | None = None
        self._refused = 0

    async def work(self) -> AsyncIterator[Leased]:
        """What is leased, until the pass is over."""
        while leases := await self.worker.next():
            leases = [lease for lease in leases if self._is_readable(lease)]
            alive = [lease for lease in leases if lease.count <= self.worker.tries]
            for lease in leases:
                if lease not in alive:
                    await self._bury(lease)
            for one in self._made([lease for lease in alive if _is_request(lease)]):
                yield one
            async for one in self._due([lease for lease in alive if not _is_request(lease)]):
                yield one

    async def _due(self, leases: list[Lease]) -> AsyncIterator[Leased]:
        """Targets that are still to be visited; with the others nothing is left to do."""
        session = self.session
        db, started, closed = session.db, session.started, session.closed_hosts()
        # Else whoever finds out what is due would let their targets wait again and again.
        for host in closed:
            self.worker.shut(host)
        keys = {lease: lease.body or lease.entry for lease in leases}
        own = [key for key in keys.values() if key.startswith(f"{session.spider} ")]
        # Another worker had them, and may be asleep.
        late = {keys[lease] for lease in leases if lease.count > 1} - session.in_flight
        if late:
            taken = sorted(late.intersection(own))
            await session.patience.read(lambda: interrupted.take_over(db, taken))
        found = await session.patience.read(lambda: targets.due_of(db, own, started, closed))
        for lease, key in keys.items():
            if (target := found.get(key)) is not None:
                self.worker.holds(lease, [key])
                # Lost while this process slept, and leased again: it is at work on it yet.
                if key not in session.in_flight:
                    session.take(target)
                    yield lease, target
            else:
                # A worker may have died after it had stored the visit, and before it could say so.
                self.worker.drop(lease.entry)

    def _made(self, leases: list[Lease]) -> Iterator[Leased]:
        """Requests that a spider made, in this process or in another."""
        from crawler.frontier.scheduler import LEASE

        for lease in leases:
            try:
                request = self.worker.queue.decode(lease.body)
            except Exception as error:  # noqa: BLE001 - whatever stands in Redis, it is no request
                self._refuse(lease, error)
                continue
            self._requests.add(lease.entry)
            if self._watching is None or self._watching.done():
                self._watching = asyncio.ensure_future(self._watch())
                self._watching.add_done_callback(self._watched)
            meta = request.meta | {LEASE: lease.entry}
            yield lease, request.replace(meta=meta, dont_filter=True)

    def _is_readable(self, lease: Lease) -> bool:
        try:
            (lease.entry + lease.body).encode()
        except UnicodeEncodeError as error:
            self._refuse(lease, error)
            return False
        return True

    def _refuse(self, lease: Lease, error: Exception) -> None:
        """Drop what no worker of this run can have written; the first ones are logged."""
        self._refused += 1
        if self._refused <= MAX_LOGGED:
            more = "; more are not logged" if self._refused == MAX_LOGGED else ""
            why = f"{error}"[:MAX_REASON]
            logger.warning(
                "Redis holds what is no request of %s, dropped: %s%s",
                self.session.spider, why, more,
            )  # fmt: skip
        self.worker.drop(lease.entry)

    async def _watch(self) -> None:
        """Scrapy does not say when it is done with a request, so it is looked at."""
        from crawler.frontier.scheduler import Scheduler

        engine = self.session.crawler.engine
        scheduler = engine.scheduler if engine is not None else None
        while self._requests and isinstance(scheduler, Scheduler):
            await asyncio.sleep(LOOK_SECONDS)
            for entry in scheduler.ended(self._requests):
                self._requests.discard(entry)
                self.worker.drop(entry)

    def _watched(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and (error := watching.exception()) is not None:
            self.session.fail(error)

    async def _bury(self, lease: Lease) -> None:
        session, lost = self.session, lease.count - 1
        key = lease.entry if _is_request(lease) else lease.body or lease.entry
        url = _url_of(self.worker, lease) if _is_request(lease) else key.partition(" ")[2]
        now, worker = session.clock.now(), self.worker.queue.worker
        letter = DeadLetter(key, session.spider, url, now, lost, worker)
        await session.patience.read(lambda: runs.add_dead_letter(session.db, letter))
        logger.error("%s is left for dead: %d workers died or slept over it", url, lost)
        self.worker.drop(lease.entry, {"dead": 1})


def _is_request(lease: Lease) -> bool:
    return lease.body.startswith("{")


def _url_of(worker: Worker, lease: Lease) -> str:
    try:
        return worker.queue.decode(lease.body).url
    except Exception:  # noqa: BLE001 - as in `_made`
        return lease.entry


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
