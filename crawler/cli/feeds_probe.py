"""Looks for feeds on the web: what `scrapy feeds add` is given may be a feed or a page of one.

Scrapy fetches, so that robots.txt, redirects, time and size limits and the user agent are those
of a crawl.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings

from crawler.extract.response import decoded
from crawler.feeds.discovery import candidates
from crawler.feeds.parser import read
from crawler.items import FeedDocument, NoFeed
from crawler.utils.sandbox import LARGE_BYTES, TooLong, time_limit
from crawler.utils.text import count
from crawler.utils.urls import host_of

MOST_TRIED = 10
PERMANENT = frozenset({301, 308})
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A feed. url: where it is by its own account."""

    url: str
    document: FeedDocument


@dataclass(slots=True)
class Looked:
    """What came of a URL: feeds, or the reason why there are none."""

    asked: str
    feeds: list[Found] = field(default_factory=list)
    reason: str = ""


class NotFound(Exception):
    """There is no feed at a URL; `str()` says why."""


def look(
    settings: Settings, urls: Sequence[str], now: datetime, read_seconds: float, *, every: bool
) -> list[Looked]:
    """Fetch the URLs and what they name, and say what feeds there are, in the order of the URLs.

    read_seconds: of processor time for reading one document
    every:        all that a page names; else the first that is a feed
    """
    looked = [Looked(url) for url in urls]
    process = AsyncCrawlerProcess(settings)
    process.crawl(Looking, looked=looked, now=now, read_seconds=read_seconds, every=every)
    process.start()
    for one in looked:
        one.reason = one.reason or ("" if one.feeds else "not fetched: interrupted")
    return looked


class Looking(Spider):
    """Fetches what it is given and fills in what it found."""

    name = "feeds-add"
    # Somebody waits for the answer, and a host gets one request at a time.
    custom_settings = {  # noqa: RUF012 - as Scrapy declares it
        "RETRY_ENABLED": False,
        "AUTOTHROTTLE_ENABLED": False,
    }

    def __init__(
        self, looked: list[Looked], now: datetime, read_seconds: float, *, every: bool
    ) -> None:
        super().__init__()
        self.looked, self.now, self.every = looked, now, every
        self.read_seconds = read_seconds
        # What the user names may be anywhere; what a page names may not.
        self.start_urls = [one.asked for one in looked]
        # Scrapy 2.19 lets the third and later of those pass that wait for one robots.txt.
        self.of_host: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.room = asyncio.Semaphore(AT_ONCE)

    async def start(self) -> AsyncIterator[Request]:
        """All the work; no request goes another way."""
        await asyncio.gather(*map(self._look, self.looked))
        # Scrapy would notice only at its next look, five seconds apart, that nothing is left.
        engine = self.crawler.engine
        assert engine is not None
        self._closing = asyncio.ensure_future(engine.close_spider_async(reason="finished"))
        requests: tuple[Request, ...] = ()
        for request in requests:
            yield request

    async def _look(self, one: Looked) -> None:
        async with self.of_host[host_of(one.asked)], self.room:
            try:
                one.feeds = await self._feeds(one.asked)
            except NotFound as error:
                one.reason = str(error)

    async def _feeds(self, url: str) -> list[Found]:
        response = await self._fetched(url)
        try:
            return [self._read(url, response)]
        except NoFeed as error:
            said = str(error)
        if not isinstance(response, HtmlResponse):
            raise NotFound(said)
        # Feeds are named at its head, and a large page may take hours to read.
        head = response.replace(body=response.body[:LARGE_BYTES])
        try:
            with time_limit(self.read_seconds):
                named = candidates(decoded(head))
        except TooLong as error:
            raise NotFound(str(error)) from None
        for urls in (named.declared, named.guessed):
            if found := await self._of(urls):
                return found
        if tried := len(named.declared) + len(named.guessed):
            raise NotFound(
                f"{said}; {count(tried, 'link')} may be a feed's, none can be read as one"
            )
        raise NotFound(f"{said}, and links to no feed")

    async def _of(self, urls: Sequence[str]) -> list[Found]:
        """The first of these that is a feed, or all that are."""
        found: list[Found] = []
        for url in urls if self.every else urls[:MOST_TRIED]:
            try:
                found.append(self._read(url, await self._fetched(url)))
            except (NotFound, NoFeed):
                continue
            if not self.every:
                break
        return found

    async def _fetched(self, url: str) -> Response:
        engine = self.crawler.engine
        assert engine is not None
        try:
            response = await engine.download_async(Request(url, dont_filter=True))
        except Exception as error:  # noqa: BLE001 - whatever a server does, it is said of its URL
            raise NotFound(_in_words(error)) from None
        if not 200 <= response.status < 300:
            raise NotFound(f"status {response.status}")
        return response

    def _read(self, url: str, response: Response) -> Found:
        """The feed of a response; its new address where that is for good."""
        kind = (response.headers.get("Content-Type") or b"").decode("latin-1") or None
        try:
            with time_limit(self.read_seconds):
                document = read(response.body, response.url, kind, self.now)
        except TooLong as error:
            raise NotFound(str(error)) from None
        reasons = response.meta.get("redirect_reasons", [])
        return Found(response.url if PERMANENT.issuperset(reasons) else url, document)


def _in_words(error: Exception) -> str:
    if isinstance(error, IgnoreRequest) and "robots.txt" in str(error):
        return "robots.txt forbids to fetch it (--no-fetch adds it as it is)"
    return (" ".join(str(error).split()) or type(error).__name__)[:300].rstrip(".")
