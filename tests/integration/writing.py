"""Batches of visits, stored as in a crawl but without a crawl."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

from pymongo.errors import PyMongoError

from crawler.config import Config
from crawler.dedup.schemes import scheme_of
from crawler.errors import Unreachable
from crawler.extract.links import Traps
from crawler.extract.site_definition import Wrapper
from crawler.frontier.lifecycle import Ending
from crawler.items import Fetched, Kind, Link, Outcome, Target, Visit
from crawler.storage import due, posts, runs, targets
from crawler.storage.client import MongoRetry
from crawler.storage.dedup.index import opened
from crawler.storage.in_flight import InFlight
from crawler.storage.leases import CRAWL, Lease
from crawler.storage.listings import Patterns
from crawler.storage.old_contents import OldContents
from crawler.storage.store import Store
from crawler.storage.writer import Surroundings, TakenOver, Writer
from pipelines.change_detection import Rules, decide
from pipelines.storage import sketched
from schedules.intervals import Intervals

BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
SITE = "http://127.0.0.1:9/"
EVERY = Intervals(1.0, 1.0, 672.0)
UNUSED = Config.load(mongo_uri="mongodb://unused")
RULES = Rules(EVERY, EVERY, 3, feeds=EVERY)
WRAPPER = Wrapper.of({"name": "site", "start_urls": [SITE], "item_pages": "/item-"}, "a test")


class Process:
    """The parts of a crawling process: its own database connection, a writer and a run.

    Each method does the same as a crawl at that stage.
    """

    def __init__(
        self, store: Store, registry: Any, started: datetime, lease: Lease | None = None,
        in_flight: InFlight | None = None,
    ) -> None:  # fmt: skip
        self.db, self._registry, self.started = store.db, registry, started
        patience = MongoRetry(0.0, store.revive)
        patterns = Patterns(store.db, Traps(WRAPPER))
        around = Surroundings(lease, in_flight)
        self.old_contents: OldContents | None = None
        if in_flight is not None:
            read = partial(posts.contents, store.db)
            self.old_contents = OldContents(read, store.config, in_flight)
        self.writer = Writer(store.db, store.config, started, patience, patterns, registry, around)

    async def begin(self) -> None:
        """Repair the data of earlier runs, and begin a run."""
        from crawler.frontier.lifecycle import prepare

        await prepare(self.db, self._registry, WRAPPER, UNUSED, self.started, full=False)

    async def due(self, *names: str) -> list[Target]:
        """Return targets as they are handed out; create missing targets."""
        for name in names:
            url = SITE + name
            kind = Kind.ITEM if name.startswith("item-") else Kind.LIST
            made = targets.new_document("site", url, kind, BEGIN, BEGIN)
            update = {"$setOnInsert": {key: made[key] for key in made if key != "_id"}}
            await self.db.targets.update_one({"_id": made["_id"]}, update, upsert=True)
        await self.db.targets.update_many({}, {"$set": {"next_visit": self.started}})
        keys = [f"site {SITE}{name}" for name in names]
        found = await due.of_keys(self.db, keys, self.started)
        return [found[key] for key in keys]

    async def store(self, visits: Iterable[Visit]) -> list[BaseException | None]:
        """Store a batch of visits and return the result of each."""
        return await asyncio.gather(*map(self.writer.commit, visits), return_exceptions=True)

    async def end(self) -> None:
        """End the run like its last process."""
        ending = Ending(self.db, self._registry, "site", self.started, self.started + HOUR)
        if self.writer.is_in_doubt:
            await ending.repair()


@asynccontextmanager
async def process(
    uri: str,
    started: datetime,
    lease_seconds: float = 0.0,
    commit_ms: float = 1,
    in_flight: InFlight | None = None,
) -> AsyncIterator[Process]:
    """Run a process with its own connections.

    lease_seconds: duration of its run lease, which only storing renews; 0: no lease
    commit_ms:     maximum time to wait for more visits
    in_flight:     targets that the process works on; None: unknown
    """
    config = _configured(uri).model_copy(update={"commit_ms": commit_ms})
    stack = AsyncExitStack()
    crawl: Process | None = None
    try:
        store = await Store.open(config)
        stack.push_async_callback(store.close)
        registry = await stack.enter_async_context(opened(store.db, config))
        lease = await taken(store, lease_seconds) if lease_seconds else None
        crawl = Process(store, registry, started, lease, in_flight)
        yield crawl
    finally:
        # Both write again on close; an unavailable server is not an error of the test.
        with suppress(Unreachable):
            if crawl is not None:
                await crawl.writer.close()
        with suppress(PyMongoError):
            await stack.aclose()


@lru_cache(8)
def _configured(uri: str) -> Config:
    """Read the configuration once for each database, because it takes as long as a batch."""
    return Config.load(
        mongo_uri=uri,
        mongo_timeout_seconds=1,
        commit_size=100,
        commit_retry_seconds=1,
    )


async def taken(store: Store, seconds: float) -> Lease:
    """Take the lease of the site's run."""
    lease = Lease(store.db, f"{CRAWL}site", seconds, MongoRetry(0.0, store.revive))
    await lease.take("busy")
    return lease


def visit(target: Target, text: str | None, at: datetime) -> Visit:
    """Return a visit with this text; None: an error. A list page links to the items it names."""
    fetched = Fetched(target, at, WRAPPER.selector_digest(target.kind), 200)
    if text is None:
        fetched.outcome, fetched.reason, fetched.status = Outcome.ERROR, "status 500", 500
    elif target.kind is Kind.LIST:
        fetched.links = tuple(Link(SITE + name, Kind.ITEM) for name in text.split())
    else:
        fetched.content = {"title": "A title", "main_text": text}
    if text is not None:
        fetched.content_hash = fetched.raw_hash = hashlib.sha256(text.encode()).hexdigest()
        fetched.size = len(text)
    made = decide(fetched, RULES)
    made.candidates, made.emptied = sketched(made, scheme_of("characters", 0.7))
    return made


def refused(results: Sequence[BaseException | None]) -> list[bool]:
    """Return for each visit whether it was rejected as too late; fail on any other error."""
    assert all(result is None or isinstance(result, TakenOver) for result in results), results
    return [result is not None for result in results]


def lost(results: Sequence[BaseException | None]) -> bool:
    """Return true if the server became unavailable."""
    return any(isinstance(result, Unreachable) for result in results)


async def interrupted(db: Any, started: datetime) -> None:
    """Store a run that never ended."""
    await runs.begin(db, "site", started)
