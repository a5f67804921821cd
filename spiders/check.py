"""Reads single pages as a wrapper would and hands them back; nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.asyncgen import as_async_generator

from crawler.items import Fetched, Kind, Skipped, Target
from crawler.wrapper import Match, Wrapper
from spiders.wrapper import WrapperSpider

Page = dict[str, Any]


def checking(
    spider: type[WrapperSpider], urls: list[str], pages: list[Page]
) -> type[WrapperSpider]:
    """A spider like `spider` that reads `urls` alone and appends what it found to `pages`."""

    class Checking(spider):  # type: ignore[misc, valid-type]
        """Reads what it is given, without a pass and without storage."""

        def begin(self, crawler: Crawler) -> None:
            """Open no pass."""

        async def start(self) -> AsyncIterator[Request]:
            """Requests for the given URLs; those the wrapper does not want are only named."""
            for url in urls:
                known = self.wrapper.canonical(url)
                match = self.wrapper.match(known)
                if match.kind is None:
                    pages.append(_unwanted(url, match))
                else:
                    request = self.request(Target(self.wrapper.name, known, match.kind))
                    request.meta["asked"] = url
                    yield request

        async def parse_target(self, response: Any) -> None:
            """Keep what the wrapper reads."""
            asked = response.meta["asked"]
            read = as_async_generator(super().parse_target(response))
            pages.extend([_page(asked, fetched, self.wrapper) async for fetched in read])

        def parse_failure(self, failure: Any) -> Iterator[Fetched | Skipped]:
            """Keep why a page could not be fetched."""
            asked = failure.request.meta["asked"]
            read = super().parse_failure(failure)
            pages.extend(_page(asked, x, self.wrapper) for x in read if isinstance(x, Fetched))
            yield from ()

    return Checking


def _unwanted(url: str, match: Match) -> Page:
    problem = "list_pages and item_pages both" if match.both else None
    return {
        "url": url,
        "meets": problem or "no pattern",
        "category": None,
        "outcome": None,
        "problem": "a URL may meet one of them only" if match.both else None,
        "content": None,
        "links": None,
    }


def _page(url: str, fetched: Fetched, wrapper: Wrapper) -> Page:
    match = wrapper.match(fetched.target.url)
    problem = fetched.outcome and f"{fetched.outcome}: {fetched.reason or fetched.status}"
    return {
        "url": url,
        "meets": f"{match.kind}_pages",
        "category": match.category or _category(fetched),
        "outcome": fetched.outcome,
        "problem": problem,
        "content": fetched.content,
        "links": _by_kind(fetched),
    }


def _category(fetched: Fetched) -> str | None:
    return next((link.category for link in fetched.links or () if link.category), None)


def _by_kind(fetched: Fetched) -> dict[str, list[str]] | None:
    if fetched.links is None:
        return None
    return {kind: [x.url for x in fetched.links if x.kind is kind] for kind in Kind}
