"""One pass of one spider: what it knows, what is in flight, what it counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from twisted.python.failure import Failure

from crawler.allowance import Allowance
from crawler.cells.definitions import definitions
from crawler.clock import Clock
from crawler.config import Config
from crawler.errors import FreshetError, StorageError
from crawler.hosts import HostLimits
from crawler.items import Fetched, Skipped, Target, Visit
from crawler.storage import (
    cells,
    hosts,
    learnings,
    listings,
    moves,
    plans,
    runs,
    sites,
    targets,
    visits,
)
from crawler.storage.client import Database
from crawler.storage.duplicates import leaving
from crawler.storage.duplicates.opening import opened
from crawler.storage.duplicates.registry import Registry
from crawler.storage.patience import Patience
from crawler.storage.patterns import Patterns
from crawler.storage.store import Store
from crawler.storage.writer import Writer
from crawler.traps import Traps
from crawler.wrapper import Wrapper

logger = logging.getLogger(__name__)


class Session:
    """Opens and closes a pass and holds its state; the spider carries it."""

    db: Database
    writer: Writer
    patience: Patience
    allowance: Allowance
    registry: Registry | None
    started: datetime
    run: ObjectId

    def __init__(self, crawler: Crawler, wrapper: Wrapper, config: Config, clock: Clock) -> None:
        self.crawler = crawler
        self.wrapper = wrapper
        self.config = config
        self.clock = clock
        self.limits = HostLimits(
            wrapper.host_requests or self.config.host_requests, self.config.blocked_strikes
        )
        self.traps = Traps(wrapper)
        self.in_flight: set[str] = set()
        self.along: set[str] = set()
        self.releases = 0
        self.counts: Counter[str] = Counter()
        self.error: FreshetError | None = None
        self.due_at_start = 0
        self.targets_at_end = 0
        self.missed_posts = 0.0
        self.ended = asyncio.Event()
        self._released = asyncio.Event()
        self._is_open = False
        self._opened = AsyncExitStack()
        crawler.signals.connect(self._open, signals.spider_opened)
        crawler.signals.connect(self._close, signals.spider_closed)
        crawler.signals.connect(self._item_failed, signals.item_error)
        crawler.signals.connect(self._callback_failed, signals.spider_error)

    @staticmethod
    def of(crawler: Crawler) -> Session:
        """The session of a crawl; NotConfigured for spiders that are no wrappers."""
        session = getattr(crawler.spider, "session", None)
        if not isinstance(session, Session):
            raise NotConfigured
        return session

    @property
    def spider(self) -> str:
        """Name of the spider in the database."""
        return self.wrapper.name

    @property
    def may_end_early(self) -> bool:
        """Whether Scrapy is to end the pass after a time, or after so many pages or items."""
        counts = ("CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_ITEMCOUNT")
        return self.is_timed or any(map(self.crawler.settings.getint, counts))

    @property
    def is_timed(self) -> bool:
        """Whether Scrapy is to end the pass after a time."""
        return self.crawler.settings.getfloat("CLOSESPIDER_TIMEOUT") > 0

    @property
    def discovered(self) -> int:
        """Targets found in this pass so far."""
        return self.writer.discovered if self._is_open else 0

    def take(self, target: Target) -> None:
        """A target is handed to the spider."""
        self.in_flight.add(target.key)

    def take_along(self, target: Target) -> None:
        """A cell is read from the page of another, and is not to be handed out by itself."""
        self.along.add(target.key)
        self.take(target)

    def release(self, target: Target) -> None:
        """A target is done with, whatever came of it."""
        self.in_flight.discard(target.key)
        self._wake()

    def skip(self, target: Target) -> None:
        """A target could not be asked for, perhaps because of a host that it redirects to.

        Its host gets no more requests in this pass: still due, it would be handed out for ever.
        """
        self.limits.given_up.add(target.host)
        self.release(target)

    async def until_released(self, releases: int) -> None:
        """Return when more than `releases` targets have been released since the pass began."""
        while self.releases <= releases:
            self._released.clear()
            await self._released.wait()

    def _wake(self) -> None:
        self.releases += 1
        self._released.set()

    def count(self, visit: Visit) -> None:
        """Count a stored visit."""
        self.counts["visits"] += 1
        self.counts[visit.outcome] += 1
        self.counts[f"{visit.fetched.target.kind} pages"] += 1
        self.counts["bytes"] += visit.fetched.size
        self.counts["missed visits"] += visit.missed
        if visit.collected is not None:
            self.counts["posts"] += len(visit.collected.new)
            self.counts["edited posts"] += len(visit.collected.edited)
            self.missed_posts += visit.collected.missed

    def closed_hosts(self) -> list[str]:
        """Hosts that get no more requests in this pass."""
        patience = timedelta(seconds=self.config.retry_after_seconds)
        return self.limits.closed(self.clock.now(), patience)

    async def leave_alone(self, host: str, until: datetime) -> None:
        """Hold a host, in later passes too."""
        self.limits.hold(host, until)
        await self.patience.read(lambda: hosts.hold(self.db, host, until))

    def fail(self, error: FreshetError) -> None:
        """End the pass because of an error that is not one page's; said once."""
        if self.error is None:
            self.error = error
            logger.error("%s", error)
            engine = self.crawler.engine
            if engine is not None and engine.spider is not None:
                closing = engine.close_spider_async(reason="storage")
                self._closing = asyncio.ensure_future(closing)
        self._wake()

    def _item_failed(self, item: Any, failure: Failure) -> None:
        """What a pipeline could not carry through ends the pass: its target would be waited for."""
        fetched = item.fetched if isinstance(item, Visit) else item
        if isinstance(fetched, Fetched | Skipped):
            self._give_up(fetched.target, failure.value)

    def _callback_failed(self, failure: Failure, response: Response | None) -> None:
        """As `_item_failed`, of a spider that raises where it should have said what it found."""
        target = response.request.meta.get("target") if response and response.request else None
        if isinstance(target, Target):
            self._give_up(target, failure.value)

    def _give_up(self, target: Target, error: BaseException | None) -> None:
        if not isinstance(error, FreshetError):
            error = StorageError(f"{target.url}: {error!r}")
        self.fail(error)
        self.release(target)

    async def _open(self, spider: Spider) -> None:
        try:
            store = await Store.open(self.config)
            self._opened.push_async_callback(store.close)
            self.db = store.db
            self.started = self.clock.now()
            self.patience = Patience(self.config.commit_retry_seconds, store.revive)
            self.allowance = Allowance(store.db, self.patience, self.wrapper, self.clock)
            self.registry = await self._opened.enter_async_context(opened(store.db, self.config))
            patterns = Patterns(store.db, self.traps)
            self.writer = Writer(
                store.db, self.config, self.started, self.patience, patterns, self.registry
            )
            self._is_open = True
            full = bool(getattr(spider, "full", False))
            await self.patience.read(lambda: self._prepare(full=full))
            await self.patience.read(patterns.open)
        except FreshetError as error:
            self.fail(error)

    async def _prepare(self, *, full: bool) -> None:
        if since := await runs.unfinished_since(self.db, self.spider):
            await visits.recover(self.db, self.spider, since)
            if self.registry is not None:
                await leaving.recover(self.db, self.registry, self.spider, since, self.started)
            await runs.close_unfinished(self.db, self.spider, self.started)
        await sites.note(self.db, self.wrapper, self.started)
        await plans.finish(self.db, self.started, [self.spider])
        self.run = await runs.begin(self.db, self.spider, self.started)
        starts = self.wrapper.starts
        await targets.ensure_starts(self.db, self.spider, starts, self.started, self.started)
        confirmations = self.config.gone_confirmations
        for old, new in await moves.rename_moved(self.db, self.spider, confirmations):
            logger.info("%s has moved for good to %s", old, new)
        await cells.define(self.db, self.spider, definitions(self.wrapper), self.started)
        if full:
            await targets.make_all_due(self.db, self.spider, self.started)
        await learnings.follow(self.db, self.spider, self.started)
        if plan := await plans.latest(self.db, self.spider, self.started):
            besides = await learnings.requests_per_day(self.db, plan["spiders"], self.started)
            besides += await cells.requests_per_day(self.db, plan["spiders"])
            self.allowance.follow(plan, besides)
        self.limits.holds |= await hosts.holds(self.db, self.started)
        self.due_at_start = await targets.count_due(self.db, self.spider, self.started)

    async def _close(self, spider: Spider, reason: str) -> None:
        try:
            if self._is_open:
                await self._finish(reason)
        except FreshetError as error:
            self.fail(error)
        finally:
            self.ended.set()
            await self._opened.aclose()

    async def _finish(self, reason: str) -> None:
        await self.writer.close()
        if self.error is None:
            await self.patience.read(lambda: self._sum_up(reason))

    async def _sum_up(self, reason: str) -> None:
        self.counts["discovered"] = self.writer.discovered
        # An item is off the lists only when all lists that are due have been read.
        if not await targets.lists_are_due(self.db, self.spider, self.started):
            now = self.clock.now()
            self.counts["unlisted"] = await listings.settle(self.db, self.spider, now)
        self.targets_at_end = await targets.count(self.db, self.spider)
        self.counts["missed posts"] = round(self.missed_posts)
        self.counts["left out"] = self.traps.left_out
        self.counts["targets"] = self.targets_at_end
        self.counts["due"] = await targets.count_due(self.db, self.spider, self.started)
        counts = {name.replace(" ", "_"): n for name, n in self.counts.items()}
        await runs.finish(self.db, self.run, self.clock.now(), reason, counts)
