"""Frontiers hand out a run's targets: their interface, and one for a single process and for many.

The frontier of many processes leases targets from a queue in Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum, auto
from functools import partial
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING

from bson import ObjectId
from scrapy import Request

from crawler.errors import FreshetError, StorageError
from crawler.frontier.admission import Admission, chosen
from crawler.frontier.leases import LEASES_PER_REQUEST, Worker, own_name
from crawler.frontier.lifecycle import Counts, whole
from crawler.frontier.run_state import Tally
from crawler.items import CELL, Target
from crawler.storage import due, recovery, runs
from crawler.storage.client import in_batches
from crawler.storage.due import DuePosition
from crawler.storage.runs import DeadLetter
from crawler.utils.time import from_milliseconds, milliseconds

if TYPE_CHECKING:
    from crawler.frontier.pushed_urls import PushedUrls
    from crawler.frontier.rate_limits import Permits
    from crawler.frontier.redis_queue import Lease, QueueStatus
    from crawler.frontier.run import Run

logger = logging.getLogger(__name__)
# Name of a count: workers whose last visits may be only partly stored.
IN_DOUBT = "workers in doubt"
# Size of a query for due targets, in units of FRESHET_IN_FLIGHT. If fewer are due, list pages are
# first, so this should exceed the number of links of a list page.
READ_AHEAD = 4
PREPARE = "prepare"
# Redis counts as unavailable after this time without an answer.
ANSWER_SECONDS = 5.0
# Interval between checks of the queue, and of the requests that Scrapy has finished.
POLL_SECONDS = 0.1
# Time between two queries for all due targets, as a multiple of the time that the query takes, and
# its maximum in seconds if no entry is completed meanwhile.
PAUSE_SHARE, MAX_WAIT_SECONDS = 2.0, 1.0
# Maximum size of a query for more due targets, in units of FRESHET_IN_FLIGHT.
MAX_READ_AHEAD = 10
# Maximum number of entries per message, so that the server is not blocked for long.
MAX_FED = 1000
# Maximum number of logged invalid entries per run, and of characters per reason.
MAX_LOGGED, MAX_REASON = 20, 300
# Unmatched links that a worker passes to the one that sums up the run.
MAX_SHARED_LINKS = 3


class Settled(Enum):
    """What became of a target that was handed out.

    STORED:     its visit is stored
    TAKEN_OVER: another process has visited it or has taken it over
    POSTPONED:  it was not fetched, because of another host; it stays due
    GIVEN_UP:   it was not fetched; it stays due, as do all others of its host in this run
    LEFT:       this process stops or has lost its lease, and leaves it to others
    """

    STORED = auto()
    TAKEN_OVER = auto()
    POSTPONED = auto()
    GIVEN_UP = auto()
    LEFT = auto()


class Frontier:
    """Hands out due targets, and takes them back.

    Backends implement `due` and `leave`. The other methods default to the behavior of a process
    that does not share its run.

    shares:    returns the counts of this process that do not come from visits
    is_shared: whether other processes can take part in the run
    permits:   rate limits that processes share; None if each process has its own
    """

    is_shared: bool = False
    permits: Permits | None = None

    def __init__(self, run: Run, shares: Callable[[], Counts]) -> None:
        self._run, self._shares = run, shares
        # Keys of due targets that are not handed out again in this run.
        self._postponed: set[str] = set()

    def due(self, limit: int | None) -> AsyncIterator[Target | Request]:
        """Yield the targets and requests that this process has to fetch, until the run is over.

        Each target that is due at the start of the run, or discovered during it, is yielded once.
        The requests are those of spiders.

        limit: maximum number of targets of the run; None: no limit
        """
        raise NotImplementedError

    async def leave(self, *, was_open: bool) -> Tally:
        """End this process's part in the run, and return the state of the run.

        was_open: whether the run has been opened
        """
        raise NotImplementedError

    def settle(
        self, target: Target, how: Settled, counts: Counts = MappingProxyType({}), *,
        finds: bool = True,
    ) -> None:  # fmt: skip
        """Take back a target.

        counts: of its stored visit
        finds:  the visit may have made other targets due
        """
        if how is Settled.POSTPONED:
            self._postponed.add(target.key)
        elif how is Settled.GIVEN_UP:
            self.give_up(target.host)
        self._run.in_flight.release(target.key, finds=finds)

    async def open(self) -> str:
        """Connect; return the id of the shared queue, or an empty string without one.

        Raises ConfigError or Unreachable.
        """
        return ""

    async def join(self) -> tuple[bool, ObjectId | None, datetime | None]:
        """Join the run, or begin one.

        Returns whether this process has to prepare the run, the run's `_id` if it was begun before,
        and its start if another process has prepared it.
        """
        return True, None, None

    async def begin(self, run: ObjectId, started: datetime) -> None:
        """Announce that the run is prepared, so that all processes start."""

    def take_with(self, target: Target, others: Sequence[Target]) -> None:
        """Note that the page of a cell is also read for other cells, which need no request."""
        self._run.in_flight.share([other.key for other in others])

    async def may_fetch(self, host: str) -> bool:
        """Count a request to a host; return False if the host's cap for the run is reached."""
        return self._run.limits.spend(host)

    def give_up(self, host: str) -> None:
        """Stop requests of all processes to a host for the rest of the run."""
        self._run.limits.given_up.add(host)

    async def hold(self, host: str, seconds: float) -> None:
        """Pause requests of all processes to a host for `seconds`."""

    @property
    def is_sure(self) -> bool:
        """Return whether this process is certain to hold its leases."""
        return True

    async def still_holds(self, key: str) -> bool:
        """Return whether this process still holds a target; renews the leases if unsure."""
        return True

    def stop(self) -> None:
        """Stop handing out targets."""

    def hurry(self) -> None:
        """Stop retrying while a server is unavailable."""

    async def finish(self) -> None:
        """Delete the shared state of a run after it was summed up."""

    async def close(self) -> None:
        """Disconnect."""


class LocalFrontier(Frontier):
    """Hands out due targets, at most FRESHET_IN_FLIGHT at a time."""

    async def due(self, limit: int | None) -> AsyncIterator[Target]:
        """Yield each target that is due at the start of the run or discovered during it, once."""
        admission, in_flight = Admission(self._run, limit), self._run.in_flight
        max_targets = self._run.config.in_flight
        async for target in self._candidates():
            while len(in_flight) >= max_targets and not in_flight.has_ended:
                await in_flight.until_released(in_flight.releases)
            if target.key in in_flight.shared:
                continue
            while not in_flight.has_ended:
                releases = in_flight.releases
                allowed = await admission.admit(1, len(in_flight))
                if allowed is None:
                    return
                if allowed:
                    break
                await in_flight.until_released(releases)
            if in_flight.has_ended:
                return
            admission.handed_out += 1
            in_flight.take(target.key)
            yield target

    async def _candidates(self) -> AsyncIterator[Target]:
        """Yield due targets: first those chosen by dispatch, then the most overdue ones.

        A visit moves a target's next visit to after the start of the run. So repeated queries for
        due targets return each target once, except for those in flight and postponed ones, which
        are left out here.
        """
        run, size, in_flight = self._run, self._run.config.in_flight, self._run.in_flight
        db, started, read = run.db, run.started, run.patience.read
        if run.allowance.is_open():
            async for keys in chosen(run, size):
                by_key = await read(partial(due.of_keys, db, keys, started, run.closed_hosts()))
                for key in keys:
                    if key in by_key:
                        yield by_key[key]
        while not in_flight.has_ended:
            findings, taken = in_flight.findings, frozenset(in_flight.keys)
            # Without the targets in flight before the query: a target that was visited during the
            # query would look due and not in flight.
            without = taken | self._postponed
            max_targets, closed = READ_AHEAD * size + len(without), run.closed_hosts()
            query = partial(due.most_overdue, db, run.spider, started, max_targets, closed)
            batch = await read(partial(query, without=without))
            if not batch and not taken:
                return
            if not batch:
                await in_flight.until_found(findings)
            for target in batch:
                yield target

    async def leave(self, *, was_open: bool) -> Tally:
        """Return the counts of the run, after a repair if visits may be stored in part."""
        run = self._run
        if run.state.error is not None or not was_open:
            return Tally()
        counts = run.state.counts | Counter(self._shares())
        if counts.pop(IN_DOUBT, 0):
            await run.patience.read(run.ending.repair)
        return Tally(counts, visits_of_all=counts["visits"])


class SharedFrontier(Frontier):
    """Hands out the targets and requests that a worker has leased.

    Moves entries that repeatedly crashed workers to the dead letters.
    """

    is_shared = True

    def __init__(self, run: Run, shares: Callable[[], Counts]) -> None:
        super().__init__(run, shares)
        self._has_joined = False
        self._requests: set[str] = set()
        self._watching: asyncio.Task[None] | None = None
        self._refused = 0

    async def open(self) -> str:
        """Connect to Redis; return its id. Raises ConfigError or Unreachable."""
        from crawler.frontier.pushed_urls import PushedUrls
        from crawler.frontier.rate_limits import Permits
        from crawler.frontier.redis_queue import LeasedQueue
        from crawler.storage.redis import RedisRetry, open_redis

        run = self._run
        config, crawler, seconds = run.config, run.crawler, run.config.lease_seconds
        # Detect a server that does not answer before a lease expires.
        timeout_seconds = min(ANSWER_SECONDS, seconds / 3)
        client = await open_redis(config.redis_url or "", timeout_seconds, retry_seconds=0)
        self._client = client
        steady, name = RedisRetry(client, config.commit_retry_seconds), own_name()
        self._hurry = steady.hurry
        self._pushed = PushedUrls(run, steady)
        self.permits = Permits(steady, f"freshet:{run.db.name}", name, seconds)
        assert crawler.spider is not None
        key = f"{{freshet:{run.db.name}:{crawler.spider.name}}}:"
        self._queue = LeasedQueue(steady, crawler.spider, key, name, round(seconds * 1000))
        concurrency = crawler.settings.getint("CONCURRENT_REQUESTS")
        max_leases = min(config.in_flight, LEASES_PER_REQUEST * concurrency)
        self._worker = Worker(
            self._queue,
            steady,
            seconds,
            max_leases,
            config.lease_tries,
            self._shares,
            run.fail,
        )
        return await self._queue.redis_id()

    async def close(self) -> None:
        """Return all permits, and disconnect."""
        if self.permits is not None:
            with suppress(FreshetError):
                await self.permits.close()
            await self._client.aclose()

    async def join(self) -> tuple[bool, ObjectId | None, datetime | None]:
        """Join the run; one of its workers prepares it."""
        self._has_joined = True
        joined = await self._worker.join()
        run = ObjectId(joined.run) if joined.run else None
        if joined.todo == PREPARE:
            return True, run, None
        return False, run, from_milliseconds(int(joined.started))

    async def begin(self, run: ObjectId, started: datetime) -> None:
        """Mark the run as prepared, so that all workers start leasing."""
        await self._queue.open(str(run), milliseconds(started))

    async def due(self, limit: int | None) -> AsyncIterator[Target | Request]:
        """Yield the targets and requests that this worker leases, until the run is over."""
        worker = self._worker
        worker.begin(Feeder(self._run, worker, self._pushed, limit).feed)
        while leases := await worker.next():
            requests: list[Lease] = []
            of_targets: list[Lease] = []
            for lease in leases:
                try:
                    (lease.entry + lease.body).encode()
                except UnicodeEncodeError as error:
                    self._refuse(lease, error)
                    continue
                if lease.count > worker.tries:
                    await self._dead_letter(lease)
                else:
                    (requests if _is_request(lease) else of_targets).append(lease)
            for request in self._decoded(requests):
                yield request
            async for target in self._due(of_targets):
                yield target

    async def _due(self, leases: list[Lease]) -> AsyncIterator[Target]:
        """Yield leased targets that are still due; complete the other leases."""
        from crawler.frontier.redis_queue import NOT_DUE

        run = self._run
        db, started, closed = run.db, run.started, run.closed_hosts()
        # Otherwise the feeder would queue the targets of these hosts again and again.
        for host in closed:
            self._worker.close_host(host)
        keys = {lease: lease.body or lease.entry for lease in leases}
        own = [key for key in keys.values() if key.startswith(f"{run.spider} ")]
        # Another worker had these targets; it may be suspended and continue later.
        late = {keys[lease] for lease in leases if lease.count > 1} - run.in_flight.keys
        if late:
            taken = sorted(late.intersection(own))
            await run.patience.read(lambda: recovery.take_over(db, taken))
        targets = await run.patience.read(lambda: due.of_keys(db, own, started, closed))
        for lease, key in keys.items():
            if (target := targets.get(key)) is not None:
                self._worker.book.assign(lease.entry, [key])
                # In flight if the lease expired while this process was suspended, and the same
                # worker leased the entry again.
                if key not in run.in_flight:
                    run.in_flight.take(key)
                    yield target
            else:
                # A worker may have crashed between storing the visit and reporting it. Otherwise,
                # the target was visited after the feeder's query and before it was queued again.
                self._worker.drop(lease.entry, {NOT_DUE: 1} if lease.count == 1 else None)

    def _decoded(self, leases: list[Lease]) -> Iterator[Request]:
        """Yield leased requests of the spider, from this process or another one."""
        from crawler.frontier.redis_queue import LEASE

        for lease in leases:
            try:
                request = self._queue.decode(lease.body)
            except Exception as error:  # noqa: BLE001 - Redis may contain anything
                self._refuse(lease, error)
                continue
            self._requests.add(lease.entry)
            if self._watching is None or self._watching.done():
                self._watching = asyncio.ensure_future(self._watch())
            meta = request.meta | {LEASE: lease.entry}
            yield request.replace(meta=meta, dont_filter=True)

    def _refuse(self, lease: Lease, error: Exception) -> None:
        """Drop an entry that no worker of this run can have written; log the first ones."""
        self._refused += 1
        if self._refused <= MAX_LOGGED:
            more = "; more are not logged" if self._refused == MAX_LOGGED else ""
            reason = f"{error}"[:MAX_REASON]
            logger.warning(
                "Invalid request in Redis dropped by %s: %s%s", self._run.spider, reason, more
            )
        self._worker.drop(lease.entry)

    async def _watch(self) -> None:
        """Poll for requests that Scrapy has finished, because it has no signal for that."""
        from crawler.frontier.scheduler import Scheduler

        engine = self._run.crawler.engine
        scheduler = engine.scheduler if engine is not None else None
        try:
            while self._requests and isinstance(scheduler, Scheduler):
                await asyncio.sleep(POLL_SECONDS)
                for entry in scheduler.ended(self._requests):
                    self._requests.discard(entry)
                    self._worker.drop(entry)
        except Exception as error:  # noqa: BLE001 - any error fails the run
            self._run.fail(error)

    async def _dead_letter(self, lease: Lease) -> None:
        """Move an entry that repeatedly crashed workers to the dead letters."""
        run, lost = self._run, lease.count - 1
        if _is_request(lease):
            key = url = lease.entry
            with suppress(Exception):  # as in `_decoded`
                url = self._queue.decode(lease.body).url
        else:
            key = lease.body or lease.entry
            url = key.partition(" ")[2]
        worker = self._queue.worker
        letter = DeadLetter(key, run.spider, url, run.clock.now(), lost, worker)
        await run.patience.read(lambda: runs.add_dead_letter(run.db, letter))
        logger.error("%s dead-lettered: %d workers crashed or stalled on it", url, lost)
        self._worker.drop(lease.entry, {"dead_lettered": 1})

    def share(self, request: Request, fingerprint: Callable[[Request], str]) -> bool:
        """Add a spider's request to the shared queue; return False if it cannot be shared."""
        try:
            text = self._queue.encode(request)
        except (TypeError, ValueError) as error:
            logger.debug("%s kept by this worker: %s", request, error)
            return False
        entry = f"{self._run.spider} request {token_hex(8)}"
        self._worker.push((entry, fingerprint(request), request.priority, text))
        return True

    def take_with(self, target: Target, others: Sequence[Target]) -> None:
        """Assign other cells to the entry of a cell whose page they share."""
        super().take_with(target, others)
        self._worker.book.assign_with(target.key, [other.key for other in others])

    async def may_fetch(self, host: str) -> bool:
        """Count a request to a host; return False if all workers together reached its cap."""
        cap = self._run.limits.cap
        is_free = await super().may_fetch(host)
        return is_free and (not cap or await self._queue.spend(host) <= cap)

    def settle(
        self, target: Target, how: Settled, counts: Counts = MappingProxyType({}), *,
        finds: bool = True,
    ) -> None:  # fmt: skip
        """Take back a target, and complete its entry in the queue unless it is left to others."""
        if how is Settled.POSTPONED:
            self._worker.postpone(target.key)
        super().settle(target, how, counts, finds=finds)
        # After an error, the target may not be stored: leave it to the other workers.
        has_failed = self._run.state.error is not None and how is not Settled.TAKEN_OVER
        if how is not Settled.LEFT and not has_failed:
            self._worker.done(target.key, counts)

    def give_up(self, host: str) -> None:
        """Stop requests of all workers to a host for the rest of the run."""
        super().give_up(host)
        self._worker.close_host(host)

    async def hold(self, host: str, seconds: float) -> None:
        """Pause requests of all workers to a host for `seconds`."""
        assert self.permits is not None
        await self.permits.hold(host, seconds)

    @property
    def is_sure(self) -> bool:
        """Return whether this worker's last renewal rules out that its leases have expired."""
        return self._worker.is_sure

    async def still_holds(self, key: str) -> bool:
        """Return whether this worker still holds a target; renew the leases if unsure."""
        return await self._worker.still_holds(key)

    def stop(self) -> None:
        """Stop taking leases."""
        if self._has_joined:
            self._worker.stop()

    def hurry(self) -> None:
        """Stop retrying while Redis is unavailable."""
        if self._has_joined:
            self._hurry()

    async def leave(self, *, was_open: bool) -> Tally:
        """Return all leases; the last worker to leave sums up the counts of all workers."""
        if not self._has_joined:
            return Tally()
        run, patient = self._run, self._run.state.error is None
        read, id_, links = run.patience.read, run.id, run.state.links
        has_links = patient and was_open and id_ is not None
        if id_ is not None and has_links:
            few = links.few(MAX_SHARED_LINKS)
            # The links are only examples in warnings, so an error here does not matter.
            with suppress(StorageError):
                await read(lambda: runs.note_links(run.db, id_, few))
        sums_up, others, visits_of_all = await self._worker.leave(patient=patient)
        if not sums_up:
            return Tally(None, sums_up, 1, others, visits_of_all)
        counts, shares, workers, has_expired = await self._queue.sums()
        if (has_expired or shares.pop(IN_DOUBT, 0)) and was_open:
            counts = await read(lambda: run.ending.recount(counts))
        if id_ is not None and has_links:
            links.merge(await read(lambda: runs.links(run.db, id_)))
        # Both may have the same names: deliveries of hubs are counted in shares.
        names = {*counts, *shares}
        of_all = whole({name: counts.get(name, 0) + shares.get(name, 0) for name in names})
        return Tally(of_all, sums_up, workers, others, of_all["visits"])

    async def finish(self) -> None:
        """Delete the run, which is summed up, from Redis."""
        if self._has_joined:
            await self._queue.finish()


class Feeder:
    """Adds due targets to the queue until none is left, then ends the run.

    One worker at a time is the feeder. If it crashes, another worker starts over.
    """

    def __init__(self, run: Run, worker: Worker, pushed: PushedUrls, limit: int | None) -> None:
        self._run, self._worker, self._queue, self._pushed = run, worker, worker.queue, pushed
        self._admission = Admission(run, limit)
        self._size = run.config.in_flight

    async def feed(self) -> None:
        """Feed the queue until the run is over."""
        # Dispatch chooses from all due targets.
        await self._pushed.take()
        if await self._feed_chosen():
            await self._feed_overdue()
        # Poll, because other processes complete the last entries.
        while not await self._queue.close():  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        await self._worker.poll()

    async def _feed_chosen(self) -> bool:
        """Queue the targets chosen by dispatch; return False if the run may fetch no more."""
        if self._run.allowance.is_open():
            async for keys in chosen(self._run, self._size):
                if await self._enqueue(await self._room(), keys) is None:
                    return False
        return True

    async def _feed_overdue(self) -> None:
        """Queue due targets, the most overdue first, including those discovered meanwhile.

        A visit moves a target's next visit to after the start of the run. So the run is complete
        when no target is queued, leased or due.
        """
        run = self._run
        db, spider, started = run.db, run.spider, run.started
        now = asyncio.get_running_loop().time
        position: DuePosition | None = None
        while True:
            status, is_first, began = await self._room(), position is None, now()
            has_more = await self._pushed.take()
            # From the first due target on, the query also returns those queued, leased and
            # postponed.
            batch = self._size * min(MAX_READ_AHEAD, max(READ_AHEAD, status.workers))
            left_out = status.waiting + status.leased + await self._queue.count_postponed()
            # A later query begins with the last target of the one before.
            max_targets = batch + (left_out if is_first else 1)
            closed = sorted({*run.closed_hosts(), *await self._queue.closed_hosts()})
            query = partial(due.ordered_keys, db, spider, started, max_targets, closed, position)
            keys, position = await run.patience.read(query)
            new = await self._enqueue(status, keys)
            if new is None or (is_first and not new and status.is_empty and not has_more):
                return
            if position is None and not has_more:
                # The next query starts again from the first due target.
                await asyncio.sleep(PAUSE_SHARE * (now() - began))
                await self._until_completed(under_way=status.waiting + status.leased + new)

    async def _room(self) -> QueueStatus:
        """Return the status of the queue when it has room for more entries."""
        while True:
            status, _, self._admission.handed_out = await self._queue.feed(0, [])
            if status.waiting < self._size * max(1, status.workers):
                return status
            await asyncio.sleep(POLL_SECONDS)

    async def _until_completed(self, under_way: int) -> None:
        """Wait until entries of `under_way` are completed, which may have made targets due.

        Waits for MAX_WAIT_SECONDS at most, because other processes also change targets.
        """
        now = asyncio.get_running_loop().time
        until = now() + MAX_WAIT_SECONDS
        while under_way and now() < until:
            await asyncio.sleep(POLL_SECONDS)
            status, _, _ = await self._queue.feed(0, [])
            if status.waiting + status.leased < under_way:
                return

    async def _enqueue(self, status: QueueStatus, keys: list[str]) -> int | None:
        """Queue new targets, and return their number; None if the run may fetch no more."""
        while self._admission.is_spent and not status.is_empty:
            # Queued targets that are not due any more do not count.
            await asyncio.sleep(POLL_SECONDS)
            status, _, self._admission.handed_out = await self._queue.feed(0, [])
        under_way = status.waiting + status.leased
        allowed = await self._admission.admit(len(keys), under_way)
        if allowed is None:
            return None
        # All cells of a page are one entry, because one worker reads them from a single fetch.
        spider, cells = self._run.spider, self._run.wrapper.cells
        entries: dict[str, str] = {}
        for key in keys:
            cell = cells.get(key.removeprefix(f"{spider} {CELL}"))
            if cell is None or cell.url is None or not key.startswith(f"{spider} {CELL}"):
                entries[key] = ""
            else:
                entries.setdefault(f"{spider} page {cell.url}", key)
        new = 0
        for part in in_batches(list(entries.items()), MAX_FED):
            _, added, self._admission.handed_out = await self._queue.feed(allowed - new, part)
            new += added
        self._run.allowance.give_back(allowed - new)
        return new


def _is_request(lease: Lease) -> bool:
    return lease.body.startswith("{")
