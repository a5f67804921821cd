"""The cost of `scrapy replan`, from MongoDB to MongoDB: `make bench ARGS=--planning`.

Fills an embedded server with targets of 20 visits each. The first replan plans and writes all
targets; a second one with a slightly smaller budget updates a few.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pymongo
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench.planned import NOW, insert

ROOT = Path(__file__).resolve().parents[2]
SIZES = (10_000, 100_000, 1_000_000)
# Requests per day and target, and the factor for the last replan.
BUDGET, LESS = 0.4, 0.985


@dataclass(frozen=True, slots=True)
class Replan:
    """A run of the command, as measured by the process and as reported by the command.

    cpu_seconds, server_seconds: processor time of the command and of mongod
    """

    seconds: float
    planning_seconds: float
    cpu_seconds: float
    server_seconds: float
    peak_mb: float
    updated: int


def run(sizes: tuple[int, ...] = SIZES) -> int:
    """Measure each size and print a table."""
    table = Table(
        "targets", "replan", "seconds", "planning s", "CPU s", "mongod CPU s", "peak MB", "updated"
    )
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
            folder = Path(name)
            server = EmbeddedServer.of(Config.load(data_dir=folder, mongo_uri=None))
            try:
                for word, one in _measured(server, folder, size).items():
                    table.add_row(
                        f"{size:,}", word, f"{one.seconds:.1f}", f"{one.planning_seconds:.1f}",
                        f"{one.cpu_seconds:.1f}", f"{one.server_seconds:.1f}",
                        f"{one.peak_mb:.0f}", f"{one.updated:,} ({one.updated / size:.1%})",
                    )  # fmt: skip
            finally:
                server.stop()
    Console().print(table)
    return 0


def _measured(server: EmbeddedServer, folder: Path, size: int) -> dict[str, Replan]:
    uri = server.start()
    insert(uri, size)
    with pymongo.MongoClient(uri) as client:
        # As after a crawl without a plan: the first replan updates all targets.
        client.get_default_database().targets.update_many({}, {"$unset": {"plan": ""}})
    return {
        "first": _replan(server, folder, BUDGET * size),
        "again": _replan(server, folder, BUDGET * size),
        "less": _replan(server, folder, BUDGET * LESS * size),
    }


def _replan(server: EmbeddedServer, folder: Path, budget: float) -> Replan:
    ahead = (NOW - datetime.now(UTC)).total_seconds() / 3600
    environment = {name: value for name, value in os.environ.items() if name != "MONGO_URI"}
    environment |= {"FRESHET_DATA_DIR": str(folder), "FRESHET_CLOCK_OFFSET_HOURS": str(ahead)}
    figures, mongod = folder / "figures.json", psutil.Process(server.pid())
    began, before = time.perf_counter(), _cpu_seconds(mongod)
    command = [sys.executable, "-m", "tests.bench.measured", str(figures), "replan"]
    done = subprocess.run(
        [*command, "--budget", str(budget), "--json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    seconds, (report,) = time.perf_counter() - began, json.loads(done.stdout)
    used, on_server = json.loads(figures.read_text()), _cpu_seconds(mongod) - before
    return Replan(
        seconds, report["planning_seconds"], used["cpu_seconds"], on_server, used["peak_mb"],
        report["updated"],
    )  # fmt: skip


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(run(tuple(map(int, sys.argv[1:])) or SIZES))
