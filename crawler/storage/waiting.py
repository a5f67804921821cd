"""What is due of a spider, as arrays: for choosing when not all of it can go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from crawler.storage.client import Database, Document
from crawler.storage.columns import Grown, GrownTexts, Names, Texts
from crawler.storage.targets import watched
from schedules.history import Floats, Ints
from schedules.planned import Waiting
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
