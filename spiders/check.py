"""Reads single pages as a site definition would, and returns what was found; stores nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.asyncgen import as_async_generator

from crawler.extract.wrapper import Match, Wrapper
from crawler.items import Fetched, Kind, LinkCount, LinkCounts, Skipped, Target
from spiders.wrapper import WrapperSpider

Page = dict[str, Any]
# Links of a page that matched no pattern, of which the shapes are told.
MAX_UNMATCHED = 2000


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
                known = self.wrapper.canonical(url)
                match = self.wrapper.match(known)
                if match.kind is None:
                    pages.append(_unwanted(url, match, self.wrapper))
                else:
                    request = self.request(Target(self.wrapper.name, known, match.kind))
                    request.meta["asked"] = url
                    yield request

        async def parse_target(self, response: Any) -> None:
            """Keep what the site definition makes of a page."""
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
    match = wrapper.match(fetched.target.url)
    key = "start_urls" if match.pattern is None else f"{match.kind}_pages"
    found = fetched.link_counts or LinkCounts()
    return {
        "url": url,
        "matches": f"{key} ({match.kind} page)" if key == "start_urls" else key,
        "category": match.category or _category(fetched),
        "outcome": fetched.outcome,
        "problem": _problem(fetched, wrapper),
        "content": fetched.content,
        "empty_fields": None if fetched.empty_fields is None else list(fetched.empty_fields),
        "links": _by_kind(fetched),
        "unmatched": list(found.unmatched),
        "counts": {name.name.lower(): found.counts[name] for name in LinkCount},
    }


def _problem(fetched: Fetched, wrapper: Wrapper) -> str | None:
    """Why a page would not be read, or leads nowhere."""
    if fetched.outcome:
        return f"{fetched.outcome}: {fetched.reason or fetched.status}"
    is_list = fetched.target.kind is Kind.LIST
    if is_list and all(link.url in wrapper.start_matches for link in fetched.links or ()):
        several = fetched.link_counts and fetched.link_counts.counts[LinkCount.AMBIGUOUS]
        what = "only one of list_pages and item_pages" if several else "list_pages or item_pages"
        return f"no link on this page matches {what}"
    return None


def _category(fetched: Fetched) -> str | None:
    return next((link.category for link in fetched.links or () if link.category), None)


def _by_kind(fetched: Fetched) -> dict[str, list[str]] | None:
    if fetched.links is None:
        return None
    return {kind: [x.url for x in fetched.links if x.kind is kind] for kind in Kind}
