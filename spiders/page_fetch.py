"""Fetch single pages for the web app in a process of its own: `python -m spiders.page_fetch`.

Reads a `FetchOrder` as JSON from stdin, and writes a list of `FetchedText` as JSON to stdout.
Requests have the limits, robots.txt rules and address checks of a crawl. Nothing is stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from scrapy import Request
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.http import Response, TextResponse
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.project import get_project_settings
from typing_extensions import TypedDict

from crawler.config import PROJECT, Config
from crawler.errors import FreshetError
from crawler.extract.response import decoded
from crawler.extract.site_definition import Wrapper
from crawler.items import Kind, Target
from spiders.wrapper import INSPECTS, Arguments, WrapperSpider, failure_text

MODULE = "spiders.page_fetch"
MAX_TEXT_CHARACTERS = 2_000_000
MAX_PAGE_MB = 4
# Time for all pages of an order; the parent process waits a little longer.
MAX_SECONDS = 60
KILL_SECONDS = MAX_SECONDS + 15
OK = 200
HTML_TYPES = ("html", "xml")


class FetchOrder(TypedDict):
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
    """URL as ordered."""
    final_url: str
    """URL after redirects."""
    text: str
    """HTML of the page; empty with a problem."""
    problem: str | None
    """Why the page could not be fetched; null without a problem."""


async def fetch_pages(
    definition: dict[str, Any], urls: Sequence[str], config: Config
) -> list[FetchedText]:
    """Fetch pages in a subprocess, and return them in the order of the URLs."""
    order: FetchOrder = {
        "definition": definition,
        "urls": list(urls),
        "settings": {
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
    found = {page["url"]: page for page in pages}
    return [found.get(url) or _failed(url, "no response in time") for url in urls]


def spider_names() -> frozenset[str]:
    """Return the names of the project's spider classes."""
    return frozenset(get_spider_loader(get_project_settings()).list())


def fetching(
    wrapper: Wrapper, urls: Sequence[str], pages: list[FetchedText]
) -> type[WrapperSpider]:
    """Return a spider class that fetches `urls` as pages of a site and appends them to `pages`."""

    class Fetching(WrapperSpider):
        """Fetches the URLs without a run and without storage."""

        name = wrapper.name

        @classmethod
        def read_wrapper(cls, arguments: Arguments) -> Wrapper:
            """Return the given definition."""
            return wrapper

        def begin(self, crawler: Crawler) -> None:
            """Do not open a run."""

        async def start(self) -> AsyncIterator[Request]:
            """Yield a request for each URL."""
            for url in urls:
                request = self.request(Target(wrapper.name, url, Kind.LIST))
                request.meta["ordered"] = url
                yield request

        async def parse_target(self, response: Response) -> AsyncIterator[Any]:
            """Append a page."""
            pages.append(_page(response.meta["ordered"], response))
            return
            yield

        def parse_failure(self, failure: Any) -> Iterator[Any]:
            """Append the reason why a page could not be fetched."""
            pages.append(_failed(failure.request.meta["ordered"], failure_text(failure)))
            yield from ()

    return Fetching


def _page(url: str, response: Response) -> FetchedText:
    if response.status != OK:
        return _failed(url, f"the server responded with status {response.status}")
    kind = (response.headers.get("Content-Type") or b"html").decode("latin-1").lower()
    if not isinstance(response, TextResponse) or not any(name in kind for name in HTML_TYPES):
        return _failed(url, f"not an HTML page: {kind[:80]!r}")
    text = decoded(response).text[:MAX_TEXT_CHARACTERS]
    return {"url": url, "final_url": response.url, "text": text, "problem": None}


def _failed(url: str, problem: str) -> FetchedText:
    return {"url": url, "final_url": url, "text": "", "problem": problem}


def main() -> None:
    """Fetch the pages of the order on stdin."""
    order: FetchOrder = json.load(sys.stdin)
    # Libraries may print to stdout; only the result belongs there.
    out = os.dup(1)
    os.dup2(2, 1)
    settings = get_project_settings()
    settings.setdict(
        order["settings"]
        | {INSPECTS: True, "LOG_ENABLED": False, "CLOSESPIDER_TIMEOUT": MAX_SECONDS},
        priority="cmdline",
    )
    pages: list[FetchedText] = []
    try:
        wrapper = Wrapper.of(order["definition"], "definition")
        process = AsyncCrawlerProcess(settings)
        process.crawl(fetching(wrapper, order["urls"], pages))
        process.start()
    except FreshetError as error:
        pages = [_failed(url, str(error)) for url in order["urls"]]
    with os.fdopen(out, "w", encoding="utf-8") as result:
        json.dump(pages, result)


if __name__ == "__main__":
    main()
