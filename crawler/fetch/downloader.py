"""Scrapy's downloader with two fixes for Scrapy 2.19, and rate limits across workers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.core import downloader
from scrapy.core.downloader import Slot
from scrapy.crawler import Crawler
from scrapy.http import Response
from twisted.python.failure import Failure

from crawler.fetch.middlewares import ENDED, Ended, NotAsked
from crawler.frontier.session import Session
from crawler.items import Target

if TYPE_CHECKING:
    from crawler.frontier.politeness import Permit, Permits


class SlotQueue(deque[Any]):
    """Queue of a slot; adds each request to `transferring` as it leaves the queue."""

    def __init__(self, transferring: set[Request]) -> None:
        super().__init__()
        self._transferring = transferring

    def popleft(self) -> Any:
        """Return the next request and its Deferred."""
        entry = super().popleft()
        self._transferring.add(entry[0])
        return entry


class Downloader(downloader.Downloader):
    """Enforces the concurrency of slots, and drops queued targets at the end of a run.

    Without a delay, Scrapy sends all queued requests of a slot when one request ends, because it
    counts a request only when its task starts. And at the end of a run Scrapy still sends up to 16
    queued requests per slot, with the site's delay between them.
    """

    def _get_slot(self, request: Request, spider: Spider | None = None) -> tuple[str, Slot]:
        # Without the spider: passing it is deprecated and logs a warning.
        key, slot = super()._get_slot(request)
        if not isinstance(slot.queue, SlotQueue):
            slot.queue = SlotQueue(slot.transferring)
        return key, slot

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._sending: set[asyncio.Task[Any]] = set()

    def give_up(self) -> None:
        """Cancel all requests in progress; they fail with Ended."""
        for task in list(self._sending):
            task.cancel()

    async def _download(self, slot: Slot, request: Request) -> Response:
        task = asyncio.current_task()
        assert task is not None
        self._sending.add(task)
        try:
            return await self._with_permit(slot, request)
        except asyncio.CancelledError:
            raise Ended(ENDED) from None
        finally:
            self._sending.discard(task)

    async def _with_permit(self, slot: Slot, request: Request) -> Response:
        session = getattr(self.crawler.spider, "session", None)
        permits = session.frontier.permits if isinstance(session, Session) else None
        if permits is None:
            return await super()._download(slot, request)
        permit = await self._permit(permits, slot, request)
        try:
            return await super()._download(slot, request)
        finally:
            permits.give(permit)

    async def _permit(self, permits: Permits, slot: Slot, request: Request) -> Permit:
        """Wait for a permit; meanwhile the request counts against the slot's concurrency."""
        from crawler.frontier.politeness import HostHeld

        host = request.meta[self.DOWNLOAD_SLOT]
        delay_seconds = slot.download_delay()
        patience_seconds = Session.of(self.crawler).config.retry_after_seconds
        slot.transferring.add(request)
        try:
            return await permits.take(host, slot.concurrency, delay_seconds, patience_seconds)
        except BaseException as error:
            slot.transferring.discard(request)
            self._process_queue(slot)
            if isinstance(error, HostHeld):
                reason = f"requests to {host} are paused for another {error.seconds:.0f} s"
                raise NotAsked(reason) from None
            raise

    def _process_queue(self, slot: Slot) -> None:
        if self.is_closing:
            self._drop_targets(slot)
        super()._process_queue(slot)

    @property
    def is_closing(self) -> bool:
        """Return whether the run is ending, so that no more targets are fetched."""
        state = self.crawler.engine._slot if self.crawler.engine is not None else None
        return state is not None and state.closing is not None

    def _drop_targets(self, slot: Slot) -> None:
        """Fail queued requests for targets, which stay due; keep all other requests."""
        for request, answer in list(slot.queue):
            if isinstance(request.meta.get("target"), Target):
                slot.queue.remove((request, answer))
                answer.errback(Failure(Ended(ENDED)))  # type: ignore[no-untyped-call]
