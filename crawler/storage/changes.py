"""Where and when changes were found, and how large they were: the paper's tables, by the server.

A change counts at the hour of the visit that found it. Visits that a prune has rolled up into days
have no hour any more and are left out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pymongo.errors import OperationFailure

from crawler.storage.client import Database, Document

SUMS = ("changes", "update_size", "diff_size")
UNKNOWN_ZONE = 40485


async def by_hour(
    db: Database, spider: str, zone: ZoneInfo, since: datetime | None = None
) -> list[Document]:
    """Rows of `day` (0 = Monday), `hour`, and the sums of changes and of their sizes."""
    rows = await _run(db, spider, zone, since, [{"$group": {"_id": "$local"} | _sums()}])
    return [row.pop("_id") | row for row in rows]


async def by_url(
    db: Database, spider: str, zone: ZoneInfo, since: datetime | None = None, most: int = 20
) -> list[Document]:
    """The `most` URLs that changed most often: `url`, the sums, and `hours`, rows as by_hour's."""
    stages: list[Document] = [
        {"$group": {"_id": {"url": "$target", "local": "$local"}} | _sums()},
        {
            "$group": {
                "_id": "$_id.url",
                "hours": {
                    "$push": {"$mergeObjects": ["$_id.local", {name: f"${name}" for name in SUMS}]}
                },
            }
            | {name: {"$sum": f"${name}"} for name in SUMS}
        },
        {"$sort": {"changes": -1, "_id": 1}},
        {"$limit": most},
    ]
    rows = await _run(db, spider, zone, since, stages)
    return [{"url": row.pop("_id")} | row for row in rows]


async def _run(
    db: Database, spider: str, zone: ZoneInfo, since: datetime | None, stages: list[Document]
) -> list[Document]:
    try:
        return await _rows(db, spider, str(zone), since, stages)
    except OperationFailure as error:
        if error.code != UNKNOWN_ZONE:
            raise
    # The server's list of zones is older than ours: then its present distance from UTC has to do.
    return await _rows(db, spider, _offset(zone), since, stages)


async def _rows(
    db: Database, spider: str, zone: str, since: datetime | None, stages: list[Document]
) -> list[Document]:
    query: Document = {"spider": spider, "changed": 1}
    if since is not None:
        query["at"] = {"$gte": since}
    moment: dict[str, Any] = {"date": "$at", "timezone": zone}
    local = {
        "day": {"$subtract": [{"$isoDayOfWeek": moment}, 1]},
        "hour": {"$hour": moment},
    }
    fields = {"target": 1, "update_size": 1, "diff_size": 1, "local": local}
    pipeline: list[Document] = [{"$match": query}, {"$project": fields}, *stages]
    return await (await db.visits.aggregate(pipeline, allowDiskUse=True)).to_list(None)


def _sums() -> Document:
    sizes = {name: {"$sum": f"${name}"} for name in SUMS[1:]}
    return {"changes": {"$sum": 1}} | sizes


def _offset(zone: ZoneInfo) -> str:
    passed = datetime.now(zone).utcoffset() or timedelta(0)
    minutes = passed // timedelta(minutes=1)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
