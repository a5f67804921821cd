"""The cost of an archive in a crawl, and the speed of a reread: `make bench ARGS=--archive`.

The same pages are crawled with and without an archive, on the same server and site; the order
alternates by round.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from crawler.archive.files import files_of
from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT, Crawl, freshet
from tests.site.running import RunningSite

ITEMS = 2000
# Minimum pages a second relative to a crawl without an archive.
BAR = 0.85
REREAD_VERSIONS, REREAD_SECONDS = 10_000, 60


def run(rounds: int) -> int:
    """Measure crawls and rereads, and print the results; return 1 if a requirement is not met."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningSite() as site:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            server.start()
            ratio = _crawls(site.url, folder, rounds)
            seconds = _reread(f"with{rounds - 1}", folder)
        finally:
            server.stop()
    return 0 if ratio >= BAR and seconds <= REREAD_SECONDS else 1


def _crawls(site: str, folder: Path, rounds: int) -> float:
    start = f"{site}/big/{ITEMS}/list/1/"
    crawls: dict[bool, list[Crawl]] = {True: [], False: []}
    for number in range(rounds):
        for is_on in (True, False) if number % 2 else (False, True):
            name = f"{'with' if is_on else 'without'}{number}"
            crawls[is_on].append(
                freshet(start, name, folder, archive=is_on, FRESHET_DUPLICATES="off")
            )
    pairs = list(zip(crawls[True], crawls[False], strict=True))
    speed = statistics.median(a.pages_per_second / b.pages_per_second for a, b in pairs)
    cpu = statistics.median(a.steady_cpu_ms / b.steady_cpu_ms for a, b in pairs)
    files = files_of(folder / "data/archive" / f"with{rounds - 1}")
    size = sum(file.size for file in files) / crawls[True][-1].pages
    for name, runs in (("with", crawls[True]), ("without", crawls[False])):
        pages = statistics.median(crawl.pages_per_second for crawl in runs)
        cpu_ms = statistics.median(crawl.steady_cpu_ms for crawl in runs)
        print(f"{name} an archive: {pages:.0f} pages/s, {cpu_ms:.2f} ms of CPU time a page")
    print(f"pages/s with / without an archive: {speed:.2f} (required: {BAR})")
    print(f"CPU time a page with / without an archive: {cpu:.2f}")
    print(f"archive: {size:,.0f} bytes a page of 5 kB")
    return speed


def _reread(name: str, folder: Path) -> float:
    """Return the seconds that a reread of 10,000 versions takes, after a field was added."""
    path = folder / f"{name}.toml"
    path.write_text(path.read_text() + 'heading = "title"\n')
    command = [sys.executable, "-m", "scrapy", "reread", name]
    env = os.environ | {"FRESHET_DATA_DIR": str(folder / "data")}
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - began
    print(done.stdout.strip())
    match = re.search(r"([\d,]+) responses? of", done.stdout)
    assert match is not None, done.stdout
    per_version = seconds / int(match[1].replace(",", ""))
    scaled = per_version * REREAD_VERSIONS
    print(f"reread: {scaled:.0f} s for {REREAD_VERSIONS:,} versions (required: {REREAD_SECONDS})")
    return scaled
