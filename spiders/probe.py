"""Fetch single pages, and return them or the data that a site definition extracts from them.

Requests have the limits, robots.txt rules and address checks of a crawl. Nothing is stored.

The web app fetches pages in a separate process, `python -m spiders.probe`, which reads a
`FetchRequest` as JSON from stdin and writes a list of `FetchedText` as JSON to stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from scrapy import Request, signals
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.http import Response, TextResponse
from scrapy.robotstxt import RobotParser
from scrapy.settings import BaseSettings, Settings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.project import get_project_settings
from typing_extensions import TypedDict

from crawler.config import PROJECT, Config
from crawler.errors import FreshetError
from crawler.extract.documents import JsonPage
from crawler.extract.response import HANDLED, REFUSED, decoded, failure_text, settle_stand_in
from crawler.extract.shells import needs_browser
from crawler.extract.site_definition import Match, Wrapper
from crawler.items import Fetched, Kind, LinkCount, LinkCounts, Skipped, Target
from crawler.utils.urls import host_of
from spiders.wrapper import INSPECTS, Arguments, WrapperSpider

# Maximum number of unmatched links per page that are kept to report their URL shapes.
MAX_UNMATCHED = 2000
MAX_PROBLEM_CHARACTERS = 200
# Key in request.meta: the URL as it was given.
URL = "asked"
MODULE = "spiders.probe"
MAX_TEXT_CHARACTERS = 2_000_000
MAX_PAGE_MB = 4
# Maximum time for all pages of a FetchRequest; the parent process waits a little longer.
MAX_SECONDS = 60
KILL_SECONDS = MAX_SECONDS + 15
OK = 200
HTML_TYPES = ("html", "xml")
# The root element of an RSS or Atom feed, and where to look for it.
FEED = re.compile(r"<(?:rss|feed|rdf:RDF)[\s>]")
MAX_PROLOG_CHARACTERS = 2000


class Page(TypedDict):
    """What a site definition extracts from a page."""

    url: str
    """URL as given."""
    matches: str | None
    """Key of the definition that matches the URL, such as `item_pages`; null if none does."""
    redirected_to: str | None
    """URL after redirects; null if it is the requested one."""
    category: str | None
    """Category of the page, or of its first link with a category."""
    outcome: str | None
    """Outcome of a visit that failed: `error`, `gone`, `blocked` or `shell`; else null."""
    problem: str | None
    """Why the page cannot be read, or has no matching links; null without a problem."""
    content: dict[str, Any] | None
    """Fields by name, or `title` and `main_text`; null if the page has no content."""
    empty_fields: list[str] | None
    """Names of the fields that were not found; null for list pages."""
    links: dict[str, list[str]] | None
    """Matching links by kind of target; null if links are not followed."""
    unmatched_links: list[str]
    """Links that match no pattern, at most 2,000."""
    counts: dict[str, int]
    """Numbers of links by what they match, such as `items`, `unmatched` or `foreign`."""


class UrlShape(TypedDict):
    """URLs that only differ in words and numbers."""

    text: str
    """Path with `{word}` and `{number}`, after the host if there are several hosts."""
    count: int
    """Number of links."""
    example: str
    """One of the URLs."""


class WrapperReport(TypedDict):
    """Result of a check of a site definition."""

    wrapper: str
    """Name of the definition."""
    fields: list[str]
    """Names of its fields."""
    pages: list[Page]
    """Results by page, in the order of the URLs given."""
    unmatched: list[UrlShape]
    """Shapes of the links that match no pattern, most frequent first, at most 20."""
    sitemaps: list[str]
    """Sitemaps in robots.txt that are not among the start URLs."""
    problems: list[str]
    """Problems of pages and fields."""


class InspectingSpider(WrapperSpider):
    """Fetches pages without a run, also if workers share runs."""

    # By host: the sitemaps that its robots.txt names.
    sitemaps: dict[str, tuple[str, ...]]

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """Set INSPECTS, so that no run begins."""
        settings.set(INSPECTS, True, priority="spider")
        super().update_settings(settings)

    def configure(self, crawler: Crawler) -> None:
        """Initialize as in a crawl, and note the sitemaps in robots.txt."""
        super().configure(crawler)
        self.sitemaps = {}
        crawler.signals.connect(self.note_sitemaps, signals.robots_parsed)

    def note_sitemaps(self, sitemaps: tuple[str, ...], request: Request) -> None:
        """Note the sitemaps in the robots.txt of a host."""
        self.sitemaps[host_of(request.url)] = sitemaps


def check_spider(
    spider: type[WrapperSpider],
    urls: list[str],
    pages: list[Page],
    unused: list[str] | None = None,
) -> type[WrapperSpider]:
    """Return a subclass of `spider` that fetches `urls` and appends the results to `pages`.

    unused: receives the sitemaps in robots.txt that are not start URLs
    """

    class CheckSpider(InspectingSpider, spider):  # type: ignore[misc, valid-type]
        """Fetches the URLs without a run and without storage."""

        kept_links: ClassVar[int] = MAX_UNMATCHED

        async def start(self) -> AsyncIterator[Request]:
            """Yield requests for the given URLs; URLs that match no pattern are only reported."""
            for url in urls:
                canonical = self.wrapper.canonical(url)
                match = self.wrapper.match(canonical)
                if match.kind is None:
                    pages.append(_unmatched(url, match, self.wrapper))
                else:
                    request = self.request(Target(self.wrapper.name, canonical, match.kind))
                    request.meta[URL] = url
                    yield request

        async def parse_target(self, response: Any) -> None:  # type: ignore[override]
            """Append what the site definition extracts from a page."""
            url = response.meta[URL]
            read = as_async_generator(super().parse_target(response))
            pages.extend([_page(url, fetched, self.wrapper) async for fetched in read])

        def note_sitemaps(self, sitemaps: tuple[str, ...], request: Request) -> None:
            """Append the sitemaps that are not start URLs."""
            new = named_sitemaps(sitemaps, self.wrapper)
            if unused is not None:
                unused.extend(url for url in new if url not in unused)

        def parse_failure(self, failure: Any) -> Iterator[Fetched | Skipped]:
            """Append the reason why a page could not be fetched."""
            url = failure.request.meta[URL]
            read = super().parse_failure(failure)
            pages.extend(_page(url, x, self.wrapper) for x in read if isinstance(x, Fetched))
            yield from ()

    return CheckSpider


def named_sitemaps(sitemaps: Iterable[str], wrapper: Wrapper) -> list[str]:
    """Return the sitemaps of a site that are not its start URLs."""
    return [
        url
        for url in sitemaps
        if (canonical := wrapper.canonical(url)) not in wrapper.start_matches
        and wrapper.is_own(canonical)
    ]


def _unmatched(url: str, match: Match, wrapper: Wrapper) -> Page:
    """Return the result for a URL that is neither a list page nor an item page."""
    if match.both:
        problem = "matches both, so a crawl skips it"
    elif wrapper.is_own(url):
        problem = "matches neither list_pages nor item_pages"
    else:
        problem = "host is neither in start_urls nor in allowed_domains"
    return {
        "url": url,
        "matches": "list_pages and item_pages" if match.both else None,
        "redirected_to": None,
        "category": None,
        "outcome": None,
        "problem": problem,
        "content": None,
        "empty_fields": None,
        "links": None,
        "unmatched_links": [],
        "counts": {},
    }


def _page(url: str, fetched: Fetched, wrapper: Wrapper) -> Page:
    match, links = wrapper.match(fetched.target.url), fetched.links
    key = "start_urls" if match.pattern is None else f"{match.kind}_pages"
    counts = fetched.link_counts or LinkCounts()
    # The reason why the page cannot be extracted, or has no matching links.
    problem = None
    settle_stand_in(fetched)
    if fetched.outcome:
        problem = f"{fetched.outcome}: {fetched.reason or fetched.status}"
    elif fetched.target.kind is Kind.LIST and all(
        link.url in wrapper.start_matches for link in links or ()
    ):
        several = counts.counts[LinkCount.AMBIGUOUS]
        keys = "only one of list_pages and item_pages" if several else "list_pages or item_pages"
        besides = " except start_urls" if links else ""
        problem = f"no link on this page{besides} matches {keys}"
        if login := counts.examples.get(LinkCount.PAGES):
            problem += f"; {login} asks for a password"
    category = next((link.category for link in links or () if link.category), None)
    return {
        "url": url,
        "matches": f"{key} ({match.kind} page)" if key == "start_urls" else key,
        "redirected_to": fetched.final_url,
        "category": match.category or category,
        "outcome": fetched.outcome,
        "problem": problem,
        "content": fetched.content,
        "empty_fields": None if fetched.empty_fields is None else list(fetched.empty_fields),
        "links": None
        if links is None
        else {str(kind): [link.url for link in links if link.kind is kind] for kind in Kind},
        "unmatched_links": list(counts.unmatched),
        "counts": {name.name.lower(): counts.counts[name] for name in LinkCount},
    }


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a request for robots.txt.

    status:  HTTP status; 0 without a response
    rules:   rules parsed as in a crawl; None without a response
    agent:   user agent of the request
    problem: error message if there is no response
    """

    url: str
    status: int = 0
    rules: RobotParser | None = None
    agent: str = ""
    problem: str = ""


def robots_spider(
    spider: type[WrapperSpider], urls: list[str], seconds: float, answers: list[Answer]
) -> type[WrapperSpider]:
    """Return a subclass of `spider` that fetches `urls` and appends the results to `answers`.

    seconds: timeout of each request
    """

    class RobotsSpider(InspectingSpider, spider):  # type: ignore[misc, valid-type]
        """Fetches all URLs concurrently, without retries."""

        async def start(self) -> AsyncIterator[Request]:
            """Yield a request for each URL; separate download slots avoid delays between them."""
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
            """Append the rules of a host."""
            parser = load_object(self.crawler.settings["ROBOTSTXT_PARSER"])
            rules = build_from_crawler(parser, self.crawler, response.body)
            sent = response.request.headers if response.request else {}
            agent = (sent.get("User-Agent") or b"").decode("latin-1")
            answers.append(Answer(response.meta[URL], response.status, rules, agent))

        def not_answered(self, failure: Any) -> None:
            """Append the reason why a request failed."""
            problem = " ".join(f"{failure.type.__name__}: {failure.value}".split())
            answers.append(
                Answer(failure.request.meta[URL], problem=problem[:MAX_PROBLEM_CHARACTERS])
            )

    return RobotsSpider


def readers(settings: BaseSettings) -> list[WrapperSpider]:
    """Return a spider for each site definition of the project that needs no arguments."""
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
    """Return the first spider whose item_pages match a URL; None if none does."""
    for spider in among:
        try:
            if spider.wrapper.match(spider.wrapper.canonical(url)).kind is Kind.ITEM:
                return spider
        except ValueError:
            continue
    return None


class FetchRequest(TypedDict):
    """Pages to fetch."""

    definition: dict[str, Any]
    """Keys of the site definition with the headers, cookies and politeness of the site."""
    urls: list[str]
    """URLs of the pages."""
    settings: dict[str, Any]
    """Scrapy settings, in addition to those of the project."""


class FetchedText(TypedDict):
    """A fetched page."""

    url: str
    """URL as requested."""
    final_url: str
    """URL after redirects."""
    text: str
    """HTML of the page; empty with a problem."""
    problem: str | None
    """Why the page could not be fetched; null without a problem."""
    sitemaps: list[str]
    """Sitemaps that robots.txt of the host names."""


async def fetch_pages(
    definition: dict[str, Any],
    urls: Sequence[str],
    config: Config,
    settings: Mapping[str, str] | None = None,
) -> list[FetchedText]:
    """Fetch pages in a subprocess, and return them in the order of the URLs.

    settings: Scrapy settings, in addition to those of the project
    """
    order: FetchRequest = {
        "definition": definition,
        "urls": list(urls),
        "settings": dict(settings or {})
        | {
            "FRESHET_PRIVATE_HOSTS": ",".join(config.private_hosts),
            "FRESHET_PRIVATE_ADDRESSES": config.private_addresses,
            "FRESHET_RESPONSE_MB": min(MAX_PAGE_MB, config.response_mb),
        },
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, cwd=PROJECT,
    )  # fmt: skip
    try:
        sent = json.dumps(order).encode()
        async with asyncio.timeout(KILL_SECONDS):
            received, _ = await process.communicate(sent)
        pages: list[FetchedText] = json.loads(received)
    except (TimeoutError, ValueError) as error:
        took_long = isinstance(error, TimeoutError)
        problem = f"took longer than {KILL_SECONDS} s" if took_long else "could not be fetched"
        pages = [_failed(url, problem) for url in urls]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    by_url = {page["url"]: page for page in pages}
    return [by_url.get(url) or _failed(url, "no response in time") for url in urls]


class WatchRequest(TypedDict):
    """Pages to visit once, each with its own definition."""

    definitions: list[dict[str, Any]]
    """Keys of a site definition with one start URL, which is an item."""
    settings: dict[str, Any]
    """Scrapy settings, in addition to those of the project."""


class WatchCheck(TypedDict):
    """What a visit of a page would find."""

    problem: str | None
    """Why the visit would fail, or which fields are empty; null without a problem."""
    is_markup: bool
    """Whether the response is HTML or XML."""


def check_watches(definitions: Sequence[dict[str, Any]], config: Config) -> list[WatchCheck | None]:
    """Visit the pages of definitions in a subprocess; return the results in their order.

    None: the page was not visited in time. Blocks.
    """
    order: WatchRequest = {
        "definitions": list(definitions),
        "settings": {
            "FRESHET_PRIVATE_HOSTS": ",".join(config.private_hosts),
            "FRESHET_PRIVATE_ADDRESSES": config.private_addresses,
        },
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", MODULE], input=json.dumps(order), capture_output=True,
            text=True, cwd=PROJECT, timeout=KILL_SECONDS, check=False,
        )  # fmt: skip
        checks: list[WatchCheck | None] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        checks = []
    return [*checks, *[None] * (len(definitions) - len(checks))]


def watch_spider(
    wrapper: Wrapper, place: int, checks: list[WatchCheck | None]
) -> type[WrapperSpider]:
    """Return a spider class that visits the start URL of a definition and stores the result."""

    class WatchSpider(InspectingSpider):
        """Visits one page without a run and without storage."""

        name = wrapper.name

        @classmethod
        def read_wrapper(cls, arguments: Arguments) -> Wrapper:
            """Return the given definition."""
            return wrapper

        async def start(self) -> AsyncIterator[Request]:
            """Yield the request."""
            yield self.request(Target(wrapper.name, wrapper.starts[0], Kind.ITEM))

        async def parse_target(self, response: Response) -> AsyncIterator[Any]:
            """Store what the definition extracts."""
            is_markup = isinstance(response, TextResponse) and response.selector.type != "json"
            async for fetched in as_async_generator(super().parse_target(response)):
                empty = ", ".join(fetched.empty_fields or ())
                settle_stand_in(fetched)
                problem = f"nothing found for {empty}" if empty and wrapper.fields else None
                if fetched.outcome:
                    problem = f"{fetched.outcome}: {fetched.reason or fetched.status}"
                checks[place] = {"problem": problem, "is_markup": is_markup}
            return
            yield

        def parse_failure(self, failure: Any) -> Iterator[Any]:
            """Store why the page could not be fetched."""
            checks[place] = {"problem": failure_text(failure), "is_markup": False}
            yield from ()

    return WatchSpider


def spider_names() -> frozenset[str]:
    """Return the names of the project's spider classes."""
    return frozenset(get_spider_loader(get_project_settings()).list())


NO_BROWSER = (
    "Freshet reads pages as the server sends them. Try the site's sitemap as start URL, its RSS "
    "feed on the page Feeds, or the URL of the data that the page loads"
)


def fetch_spider(
    wrapper: Wrapper, urls: Sequence[str], pages: list[FetchedText]
) -> type[WrapperSpider]:
    """Return a spider class that fetches `urls` as pages of a site and appends them to `pages`."""

    class FetchSpider(InspectingSpider):
        """Fetches the URLs without a run and without storage."""

        name = wrapper.name

        @classmethod
        def read_wrapper(cls, arguments: Arguments) -> Wrapper:
            """Return the given definition."""
            return wrapper

        async def start(self) -> AsyncIterator[Request]:
            """Yield a request for each URL."""
            for url in urls:
                request = self.request(Target(wrapper.name, url, Kind.LIST))
                request.meta["ordered"] = url
                yield request

        async def parse_target(self, response: Response) -> AsyncIterator[Any]:
            """Append a page."""
            fetched = _text_of(response.meta["ordered"], response)
            fetched["sitemaps"] = [*self.sitemaps.get(host_of(response.url), ())]
            pages.append(fetched)
            return
            yield

        def parse_failure(self, failure: Any) -> Iterator[Any]:
            """Append the reason why a page could not be fetched."""
            pages.append(_failed(failure.request.meta["ordered"], failure_text(failure)))
            yield from ()

    return FetchSpider


def _text_of(url: str, response: Response) -> FetchedText:
    if response.status != OK:
        is_refused = response.status in REFUSED
        cause = ". It may refuse crawlers, or require an account" if is_refused else ""
        return _failed(url, f"the server responded with status {response.status}{cause}")
    kind = (response.headers.get("Content-Type") or b"html").decode("latin-1").lower()
    if not isinstance(response, TextResponse) or not any(name in kind for name in HTML_TYPES):
        return _failed(
            url, f"not an HTML page: {kind[:80]!r}. Enter a page with links, as a browser shows it"
        )
    page = decoded(response)
    if isinstance(page, JsonPage):
        return _failed(url, "JSON instead of an HTML page. Read it with jmespath in a TOML file")
    if (problem := needs_browser(page)) is not None:
        return _failed(url, f"this is {problem}. {NO_BROWSER}")
    text = page.text[:MAX_TEXT_CHARACTERS]
    if FEED.search(text[:MAX_PROLOG_CHARACTERS]):
        return _failed(url, "this is a feed, not a page. Add it on the page Feeds")
    return {"url": url, "final_url": response.url, "text": text, "problem": None, "sitemaps": []}


def _failed(url: str, problem: str) -> FetchedText:
    return {"url": url, "final_url": url, "text": "", "problem": problem, "sitemaps": []}


def main() -> None:
    """Serve the FetchRequest or WatchRequest on stdin; write the results to stdout."""
    order: Any = json.load(sys.stdin)
    # Libraries may print to stdout; only the result belongs there.
    out = os.dup(1)
    os.dup2(2, 1)
    settings = get_project_settings()
    settings.setdict(
        order["settings"] | {"LOG_ENABLED": False, "CLOSESPIDER_TIMEOUT": MAX_SECONDS},
        priority="cmdline",
    )
    serve = _visit_watches if "definitions" in order else _fetch_texts
    answers = serve(order, settings)
    with os.fdopen(out, "w", encoding="utf-8") as result:
        json.dump(answers, result)


def _fetch_texts(order: FetchRequest, settings: Settings) -> list[FetchedText]:
    pages: list[FetchedText] = []
    try:
        wrapper = Wrapper.of(order["definition"], "definition")
        process = AsyncCrawlerProcess(settings)
        process.crawl(fetch_spider(wrapper, order["urls"], pages))
        process.start()
    except FreshetError as error:
        pages = [_failed(url, str(error)) for url in order["urls"]]
    return pages


def _visit_watches(order: WatchRequest, settings: Settings) -> list[WatchCheck | None]:
    checks: list[WatchCheck | None] = [None] * len(order["definitions"])
    process = AsyncCrawlerProcess(settings)
    for place, values in enumerate(order["definitions"]):
        try:
            process.crawl(watch_spider(Wrapper.of(values, "watch"), place, checks))
        except FreshetError as error:
            checks[place] = {"problem": str(error), "is_markup": False}
    process.start()
    return checks


if __name__ == "__main__":
    main()
