"""Room on the database's disk: a run ends in good order before MongoDB can no longer write."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.utils.asyncio import create_looping_call

from crawler.errors import StorageError
from crawler.session import Session
from crawler.storage.health import room

logger = logging.getLogger(__name__)
# Of the embedded server the file system is asked, of another the server.
LOOK_SECONDS, LOOK_FAR_SECONDS = 5.0, 30.0
REASON = "disk"


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
        self._loop.start(LOOK_SECONDS if is_near else LOOK_FAR_SECONDS, now=True)

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
                self.session.end_early(REASON, lack)
