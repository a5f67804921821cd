"""An end in time: what is under way when a pass is told to end gets so long, and no longer."""

from __future__ import annotations

import logging
import time
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.utils.asyncio import create_looping_call

from crawler.middlewares.downloader import Downloader
from crawler.session import Session

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
# Of the grace time, what is kept for storing what has been read and for closing: a share, and the
# most that it is.
CLOSING_SHARE, MAX_CLOSING_SECONDS = 0.2, 5.0


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
        self._loop.start(LOOK_SECONDS, now=False)

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
            logger.warning("The time to end is over: what is under way is given up")
            self.session.hurry()
        downloader.give_up()
