"""The cost of the budget page: `make bench ARGS=--budget`.

Fills an embedded server with targets of 20 visits each. A subprocess computes the budget curve, as
in the web app. Then this process evaluates the curve for slider positions, and the app answers page
requests for them in this process. Exits with 1 if 5 % of these pages need more than MAX_PAGE_MS of
processor time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.planning.budget_curve import BudgetCurve, forecast
from crawler.reports.jobs import CURVE, JobRequest
from crawler.storage.embedded import EmbeddedServer
from crawler.web.options import WebOptions
from tests.bench.planned import NOW, insert
from tests.integration.web.browser import browsers_of

ROOT = Path(__file__).resolve().parents[2]
SIZES = (10_000, 100_000, 1_000_000)
MOVES = 1000
READY_SECONDS = 600
# Number of page requests, and the limit for each.
PAGES, MAX_PAGE_MS = 100, 200.0
PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}


def run(sizes: tuple[int, ...] = SIZES) -> int:
    """Measure each size and print a table."""
    table = Table(
        "targets", "sampled", "curve seconds", "peak MB", "move p50 ms", "move p95 ms",
        "page p95 CPU ms",
    )  # fmt: skip
    slowest = 0.0
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
            server = EmbeddedServer.of(Config.load(data_dir=Path(name), mongo_uri=None))
            try:
                uri = server.start()
                insert(uri, size)
                page_ms = _page_milliseconds(uri)
                slowest = max(slowest, page_ms)
                table.add_row(f"{size:,}", *_measured(uri), f"{page_ms:.0f}")
            finally:
                server.stop()
    Console().print(table)
    return int(slowest > MAX_PAGE_MS)


def _page_milliseconds(uri: str) -> float:
    """Return the p95 of a page's processor time for a slider position."""
    ahead = (NOW - datetime.now(UTC)).total_seconds() / 3600
    with browsers_of(uri, WebOptions(), clock_offset_hours=ahead) as make:
        browser = make(address="127.0.0.1")
        until = time.monotonic() + READY_SECONDS
        while (answer := browser.get("/api/v1/budget")).status_code == 503:
            if time.monotonic() > until:
                raise RuntimeError(f"the curve is not ready: {answer.text}")
            browser._loop.run_until_complete(asyncio.sleep(0.5))
        least, *_, most = answer.json()["requests_per_day"]
        times = []
        for move in range(PAGES):
            budget = least * (most / least) ** (move / PAGES)
            began = time.process_time()
            page = browser.get(f"/budget?budget={budget}", headers=PARTIAL)
            times.append(1000 * (time.process_time() - began))
            if page.status_code != 200:
                raise RuntimeError(f"/budget?budget={budget}: status {page.status_code}")
    return quantiles(times, n=20)[18]


def _measured(uri: str) -> tuple[str, ...]:
    """Return the cells of a row."""
    ahead = (NOW - datetime.now(UTC)).total_seconds() / 3600
    config = Config.load(mongo_uri=uri, clock_offset_hours=ahead)
    order = JobRequest(kind=CURVE, config=config.model_dump(mode="json"))
    began = time.perf_counter()
    command = [sys.executable, "-m", "tests.bench.budget_job"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order.model_dump_json() + "\n")
        process.stdin.flush()
        messages = []
        for line in process.stdout:
            messages.append(json.loads(line))
            if "progress" not in messages[-1]:
                # At the end of its input, the subprocess prints its peak memory and exits.
                process.stdin.close()
    seconds = time.perf_counter() - began
    (result,) = (message["result"] for message in messages if "result" in message)
    curve = TypeAdapter(BudgetCurve).validate_python(result)
    least, most = curve["requests_per_day"][0], curve["requests_per_day"][-1]
    times = []
    for move in range(MOVES):
        start = time.perf_counter()
        forecast(curve, least * (most / least) ** (move / MOVES))
        times.append(1000 * (time.perf_counter() - start))
    cuts = quantiles(times, n=20)
    peak = messages[-1]["peak_mb"]
    return (
        f"{curve['sampled']:,}", f"{seconds:.1f}", f"{peak:.0f}", f"{cuts[9]:.3f}",
        f"{cuts[18]:.3f}",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(tuple(map(int, sys.argv[1:])) or SIZES))
