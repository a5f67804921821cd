"""Exports of ten million visits: `make bench ARGS=--export`.

Fills an embedded server as `--web` does, exports all visits to Parquet, kills further exports, and
runs the queries of the export guide. Exits with 1 if an export needs more than MAX_MB of memory, if
files differ after three kills, or if a query takes longer than MAX_SECONDS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.client import Document
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT
from tests.bench.web import QUICK
from tests.bench.webdata import Sizes, fill
from tests.integration.exchange.guide_queries import VIEWS, queries

MAX_MB, MAX_SECONDS = 400.0, 2.0
ROUNDS = 3
# Exports are killed after writing these shares of the files.
KILLED_AT = (0.2, 0.5, 0.8)
OTHERS = ("versions", "posts", "targets", "feeds")
MEGABYTE = 1024**2


def add(parser: argparse.ArgumentParser) -> None:
    """Add the option; `--quick` and `--data` are shared with the benchmark of the web app."""
    parser.add_argument(
        "--export", action="store_true", help="exports of ten million visits, and queries of them"
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The report and the resource usage of an export."""

    report: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_mb: float


def run(options: argparse.Namespace) -> int:
    """Fill a database, measure, and print the tables; return 1 if a requirement is not met."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        data = (options.data or Path(name)) / "data"
        server = EmbeddedServer.of(Config.load(data_dir=data, mongo_uri=None))
        was_running = server.answers()
        try:
            uri = server.start()
            client: pymongo.MongoClient[Document]
            with pymongo.MongoClient(uri) as client:
                is_empty = client.get_default_database().meta.find_one({"_id": "schema"}) is None
            if is_empty:
                fill(uri, Sizes().divided_by(QUICK if options.quick else 1))
            return _measure(data, Path(name))
        finally:
            if not was_running:
                server.stop()


def _measure(data: Path, folder: Path) -> int:
    whole, killed = folder / "whole", folder / "killed"
    first = _export(data, folder, "visits", whole)
    files = first.report["files"]
    again = _export(data, folder, "visits", whole)
    for share in KILLED_AT:
        _kill_at(data, killed, share * files)
    last = _export(data, folder, "visits", killed)
    is_same = _digests(whole) == _digests(killed)
    shutil.rmtree(killed)
    others = {name: _export(data, folder, name, whole) for name in OTHERS}
    rows = {
        "visits": first, "visits, nothing new": again, "visits, after three kills": last, **others,
    }  # fmt: skip
    table = Table("export", "rows", "files", "MB", "s", "CPU s", "peak MB")
    for name, row in rows.items():
        report = row.report
        table.add_row(
            name, f"{report['rows']:,}", f"{report['files']:,}",
            f"{report['bytes'] / MEGABYTE:.0f}", f"{row.seconds:.0f}", f"{row.cpu_seconds:.0f}",
            f"{row.peak_mb:.0f}",
        )  # fmt: skip
    Console().print(table)
    print(f"after three kills, the files are {'the same' if is_same else 'different'}")
    slow = _ask(whole)
    peak_mb = max(row.peak_mb for row in rows.values())
    return 1 if slow or not is_same or peak_mb > MAX_MB else 0


def _environment(data: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "MONGO_URI"}
    return env | {"FRESHET_DATA_DIR": str(data), "PYTHONPATH": str(ROOT)}


def _export(data: Path, folder: Path, name: str, to: Path) -> Measured:
    figures, began = folder / "figures.json", time.monotonic()
    command = [sys.executable, "-m", "tests.bench.measured", figures, "export", name, to, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(data), check=True, stdout=subprocess.PIPE, text=True
    )
    seconds = time.monotonic() - began
    used = json.loads(figures.read_text(encoding="utf-8"))
    (report,) = json.loads(done.stdout)["tables"]
    return Measured(report, seconds, used["cpu_seconds"], used["peak_mb"])


def _kill_at(data: Path, to: Path, files: float) -> None:
    command = [sys.executable, "-m", "scrapy", "export", "visits", to]
    with subprocess.Popen(command, cwd=ROOT, env=_environment(data)) as process:
        while len(list(to.rglob("*.parquet"))) < files:
            if process.poll() is not None:
                raise RuntimeError("the export ended before it was killed")
            time.sleep(0.2)
        process.kill()


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _ask(folder: Path) -> list[str]:
    """Print the median times of the queries, and return the names of slow queries."""
    # Slow to import, and a development dependency.
    import duckdb

    blocks = queries(folder)
    slow = []
    table = Table("question", "rows", "s", "CPU s")
    with duckdb.connect() as connection:
        connection.execute(blocks.pop(VIEWS))
        for question, query in blocks.items():
            times, cpu_times = [], []
            for _ in range(ROUNDS):
                began, cpu_began = time.monotonic(), time.process_time()
                rows = len(connection.execute(query).fetchall())
                times.append(time.monotonic() - began)
                cpu_times.append(time.process_time() - cpu_began)
            seconds, cpu_seconds = statistics.median(times), statistics.median(cpu_times)
            table.add_row(question, f"{rows:,}", f"{seconds:.2f}", f"{cpu_seconds:.2f}")
            if seconds > MAX_SECONDS:
                slow.append(question)
    Console().print(table)
    return slow
