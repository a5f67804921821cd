"""The work that a worker of a shared pass has leased, as targets and as requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from scrapy import Request

from crawler.items import Target
from crawler.session import Session
from crawler.storage import dead, interrupted, targets
from crawler.storage.dead import Dead
from crawler.worker import Worker

if TYPE_CHECKING:
    from crawler.redis.queue import Lease

    Leased = tuple[Lease, Target | Request]

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
        from crawler.redis.scheduler import LEASE

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
        from crawler.redis.scheduler import Scheduler

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
        one = Dead(key, session.spider, url, now, lost, worker)
        await session.patience.read(lambda: dead.bury(session.db, one))
        logger.error("%s is left for dead: %d workers died or slept over it", url, lost)
        self.worker.drop(lease.entry, {"dead": 1})


def _is_request(lease: Lease) -> bool:
    return lease.body.startswith("{")


def _url_of(worker: Worker, lease: Lease) -> str:
    try:
        return worker.queue.decode(lease.body).url
    except Exception:  # noqa: BLE001 - as in `_made`
        return lease.entry
