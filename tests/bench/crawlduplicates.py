"""The cost of near-duplicate detection in a crawl: `make bench ARGS=--duplicates`.

The same pages are crawled with and without detection, in alternating runs, each into an empty
database of a running server.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pymongo
from pymongo.database import Database
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.dedup.minhash import by_characters
from crawler.storage.client import Document
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import opened
from tests.bench.crawls import Crawl, freshet
from tests.site.running import RunningSite

BAR = 0.85
ON, OFF = "characters", "off"
ITEMS, ARTICLES, LONG_ARTICLES = 4000, 1000, 600


@dataclass(frozen=True, slots=True)
class Case:
    """Pages to crawl. fields: read the definition's fields, rather than extract the main text."""

    name: str
    path: str
    fields: bool


CASES = (
    Case("items, five fields", f"/big/{ITEMS}/list/1/", True),
    Case("articles of 5 kB", f"/big/{ARTICLES}/articles/1/?own=5", False),
    Case("articles of 100 kB", f"/big/{LONG_ARTICLES}/articles/1/?own=100", False),
    # Most of these pages are near-duplicates, because they share paragraphs.
    Case("alike, 100 kB", f"/big/{LONG_ARTICLES}/articles/1/?kb=100", False),
)


@dataclass(frozen=True, slots=True)
class Round:
    """Two consecutive runs. flagged, posts: of the run that detects duplicates."""

    on: Crawl
    off: Crawl
    flagged: int
    posts: int

    @property
    def ratio(self) -> float:
        """Return the pages per second with detection relative to those without."""
        return self.on.pages_per_second / self.off.pages_per_second


class Crawls:
    """Crawl a site into databases of one server."""

    def __init__(self, site: str, folder: Path, uri: str) -> None:
        self._site, self._folder, self._uri = site, folder, uri

    def round(self, case: Case, number: int) -> Round:
        """Crawl with and without detection, in alternating order."""
        done: dict[str, tuple[Crawl, int, int]] = {}
        for how in (ON, OFF) if number % 2 else (OFF, ON):
            done[how] = self._crawled(case, how)
        on, flagged, posts = done[ON]
        return Round(on, done[OFF][0], flagged, posts)

    def _crawled(self, case: Case, how: str) -> tuple[Crawl, int, int]:
        env = {"MONGO_URI": self._uri, "FRESHET_DUPLICATES": how}
        # Collections and indexes are created once per database, not once per crawl.
        asyncio.run(_prepared(Config.load(mongo_uri=self._uri)))
        start = self._site + case.path
        crawl = freshet(start, "bench", self._folder, fields=case.fields, **env)
        client: pymongo.MongoClient[Document]
        with pymongo.MongoClient(self._uri) as client:
            db: Database[Document] = client.get_default_database()
            flagged, posts = (db.posts.count_documents(q) for q in ({"original": False}, {}))
            client.drop_database(db)
        return crawl, flagged, posts


async def _prepared(config: Config) -> None:
    async with opened(config):
        pass


def run(rounds: int) -> int:
    """Measure each case and print a table; return 1 if the requirement is not met."""
    by_characters("Kernels are compiled at the first text, which may take seconds.")
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningSite() as site:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            crawls = Crawls(site.url, folder, server.start())
            results = {case: [crawls.round(case, n) for n in range(rounds)] for case in CASES}
        finally:
            server.stop()
    _show(results)
    ratios = {case: statistics.median(one.ratio for one in of) for case, of in results.items()}
    missed = [case.name for case, ratio in ratios.items() if ratio < BAR]
    print(f"Required: {BAR} of the pages/s without. Missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def _show(results: dict[Case, list[Round]]) -> None:
    table = Table(
        "", "pages", "flagged", "pages/s with", "without", "ratio", "CPU ms/page with", "without",
        "peak MB with", "without",
    )  # fmt: skip
    for case, rounds in results.items():
        first = rounds[0]
        both = [[one.on for one in rounds], [one.off for one in rounds]]
        table.add_row(
            case.name,
            str(first.on.pages),
            f"{first.flagged} of {first.posts}",
            *(f"{_median(of, lambda c: c.pages_per_second):.0f}" for of in both),
            f"{statistics.median(one.ratio for one in rounds):.2f}",
            *(f"{_median(of, lambda c: c.cpu_seconds / c.pages * 1000):.2f}" for of in both),
            *(f"{max(c.peak_mb for c in of):.0f}" for of in both),
        )
    Console(width=120).print(table)


def _median(crawls: list[Crawl], figure: Callable[[Crawl], float]) -> float:
    return statistics.median(map(figure, crawls))
