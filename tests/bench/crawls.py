"""Crawls in subprocesses, with the statistics of Scrapy and the kernel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench import steady

ROOT = Path(__file__).resolve().parents[2]
# Same settings for both sides, without delays.
FAST = {
    "AUTOTHROTTLE_ENABLED": "0",
    "ROBOTSTXT_OBEY": "0",
    "CONCURRENT_REQUESTS": "32",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "32",
    "DOWNLOAD_DELAY": "0",
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": "0",
}
WRAPPER = """
name = "{name}"
start_urls = ["{start}"]
list_pages = '/big/\\d+/(list|articles)/\\d+/'
item_pages = '/big/\\d+/(item|article)/\\d+\\.html'
{fields}
"""
FIELDS = """
[fields]
title = "h1"
price = "p.price"
stock = "p.stock"
sku = "span.sku"
description = "div.description"
"""


@dataclass(frozen=True, slots=True)
class Crawl:
    """The results of a crawl.

    readers_mb:    peak memory of the largest child process
    steady_cpu_ms: processor time per page after the first pages; 0 if there are no later pages
    steady_pages:  pages per second after the first pages
    """

    pages: int
    seconds: float
    cpu_seconds: float
    peak_mb: float
    readers_mb: float = 0.0
    steady_cpu_ms: float = 0.0
    steady_pages: float = 0.0

    @property
    def pages_per_second(self) -> float:
        """Return the responses per second from the start to the end of the crawl."""
        return self.pages / self.seconds


def plain(start: str, *settings: str) -> Crawl:
    """Run the plain Scrapy spider from `start`; settings as NAME=VALUE."""
    with tempfile.TemporaryDirectory() as folder:
        spider = ROOT / "tests/bench/plain.py"
        script = ["runspider", str(spider), "-a", f"first={start}"]
        options = [part for setting in settings for part in ("-s", setting)]
        return run([*script, "-O", f"{folder}/items.jsonl", *options], {}, cwd=folder)


def freshet(
    start: str,
    name: str,
    folder: Path,
    *,
    fields: bool = True,
    archive: bool = False,
    full: bool = False,
    **env: str,
) -> Crawl:
    """Run Freshet from `start`, with its own embedded server in `folder`.

    full: visit all targets, due or not
    env:  variables such as FRESHET_DUPLICATES
    """
    path = folder / f"{name}.toml"
    tables = ("archive = true\n" if archive else "") + (FIELDS if fields else "")
    path.write_text(WRAPPER.format(name=name, start=start, fields=tables))
    arguments = ["crawl", "site", "-a", f"wrapper={path}", *(["-a", "full=1"] if full else [])]
    return run(arguments, {"FRESHET_DATA_DIR": str(folder / "data")} | env, cwd=str(ROOT))


def run(
    arguments: list[str], env: dict[str, str], cwd: str, fast: Mapping[str, str] = FAST
) -> Crawl:
    """Run `scrapy` with these arguments and settings; raise RuntimeError if it fails."""
    with (
        tempfile.NamedTemporaryFile(suffix=".json") as usage,
        tempfile.NamedTemporaryFile(suffix=".json") as figures,
    ):
        added = {"EXTENSIONS": '{"tests.bench.steady.Steady": 1}'}
        settings = [part for item in (fast | added).items() for part in ("-s", "=".join(item))]
        command = [sys.executable, "-m", "tests.bench.measured", usage.name, *arguments, *settings]
        own = {"PYTHONPATH": str(ROOT), steady.FILE: figures.name}
        done = subprocess.run(
            command, cwd=cwd, env=os.environ | own | env,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        used = json.loads(Path(usage.name).read_text())
        then = json.loads(Path(figures.name).read_text() or "{}")
    return Crawl(
        pages=int(_stat("response_received_count", done.stderr)),
        seconds=_stat("elapsed_time_seconds", done.stderr),
        cpu_seconds=used["cpu_seconds"],
        peak_mb=used["peak_mb"],
        readers_mb=used["readers_mb"],
        steady_cpu_ms=then.get("cpu_ms", 0.0),
        steady_pages=then.get("pages_per_second", 0.0),
    )


def _stat(name: str, log: str) -> float:
    match = re.search(rf"'{name}': ([\d.]+)", log)
    if match is None:
        raise RuntimeError(f"no {name} in the log:\n{log[-3000:]}")
    return float(match[1])
