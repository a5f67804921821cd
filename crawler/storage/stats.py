"""Database-wide counts for metrics, computed by the server, and a sample of planned targets.

Each reading scans all targets twice, and the visits of the last day; indexes cover the rest. Its
duration grows with both numbers, so read seldom.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
import pymongo
from pymongo import ASCENDING

from crawler.storage import plans, runs, targets
from crawler.storage.client import Database, Document
from crawler.storage.due import BY_TIME
from crawler.storage.histories import NameColumn, NumberColumn
from crawler.storage.targets import watched
from crawler.storage.validators import VALIDATORS
from schedules.history import Floats, Ints

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Plans have a resolution of an hour.
OVERDUE = HOUR
BY_VISIT = {"spider": ASCENDING, "at": ASCENDING}
BY_COPY = {"duplicate_of": ASCENDING}
BY_CHANGE = [("spider", ASCENDING), ("changed_at", ASCENDING)]
# Timeout of one reading.
MAX_SECONDS = 900.0
SIZES = {"data": "dataSize", "storage": "storageSize", "indexes": "indexSize"}
BATCH = 2_000
HOUR_MILLISECONDS = 3_600_000
# Means of this many targets are within 0.5 % of the means of all.
SAMPLE_SIZE = 50_000
# The sample has all targets of spiders with at most this many.
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
    # The last observation: failed visits are not observations.
    "seen": {"$toLong": {"$ifNull": ["$history.until", "$visited_at"]}},
}
NUMBERS = tuple(name for name in ROW if name not in ("_id", "spider"))


class State(NamedTuple):
    """A state that targets are counted by. errors: consecutive errors."""

    spider: str
    kind: str
    errors: int
    is_visited: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """A random sample of the watched targets, uniform for each spider.

    spiders: names by number   spider: (n,) numbers; all others are (n,) too, NaN where unknown
    visits, missed: a week     freshness, age_days, delay_hours: as plans expect them
    rate, low, high: changes a week, and 5 % and 95 % quantiles
    hours:   since the last observation
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


@dataclass(frozen=True, slots=True)
class SpiderStats:
    """The statistics of one spider.

    overdue:        targets that have been due for more than an hour
    oldest_seconds: time for which the most overdue target has been due
    requests:       by outcome: of the last hour (True) and of the 23 hours before (False)
    plan, last:     the active plan and the last run that ended; None before the first
    copies:         near-duplicates among the posts
    """

    due: int
    overdue: int
    oldest_seconds: float
    requests: Counter[tuple[str, bool]]
    plan: Document | None
    last: Document | None
    posts: int
    copies: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of all spiders, and of the database.

    documents: estimated number by collection
    size:      of `data`, `storage` and `indexes`, in bytes
    """

    spiders: dict[str, SpiderStats]
    states: Counter[State]
    sample: Sample
    documents: dict[str, int]
    size: dict[str, float]


async def read(db: Database, now: datetime) -> Stats:
    """Read all statistics, one query after the other."""
    with pymongo.timeout(MAX_SECONDS):
        states = await count_states(db)
        of_spiders = targets_by_spider(states)
        sample = await draw_sample(db, of_spiders, now)
        pipeline: list[Document] = [
            {"$match": {"duplicate_of": {"$exists": True}}},
            {"$group": {"_id": "$spider", "n": {"$sum": 1}}},
        ]
        cursor = await db.posts.aggregate(pipeline, hint=BY_COPY)
        copies = {row["_id"]: row["n"] async for row in cursor}
        names = await targets.spiders(db)
        spiders = {name: await _spider_stats(db, name, now, copies.get(name, 0)) for name in names}
        documents = {name: await db[name].estimated_document_count() for name in sorted(VALIDATORS)}
        stats = await db.command("dbStats")
        size = {part: float(stats[name]) for part, name in SIZES.items()}
        return Stats(spiders, states, sample, documents, size)


async def count_states(db: Database) -> Counter[State]:
    """Return the number of watched targets in each state."""
    key = {
        "spider": "$spider", "kind": "$kind", "errors": "$consecutive_errors",
        "is_visited": {"$gt": ["$visited_at", None]},
    }  # fmt: skip
    pipeline: list[Document] = [
        {"$match": watched()},
        {"$group": {"_id": key, "n": {"$sum": 1}}},
    ]
    states: Counter[State] = Counter()
    async for row in await db.targets.aggregate(pipeline):
        states[State(**{"errors": 0} | row["_id"])] += row["n"]
    return states


def targets_by_spider(states: Counter[State]) -> Counter[str]:
    """Return the number of targets of each spider."""
    of_spiders: Counter[str] = Counter()
    for state, n in states.items():
        of_spiders[state.spider] += n
    return of_spiders


async def _spider_stats(db: Database, name: str, now: datetime, copies: int) -> SpiderStats:
    due: Document = {"spider": name, "next_visit": {"$lte": now}}
    time = {"_id": 0, "next_visit": 1}
    oldest = await db.targets.find_one(due, time, sort=[("next_visit", ASCENDING)], hint=BY_TIME)
    # Hub deliveries are not requests, and cells of one page share a request.
    query: Document = {
        "spider": name, "at": {"$gte": now - DAY, "$lte": now},
        "pushed": {"$ne": True}, "shared_fetch": {"$ne": True},
    }  # fmt: skip
    key = {"outcome": "$outcome", "late": {"$gte": ["$at", now - HOUR]}}
    pipeline: list[Document] = [{"$match": query}, {"$group": {"_id": key, "n": {"$sum": 1}}}]
    cursor = await db.visits.aggregate(pipeline, hint=BY_VISIT)
    return SpiderStats(
        due=await targets.count_due(db, name, now),
        overdue=await targets.count_due(db, name, now - OVERDUE),
        oldest_seconds=(now - oldest["next_visit"]).total_seconds() if oldest else 0.0,
        requests=Counter(
            {(row["_id"]["outcome"], row["_id"]["late"]): row["n"] async for row in cursor}
        ),
        plan=await plans.latest(db, name, now),
        last=await runs.last_ended(db, name),
        posts=await db.posts.count_documents({"spider": name}, hint=BY_CHANGE),
        copies=copies,
    )


async def draw_sample(db: Database, of_spiders: Counter[str], now: datetime) -> Sample:
    """Return about `SAMPLE_SIZE` targets, and all targets of spiders that have few.

    of_spiders: number of targets of each spider
    """
    small = sorted(name for name, n in of_spiders.items() if n <= MAX_UNSAMPLED)
    n_large = sum(n for n in of_spiders.values() if n > MAX_UNSAMPLED)
    sampled: Document = {"$sampleRate": min(1.0, SAMPLE_SIZE / n_large)} if n_large else {}
    query: Document = {"$or": [{"spider": {"$in": small}}, sampled]} if small else sampled
    pipeline: list[Document] = [{"$match": query}, {"$match": watched()}, {"$project": ROW}]
    cursor = await db.targets.aggregate(pipeline, batchSize=BATCH)
    spiders, columns = NameColumn(), {name: NumberColumn(np.float64) for name in NUMBERS}
    while rows := await cursor.to_list(BATCH):
        spiders.add([row["spider"] for row in rows])
        for name, column in columns.items():
            column.add([row.get(name) for row in rows])
    names, spider = spiders.finish()
    numbers = {name: column.finish() for name, column in columns.items()}
    hours = np.maximum(now.timestamp() * 1000 - numbers.pop("seen"), 0) / HOUR_MILLISECONDS
    return Sample(names, spider.astype(np.int64), hours=hours, **numbers)
