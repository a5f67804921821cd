"""A first run by several workers, compared with plain scrapy-redis: `make bench ARGS=--workers`.

Both use the same site, links, fields and settings; each run has an empty database and its own
Redis.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pymongo
from rich.console import Console
from rich.table import Table

from tests.bench.asking import pages_per_second
from tests.faults.ending import orderly
from tests.faults.fetches import fetches
from tests.faults.servers import Mongo, Redis
from tests.faults.sides import FreshetSide, PlainSide, Side
from tests.faults.worker import cpu_seconds
from tests.faults.worker_pool import WorkerPool
from tests.site.quick import Pages
from tests.site.running import RunningQuick

PAGES, ROUNDS, WORKERS = 20_000, 3, (1, 2, 4)
FRESHET, ALONE = "Freshet", "Freshet without Redis"
IN_REDIS, IN_MONGO = "scrapy-redis, items in Redis", "scrapy-redis, items in MongoDB"
LIKE = "the same, CONCURRENT_ITEMS=1"
LONGEST_SECONDS = 3600.0
SAMPLE_SECONDS = 0.2
# Measured range as shares of the pages: all workers have started, and none is idle yet.
FROM_SHARE, TO_SHARE = 0.1, 0.9
# Time of a sample, and the CPU seconds so far.
Used = tuple[float, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Done:
    """The results of a run.

    rate:    pages per second while all workers were running
    seconds: from the first request to the last response
    cpu:     milliseconds per page meanwhile, in total for all workers and for each server
    """

    rate: float
    seconds: float
    cpu: dict[str, float]
    answers: int
    again: int
    stored: int
    lost: int
    peak_mb: float

    def __str__(self) -> str:
        cpu = ", ".join(f"{who} {ms:.2f}" for who, ms in self.cpu.items())
        return f"{self.rate:.0f} pages/s, ms/page: {cpu}; {self.lost} lost"


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    name: str
    workers: int


class Runs:
    """Runs on one site, each with its own database and Redis."""

    def __init__(self, folder: Path, site: RunningQuick, mongo: Mongo) -> None:
        self._folder, self._site, self._mongo = folder, site, mongo
        self._numbers = count(1)

    def done(self, case: Case) -> Done:
        """Make a run."""
        name = f"p{next(self._numbers)}"
        folder = self._folder / name
        folder.mkdir()
        self._site.clear_log()
        with Redis(folder) as redis, self._database(name) as uri:
            side = self._side(case.name, folder, uri, redis)
            used: list[Used] = []
            with WorkerPool(side, case.workers) as pool:
                deadline = time.time() + LONGEST_SECONDS
                while not pool.finish(SAMPLE_SECONDS) and time.time() < deadline:
                    used.append((time.time(), self._used(pool, redis)))
                if pool.alive or pool.failed:
                    log = pool.workers[0].log.read_text(encoding="utf-8")[-3000:]
                    raise RuntimeError(f"{case.name}: a worker failed or stalled:\n{log}")
            return self._summed(side, pool, used)

    def _summed(self, side: Side, pool: WorkerPool, used: Sequence[Used]) -> Done:
        rows, stored = self._site.requests(), set(side.stored())
        results = fetches(rows, [])
        answered = sorted(row["answered"] for row in rows)
        first, last = (int(share * len(answered)) for share in (FROM_SHARE, TO_SHARE))
        began, ended, pages = answered[first], answered[last], last - first
        before, after = _used_until(used, began), _used_until(used, ended)
        urls = (f"{self._site.url}{path}" for path in Pages(self._site.items).paths())
        return Done(
            pages / (ended - began),
            rows[-1]["answered"] - rows[0]["at"],
            {who: (after[who] - before[who]) / pages * 1000 for who in after},
            results.answered,
            results.again,
            len(stored),
            sum("/item/" in url and url not in stored for url in urls),
            pool.peak_mb,
        )

    def _used(self, pool: WorkerPool, redis: Redis) -> dict[str, float]:
        servers = {server.name: server.cpu_seconds for server in (self._mongo, redis)}
        site = cpu_seconds(psutil.Process(self._site.pid))
        return {"workers": pool.cpu_seconds, **servers, "site": site}

    def _side(self, name: str, folder: Path, uri: str, redis: Redis) -> Side:
        url = self._site.url
        if name in (FRESHET, ALONE):
            return FreshetSide(folder, url, uri, redis.url if name == FRESHET else None)
        if name == IN_MONGO:
            return PlainSide(folder, url, redis, mongo_uri=uri)
        settings = {"CONCURRENT_ITEMS": 1} if name == LIKE else None
        return PlainSide(folder, url, redis, settings=settings)

    @contextmanager
    def _database(self, name: str) -> Iterator[str]:
        uri = self._mongo.uri(name)
        yield uri
        with pymongo.MongoClient[dict[str, Any]](uri) as client:
            client.drop_database(name)


def _used_until(used: Sequence[Used], at: float) -> dict[str, float]:
    """Return the CPU seconds used until `at`, interpolated between two samples."""
    times = [sampled for sampled, _ in used]
    names = used[0][1]
    return {
        who: float(np.interp(at, times, [seconds[who] for _, seconds in used])) for who in names
    }


def run(pages: int, workers: Sequence[int], rounds: int, *, redis: bool) -> int:
    """Measure and print the results. redis: Freshet's workers share it; else one worker runs."""
    cases = [Case(ALONE, 1)]
    for n in workers:
        names = ([FRESHET] if redis else []) + [IN_REDIS, LIKE, IN_MONGO]
        cases += [Case(name, n) for name in names]
    with (
        orderly(),
        tempfile.TemporaryDirectory(prefix="fw-") as name,
        RunningQuick(pages) as site,
        Mongo(Path(name) / "m") as mongo,
    ):
        print(f"{pages:,} items; MongoDB and Redis keep their data in {name}")
        print(f"Maximum speed of the site: {pages_per_second(site.url, pages):,.0f} pages/s")
        runs = Runs(Path(name), site, mongo)
        results: dict[Case, list[Done]] = {case: [] for case in cases}
        for number in range(rounds):
            # Reverse the order in every second round.
            for case in cases[:: -1 if number % 2 else 1]:
                results[case].append(done := runs.done(case))
                print(f"round {number + 1}, {case.name}, {case.workers}: {done}", flush=True)
    _show(results)
    _show_ratios(results, workers)
    return 0


def _show(results: dict[Case, list[Done]]) -> None:
    """Print medians of rates and times; for pages and memory, the worst round."""
    table = Table(
        "", "workers", "pages/s", "seconds", "CPU ms/page", "MongoDB", "Redis", "site",
        "pages", "again", "stored", "lost", "peak MB",
    )  # fmt: skip
    for case, rounds in results.items():
        cpu = (statistics.median(one.cpu[who] for one in rounds) for who in rounds[0].cpu)
        worst = max(rounds, key=lambda one: (one.lost, one.again))
        table.add_row(
            case.name, str(case.workers),
            f"{statistics.median(one.rate for one in rounds):.0f}",
            f"{statistics.median(one.seconds for one in rounds):.0f}",
            *(f"{ms:.2f}" for ms in cpu),
            *map(str, (worst.answers, worst.again, worst.stored, worst.lost)),
            f"{max(one.peak_mb for one in rounds):.0f}",
        )  # fmt: skip
    Console(width=140).print(table)


def _show_ratios(results: dict[Case, list[Done]], workers: Sequence[int]) -> None:
    """Print the ratios of adjacent rounds, which share the machine's noise."""
    table = Table("Freshet's pages/s relative to", *(f"{n} workers" for n in workers))
    alone = results[Case(ALONE, 1)]
    ours = {n: results.get(Case(FRESHET, n), alone if n == 1 else None) for n in workers}
    for name in (IN_REDIS, LIKE, IN_MONGO):
        theirs = {n: results[Case(name, n)] for n in workers}
        ratios = (_ratio(ours[n], theirs[n]) for n in workers)
        table.add_row(name, *ratios)
    Console().print(table)


def _ratio(ours: list[Done] | None, theirs: list[Done]) -> str:
    if ours is None:
        return "-"
    each = (one.rate / other.rate for one, other in zip(ours, theirs, strict=True))
    return f"{statistics.median(each):.2f}"
