"""The duration of commands with almost nothing to do: `make bench ARGS=--startup`.

Measured in alternating order with a bare Scrapy project, on a running embedded server with ten
sites: the list of commands, `scrapy targets`, a crawl with nothing due, and a replan of 1,000 pages
with four weeks of history, with and without compiled kernels.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT
from tests.bench.planned import NOW, insert
from tests.site.running import RunningSite

PAGES, VISITS = 1000, 28
THOUSAND = "thousand"
SITES = 10
BARE, LIST = "bare project: --help", "bare project: list"
HELP, TARGETS = "--help", "targets"
CRAWL = "crawl, nothing due"
REPLAN, COLD = "replan, 1,000 pages", "same, kernels not compiled"
# Limits in seconds; the limit for the list of commands is added to the bare project's time.
BARS = {HELP: 0.25, TARGETS: 0.8, REPLAN: 6.0}
# Limit of a crawl with nothing due, in times of the bare project's list.
MAX_RATIO = 2.4
WRAPPER = """
name = "{name}"
start_urls = ["{url}/big/20/list/1/"]
list_pages = '/big/\\d+/list/\\d+/'
item_pages = '/big/\\d+/item/\\d+\\.html'
"""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a run: elapsed time and processor time."""

    wall: float
    cpu: float


def run(rounds: int) -> int:
    """Measure all commands in turn and print medians; return 1 if a median exceeds its limit."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningSite() as site:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            cases = _prepared(folder, server.start(), site.url)
            times: dict[str, list[Took]] = {label: [] for label in cases}
            for _ in range(rounds):
                for label, case in cases.items():
                    times[label].append(case())
            os.environ["NUMBA_CACHE_DIR"] = str(folder / "kernels")
            times[COLD] = [cases[REPLAN]()]
        finally:
            server.stop()
    return _show(times)


def _prepared(folder: Path, uri: str, url: str) -> dict[str, Callable[[], Took]]:
    """Return the commands by name, after running each once."""
    os.environ |= {
        "FRESHET_DATA_DIR": str(folder / "data"), "FRESHET_THROTTLE_START_SECONDS": "0",
    }  # fmt: skip
    _took(folder, "startproject", "bare")
    for number in range(SITES):
        name = f"site{number}"
        wrapper = folder / f"{name}.toml"
        wrapper.write_text(WRAPPER.format(name=name, url=url), encoding="utf-8")
        _took(ROOT, "crawl", "site", "-a", f"wrapper={wrapper}")
    _took(ROOT, "targets", "-s", f"FRESHET_DATABASE={THOUSAND}")
    insert(f"{uri.rpartition('/')[0]}/{THOUSAND}", PAGES, VISITS, log=True)
    hours = (NOW - datetime.now(UTC)).total_seconds() / 3600
    own = ("-s", f"FRESHET_DATABASE={THOUSAND}", "-s", f"FRESHET_CLOCK_OFFSET_HOURS={hours}")
    cases: dict[str, Callable[[], Took]] = {
        BARE: lambda: _took(folder / "bare", "--help"),
        LIST: lambda: _took(folder / "bare", "list"),
        HELP: lambda: _took(ROOT, "--help"),
        TARGETS: lambda: _took(ROOT, "targets"),
        CRAWL: lambda: _took(ROOT, "crawl", "site5"),
        REPLAN: lambda: _took(ROOT, "replan", "--dry-run", "--budget", "500/day", *own),
    }
    for case in cases.values():
        case()
    return cases


def _took(folder: Path, *words: str) -> Took:
    """Run a command and return its times."""
    command = [sys.executable, "-m", "scrapy", *words]
    began, before = time.perf_counter(), os.times()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system
    return Took(wall, cpu - before.children_user - before.children_system)


def _show(times: dict[str, list[Took]]) -> int:
    medians = {label: statistics.median(one.wall for one in rows) for label, rows in times.items()}
    bars = BARS | {HELP: BARS[HELP] + medians[BARE], CRAWL: MAX_RATIO * medians[LIST]}
    table = Table("", "median s", "min s", "CPU s", "limit s")
    missed = False
    for label, rows in times.items():
        least = min(one.wall for one in rows)
        cpu = statistics.median(one.cpu for one in rows)
        missed |= medians[label] > bars.get(label, float("inf"))
        shown = f"{bars[label]:.2f}" if label in bars else ""
        table.add_row(label, f"{medians[label]:.2f}", f"{least:.2f}", f"{cpu:.2f}", shown)
    Console().print(table)
    return int(missed)
