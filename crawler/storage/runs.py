"""`runs`: one document a pass, with its counts; an unfinished one tells of a crash."""

from __future__ import annotations

from datetime import datetime, timedelta

from bson import ObjectId
from pymongo.errors import PyMongoError

from crawler.errors import StorageError
from crawler.items import LinkCounts
from crawler.storage.client import Database, Document

MILLISECOND = timedelta(milliseconds=1)
# Links that the workers of a run keep in its document.
MAX_LINKS = 40
FAILED = "failed"


async def begin(db: Database, spider: str, started: datetime) -> ObjectId:
    """A new pass; its id."""
    document: Document = {"spider": spider, "started": started, "finished": None}
    run: ObjectId = (await db.runs.insert_one(document)).inserted_id
    return run


async def mark_full(db: Database, run: ObjectId) -> None:
    """Note that a pass is of everything, whatever the caps say."""
    await db.runs.update_one({"_id": run}, {"$set": {"full": True}})


async def is_full(db: Database, run: ObjectId) -> bool:
    """Whether a pass is of everything."""
    return await db.runs.find_one({"_id": run, "full": True}, {"_id": 1}) is not None


async def finish(
    db: Database, run: ObjectId, finished: datetime, reason: str, counts: Document, workers: int
) -> None:
    """The end of a pass; workers: how many took part."""
    end = {"finished": finished, "reason": reason, "counts": counts, "workers": workers}
    # Where one of several workers failed, the others have ended it.
    await db.runs.update_one({"_id": run}, {"$set": end, "$unset": {"error": ""}})


async def fail(db: Database, spider: str, started: datetime, at: datetime, error: str) -> None:
    """Note why a pass failed; the next one makes whole what it left.

    One that failed before it began has nothing to be made whole. Raises StorageError where the
    server does not take it.
    """
    failed: Document = {
        "$set": {"reason": FAILED, "error": error},
        "$setOnInsert": {"finished": at},
    }
    try:
        await db.runs.update_one({"spider": spider, "started": started}, failed, upsert=True)
    except PyMongoError as problem:
        raise StorageError(f"{spider}: the failed run cannot be noted: {problem}") from None


async def note_links(db: Database, run: ObjectId, links: LinkCounts) -> None:
    """Keep links that one of several workers has seen for the one that ends the run.

    Safe to repeat; MAX_LINKS are kept in all.
    """
    seen: Document = {"$push": {"unmatched": {"$each": [*links.unmatched], "$slice": MAX_LINKS}}}
    if links.examples:
        seen["$set"] = {f"examples.{name}": url for name, url in links.examples.items()}
    await db.runs.update_one({"_id": run}, seen)


async def links(db: Database, run: ObjectId) -> LinkCounts:
    """The links that all workers have kept."""
    found = await db.runs.find_one({"_id": run}, {"unmatched": 1, "examples": 1}) or {}
    unmatched = dict.fromkeys(found.get("unmatched", ()))
    return LinkCounts(len(unmatched), unmatched=unmatched, examples=found.get("examples", {}))


async def spiders(db: Database) -> list[str]:
    """Names of all that have had a pass."""
    return sorted(await db.runs.distinct("spider"))


async def has_ended(db: Database, spider: str) -> bool:
    """Whether a spider has had a run that came to its end."""
    query: Document = {"spider": spider, "counts.visits": {"$gt": 0}}
    return await db.runs.find_one(query, {"_id": 1}, sort=[("started", -1)]) is not None


async def unfinished_since(db: Database, spider: str) -> datetime | None:
    """Start of the oldest pass of a spider that never ended; None if all did."""
    found = await db.runs.find_one({"spider": spider, "finished": None}, sort=[("started", 1)])
    return found["started"] if found else None


async def at_work(db: Database, longest: timedelta) -> bool:
    """Whether a pass is at work that began less than so long ago, by the server's clock."""
    recent: Document = {"$gt": ["$started", {"$subtract": ["$$NOW", longest // MILLISECOND]}]}
    query: Document = {"finished": None, "reason": {"$exists": False}, "$expr": recent}
    return await db.runs.find_one(query, {"_id": 1}) is not None


async def close_unfinished(
    db: Database, spider: str, at: datetime, but: ObjectId | None = None
) -> None:
    """Passes that a crash cut off count as ended once their log is whole again; not `but`."""
    cut_off: Document = {"spider": spider, "finished": None, "_id": {"$ne": but}}
    why = {"$ifNull": ["$reason", "cut off"]}
    await db.runs.update_many(cut_off, [{"$set": {"finished": at, "reason": why}}])
