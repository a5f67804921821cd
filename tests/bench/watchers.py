"""A visit of 500 due pages, beside a small watcher of pages: `make bench ARGS=--watchers`.

Freshet and urlwatch visit the same pages of 5 kB from the local site in alternating order, each as
a whole process. Before each pair, 5 % of the pages change. Freshet reads three fields; urlwatch
filters with two selectors and html2text. Freshet's processor time includes that of MongoDB. The
tool is in an environment of its own: `make venv-watchers` installs it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT
from tests.site.running import RunningSite

TOOL = ROOT / ".venv/watchers/bin/urlwatch"
ITEMS, LISTS, CHANGED = 500, 5, 20
# As fast as the site answers, as urlwatch does.
FAST = (
    *("-s", "AUTOTHROTTLE_ENABLED=0", "-s", "DOWNLOAD_DELAY=0"),
    *("-s", "CONCURRENT_REQUESTS=10", "-s", "CONCURRENT_REQUESTS_PER_DOMAIN=10"),
)
# Maximum wall time of Freshet in times of that of urlwatch.
BAR = 1.2
WRAPPER = """
name = "shop"
start_urls = ["{url}/big/{items}/list/1/"]
list_pages = '/big/\\d+/list/\\d+/'
item_pages = '/big/\\d+/item/\\d+\\.html'

[fields]
title = "h1"
price = "p.price"
stock = "p.stock"
"""
JOB = """---
url: {url}
filter:
  - css: "{selectors}"
  - html2text
"""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a run: elapsed time, and processor time with that of MongoDB."""

    wall: float
    cpu: float


def run(rounds: int) -> int:
    """Measure both and print medians; return 1 if Freshet exceeds its limit."""
    if not TOOL.exists():
        print("make bench: urlwatch is not installed. Run: make venv-watchers", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningSite() as site:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            server.start()
            mongod = psutil.Process(server.pid())
            urlwatch, freshet = _urlwatch(folder, site.url), _freshet(folder, site.url)
            # The first runs store all pages.
            urlwatch(0), freshet(0)
            pairs = []
            for number in range(1, rounds + 1):
                for item in range(number, ITEMS + 1, CHANGED):
                    site.edit(f"/big/{ITEMS}/item/{item}.html")
                theirs = _took(lambda n=number: urlwatch(n), mongod)
                pairs.append((theirs, _took(lambda n=number: freshet(n), mongod)))
        finally:
            server.stop()
    return _show(pairs)


def _urlwatch(folder: Path, url: str) -> Callable[[int], None]:
    """Return a function that runs urlwatch on all pages."""
    lists = [f"{url}/big/{ITEMS}/list/{n}/" for n in range(1, LISTS + 1)]
    items = [f"{url}/big/{ITEMS}/item/{n}.html" for n in range(1, ITEMS + 1)]
    jobs = [JOB.format(url=each, selectors="h1, li.product") for each in lists]
    jobs += [JOB.format(url=each, selectors="h1, p.price") for each in items]
    (folder / "urls.yaml").write_text("".join(jobs), encoding="utf-8")
    (folder / "urlwatch.yaml").write_text("report: {stdout: {enabled: true}}\n", encoding="utf-8")
    files = {"urls": "urls.yaml", "config": "urlwatch.yaml", "hooks": "hooks.py", "cache": "c.db"}
    command = [str(TOOL), *(f"--{name}={folder / file}" for name, file in files.items())]

    def visit(number: int) -> None:
        shown = _run(command, folder, {"HOME": str(folder)})
        if number and shown.count("CHANGED: ") < ITEMS // CHANGED:
            raise RuntimeError(f"urlwatch missed changes: {shown[-3000:]}")

    return visit


def _freshet(folder: Path, url: str) -> Callable[[int], None]:
    """Return a function that crawls all pages, which are due: a day has passed."""
    wrapper = folder / "shop.toml"
    wrapper.write_text(WRAPPER.format(url=url, items=ITEMS), encoding="utf-8")
    command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"wrapper={wrapper}"]

    def visit(number: int) -> None:
        environment = {
            "FRESHET_DATA_DIR": str(folder / "data"),
            "FRESHET_CLOCK_OFFSET_HOURS": str(25 * number),
        }
        log = _run([*command, *FAST], ROOT, environment)
        counts = (f"'freshet/visits': {ITEMS + LISTS},", f"'freshet/changed': {ITEMS // CHANGED},")
        if number and not all(count in log for count in counts):
            raise RuntimeError(f"Freshet missed pages or changes: {log[-3000:]}")

    return visit


def _run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return done.stdout + done.stderr


def _took(visit: Callable[[], None], mongod: psutil.Process) -> Took:
    began, before = time.perf_counter(), _cpu_seconds(mongod)
    visit()
    return Took(time.perf_counter() - began, _cpu_seconds(mongod) - before)


def _cpu_seconds(mongod: psutil.Process) -> float:
    """Return the processor time of all ended children of this process, and of MongoDB."""
    ours, server = os.times(), mongod.cpu_times()
    return ours.children_user + ours.children_system + float(server.user + server.system)


def _show(pairs: Sequence[tuple[Took, Took]]) -> int:
    table = Table("", "median s", "min s", "CPU s")
    for name, rows in zip(("urlwatch", "Freshet"), zip(*pairs, strict=True), strict=True):
        walls, cpu = [row.wall for row in rows], statistics.median(row.cpu for row in rows)
        table.add_row(name, f"{statistics.median(walls):.2f}", f"{min(walls):.2f}", f"{cpu:.2f}")
    Console().print(table)
    ratios = [ours.wall / theirs.wall for theirs, ours in pairs]
    print(
        f"Freshet / urlwatch: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}; required: at most {BAR})"
    )
    return int(statistics.median(ratios) > BAR)
