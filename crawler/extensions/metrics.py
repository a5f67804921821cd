"""Lets a pass be measured where somebody wants to know; elsewhere it is not there at all."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from crawler.errors import FreshetError
from crawler.metrics.process import Process
from crawler.session import Session

if TYPE_CHECKING:
    from crawler.metrics.exporting import Export
    from crawler.metrics.measuring import Measuring

logger = logging.getLogger(__name__)


class Metrics:
    """Tells a process's measuring of one pass.

    export: of a process that is measured for this pass alone; None: it is measured already
    """

    def __init__(self, crawler: Crawler, measuring: Measuring, export: Export | None) -> None:
        self.session = Session.of(crawler)
        self.measuring = measuring
        self.export = export
        self.began = time.monotonic()
        crawler.signals.connect(self.open, signals.spider_opened)
        crawler.signals.connect(self.start, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The measuring of a crawl; NotConfigured where nobody wants to know."""
        session = Session.of(crawler)
        if (measuring := Process.measuring) is not None:
            return cls(crawler, measuring, None)
        if session.config.metrics_dir is None:
            raise NotConfigured
        # Slow to import, and needed by few.
        from crawler.metrics.exporting import Export

        try:
            export = Export(session.config.metrics_dir, session.spider)
        except FreshetError as error:
            logger.error("%s; no metrics are written", error)
            raise NotConfigured from None
        return cls(crawler, export.measuring, export)

    def open(self) -> None:
        """The pass begins."""
        if self.export is not None:
            self.export.begin()
        self.measuring.passes.begin(self.session)

    def start(self) -> None:
        """The database is open, unless that failed."""
        if self.session.error is None:
            self.session.writer.on_stored = self.measuring.batches(self.session)

    async def close(self, spider: Spider, reason: str) -> None:
        """The pass has ended, once the session has stored all of it."""
        await self.session.ended.wait()
        self.measuring.ended(self.session, reason, time.monotonic() - self.began)
        if self.export is not None:
            self.export.end()
