"""The processor time, memory and disk space per page: `make bench ARGS=--sizing`.

Pages of 5 kB are crawled twice into an empty database of an embedded server: first all new, then
all unchanged (304). The benchmark reports processor time, because it hardly depends on other load
of the machine.
"""

from __future__ import annotations

import os
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
from tests.bench.crawls import Crawl, freshet
from tests.site.running import RunningSite

# By name: the start path, and whether fields are read.
CASES = {
    "items, five fields": ("/big/20000/list/1/", True),
    "articles, main text": ("/big/5000/articles/1/?own=5", False),
}
LATER_HOURS = "200"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A crawl, and the processor time of the server during it."""

    crawl: Crawl
    server_seconds: float


def run() -> int:
    """Crawl and print the tables."""
    with RunningSite() as site:
        for name, (path, fields) in CASES.items():
            with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
                _case(name, site.url + path, Path(folder), fields=fields)
    return 0


def _case(name: str, start: str, folder: Path, *, fields: bool) -> None:
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
                    server, start, folder, env | {"FRESHET_CLOCK_OFFSET_HOURS": LATER_HOURS},
                    fields=fields,
                ),
            }  # fmt: skip
            _show_runs(name, runs)
            client.admin.command("fsync")
            _show_sizes(name, client["freshet"])
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


def _show_sizes(name: str, db: pymongo.database.Database[Document]) -> None:
    table = Table(name, "documents", "bytes each", "on disk", "indexes")
    for collection in sorted(db.list_collection_names()):
        stats = db.command("collStats", collection)
        if n := stats["count"]:
            sizes = (stats[key] / n for key in ("size", "storageSize", "totalIndexSize"))
            table.add_row(collection, f"{n:,}", *(f"{size:,.0f}" for size in sizes))
    Console().print(table)
