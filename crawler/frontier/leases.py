"""Manage the leases of one worker in a shared run.

Three tasks run concurrently: one reports completed entries and requests new leases, one renews the
leases, and in one worker at a time, the feeder adds due targets to the queue. A worker that got no
lease waits for a token of the queue instead of polling.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from bson import ObjectId

from crawler.errors import FreshetError
from crawler.utils.process import end_tasks

if TYPE_CHECKING:
    from crawler.frontier.lifecycle import Counts
    from crawler.frontier.redis_queue import Joined, Lease, LeasedQueue, Pushed, QueueStatus
    from crawler.storage.redis import RedisRetry


logger = logging.getLogger(__name__)
# An idle worker waits for a token, and otherwise tries again when a lease or the role of the feeder
# can expire, but not before MIN_PAUSE_SECONDS. Workers do so one after the other, SPREAD_SECONDS
# apart on average, until one has found something: it wakes the others.
MIN_PAUSE_SECONDS, SPREAD_SECONDS = 0.05, 0.1
# Interval between attempts to lease if the worker cannot wait for a token.
RETRY_SECONDS = 0.5
# As shares of the duration of a lease: the longest pause, and the time between two renewals, which
# is longer for a worker without leases, whose requests for leases also keep it alive.
LONGEST_PAUSE, RENEWAL, IDLE_RENEWAL = (0.4, 0.6), 1 / 3, 0.6
JOIN_SECONDS = 0.2
# Leases per concurrent request: some wait to be sent, some to be stored.
LEASES_PER_REQUEST = 8
# Minimum interval between messages of a worker with at least half of its leases.
BATCH_SECONDS = 0.1
TICK_SECONDS = 1.0
OVER = "ending"
Feed = Callable[[], Awaitable[None]]
# Maximum number of requests per message; each can have 256 kB.
MAX_PUSHED = 50


def own_name() -> str:
    """Return a unique name for this worker."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}".replace(" ", "-")


class LeaseBook:
    """Leases of one worker.

    held:  targets that are not stored yet, by entry; empty if not yet assigned, or for a request
    done:  completed entries that are not yet reported to Redis, with their counts
    loose: counts of visits without a lease (deliveries of hubs)
    """

    def __init__(self) -> None:
        self.held: dict[str, set[str]] = {}
        self.done: list[tuple[str, Counts]] = []
        self.loose: Counter[str] = Counter()
        self._entries: dict[str, str] = {}
        self._counted: dict[str, Counter[str]] = {}
        self._lost: set[str] = set()

    def take(self, leases: Iterable[Lease]) -> None:
        """Add entries that were just leased."""
        self.held |= {lease.entry: set() for lease in leases}

    def assign(self, entry: str, keys: Iterable[str]) -> None:
        """Assign targets to an entry, which is completed when all its targets are stored."""
        if entry in self.held:
            keys = set(keys)
            self.held[entry] |= keys
            self._entries |= dict.fromkeys(keys, entry)
            self._lost -= keys

    def entry_of(self, key: str) -> str:
        """Return the entry of a target; if the lease on it is lost, the usual name."""
        return self._entries.get(key, key)

    def assign_with(self, key: str, others: Iterable[str]) -> None:
        """Assign `others` to the entry of target `key`, unless the lease on it is lost."""
        if (entry := self._entries.get(key)) is not None:
            self.assign(entry, others)

    def store(self, key: str, counts: Counts) -> None:
        """Note that a target is stored, and add its counts."""
        self._lost.discard(key)
        entry = self._entries.pop(key, None)
        so_far = self.loose if entry is None else self._counted.setdefault(entry, Counter())
        for name, value in counts.items():
            so_far[name] += value  # type: ignore[assignment]
        if entry is not None:
            self.held[entry].discard(key)
            if not self.held[entry]:
                self.drop(entry, so_far)

    def drop(self, entry: str, counts: Counts) -> None:
        """Complete an entry, even if some of its targets are not stored."""
        if self.held.pop(entry, None) is not None:
            self._counted.pop(entry, None)
            self.done.append((entry, counts))

    def lose(self, entries: Iterable[str]) -> None:
        """Remove entries that other workers have taken over."""
        for entry in entries:
            keys = self.held.pop(entry, set())
            self._counted.pop(entry, None)
            self._lost |= keys
            for key in keys:
                self._entries.pop(key, None)

    def is_lost(self, key: str) -> bool:
        """Return whether another worker has taken over a target."""
        return key in self._lost

    def entries(self) -> list[str]:
        """Return all entries that are leased to this worker in Redis."""
        return [*self.held, *(entry for entry, _ in self.done)]


class Worker:
    """Requests, renews and completes leases.

    book:       leases, and the targets that they are for
    max_leases: maximum number of leases
    tries:      number of leases of an entry after which it is dead-lettered
    shares:     returns counts of this worker that do not come from visits
    failed:     called with an error that ends the worker
    """

    def __init__(
        self,
        queue: LeasedQueue,
        steady: RedisRetry,
        lease_seconds: float,
        max_leases: int,
        tries: int,
        shares: Callable[[], Counts],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.queue = queue
        self.status: QueueStatus | None = None
        self.tries = tries
        self._steady = steady
        self._lease_seconds = lease_seconds
        self._max_leases = max_leases
        self.book = LeaseBook()
        self._leases: list[Lease] = []
        self._feed: Feed | None = None
        self._shares, self._failed = shares, failed
        self._pushed: list[Pushed] = []
        # Postponed entries and closed hosts that are not yet reported to Redis, and all closed
        # hosts.
        self._unreported_entries: set[str] = set()
        self._unreported_hosts: set[str] = set()
        self._closed_hosts: set[str] = set()
        self._wake, self._arrived = asyncio.Event(), asyncio.Event()
        self._wanted = asyncio.Event()
        # Only one message at a time may report or change the leases.
        self._lock = asyncio.Lock()
        # Hungry: the last request for leases yielded none.
        self._is_stopped = self._is_hungry = False
        self._sure_until = 0.0
        self._renewed_sums: Counts = {}
        self._outages = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._feeding: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._now = asyncio.get_running_loop().time

    async def join(self) -> Joined:
        """Join the run; wait while another worker prepares or ends it."""
        while True:
            joined = await self.queue.join(str(ObjectId()))
            if joined.todo != "wait":
                self._sure_until = self._now() + self._lease_seconds
                self._tasks.append(self._start(self._renew_in_time))
                return joined
            await asyncio.sleep(JOIN_SECONDS)

    def begin(self, feed: Feed) -> None:
        """Start leasing. feed: function to call if this worker becomes the feeder."""
        self._feed = feed
        self._tasks.append(self._start(self._exchange))

    async def next(self) -> list[Lease]:
        """Wait for new leases and return them; empty when the run ends or this worker stops."""
        while not self._leases and not self._is_over:
            self._wanted.set()
            self._wake.set()
            self._arrived.clear()
            await self._arrived.wait()
        taken, self._leases = self._leases, []
        return [] if self._is_over else taken

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or (self.status is not None and self.status.state == OVER)

    def done(self, key: str, counts: Counts) -> None:
        """Note that a target is stored, and add its counts."""
        self.book.store(key, counts)
        self._wake.set()

    def drop(self, entry: str, counts: Counts | None = None) -> None:
        """Complete an entry, even if some of its targets are not stored."""
        self.book.drop(entry, counts or {})
        self._wake.set()

    @property
    def is_sure(self) -> bool:
        """Return whether the last renewal rules out that a lease has expired."""
        return self._now() <= self._sure_until

    async def still_holds(self, key: str) -> bool:
        """Return whether this worker still holds a target; renew the leases if unsure."""
        while not self.is_sure:
            if self._is_stopped:
                return False
            await self._renew()
        return not self.book.is_lost(key)

    def close_host(self, host: str) -> None:
        """Stop requests of all workers to a host for the rest of the run."""
        if host not in self._closed_hosts:
            self._closed_hosts.add(host)
            self._unreported_hosts.add(host)
            self._wake.set()

    def postpone(self, key: str) -> None:
        """Stop handing out a target in this run."""
        self._unreported_entries.add(self.book.entry_of(key))
        self._wake.set()

    def push(self, request: Pushed) -> None:
        """Add a spider's request to the shared queue."""
        self._pushed.append(request)
        self._wake.set()

    def stop(self) -> None:
        """Stop taking leases."""
        self._is_stopped = True
        self._wake.set()
        self._arrived.set()

    async def leave(self, *, patient: bool) -> tuple[bool, int, int]:
        """Report completed entries, return all other leases, and leave the run.

        patient: whether to retry while Redis is unavailable

        Returns whether this worker has to sum up the run (all others have left), the number of
        other workers, and the number of visits of the run so far.
        """
        self.stop()
        if not patient:
            self._steady.hurry()
        await end_tasks(*self._tasks, *filter(None, (self._feeding, self._listening)))
        if self.book.done or self._pushed:
            await self._report(0)
        while True:
            closes, others, visits = await self.queue.leave(self._sums())
            if not closes or not others:
                return closes, others, visits
            await asyncio.sleep(JOIN_SECONDS)

    def _sums(self) -> Counts:
        return {**self.book.loose, **self._shares()}

    async def poll(self) -> None:
        """Update the status of the queue; this also keeps the role of feeder."""
        async with self._lock:
            status, _ = await self.queue.work([], 0)
        self._note(status)

    def _start(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - any error fails the run
                self.stop()
                self._failed(error)

        return asyncio.ensure_future(guarded())

    async def _exchange(self) -> None:
        while not self._is_over:
            self._wake.clear()
            # Can be negative: a suspect is leased in addition to `want` entries.
            room = max(0, self._max_leases - len(self.book.held))
            needs_more = self._wanted.is_set() and (self.book.done or not self._has_enough)
            want = room if needs_more else 0
            unreported = self._unreported_hosts or self._unreported_entries
            if not (want or self.book.done or self._pushed or unreported):
                await self._wake.wait()
                continue
            has_leased = await self._report(want)
            self._is_hungry = want > 0 and not has_leased
            if has_leased:
                self._wanted.clear()
                self._arrived.set()
                # Let the spider take the entries; it may request more.
                await asyncio.sleep(0)
            if self._has_enough:
                # Report and lease more entries with one message, unless the spider has none left.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), BATCH_SECONDS)
            elif self._is_hungry:
                await self._pause()
        self._arrived.set()

    @property
    def _has_enough(self) -> bool:
        return len(self.book.held) > self._max_leases // 2

    async def _pause(self) -> None:
        """Wait until a message, this worker or time may have changed what it can lease."""
        # A worker with more entries than concurrent requests leases more when it completes one.
        is_idle = len(self.book.held) <= self._max_leases // LEASES_PER_REQUEST
        if is_idle and (self._listening is None or self._listening.done()):
            self._listening = self._start(self._listen)
        assert self.status is not None
        status, longest = self.status, self._lease_seconds * random.uniform(*LONGEST_PAUSE)
        spread_seconds = random.uniform(0, status.workers * SPREAD_SECONDS)
        seconds = max(status.quiet_seconds, MIN_PAUSE_SECONDS) + spread_seconds
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), min(seconds, longest))

    async def _listen(self) -> None:
        """Wait for a token of the queue while this worker has too little to do."""
        while self._is_hungry and not self._is_over:
            try:
                if not await self.queue.wait():
                    continue
                if not self._is_hungry:
                    await self.queue.wake_another()
            except FreshetError:
                # An outage, or a user without the right to wait: try again from time to time.
                await asyncio.sleep(RETRY_SECONDS)
            self._wake.set()
            return

    async def _report(self, want: int) -> bool:
        """Report to Redis and lease up to `want` entries; return whether any were leased."""
        # Push requests before completing the entries that they come from: otherwise the run could
        # end in between.
        while self._pushed:
            pushed = self._pushed[:MAX_PUSHED]
            await self.queue.push(pushed)
            del self._pushed[: len(pushed)]
        # Before these entries are completed: otherwise the feeder would queue them again.
        if entries := set(self._unreported_entries):
            await self.queue.postpone(entries)
            self._unreported_entries -= entries
        if hosts := set(self._unreported_hosts):
            await self.queue.close_hosts(hosts)
            # Others may have been closed meanwhile.
            self._unreported_hosts -= hosts
        async with self._lock:
            done, began, is_renewed = list(self.book.done), self._now(), self._has_nothing_to_renew
            status, leases = await self.queue.work(done, want)
            if is_renewed:
                self._sure_until = began + self._lease_seconds
            del self.book.done[: len(done)]
            self.book.take(leases)
            self._leases += leases
        self._note(status)
        return bool(leases)

    async def _renew_in_time(self) -> None:
        while not self._is_stopped:
            await asyncio.sleep(min(TICK_SECONDS, self._lease_seconds / 4))
            share = IDLE_RENEWAL if self._has_nothing_to_renew else RENEWAL
            due = self._now() > self._sure_until - self._lease_seconds * (1 - share)
            # Renew promptly after an outage, before other workers take over the leases.
            if due or self._steady.outages != self._outages:
                await self._renew()
            elif self._feeding is not None:
                await self.poll()

    @property
    def _has_nothing_to_renew(self) -> bool:
        """Return whether a request for leases keeps this worker alive as well as a renewal does."""
        return not self.book.held and self._sums() == self._renewed_sums

    async def _renew(self) -> None:
        async with self._lock:
            began, outages, sums = self._now(), self._steady.outages, self._sums()
            status, lost = await self.queue.renew(
                self.book.entries(), sums,
                sure=lambda: self.is_sure, back=outages != self._outages,
            )  # fmt: skip
            self._sure_until = began + self._lease_seconds
            self._outages, self._renewed_sums = outages, sums
            self.book.lose(lost)
            if lost:
                self._wake.set()
            self._leases = [lease for lease in self._leases if lease.entry in self.book.held]
        self._note(status)

    def _note(self, status: QueueStatus) -> None:
        self.status = status
        feed = None if self._is_stopped else self._feed
        if status.feeds and self._feeding is None and feed is not None:
            self._feeding = self._start(feed)
        elif not status.feeds and self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None
        if self._is_over:
            self._arrived.set()
