"""Scrapy extensions of every crawl.

Metrics, the live display, the ends for a full disk and for a grace time that is over, garbage
collection, AutoThrottle. The summary at a crawl's end is in `summary`.
"""

from __future__ import annotations

import asyncio
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
from crawler.ops.progress import logs_above
from crawler.storage.health import room
from crawler.utils.process import collect_again
from crawler.utils.terminal import SafeConsole

if TYPE_CHECKING:
    from crawler.ops.metrics import Export, ProcessMetrics

logger = logging.getLogger(__name__)
UPDATE_SECONDS = 0.5
# Between checks of the free space: of the embedded server a system call, of another a command.
NEAR_SECONDS, FAR_SECONDS = 5.0, 30.0
DISK_FULL = "disk"
GRACE_CHECK_SECONDS = 0.5
# Of the grace time, what is kept for storing what has been read and for closing: a share, and the
# most that it is.
CLOSING_SHARE, MAX_CLOSING_SECONDS = 0.2, 5.0
# Some libraries are loaded with the first page that needs them.
ITEMS = 50


class Metrics:
    """Reports one run to the metrics of its process.

    of_process: the metrics of all runs of this process; None: it is not measured
    export:     of a process that is measured for this run only
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
        """The metrics of a crawl; NotConfigured where there are none."""
        session = Session.of(crawler)
        if cls.of_process is not None:
            return cls(crawler, cls.of_process, None)
        if session.config.metrics_dir is None:
            raise NotConfigured
        # Slow to import, and needed by few.
        from crawler.ops.metrics import Export

        try:
            export = Export(session.config.metrics_dir, session.spider)
        except FreshetError as error:
            logger.error("%s; writing metrics disabled", error)
            raise NotConfigured from None
        return cls(crawler, export.metrics, export)

    def open(self) -> None:
        """Note that the run begins."""
        if self.export is not None:
            self.export.begin()
        self.metrics.runs.begin(self.session)

    def start(self) -> None:
        """Measure the batches: the database is open, unless that failed."""
        if self.session.error is None:
            self.session.writer.on_stored = self.metrics.on_stored(self.session)

    async def close(self, spider: Spider, reason: str) -> None:
        """Note that the run has ended, once the session has stored all of it."""
        await self.session.ended.wait()
        self.metrics.run_ended(self.session, reason, time.monotonic() - self.began)
        if self.export is not None:
            self.export.end()


class Progress:
    """Shows visits against what is known to be due; silent where there is no terminal."""

    def __init__(self, crawler: Crawler) -> None:
        self.session = Session.of(crawler)
        if not (self.session.config.progress and sys.stderr.isatty()):
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
        self.task = self.bar.add_task(self.session.spider, total=1, note="")
        self._shown = ExitStack()
        self.loop = create_looping_call(self.update)
        crawler.signals.connect(self.open, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The display of a crawl; NotConfigured where it would not be seen."""
        return cls(crawler)

    def open(self) -> None:
        """Show it, with what is logged from now on above it."""
        self._shown.enter_context(logs_above(self.console))
        self._shown.enter_context(self.bar)
        self.loop.start(UPDATE_SECONDS)

    def close(self) -> None:
        """Take it away."""
        if self.loop.running:
            self.loop.stop()
        self._shown.close()

    def update(self) -> None:
        """Bring it up to date."""
        counts = self.session.counts
        total = max(self.session.due_at_start + self.session.discovered, counts["visits"], 1)
        note = f"{counts[Outcome.NEW]} new, {counts[Outcome.CHANGED]} changed"
        self.bar.update(self.task, total=total, completed=counts["visits"], note=note)


class Room:
    """Ends a run whose database has less free space than FRESHET_MIN_FREE_MB."""

    def __init__(self, crawler: Crawler) -> None:
        self.session = Session.of(crawler)
        self._config = self.session.config
        if not self._config.min_free_mb:
            raise NotConfigured
        self._is_low = False
        self._looking: asyncio.Future[None] | None = None
        self._loop = create_looping_call(self._look)
        crawler.signals.connect(self._open, signals.engine_started)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The extension of a crawl; NotConfigured without a limit."""
        return cls(crawler)

    def _open(self) -> None:
        is_near = self._config.mongo_uri is None
        self._loop.start(NEAR_SECONDS if is_near else FAR_SECONDS, now=True)

    def _look(self) -> None:
        if self._is_low or self.session.ended.is_set() or self.session.error:
            self._loop.stop()
        elif self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        """End the run if there is too little room; in an outage the run stands still already."""
        if self.session.patience.outage.is_on:
            return
        with suppress(StorageError):
            lack = await room(self.session.db, self._config)
            if lack is not None and not self.session.ended.is_set():
                self._is_low = True
                self.session.end_early(DISK_FULL, lack)


class Grace:
    """Gives up answers that are still waited for, and servers that are away, after a time."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.session = Session.of(crawler)
        grace = self.session.config.grace_seconds
        self._seconds = grace - min(CLOSING_SHARE * grace, MAX_CLOSING_SECONDS)
        self._began: float | None = None
        # Scrapy says when a pass has ended, not when it begins to.
        self._loop = create_looping_call(self._look)
        crawler.signals.connect(self._open, signals.engine_started)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The extension of a crawl."""
        return cls(crawler)

    def _open(self) -> None:
        self._loop.start(GRACE_CHECK_SECONDS, now=False)

    def _look(self) -> None:
        downloader = getattr(self.crawler.engine, "downloader", None)
        if self.session.ended.is_set() or not isinstance(downloader, Downloader):
            self._loop.stop()
            return
        if self._began is None and downloader.is_closing:
            self._began = time.monotonic()
        if self._began is None or time.monotonic() < self._began + self._seconds:
            return
        if not self.session.is_hurried:
            logger.warning("Shutdown timeout reached: requests in flight were dropped")
            self.session.hurry()
        downloader.give_up()


class Garbage:
    """Leaves out of collections what is there when a crawl starts, and after its first items."""

    def __init__(self, crawler: Crawler) -> None:
        self._signals = crawler.signals
        self._items = 0
        self._signals.connect(collect_again, signals.engine_started)
        self._signals.connect(self.count, signals.item_scraped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The extension of a crawl."""
        return cls(crawler)

    def count(self) -> None:
        """Note an item."""
        self._items += 1
        if self._items == ITEMS:
            self._signals.disconnect(self.count, signals.item_scraped)
            collect_again()


class AutoThrottle(throttle.AutoThrottle):
    """Scrapy's own, for passes that are answered with 304.

    It never lowers the delay after a status other than 200: a pass over an unchanged site would
    stay at the first delay for ever.
    """

    def _adjust_delay(self, slot: Slot, latency: float, response: Response) -> None:
        if response.status == 304:
            response = response.replace(status=200)
        super()._adjust_delay(slot, latency, response)
