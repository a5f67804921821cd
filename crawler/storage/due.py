"""What is due: the targets that a run visits, and the times of the next run and the next replan.

A run gets its due targets in order, or all of them as arrays if it cannot visit all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
from pymongo import ASCENDING, DESCENDING

from crawler.items import Kind, Target
from crawler.storage.client import Database, Document
from crawler.storage.columns import NameColumn, NumberColumn, TextColumn, Texts
from crawler.storage.plans import IN_EFFECT
from crawler.storage.runs import held_hosts
from crawler.storage.targets import ALIVE, BY_TIME, NOT_FOR_A_VISIT, from_document, watched
from crawler.storage.visits import recover
from crawler.utils.time import HOUR_MILLISECONDS
from schedules.dispatch import Waiting
from schedules.schedule import WEEK_HOURS

BATCH = 10_000
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


class DuePosition(NamedTuple):
    """A place in the order of the due targets of a spider."""

    next_visit: datetime
    url: str


async def most_overdue(
    db: Database,
    spider: str,
    until: datetime,
    limit: int,
    excluded_hosts: Sequence[str] = (),
    without: Collection[str] = (),
) -> list[Target]:
    """Return the `limit` most overdue targets of a spider: `next_visit` is at most `until`.

    Fewer than `limit` means that no others are due; list pages then come first (`_lists_first`).

    without: keys of targets to leave out; they count toward `limit`
    """
    query = {"spider": spider} | _due(until, excluded_hosts)
    # In one batch; by default, the first has 101 documents.
    cursor = db.targets.find(query, NOT_FOR_A_VISIT, batch_size=limit)
    rows = await cursor.sort("next_visit").limit(limit).to_list()
    if len(rows) < limit:
        rows = _lists_first(rows)
    selected = [from_document(row) for row in rows if row["_id"] not in without]
    return await _logged(db, selected, until)


async def ordered_keys(
    db: Database,
    spider: str,
    until: datetime,
    limit: int,
    excluded_hosts: Sequence[str] = (),
    first: DuePosition | None = None,
) -> tuple[list[str], DuePosition | None]:
    """Return the keys of the targets that `most_overdue` returns, and the position of the last one.

    first: position of the first target to return; None: the most overdue one. If fewer than `limit`
           keys are returned, no target is due after them, and their position is None. They begin
           with the list pages then: see `_lists_first`
    """
    query = {"spider": spider} | _due(until, excluded_hosts)
    cursor = db.targets.find(query, {"next_visit": 1, "url": 1, "kind": 1})
    cursor = cursor.sort(BY_TIME).limit(limit)
    if first is not None:
        bound = [("spider", spider), ("next_visit", first.next_visit), ("url", first.url)]
        # The driver's types allow no dates.
        cursor = cursor.min(bound).hint(BY_TIME)  # type: ignore[arg-type]
    rows = [row async for row in cursor]
    is_end = len(rows) < limit
    last = None if is_end else DuePosition(rows[-1]["next_visit"], rows[-1]["url"])
    return [row["_id"] for row in (_lists_first(rows) if is_end else rows)], last


def _lists_first(rows: list[Document]) -> list[Document]:
    """Return rows in the same order, but those of list pages first.

    A first crawl discovers the items of a list page together with the next list page. If it fetched
    the items first, it would be idle while the next list page is read and stored.
    """
    return sorted(rows, key=lambda row: row["kind"] != Kind.LIST)


async def of_keys(
    db: Database, wanted: list[str], until: datetime, excluded_hosts: Sequence[str] = ()
) -> dict[str, Target]:
    """Return the due targets among these keys, by key."""
    query = {"_id": {"$in": wanted}} | _due(until, excluded_hosts)
    cursor = db.targets.find(query, NOT_FOR_A_VISIT)
    targets = await _logged(db, [from_document(row) async for row in cursor], until)
    return {target.key: target for target in targets}


def _due(until: datetime, excluded_hosts: Sequence[str]) -> Document:
    query: Document = {"next_visit": {"$lte": until}} | ALIVE
    if excluded_hosts:
        query["host"] = {"$nin": list(excluded_hosts)}
    return query


async def _logged(db: Database, read: list[Target], started: datetime) -> list[Target]:
    """Copy last visits to the log before the next visits overwrite them; return the targets.

    started: visits before this time are in the log, or were repaired
    """
    keys: dict[str, list[str]] = defaultdict(list)
    for target in read:
        if target.visited_at is not None and target.visited_at >= started:
            keys[target.spider].append(target.key)
    for spider, of_spider in keys.items():
        await recover(db, spider, started, of_spider)
    return read


async def held(db: Database, spider: str, started: datetime, now: datetime) -> dict[str, datetime]:
    """Return the hosts of due targets that requested a pause, and when it ends."""
    holds = await held_hosts(db, now)
    query: Document = {
        "spider": spider, "next_visit": {"$lte": started}, "host": {"$in": list(holds)},
    } | ALIVE  # fmt: skip
    names = await db.targets.distinct("host", query) if holds else []
    return {name: holds[name] for name in sorted(names)}


@dataclass(frozen=True, slots=True)
class DueTargets:
    """The n due targets of a spider. ids: (n,) `_id` of each; hosts: names by number."""

    ids: Texts
    hosts: tuple[str, ...]
    waiting: Waiting


async def read(
    db: Database, spider: str, now: datetime, excluded_hosts: Sequence[str] = ()
) -> DueTargets:
    """Read all due targets of a spider."""
    ids, hosts, columns = (
        TextColumn(),
        NameColumn(),
        {name: NumberColumn(np.float64) for name in NUMBERS},
    )
    query = {"spider": spider} | _due(now, excluded_hosts)
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


async def earliest(db: Database, spider: str, now: datetime) -> datetime | None:
    """Return when the first target of a spider is due; None without targets.

    Hub deliveries are due immediately. Hosts that requested a pause are skipped until it ends.
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
