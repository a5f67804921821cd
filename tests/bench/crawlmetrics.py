"""`make bench ARGS=--metrics`: what metrics cost a crawl.

The same pages are crawled with and without them, in turns, each time under a name of its own; and
the figures of a million targets are read.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from crawler.config import Config
from crawler.metrics.reading import read, text_of
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import Store
from tests.bench.crawls import Crawl, freshet
from tests.bench.planned import insert
from tests.site.running import RunningSite

ITEMS, TARGETS = 4000, 1_000_000
# A hundredth is asked for; neighbours in time differ by more than that.
BAR = 0.97


def run(rounds: int) -> int:
    """Measure both and print what was found; 1 where the bar is missed."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            server.start()
            with RunningSite() as site:
                ratio = _crawls(site.url, folder, rounds)
            _reading(server.start())
        finally:
            server.stop()
    return 0 if ratio >= BAR else 1


def _crawls(site: str, folder: Path, rounds: int) -> float:
    """The median of with / without in pages a second."""
    pairs = [_pair(site, folder, number) for number in range(rounds)]
    speed = [on.pages_per_second / off.pages_per_second for on, off in pairs]
    cpu = [on.cpu_seconds / off.cpu_seconds for on, off in pairs]
    for what, ratios in (("pages/s", speed), ("CPU seconds", cpu)):
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{what} with / without metrics: {statistics.median(ratios):.3f} ({spread})")
    return statistics.median(speed)


def _pair(site: str, folder: Path, number: int) -> tuple[Crawl, Crawl]:
    """With and without, the other one first than in the round before."""
    done = {}
    for is_on in (True, False) if number % 2 else (False, True):
        env = {"FRESHET_METRICS_DIR": str(folder / "metrics")} if is_on else {}
        name = f"r{number}{'with' if is_on else 'without'}"
        start = f"{site}/big/{ITEMS}/list/1/"
        done[is_on] = freshet(start, name, folder, FRESHET_DUPLICATES="off", **env)
    return done[True], done[False]


def _reading(uri: str) -> None:
    insert(f"{uri}-million", TARGETS)
    for _ in range(2):
        began = time.perf_counter()
        size = asyncio.run(_read(f"{uri}-million"))
        seconds = time.perf_counter() - began
        print(f"figures of {TARGETS:,} targets: {seconds:.1f} s, {size:,} bytes")


async def _read(uri: str) -> int:
    store = await Store.open(Config.load(mongo_uri=uri))
    try:
        return len(text_of(await read(store)))
    finally:
        await store.close()
