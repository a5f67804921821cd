"""What changed: the newest first; and where, when and how much, the paper's tables, by the server.

A change counts at the hour of the visit that found it. Visits that a prune has rolled up into days
have no hour any more and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pymongo import DESCENDING
from pymongo.errors import OperationFailure

from crawler.storage.client import Database, Document
from crawler.utils.urls import like

# Events that are looked through for those that match, and counted, at most.
MAX_EVENTS = 100_000
MAX_TITLES = 3
SUMS = ("changes", "update_size", "diff_size")
UNKNOWN_ZONE = 40485


async def latest(
    db: Database,
    spiders: Sequence[str],
    times: tuple[datetime | None, datetime | None],
    match: str | None,
    limit: int,
) -> tuple[list[Document], int, bool]:
    """The newest events of the change log: pages that were new, changed, gone, or back.

    times: from the first on and before the second; None: open
    match: part of the URL, as `crawler.utils.urls.like` has it
    returns at most `limit` rows of `visits`; how many there are in all; whether more than
    MAX_EVENTS were there to be looked through, so that older ones are neither shown nor counted
    """
    query: Document = {"event": True, "spider": {"$in": list(spiders)}}
    since, until = times
    span = {} if since is None else {"$gte": since}
    span |= {} if until is None else {"$lt": until}
    if span:
        query["at"] = span
    newest: list[Document] = [
        {"$match": query}, {"$sort": {"at": DESCENDING}}, {"$limit": MAX_EVENTS + 1},
    ]  # fmt: skip
    matching: list[Document] = []
    if match is not None:
        matching = [{"$match": {"target": {"$regex": f"^{like(match)}", "$options": "i"}}}]
    shown = await (await db.visits.aggregate([*newest, *matching, {"$limit": limit}])).to_list(None)
    looked = await db.visits.count_documents(query, limit=MAX_EVENTS + 1)
    total = looked
    if matching:
        counting: list[Document] = [*newest, *matching, {"$count": "n"}]
        rows = await (await db.visits.aggregate(counting)).to_list(None)
        total = rows[0]["n"] if rows else 0
    return shown, total, looked > MAX_EVENTS


async def contents(db: Database, event: Document) -> tuple[Document | None, Document | None]:
    """The contents of an event's page before and after it; None where one is not stored.

    event: a row of `visits`
    """
    query: Document = {"target": event["target"], "spider": event["spider"]}
    earlier = query | {"at": {"$lt": event["at"]}}
    before = await db.visits.find_one(earlier, {"content_hash": 1}, sort=[("at", DESCENDING)])
    hashes = (before["content_hash"] if before else None, event.get("content_hash"))
    keys = [f"{event['spider']} {event['target']} {one}" for one in hashes]
    rows = db.versions.find({"_id": {"$in": keys}}, {"content": 1})
    found = {row["_id"]: row["content"] async for row in rows}
    return found.get(keys[0]), found.get(keys[1])


async def titles(db: Database, event: Document) -> list[str]:
    """Titles of posts that a feed's visit brought or edited, MAX_TITLES at most."""
    query: Document = {"spider": event["spider"], "changed_at": event["at"]}
    rows = db.posts.find(query | {"feed": event["target"]}, {"title": 1}).limit(MAX_TITLES)
    return [str(row["title"]) async for row in rows if row.get("title")]


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
