"""Lean versions of parts of Scrapy 2.19 that every page goes through.

They behave like Scrapy's, and take less processor time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from inspect import iscoroutinefunction
from typing import Any, Self
from urllib.parse import urldefrag

from pydispatch import dispatcher  # type: ignore[import-untyped]
from scrapy import Request, logformatter
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares import redirect
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response, TextResponse
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.signalmanager import SignalManager
from scrapy.statscollectors import MemoryStatsCollector
from twisted.python.failure import Failure

from crawler.utils.urls import without_userinfo

# Number of characters at the start of a page in which Scrapy looks for a meta refresh.
HEAD_CHARACTERS = 4096
# Number of redirects that may lead back to the same URL.
MAX_RETURNS = 2


class Stats(MemoryStatsCollector):
    """Scrapy's stats without a check for a deprecated argument, which takes most of their time."""

    __getattribute__ = object.__getattribute__


class LogFormatter(logformatter.LogFormatter):
    """Returns no messages below LOG_LEVEL: Python would create a record for each, and drop it."""

    def __init__(self, level: int = logging.DEBUG) -> None:
        self._level = level

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the formatter of a crawl."""
        level: Any = crawler.settings["LOG_LEVEL"]
        level = logging.getLevelName(level) if isinstance(level, str) else level
        return cls(level if isinstance(level, int) else logging.DEBUG)

    def crawled(self, *args: Any) -> Any:
        """Return the message for a response."""
        return super().crawled(*args) if self._level <= logging.DEBUG else None

    def scraped(self, *args: Any) -> Any:
        """Return the message for an item."""
        return super().scraped(*args) if self._level <= logging.DEBUG else None

    def dropped(self, *args: Any) -> Any:
        """Return the message for an item that a pipeline dropped, such as a stored visit."""
        message = super().dropped(*args)
        return message if message is None or message["level"] >= self._level else None


class Signals(SignalManager):
    """Scrapy's signals, without a search for the receivers of a signal that has none.

    Most downloader signals have no receivers, but are sent for each page, or for each chunk of it.
    """

    def send_catch_log(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Send a signal; exceptions of its receivers are logged."""
        for sender in (kwargs.get("sender", self.sender), dispatcher.Any):
            connected = dispatcher.connections.get(id(sender))
            if connected and (signal in connected or dispatcher.Any in connected):
                return super().send_catch_log(signal, **kwargs)
        return []

    async def send_catch_log_async(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Send a signal, and wait for its receivers; use tasks only if one of them may be async."""
        sender = kwargs.get("sender", self.sender)
        receivers = dispatcher.liveReceivers(dispatcher.getAllReceivers(sender, signal))
        if not all(map(self._is_immediate, receivers)):
            return await super().send_catch_log_async(signal, **kwargs)
        results = self.send_catch_log(signal, **kwargs)
        return [(x, y.value if isinstance(y, Failure) else y) for x, y in results]

    @staticmethod
    def _is_immediate(receiver: Any) -> bool:
        """Return whether a receiver is known to return nothing that has to be awaited."""
        is_known = getattr(receiver, "__module__", "").startswith(("scrapy.", "crawler."))
        return is_known and not iscoroutinefunction(receiver)


def checked(redirected: Request, request: Request) -> Request:
    """Return the request for a redirect, without user name and password.

    Raises IgnoreRequest if it leads to the same URL for the third time. A first redirect to the
    same URL may set the cookie that the page requires.
    """
    redirected = redirected.replace(url=without_userinfo(redirected.url))
    urls = [*earlier_urls(request), urldefrag(request.url)[0]]
    if urls.count(urldefrag(redirected.url)[0]) > MAX_RETURNS:
        raise IgnoreRequest("max redirections reached (they are a loop)")
    return redirected


def earlier_urls(request: Request) -> list[str]:
    """Return the URLs from which a request was redirected, without fragments."""
    return [urldefrag(url)[0] for url in request.meta.get("redirect_urls", ())]


class RedirectMiddleware(redirect.RedirectMiddleware):
    """Follows redirects, and stops in a loop before REDIRECT_MAX_TIMES redirects."""

    def _redirect(self, redirected: Request, request: Request, reason: Any) -> Request:
        return super()._redirect(checked(redirected, request), request, reason)


class MetaRefreshMiddleware(redirect.MetaRefreshMiddleware):
    """Follows meta refreshes; skips the search for the tag in pages that cannot have one.

    Pages that refresh themselves, such as front pages of news sites, are not requested again.
    """

    def process_response(self, request: Request, response: Response) -> Request | Response:  # type: ignore[override] # Scrapy passes no spider
        """Return a request for the page to which a response refreshes, or the response."""
        if isinstance(response, TextResponse):
            try:
                head = response.text[:HEAD_CHARACTERS]
            except (LookupError, UnicodeError):
                # Python has codecs that are not encodings of text, such as rot13.
                response = response.replace(encoding="utf-8")
                head = response.text[:HEAD_CHARACTERS]
            if "refresh" not in head.lower():
                return response
        result = super().process_response(request, response)
        if isinstance(result, Request) and urldefrag(result.url)[0] == urldefrag(response.url)[0]:
            # The first refresh may need the cookie that the page sets.
            is_first = urldefrag(request.url)[0] not in earlier_urls(request)
            return result if is_first and b"Set-Cookie" in response.headers else response
        return result

    def _redirect(self, redirected: Request, request: Request, reason: Any) -> Request:
        return super()._redirect(checked(redirected, request), request, reason)


class Queues(DownloaderAwarePriorityQueue):
    """Queues of waiting requests by host.

    Scrapy computes the name of a folder for each new queue, even for one in memory; a queue is new
    for most requests, because it is deleted when it is empty.
    """

    def pqfactory(self, slot: str, startprios: Iterable[int] = ()) -> ScrapyPriorityQueue:
        """Create the queue of a host."""
        if self.key:
            return super().pqfactory(slot, startprios)
        queue, start_queue = self.downstream_queue_cls, self._start_queue_cls
        return ScrapyPriorityQueue(self.crawler, queue, "", startprios, start_queue_cls=start_queue)
