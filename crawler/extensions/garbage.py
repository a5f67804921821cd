"""Collections of garbage without the libraries: they stay, and looking through them takes time.

Python's collector goes through all that lives again and again. Of a crawl most of that is imported
code, which takes a tenth of the crawl's time to look at.
"""

from __future__ import annotations

from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler

from crawler.utils.garbage import collect_again

# Some libraries are loaded with the first page that needs them.
ITEMS = 50


class Garbage:
    """Leaves out of collections what is there when a crawl starts, and after its first items."""

    def __init__(self, crawler: Crawler) -> None:
        self._signals = crawler.signals
        self._items = 0
        self._signals.connect(collect_again, signals.engine_started)
        self._signals.connect(self.count, signals.item_scraped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The extension of a crawl."""
        return cls(crawler)

    def count(self) -> None:
        """Note an item."""
        self._items += 1
        if self._items == ITEMS:
            self._signals.disconnect(self.count, signals.item_scraped)
            collect_again()
