"""`make bench ARGS=--feed-plans`: what plans of up to a million feeds cost, in memory alone.

The paper's policy shares out ten fetches for each feed; the default policy plans the four weeks of
a replan. Each runs in a process of its own, so that its peak of memory is its own.
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

ROOT = Path(__file__).resolve().parents[2]
SIZES = (10_000, 100_000, 1_000_000)
FETCHES = 10


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
