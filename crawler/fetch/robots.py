"""Obey robots.txt: fetch it once per host, up to a size limit, and apply its rules."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from protego._protego import _SITE_WIDE_DIRECTIVES, _USER_AGENT_DIRECTIVE, _extract_directive
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

from crawler.errors import IGNORE_ROBOTS_HINT, OffLimits
from crawler.fetch.downloader import NotRequested
from crawler.fetch.guard import ON_BEHALF_OF, Guard

logger = logging.getLogger(__name__)
# Key in the meta of a request for robots.txt: bytes received so far.
RECEIVED = "robots_bytes"
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
# Scheme and authority of a URL, and whether its host may be in a private network.
Key = tuple[str, str, bool]


def is_unavailable(status: int) -> bool:
    """Return whether a server cannot answer now: the file may exist, and its rules would apply."""
    return status >= 500 or status == TOO_MANY_REQUESTS


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

    characters: size of the rules
    problem:    why the rules are unknown, so that no URL is allowed; empty if they are known
    """

    parser: RobotParser | None = None
    characters: int = 0
    problem: str = ""


class RobotsMiddleware(RobotsTxtMiddleware):
    """Scrapy's robots.txt middleware with a cache of limited size and limits on the file.

    Only the URL check of Scrapy 2.19 is used: its middleware treats robots.txt as missing for the
    third and later requests that wait for the same file.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._guard = Guard.of(crawler)
        self._cache: OrderedDict[Key, Rules] = OrderedDict()
        self._characters = 0
        self._pending: dict[Key, asyncio.Future[Rules]] = {}

    async def process_request(self, request: Request) -> None:  # type: ignore[override]
        """Raise IgnoreRequest if the rules forbid a request, OffLimits if the host is refused.

        Also IgnoreRequest if the server cannot send the rules now (RFC 9309, section 2.3.1.4), and
        NotRequested if they were not requested, for example because the host is paused.
        """
        is_web = urlparse_cached(request).scheme in {"http", "https"}
        if not is_web or request.meta.get("dont_obey_robotstxt"):
            return
        rules = await self._rules(request)
        if rules.problem:
            raise IgnoreRequest(rules.problem)
        if rules.characters > LONG_CHARACTERS:
            await asyncio.to_thread(self.process_request_2, rules.parser, request)
        else:
            self.process_request_2(rules.parser, request)

    async def robot_parser(self, request: Request) -> RobotParser | None:
        """Return the rules of the request's host, fetched if necessary; None: no rules."""
        return (await self._rules(request)).parser

    async def _rules(self, request: Request) -> Rules:
        # Cache by is_named, too: the guard may refuse robots.txt of a private host to a request
        # that follows a link, but allow it to a request for a URL from the user.
        parts = urlparse_cached(request)
        key = parts.scheme, parts.netloc, self._guard.is_named(request)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        if key not in self._pending:
            self._pending[key] = asyncio.ensure_future(self._fetched(request, key))
        return await asyncio.shield(self._pending[key])

    async def _fetched(self, request: Request, key: Key) -> Rules:
        # Connected only while robots.txt is fetched: the signal is sent for each chunk of every
        # response.
        self.crawler.signals.connect(self._stop_at_limit, signals.bytes_received)
        try:
            response = await self._response(request)
            rules = await self._read(request, response) if response is not None else Rules()
        finally:
            del self._pending[key]
            if not self._pending:
                self.crawler.signals.disconnect(self._stop_at_limit, signals.bytes_received)
        self._keep(key, rules)
        if response is not None:
            # A redirect to the same host, usually to https, leads to the rules of that scheme.
            final = urlparse_cached(response)
            if (final.netloc, final.path) == (key[1], "/robots.txt"):
                self._keep((final.scheme, *key[1:]), rules)
        return rules

    def _keep(self, key: Key, rules: Rules) -> None:
        """Cache the rules of a host, and drop the least recently used rules beyond the limit."""
        if (before := self._cache.pop(key, None)) is not None:
            self._characters -= before.characters + HOST_CHARACTERS
        self._cache[key] = rules
        self._characters += rules.characters + HOST_CHARACTERS
        while len(self._cache) > 1 and self._characters > MAX_CACHED_CHARACTERS:
            _, dropped = self._cache.popitem(last=False)
            self._characters -= dropped.characters + HOST_CHARACTERS

    async def _response(self, request: Request) -> Response | None:
        """Fetch robots.txt of the request's host; return None if that fails.

        Raises NotRequested if it was not requested: it must not count as missing later.
        """
        parts = urlparse_cached(request)
        url = f"{parts.scheme}://{parts.netloc}/robots.txt"
        # No download_maxsize: _stop_at_limit cuts a file that is too large instead of failing it.
        meta = {
            "dont_obey_robotstxt": True,
            "download_maxsize": 0,
            RECEIVED: 0,
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
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            logger.warning("Reading %s failed, so every URL is allowed: %s", url, reason)
            return None

    def _stop_at_limit(self, data: bytes, request: Request) -> None:
        """Stop the download of a robots.txt after MAX_BYTES."""
        if RECEIVED in request.meta:
            request.meta[RECEIVED] += len(data)
            if request.meta[RECEIVED] > MAX_BYTES:
                raise StopDownload(fail=False)

    async def _read(self, request: Request, response: Response) -> Rules:
        self._stats.inc_value("robotstxt/response_count")
        if is_unavailable(response.status):
            problem = f"{response.url} returned {response.status}, so no page may be fetched"
            logger.warning("%s (%s)", problem, IGNORE_ROBOTS_HINT)
            return Rules(problem=f"{problem} ({IGNORE_ROBOTS_HINT})")
        agent = self._robotstxt_useragent or request.headers.get("User-Agent")
        agent = to_unicode(agent or self._default_useragent)
        body = beginning(response.body, is_cut="download_stopped" in response.flags)
        if len(response.body) > LONG_CHARACTERS:
            rules = await asyncio.to_thread(self._parsed, body, agent)
        else:
            rules = self._parsed(body, agent)
        await self.crawler.signals.send_catch_log_async(
            signal=signals.robots_parsed, robotparser=rules.parser, request=request
        )
        return rules

    def _parsed(self, body: bytes, agent: str) -> Rules:
        text = for_agent(body.decode("utf-8-sig", errors="ignore"), agent)
        parser: Any = build_from_crawler(self._parserimpl, self.crawler, text.encode())
        return Rules(parser, len(text))
