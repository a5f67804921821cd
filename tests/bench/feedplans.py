"""The cost of planning up to a million feeds, in memory only: `make bench ARGS=--feed-plans`.

The paper's policy allocates ten fetches per feed; the default policy plans ten fetches per feed in
three weeks, as a replan does. Each policy runs in a separate process, to measure its peak memory,
and once before the measurement, to exclude compilation.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from schedules.evaluation.world import even_population
from schedules.feeds.plan import min_missing, plan_feeds
from schedules.history import Histories
from schedules.population import Population
from schedules.schedule import MAX_FEED_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import Terms

ROOT = Path(__file__).resolve().parents[2]
SIZES = (10_000, 100_000, 1_000_000)
FETCHES, DAYS = 10, 21
BEGIN = 24.0 * 19_723  # 2024-01-01, a Monday.
END = BEGIN + DAYS * 24


def run(sizes: tuple[int, ...] = SIZES) -> int:
    """Measure each policy at each size and print a table."""
    table = Table("policy", "feeds", "fetches", "seconds", "peak MB")
    for policy in ("min-missing", "optimal"):
        for size in sizes:
            command = [sys.executable, "-m", "tests.bench.feedplans", policy, str(size)]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            one = json.loads(done.stdout)
            table.add_row(
                policy, f"{size:,}", f"{one['fetches']:,}", f"{one['seconds']:.2f}",
                f"{one['peak_mb']:.0f}",
            )  # fmt: skip
    Console().print(table)
    return 0


def measured(policy: str, size: int) -> dict[str, float]:
    """Return the seconds, peak memory and fetches of a plan."""
    rng = np.random.default_rng(7)
    rate = rng.lognormal(1.2, 1.3, size)
    window = rng.choice([5, 10, 15, 20], size)
    began = time.perf_counter()
    if policy == "min-missing":
        fetches = int(min_missing(rate, window.astype(np.float64), FETCHES * size).sum())
    else:
        histories = histories_of(rng, rate)
        began = time.perf_counter()
        terms = Terms(budget_per_day=FETCHES * size / DAYS)
        none = Schedules.none(size)
        made = plan_feeds(population_of(size), histories, window, terms, END, none)
        fetches = round(made.requests_per_day * DAYS)
    seconds = time.perf_counter() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak_mb": peak_mb, "fetches": fetches}


def histories_of(rng: np.random.Generator, rate: np.ndarray) -> Histories:
    """Generate the posts of three weeks, mostly by day."""
    count = rng.poisson(rate)
    first = np.concatenate([[0], np.cumsum(count)])
    day, hour = rng.integers(0, DAYS, first[-1]), rng.normal(14, 4, first[-1]) % 24
    at = BEGIN + day * 24 + hour
    n = len(rate)
    return Histories(np.full(n, BEGIN), np.full(n, END), first, at, at + 1 / 60)


def population_of(n: int) -> Population:
    """Return `n` feeds that may be fetched at any time."""
    key = np.random.default_rng(1).integers(0, 2**63, n).astype(np.uint64)
    hours = (1.0, float(MAX_FEED_WEEKS * WEEK_HOURS))
    return even_population(key, np.zeros(n, np.int64), np.ones(n), hours, BEGIN, END)


if __name__ == "__main__":
    measured(sys.argv[1], 1000)
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
