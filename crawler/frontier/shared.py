"""The frontier of workers that share a run: what is due waits in Redis, and each worker leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from bson import ObjectId
from scrapy import Request

from crawler.errors import FreshetError, StorageError
from crawler.frontier.base import IN_DOUBT, Counts, Frontier, Tally
from crawler.frontier.dispatch import Admission, chosen
from crawler.frontier.lifecycle import whole
from crawler.frontier.worker import Worker, own_name
from crawler.items import CELL, Target
from crawler.storage import recovery, runs, targets
from crawler.storage.runs import DeadLetter
from crawler.utils.time import from_milliseconds, milliseconds

if TYPE_CHECKING:
    from crawler.frontier.redis_queue import Lease, QueueStatus
    from crawler.frontier.session import Session

logger = logging.getLogger(__name__)
PREPARE = "prepare"
# A Redis that does not answer for so long is taken for unavailable.
ANSWER_SECONDS = 5.0
# Leases for each request that Scrapy has under way: some wait to be sent, some to be stored.
HOLD = 4
# Between two looks at the queue, and at what Scrapy is done with.
LOOK_SECONDS = 0.1
# Log lines about refused entries of a run, and characters of a reason.
MAX_LOGGED, MAX_REASON = 20, 300
# Links without a pattern that a worker shows the one that sums up.
SHARED_LINKS = 3


class SharedFrontier(Frontier):
    """Turns leases into work, and gives up what has killed one worker after the other."""

    is_shared = True

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._has_joined = False
        self._requests: set[str] = set()
        self._watching: asyncio.Task[None] | None = None
        self._refused = 0

    async def open(self) -> str:
        """Connect to Redis; return the id of what it keeps. Raises ConfigError or Unreachable."""
        from crawler.frontier.politeness import Turns
        from crawler.frontier.redis_queue import LeasedQueue
        from crawler.storage.redis import RedisRetry, open_redis

        session = self._session
        config, crawler, seconds = session.config, session.crawler, session.config.lease_seconds
        # A server that is silent is noticed before a lease runs out.
        timeout_seconds = min(ANSWER_SECONDS, seconds / 3)
        client = await open_redis(config.redis_url or "", timeout_seconds, retry_seconds=0)
        self._client = client
        steady, name = RedisRetry(client, config.commit_retry_seconds), own_name()
        self.turns = Turns(steady, f"freshet:{session.db.name}", name, seconds)
        assert crawler.spider is not None
        key = f"{{freshet:{session.db.name}:{crawler.spider.name}}}:"
        self._queue = LeasedQueue(steady, crawler.spider, key, name, round(seconds * 1000))
        hold = min(config.in_flight, HOLD * crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._worker = Worker(
            self._queue, steady, seconds, hold, config.lease_tries, session.shares, session.fail
        )
        return await self._queue.redis_id()

    async def close(self) -> None:
        """Give back the slots at hosts, and disconnect."""
        if self.turns is not None:
            with suppress(FreshetError):
                await self.turns.close()
            await self._client.aclose()

    async def join(self) -> tuple[bool, ObjectId | None, datetime | None]:
        """Share the run with other workers; one of them prepares it."""
        self._has_joined = True
        joined = await self._worker.join()
        run = ObjectId(joined.run) if joined.run else None
        if joined.todo == PREPARE:
            return True, run, None
        return False, run, from_milliseconds(int(joined.started))

    async def begin(self, run: ObjectId, started: datetime) -> None:
        """Let all workers lease: the run is prepared."""
        await self._queue.open(str(run), milliseconds(started))

    async def due(self, limit: int | None) -> AsyncIterator[Target | Request]:
        """What this worker leases, until the run is over."""
        worker = self._worker
        worker.begin(Feeder(self._session, worker, limit).feed)
        while leases := await worker.next():
            leases = [lease for lease in leases if self._is_readable(lease)]
            alive = [lease for lease in leases if lease.count <= worker.tries]
            for lease in leases:
                if lease not in alive:
                    await self._bury(lease)
            for request in self._decoded([lease for lease in alive if _is_request(lease)]):
                yield request
            async for target in self._due([lease for lease in alive if not _is_request(lease)]):
                yield target

    async def _due(self, leases: list[Lease]) -> AsyncIterator[Target]:
        """Targets that are still to be visited; with the others nothing is left to do."""
        session = self._session
        db, started, closed = session.db, session.started, session.closed_hosts()
        # Else whoever finds out what is due would let their targets wait again and again.
        for host in closed:
            self._worker.shut(host)
        keys = {lease: lease.body or lease.entry for lease in leases}
        own = [key for key in keys.values() if key.startswith(f"{session.spider} ")]
        # Another worker had them, and may be asleep.
        late = {keys[lease] for lease in leases if lease.count > 1} - session.in_flight
        if late:
            taken = sorted(late.intersection(own))
            await session.patience.read(lambda: recovery.take_over(db, taken))
        due = await session.patience.read(lambda: targets.due_of(db, own, started, closed))
        for lease, key in keys.items():
            if (target := due.get(key)) is not None:
                self._worker.holds(lease, [key])
                # Lost while this process slept, and leased again: it is at work on it yet.
                if key not in session.in_flight:
                    session.take(target)
                    yield target
            else:
                # A worker may have died after it had stored the visit, and before it could say so.
                self._worker.drop(lease.entry)

    def _decoded(self, leases: list[Lease]) -> Iterator[Request]:
        """Requests that a spider made, in this process or in another."""
        from crawler.frontier.scheduler import LEASE

        for lease in leases:
            try:
                request = self._queue.decode(lease.body)
            except Exception as error:  # noqa: BLE001 - whatever stands in Redis, it is no request
                self._refuse(lease, error)
                continue
            self._requests.add(lease.entry)
            if self._watching is None or self._watching.done():
                self._watching = asyncio.ensure_future(self._watch())
                self._watching.add_done_callback(self._watched)
            meta = request.meta | {LEASE: lease.entry}
            yield request.replace(meta=meta, dont_filter=True)

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
                self._session.spider, why, more,
            )  # fmt: skip
        self._worker.drop(lease.entry)

    async def _watch(self) -> None:
        """Scrapy does not say when it is done with a request, so it is looked at."""
        from crawler.frontier.scheduler import Scheduler

        engine = self._session.crawler.engine
        scheduler = engine.scheduler if engine is not None else None
        while self._requests and isinstance(scheduler, Scheduler):
            await asyncio.sleep(LOOK_SECONDS)
            for entry in scheduler.ended(self._requests):
                self._requests.discard(entry)
                self._worker.drop(entry)

    def _watched(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and (error := watching.exception()) is not None:
            self._session.fail(error)

    async def _bury(self, lease: Lease) -> None:
        """Dead-letter what no worker has survived."""
        session, lost = self._session, lease.count - 1
        if _is_request(lease):
            key = url = lease.entry
            with suppress(Exception):  # As in `_decoded`.
                url = self._queue.decode(lease.body).url
        else:
            key = lease.body or lease.entry
            url = key.partition(" ")[2]
        worker = self._queue.worker
        letter = DeadLetter(key, session.spider, url, session.clock.now(), lost, worker)
        await session.patience.read(lambda: runs.add_dead_letter(session.db, letter))
        logger.error("%s is left for dead: %d workers died or slept over it", url, lost)
        self._worker.drop(lease.entry, {"dead": 1})

    def share(self, request: Request, fingerprint: Callable[[Request], str]) -> bool:
        """Let a spider's request wait for any worker; False if it cannot leave this process."""
        try:
            text = self._queue.encode(request)
        except (TypeError, ValueError) as error:
            logger.debug("%s stays with this worker: %s", request, error)
            return False
        entry = f"{self._session.spider} request {token_hex(8)}"
        self._worker.push((entry, fingerprint(request), request.priority, text))
        return True

    def take_along(self, target: Target, others: Iterable[Target]) -> None:
        """The entry of a page stands for all of its cells that this worker reads."""
        self._worker.holds_with(target.key, [other.key for other in others])

    async def may_fetch(self, host: str) -> bool:
        """Count a request to a host; False if all workers together have used up its cap."""
        cap = self._session.limits.cap
        is_free = await super().may_fetch(host)
        return is_free and (not cap or await self._queue.spend(host) <= cap)

    def done(self, key: str, counts: Counts) -> None:
        """A target is stored, or is not this worker's any more: nothing waits for it."""
        self._worker.done(key, counts)

    def give_up(self, host: str) -> None:
        """A host gets no more requests in this run, from any worker."""
        super().give_up(host)
        self._worker.shut(host)

    async def hold(self, host: str, seconds: float) -> None:
        """No worker sends a request to the host for a time."""
        assert self.turns is not None
        await self.turns.hold(host, seconds)

    @property
    def is_sure(self) -> bool:
        """Whether this worker was heard so lately that no other one has its leases."""
        return self._worker.is_sure

    async def still_holds(self, key: str) -> bool:
        """Whether a target is still this worker's; it asks where it is not sure."""
        return await self._worker.still_holds(key)

    def stop(self) -> None:
        """Take no more leases."""
        if self._has_joined:
            self._worker.stop()

    def hurry(self) -> None:
        """Wait no longer for a Redis that is unavailable."""
        if self._has_joined:
            self._worker.hurry()

    async def leave(self) -> Tally:
        """Give back what is leased; the last worker of all sums up what all have done."""
        if not self._has_joined:
            return Tally()
        session, patient = self._session, self._session.error is None
        read, run = session.patience.read, session.run
        has_links = patient and session.is_open and run is not None
        if run is not None and has_links:
            few = session.links.few(SHARED_LINKS)
            # Without these examples the warnings are shorter, no more.
            with suppress(StorageError):
                await read(lambda: runs.note_links(session.db, run, few))
        sums_up, others, visits_of_all = await self._worker.leave(patient=patient)
        if not sums_up:
            return Tally(None, sums_up, 1, others, visits_of_all)
        counts, shares, workers, has_expired = await self._queue.sums()
        if (has_expired or shares.pop(IN_DOUBT, 0)) and session.is_open:
            counts = await read(lambda: session.ending.counted_anew(counts))
        if run is not None and has_links:
            session.links.merge(await read(lambda: runs.links(session.db, run)))
        # Deliveries of hubs are among both.
        names = {*counts, *shares}
        of_all = whole({name: counts.get(name, 0) + shares.get(name, 0) for name in names})
        return Tally(of_all, sums_up, workers, others, of_all["visits"])

    async def finish(self) -> None:
        """Keep nothing of the run in Redis: it is summed up."""
        if self._has_joined:
            await self._queue.finish()


class Feeder:
    """Lets what is due wait in the queue until nothing is left; then the run ends.

    One worker at a time has this part; where it dies, another one begins again.
    """

    def __init__(self, session: Session, worker: Worker, limit: int | None) -> None:
        self._session, self._worker, self._queue = session, worker, worker.queue
        self._admission = Admission(session, limit)
        self._size = session.config.in_flight

    async def feed(self) -> None:
        """Return when the run is over."""
        if await self._feed_chosen():
            await self._feed_overdue()
        # Other processes are waited for: there is nothing here that could tell.
        while not await self._queue.close():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        await self._worker.look()

    async def _feed_chosen(self) -> bool:
        """What the dispatcher lets go, where there is no room for all; False if no more may."""
        if self._session.allowance.is_open():
            async for keys in chosen(self._session, self._size):
                if await self._let_wait(await self._room(), keys) is None:
                    return False
        return True

    async def _feed_overdue(self) -> None:
        """What is due, the most overdue first, and what was found meanwhile.

        A visited target's next visit lies after the start of the run: once nothing waits, nothing
        is worked on and nothing is due, all is done.
        """
        session = self._session
        db, spider, started = session.db, session.spider, session.started
        while True:
            status = await self._room()
            # What waits already, or is worked on, is among what is due.
            most = self._size + status.waiting + status.leased
            closed = sorted({*session.closed_hosts(), *await self._queue.shut_hosts()})
            due = partial(targets.due_keys, db, spider, started, most, closed)
            new = await self._let_wait(status, await session.patience.read(due))
            if new is None or (not new and status.is_empty):
                return
            if not new:
                await asyncio.sleep(LOOK_SECONDS)

    async def _room(self) -> QueueStatus:
        """How the run stands once few enough entries wait."""
        while True:
            status, _, self._admission.handed_out = await self._queue.feed(0, [])
            if status.waiting < self._size * max(1, status.workers):
                return status
            await asyncio.sleep(LOOK_SECONDS)

    async def _let_wait(self, status: QueueStatus, keys: list[str]) -> int | None:
        """How many of these were new and now wait; None if no more may, now or ever."""
        most, under_way = self._size if keys else 0, status.waiting + status.leased
        allowed = await self._admission.admit(most, under_way)
        if allowed is None:
            return None
        # All cells of a page are one entry, as one worker reads them.
        spider, cells = self._session.spider, self._session.wrapper.cells
        entries: dict[str, str] = {}
        for key in keys:
            cell = cells.get(key.removeprefix(f"{spider} {CELL}"))
            if cell is None or cell.url is None or not key.startswith(f"{spider} {CELL}"):
                entries[key] = ""
            else:
                entries.setdefault(f"{spider} page {cell.url}", key)
        _, new, self._admission.handed_out = await self._queue.feed(allowed, entries.items())
        self._session.allowance.give_back(allowed - new)
        return new


def _is_request(lease: Lease) -> bool:
    return lease.body.startswith("{")
