"""Dispatch of a million due targets by each policy: `make bench ARGS=--dispatch`."""

from __future__ import annotations

import resource
import statistics
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from schedules.dispatch import POLICIES, Capacity, Waiting, dispatch

TARGETS, HOSTS, ROUNDS = 1_000_000, 20_000, 3
MAX_SECONDS, MAX_MB = 2.0, 1000
LONGEST_HOURS, SERVED = 672.0, 0.6


def run() -> int:
    """Print seconds and memory; return 1 if a requirement is not met."""
    waiting = _waiting(np.random.default_rng(1))
    capacity = Capacity(TARGETS // 3, 200_000.0, np.full(HOSTS, 30))
    table = Table("policy", "seconds", "go", "peak MB")
    worst = 0.0
    for policy in POLICIES:
        took = [_timed(policy, waiting, capacity) for _ in range(ROUNDS)]
        seconds = statistics.median(seconds for seconds, _ in took)
        worst = max(worst, seconds)
        table.add_row(policy, f"{seconds:.2f}", f"{took[0][1]:,}", f"{_peak_mb():,.0f}")
    Console().print(table)
    return 0 if worst < MAX_SECONDS and _peak_mb() < MAX_MB else 1


def _timed(policy: str, waiting: Waiting, capacity: Capacity) -> tuple[float, int]:
    began = time.perf_counter()
    went = dispatch(policy, waiting.due(LONGEST_HOURS), capacity, SERVED)
    return time.perf_counter() - began, len(went)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _waiting(rng: np.random.Generator) -> Waiting:
    every = rng.uniform(1, 672, TARGETS)
    every[rng.random(TARGETS) < 0.1] = np.nan
    overdue = rng.exponential(100, TARGETS)
    return Waiting(
        worth=np.where(rng.random(TARGETS) < 0.1, np.nan, rng.random(TARGETS)),
        every=every,
        waited=np.nan_to_num(every) + overdue,
        overdue=overdue,
        visits=rng.integers(1, 500, TARGETS).astype(np.float64),
        missed=rng.integers(0, 500, TARGETS).astype(np.float64),
        seconds=rng.exponential(0.5, TARGETS),
        host=rng.integers(0, HOSTS, TARGETS),
    )
