"""What is due of a spider, as arrays: for choosing when not all of it can go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from pymongo import ASCENDING, DESCENDING
from pymongo.errors import DuplicateKeyError

from crawler.items import Outcome
from crawler.storage.client import Database, Document
from crawler.storage.histories import Grown, GrownTexts, Names, Texts
from crawler.storage.plans import IN_EFFECT
from crawler.storage.runs import held_hosts
from crawler.storage.targets import watched
from schedules.dispatch.dispatch import Waiting
from schedules.history import Floats, Ints
from schedules.schedule import WEEK_HOURS

BATCH = 10_000
HOUR_MILLISECONDS = 3_600_000
ROW: Document = {
    "worth": "$plan.worth",
    "per_week": "$plan.visits_per_week",
    "since": {"$toLong": {"$ifNull": ["$visited_at", "$first_seen"]}},
    "due": {"$toLong": "$next_visit"},
    "requested": 1,
    "missed": 1,
    "elapsed_ms": {"$ifNull": ["$execution_ms", "$last_visit.elapsed_ms"]},
    "host": 1,
}
NUMBERS = ("worth", "per_week", "since", "due", "requested", "missed", "elapsed_ms")


@dataclass(frozen=True, slots=True)
class Found:
    """The n due targets of a spider. ids: (n,) `_id` of each; hosts: names by number."""

    ids: Texts
    hosts: tuple[str, ...]
    waiting: Waiting


async def read(db: Database, spider: str, now: datetime) -> Found:
    """All that is due of a spider."""
    ids, hosts, columns = GrownTexts(), Names(), {name: Grown(np.float64) for name in NUMBERS}
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    pipeline: list[Document] = [{"$match": query}, {"$project": ROW}]
    cursor = await db.targets.aggregate(pipeline, batchSize=BATCH)
    while rows := await cursor.to_list(BATCH):
        ids.add([row["_id"] for row in rows])
        hosts.add([row.get("host", "") for row in rows])
        for name, column in columns.items():
            column.add([row.get(name) for row in rows])
    names, host = hosts.taken()
    numbers = {name: column.taken() for name, column in columns.items()}
    return Found(ids.taken(), names, _waiting(numbers, host.astype(np.int64), now))


def _waiting(found: dict[str, Floats], host: Ints, now: datetime) -> Waiting:
    at, visits = now.timestamp() * 1000, found["per_week"]
    every = np.divide(WEEK_HOURS, visits, where=visits > 0, out=np.full(len(visits), np.nan))
    return Waiting(
        worth=found["worth"],
        every=every,
        waited=(at - found["since"]) / HOUR_MILLISECONDS,
        overdue=(at - found["due"]) / HOUR_MILLISECONDS,
        visits=found["requested"],
        missed=np.nan_to_num(found["missed"]),
        seconds=found["elapsed_ms"] / 1000,
        host=host,
    )


@dataclass(frozen=True, slots=True)
class Served:
    """How some targets have fared.

    share: of the visits of plans those that were made; 1 without any
    load:  seconds of execution that the plans of cells ask for in a second
    """

    share: float = 1.0
    load: float = 0.0


async def served(db: Database, spider: str) -> float:
    """The share of all targets of a spider."""
    return (await _served(db, spider, None)).get(None, Served()).share


async def served_of_hosts(db: Database, spider: str) -> dict[str | None, Served]:
    """How the targets of each host have fared."""
    return await _served(db, spider, "$host")


async def _served(db: Database, spider: str, of: str | None) -> dict[str | None, Served]:
    work: Document = {"$multiply": ["$execution_ms", "$plan.visits_per_week"]}
    sums: Document = {
        "_id": of,
        "made": {"$sum": "$requested"},
        "missed": {"$sum": "$missed"},
        "work": {"$sum": work},
    }
    cursor = await db.targets.aggregate([{"$match": watched([spider])}, {"$group": sums}])
    return {row["_id"]: _of_sums(row) async for row in cursor}


def _of_sums(row: Document) -> Served:
    all_of = row["made"] + row["missed"]
    share = row["made"] / all_of if all_of else 1.0
    return Served(share, row["work"] / (WEEK_HOURS * HOUR_MILLISECONDS))


MOST = 100_000
# Runs that are looked at for one that fetched anything: a week of runs, one every ten minutes.
MAX_RUNS = 1000
FAILED = (str(Outcome.ERROR), str(Outcome.BLOCKED))


@dataclass(frozen=True, slots=True)
class Fetches:
    """What the last run that fetched anything fetched.

    failed:  visits that failed or were refused
    reason, url: why most of these failed, and one of them; None where the log does not say
    """

    at: datetime
    visits: int
    failed: int
    reason: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """The last run of a spider, and its targets that are due.

    finished: None: it is at work, or was cut off
    stored:   when its newest visit was made; None: never
    due:      targets whose time has come, MOST at most; since: the first of their times
    """

    started: datetime
    finished: datetime | None
    reason: str | None
    stored: datetime | None
    due: int
    since: datetime | None
    fetches: Fetches | None = None

    @property
    def latest(self) -> datetime:
        """When the run is known to have been at work."""
        return self.finished or max(self.started, self.stored or self.started)


async def standing(db: Database, spider: str, now: datetime) -> Standing | None:
    """How a spider stands; None before its first run."""
    run = await db.runs.find_one({"spider": spider}, sort=[("started", DESCENDING)])
    if run is None:
        return None
    visit = await db.visits.find_one({"spider": spider}, {"at": 1}, sort=[("at", DESCENDING)])
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    by_time = [("next_visit", ASCENDING)]
    first = await db.targets.find_one(query, {"next_visit": 1}, sort=by_time)
    return Standing(
        started=run["started"],
        finished=run["finished"],
        reason=run.get("reason"),
        stored=visit["at"] if visit else None,
        due=await db.targets.count_documents(query, limit=MOST) if first else 0,
        since=first["next_visit"] if first else None,
        fetches=await _fetches(db, spider),
    )


async def _fetches(db: Database, spider: str) -> Fetches | None:
    """The fetches of the last run that ended and made any; None where there is none such."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    fields = ("started", "finished", "counts")
    runs = db.runs.find(query, fields).sort("started", DESCENDING).limit(MAX_RUNS)
    async for run in runs:
        counts = run.get("counts") or {}
        if visits := counts.get("visits", 0):
            failed = sum(counts.get(outcome, 0) for outcome in FAILED)
            reason, url = await _why(db, spider, run) if failed else (None, None)
            return Fetches(run["finished"], visits, failed, reason, url)
    return None


async def _why(db: Database, spider: str, run: Document) -> tuple[str | None, str | None]:
    """The reason of most failures of a run, and the URL of one of them."""
    during = {"$gte": run["started"], "$lte": run["finished"]}
    stages: list[Document] = [
        {"$match": {"spider": spider, "at": during}},
        {"$sort": {"at": ASCENDING}},
        {"$limit": MOST},
        {"$match": {"outcome": {"$in": FAILED}}},
        {"$group": {"_id": "$reason", "n": {"$sum": 1}, "url": {"$first": "$target"}}},
        {"$sort": {"n": DESCENDING, "_id": ASCENDING}},
        {"$limit": 1},
    ]
    async for row in await db.visits.aggregate(stages):
        return row["_id"], row["url"]
    return None, None


BY_TIME = [("spider", ASCENDING), ("next_visit", ASCENDING)]


async def earliest(db: Database, spider: str, now: datetime) -> datetime | None:
    """When the first target of a spider is due; None without targets.

    Deliveries of hubs are due now. What asked to be left alone (`hosts`) does not count until then.
    """
    if await db.pushes.find_one({"spider": spider}, {"_id": 1}):
        return now
    query: Document = {"spider": spider}
    if held := sorted(await held_hosts(db, now)):
        query["host"] = {"$nin": held}
    found = await db.targets.find_one(
        query, {"_id": 0, "next_visit": 1}, sort=[("next_visit", ASCENDING)], hint=BY_TIME
    )
    return found["next_visit"] if found else None


async def planned_at(db: Database) -> datetime | None:
    """When the newest plan was made."""
    found = await db.plans.find_one({"state": IN_EFFECT}, {"at": 1}, sort=[("at", DESCENDING)])
    return found["at"] if found else None


async def at_work_since(db: Database, spiders: Sequence[str]) -> datetime | None:
    """When the first pass of these spiders began."""
    query = {"spider": {"$in": list(spiders)}}
    found = await db.runs.find_one(query, {"started": 1}, sort=[("started", ASCENDING)])
    return found["started"] if found else None


async def taken(db: Database, work: str, now: datetime, apart: timedelta) -> bool:
    """Whether this machine may begin a work: nobody has for so long."""
    query: Document = {"_id": f"turn {work}", "at": {"$lte": now - apart}}
    try:
        await db.meta.update_one(query, {"$set": {"at": now}}, upsert=True)
    except DuplicateKeyError:
        return False
    return True
