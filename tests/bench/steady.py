"""Scrapy extension: processor time per page between the first and the last pages of a crawl."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler

# Environment variable with the path of the output file.
FILE = "BENCH_STEADY_FILE"
# Pages until libraries are loaded, and between two readings.
FIRST_PAGES, STEP_PAGES = 100, 50


class Steady:
    """Writes the mean processor time per page after FIRST_PAGES, and the pages/s, to a file."""

    def __init__(self, crawler: Crawler) -> None:
        self._pages = 0
        self._readings: list[tuple[int, float, float]] = []
        crawler.signals.connect(self._count, signals.response_received)
        crawler.signals.connect(self._write, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the extension."""
        return cls(crawler)

    def _count(self) -> None:
        self._pages += 1
        if self._pages >= FIRST_PAGES and self._pages % STEP_PAGES == 0:
            self._readings.append((self._pages, time.process_time(), time.monotonic()))

    def _write(self) -> None:
        if len(self._readings) < 2:
            return
        (pages, cpu, at), (last_pages, last_cpu, last_at) = self._readings[0], self._readings[-1]
        n = last_pages - pages
        figures = {"cpu_ms": (last_cpu - cpu) / n * 1000, "pages_per_second": n / (last_at - at)}
        Path(os.environ[FILE]).write_text(json.dumps(figures))
