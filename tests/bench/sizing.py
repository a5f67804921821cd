"""The processor time, memory and disk space per page: `make bench ARGS=--sizing`.

Pages of 5 kB are crawled twice into an empty database of an embedded server: first all new, then
all unchanged (304). Then all visits are aggregated by day. The benchmark reports processor time,
because it hardly depends on other load of the machine. From the document sizes, it extrapolates the
needs of a million targets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pymongo
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.client import Document
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT, Crawl, freshet
from tests.site.running import RunningSite

MAX_ITEMS = 100_000
LATER_HOURS, PRUNED_HOURS = 200, 400
GIGABYTE = 1e9
# Parameters of the extrapolated database.
TARGETS, VISITS_A_DAY, CHANGED_SHARE = 1_000_000, 265_000, 0.05
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A crawl, and the processor time of the server during it."""

    crawl: Crawl
    server_seconds: float


@dataclass(frozen=True, slots=True)
class Size:
    """Mean bytes of a document: as BSON, on disk, and in all indexes."""

    bson: float
    data: float
    indexes: float

    @property
    def on_disk(self) -> float:
        """Return the bytes on disk that a document needs."""
        return self.data + self.indexes


def run(items: int) -> int:
    """Crawl and print the tables. items: number of items, and four times the articles."""
    # By name: the start path, and whether the definition's fields are read.
    cases = {
        "items, five fields": (f"/big/{items}/list/1/", True),
        "articles, main text": (f"/big/{items // 4}/articles/1/?own=5", False),
    }
    sizes: dict[str, Size] = {}
    with RunningSite() as site:
        for name, (path, fields) in cases.items():
            with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
                sizes = _case(name, site.url + path, Path(folder), fields=fields)
            _show_million(name, sizes)
    return 0


def _case(name: str, start: str, folder: Path, *, fields: bool) -> dict[str, Size]:
    server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
    uri = server.start()
    env = {"MONGO_URI": uri, "FRESHET_DUPLICATES": "characters"}
    try:
        # Warm up, so that the kernels are compiled.
        freshet(start.replace(start.split("/")[4], "100"), "warm", folder, fields=fields, **env)
        client: pymongo.MongoClient[Document]
        with pymongo.MongoClient(uri) as client:
            client.drop_database("freshet")
            runs = {
                "all new": _run(server, start, folder, env, fields=fields),
                "all unchanged": _run(
                    server, start, folder,
                    env | {"FRESHET_CLOCK_OFFSET_HOURS": str(LATER_HOURS)}, fields=fields,
                ),
            }  # fmt: skip
            _show_runs(name, runs)
            sizes = _sizes(client["freshet"])
            _prune(env | {"FRESHET_CLOCK_OFFSET_HOURS": str(PRUNED_HOURS)})
            sizes["days"] = _sizes(client["freshet"])["days"]
        _show_sizes(name, sizes)
        return sizes
    finally:
        server.stop()


def _run(
    server: EmbeddedServer, start: str, folder: Path, env: Mapping[str, str], *, fields: bool
) -> MeasuredRun:
    before = _cpu_seconds(server)
    crawl = freshet(start, "sized", folder, fields=fields, **env)
    return MeasuredRun(crawl, _cpu_seconds(server) - before)


def _cpu_seconds(server: EmbeddedServer) -> float:
    times = Path(f"/proc/{server.pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / TICKS


def _show_runs(name: str, runs: dict[str, MeasuredRun]) -> None:
    table = Table(name, "pages", "pages/s", "CPU ms/page", "MongoDB", "peak MB")
    for what, one in runs.items():
        crawl = one.crawl
        table.add_row(
            what, f"{crawl.pages:,}", f"{crawl.pages_per_second:.0f}",
            f"{crawl.cpu_seconds / crawl.pages * 1000:.2f}",
            f"{one.server_seconds / crawl.pages * 1000:.2f}", f"{crawl.peak_mb:.0f}",
        )  # fmt: skip
    Console().print(table)


def _prune(env: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "scrapy", "prune", "--keep-days", "1"]
    subprocess.run(command, cwd=ROOT, env=os.environ | env, check=True, stdout=subprocess.DEVNULL)


def _sizes(db: pymongo.database.Database[Document]) -> dict[str, Size]:
    """Return the sizes of the collections with documents."""
    db.client.admin.command("fsync")
    sizes = {}
    for name in sorted(db.list_collection_names()):
        stats = db.command("collStats", name)
        if n := stats["count"]:
            sizes[name] = Size(
                *(stats[key] / n for key in ("size", "storageSize", "totalIndexSize"))
            )
    return sizes


def _show_sizes(name: str, sizes: Mapping[str, Size]) -> None:
    table = Table(name, "bytes a document", "on disk", "indexes", "together")
    for collection, size in sizes.items():
        each = (size.bson, size.data, size.indexes, size.on_disk)
        table.add_row(collection, *(f"{size:,.0f}" for size in each))
    Console().print(table)


def _show_million(name: str, sizes: Mapping[str, Size]) -> None:
    """Print the disk space of a million targets after a year, and once all limits are reached."""
    config = Config.load(mongo_uri=None)
    visits_a_year = VISITS_A_DAY * 365
    changes = CHANGED_SHARE * visits_a_year
    # In the worst case, each aggregate has a single visit.
    aggregates = VISITS_A_DAY * max(0.0, config.keep_aggregates_days - config.keep_visits_days)
    versions = TARGETS + changes
    numbers = {
        "targets": (TARGETS, TARGETS),
        "posts": (TARGETS, TARGETS),
        "signatures": (TARGETS, TARGETS),
        "listings": (TARGETS, TARGETS),
        "versions": (versions, TARGETS * config.keep_versions),
        "visits": (visits_a_year, VISITS_A_DAY * config.keep_visits_days),
        "days": (0, aggregates),
    }
    table = Table(
        f"{name}: {TARGETS:,} targets, {VISITS_A_DAY:,} visits a day, {CHANGED_SHARE:.0%} changes",
        "documents after a year", "GB", "at most", "GB",
    )  # fmt: skip
    totals = [0.0, 0.0]
    for collection, documents in numbers.items():
        size = sizes[collection].on_disk
        gigabytes = [n * size / GIGABYTE for n in documents]
        totals = [total + more for total, more in zip(totals, gigabytes, strict=True)]
        table.add_row(
            collection, f"{documents[0]:,.0f}", f"{gigabytes[0]:.1f}", f"{documents[1]:,.0f}",
            f"{gigabytes[1]:.1f}",
        )  # fmt: skip
    table.add_row("total", "", f"{totals[0]:.1f}", "", f"{totals[1]:.1f}")
    Console().print(table)
