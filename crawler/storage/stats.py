"""Database-wide counts for metrics, computed by the server, and a sample of planned targets.

Each reading scans all targets, part by part with pauses, and the visits of the last day; indexes
cover the rest. Its duration grows with both numbers, so read rarely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
import pymongo
from pymongo import ASCENDING

from crawler.storage import change_events, outbox, plans, runs, targets
from crawler.storage.client import Database, Document, count_by
from crawler.storage.outbox import ChannelState
from crawler.storage.paging import aggregated_targets, resting
from crawler.storage.schema import VALIDATORS
from crawler.storage.site_queries import OVERDUE
from crawler.storage.targets import BY_TIME, watched
from crawler.utils.time import HOUR_MILLISECONDS
from schedules.history import Floats, Ints

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BY_VISIT = {"spider": ASCENDING, "at": ASCENDING}
BY_COPY = {"duplicate_of": ASCENDING}
BY_CHANGE = [("spider", ASCENDING), ("changed_at", ASCENDING)]
# Maximum number of notification channels to read, in order of name: each takes several queries.
MAX_CHANNELS = 100
# Timeout of one reading.
MAX_SECONDS = 900.0
SIZES = {"data": "dataSize", "storage": "storageSize", "indexes": "indexSize"}
# Means of this many targets are within 0.5 % of the means of all.
SAMPLE_SIZE = 50_000
# The sample has all targets of spiders with at most this many, up to SAMPLE_SIZE together.
MAX_UNSAMPLED = 5000
ROW: Document = {
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
NUMBERS = tuple(ROW)


class CountedState(NamedTuple):
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
class Notifications:
    """The statistics of notifications.

    events:         events to which the rules have not been applied, at most `outbox.MAX_COUNTED`
    oldest_seconds: age of the oldest one; 0 if there is none
    channels:       those with messages, at most MAX_CHANNELS
    waits_seconds:  age of the oldest event that waits, by channel; 0 if none does
    """

    events: int = 0
    oldest_seconds: float = 0.0
    channels: Sequence[ChannelState] = ()
    waits_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of all spiders, and of the database.

    documents: estimated number by collection
    size:      of `data`, `storage` and `indexes`, in bytes
    """

    spiders: dict[str, SpiderStats]
    states: Counter[CountedState]
    sample: Sample
    documents: dict[str, int]
    size: dict[str, float]
    notifications: Notifications


async def read(db: Database, now: datetime) -> Stats:
    """Read all statistics, one query after the other."""
    with pymongo.timeout(MAX_SECONDS):
        states, sample = await scan_targets(db, now)
        marked: Document = {"duplicate_of": {"$exists": True}}
        copies = await count_by(db.posts, "spider", marked, hint=BY_COPY)
        names = await targets.spiders(db)
        spiders = {
            name: await resting(_spider_stats(db, name, now, copies.get(name, 0))) for name in names
        }
        documents = {name: await db[name].estimated_document_count() for name in sorted(VALIDATORS)}
        stats = await db.command("dbStats")
        size = {part: float(stats[name]) for part, name in SIZES.items()}
        notifications = await _notifications(db, now)
        return Stats(spiders, states, sample, documents, size, notifications)


def targets_by_spider(states: Counter[CountedState]) -> Counter[str]:
    """Return the number of targets of each spider."""
    of_spiders: Counter[str] = Counter()
    for state, n in states.items():
        of_spiders[state.spider] += n
    return of_spiders


async def _notifications(db: Database, now: datetime) -> Notifications:
    oldest = await change_events.oldest_mark(db)
    names = (await outbox.channel_names(db))[:MAX_CHANNELS]
    channels = [await outbox.state_of(db, name) for name in names]
    return Notifications(
        events=await change_events.count_marked(db, outbox.MAX_COUNTED),
        oldest_seconds=0.0 if oldest is None else (now - oldest).total_seconds(),
        channels=channels,
        waits_seconds={
            state["channel"]: 0.0 if (at := state["oldest"]) is None else (now - at).total_seconds()
            for state in channels
        },
    )


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


class _Columns:
    """Numbers of sampled targets by spider, as arrays. now: time of the sample."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._parts: dict[str, list[Floats]] = {}

    def add(self, spider: str, rows: Sequence[Document]) -> None:
        """Add rows with the fields of ROW; a field may be absent."""
        if rows:
            numbers = [[row.get(name) for name in NUMBERS] for row in rows]
            self._parts.setdefault(spider, []).append(np.array(numbers, np.float64))

    def remove(self, spider: str) -> None:
        """Remove the rows of a spider."""
        self._parts.pop(spider, None)

    def finish(self) -> Sample:
        """Return all rows."""
        names = tuple(sorted(self._parts))
        tables = [np.concatenate(self._parts[name]) for name in names]
        spider = np.repeat(np.arange(len(names)), [len(table) for table in tables])
        table = np.concatenate(tables) if tables else np.empty((0, len(NUMBERS)))
        numbers = {name: table[:, n] for n, name in enumerate(NUMBERS)}
        milliseconds = self._now.timestamp() * 1000 - numbers.pop("seen")
        hours = np.maximum(milliseconds, 0) / HOUR_MILLISECONDS
        return Sample(names, spider.astype(np.int64), hours=hours, **numbers)


async def scan_targets(db: Database, now: datetime) -> tuple[Counter[CountedState], Sample]:
    """Return the number of watched targets in each state, and a sample of them.

    The sample has about SAMPLE_SIZE targets of large spiders, and at most as many of small ones.
    """
    total = await db.targets.estimated_document_count()
    share = min(1.0, SAMPLE_SIZE / max(total, 1))
    key = {
        "spider": "$spider", "kind": "$kind", "errors": "$consecutive_errors",
        "is_visited": {"$gt": ["$visited_at", None]},
    }  # fmt: skip
    drawn = {"$push": {"$cond": [{"$lt": [{"$rand": {}}, share]}, ROW, "$$REMOVE"]}}
    stages: list[Document] = [
        {"$match": watched()},
        {"$group": {"_id": key, "n": {"$sum": 1}, "rows": drawn}},
    ]
    states: Counter[CountedState] = Counter()
    columns = _Columns(now)
    async for groups in aggregated_targets(db, stages):
        for group in groups:
            state = CountedState(**{"errors": 0} | group["_id"])
            states[state] += group["n"]
            columns.add(state.spider, group["rows"])
    # The drawn targets of small spiders are replaced with all of their targets.
    room = SAMPLE_SIZE
    small = targets_by_spider(states).items() if share < 1 else ()
    for name, n in sorted(small, key=lambda item: item[1]):
        if n > min(MAX_UNSAMPLED, room):
            break
        room -= n
        columns.remove(name)
        fields: Document = {"$project": {"_id": 0} | ROW}
        async for rows in aggregated_targets(db, [{"$match": watched()}, fields], name):
            columns.add(name, rows)
    return states, columns.finish()
