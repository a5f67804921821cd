"""Counts of the whole database for metrics, made by the server.

It reads each target twice, and the visits of the last day; indexes have the rest. So the time grows
with both: ask seldom.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

import pymongo
from pymongo import ASCENDING

from crawler.storage import freshness, plans, runs, targets
from crawler.storage.client import Database, Document
from crawler.storage.due import BY_TIME
from crawler.storage.freshness import Sample, State
from crawler.storage.schema import VALIDATORS

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Plans are to the hour.
OVERDUE = HOUR
BY_VISIT = {"spider": ASCENDING, "at": ASCENDING}
BY_COPY = {"duplicate_of": ASCENDING}
BY_CHANGE = [("spider", ASCENDING), ("changed_at", ASCENDING)]
# A server that never answers is not waited for.
LONGEST_SECONDS = 900.0
SIZES = {"data": "dataSize", "storage": "storageSize", "indexes": "indexSize"}


@dataclass(frozen=True, slots=True)
class SpiderStats:
    """The figures of one spider.

    overdue:        targets that have been due for more than an hour
    oldest_seconds: for which the most overdue one has been due
    requests:       by outcome: of the last hour (True) and of the 23 hours before it (False)
    plan, last:     the plan in effect and the last run that ended; None before the first
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
    """Of all spiders, and of the database.

    documents: by collection, nearly     size: `data`, `storage` and `indexes`, in bytes
    """

    spiders: dict[str, SpiderStats]
    states: Counter[State]
    sample: Sample
    documents: dict[str, int]
    size: dict[str, float]


async def read(db: Database, now: datetime) -> Stats:
    """All figures, one question after the other."""
    with pymongo.timeout(LONGEST_SECONDS):
        states = await freshness.counts(db)
        of_spiders: Counter[str] = Counter()
        for state, n in states.items():
            of_spiders[state.spider] += n
        sample = await freshness.sample(db, of_spiders, now)
        pipeline: list[Document] = [
            {"$match": {"duplicate_of": {"$exists": True}}},
            {"$group": {"_id": "$spider", "n": {"$sum": 1}}},
        ]
        cursor = await db.posts.aggregate(pipeline, hint=BY_COPY)
        copies = {row["_id"]: row["n"] async for row in cursor}
        names = await targets.spiders(db)
        spiders = {name: await _of_spider(db, name, now, copies.get(name, 0)) for name in names}
        documents = {name: await db[name].estimated_document_count() for name in sorted(VALIDATORS)}
        stats = await db.command("dbStats")
        size = {part: float(stats[name]) for part, name in SIZES.items()}
        return Stats(spiders, states, sample, documents, size)


async def _of_spider(db: Database, name: str, now: datetime, copies: int) -> SpiderStats:
    due: Document = {"spider": name, "next_visit": {"$lte": now}}
    time = {"_id": 0, "next_visit": 1}
    oldest = await db.targets.find_one(due, time, sort=[("next_visit", ASCENDING)], hint=BY_TIME)
    # What was pushed was not asked for, and cells of one page share a request.
    query: Document = {
        "spider": name, "at": {"$gte": now - DAY, "$lte": now},
        "pushed": {"$ne": True}, "along": {"$ne": True},
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
