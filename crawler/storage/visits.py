"""`visits`: the change log. Append-only; every acknowledged visit is in it once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pymongo import DESCENDING

from crawler.items import SEEN, Collected, Outcome, Visit
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
        "fence": fetched.target.fence,
    }
    if visit.collected is not None:
        row |= _posts_of(visit.collected)
    if fetched.push is not None:
        row["pushed"] = True
    if fetched.along:
        row["along"] = True
    if is_event(visit):
        row["event"] = True
    if visit.reason:
        row["reason"] = visit.reason
    if fetched.target.hinted:
        row["hint"] = fetched.target.hint
    if fetched.final_url:
        row["final_url"] = fetched.final_url
    return row


def is_event(visit: Visit) -> bool:
    """Return whether a visit found a page that is new, changed, gone, or back after it was gone."""
    target = visit.fetched.target
    if visit.alias_of is not None:
        return False
    if visit.outcome is Outcome.GONE:
        # A dead link has never been a page.
        return visit.consecutive_gone == 1 and target.content_hash is not None
    is_back = visit.outcome in SEEN and target.consecutive_gone > 0
    return is_back or visit.outcome in (Outcome.NEW, Outcome.CHANGED)


def _posts_of(collected: Collected) -> Document:
    row: Document = {"posts_new": len(collected.new), "posts_edited": len(collected.edited)}
    return row | {"missed": collected.missed} if collected.missed else row


def log_row_of(visit: Visit) -> Document:
    """The row as it stands in `visits`: with the names of spider and target."""
    target = visit.fetched.target
    return {"spider": target.spider, "target": target.url} | row_of(visit)


async def recover(
    db: Database, spider: str, since: datetime, keys: Sequence[str] | None = None
) -> None:
    """Copy into the log those acknowledged visits since `since` that a crash kept out of it.

    keys: of these targets only
    """
    query: Document = {"spider": spider, "last_visit.at": {"$gte": since}}
    if keys is not None:
        query["_id"] = {"$in": list(keys)}
    pipeline: list[Document] = [
        {"$match": query},
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


async def by_outcome(db: Database, spider: str, since: datetime) -> list[Document]:
    """The log since a time by `outcome`: visits, bytes and posts, without what hubs delivered."""
    summed: Document = {
        "visits": {"$sum": 1},
        "bytes": {"$sum": "$get_size"},
        "posts": {"$sum": "$posts_new"},
        "edited posts": {"$sum": "$posts_edited"},
        "missed posts": {"$sum": "$missed"},
    }
    query: Document = {"spider": spider, "at": {"$gte": since}, "pushed": {"$ne": True}}
    return await _grouped(db, "visits", query, {"_id": "$outcome"} | summed)


async def by_kind(db: Database, spider: str, since: datetime) -> list[Document]:
    """Targets visited since a time by kind (`_id`), as `pages`; without what hubs delivered."""
    query: Document = {"spider": spider, "last_visit.at": {"$gte": since}}
    query["last_visit.pushed"] = {"$ne": True}
    return await _grouped(db, "targets", query, {"_id": "$kind", "pages": {"$sum": 1}})


async def _grouped(db: Database, name: str, query: Document, group: Document) -> list[Document]:
    pipeline = [{"$match": query}, {"$group": group}]
    return await (await db[name].aggregate(pipeline)).to_list(None)


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
