"""Finds feeds on the web: the URLs of `scrapy feeds add` may be feeds, or pages that name some.

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

# Links of one page that are tried as feeds.
MAX_TRIED = 10
PERMANENT_REDIRECTS = frozenset({301, 308})
CONCURRENT_URLS = 8
# Characters of an error.
MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed on the web. url: after permanent redirects."""

    url: str
    document: FeedDocument


@dataclass(slots=True)
class Probe:
    """A URL and its feeds, or the reason why it has none."""

    url: str
    feeds: list[Feed] = field(default_factory=list)
    reason: str = ""


class NotFound(Exception):
    """There is no feed at a URL; `str()` says why."""


def discover(
    settings: Settings, urls: Sequence[str], now: datetime, read_seconds: float, *, every: bool
) -> list[Probe]:
    """Fetch the URLs and what they name; their feeds, in the order of the URLs.

    read_seconds: of processor time for reading one document
    every:        all feeds that a page names; else the first
    """
    probes = [Probe(url) for url in urls]
    process = AsyncCrawlerProcess(settings)
    process.crawl(FeedProbe, probes=probes, now=now, read_seconds=read_seconds, every=every)
    process.start()
    for probe in probes:
        probe.reason = probe.reason or ("" if probe.feeds else "not fetched: interrupted")
    return probes


class FeedProbe(Spider):
    """Fetches the URLs of probes and fills in their feeds."""

    name = "feeds-add"
    # Somebody waits for the result, and a host gets one request at a time.
    custom_settings = {  # noqa: RUF012 - as Scrapy declares it
        "RETRY_ENABLED": False,
        "AUTOTHROTTLE_ENABLED": False,
    }

    def __init__(
        self, probes: list[Probe], now: datetime, read_seconds: float, *, every: bool
    ) -> None:
        super().__init__()
        self.probes, self.now, self.every = probes, now, every
        self.read_seconds = read_seconds
        # The guard of private networks lets start URLs pass, and not the links of their pages.
        self.start_urls = [probe.url for probe in probes]
        # Of requests that wait for one robots.txt, Scrapy 2.19 lets the third and later ones pass.
        self.host_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.slots = asyncio.Semaphore(CONCURRENT_URLS)

    async def start(self) -> AsyncIterator[Request]:
        """Do all the work; Scrapy itself gets no request."""
        await asyncio.gather(*map(self._probe, self.probes))
        # Scrapy would notice only at its next look, five seconds apart, that nothing is left.
        engine = self.crawler.engine
        assert engine is not None
        self._closing = asyncio.ensure_future(engine.close_spider_async(reason="finished"))
        requests: tuple[Request, ...] = ()
        for request in requests:
            yield request

    async def _probe(self, probe: Probe) -> None:
        async with self.host_locks[host_of(probe.url)], self.slots:
            try:
                probe.feeds = await self._feeds(probe.url)
            except NotFound as error:
                probe.reason = str(error)

    async def _feeds(self, url: str) -> list[Feed]:
        response = await self._fetched(url)
        try:
            return [self._read(url, response)]
        except NoFeed as error:
            problem = str(error)
        if not isinstance(response, HtmlResponse):
            raise NotFound(problem)
        # Feeds are named at its head, and a large page may take hours to read.
        head = response.replace(body=response.body[:LARGE_BYTES])
        try:
            with time_limit(self.read_seconds):
                named = candidates(decoded(head))
        except TooLong as error:
            raise NotFound(str(error)) from None
        for urls in (named.declared, named.guessed):
            if feeds := await self._feeds_among(urls):
                return feeds
        if tried := len(named.declared) + len(named.guessed):
            raise NotFound(
                f"{problem}; {count(tried, 'link')} may be a feed's, none can be read as one"
            )
        raise NotFound(f"{problem}, and links to no feed")

    async def _feeds_among(self, urls: Sequence[str]) -> list[Feed]:
        """The first of these that is a feed, or all that are."""
        feeds: list[Feed] = []
        for url in urls if self.every else urls[:MAX_TRIED]:
            try:
                feeds.append(self._read(url, await self._fetched(url)))
            except (NotFound, NoFeed):
                continue
            if not self.every:
                break
        return feeds

    async def _fetched(self, url: str) -> Response:
        engine = self.crawler.engine
        assert engine is not None
        try:
            response = await engine.download_async(Request(url, dont_filter=True))
        except Exception as error:  # noqa: BLE001 - whatever a server does is the URL's problem
            if isinstance(error, IgnoreRequest) and "robots.txt" in str(error):
                reason = "robots.txt forbids to fetch it (--no-fetch adds it as it is)"
            else:
                reason = " ".join(str(error).split()) or type(error).__name__
            raise NotFound(reason[:MAX_REASON].rstrip(".")) from None
        if not 200 <= response.status < 300:
            raise NotFound(f"status {response.status}")
        return response

    def _read(self, url: str, response: Response) -> Feed:
        """The feed of a response; by its new URL where every redirect was permanent."""
        kind = (response.headers.get("Content-Type") or b"").decode("latin-1") or None
        try:
            with time_limit(self.read_seconds):
                document = read(response.body, response.url, kind, self.now)
        except TooLong as error:
            raise NotFound(str(error)) from None
        reasons = response.meta.get("redirect_reasons", [])
        return Feed(response.url if PERMANENT_REDIRECTS.issuperset(reasons) else url, document)
