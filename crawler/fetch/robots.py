"""robots.txt: read once a host, as far as it has to be read, and obeyed."""

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
from scrapy.exceptions import StopDownload
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from scrapy.robotstxt import RobotParser
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import to_unicode

from crawler.errors import OffLimits
from crawler.fetch.guard import SAKE, Guard
from crawler.fetch.middlewares import NotAsked

logger = logging.getLogger(__name__)
# In the meta of a request for robots.txt: bytes that came so far.
CAME = "robots_bytes"
# More than this takes longer to read and to apply than a turn of the reactor may take.
LONG_CHARACTERS = 16_384
# Of all hosts' rules; each is some 60 bytes in memory.
MOST_CHARACTERS = 1_000_000
USUAL_CHARACTERS = 100
# RFC 9309, 2.5: at least 500 KiB.
MOST_BYTES = 512 * 1024
LINE_ENDS = b"\n", b"\r"


def beginning(body: bytes, *, is_cut: bool) -> bytes:
    """As much of a file as is read; where it is cut off, its whole lines."""
    if len(body) <= MOST_BYTES and not is_cut:
        return body
    head = body[:MOST_BYTES]
    return head[: 1 + max(map(head.rfind, LINE_ENDS))]


def for_agent(text: str, agent: str) -> str:
    """The rules for one user agent, as those for all; empty where there are none.

    Protego would keep each rule of a group for each of its user agents: half a megabyte of both is
    a hundred million. Fields and values are read as Protego reads them.
    """
    bare = (line.partition("#")[0].strip() for line in text.splitlines())
    lines = [(*pair, line) for line in bare if line and (pair := _extract_directive(line))]
    best, most = "", 0
    for field, value, _ in lines:
        if field in _USER_AGENT_DIRECTIVE:
            for name in _names(value):
                if (score := _score(name, agent)) > most:
                    best, most = name, score
    if not most:
        return ""
    # The rules of all groups that this name stands above.
    rules = ["User-agent: *"]
    is_ours, among_agents = False, False
    for field, value, line in lines:
        if field in _USER_AGENT_DIRECTIVE:
            is_ours = best in _names(value) or (among_agents and is_ours)
            among_agents = True
        elif field not in _SITE_WIDE_DIRECTIVES:
            among_agents = False
            if is_ours:
                rules.append(line)
    return "\n".join(rules)


def _names(value: str) -> tuple[str, ...]:
    """The user agents that a line names: asterisks have no meaning in a name."""
    name = value.strip().lower()
    bare = name if name == "*" else name.replace("*", "")
    return (name, bare) if bare else ()


def _score(name: str, agent: str) -> int:
    """How well a name fits a user agent, as Protego has it; 0: not at all."""
    if name == "*":
        return 1
    text = agent.strip().lower()
    at = text.find(name)
    while at > 0 and (text[at - 1].isalnum() or text[at - 1] in "-_"):
        at = text.find(name, at + 1)
    return 0 if at < 0 else len(name)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a host's robots.txt says to us; without a parser it forbids nothing."""

    parser: RobotParser | None = None
    characters: int = 0


class RobotsMiddleware(RobotsTxtMiddleware):
    """Obeys robots.txt for every request that waits for it, and does not choke on it.

    Of Scrapy 2.19's only the check is used: to the third and later request that wait for one
    robots.txt it looks there as if it were missing.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._guard = Guard.of(crawler)
        self._known: OrderedDict[tuple[str, bool], Rules] = OrderedDict()
        self._characters = 0
        self._coming: dict[tuple[str, bool], asyncio.Future[Rules]] = {}
        crawler.signals.connect(self._came, signals.bytes_received)

    async def process_request(self, request: Request) -> None:  # type: ignore[override]
        """Raise IgnoreRequest where the rules forbid a request, OffLimits where the host is."""
        is_web = urlparse_cached(request).scheme in {"http", "https"}
        if not is_web or request.meta.get("dont_obey_robotstxt"):
            return
        rules = await self._rules(request)
        if rules.characters > LONG_CHARACTERS:
            await asyncio.to_thread(self.process_request_2, rules.parser, request)
        else:
            self.process_request_2(rules.parser, request)

    async def robot_parser(self, request: Request) -> RobotParser | None:
        """The rules of the request's host, once they are there; None where it has none."""
        return (await self._rules(request)).parser

    async def _rules(self, request: Request) -> Rules:
        # What one request is kept from, as only a page names it, another may ask for.
        key = urlparse_cached(request).netloc, self._guard.is_named(request)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if key not in self._coming:
            self._coming[key] = asyncio.ensure_future(self._fetched(request, key))
        return await asyncio.shield(self._coming[key])

    async def _fetched(self, request: Request, key: tuple[str, bool]) -> Rules:
        try:
            response = await self._response(request)
            rules = await self._read(request, response) if response is not None else Rules()
        finally:
            del self._coming[key]
        self._keep(key, rules)
        return rules

    def _keep(self, key: tuple[str, bool], rules: Rules) -> None:
        """Remember the rules of a host, and forget those that were not asked for the longest."""
        self._known[key] = rules
        self._characters += rules.characters + USUAL_CHARACTERS
        while len(self._known) > 1 and self._characters > MOST_CHARACTERS:
            _, forgotten = self._known.popitem(last=False)
            self._characters -= forgotten.characters + USUAL_CHARACTERS

    async def _response(self, request: Request) -> Response | None:
        """What the host sends for robots.txt; None where that cannot be read."""
        parts = urlparse_cached(request)
        url = f"{parts.scheme}://{parts.netloc}/robots.txt"
        meta = {"dont_obey_robotstxt": True, "download_maxsize": 0, CAME: 0, SAKE: request}
        wanted = Request(url, NO_CALLBACK, priority=self.DOWNLOAD_PRIORITY, meta=meta)
        assert self.crawler.engine is not None
        self._stats.inc_value("robotstxt/request_count")
        try:
            return await self.crawler.engine.download_async(wanted)
        except NotAsked:
            return None
        except Exception as error:
            if isinstance(error, OffLimits) and error.url == wanted.url:
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            logger.warning("%s cannot be read, so it forbids nothing: %s", url, reason)
            return None

    def _came(self, data: bytes, request: Request) -> None:
        """Stop where enough of a robots.txt has come."""
        if CAME in request.meta:
            request.meta[CAME] += len(data)
            if request.meta[CAME] > MOST_BYTES:
                raise StopDownload(fail=False)

    async def _read(self, request: Request, response: Response) -> Rules:
        self._stats.inc_value("robotstxt/response_count")
        agent = self._robotstxt_useragent or request.headers.get("User-Agent")
        agent = to_unicode(agent or self._default_useragent)
        words = beginning(response.body, is_cut="download_stopped" in response.flags), agent
        if len(response.body) > LONG_CHARACTERS:
            rules = await asyncio.to_thread(self._parsed, *words)
        else:
            rules = self._parsed(*words)
        await self.crawler.signals.send_catch_log_async(
            signal=signals.robots_parsed, robotparser=rules.parser, request=request
        )
        return rules

    def _parsed(self, body: bytes, agent: str) -> Rules:
        text = for_agent(body.decode("utf-8-sig", errors="ignore"), agent)
        made: Any = build_from_crawler(self._parserimpl, self.crawler, text.encode())
        return Rules(made, len(text))
