"""Obey robots.txt: fetch it once per host, up to a size limit, and apply its rules."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any

from protego._protego import (
    _SITE_WIDE_DIRECTIVES,
    _SITEMAP_DIRECTIVE,
    _USER_AGENT_DIRECTIVE,
    _extract_directive,
)
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest, StopDownload
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from scrapy.robotstxt import RobotParser
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import to_unicode

from crawler.config import Config
from crawler.errors import IGNORE_ROBOTS_HINT, BadResponse, OffLimits, TooLarge
from crawler.fetch.downloader import UNREACHABLE, Downloader, NotRequested
from crawler.fetch.guard import ON_BEHALF_OF, Guard
from crawler.utils.text import count
from crawler.utils.urls import host_of, is_http, joined

logger = logging.getLogger(__name__)
# Key in the meta of a request for robots.txt: bytes received so far.
RECEIVED = "robots_bytes"
# Key in the meta of a request for robots.txt, also after redirects: a list that receives the URL of
# the request that failed.
FAILED = "robots_failed"
# Time after which rules that were unavailable are requested again.
RETRY_SECONDS = 300.0
# Maximum number of hosts whose Crawl-delay is logged.
MAX_LOGGED_HOSTS = 100
DAY_SECONDS = 24 * 3600
# Longer files are parsed and applied in a thread, so that they do not block the reactor.
LONG_CHARACTERS = 16_384
# Maximum size of all cached rules; each character takes about 60 bytes of memory.
MAX_CACHED_CHARACTERS = 1_000_000
# Added for each cached host, so that hosts without rules count, too.
HOST_CHARACTERS = 100
TOO_MANY_REQUESTS = 429
# RFC 9309, section 2.5, requires at least 500 KiB.
MAX_BYTES = 512 * 1024
LINE_ENDS = b"\n", b"\r"
MAX_SITEMAPS, MAX_URL_CHARACTERS = 20, 2000
# Scheme and authority of a URL, and whether its host may be in a private network.
Key = tuple[str, str, bool]


def is_unavailable(status: int) -> bool:
    """Return whether a server cannot answer now: the file may exist, and its rules would apply."""
    return status >= 500 or status == TOO_MANY_REQUESTS


def is_missing(error: Exception) -> bool:
    """Return whether a request failed for a reason other than the network or the server.

    These are redirects that lead nowhere, which RFC 9309, section 2.3.1.2, lets count as a missing
    file, and decompression bombs.
    """
    if isinstance(error, BadResponse):
        return isinstance(error, TooLarge)
    return isinstance(error, IgnoreRequest)


def beginning(body: bytes, *, is_cut: bool) -> bytes:
    """Return at most MAX_BYTES of a file; drop the last, incomplete line if the file was cut."""
    if len(body) <= MAX_BYTES and not is_cut:
        return body
    head = body[:MAX_BYTES]
    return head[: 1 + max(map(head.rfind, LINE_ENDS))]


def for_agent(text: str, agent: str) -> str:
    """Return the rules for one user agent, rewritten as rules for `*`; empty without rules.

    Protego stores each rule of a group once per user agent of the group, so a file of 512 KiB could
    result in a hundred million rules. Fields and values are parsed with Protego's functions.
    """
    bare = (line.partition("#")[0].strip() for line in text.splitlines())
    lines = [(*pair, line) for line in bare if line and (pair := _extract_directive(line))]
    best, best_score = "", 0
    for field, value, _ in lines:
        if field in _USER_AGENT_DIRECTIVE:
            for name in _names(value):
                if (score := _score(name, agent)) > best_score:
                    best, best_score = name, score
    if not best_score:
        return ""
    # All groups with this name apply.
    rules = ["User-agent: *"]
    is_ours, in_agents = False, False
    for field, value, line in lines:
        if field in _USER_AGENT_DIRECTIVE:
            is_ours = best in _names(value) or (in_agents and is_ours)
            in_agents = True
        elif field not in _SITE_WIDE_DIRECTIVES:
            in_agents = False
            if is_ours:
                rules.append(line)
    return "\n".join(rules)


def sitemaps_of(text: str, url: str) -> tuple[str, ...]:
    """Return the URLs of the sitemaps that a robots.txt names, at most MAX_SITEMAPS.

    url: URL of the file
    """
    bare = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (pair for line in bare if line and (pair := _extract_directive(line)))
    named = (value for field, value in pairs if field in _SITEMAP_DIRECTIVE)
    urls = (joined(url, value) for value in named if 0 < len(value) <= MAX_URL_CHARACTERS)
    return tuple(islice(dict.fromkeys(filter(is_http, urls)), MAX_SITEMAPS))


def _names(value: str) -> tuple[str, ...]:
    """Return the user agent in a line, and its form without asterisks, which Protego ignores."""
    name = value.strip().lower()
    bare = name if name == "*" else name.replace("*", "")
    return (name, bare) if bare else ()


def _score(name: str, agent: str) -> int:
    """Return how well a name matches a user agent, with Protego's score; 0: no match."""
    if name == "*":
        return 1
    text = agent.strip().lower()
    at = text.find(name)
    while at > 0 and (text[at - 1].isalnum() or text[at - 1] in "-_"):
        at = text.find(name, at + 1)
    return 0 if at < 0 else len(name)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a host for Freshet's user agent; without a parser, every URL is allowed.

    characters:    size of the rules
    problem:       why the rules are unknown, so that no URL is allowed; empty if they are known
    until:         time, by the monotonic clock in seconds, at which to request unknown rules again
    delay_seconds: the Crawl-delay; 0: none
    sitemaps:      URLs of the sitemaps that the file names
    """

    parser: RobotParser | None = None
    characters: int = 0
    problem: str = ""
    until: float = 0.0
    delay_seconds: float = 0.0
    sitemaps: tuple[str, ...] = ()

    @classmethod
    def unknown(cls, problem: str) -> Rules:
        """Return rules that allow no URL, and log why."""
        logger.warning("%s, so no page may be fetched (%s)", problem, IGNORE_ROBOTS_HINT)
        problem = f"{problem}, so no page may be fetched ({IGNORE_ROBOTS_HINT})"
        return cls(problem=problem, until=monotonic() + RETRY_SECONDS)

    @property
    def is_current(self) -> bool:
        """Return whether the rules are known, or were requested only recently."""
        return not self.problem or monotonic() < self.until


class RobotsMiddleware(RobotsTxtMiddleware):
    """Scrapy's robots.txt middleware with a cache of limited size and limits on the file.

    Only the URL check of Scrapy 2.19 is used: its middleware treats robots.txt as missing for the
    third and later requests that wait for the same file.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._guard = Guard.of(crawler)
        self._max_delay_seconds = Config.of(crawler.settings).crawl_delay_seconds
        self._own_delay_seconds = crawler.settings.getfloat("DOWNLOAD_DELAY")
        self._slowed: set[str] = set()
        self._cache: OrderedDict[Key, Rules] = OrderedDict()
        self._characters = 0
        self._pending: dict[Key, asyncio.Future[Rules]] = {}

    async def process_request(self, request: Request) -> None:  # type: ignore[override]
        """Raise IgnoreRequest if the rules forbid a request, OffLimits if the host is refused.

        Also IgnoreRequest if the server cannot send the rules now (RFC 9309, section 2.3.1.4),
        NotRequested if they were not requested, for example because the host is paused, and the
        error of the connection if the host is unreachable.
        """
        is_web = urlparse_cached(request).scheme in {"http", "https"}
        if not is_web or request.meta.get("dont_obey_robotstxt"):
            return
        try:
            rules = await self._rules(request)
        except UNREACHABLE:
            # The request for robots.txt was retried already.
            request.meta["dont_retry"] = True
            raise
        if rules.problem:
            raise IgnoreRequest(rules.problem)
        if rules.characters > LONG_CHARACTERS:
            await asyncio.to_thread(self.process_request_2, rules.parser, request)
        else:
            self.process_request_2(rules.parser, request)

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Note which request failed in the end: robots.txt may redirect to other hosts."""
        if FAILED in request.meta:
            request.meta[FAILED].append(request.url)

    async def _rules(self, request: Request) -> Rules:
        # Cache by is_named, too: the guard may refuse robots.txt of a private host to a request
        # that follows a link, but allow it to a request for a URL from the user.
        parts = urlparse_cached(request)
        key = parts.scheme, parts.netloc, self._guard.is_named(request)
        if (rules := self._cache.get(key)) is not None and rules.is_current:
            self._cache.move_to_end(key)
            return rules
        if key not in self._pending:
            self._pending[key] = asyncio.ensure_future(self._fetched(request, key))
        return await asyncio.shield(self._pending[key])

    async def _fetched(self, request: Request, key: Key) -> Rules:
        # Connected only while robots.txt is fetched: the signal is sent for each chunk of every
        # response.
        self.crawler.signals.connect(self._stop_at_limit, signals.bytes_received)
        try:
            answer = await self._answer(request)
            rules = answer if isinstance(answer, Rules) else await self._read(request, answer)
        finally:
            del self._pending[key]
            if not self._pending:
                self.crawler.signals.disconnect(self._stop_at_limit, signals.bytes_received)
        self._keep(key, rules)
        self._slow_down(host_of(request.url), rules.delay_seconds)
        if isinstance(answer, Response):
            # A redirect to the same host, usually to https, leads to the rules of that scheme.
            final = urlparse_cached(answer)
            if (final.netloc, final.path) == (key[1], "/robots.txt"):
                self._keep((final.scheme, *key[1:]), rules)
        return rules

    def _slow_down(self, host: str, delay_seconds: float) -> None:
        """Apply the Crawl-delay of a host, up to FRESHET_CRAWL_DELAY_SECONDS; log it once."""
        applied = min(delay_seconds, self._max_delay_seconds)
        downloader = getattr(self.crawler.engine, "downloader", None)
        if applied <= self._own_delay_seconds or not isinstance(downloader, Downloader):
            return
        downloader.slow_down(host, applied)
        if host in self._slowed or len(self._slowed) >= MAX_LOGGED_HOSTS:
            return
        self._slowed.add(host)
        limit = " (FRESHET_CRAWL_DELAY_SECONDS)" if applied < delay_seconds else ""
        logger.info(
            "Host %s gets a request every %g s%s, so at most %s a day: its robots.txt asks for a "
            "Crawl-delay of %g s",
            host, applied, limit, count(int(DAY_SECONDS / applied), "request"), delay_seconds,
        )  # fmt: skip

    def _keep(self, key: Key, rules: Rules) -> None:
        """Cache the rules of a host, and drop the least recently used rules beyond the limit."""
        if (before := self._cache.pop(key, None)) is not None:
            self._characters -= before.characters + HOST_CHARACTERS
        self._cache[key] = rules
        self._characters += rules.characters + HOST_CHARACTERS
        while len(self._cache) > 1 and self._characters > MAX_CACHED_CHARACTERS:
            _, dropped = self._cache.popitem(last=False)
            self._characters -= dropped.characters + HOST_CHARACTERS

    async def _answer(self, request: Request) -> Response | Rules:
        """Fetch robots.txt of the request's host; return the rules that apply if that fails.

        Raises NotRequested if it was not requested: it must not count as missing later. Raises
        UNREACHABLE and OffLimits if they concern the host itself, rather than its robots.txt.
        """
        parts = urlparse_cached(request)
        url = f"{parts.scheme}://{parts.netloc}/robots.txt"
        # No download_maxsize: _stop_at_limit cuts a file that is too large instead of failing it.
        failed: list[str] = []
        meta = {
            "dont_obey_robotstxt": True,
            "download_maxsize": 0,
            RECEIVED: 0,
            FAILED: failed,
            ON_BEHALF_OF: request,
        }
        robots_request = Request(url, NO_CALLBACK, priority=self.DOWNLOAD_PRIORITY, meta=meta)
        assert self.crawler.engine is not None
        self._stats.inc_value("robotstxt/request_count")
        try:
            return await self.crawler.engine.download_async(robots_request)
        except NotRequested:
            raise
        except Exception as error:
            if isinstance(error, OffLimits) and error.url == robots_request.url:
                raise
            is_of_host = all(host_of(at) == host_of(url) for at in failed)
            if isinstance(error, UNREACHABLE) and is_of_host:
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            if not is_missing(error):
                return Rules.unknown(f"{url} could not be read ({reason})")
            logger.warning("Reading %s failed, so every URL is allowed: %s", url, reason)
            return Rules()

    def _stop_at_limit(self, data: bytes, request: Request) -> None:
        """Stop the download of a robots.txt after MAX_BYTES."""
        if RECEIVED in request.meta:
            request.meta[RECEIVED] += len(data)
            if request.meta[RECEIVED] > MAX_BYTES:
                raise StopDownload(fail=False)

    async def _read(self, request: Request, response: Response) -> Rules:
        self._stats.inc_value("robotstxt/response_count")
        if is_unavailable(response.status):
            return Rules.unknown(f"{response.url} returned {response.status}")
        agent = self._robotstxt_useragent or request.headers.get("User-Agent")
        agent = to_unicode(agent or self._default_useragent)
        body = beginning(response.body, is_cut="download_stopped" in response.flags)
        if len(response.body) > LONG_CHARACTERS:
            rules = await asyncio.to_thread(self._parsed, body, agent, response.url)
        else:
            rules = self._parsed(body, agent, response.url)
        await self.crawler.signals.send_catch_log_async(
            signal=signals.robots_parsed,
            robotparser=rules.parser,
            request=request,
            sitemaps=rules.sitemaps,
        )
        return rules

    def _parsed(self, body: bytes, agent: str, url: str) -> Rules:
        whole = body.decode("utf-8-sig", errors="ignore")
        text, sitemaps = for_agent(whole, agent), sitemaps_of(whole, url)
        parser: Any = build_from_crawler(self._parserimpl, self.crawler, text.encode())
        delay_seconds = parser.crawl_delay(agent) or 0.0
        # Not NaN, which float() reads.
        delay_seconds = delay_seconds if delay_seconds > 0 else 0.0
        characters = len(text) + sum(map(len, sitemaps))
        return Rules(parser, characters, delay_seconds=delay_seconds, sitemaps=sitemaps)
