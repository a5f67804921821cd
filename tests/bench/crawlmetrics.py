"""The cost of metrics in a crawl: `make bench ARGS=--metrics`.

The same pages are crawled with and without metrics concurrently, so that both runs get the same
share of the machine. The benchmark also reads the metrics of a million targets.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crawler.config import Config
from crawler.reports.metrics import read, text_of
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import Store
from tests.bench.crawls import Crawl, freshet
from tests.bench.planned import insert
from tests.site.running import RunningSite

ITEMS, TARGETS = 2000, 1_000_000
# Maximum CPU time relative to a crawl without metrics. The goal is 1.01; pairs vary by 0.02.
BAR = 1.02


def run(rounds: int) -> int:
    """Measure both and print the results; return 1 if the requirement is not met."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            server.start()
            with RunningSite() as one, RunningSite() as other:
                ratio = _crawls((one.url, other.url), folder, rounds)
            _reading(server.start())
        finally:
            server.stop()
    return 0 if ratio <= BAR else 1


def _crawls(sites: tuple[str, str], folder: Path, rounds: int) -> float:
    """Return the median of the CPU seconds with metrics relative to those without."""
    ratios = [_ratio(sites, folder, number) for number in range(rounds)]
    median, spread = statistics.median(ratios), f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"CPU seconds with / without metrics: {median:.3f} ({spread}); required: {BAR}")
    return median


def _ratio(sites: tuple[str, str], folder: Path, number: int) -> float:
    """Return the CPU ratio of two concurrent crawls, which swap sites and order in each round."""
    ways = [(True, sites[number % 2]), (False, sites[1 - number % 2])]
    with ThreadPoolExecutor(2) as both:
        crawls = {
            is_on: both.submit(_crawl, site, folder, number, is_on=is_on)
            for is_on, site in (ways if number % 4 < 2 else ways[::-1])
        }
    return crawls[True].result().cpu_seconds / crawls[False].result().cpu_seconds


def _crawl(site: str, folder: Path, number: int, *, is_on: bool) -> Crawl:
    env = {"FRESHET_METRICS_DIR": str(folder / "metrics")} if is_on else {}
    name = f"r{number}{'with' if is_on else 'without'}"
    return freshet(f"{site}/big/{ITEMS}/list/1/", name, folder, FRESHET_DUPLICATES="off", **env)


def _reading(uri: str) -> None:
    insert(f"{uri}-million", TARGETS)
    for _ in range(2):
        began = time.perf_counter()
        size = asyncio.run(_read(f"{uri}-million"))
        seconds = time.perf_counter() - began
        print(f"metrics of {TARGETS:,} targets: {seconds:.1f} s, {size:,} bytes")


async def _read(uri: str) -> int:
    store = await Store.open(Config.load(mongo_uri=uri))
    try:
        return len(text_of(await read(store)))
    finally:
        await store.close()
