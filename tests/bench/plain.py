"""The baseline: a plain Scrapy spider with the same selectors that writes JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import scrapy


class Plain(scrapy.Spider):
    """Follow the list pages of the generated site and yield its items."""

    name = "plain"

    def __init__(self, first: str) -> None:
        super().__init__()
        self.start_urls = [first]

    def parse(self, response: Any) -> Iterator[Any]:
        """Parse a list page."""
        yield from response.follow_all(css="li.product a", callback=self.parse_item)
        yield from response.follow_all(css="a.next", callback=self.parse)

    def parse_item(self, response: Any) -> Iterator[dict[str, Any]]:
        """Parse an item page."""
        yield {
            "url": response.url,
            "title": response.css("h1::text").get(),
            "price": response.css("p.price::text").get(),
            "stock": response.css("p.stock::text").get(),
            "sku": response.css("span.sku::text").get(),
            "description": response.css("div.description ::text").getall(),
        }
