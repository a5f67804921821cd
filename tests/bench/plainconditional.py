"""The baseline of revisits: a plain Scrapy spider with conditional requests.

It keeps the URL and the validators of each page in SQLite, requests all pages again with
If-None-Match and If-Modified-Since, and writes the items of changed pages as JSON lines.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy

KEPT = "CREATE TABLE IF NOT EXISTS pages (url TEXT PRIMARY KEY, list INT, etag TEXT, modified TEXT)"
STORE = "INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?)"
# Pages per transaction.
BATCH = 200


class Conditional(scrapy.Spider):
    """Follow the list pages of the generated site, and revisit all known pages."""

    name = "conditional"

    def __init__(self, first: str, state: str) -> None:
        super().__init__()
        self.first = first
        self.kept = sqlite3.connect(state)
        self.kept.execute(KEPT)
        self.rows: list[tuple[str, bool, str, str]] = []
        self.known: set[str] = set()

    async def start(self) -> AsyncIterator[Any]:
        """Yield a request for each known page, or for the first page if none is known."""
        known = self.kept.execute("SELECT * FROM pages").fetchall() or [(self.first, 1, "", "")]
        self.known = {url for url, *_ in known}
        for url, is_list, etag, modified in known:
            yield self.request(url, is_list=bool(is_list), etag=etag, modified=modified)

    def request(
        self, url: str, *, is_list: bool, etag: str = "", modified: str = ""
    ) -> scrapy.Request:
        """Return the request for a page."""
        named = {"If-None-Match": etag, "If-Modified-Since": modified}
        headers = {name: value for name, value in named.items() if value}
        callback = self.parse if is_list else self.parse_item
        meta = {"handle_httpstatus_list": [304]}
        return scrapy.Request(url, callback, headers=headers, meta=meta, dont_filter=True)

    def parse(self, response: Any) -> Iterator[Any]:
        """Parse a list page."""
        if response.status == 304:
            return
        self.keep(response, is_list=True)
        for selector, is_list in (("li.product a", False), ("a.next", True)):
            for link in response.css(selector):
                url = response.urljoin(link.attrib["href"])
                if url not in self.known:
                    self.known.add(url)
                    yield self.request(url, is_list=is_list)

    def parse_item(self, response: Any) -> Iterator[dict[str, Any]]:
        """Parse an item page."""
        if response.status == 304:
            return
        self.keep(response, is_list=False)
        yield {
            "url": response.url,
            "title": response.css("h1::text").get(),
            "price": response.css("p.price::text").get(),
            "stock": response.css("p.stock::text").get(),
            "sku": response.css("span.sku::text").get(),
            "description": response.css("div.description ::text").getall(),
        }

    def keep(self, response: Any, *, is_list: bool) -> None:
        """Store the validators of a page."""
        etag, modified = (
            response.headers.get(name, b"").decode() for name in ("ETag", "Last-Modified")
        )
        self.rows.append((response.url, is_list, etag, modified))
        if len(self.rows) >= BATCH:
            self.store()

    def store(self) -> None:
        """Write the buffered rows."""
        with self.kept:
            self.kept.executemany(STORE, self.rows)
        self.rows.clear()

    def closed(self, reason: str) -> None:
        """Write the last rows."""
        self.store()
        self.kept.close()
