"""Compile the numba kernels of planning and deduplication, so that the first run need not wait.

The installation runs `python -m crawler.ops.kernels`. It plans a few synthetic pages and feeds,
and sketches two texts; numba compiles the kernels that these need and
caches them on disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np

from crawler.dedup.boilerplate import MIN_OWN_WEIGHT, MIN_POSTS, Sourced, Table, weighed
from crawler.dedup.minhash import by_characters
from schedules import on_compiling
from schedules.allocation.optimal import demand, price_grid
from schedules.allocation.plan import plan
from schedules.estimation.silence import GapModel
from schedules.evaluation.world import even_population
from schedules.feeds.plan import plan_feeds
from schedules.history import Histories
from schedules.population import Population
from schedules.schedule import MAX_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import Terms

TARGETS, WEEKS, POINTS = 60, 3, 4
END = 24.0 * 20_513  # 2026-03-02, a Monday
BEGIN = END - WEEKS * WEEK_HOURS
TEXTS = ("a text of several words that are compared by their characters " * 3, "字" * 60)


def main() -> int:
    """Compile missing kernels, one process for each part, and print their number."""
    began = time.perf_counter()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        count = sum(pool.map(compiled_for, PARTS))
    if count:
        print(f"{count} kernels compiled in {time.perf_counter() - began:.0f} s")
    return 0


def compiled_for(part: str) -> int:
    """Run a part; return the number of kernels compiled for it."""
    count = 0

    def one_more() -> None:
        nonlocal count
        count += 1

    with on_compiling(one_more):
        PARTS[part]()
    return count


def pages() -> None:
    """Plan pages, replan them, compute the budget curve, and rate their silence."""
    some, past = _population(TARGETS), _histories(TARGETS)
    terms = Terms(budget_per_day=TARGETS / 2, daily_cap=0.75 * TARGETS)
    made = plan(some, past, terms, END)
    plan(some, past, terms, END, made.schedules)
    aim = Terms().aim
    demand(made.estimates, np.ones(TARGETS), aim, price_grid(made.estimates, aim, POINTS))
    GapModel.of(some, past, made.estimates.mixtures, 1.0).rated(some, past)


def feeds() -> None:
    """Plan feeds, and replan them."""
    some, past = _population(TARGETS), _histories(TARGETS)
    window, terms = np.full(TARGETS, 10, np.int64), Terms(budget_per_day=float(TARGETS))
    made = plan_feeds(some, past, window, terms, END, Schedules.none(TARGETS))
    plan_feeds(some, past, window, terms, END, made.schedules)


def texts() -> None:
    """Compare texts with and without spaces, and learn their boilerplate."""
    for text in TEXTS:
        table = Table("source")
        for number in range(MIN_POSTS):
            post = Sourced("source", f"{text} {chr(ord('a') + number) * (2 * MIN_OWN_WEIGHT)}")
            table.learn(f"{number}", post)
        sketch = by_characters(post.text)
        assert sketch is not None
        sketch = weighed(sketch, post, table)
        assert sketch.own is not None
        assert sketch.bands.size


PARTS: dict[str, Callable[[], None]] = {"pages": pages, "feeds": feeds, "texts": texts}


def _population(n: int) -> Population:
    """Return n synthetic targets of one site."""
    key = np.random.default_rng(1).integers(0, 2**63, n).astype(np.uint64)
    hours = (1.0, float(MAX_WEEKS * WEEK_HOURS))
    return even_population(key, np.zeros(n, np.int64), np.ones(n), hours, BEGIN, END)


def _histories(n: int) -> Histories:
    """Return change histories of WEEKS weeks with 0 to 29 changes each."""
    rng = np.random.default_rng(7)
    count = rng.integers(0, 30, n)
    first = np.concatenate([[0], np.cumsum(count)])
    at = BEGIN + 1 + rng.integers(0, WEEKS * WEEK_HOURS - 1, first[-1])
    for begin, end in pairwise(first):
        at[begin:end].sort()
    after = at - 1 / 60
    return Histories(np.full(n, BEGIN), np.full(n, END), first, after, at.astype(np.float64))


if __name__ == "__main__":
    sys.exit(main())
