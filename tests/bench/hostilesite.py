"""The cost of 40 hostile pages in a crawl of 1,000 regular ones: `make bench ARGS=--hostile-site`.

The same site is crawled with and without the hostile pages, in alternating runs, with the default
settings: a first run and a full run. In between, all hostile pages and a tenth of the regular ones
change. Then crawls with hostile pages are stopped by SIGTERM at random times.
"""

from __future__ import annotations

import json
import os
import random
import signal
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
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT
from tests.site.hostile_mixed import HONEST, HOSTILE
from tests.site.running import RunningHostile

MAX_RATIO, MAX_MB, STOPS = 1.5, 350, 10
WRAPPER = """
name = "{name}"
start_urls = ["{url}/mixed/{hostile}/"]
list_pages = '/mixed/\\d+/list/'
item_pages = '/mixed/\\d+/good/|/item/'
[fields]
title = "h1"
all = "main"
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A crawl: duration in seconds, peak MB of the main process, and exit code."""

    seconds: float
    peak_mb: float
    code: int


class Bench:
    """Crawl the mixed site, with a new spider name each time, and check the stored pages."""

    def __init__(self, folder: Path, url: str, uri: str) -> None:
        self._folder = folder
        self._url = url
        client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(uri)
        self._visits = client.get_default_database().visits
        self._sites = 0

    def twice(self, hostile: int) -> list[Run]:
        """Crawl the site twice; raise RuntimeError if a regular page or change is not stored."""
        name = self._site(hostile)
        runs = [self._crawl(name), self._crawl(name, "-a", "full=1")]
        honest = {"spider": name, "target": {"$regex": "/good/"}}
        rows = {
            outcome: self._visits.count_documents(honest | {"outcome": outcome})
            for outcome in ("new", "changed", "unchanged")
        }
        changed = HONEST // 10
        if rows != {"new": HONEST, "changed": changed, "unchanged": HONEST - changed}:
            raise RuntimeError(f"{name}: visits of honest pages: {rows}")
        others = {"spider": name, "target": {"$regex": "/item/"}}
        visited = len(self._visits.distinct("target", others))
        if visited != hostile:
            raise RuntimeError(f"{name}: {visited} of {hostile} hostile pages were visited")
        return runs

    def stopped(self, after: float) -> Run:
        """Crawl with the hostile pages and send SIGTERM after some seconds."""
        run = self._crawl(self._site(len(HOSTILE)), stop_after=after)
        return Run(run.seconds - after, run.peak_mb, run.code)

    def _site(self, hostile: int) -> str:
        self._sites += 1
        name = f"site{self._sites}"
        text = WRAPPER.format(name=name, url=self._url, hostile=hostile)
        (self._folder / f"{name}.toml").write_text(text, encoding="utf-8")
        return name

    def _crawl(self, name: str, *arguments: str, stop_after: float | None = None) -> Run:
        usage = self._folder / "usage.json"
        wrapper = f"wrapper={self._folder / name}.toml"
        words = ["crawl", "site", "-a", wrapper, *arguments]
        command = [sys.executable, "-m", "tests.bench.measured", str(usage), *words]
        env = os.environ | {"FRESHET_DATA_DIR": str(self._folder / "data")}
        log = self._folder / f"{name}.log"
        with log.open("a", encoding="utf-8") as errors:
            began = time.monotonic()
            process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=errors)
            if stop_after is not None:
                time.sleep(stop_after)
                process.send_signal(signal.SIGTERM)
            code = process.wait()
            seconds = time.monotonic() - began
        if stop_after is None and code:
            raise RuntimeError(log.read_text(encoding="utf-8")[-3000:])
        return Run(seconds, json.loads(usage.read_text())["peak_mb"], code)


def run(rounds: int) -> int:
    """Measure and print the results; return 1 if a requirement is not met."""
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningHostile() as site:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        server.start()
        try:
            bench = Bench(folder, site.url, server.uri)
            ratio, peak_mb, seconds = _compared(bench, rounds, console)
            slowest = _stopped(bench, seconds, console)
        finally:
            server.stop()
    grace = Config.model_fields["grace_seconds"].default
    missed = [
        text
        for text, is_missed in {
            f"{ratio:.2f} times the time (limit {MAX_RATIO})": ratio > MAX_RATIO,
            f"{peak_mb:.0f} MB (limit {MAX_MB})": peak_mb > MAX_MB,
            f"{slowest:.1f} s from SIGTERM to the end (limit {grace:.0f})": slowest > grace,
        }.items()
        if is_missed
    ]
    console.print(f"missed: {', '.join(missed)}" if missed else "all requirements met")
    return 1 if missed else 0


def _compared(bench: Bench, rounds: int, console: Console) -> tuple[float, float, float]:
    """Return the ratio of medians, peak MB, and median seconds of a first run with all pages."""
    table = Table("hostile pages", "first run, s", "full run, s", "peak MB")
    runs: dict[int, list[list[Run]]] = {0: [], len(HOSTILE): []}
    for _ in range(rounds):
        for hostile, done in runs.items():
            done.append(bench.twice(hostile))
    medians = {}
    for hostile, done in runs.items():
        first, full = (statistics.median(pair[n].seconds for pair in done) for n in (0, 1))
        peak = max(run.peak_mb for pair in done for run in pair)
        medians[hostile] = first, first + full, peak
        table.add_row(str(hostile), f"{first:.1f}", f"{full:.1f}", f"{peak:.0f}")
    console.print(table)
    first, both, peak = medians[len(HOSTILE)]
    return both / medians[0][1], peak, first


def _stopped(bench: Bench, seconds: float, console: Console) -> float:
    """Return the longest shutdown time in seconds after a SIGTERM at a random time."""
    moments = random.Random(7)
    table = Table("SIGTERM after, s", "ended after, s", "exit code", "peak MB")
    slowest = 0.0
    for _ in range(STOPS):
        after = moments.uniform(1, seconds)
        done = bench.stopped(after)
        slowest = max(slowest, done.seconds)
        table.add_row(f"{after:.1f}", f"{done.seconds:.1f}", str(done.code), f"{done.peak_mb:.0f}")
    console.print(table)
    return slowest
