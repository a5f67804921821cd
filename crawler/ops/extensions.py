"""Scrapy extensions of every crawl.

Metrics, the live progress display, ending runs on a full disk or after the shutdown timeout,
garbage collection, AutoThrottle. The summary of a crawl is in `crawler.frontier.summary`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, ClassVar, Self

from scrapy import Spider, signals
from scrapy.core.downloader import Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions import throttle
from scrapy.http import Response
from scrapy.utils.asyncio import create_looping_call

from crawler.errors import FreshetError, StorageError
from crawler.fetch.downloader import Downloader
from crawler.frontier.session import Session
from crawler.items import Outcome
from crawler.storage.client import low_disk
from crawler.utils.process import collect_again
from crawler.utils.terminal import SafeConsole, logs_above

if TYPE_CHECKING:
    from crawler.ops.metrics import Export, ProcessMetrics

logger = logging.getLogger(__name__)
UPDATE_SECONDS = 0.5
# Time between checks of the free disk space: a system call for the embedded server, a database
# command for other servers.
LOCAL_CHECK_SECONDS, REMOTE_CHECK_SECONDS = 5.0, 30.0
DISK_FULL = "disk"
GRACE_CHECK_SECONDS = 0.5
# Part of the shutdown timeout that is reserved for storing the responses already received: this
# share, but at most these seconds.
CLOSING_SHARE, MAX_CLOSING_SECONDS = 0.2, 5.0
# Items after which to freeze objects again: some libraries are imported with the first pages.
WARM_UP_ITEMS = 50
# New objects that trigger a collection in a crawl (Python's default is 700). Most objects of a page
# are freed with it, without any collection.
YOUNG_OBJECTS = 20_000


class Metrics:
    """Reports one run to the metrics of its process.

    of_process: metrics of all runs of this process, if a service exports them
    export:     else the export of this run only, which the run starts and ends
    """

    of_process: ClassVar[ProcessMetrics | None] = None

    def __init__(self, crawler: Crawler, metrics: ProcessMetrics, export: Export | None) -> None:
        self.session = Session.of(crawler)
        self.metrics = metrics
        self.export = export
        self.began = time.monotonic()
        crawler.signals.connect(self.open, signals.spider_opened)
        crawler.signals.connect(self.start, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension; raises NotConfigured if metrics are disabled."""
        run = Session.of(crawler).run
        if cls.of_process is not None:
            return cls(crawler, cls.of_process, None)
        if run.config.metrics_dir is None:
            raise NotConfigured
        # Imported only if needed: prometheus_client is slow to import.
        from crawler.ops.metrics import Export

        try:
            export = Export(run.config.metrics_dir, run.spider)
        except FreshetError as error:
            logger.error("Metrics disabled: %s", error)
            raise NotConfigured from None
        return cls(crawler, export.metrics, export)

    def open(self) -> None:
        """Count the start of the run."""
        if self.export is not None:
            self.export.begin()
        self.metrics.runs.begin(self.session.run)

    def start(self) -> None:
        """Start measuring stored batches; skipped if the database could not be opened."""
        run = self.session.run
        if run.state.error is None:
            self.session.writer.on_stored = self.metrics.on_stored(run)

    async def close(self, spider: Spider, reason: str) -> None:
        """Count the end of the run after the session has stored everything."""
        await self.session.ended.wait()
        self.metrics.run_ended(self.session.run, reason, time.monotonic() - self.began)
        if self.export is not None:
            self.export.end()


class Progress:
    """Shows a progress bar of visits and due targets; disabled unless stderr is a terminal."""

    def __init__(self, crawler: Crawler) -> None:
        self.session = Session.of(crawler)
        if not (self.session.run.config.progress and sys.stderr.isatty()):
            raise NotConfigured
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self.console = SafeConsole(stderr=True)
        self.bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task(self.session.run.spider, total=1, note="")
        self._shown = ExitStack()
        self.loop = create_looping_call(self.update)
        crawler.signals.connect(self.open, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension; raises NotConfigured if stderr is not a terminal."""
        return cls(crawler)

    def open(self) -> None:
        """Show the progress bar, and log lines above it."""
        self._shown.enter_context(logs_above(self.console))
        self._shown.enter_context(self.bar)
        self.loop.start(UPDATE_SECONDS)

    def close(self) -> None:
        """Remove the progress bar."""
        if self.loop.running:
            self.loop.stop()
        self._shown.close()

    def update(self) -> None:
        """Update the progress bar."""
        state = self.session.run.state
        counts = state.counts
        total = max(state.due_at_start + self.session.discovered, counts["visits"], 1)
        note = f"{counts[Outcome.NEW]} new, {counts[Outcome.CHANGED]} changed"
        self.bar.update(self.task, total=total, completed=counts["visits"], note=note)


class FreeSpace:
    """Ends a run whose database has less free space than FRESHET_MIN_FREE_MB."""

    def __init__(self, crawler: Crawler) -> None:
        self.session = Session.of(crawler)
        self._run = self.session.run
        self._config = self._run.config
        if not self._config.min_free_mb:
            raise NotConfigured
        self._is_low = False
        self._checking: asyncio.Future[None] | None = None
        self._loop = create_looping_call(self._start_check)
        crawler.signals.connect(self._open, signals.engine_started)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension; raises NotConfigured if there is no limit."""
        return cls(crawler)

    def _open(self) -> None:
        is_local = self._config.mongo_uri is None
        self._loop.start(LOCAL_CHECK_SECONDS if is_local else REMOTE_CHECK_SECONDS, now=True)

    def _start_check(self) -> None:
        if self._is_low or self.session.ended.is_set() or self._run.state.error:
            self._loop.stop()
        elif self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        """End the run if the disk is nearly full; skipped in an outage, when nothing is written."""
        if self._run.patience.outage.is_on:
            return
        with suppress(StorageError):
            problem = await low_disk(self._run.db, self._config)
            if problem is not None and not self.session.ended.is_set():
                self._is_low = True
                self._run.end_early(DISK_FULL, problem)


class GracePeriod:
    """Bounds the time of a shutdown: drops pending requests after most of FRESHET_GRACE_SECONDS.

    Also stops waiting for unavailable servers then. The rest of the time is for closing.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.session = Session.of(crawler)
        grace = self.session.run.config.grace_seconds
        self._seconds = grace - min(CLOSING_SHARE * grace, MAX_CLOSING_SECONDS)
        self._began: float | None = None
        # Polled, because Scrapy sends no signal when a shutdown begins.
        self._loop = create_looping_call(self._check)
        crawler.signals.connect(self._open, signals.engine_started)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension."""
        return cls(crawler)

    def _open(self) -> None:
        self._loop.start(GRACE_CHECK_SECONDS, now=False)

    def _check(self) -> None:
        downloader = getattr(self.crawler.engine, "downloader", None)
        if self.session.ended.is_set() or not isinstance(downloader, Downloader):
            self._loop.stop()
            return
        if self._began is None and downloader.is_closing:
            self._began = time.monotonic()
        if self._began is None or time.monotonic() < self._began + self._seconds:
            return
        if not self.session.run.patience.is_hurried:
            logger.warning("Shutdown timeout reached: requests in flight were dropped")
            self.session.hurry()
        downloader.give_up()


class Garbage:
    """Excludes long-lived objects from garbage collection, at the start and after the first items.

    Objects that a collection need not visit are frozen, which makes collections faster.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._signals = crawler.signals
        self._items = 0
        self._signals.connect(collect_again, signals.engine_started)
        self._signals.connect(self.count, signals.item_scraped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension."""
        return cls(crawler)

    def count(self) -> None:
        """Count an item; freeze objects again when the crawl has warmed up."""
        self._items += 1
        if self._items == WARM_UP_ITEMS:
            self._signals.disconnect(self.count, signals.item_scraped)
            collect_again()
            gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


class AutoThrottle(throttle.AutoThrottle):
    """Scrapy's AutoThrottle, which also lowers the delay after 304 responses.

    Scrapy never lowers the delay after a status other than 200, so a run over an unchanged site
    would keep the initial delay forever.
    """

    def _adjust_delay(self, slot: Slot, latency: float, response: Response) -> None:
        if response.status == 304:
            response = response.replace(status=200)
        super()._adjust_delay(slot, latency, response)
