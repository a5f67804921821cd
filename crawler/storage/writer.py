"""Group commit: each visit waits until its batch is in the journal.

One write per item would keep the reactor waiting (about 1,500 items/s); one bulk write per batch
and collection does not. Each batch takes several commands, so items and unchanged pages wait until
a batch is full. Other pages shorten the wait: a crawl may depend on the links of a list page, and
feeds and cells must be up to date. No batch waits if no further visit can come.

The order within a batch is: links of pages, versions and near-duplicate claims, posts, targets
(each of these writes acknowledges its visit), and the change log. Every write can be repeated, so
after a lost connection the batch is sent again. Writes are fenced: they do not overwrite what other
processes stored or took over meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import compress
from operator import not_
from typing import Protocol

from pymongo.errors import PyMongoError

from crawler.archive.writer import ArchiveWriter
from crawler.config import Config
from crawler.dedup.posts import ALONE, Verdicts
from crawler.errors import Unreachable
from crawler.items import Kind, Outcome, Visit
from crawler.storage import (
    cells,
    feeds,
    identity,
    leases,
    listings,
    posts,
    recovery,
    targets,
    visits,
    websub,
)
from crawler.storage.client import Database, MongoRetry, insert_new
from crawler.storage.dedup import claims, clusters, edits
from crawler.storage.dedup.signatures import Registry
from crawler.storage.in_flight import InFlight
from crawler.storage.listings import Patterns
from crawler.storage.notification_rules import WantedEvents

logger = logging.getLogger(__name__)
Entry = tuple[Visit, "asyncio.Future[None]"]
# Maximum time until a batch of items and unchanged pages is full, and maximum bytes of its pages.
# Scrapy stops fetching at 5 MB of responses in progress.
PATIENT_SECONDS, MAX_BYTES = 0.5, 1_000_000


class Leases(Protocol):
    """The rights of this process to store visits, until its run or a target is taken over."""

    @property
    def is_sure(self) -> bool:
        """Return whether the leases were renewed recently enough that nobody took over."""

    async def still_holds(self, key: str) -> bool:
        """Return whether a target still belongs to this process; query unless sure."""


class BothLeases:
    """The rights of a process that needs two leases: of the run, and of a target."""

    def __init__(self, first: Leases, second: Leases) -> None:
        self._first, self._second = first, second

    @property
    def is_sure(self) -> bool:
        """Return whether both leases were renewed recently enough."""
        return self._first.is_sure and self._second.is_sure

    async def still_holds(self, key: str) -> bool:
        """Return whether this process still has both leases."""
        return await self._first.still_holds(key) and await self._second.still_holds(key)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the crawl around a writer has.

    leases:    of this process; None: others store nothing meanwhile
    in_flight: targets that this process works on, which a batch cannot exceed; None: unknown
    archive:   archive of the site, which is written before each batch; None without one
    is_baseline: whether the first crawl of the site is not complete
    """

    leases: Leases | None = None
    in_flight: InFlight | None = None
    archive: ArchiveWriter | None = None
    is_baseline: bool = False


class LeaseUncertain(Exception):
    """The process stalled for too long in the middle of a batch."""


class TakenOver(Exception):
    """Another worker has taken over the target of a visit, because this one stalled too long."""


class Writer:
    """Writes visits in batches; one writer per run.

    is_in_doubt: whether a batch failed, so that the log may lack visits that targets have
    wanted:      the events that rules of notifications select
    on_stored:   called with each stored batch, and the seconds that it took
    """

    def __init__(
        self,
        db: Database,
        config: Config,
        due: datetime,
        patience: MongoRetry,
        patterns: Patterns,
        registry: Registry | None = None,
        around: Surroundings = Surroundings(),
    ) -> None:
        self._db = db
        self._config = config
        self._due = due
        self._patience = patience
        self._patterns = patterns
        wrapper = patterns.traps.wrapper
        self._size_limits = posts.SizeLimits(db, wrapper.name, config)
        self._registry = registry
        self._leases, self._archive = around.leases, around.archive
        self._in_flight, self._is_baseline = around.in_flight, around.is_baseline
        if self._in_flight is not None:
            self._in_flight.watch(self._check)
        self.wanted = WantedEvents(db, config.notify_file, wrapper.notify, wrapper.name)
        self._longest = timedelta(hours=config.longest_hours(feeds=False))
        self._waiting: list[Entry] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._wait: asyncio.Timeout | None = None
        self._closing = False
        self._broken: Exception | None = None
        self._task = asyncio.ensure_future(self._work())
        self.discovered = 0
        self.is_in_doubt = False
        self.on_stored: Callable[[list[Visit], float], None] | None = None

    async def commit(self, visit: Visit) -> None:
        """Return when the visit and all its data are stored.

        Raises Unreachable if the server stays unavailable, TakenOver if another process has the
        target, the driver's error if this visit (not its batch) is invalid, and the error that
        stopped the writer.
        """
        if self._broken is not None:
            raise self._broken
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((visit, stored))
        self._bytes += visit.fetched.size
        self._arrived.set()
        self._note_waiting()
        if visit.fetched.target.kind is Kind.LIST and visit.has_new_links:
            # The crawl may wait for these links.
            self._full.set()
        if not _can_wait(visit):
            self._shorten_wait()
        await stored

    def _check(self) -> None:
        """End the wait for further visits if the batch is full, or if none can come."""
        size = self._config.commit_size
        if self._in_flight is not None:
            size = max(1, min(batch_size(self._config), len(self._in_flight)))
        if len(self._waiting) >= size or self._bytes >= MAX_BYTES:
            self._full.set()

    def _note_waiting(self) -> None:
        if self._in_flight is None:
            self._check()
        else:
            # This calls `_check`, too.
            self._in_flight.note_waiting(len(self._waiting))

    async def close(self) -> None:
        """Write the waiting visits, and stop."""
        self._closing = True
        self._arrived.set()
        self._full.set()
        await self._task
        # During an outage this would wait for the full retry time again.
        if not self._patience.outage.is_on:
            await self._patience.ask(self._size_limits.note)

    async def _work(self) -> None:
        try:
            while await self._batch_is_ready():
                # A variable here would keep the batch and its pages in memory until the next one.
                await self._store(await self._next_batch())
        except Exception as error:
            # Waiting and later visits would otherwise wait forever.
            self._broken = error
            _fail(self._waiting, error)
            raise

    async def _batch_is_ready(self) -> bool:
        if not self._waiting and not self._closing:
            await self._arrived.wait()
        if not self._closing and not self._full.is_set():
            with contextlib.suppress(TimeoutError):
                longest = max(PATIENT_SECONDS, self._config.commit_ms / 1000)
                async with asyncio.timeout(longest) as self._wait:
                    can_wait = self._in_flight is not None
                    if not (can_wait and all(_can_wait(visit) for visit, _ in self._waiting)):
                        self._shorten_wait()
                    await self._full.wait()
            self._wait = None
        return bool(self._waiting) or not self._closing

    def _shorten_wait(self) -> None:
        """Wait no longer than FRESHET_COMMIT_MS from now until the batch is full."""
        if self._wait is None or self._wait.expired():
            return
        until = asyncio.get_running_loop().time() + self._config.commit_ms / 1000
        before = self._wait.when()
        if before is None or before > until:
            self._wait.reschedule(until)

    async def _next_batch(self) -> list[Entry]:
        """Take the waiting visits, and write the archive; return none if that fails."""
        batch, self._waiting, self._bytes = self._waiting, [], 0
        self._arrived.clear()
        self._full.clear()
        self._note_waiting()
        try:
            if self._archive is not None:
                await self._archive.flush()
        except Exception as error:  # noqa: BLE001 - waiting visits need every error
            _fail(batch, error)
            return []
        return batch

    async def _store(self, batch: list[Entry], *, is_begun: bool = False) -> None:
        """Store a batch; is_begun: a part of it may be stored already."""
        began = time.monotonic()
        late: list[Visit] = []
        try:
            batch = await self._still_held(batch, is_begun=is_begun)
            visits_of_batch = [visit for visit, _ in batch]
            if batch:
                late = await self._patience.ask(lambda: self._write(visits_of_batch))
                await self._size_limits.stored(visits_of_batch, self._patience)
        except LeaseUncertain:
            await self._store(batch, is_begun=True)
        except Unreachable as error:
            self.is_in_doubt = True
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - waiting visits need every error
            self.is_in_doubt = True
            await self._store_singly(batch, error)
        else:
            too_late = {visit.id for visit in late}
            _fail([entry for entry in batch if entry[0].id in too_late], TakenOver())
            for _, stored in batch:
                if not stored.done():
                    stored.set_result(None)
            if self.on_stored is not None:
                self.on_stored(visits_of_batch, time.monotonic() - began)

    async def _still_held(self, batch: list[Entry], *, is_begun: bool) -> list[Entry]:
        """Return the visits whose targets were not taken over; called right before storing."""
        if self._leases is None:
            return batch
        holds = [await self._leases.still_holds(visit.fetched.target.key) for visit, _ in batch]
        if lost := list(compress(batch, map(not_, holds))):
            if is_begun:
                # The process that took them over cleaned up before this one continued.
                visits_lost = [visit for visit, _ in lost]
                await self._patience.ask(lambda: recovery.drop(self._db, visits_lost))
            _fail(lost, TakenOver())
        return list(compress(batch, holds))

    async def _store_singly(self, batch: list[Entry], error: Exception) -> None:
        """Store visits one by one, so that only invalid visits fail."""
        if len(batch) == 1:
            await self._drop(batch)
            _fail(batch, error)
            return
        logger.debug("Batch of %d visits rejected, storing them one by one", len(batch))
        for entry in batch:
            await self._store([entry], is_begun=True)

    async def _drop(self, batch: list[Entry]) -> None:
        with contextlib.suppress(PyMongoError):
            await recovery.drop(self._db, [visit for visit, _ in batch])

    async def _write(self, batch: list[Visit]) -> list[Visit]:
        """Store a batch; return the visits whose targets were visited or taken over meanwhile."""
        wanted = await self.wanted.read()
        for visit in batch:
            visit.wanted, visit.is_baseline = wanted, self._is_baseline
            await self._write_links(visit)
        await identity.settle_aliases(self._db, self._registry, batch, self._longest)
        await identity.set_items(self._db, batch)
        posts.measure_versions(batch)
        verdicts = await self._write_versions_and_claim(batch)
        items = [v for v in batch if v.stores_content and v.fetched.target.kind is Kind.ITEM]
        await posts.store(self._db, items, verdicts)
        feed_visits = [v for v in batch if v.fetched.target.kind is Kind.FEED]
        if feed_visits:
            await feeds.store(self._db, feed_visits, verdicts)
        await identity.remove_shared_items(self._db, self._registry, batch)
        if self._registry is not None and verdicts:
            written = {post.key for visit in batch for post in visit.candidates}
            await clusters.confirm(self._db, self._registry, verdicts, written)
        await self._write_results(feed_visits, batch)
        if self._leases is not None and not self._leases.is_sure:
            raise LeaseUncertain
        if late := await targets.acknowledge(self._db, batch):
            await recovery.drop(self._db, late)
            too_late = {visit.id for visit in late}
            batch = [visit for visit in batch if visit.id not in too_late]
        await targets.note_aliases(self._db, batch)
        await identity.follow_redirects(self._db, self._registry, batch)
        await insert_new(self._db.visits, [visits.log_row_of(visit) for visit in batch])
        if doubted := [visit.fetched.target.key for visit in batch if visit.doubts_push]:
            await websub.require_proof(self._db, doubted)
        if taken := [visit.fetched.push for visit in batch if visit.fetched.push is not None]:
            await websub.delete_deliveries(self._db, taken)
        return late

    async def _write_results(self, feed_visits: list[Visit], batch: list[Visit]) -> None:
        """Store the state of feeds and cells after their visits, and add the pages of new posts."""
        if feed_visits:
            await feeds.note(self._db, feed_visits)
            await feeds.settle_dates(self._db, feed_visits)
            for visit in feed_visits:
                self.discovered += await feeds.follow(self._db, visit, self._due)
        if cell_visits := [v for v in batch if v.fetched.target.kind is Kind.CELL]:
            await cells.note(self._db, cell_visits)

    async def _write_versions_and_claim(self, batch: list[Visit]) -> Verdicts:
        """Store versions and claim posts concurrently: they are independent."""
        new = [visit for visit in batch if visit.stores_content]
        claiming = asyncio.create_task(self._claim(batch))
        try:
            await posts.store_versions(self._db, [posts.row_of(visit) for visit in new])
        finally:
            # After an error, nothing may keep running while the batch is retried.
            verdicts = await claiming
        return verdicts

    async def _claim(self, batch: list[Visit]) -> Verdicts:
        """Return the near-duplicate verdicts of the posts of a batch."""
        if self._registry is None:
            return {}
        now = max(visit.fetched.at for visit in batch)
        emptied = {
            key: dict([leases.fence_of(visit.fetched.target)])
            for visit in batch
            for key in visit.emptied
        }
        if emptied:
            await edits.release(self._registry, list(emptied), now, emptied)
        candidates = [post for visit in batch for post in visit.candidates]
        verdicts = await claims.claim(self._registry, candidates, now)
        verdicts |= dict.fromkeys(emptied, ALONE)
        for visit in batch:
            visit.verdicts = verdicts
        return verdicts

    async def _write_links(self, visit: Visit) -> None:
        if visit.has_new_links:
            links = listings.record(self._db, visit.fetched, self._due, self._patterns)
            self.discovered += await links
        if visit.fetched.target.kind is Kind.LIST and visit.alias_of is None:
            await listings.record_digests(self._db, visit.fetched, self._due)
        if visit.gone and visit.outcome is Outcome.GONE:
            await listings.drop_all(self._db, visit.fetched.target)


def batch_size(config: Config) -> int:
    """Return the maximum size of a batch if targets in flight are known."""
    # With half of them in a batch, the crawl continues with the other half while it is stored.
    return min(config.commit_size, -(-config.in_flight // 2))


def _can_wait(visit: Visit) -> bool:
    """Return whether a visit is of an item or an unchanged page, and found no links or posts."""
    if visit.fetched.links or visit.collected:
        return False
    is_same = visit.outcome in (Outcome.NOT_MODIFIED, Outcome.UNCHANGED)
    return visit.fetched.target.kind is Kind.ITEM or (is_same and not visit.stores_content)


def _fail(batch: list[Entry], error: Exception) -> None:
    for _, stored in batch:
        if not stored.done():
            stored.set_exception(error)
