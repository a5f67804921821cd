"""Scrapy's downloader, with two mends for Scrapy 2.19, and with the turns of shared runs."""

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
    from crawler.frontier.politeness import Turn, Turns


class Waiting(deque[Any]):
    """A slot's queue whose requests count as under way from the moment they leave it."""

    def __init__(self, under_way: set[Request]) -> None:
        super().__init__()
        self._under_way = under_way

    def popleft(self) -> Any:
        """The next request and its Deferred."""
        entry = super().popleft()
        self._under_way.add(entry[0])
        return entry


class Downloader(downloader.Downloader):
    """Keeps to a slot's concurrency, and ends a run without asking for what still waits.

    Where there is no delay, Scrapy sends all that waits in a slot at once when one request ends:
    it counts what is under way by tasks that have not begun yet. And at the end of a run it asks
    for whatever waits in slots, up to sixteen times a site's delay.
    """

    def _get_slot(self, request: Request, spider: Spider | None = None) -> tuple[str, Slot]:
        # Scrapy warns of whoever names the spider.
        key, slot = super()._get_slot(request)
        if not isinstance(slot.queue, Waiting):
            slot.queue = Waiting(slot.transferring)
        return key, slot

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._sending: set[asyncio.Task[Any]] = set()

    def give_up(self) -> None:
        """Wait no longer for answers."""
        for task in list(self._sending):
            task.cancel()

    async def _download(self, slot: Slot, request: Request) -> Response:
        task = asyncio.current_task()
        assert task is not None
        self._sending.add(task)
        try:
            return await self._in_turn(slot, request)
        except asyncio.CancelledError:
            raise Ended(ENDED) from None
        finally:
            self._sending.discard(task)

    async def _in_turn(self, slot: Slot, request: Request) -> Response:
        session = getattr(self.crawler.spider, "session", None)
        turns = session.frontier.turns if isinstance(session, Session) else None
        if turns is None:
            return await super()._download(slot, request)
        turn = await self._turn(turns, slot, request)
        try:
            return await super()._download(slot, request)
        finally:
            turns.give(turn)

    async def _turn(self, turns: Turns, slot: Slot, request: Request) -> Turn:
        """Leave to send it, while its place among this process's requests is kept."""
        from crawler.frontier.politeness import HostHeld

        host = request.meta[self.DOWNLOAD_SLOT]
        delay_seconds = slot.download_delay()
        patience_seconds = Session.of(self.crawler).config.retry_after_seconds
        slot.transferring.add(request)
        try:
            return await turns.take(host, slot.concurrency, delay_seconds, patience_seconds)
        except BaseException as error:
            slot.transferring.discard(request)
            self._process_queue(slot)
            if isinstance(error, HostHeld):
                held = f"{host} asked to be left alone for {error.seconds:.0f} s"
                raise NotAsked(held) from None
            raise

    def _process_queue(self, slot: Slot) -> None:
        if self.is_closing:
            self._let_go(slot)
        super()._process_queue(slot)

    @property
    def is_closing(self) -> bool:
        """Whether the run is ending: nothing more is begun."""
        state = self.crawler.engine._slot if self.crawler.engine is not None else None
        return state is not None and state.closing is not None

    def _let_go(self, slot: Slot) -> None:
        """Targets that wait stay due; what is no target is asked for as ever."""
        for request, answer in list(slot.queue):
            if isinstance(request.meta.get("target"), Target):
                slot.queue.remove((request, answer))
                answer.errback(Failure(Ended(ENDED)))  # type: ignore[no-untyped-call]
