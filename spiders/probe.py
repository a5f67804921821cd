"""Reads single pages as a site definition would, and returns what was found; stores nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.robotstxt import RobotParser
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.misc import build_from_crawler, load_object

from crawler.errors import FreshetError
from crawler.extract.response import HANDLED
from crawler.extract.wrapper import Match, Wrapper
from crawler.items import Fetched, Kind, LinkCount, LinkCounts, Skipped, Target
from spiders.wrapper import WrapperSpider

Page = dict[str, Any]
# Links of a page that matched no pattern, of which the shapes are told.
MAX_UNMATCHED = 2000
# Characters of a problem.
LONGEST = 200
# In a request's meta: the URL that was given for it.
URL = "asked"


def checking(
    spider: type[WrapperSpider], urls: list[str], pages: list[Page]
) -> type[WrapperSpider]:
    """A spider like `spider` that reads `urls` only and appends what it found to `pages`."""

    class Checking(spider):  # type: ignore[misc, valid-type]
        """Reads the URLs without a run and without storage."""

        kept_links: ClassVar[int] = MAX_UNMATCHED

        def begin(self, crawler: Crawler) -> None:
            """Open no run."""

        async def start(self) -> AsyncIterator[Request]:
            """Requests for the given URLs; those that match no pattern are only reported."""
            for url in urls:
                canonical = self.wrapper.canonical(url)
                match = self.wrapper.match(canonical)
                if match.kind is None:
                    pages.append(_unwanted(url, match, self.wrapper))
                else:
                    request = self.request(Target(self.wrapper.name, canonical, match.kind))
                    request.meta[URL] = url
                    yield request

        async def parse_target(self, response: Any) -> None:
            """Keep what the site definition makes of a page."""
            url = response.meta[URL]
            read = as_async_generator(super().parse_target(response))
            pages.extend([_page(url, fetched, self.wrapper) async for fetched in read])

        def parse_failure(self, failure: Any) -> Iterator[Fetched | Skipped]:
            """Keep why a page could not be fetched."""
            url = failure.request.meta[URL]
            read = super().parse_failure(failure)
            pages.extend(_page(url, x, self.wrapper) for x in read if isinstance(x, Fetched))
            yield from ()

    return Checking


def _unwanted(url: str, match: Match, wrapper: Wrapper) -> Page:
    if match.both:
        matches, problem = "list_pages and item_pages", "matches both, and would be left out"
    elif wrapper.is_own(url):
        matches, problem = "no pattern", "matches neither list_pages nor item_pages"
    else:
        matches, problem = "no pattern", "its host is neither in start_urls nor in allowed_domains"
    return {
        "url": url,
        "matches": matches,
        "category": None,
        "outcome": None,
        "problem": problem,
        "content": None,
        "empty_fields": None,
        "links": None,
        "unmatched": [],
        "counts": {},
    }


def _page(url: str, fetched: Fetched, wrapper: Wrapper) -> Page:
    match, links = wrapper.match(fetched.target.url), fetched.links
    key = "start_urls" if match.pattern is None else f"{match.kind}_pages"
    counts = fetched.link_counts or LinkCounts()
    # Why the page would not be read, or leads nowhere.
    problem = None
    if fetched.outcome:
        problem = f"{fetched.outcome}: {fetched.reason or fetched.status}"
    elif fetched.target.kind is Kind.LIST and all(
        link.url in wrapper.start_matches for link in links or ()
    ):
        several = counts.counts[LinkCount.AMBIGUOUS]
        keys = "only one of list_pages and item_pages" if several else "list_pages or item_pages"
        problem = f"no link on this page matches {keys}"
    category = next((link.category for link in links or () if link.category), None)
    return {
        "url": url,
        "matches": f"{key} ({match.kind} page)" if key == "start_urls" else key,
        "category": match.category or category,
        "outcome": fetched.outcome,
        "problem": problem,
        "content": fetched.content,
        "empty_fields": None if fetched.empty_fields is None else list(fetched.empty_fields),
        "links": None
        if links is None
        else {kind: [link.url for link in links if link.kind is kind] for kind in Kind},
        "unmatched": list(counts.unmatched),
        "counts": {name.name.lower(): counts.counts[name] for name in LinkCount},
    }


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request.

    rules: as a crawl would read them; None where nothing came, which `problem` says then
    agent: the user agent of the request
    """

    url: str
    status: int = 0
    rules: RobotParser | None = None
    agent: str = ""
    problem: str = ""


def asking(
    spider: type[WrapperSpider], urls: list[str], seconds: float, answers: list[Answer]
) -> type[WrapperSpider]:
    """A spider like `spider` that asks for `urls` alone and appends what came to `answers`."""

    class Asking(spider):  # type: ignore[misc, valid-type]
        """All at once, each for so many seconds at most, and once."""

        def begin(self, crawler: Crawler) -> None:
            """Open no run."""

        async def start(self) -> AsyncIterator[Request]:
            """One request for each; no delay parts them, as each has a slot of its own."""
            for url in urls:
                meta = {
                    "dont_obey_robotstxt": True,
                    "dont_retry": True,
                    "download_slot": url,
                    "download_timeout": seconds,
                    "handle_httpstatus_list": HANDLED,
                    URL: url,
                }
                yield Request(
                    url, self.answered, errback=self.not_answered, meta=meta, dont_filter=True
                )

        def answered(self, response: Response) -> None:
            """Keep the rules."""
            parser = load_object(self.crawler.settings["ROBOTSTXT_PARSER"])
            rules = build_from_crawler(parser, self.crawler, response.body)
            sent = response.request.headers if response.request else {}
            agent = (sent.get("User-Agent") or b"").decode("latin-1")
            answers.append(Answer(response.meta[URL], response.status, rules, agent))

        def not_answered(self, failure: Any) -> None:
            """Keep why nothing came."""
            problem = " ".join(f"{failure.type.__name__}: {failure.value}".split())
            answers.append(Answer(failure.request.meta[URL], problem=problem[:LONGEST]))

    return Asking


def readers(settings: BaseSettings) -> list[WrapperSpider]:
    """A spider of each wrapper that needs no arguments and describes the pages of one site."""
    loader, spiders = get_spider_loader(settings), list[WrapperSpider]()
    for name in loader.list():
        kind = loader.load(name)
        if issubclass(kind, WrapperSpider):
            try:
                spiders.append(kind())
            except FreshetError:
                continue
    return [spider for spider in spiders if spider.wrapper.starts]


def reader_of(url: str, among: list[WrapperSpider]) -> WrapperSpider | None:
    """The first whose item pages the URL is one of; None where there is none."""
    for spider in among:
        try:
            if spider.wrapper.match(spider.wrapper.canonical(url)).kind is Kind.ITEM:
                return spider
        except ValueError:
            continue
    return None
