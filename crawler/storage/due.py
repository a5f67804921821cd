"""The due targets of a spider as arrays, for a run without room for all of them.

Also the state of a spider's last run, and the times that the service plans its runs by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from pymongo import ASCENDING, DESCENDING
from pymongo.errors import DuplicateKeyError

from crawler.items import Outcome
from crawler.storage.client import Database, Document
from crawler.storage.histories import NameColumn, NumberColumn, TextColumn, Texts
from crawler.storage.plans import IN_EFFECT
from crawler.storage.runs import held_hosts
from crawler.storage.targets import watched
from schedules.dispatch.dispatch import Waiting
from schedules.schedule import WEEK_HOURS

BATCH = 10_000
HOUR_MILLISECONDS = 3_600_000
# Due targets are counted, and visits of a run are read, up to this number.
MAX_COUNTED = 100_000
# Runs that are searched for one that fetched anything: a week of runs, one every ten minutes.
MAX_RUNS = 1000
FAILED = (str(Outcome.ERROR), str(Outcome.BLOCKED))
BY_TIME = [("spider", ASCENDING), ("next_visit", ASCENDING)]
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
NUMBERS = tuple(name for name in ROW if name != "host")


@dataclass(frozen=True, slots=True)
class DueTargets:
    """The n due targets of a spider. ids: (n,) `_id` of each; hosts: names by number."""

    ids: Texts
    hosts: tuple[str, ...]
    waiting: Waiting


async def read(db: Database, spider: str, now: datetime) -> DueTargets:
    """All due targets of a spider."""
    ids, hosts, columns = (
        TextColumn(),
        NameColumn(),
        {name: NumberColumn(np.float64) for name in NUMBERS},
    )
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    pipeline: list[Document] = [{"$match": query}, {"$project": ROW}]
    cursor = await db.targets.aggregate(pipeline, batchSize=BATCH)
    while rows := await cursor.to_list(BATCH):
        ids.add([row["_id"] for row in rows])
        hosts.add([row.get("host", "") for row in rows])
        for name, column in columns.items():
            column.add([row.get(name) for row in rows])
    names, host = hosts.finish()
    numbers = {name: column.finish() for name, column in columns.items()}
    at, visits = now.timestamp() * 1000, numbers["per_week"]
    waiting = Waiting(
        worth=numbers["worth"],
        every=np.divide(WEEK_HOURS, visits, where=visits > 0, out=np.full(len(visits), np.nan)),
        waited=(at - numbers["since"]) / HOUR_MILLISECONDS,
        overdue=(at - numbers["due"]) / HOUR_MILLISECONDS,
        visits=numbers["requested"],
        missed=np.nan_to_num(numbers["missed"]),
        seconds=numbers["elapsed_ms"] / 1000,
        host=host.astype(np.int64),
    )
    return DueTargets(ids.finish(), names, waiting)


@dataclass(frozen=True, slots=True)
class VisitShare:
    """The visits that some targets got.

    share: made visits among the planned ones; 1 without any
    load:  seconds of execution that the plans of cells ask for in a second
    """

    share: float = 1.0
    load: float = 0.0


async def served(db: Database, spider: str) -> float:
    """The share of planned visits that all targets of a spider got."""
    return (await _served(db, spider, None)).get(None, VisitShare()).share


async def served_of_hosts(db: Database, spider: str) -> dict[str | None, VisitShare]:
    """The visits that the targets of each host got."""
    return await _served(db, spider, "$host")


async def _served(db: Database, spider: str, of: str | None) -> dict[str | None, VisitShare]:
    work: Document = {"$multiply": ["$execution_ms", "$plan.visits_per_week"]}
    sums: Document = {
        "_id": of,
        "made": {"$sum": "$requested"},
        "missed": {"$sum": "$missed"},
        "work": {"$sum": work},
    }
    result: dict[str | None, VisitShare] = {}
    async for row in await db.targets.aggregate([{"$match": watched([spider])}, {"$group": sums}]):
        planned = row["made"] + row["missed"]
        share = row["made"] / planned if planned else 1.0
        result[row["_id"]] = VisitShare(share, row["work"] / (WEEK_HOURS * HOUR_MILLISECONDS))
    return result


@dataclass(frozen=True, slots=True)
class Fetches:
    """The fetches of the last run that made any.

    failed:  visits that failed or were refused
    reason, url: why most of these failed, and one of them; None where the log does not say
    """

    at: datetime
    visits: int
    failed: int
    reason: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a spider, and the targets that are due now.

    finished: None: it is running, or was interrupted
    stored:   when the spider's newest visit was made; None: never
    due:      targets whose time has come, MAX_COUNTED at most; since: the first of their times
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
        """When the run is known to have been running."""
        return self.finished or max(self.started, self.stored or self.started)


async def last_run(db: Database, spider: str, now: datetime) -> LastRun | None:
    """The last run of a spider; None before the first."""
    run = await db.runs.find_one({"spider": spider}, sort=[("started", DESCENDING)])
    if run is None:
        return None
    visit = await db.visits.find_one({"spider": spider}, {"at": 1}, sort=[("at", DESCENDING)])
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    by_time = [("next_visit", ASCENDING)]
    first = await db.targets.find_one(query, {"next_visit": 1}, sort=by_time)
    return LastRun(
        started=run["started"],
        finished=run["finished"],
        reason=run.get("reason"),
        stored=visit["at"] if visit else None,
        due=await db.targets.count_documents(query, limit=MAX_COUNTED) if first else 0,
        since=first["next_visit"] if first else None,
        fetches=await _last_fetches(db, spider),
    )


async def _last_fetches(db: Database, spider: str) -> Fetches | None:
    """The fetches of the last run that ended and made any; None without such a run."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    fields = ("started", "finished", "counts")
    async for run in db.runs.find(query, fields).sort("started", DESCENDING).limit(MAX_RUNS):
        counts = run.get("counts") or {}
        visits = counts.get("visits", 0)
        if not visits:
            continue
        failed = sum(counts.get(outcome, 0) for outcome in FAILED)
        if not failed:
            return Fetches(run["finished"], visits, failed)
        during = {"$gte": run["started"], "$lte": run["finished"]}
        by_reason: list[Document] = [
            {"$match": {"spider": spider, "at": during}},
            {"$sort": {"at": ASCENDING}},
            {"$limit": MAX_COUNTED},
            {"$match": {"outcome": {"$in": FAILED}}},
            {"$group": {"_id": "$reason", "n": {"$sum": 1}, "url": {"$first": "$target"}}},
            {"$sort": {"n": DESCENDING, "_id": ASCENDING}},
            {"$limit": 1},
        ]
        async for row in await db.visits.aggregate(by_reason):
            return Fetches(run["finished"], visits, failed, row["_id"], row["url"])
        return Fetches(run["finished"], visits, failed)
    return None


async def earliest(db: Database, spider: str, now: datetime) -> datetime | None:
    """When the first target of a spider is due; None without targets.

    Deliveries of hubs are due now. Hosts that asked for a pause do not count until it ends.
    """
    if await db.pushes.find_one({"spider": spider}, {"_id": 1}):
        return now
    query: Document = {"spider": spider}
    if held := sorted(await held_hosts(db, now)):
        query["host"] = {"$nin": held}
    target = await db.targets.find_one(
        query, {"_id": 0, "next_visit": 1}, sort=[("next_visit", ASCENDING)], hint=BY_TIME
    )
    return target["next_visit"] if target else None


async def planned_at(db: Database) -> datetime | None:
    """When the newest plan was made."""
    plan = await db.plans.find_one({"state": IN_EFFECT}, {"at": 1}, sort=[("at", DESCENDING)])
    return plan["at"] if plan else None


async def first_run_started(db: Database, spiders: Sequence[str]) -> datetime | None:
    """When the first run of these spiders began."""
    query = {"spider": {"$in": list(spiders)}}
    run = await db.runs.find_one(query, {"started": 1}, sort=[("started", ASCENDING)])
    return run["started"] if run else None


async def claim_job(db: Database, work: str, now: datetime, apart: timedelta) -> bool:
    """Whether this machine may begin a periodic job: no machine has begun it for `apart`."""
    query: Document = {"_id": f"turn {work}", "at": {"$lte": now - apart}}
    try:
        await db.meta.update_one(query, {"$set": {"at": now}}, upsert=True)
    except DuplicateKeyError:
        # The upsert collides with the document of a later turn.
        return False
    return True
