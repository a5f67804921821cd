"""Group commit: visits wait for the batch that holds them, and go on when it is in the journal.

A call per item keeps the reactor waiting (about 1,500 items/s); one bulk write a batch and
collection does not. Within a batch the order is: what the page linked to, versions and claims
of near-duplicates, posts, then the targets (each of these writes acknowledges its visit), then the
change log. Every write can be repeated, so a batch that met a lost connection is simply sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import compress
from operator import not_
from typing import Protocol

from crawler.config import Config
from crawler.errors import Unreachable
from crawler.items import Kind, Outcome, Visit
from crawler.sketches.claim import ALONE, Verdicts
from crawler.storage import (
    aliases,
    cards,
    cells,
    feedposts,
    feeds,
    listings,
    posts,
    pushes,
    sources,
    targets,
    versions,
    visits,
    websub,
)
from crawler.storage.bulk import insert_new
from crawler.storage.client import Database
from crawler.storage.duplicates import claims, flags, leaving
from crawler.storage.duplicates.registry import Registry
from crawler.storage.patience import Patience
from crawler.storage.patterns import Patterns

logger = logging.getLogger(__name__)
Entry = tuple[Visit, "asyncio.Future[None]"]


class Leases(Protocol):
    """What this process may store, where several share a pass."""

    @property
    def is_sure(self) -> bool:
        """Whether it was not silent for so long that others may have taken over what it holds."""

    async def still_holds(self, key: str) -> bool:
        """Whether a target is still this process's; asks, unless it is sure."""


class Slept(Exception):
    """The process was silent for too long, in the middle of a batch."""


class TakenOver(Exception):
    """Another worker has taken over the target of a visit, as this one was silent for too long."""


class Writer:
    """Writes visits in batches; one for each pass.

    leases:    where several workers share it
    on_stored: called with each batch that is stored, and the seconds that it took
    """

    def __init__(
        self,
        db: Database,
        config: Config,
        due: datetime,
        patience: Patience,
        patterns: Patterns,
        registry: Registry | None = None,
        leases: Leases | None = None,
    ) -> None:
        self._db = db
        self._config = config
        self._due = due
        self._patience = patience
        self._patterns = patterns
        self._registry = registry
        self._leases = leases
        self._longest = timedelta(hours=config.max_interval_hours)
        self._waiting: list[Entry] = []
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._closing = False
        self._broken: Exception | None = None
        self._task = asyncio.ensure_future(self._work())
        self.discovered = 0
        self.on_stored: Callable[[list[Visit], float], None] | None = None

    async def commit(self, visit: Visit) -> None:
        """Return when the visit and all that belongs to it is stored.

        Raises Unreachable when the server stays away, TakenOver where the visit is not this
        process's to store, the driver's error when this visit (not its batch) cannot be stored,
        and what ended the writer.
        """
        if self._broken is not None:
            raise self._broken
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((visit, stored))
        self._arrived.set()
        if len(self._waiting) >= self._config.commit_size:
            self._full.set()
        await stored

    async def close(self) -> None:
        """Write what waits, and end."""
        self._closing = True
        self._arrived.set()
        self._full.set()
        await self._task

    async def _work(self) -> None:
        try:
            while await self._batch_is_ready():
                batch, self._waiting = self._waiting, []
                self._arrived.clear()
                self._full.clear()
                await self._store(batch)
        except Exception as error:
            # Who waits, and who comes after them, would wait for ever.
            self._broken = error
            _fail(self._waiting, error)
            raise

    async def _batch_is_ready(self) -> bool:
        if not self._waiting and not self._closing:
            await self._arrived.wait()
        if not self._closing and len(self._waiting) < self._config.commit_size:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), self._config.commit_ms / 1000)
        return bool(self._waiting) or not self._closing

    async def _store(self, batch: list[Entry]) -> None:
        began = time.monotonic()
        try:
            batch = await self._kept(batch)
            visits_of_batch = [visit for visit, _ in batch]
            if batch:
                await self._patience.ask(lambda: self._write(visits_of_batch))
        except Slept:
            await self._store(batch)
        except Unreachable as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to hear it
            await self._store_singly(batch, error)
        else:
            for _, stored in batch:
                _succeed(stored)
            if self.on_stored is not None:
                self.on_stored(visits_of_batch, time.monotonic() - began)

    async def _kept(self, batch: list[Entry]) -> list[Entry]:
        """Without those that others have taken over; asked right before they are stored."""
        if self._leases is None:
            return batch
        holds = [await self._leases.still_holds(visit.fetched.target.key) for visit, _ in batch]
        _fail(list(compress(batch, map(not_, holds))), TakenOver())
        return list(compress(batch, holds))

    async def _store_singly(self, batch: list[Entry], error: Exception) -> None:
        """One visit that cannot be stored fails alone."""
        if len(batch) == 1:
            _fail(batch, error)
            return
        logger.debug("A batch of %d visits was refused, storing them singly", len(batch))
        for entry in batch:
            await self._store([entry])

    async def _write(self, batch: list[Visit]) -> None:
        for visit in batch:
            await self._write_links(visit)
        await aliases.settle(self._db, self._registry, batch, self._longest)
        await sources.identify(self._db, batch)
        verdicts = await self._write_versions_and_claim(batch)
        items = [v for v in batch if v.stores_content and v.fetched.target.kind is Kind.ITEM]
        await posts.store(self._db, items, verdicts)
        await feedposts.store(self._db, batch, verdicts)
        await sources.settle_shared(self._db, self._registry, batch)
        if self._registry is not None and verdicts:
            written = {one.key for visit in batch for one in visit.candidates}
            await flags.confirm(self._db, self._registry, verdicts, written)
        await feeds.note(self._db, batch)
        await cells.note(self._db, batch)
        for visit in batch:
            self.discovered += await feedposts.follow(self._db, visit, self._due)
        if self._leases is not None and not self._leases.is_sure:
            raise Slept
        await self._db.targets.bulk_write(list(targets.updates_of(batch)), ordered=False)
        await sources.reconcile(self._db, self._registry, batch)
        await insert_new(self._db.visits, [visits.log_row_of(visit) for visit in batch])
        if doubted := [visit.fetched.target.key for visit in batch if visit.doubts_push]:
            await websub.doubt(self._db, doubted)
        if taken := [visit.fetched.push for visit in batch if visit.fetched.push is not None]:
            await pushes.done(self._db, taken)

    async def _write_versions_and_claim(self, batch: list[Visit]) -> Verdicts:
        """Both at once: neither needs the other."""
        new = [visit.fetched for visit in batch if visit.stores_content]
        claiming = asyncio.create_task(self._claim(batch))
        try:
            await insert_new(self._db.versions, [versions.row_of(fetched) for fetched in new])
        finally:
            # Whatever fails, nothing goes on while the batch is tried again.
            verdicts = await claiming
        return verdicts

    async def _claim(self, batch: list[Visit]) -> Verdicts:
        """What the posts of a batch are; those without text are compared with nothing."""
        if self._registry is None:
            return {}
        now = max(visit.fetched.at for visit in batch)
        emptied = [key for visit in batch for key in visit.emptied]
        await leaving.release(self._registry, emptied, now)
        candidates = [one for visit in batch for one in visit.candidates]
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
            await cards.record(self._db, visit.fetched, self._due)
        if visit.gone and visit.outcome is Outcome.GONE:
            await listings.drop_all(self._db, visit.fetched.target)


def _succeed(stored: asyncio.Future[None]) -> None:
    if not stored.done():
        stored.set_result(None)


def _fail(batch: list[Entry], error: Exception) -> None:
    for _, stored in batch:
        if not stored.done():
            stored.set_exception(error)
