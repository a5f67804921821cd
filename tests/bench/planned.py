"""Write targets with a history directly into MongoDB, to measure the cost of a replan.

`python -m tests.bench.planned URI --targets 1000000` writes targets as crawls do; `--visits` sets
the number of visits of each target, and `--log` also writes the change log.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pymongo
from bson import ObjectId

from schedules.history import CHANGE

Row = dict[str, Any]
NOW = datetime(2026, 3, 2, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPIDERS = ("alpha", "beta", "gamma")
BATCH = 5000


@dataclass(frozen=True, slots=True)
class Population:
    """Targets `first` to `last` with `visits` daily visits each; about a quarter are changes."""

    uri: str
    first: int
    last: int
    visits: int = 20
    log: bool = False

    def write(self) -> None:
        """Insert the targets."""
        client: pymongo.MongoClient[Row]
        with pymongo.MongoClient(self.uri, tz_aware=True) as client:
            db = client.get_default_database()
            for rows in self._batches():
                db.targets.insert_many([target for target, _ in rows], ordered=False)
                if self.log:
                    visits = [visit for _, log in rows for visit in log]
                    db.visits.insert_many(visits, ordered=False)

    def _batches(self) -> Iterator[list[tuple[Row, list[Row]]]]:
        for start in range(self.first, self.last, BATCH):
            yield [self._one(i) for i in range(start, min(start + BATCH, self.last))]

    def _one(self, i: int) -> tuple[Row, list[Row]]:
        chance = np.random.default_rng(i)
        ends = int((NOW - EPOCH) / timedelta(minutes=1)) - int(chance.integers(0, 1440))
        at = ends - 1440 * np.arange(self.visits - 1, -1, -1)
        changed = chance.random(self.visits) < chance.beta(1, 3)
        changed[0] = False
        target = target_row(i, at, changed)
        return target, visit_rows(target, at, changed) if self.log else []


def url_of(spider: str, i: int) -> str:
    """Return the URL of target number `i`."""
    return f"https://{spider}.example/catalogue/some-product-with-a-name-{i}/index.html"


def target_row(i: int, at: Any, changed: Any, spider: str | None = None) -> Row:
    """Return a target after its last visit; `at` (v,) minutes since 1970, `changed` (v,) bool."""
    spider = spider or SPIDERS[i % len(SPIDERS)]
    url = url_of(spider, i)
    last = EPOCH + timedelta(minutes=int(at[-1]))
    which = np.flatnonzero(changed)
    changes = np.zeros(len(which), CHANGE)
    changes["after"], changes["by"] = at[which - 1], at[which]
    visit = {
        "_id": ObjectId(), "at": last, "outcome": "changed" if changed[-1] else "unchanged",
        "status": 200, "get_size": 5123, "update_size": 0, "diff_size": 0,
        "changed": int(changed[-1]), "content_hash": f"{i:032x}", "elapsed_ms": 87,
    }  # fmt: skip
    return {
        "_id": f"{spider} {url}", "spider": spider, "url": url, "host": f"{spider}.example",
        "kind": "list" if i % 50 == 0 else "item", "start": False,
        "categories": [f"category {i % 40}"] if i % 50 else [],
        "first_seen": EPOCH + timedelta(minutes=int(at[0])), "visited_at": last,
        "next_visit": last + timedelta(days=1), "requested": len(at), "refreshed": len(at),
        "consecutive_errors": 0, "consecutive_gone": 0, "outcome": visit["outcome"],
        "gone": False, "hinted": False, "last_visit": visit, "etag": f'"{i:x}"',
        "last_modified": None, "raw_hash": f"{i:032x}", "content_hash": f"{i:032x}",
        "size": 5123, "selector_digest": "a1b2c3d4e5f6", "final_url": None, "changed_at": last,
        "history": {
            "since": EPOCH + timedelta(minutes=int(at[0])), "until": last,
            "changes": changes.tobytes(), "false_dates": 0,
        },
        "plan": plan_row("first", i),
    }  # fmt: skip


def plan_row(plan: str, i: int) -> Row:
    """Return the plan of target number `i`, as a replan writes it."""
    slots = sorted({(i * 7 + k * 24) % 168 for k in range(i % 14 + 1)})
    return {
        "id": plan, "policy": "freshet", "frequency_class": f"G{len(slots)}",
        "windows": ["Mon-Fri 08-12"],
        "visits_per_week": float(len(slots)), "weeks": 1, "slots": slots, "every_hours": 0.0,
        "phase_hours": 0.0, "rate_per_week": 1.25, "rate_low": 0.7, "rate_high": 2.5,
        "freshness": 0.81, "limited_by": "budget", "marginal_value": i % 1000 / 1000,
    }  # fmt: skip


def visit_rows(target: Row, at: Any, changed: Any) -> list[Row]:
    """Return the change log of a target."""
    usual = target["last_visit"] | {"spider": target["spider"], "target": target["url"]}
    words = ["new", *("changed" if c else "unchanged" for c in changed[1:])]
    return [
        usual
        | {
            "_id": ObjectId(), "at": EPOCH + timedelta(minutes=int(minute)), "outcome": word,
            "changed": int(word == "changed"),
        }
        for minute, word in zip(at, words, strict=True)
    ]  # fmt: skip


def insert(uri: str, targets: int, visits: int = 20, *, log: bool = False) -> None:
    """Insert a population with two processes."""
    half = targets // 2
    parts = [Population(uri, a, b, visits, log) for a, b in ((0, half), (half, targets))]
    process = multiprocessing.get_context("spawn").Process
    workers = [process(target=part.write) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("could not insert the population")


def main() -> int:
    """Insert the population given on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.planned", description=__doc__)
    parser.add_argument("uri", help="MongoDB URI with a database name")
    parser.add_argument("--targets", type=int, default=1_000_000)
    parser.add_argument("--visits", type=int, default=20, help="number of visits of each target")
    parser.add_argument("--log", action="store_true", help="also write the change log")
    options = parser.parse_args()
    before = time.perf_counter()
    insert(options.uri, options.targets, options.visits, log=options.log)
    print(f"{options.targets:,} targets in {time.perf_counter() - before:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
