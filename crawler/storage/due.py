"""The due targets of a spider as arrays, for runs that cannot visit all of them.

Also the result of a spider's last run, and the times by which the service schedules runs.
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
from crawler.storage.columns import NameColumn, NumberColumn, TextColumn, Texts
from crawler.storage.plans import IN_EFFECT
from crawler.storage.runs import held_hosts
from crawler.storage.targets import BY_TIME, watched
from schedules.dispatch import Waiting
from schedules.schedule import WEEK_HOURS

BATCH = 10_000
HOUR_MILLISECONDS = 3_600_000
# Limit for counting due targets, and for reading the visits of a run.
MAX_COUNTED = 100_000
# Runs to search for one that fetched anything: a week with a run every ten minutes.
MAX_RUNS = 1000
FAILED = (str(Outcome.ERROR), str(Outcome.BLOCKED))
ROW: Document = {
    "worth": "$plan.last_value",
    "per_week": "$plan.visits_per_week",
    "since": {"$toLong": {"$ifNull": ["$visited_at", "$first_seen"]}},
    "due": {"$toLong": "$next_visit"},
    "requested": 1,
    "missed_visits": 1,
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
    """Read all due targets of a spider."""
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
        missed=np.nan_to_num(numbers["missed_visits"]),
        seconds=numbers["elapsed_ms"] / 1000,
        host=host.astype(np.int64),
    )
    return DueTargets(ids.finish(), names, waiting)


@dataclass(frozen=True, slots=True)
class VisitShare:
    """The share of planned visits that some targets got.

    share: visits made / visits planned; 1 without planned visits
    load:  seconds of query execution per second that the plans of cells require
    """

    share: float = 1.0
    load: float = 0.0


async def served(db: Database, spider: str) -> float:
    """Return the share of planned visits that all targets of a spider got."""
    return (await _served(db, spider, None)).get(None, VisitShare()).share


async def served_of_hosts(db: Database, spider: str) -> dict[str | None, VisitShare]:
    """Return the share of planned visits that the targets of each host got."""
    return await _served(db, spider, "$host")


async def _served(db: Database, spider: str, of: str | None) -> dict[str | None, VisitShare]:
    work: Document = {"$multiply": ["$execution_ms", "$plan.visits_per_week"]}
    sums: Document = {
        "_id": of,
        "made": {"$sum": "$requested"},
        "missed": {"$sum": "$missed_visits"},
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

    failed:  visits that failed or were blocked
    reason, url: the most frequent reason and one of its URLs; None if the log has none
    """

    at: datetime
    visits: int
    failed: int
    reason: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a spider, and its targets that are due now.

    finished: None while the run is in progress, and if it was interrupted
    stored:   time of the spider's newest visit; None without visits
    due:      number of due targets, at most MAX_COUNTED; since: the earliest of their times
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
        """Return the latest time at which the run is known to have been running."""
        return self.finished or max(self.started, self.stored or self.started)


async def last_run(db: Database, spider: str, now: datetime) -> LastRun | None:
    """Return the last run of a spider; None before the first."""
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
    """Return the fetches of the last ended run that made any; None without such a run."""
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
    """Return when the first target of a spider is due; None without targets.

    Hub deliveries are due immediately. Hosts that asked for a pause are skipped until it ends.
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
    """Return when the newest plan was made."""
    plan = await db.plans.find_one({"state": IN_EFFECT}, {"at": 1}, sort=[("at", DESCENDING)])
    return plan["at"] if plan else None


async def first_run_started(db: Database, spiders: Sequence[str]) -> datetime | None:
    """Return when the first run of these spiders started."""
    query = {"spider": {"$in": list(spiders)}}
    run = await db.runs.find_one(query, {"started": 1}, sort=[("started", ASCENDING)])
    return run["started"] if run else None


async def claim_job(db: Database, work: str, now: datetime, apart: timedelta) -> bool:
    """Claim a periodic job; return False if a machine started it less than `apart` ago."""
    query: Document = {"_id": f"job {work}", "at": {"$lte": now - apart}}
    try:
        await db.meta.update_one(query, {"$set": {"at": now}}, upsert=True)
    except DuplicateKeyError:
        # The upsert collides with the existing document, which has a later start.
        return False
    return True
