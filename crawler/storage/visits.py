"""`visits`: the change log. Append-only; every acknowledged visit is in it once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pymongo import DESCENDING

from crawler.items import Visit
from crawler.posts import Collected
from crawler.storage.bulk import insert_new
from crawler.storage.client import Database, Document


def row_of(visit: Visit) -> Document:
    """The row of the change log for one visit (the paper's table 3.1, and more)."""
    fetched = visit.fetched
    row: Document = {
        "_id": visit.id,
        "at": fetched.at,
        "outcome": str(visit.outcome),
        "status": fetched.status,
        "get_size": fetched.size,
        "update_size": visit.update_size,
        "diff_size": visit.diff_size,
        "changed": int(visit.changed),
        "content_hash": fetched.content_hash or fetched.target.content_hash,
        "elapsed_ms": fetched.elapsed_ms,
    }
    if visit.collected is not None:
        row |= _posts_of(visit.collected)
    if fetched.push is not None:
        row["pushed"] = True
    if fetched.along:
        row["along"] = True
    if visit.reason:
        row["reason"] = visit.reason
    if fetched.target.hinted:
        row["hint"] = fetched.target.hint
    if fetched.final_url:
        row["final_url"] = fetched.final_url
    return row


def _posts_of(collected: Collected) -> Document:
    row: Document = {"posts_new": len(collected.new), "posts_edited": len(collected.edited)}
    return row | {"missed": collected.missed} if collected.missed else row


def log_row_of(visit: Visit) -> Document:
    """The row as it stands in `visits`: with the names of spider and target."""
    target = visit.fetched.target
    return {"spider": target.spider, "target": target.url} | row_of(visit)


async def recover(db: Database, spider: str, since: datetime) -> None:
    """Copy into the log those acknowledged visits since `since` that a crash kept out of it."""
    pipeline: list[Document] = [
        {"$match": {"spider": spider, "last_visit.at": {"$gte": since}}},
        {
            "$replaceRoot": {
                "newRoot": {
                    "$mergeObjects": [{"spider": "$spider", "target": "$url"}, "$last_visit"]
                }
            }
        },
        {"$merge": {"into": "visits", "on": "_id", "whenMatched": "keepExisting"}},
    ]
    await (await db.targets.aggregate(pipeline)).to_list(None)


async def acknowledged(db: Database, keys: Sequence[str], since: datetime) -> dict[str, Document]:
    """Those of some targets that were visited since a time, with these visits, by key.

    The log is made whole for them: their worker may have died before it wrote there.
    """
    if not keys:
        return {}
    query: Document = {"_id": {"$in": list(keys)}, "last_visit.at": {"$gte": since}}
    kept: Document = {"spider": 1, "url": 1, "kind": 1, "last_visit": 1}
    found = await db.targets.find(query, kept).to_list(None)
    rows = [{"spider": x["spider"], "target": x["url"], **x["last_visit"]} for x in found]
    await insert_new(db.visits, rows)
    return {x["_id"]: {**x["last_visit"], "kind": x["kind"]} for x in found}


async def count_since(db: Database, spiders: list[str], since: datetime) -> int:
    """How many requests these spiders have made since a time.

    What was pushed was not asked for, and cells of one page share a request.
    """
    query: Document = {"spider": {"$in": spiders}, "at": {"$gte": since}}
    pushed = await db.visits.count_documents(query | {"pushed": True})
    along = await db.visits.count_documents(query | {"along": True})
    return await db.visits.count_documents(query) - pushed - along


async def of_target(db: Database, spider: str, url: str, limit: int = 0) -> list[Document]:
    """Visits of a target, oldest first; the last `limit` of them if it is not 0."""
    cursor = db.visits.find({"target": url, "spider": spider}).sort("at", DESCENDING)
    rows = await cursor.limit(limit).to_list(None)
    return rows[::-1]
