"""The web app with a million targets and ten million visits: `make bench ARGS=--web`.

Fills an embedded server, starts `scrapy web`, and requests every view in random order. Exits with 1
if a view takes longer than MAX_MS or if the app needs more memory than MAX_MB. The processor time
of the app and of MongoDB for each request hardly depends on other load of the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psutil
import pymongo
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.client import Document
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT
from tests.bench.webdata import Sizes, fill
from tests.bench.webviews import Views

REQUESTS = 10_000
QUICK = 10
# Limits for 95 % of the requests of each view, and for the app process. Planning jobs, whose memory
# grows with the number of targets, run in separate processes.
MAX_MS, MAX_MB = 300.0, 250.0
# Maximum memory growth in the second half.
GROWTH_SHARE = 0.05
SAMPLE_SECONDS = 0.5
READY_SECONDS = 300
TIMEOUT_SECONDS = 120
SEED = 3
# Response while an explanation is being computed.
NOT_READY = ("targets.api_explanation", 503)
MEGABYTE = 1024**2


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument_group("web app").add_argument
    option("--web", action="store_true", help="the web app with ten million visits")
    option("--quick", action="store_true", help="with --web or --export: a tenth of the database")
    option(
        "--requests", type=int, default=REQUESTS,
        help=f"with --web: number of requests (default: {REQUESTS})",
    )  # fmt: skip
    option(
        "--data",
        type=Path,
        help="with --web, --export or --search: folder of a database to keep and use again",
    )


@dataclass(slots=True)
class Memory:
    """Samples the memory of a process in MB in a thread. peak: including its children."""

    pid: int
    own: list[float] = field(default_factory=list)
    peak: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        assert self._thread is not None
        self._thread.join()

    def _work(self) -> None:
        process = psutil.Process(self.pid)
        while not self._done.wait(SAMPLE_SECONDS):
            with suppress(psutil.Error):
                own = process.memory_info().rss / MEGABYTE
                children = 0.0
                for child in process.children(recursive=True):
                    with suppress(psutil.Error):
                        children += child.memory_full_info().uss / MEGABYTE
                self.own.append(own)
                self.peak = max(self.peak, own + children)


class Browser:
    """Requests pages over one connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)

    def get(self, path: str) -> tuple[int, float]:
        """Return the status and the milliseconds until the end of the response."""
        began = time.perf_counter()
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        response.read()
        return response.status, 1000 * (time.perf_counter() - began)


def run(options: argparse.Namespace) -> int:
    """Fill a database, measure, and print the tables; return 1 if a requirement is not met."""
    sizes = Sizes().divided_by(QUICK if options.quick else 1)
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        folder: Path = options.data or Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            uri = server.start()
            client: pymongo.MongoClient[Document]
            with pymongo.MongoClient(uri, tz_aware=True) as client:
                db = client.get_default_database()
                if db.meta.find_one({"_id": "schema"}) is None:
                    fill(uri, sizes)
                # Stored data may be some hours old.
                newest = db.visits.find_one({"event": True}, sort=[("at", -1)])
                assert newest is not None
                ahead = (newest["at"] - datetime.now(UTC)).total_seconds() / 3600
                views = Views(db, newest["at"] + timedelta(minutes=1)).by_name()
            with app_of(folder, ahead) as (url, pid), Memory(pid) as memory:
                return _measure(url, views, options.requests, memory, server)
        finally:
            server.stop()


@contextmanager
def app_of(folder: Path, ahead_hours: float) -> Iterator[tuple[str, int]]:
    """Run `scrapy web`; yield its URL and process id."""
    env = os.environ | {
        "FRESHET_DATA_DIR": str(folder / "data"), "FRESHET_CLOCK_OFFSET_HOURS": str(ahead_hours),
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    env.pop("MONGO_URI", None)
    command = [sys.executable, "-m", "scrapy", "web", "--port", "0", "--no-service", "--json"]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.terminate()


def _measure(
    url: str, views: dict[str, list[str]], requests: int, memory: Memory, server: EmbeddedServer
) -> int:
    browser, rng = Browser(url), random.Random(SEED)
    processes = memory.pid, server.pid()
    assert processes[1] is not None
    firsts = {name: browser.get(paths[0]) for name, paths in views.items()}
    waited = _wait_for_results(browser, views)
    times: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, int] = {}
    number = 0
    while number < requests:
        for name in rng.sample(sorted(views), len(views)):
            before = sum(map(cpu_milliseconds, processes))
            status, taken = browser.get(rng.choice(views[name]))
            cpu[name].append(sum(map(cpu_milliseconds, processes)) - before)
            if status >= 400 and (name, status) != NOT_READY:
                failed[name] = status
            times[name].append(taken)
            number += 1
    slow = _show(firsts, times, cpu, failed)
    print(f"{number:,} requests; background results were ready after {waited:.0f} s")
    half, end = len(memory.own) // 2, len(memory.own)
    middle = statistics.median(memory.own[half : half + max(1, half // 5)])
    last = statistics.median(memory.own[end - max(1, half // 5) :])
    print(
        f"memory of the app: {memory.own[0]:.0f} MB at the start, {middle:.0f} MB after half, "
        f"{last:.0f} MB at the end, at most {max(memory.own):.0f} MB; with children at most "
        f"{memory.peak:.0f} MB"
    )
    grows = last > middle * (1 + GROWTH_SHARE)
    return 1 if slow or failed or grows or max(memory.own) > MAX_MB else 0


def _wait_for_results(browser: Browser, views: dict[str, list[str]]) -> float:
    """Wait until the curves and the metrics are computed; return the seconds."""
    began = time.perf_counter()
    for name in ("budget.api", "metrics", "feed_budget.api"):
        while browser.get(views[name][0])[0] == 503:
            if time.perf_counter() - began > READY_SECONDS:
                raise RuntimeError(f"{name}: no result after {READY_SECONDS} s")
            time.sleep(1)
    return time.perf_counter() - began


def cpu_milliseconds(pid: int) -> float:
    """Return the processor time of the running threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1_000_000


def _show(
    firsts: dict[str, tuple[int, float]],
    times: dict[str, list[float]],
    cpu: dict[str, list[float]],
    failed: dict[str, int],
) -> int:
    """Print a table of the views, the slowest first; return the number of slow ones."""
    table = Table("view", "requests", "first ms", "p50 ms", "p95 ms", "CPU p50", "CPU p95", "")
    p95 = {name: quantile(own, 0.95) for name, own in times.items()}
    for name in sorted(times, key=lambda name: -p95[name]):
        own = times[name]
        table.add_row(
            name, str(len(own)), f"{firsts[name][1]:.0f}", f"{statistics.median(own):.1f}",
            f"{p95[name]:.1f}", f"{statistics.median(cpu[name]):.1f}",
            f"{quantile(cpu[name], 0.95):.1f}",
            f"status {failed[name]}" if name in failed else "slow" if p95[name] > MAX_MS else "",
        )  # fmt: skip
    Console(width=110).print(table)
    return sum(value > MAX_MS for value in p95.values())


def quantile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
