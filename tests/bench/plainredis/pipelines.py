"""Store items in MongoDB one by one, as in Scrapy's documentation."""

from __future__ import annotations

from typing import Any, Self

import pymongo
from itemadapter import ItemAdapter
from scrapy.crawler import Crawler


class Mongo:
    """Insert each item synchronously."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the pipeline from the setting MONGO_URI."""
        return cls(crawler.settings["MONGO_URI"])

    def open_spider(self) -> None:
        """Connect to MongoDB."""
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(self.uri)
        self.db = self.client.get_default_database()

    def close_spider(self) -> None:
        """Close the connection."""
        self.client.close()

    def process_item(self, item: Any) -> Any:
        """Store an item."""
        self.db["items"].insert_one(ItemAdapter(item).asdict())
        return item
