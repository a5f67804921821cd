"""Searches of the web app among a million posts: `make bench ARGS=--search`.

Fills an embedded server with posts whose words are as frequent as in natural language, starts
`scrapy web`, and requests the page and the API for 30 queries, with and without filters, in random
order. Exits with 1 if 95 % of the requests of either take longer than MAX_MS.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from pymongo import AsyncMongoClient
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage import schema
from crawler.storage.client import Document
from crawler.storage.embedded import EmbeddedServer
from tests.bench.searchdata import fill, vocabulary
from tests.bench.web import MAX_MS, Browser, app_of, cpu_milliseconds, quantile

POSTS, ROUNDS = 1_000_000, 5
SEED = 7
PAGE, API = "/search", "/api/v1/search"
# Ranks of words: nearly all posts have the first ones, one of a thousand the ten-thousandth.
FREQUENT, MEDIUM, RARE = (3, 30, 100), (300, 700, 1500), (4000, 10_000, 30_000)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument_group("search").add_argument
    option(
        "--search", type=int, nargs="?", const=POSTS, metavar="N",
        help=f"searches of the web app among N posts (default: {POSTS:,})",
    )  # fmt: skip


def queries() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield 30 queries with the name of their kind."""
    words = vocabulary()
    for name, ranks in (("frequent", FREQUENT), ("medium", MEDIUM), ("rare", RARE)):
        one, two, three = (str(words[rank]) for rank in ranks)
        yield from ((f"{name} word", {"q": word}) for word in (one, two, three))
        yield f"{name} words", {"q": f"{one} {two}"}
        yield f"{name} words", {"q": f"{one} {two} {three}"}
    frequent, medium, rare = (str(words[ranks[1]]) for ranks in (FREQUENT, MEDIUM, RARE))
    yield "frequent and rare", {"q": f"{frequent} {rare}"}
    yield "frequent and rare", {"q": f"{medium} {rare}"}
    yield "phrase", {"q": f'"{words[0]} {words[1]}"'}
    yield "phrase", {"q": f'"{words[30]} {words[0]}"'}
    yield "without a word", {"q": f"{rare} -{frequent}"}
    yield "without a word", {"q": f"{frequent} -{words[1]}"}
    for word in (frequent, medium, rare):
        yield "of a site", {"q": word, "site": "site07"}
    yield "of a category", {"q": medium, "category": "category 3"}
    yield "of a month", {"q": frequent, "from": "2025-06-01", "to": "2025-06-30"}
    yield "no words", {}
    yield "no words", {"site": "site07"}
    yield "no words", {"category": "category 3"}
    yield "no words", {"to": "2025-06-30", "kind": "item"}


def run(options: argparse.Namespace) -> int:
    """Fill a database, measure, and print the table; return 1 if a requirement is not met."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        folder: Path = options.data or Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            uri = server.start()
            asyncio.run(_prepare(uri, options.search))
            with app_of(folder, 0.0) as (url, pid):
                server_pid = server.pid()
                assert server_pid is not None
                return _measure(url, (pid, server_pid))
        finally:
            server.stop()


async def _prepare(uri: str, posts: int) -> None:
    client: AsyncMongoClient[Document] = AsyncMongoClient(uri, tz_aware=True)
    async with client:
        db = client.get_default_database()
        if not await db.posts.estimated_document_count():
            await schema.create_collections(db)
            await asyncio.to_thread(fill, uri, posts)
        await schema.prepare(db)


def _measure(url: str, processes: tuple[int, int]) -> int:
    browser, rng = Browser(url), random.Random(SEED)
    given = list(queries())
    times: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    every: dict[str, list[float]] = defaultdict(list)
    for number in range(ROUNDS + 1):
        for kind, query in rng.sample(given, len(given)):
            for path in rng.sample((PAGE, API), 2):
                before = sum(map(cpu_milliseconds, processes))
                status, taken = browser.get(f"{path}?{urlencode(query)}")
                assert status == 200, query
                # The first round loads templates and the words of indexes.
                if number:
                    times[kind].append(taken)
                    cpu[kind].append(sum(map(cpu_milliseconds, processes)) - before)
                    every[path].append(taken)
    table = Table("query", "requests", "p50 ms", "p95 ms", "CPU p50", "CPU p95")
    for kind, own in {**times, **every}.items():
        spent = cpu.get(kind)
        table.add_row(
            kind, str(len(own)), f"{statistics.median(own):.0f}", f"{quantile(own, 0.95):.0f}",
            *((f"{statistics.median(spent):.0f}", f"{quantile(spent, 0.95):.0f}") if spent else ()),
        )  # fmt: skip
    Console(width=100).print(table)
    return int(max(quantile(own, 0.95) for own in every.values()) > MAX_MS)
