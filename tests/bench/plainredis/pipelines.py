"""Items to MongoDB one by one, as Scrapy's documentation shows it."""

from __future__ import annotations

from typing import Any, Self

import pymongo
from itemadapter import ItemAdapter
from scrapy.crawler import Crawler


class Mongo:
    """A synchronous insert an item."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """By the setting MONGO_URI."""
        return cls(crawler.settings["MONGO_URI"])

    def open_spider(self) -> None:
        """Connect."""
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(self.uri)
        self.db = self.client.get_default_database()

    def close_spider(self) -> None:
        """Hang up."""
        self.client.close()

    def process_item(self, item: Any) -> Any:
        """Store one."""
        self.db["items"].insert_one(ItemAdapter(item).asdict())
        return item
