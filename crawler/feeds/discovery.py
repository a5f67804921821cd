"""Find the feeds of web pages, and the hubs in HTTP Link headers."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from parsel import Selector
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response, TextResponse
from scrapy.settings import Settings

from crawler.errors import FORBIDDEN
from crawler.extract.response import HEAVY_BYTES, decoded
from crawler.items import FeedDocument, NoFeed
from crawler.utils.link_headers import links_of_headers
from crawler.utils.sandbox import TimeLimitExceeded, time_limit
from crawler.utils.text import count
from crawler.utils.urls import base_url, canonical, host_of, is_http, joined

FEED_TYPES = frozenset(
    f"application/{name}"
    for name in ("rss+xml", "atom+xml", "rdf+xml", "feed+json", "x.atom+xml", "x-atom+xml")
) | {"text/rss+xml", "text/atom+xml"}  # fmt: skip
USUAL_PATH = re.compile(
    r"(?:/(?:feed|rss|atom|feeds)/?|[/._-](?:rss2?|atom|index|feed)\.(?:xml|rss|rdf|atom|json)"
    r"|\.(?:rss|atom|rdf))$",
    re.I,
)
# An index.xml is usually a feed, but an index.json is rarely one.
NOT_USUAL = re.compile(r"/index\.json$", re.I)
COMMENT_FEED = re.compile(r"comment|kommentar|commentaire|comentario|reacties", re.I)
MAX_CANDIDATES = 50
# Maximum number of links of one page that are tried as feeds.
MAX_TRIED = 10
PERMANENT_REDIRECTS = frozenset({301, 308})
CONCURRENT_URLS = 8
# Characters of an error message.
MAX_REASON = 300
MAX_HUBS = 10


@dataclass(frozen=True, slots=True)
class Candidates:
    """URLs of possible feeds, best first, each once.

    declared: feeds that the page declares with `<link>`
    guessed:  links on the page with URLs that are typical of feeds
    """

    declared: tuple[str, ...]
    guessed: tuple[str, ...]


def candidates(page: TextResponse) -> Candidates:
    """Return the possible feeds on an HTML page, at most MAX_CANDIDATES of each kind."""
    root = Selector(text=page.text, type="html")
    base = base_url(root.root, page.url)
    links: list[tuple[bool, str]] = []
    for link in root.xpath("//link[@href]"):
        relations = link.attrib.get("rel", "").lower().split()
        kind = link.attrib.get("type", "").partition(";")[0].strip().lower()
        if "feed" in relations or ("alternate" in relations and kind in FEED_TYPES):
            url = joined(base, link.attrib["href"])
            text = f"{urlsplit(url).path if is_http(url) else ''} {link.attrib.get('title', '')}"
            links.append((bool(COMMENT_FEED.search(text)), url))
    # Keep the order of the page, but put feeds of comments last.
    links.sort(key=lambda link: link[0])
    urls = (joined(base, href) for href in root.xpath("//a/@href | //area/@href").getall())
    guesses = (
        url
        for url in urls
        if is_http(url)
        and USUAL_PATH.search(path := urlsplit(url).path)
        and not NOT_USUAL.search(path)
    )
    own = _name(page.url)
    declared = _distinct((url for _, url in links), {own})
    guessed = _distinct(guesses, {own, *map(_name, declared)})
    return Candidates(declared, guessed)


def _distinct(urls: Iterable[str], others: set[str | None]) -> tuple[str, ...]:
    distinct: dict[str, str] = {}
    for url in urls:
        name = _name(url)
        if name is not None and name not in others and len(distinct) < MAX_CANDIDATES:
            distinct.setdefault(name, url.partition("#")[0])
    return tuple(distinct.values())


def _name(url: str) -> str | None:
    """Return the canonical form of a URL; None if the URL is invalid."""
    try:
        return canonical(url) if is_http(url) else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed that was fetched. url: after permanent redirects."""

    url: str
    document: FeedDocument


@dataclass(slots=True)
class Probe:
    """A URL to check, with its feeds, or with the reason why it has none."""

    url: str
    feeds: list[Feed] = field(default_factory=list)
    reason: str = ""


class NotFound(Exception):
    """Raised if a URL has no feed. Its message is the reason."""


def discover(
    settings: Settings, urls: Sequence[str], now: datetime, read_seconds: float, *, every: bool
) -> list[Probe]:
    """Fetch the URLs and the feeds that these pages link to; return the results in their order.

    read_seconds: maximum CPU time for parsing one document
    every:        return all feeds that a page links to, not only the first
    """
    probes = [Probe(url) for url in urls]
    process = AsyncCrawlerProcess(settings)
    process.crawl(FeedProbe, probes=probes, now=now, read_seconds=read_seconds, every=every)
    process.start()
    for probe in probes:
        probe.reason = probe.reason or ("" if probe.feeds else "not fetched: interrupted")
    return probes


class FeedProbe(Spider):
    """Spider that fetches the URLs of probes and fills in their feeds."""

    name = "feeds-add"
    # The user is waiting for the result, and each host gets only one request at a time anyway.
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
        # Private addresses are allowed for start URLs, but not for the links on their pages.
        self.start_urls = [probe.url for probe in probes]
        # If several requests wait for one robots.txt, Scrapy 2.19 sends the third and later ones
        # without checking it, so each host gets one request at a time.
        self.host_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.slots = asyncio.Semaphore(CONCURRENT_URLS)

    async def start(self) -> AsyncIterator[Request]:
        """Check all probes and close the spider, without yielding a request."""
        await asyncio.gather(*map(self._probe, self.probes))
        # On its own, Scrapy checks only every five seconds whether a spider is idle.
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
        # Only the beginning of a page is searched: feeds are declared in the head, and a huge page
        # may take hours to parse.
        head = response.replace(body=response.body[:HEAVY_BYTES])
        try:
            with time_limit(self.read_seconds):
                links = candidates(decoded(head))
        except TimeLimitExceeded as error:
            raise NotFound(str(error)) from None
        for urls in (links.declared, links.guessed):
            if feeds := await self._feeds_among(urls):
                return feeds
        if n := len(links.declared) + len(links.guessed):
            raise NotFound(f"{problem}, with {count(n, 'possible feed link')} but no feed")
        raise NotFound(f"{problem}, and does not link to a feed")

    async def _feeds_among(self, urls: Sequence[str]) -> list[Feed]:
        """Return the first feed among the URLs or, with `every`, all of them."""
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
                is_read = str(error) == FORBIDDEN
                reason = "disallows fetching it" if is_read else "cannot be read now"
                reason = f"robots.txt {reason}. --no-fetch adds it without a check"
            else:
                reason = " ".join(str(error).split()) or type(error).__name__
            raise NotFound(reason[:MAX_REASON].rstrip(".")) from None
        if not 200 <= response.status < 300:
            raise NotFound(f"status {response.status}")
        return response

    def _read(self, url: str, response: Response) -> Feed:
        """Return the feed of a response, with its new URL if all redirects were permanent."""
        # Slow to import, and crawls need only `hubs_of_headers`.
        from crawler.feeds.parser import read

        kind = (response.headers.get("Content-Type") or b"").decode("latin-1") or None
        try:
            with time_limit(self.read_seconds):
                document = read(response.body, response.url, kind, self.now)
        except TimeLimitExceeded as error:
            raise NotFound(str(error)) from None
        reasons = response.meta.get("redirect_reasons", [])
        return Feed(response.url if PERMANENT_REDIRECTS.issuperset(reasons) else url, document)


def hubs_of_headers(values: Iterable[str], base: str = "") -> tuple[tuple[str, ...], str | None]:
    """Return the hubs, each once, and the topic (`rel="self"`; None if there is none).

    values: values of the Link headers of one response, each with any number of links
    base:   URL of the response, for relative links

    Links with an `anchor` are ignored: they belong to another page. Invalid links are skipped.
    """
    hubs: dict[str, None] = {}
    topic: str | None = None
    for target, relations in links_of_headers(values, base):
        if "hub" in relations and len(hubs) < MAX_HUBS:
            hubs[target] = None
        if "self" in relations and topic is None:
            topic = target
    return tuple(hubs), topic
