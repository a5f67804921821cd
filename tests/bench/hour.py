"""Run the service for an hour on a site that changes and grows: `make bench ARGS=--hour`.

Pages are visited every few minutes until the first replan, and then every hour or two; cells of
some pages have periods of seconds. There is a replan every few minutes.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo
from rich.console import Console
from rich.table import Table

from tests.bench.hour_chart import draw
from tests.faults.accounts import Accounts
from tests.faults.ending import orderly
from tests.faults.samples import Sample, Trend, sample, trend
from tests.faults.servers import Mongo, Redis
from tests.faults.sides import FreshetSide, settings
from tests.faults.worker import Worker
from tests.faults.worker_pool import WorkerPool
from tests.site.running import RunningQuick

PAGES, MINUTES, WORKERS, REPLAN = 10_000, 60, 2, "5m"
PICTURE = Path(".benchmarks/hour.png")
SITE = ("--changes-seconds", "60", "--arrivals-seconds", "5")
SAMPLE_SECONDS, MIN_SAMPLES = 10.0, 120
STOP_SECONDS = 120.0
# Maximum growth of a worker's memory in the second half; smaller growth is noise.
GROWTH_SHARE = 0.05
# Connection pools vary; a leak of one descriptor per replan adds six between the quarters compared.
SPARE_DESCRIPTORS = 3
REQUESTS_A_DAY = 24
WRONG = re.compile(r" failed\b|Traceback|unavailable|\bERROR\b")
CELL_PAGES, PERIODS = 20, {"p.price": "5s", "p.stock": "20s"}
KEYS = """
list_interval_hours = 0.03
item_interval_hours = 0.05
max_interval_hours = 2
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The options. redis: the workers share one Redis; without Redis there is one worker."""

    minutes: float = MINUTES
    workers: int = WORKERS
    pages: int = PAGES
    replan: str = REPLAN
    redis: bool = True
    picture: Path = PICTURE


class ServiceSide(FreshetSide):
    """Run `scrapy refresh run` on the site definition, with cells."""

    replan: str = REPLAN

    def begin(self) -> None:
        super().begin()
        described = self.wrapper.read_text(encoding="utf-8")
        top, mark, fields = described.partition("[fields]")
        text = f"{top}{KEYS}\n{mark}{fields}\n{cells_toml(self.url)}"
        self.wrapper.write_text(text, encoding="utf-8")

    def start(self, number: int) -> Worker:
        words = ["refresh", "run", str(self.wrapper), "--json", "--replan", self.replan]
        return self.started(number, [*words, *settings(number)])


@dataclass(frozen=True, slots=True)
class PageCell:
    """A cell of an item page."""

    path: str
    css: str
    every: str


def cells() -> dict[str, PageCell]:
    """Return two cells for each of some pages, by name; they share requests when both are due."""
    return {
        f"c{page}{css[-5:]}": PageCell(f"/item/{page}.html", css, every)
        for page in range(1, CELL_PAGES + 1)
        for css, every in PERIODS.items()
    }


def cells_toml(url: str) -> str:
    """Return the cells as tables of a site definition."""
    return "\n".join(
        f'[cells.{name}]\nurl = "{url}{one.path}"\ncss = "{one.css}"\nevery = "{one.every}"'
        for name, one in cells().items()
    )


def run(options: Options) -> int:
    """Run the service, print and plot the results; return 1 if an invariant is violated."""
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    with orderly(), ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="fh-")))
        site = opened.enter_context(RunningQuick(options.pages, *SITE))
        mongo = opened.enter_context(Mongo(folder / "m"))
        redis = opened.enter_context(Redis(folder)) if options.redis else None
        env = {"FRESHET_BUDGET": f"{options.pages * REQUESTS_A_DAY}/day", "FRESHET_DAILY_CAP": "0"}
        uri, url = mongo.uri("hour"), None if redis is None else redis.url
        side = ServiceSide(folder, site.url, uri, url, **env)
        side.replan = options.replan
        print(f"{options.pages:,} items; MongoDB and Redis keep their data in {folder}")
        with WorkerPool(side, options.workers if options.redis else 1) as pool:
            samples = _watched(pool, options.minutes * 60, mongo, redis)
            ended = _ended(pool)
        reports = [json.loads(worker.output) for worker in pool.workers if worker.output]
        with pymongo.MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
            pages = {name: one.path for name, one in cells().items()}
            accounts = Accounts(client.get_default_database(), site, pages, reports)
            broken = [*ended, *accounts.check()]
            broken += [] if accounts.replans else ["no replan was made"]
            print(accounts)
    trends = {worker.number: trend(samples, worker.number) for worker in pool.workers}
    draw(samples, options.picture)
    broken += _show(trends, samples)
    print("\n".join(broken) or "No invariant is violated.", f"Chart: {options.picture}", sep="\n")
    return 1 if broken else 0


def _watched(pool: WorkerPool, seconds: float, mongo: Mongo, redis: Redis | None) -> list[Sample]:
    began, samples = time.monotonic(), list[Sample]()
    every = min(SAMPLE_SECONDS, seconds / MIN_SAMPLES)
    while (now := time.monotonic() - began) < seconds:
        samples.append(sample(now, pool.alive, mongo, redis))
        pause = len(samples) * every - (time.monotonic() - began)
        pool.until(lambda: False, pause)
        if not pool.alive:
            break
    return samples


def _ended(pool: WorkerPool) -> list[str]:
    """Stop all workers at the same time; return the problems."""
    early = [
        f"{worker.agent} ended on its own" for worker in pool.workers if worker.code is not None
    ]
    for worker in pool.alive:
        worker.terminate()
    pool.finish(STOP_SECONDS)
    late = [f"{worker.agent} did not end within {STOP_SECONDS:g} s" for worker in pool.alive]
    failed = [f"{worker.agent}: exit code {worker.code}" for worker in pool.failed]
    return [*early, *late, *failed, *(line for worker in pool.workers for line in _wrong(worker))]


def _wrong(worker: Worker) -> list[str]:
    """Return the unexpected lines of a worker's log: errors of runs and replans, and tracebacks."""
    lines = worker.log.read_text(encoding="utf-8").splitlines()
    return [f"{worker.agent}: {line}" for line in lines if WRONG.search(line)]


def _show(trends: dict[int, Trend], samples: list[Sample]) -> list[str]:
    """Print the trends; return the violated invariants of memory and descriptors."""
    table = Table("worker", "mean MB", "MB/hour", "growth MB", "descriptors", "threads")
    broken = []
    for number, one in trends.items():
        table.add_row(
            str(number), f"{one.mean_mb:.0f}", f"{one.mb_per_hour:+.1f}", f"{one.grown_mb:+.1f}",
            *(f"{before} to {after}" for before, after in (one.descriptors, one.threads)),
        )  # fmt: skip
        if one.grown_mb > GROWTH_SHARE * one.mean_mb:
            broken.append(f"worker-{number} grew by {one.grown_mb:.1f} MB in the last half")
        if one.descriptors[1] > one.descriptors[0] + SPARE_DESCRIPTORS:
            broken.append(f"worker-{number} has more open descriptors than before")
    console, last = Console(), samples[-1]
    console.print(table)
    console.print(
        f"MongoDB {last.mongo_mb:.0f} MB, Redis {last.redis_mb:.0f} MB with {last.keys} keys "
        f"({max(one.keys for one in samples)} at most)"
    )
    return broken
