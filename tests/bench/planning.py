"""The cost of `scrapy replan`, from MongoDB to MongoDB: `make bench ARGS=--planning`.

Fills an embedded server with targets of 20 visits each. The first replan plans and writes all
targets; a second one with a slightly smaller budget updates a few. With `--engine processes`, pages
are planned in shards.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pymongo
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import Store
from tests.bench.planned import NOW, insert

ROOT = Path(__file__).resolve().parents[2]
SIZES = (10_000, 100_000, 1_000_000)
# Requests per day and target, and the factor for the last replan.
BUDGET, LESS = 0.4, 0.985
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Replan:
    """Measurements of a replan, from the operating system and from the command's report.

    cpu_seconds, server_seconds: processor time of the command with its processes, and of mongod
    peak_mb:                     peak memory of the largest process
    """

    seconds: float
    planning_seconds: float
    cpu_seconds: float
    server_seconds: float
    peak_mb: float
    updated: int


def run(sizes: tuple[int, ...] = SIZES, engine: str = "local") -> int:
    """Measure each size and print a table."""
    table = Table(
        "targets", "replan", "seconds", "planning s", "CPU s", "mongod CPU s", "peak MB", "updated"
    )
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
            folder = Path(name)
            server = EmbeddedServer.of(Config.load(data_dir=folder, mongo_uri=None))
            try:
                for word, one in _measured(server, folder, size, engine).items():
                    table.add_row(
                        f"{size:,}", word, f"{one.seconds:.1f}", f"{one.planning_seconds:.1f}",
                        f"{one.cpu_seconds:.1f}", f"{one.server_seconds:.1f}",
                        f"{one.peak_mb:.0f}", f"{one.updated:,} ({one.updated / size:.1%})",
                    )  # fmt: skip
            finally:
                server.stop()
    Console().print(table)
    return 0


def _measured(server: EmbeddedServer, folder: Path, size: int, engine: str) -> dict[str, Replan]:
    uri = server.start()
    insert(uri, size)
    # Create the indexes as crawls do; otherwise they take a fifth of the first replan.
    asyncio.run(_prepare(folder))
    with pymongo.MongoClient(uri) as client:
        # Remove the plans, so that the first replan updates all targets.
        client.get_default_database().targets.update_many({}, {"$unset": {"plan": ""}})
        # Store all of it on disk, or the first replan would pay for writing it.
        client.admin.command("fsync")
    return {
        "first": _replan(server, folder, BUDGET * size, engine),
        "again": _replan(server, folder, BUDGET * size, engine),
        "less": _replan(server, folder, BUDGET * LESS * size, engine),
    }


async def _prepare(folder: Path) -> None:
    store = await Store.open(Config.load(data_dir=folder, mongo_uri=None))
    await store.close()


def _replan(server: EmbeddedServer, folder: Path, budget: float, engine: str) -> Replan:
    ahead = (NOW - datetime.now(UTC)).total_seconds() / 3600
    environment = {name: value for name, value in os.environ.items() if name != "MONGO_URI"}
    environment |= {"FRESHET_DATA_DIR": str(folder), "FRESHET_CLOCK_OFFSET_HOURS": str(ahead)}
    figures, mongod = folder / "figures.json", psutil.Process(server.pid())
    began, before = time.perf_counter(), _cpu_seconds(mongod)
    command = [sys.executable, "-m", "tests.bench.measured", str(figures), "replan"]
    others = _Processes()
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(
            [*command, "--engine", engine, "--budget", str(budget), "--json"],
            cwd=ROOT, env=environment, stdout=out, stderr=err,
        )  # fmt: skip
        while process.poll() is None:
            others.sample(process.pid)
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise RuntimeError((folder / "err").read_text())
    seconds, (report,) = time.perf_counter() - began, json.loads((folder / "out").read_text())
    used, on_server = json.loads(figures.read_text()), _cpu_seconds(mongod) - before
    cpu_seconds = used["cpu_seconds"] + sum(others.cpu_seconds.values())
    peak_mb = max(used["peak_mb"], *others.peak_mb.values(), 0.0)
    return Replan(
        seconds, report["planning_seconds"], cpu_seconds, on_server, peak_mb, report["updated"]
    )


class _Processes:
    """Resource usage of the processes that a command started, as of the last sample."""

    def __init__(self) -> None:
        self.cpu_seconds: dict[int, float] = {}
        self.peak_mb: dict[int, float] = {}

    def sample(self, pid: int) -> None:
        """Read the counters of the descendants of a command."""
        with suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.Error, OSError):
                    self.cpu_seconds[process.pid] = _cpu_seconds(process)
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    if match := re.search(r"VmHWM:\s+(\d+) kB", status):
                        self.peak_mb[process.pid] = int(match[1]) / 1024


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
