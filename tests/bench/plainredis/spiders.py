"""The spider, with the same links and fields as Freshet's site definition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from scrapy_redis.spiders import RedisSpider


class Shop(RedisSpider):
    """Follow the list pages of the quick site and yield its items."""

    name = "shop"
    redis_key = "shop:start_urls"

    def parse(self, response: Any) -> Iterator[Any]:
        """Parse the start page or a list page."""
        self._is_busy()
        yield from response.follow_all(css="li.list a", callback=self.parse)
        yield from response.follow_all(css="li.item a", callback=self.parse_item)

    def parse_item(self, response: Any) -> Iterator[dict[str, Any]]:
        """Parse an item page."""
        self._is_busy()
        yield {
            "url": response.url,
            "title": response.css("h1::text").get(),
            "price": response.css("p.price::text").get(),
            "stock": response.css("p.stock::text").get(),
            "sku": response.css("span.sku::text").get(),
            "description": response.css("div.description ::text").getall(),
        }

    def _is_busy(self) -> None:
        # Fix: scrapy-redis counts the idle time from its import.
        self.spider_idle_start_time = int(time.time())
