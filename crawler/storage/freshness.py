"""How fresh all targets are now: counts by the server, and a sample with the values of plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np

from crawler.storage.client import Database, Document
from crawler.storage.histories import Grown, Names
from crawler.storage.targets import watched
from schedules.history import Floats, Ints

BATCH = 10_000
HOUR_MILLISECONDS = 3_600_000
# Means of this many targets are within half a per cent of the means of all.
SAMPLE_SIZE = 50_000
# All targets of a spider with no more than this are in the sample.
MAX_UNSAMPLED = 5000
ROW: Document = {
    "_id": 0,
    "spider": 1,
    "visits": "$plan.visits_per_week",
    "freshness": "$plan.freshness",
    "age_days": "$plan.age_days",
    "missed": "$plan.missed_per_week",
    "delay_hours": "$plan.delay_hours",
    "rate": "$plan.rate_per_week",
    "low": "$plan.rate_low",
    "high": "$plan.rate_high",
    # The last visit that saw the page: a failed one shows nothing of it.
    "seen": {"$toLong": {"$ifNull": ["$history.until", "$visited_at"]}},
}
NUMBERS = tuple(name for name in ROW if name not in ("_id", "spider"))


class State(NamedTuple):
    """The state that targets are counted by. errors: in a row."""

    spider: str
    kind: str
    errors: int
    is_visited: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """Some of the watched targets, each as likely as any other of its spider.

    spiders: names by number   spider: (n,) numbers; all others are (n,) too, NaN where unknown
    visits, missed: a week     freshness, age_days, delay_hours: as plans expect them
    rate, low, high: changes a week, and 5 % and 95 % quantiles
    hours:   since the last visit that saw the page
    """

    spiders: tuple[str, ...]
    spider: Ints
    visits: Floats
    freshness: Floats
    age_days: Floats
    missed: Floats
    delay_hours: Floats
    rate: Floats
    low: Floats
    high: Floats
    hours: Floats


async def counts(db: Database) -> Counter[State]:
    """The number of watched targets in each state."""
    key = {
        "spider": "$spider", "kind": "$kind", "errors": "$consecutive_errors",
        "is_visited": {"$gt": ["$visited_at", None]},
    }  # fmt: skip
    pipeline: list[Document] = [{"$match": watched()}, {"$group": {"_id": key, "n": {"$sum": 1}}}]
    states: Counter[State] = Counter()
    async for row in await db.targets.aggregate(pipeline):
        states[State(**{"errors": 0} | row["_id"])] += row["n"]
    return states


async def sample(db: Database, of_spiders: Counter[str], now: datetime) -> Sample:
    """A sample of about `SAMPLE_SIZE` targets, and all targets of spiders that have few.

    of_spiders: how many targets each has
    """
    small = sorted(name for name, n in of_spiders.items() if n <= MAX_UNSAMPLED)
    n_large = sum(n for n in of_spiders.values() if n > MAX_UNSAMPLED)
    sampled: Document = {"$sampleRate": min(1.0, SAMPLE_SIZE / n_large)} if n_large else {}
    query: Document = {"$or": [{"spider": {"$in": small}}, sampled]} if small else sampled
    pipeline: list[Document] = [{"$match": query}, {"$match": watched()}, {"$project": ROW}]
    cursor = await db.targets.aggregate(pipeline, batchSize=BATCH)
    spiders, columns = Names(), {name: Grown(np.float64) for name in NUMBERS}
    while rows := await cursor.to_list(BATCH):
        spiders.add([row["spider"] for row in rows])
        for name, column in columns.items():
            column.add([row.get(name) for row in rows])
    names, spider = spiders.taken()
    numbers = {name: column.taken() for name, column in columns.items()}
    hours = np.maximum(now.timestamp() * 1000 - numbers.pop("seen"), 0) / HOUR_MILLISECONDS
    return Sample(names, spider.astype(np.int64), hours=hours, **numbers)
