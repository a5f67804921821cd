"""One worker's part in a shared run: the leases it holds, and what became of them.

Three things go on at once: talking to the queue (what is done, what is wanted), renewing what is
held, and, in one of the workers at a time, finding out what is due.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from bson import ObjectId

from crawler.frontier.base import Counts
from crawler.utils.process import end_tasks

if TYPE_CHECKING:
    from crawler.frontier.redis_queue import Joined, Lease, LeasedQueue, QueueStatus
    from crawler.storage.redis import RedisRetry


logger = logging.getLogger(__name__)
# Between two looks where nothing waits: ever longer, up to the second.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 0.5
JOIN_SECONDS = 0.2
TICK_SECONDS = 1.0
OVER = "ending"
Feed = Callable[[], Awaitable[None]]
# Entry, fingerprint, priority and text of a request.
Pushed = tuple[str, str, int, str]


def own_name() -> str:
    """A name that no other worker has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}".replace(" ", "-")


class LeaseBook:
    """The leases of one worker.

    held:  targets that are not stored yet, by entry; none: it is not known yet, or a request
    done:  entries that Redis has not been told of, with what is to be counted of them
    loose: counts of what was never leased (deliveries of hubs)
    """

    def __init__(self) -> None:
        self.held: dict[str, set[str]] = {}
        self.done: list[tuple[str, Counts]] = []
        self.loose: Counter[str] = Counter()
        self._entries: dict[str, str] = {}
        self._counted: dict[str, Counter[str]] = {}
        self._lost: set[str] = set()

    def take(self, leases: Iterable[Lease]) -> None:
        """Entries that were just leased."""
        self.held |= {lease.entry: set() for lease in leases}

    def stand(self, entry: str, keys: Iterable[str]) -> None:
        """The targets that an entry stands for: it is done when all of them are."""
        if entry in self.held:
            keys = set(keys)
            self.held[entry] |= keys
            self._entries |= dict.fromkeys(keys, entry)
            self._lost -= keys

    def stand_with(self, key: str, others: Iterable[str]) -> None:
        """As `stand`, for the entry that stands for a target; nothing where that is lost."""
        if (entry := self._entries.get(key)) is not None:
            self.stand(entry, others)

    def store(self, key: str, counts: Counts) -> None:
        """A target is stored; what is to be counted of it."""
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
        """An entry is done with, whatever it stood for."""
        if self.held.pop(entry, None) is not None:
            self._counted.pop(entry, None)
            self.done.append((entry, counts))

    def lose(self, entries: Iterable[str]) -> None:
        """Others have taken over these entries."""
        for entry in entries:
            keys = self.held.pop(entry, set())
            self._counted.pop(entry, None)
            self._lost |= keys
            for key in keys:
                self._entries.pop(key, None)

    def is_lost(self, key: str) -> bool:
        """Whether others have taken over a target."""
        return key in self._lost

    def entries(self) -> list[str]:
        """All that Redis takes for this worker's."""
        return [*self.held, *(entry for entry, _ in self.done)]


class Worker:
    """Holds leases and says what became of them.

    hold:   how many entries at most
    tries:  leases of an entry until it is left for dead
    shares: this worker's own sums
    failed: is told of an error that ends the work
    """

    def __init__(
        self,
        queue: LeasedQueue,
        steady: RedisRetry,
        lease_seconds: float,
        hold: int,
        tries: int,
        shares: Callable[[], Counts],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.queue = queue
        self.status: QueueStatus | None = None
        self.tries = tries
        self._steady = steady
        self._lease_seconds = lease_seconds
        self._hold = hold
        self._book = LeaseBook()
        self._leases: list[Lease] = []
        self._feed: Feed | None = None
        self._shares, self._failed = shares, failed
        self._pushed: list[Pushed] = []
        self._shut: set[str] = set()
        self._told: set[str] = set()
        self._wake, self._arrived = asyncio.Event(), asyncio.Event()
        # What is held is told and changed by one message at a time.
        self._lock = asyncio.Lock()
        self._is_wanted = self._is_stopped = False
        self._sure_until = 0.0
        self._outages = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._feeding: asyncio.Task[None] | None = None
        self._now = asyncio.get_running_loop().time

    async def join(self) -> Joined:
        """Take part in the run, once it is clear what this worker is to do there."""
        while True:
            joined = await self.queue.join(str(ObjectId()))
            if joined.todo != "wait":
                self._sure_until = self._now() + self._lease_seconds
                self._tasks.append(self._start(self._renew_in_time()))
                return joined
            await asyncio.sleep(JOIN_SECONDS)

    def begin(self, feed: Feed) -> None:
        """Go to work. feed: finds out what is due, where that is this worker's to do."""
        self._feed = feed
        self._tasks.append(self._start(self._talk()))

    async def next(self) -> list[Lease]:
        """Leases, as there is room for them; none when the run is over, or this worker is."""
        while not self._leases and not self._is_over:
            self._is_wanted = True
            self._wake.set()
            self._arrived.clear()
            await self._arrived.wait()
        self._is_wanted = False
        taken, self._leases = self._leases, []
        return [] if self._is_over else taken

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or (self.status is not None and self.status.state == OVER)

    def holds(self, lease: Lease, keys: Iterable[str]) -> None:
        """The targets that an entry stands for: it is done when all of them are."""
        self._book.stand(lease.entry, keys)

    def holds_with(self, key: str, others: Iterable[str]) -> None:
        """Further targets that the entry of a target stands for."""
        self._book.stand_with(key, others)

    def done(self, key: str, counts: Counts) -> None:
        """A target is stored; what is to be counted of it."""
        self._book.store(key, counts)
        self._wake.set()

    def drop(self, entry: str, counts: Counts | None = None) -> None:
        """An entry is done with, whatever it stood for."""
        self._book.drop(entry, counts or {})
        self._wake.set()

    @property
    def is_sure(self) -> bool:
        """Whether its last word is so young that nobody can have taken over what it holds."""
        return self._now() <= self._sure_until

    async def still_holds(self, key: str) -> bool:
        """Whether a target is still this worker's; it asks where it is not sure."""
        while not self.is_sure:
            if self._is_stopped:
                return False
            await self._renew()
        return not self._book.is_lost(key)

    def hurry(self) -> None:
        """Wait no longer for a Redis that is away."""
        self._steady.hurry()

    def shut(self, host: str) -> None:
        """A host gets no more requests in this run, from nobody."""
        if host not in self._told:
            self._told.add(host)
            self._shut.add(host)

    def push(self, request: Pushed) -> None:
        """A request that the spider made waits for whoever has room."""
        self._pushed.append(request)
        self._wake.set()

    def stop(self) -> None:
        """Take no more leases."""
        self._is_stopped = True
        self._wake.set()
        self._arrived.set()

    async def leave(self, *, patient: bool) -> tuple[bool, int, int]:
        """Say what is done, give back the rest, and go; at once or never if not `patient`.

        Returns whether this worker is to sum up the run (all others have left then), how many
        others are at work, and the visits of the run so far.
        """
        self.stop()
        if not patient:
            self._steady.hurry()
        await end_tasks(*self._tasks, *([self._feeding] if self._feeding else []))
        if self._book.done or self._pushed:
            await self._say(0)
        while True:
            closes, others, visits = await self.queue.leave(self._sums())
            if not closes or not others:
                return closes, others, visits
            await asyncio.sleep(JOIN_SECONDS)

    def _sums(self) -> Counts:
        return {**self._book.loose, **self._shares()}

    async def look(self) -> None:
        """See how the run stands; who finds out what is due keeps that role so."""
        async with self._lock:
            status, _ = await self.queue.work([], 0, 0)
        self._note(status)

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._guarded(work))

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the run fails, whatever it is
            self.stop()
            self._failed(error)

    async def _talk(self) -> None:
        pause_seconds = FIRST_PAUSE_SECONDS
        while not self._is_over:
            self._wake.clear()
            # A suspect is leased on top of what was wanted.
            room = max(0, self._hold - len(self._book.held))
            want = room if self._is_wanted else 0
            if not want and not self._book.done and not self._pushed:
                await self._wake.wait()
                continue
            has_leased = await self._say(want)
            pause_seconds = FIRST_PAUSE_SECONDS if has_leased else pause_seconds * 2
            if has_leased:
                self._arrived.set()
            elif want:
                pause_seconds = min(pause_seconds, LONGEST_PAUSE_SECONDS)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause_seconds)
        self._arrived.set()

    async def _say(self, want: int) -> bool:
        # Before what they came from is done: else the run could end between the two.
        while self._pushed:
            await self.queue.push(*self._pushed[0])
            del self._pushed[0]
        if self._shut:
            await self.queue.shut(self._shut)
            self._shut = set()
        async with self._lock:
            done = list(self._book.done)
            status, leases = await self.queue.work(done, want, self.tries)
            del self._book.done[: len(done)]
            self._book.take(leases)
            self._leases += leases
        self._note(status)
        return bool(leases)

    async def _renew_in_time(self) -> None:
        while not self._is_stopped:
            await asyncio.sleep(min(TICK_SECONDS, self._lease_seconds / 4))
            due = self._now() > self._sure_until - self._lease_seconds * 2 / 3
            # Whoever is late after an outage finds that others have what it holds.
            if due or self._steady.outages != self._outages:
                await self._renew()
            elif self._feeding is not None:
                await self.look()

    async def _renew(self) -> None:
        async with self._lock:
            began, outages = self._now(), self._steady.outages
            status, lost = await self.queue.renew(
                self._book.entries(), self._sums(),
                sure=lambda: self.is_sure, back=outages != self._outages,
            )  # fmt: skip
            self._sure_until = began + self._lease_seconds
            self._outages = outages
            self._book.lose(lost)
            self._leases = [held for held in self._leases if held.entry in self._book.held]
        self._note(status)

    def _note(self, status: QueueStatus) -> None:
        self.status = status
        feed = None if self._is_stopped else self._feed
        if status.feeds and self._feeding is None and feed is not None:
            self._feeding = self._start(feed())
        elif not status.feeds and self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None
        if self._is_over:
            self._arrived.set()
