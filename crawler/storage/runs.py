"""`runs`: one document a run, with its counts; an unfinished one tells of a crash.

Also what runs leave behind for others: `dead`, the queue's entries that were given up, and `hosts`
that asked to be left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from bson import ObjectId
from pymongo.errors import PyMongoError

from crawler.errors import StorageError
from crawler.items import LinkCounts
from crawler.storage.client import Database, Document
from crawler.utils.time import NEVER

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
    row = await db.runs.find_one({"_id": run}, {"unmatched": 1, "examples": 1}) or {}
    unmatched = dict.fromkeys(row.get("unmatched", ()))
    return LinkCounts(len(unmatched), unmatched=unmatched, examples=row.get("examples", {}))


async def spiders(db: Database) -> list[str]:
    """Names of all that have had a pass."""
    return sorted(await db.runs.distinct("spider"))


async def has_ended(db: Database, spider: str) -> bool:
    """Whether a spider has had a run that came to its end."""
    query: Document = {"spider": spider, "counts.visits": {"$gt": 0}}
    return await db.runs.find_one(query, {"_id": 1}, sort=[("started", -1)]) is not None


async def unfinished_since(db: Database, spider: str) -> datetime | None:
    """Start of the oldest pass of a spider that never ended; None if all did."""
    oldest = await db.runs.find_one({"spider": spider, "finished": None}, sort=[("started", 1)])
    return oldest["started"] if oldest else None


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


@dataclass(frozen=True, slots=True)
class Dead:
    """One entry of a queue that was given up.

    key:    of the target, or of a request that a spider made
    leases: how often it was leased, in vain
    worker: who gave it up
    """

    key: str
    spider: str
    url: str
    at: datetime
    leases: int
    worker: str


async def bury(db: Database, entry: Dead) -> None:
    """Note an entry; its target is not visited any more. Safe to repeat."""
    row = asdict(entry)
    row["_id"] = row.pop("key")
    await db.dead.replace_one({"_id": entry.key}, row, upsert=True)
    state: Document = {"dead": entry.at, "next_visit": NEVER}
    # The worker that had it last may be alive after all.
    await db.targets.update_one({"_id": entry.key}, {"$set": state, "$inc": {"fence": 1}})


async def listed(db: Database, spider: str | None = None) -> list[Document]:
    """What is buried, of all spiders if None, the newest first."""
    query: Document = {} if spider is None else {"spider": spider}
    return await db.dead.find(query).sort([("at", -1), ("_id", 1)]).to_list(None)


async def find(db: Database, spider: str | None, urls: Sequence[str] | None) -> list[str]:
    """Keys of what is buried of a spider (of all if None) under these URLs (all if None)."""
    query: Document = {} if spider is None else {"spider": spider}
    if urls is not None:
        query["url"] = {"$in": list(urls)}
    return [row["_id"] async for row in db.dead.find(query, {"_id": 1})]


async def retry(db: Database, keys: Sequence[str], now: datetime) -> None:
    """Their targets are due again."""
    query: Document = {"_id": {"$in": list(keys)}, "dead": {"$exists": True}}
    back: Document = {"$unset": {"dead": ""}, "$set": {"next_visit": now}}
    await db.targets.update_many(query, back)
    await db.dead.delete_many({"_id": {"$in": list(keys)}})


async def drop(db: Database, keys: Sequence[str]) -> None:
    """Take them off the list; their targets stay unvisited, wherever they are linked."""
    await db.dead.delete_many({"_id": {"$in": list(keys)}})


async def by_spider(db: Database) -> dict[str, int]:
    """How many are buried of each spider."""
    stages: list[Document] = [{"$group": {"_id": "$spider", "n": {"$sum": 1}}}]
    cursor = await db.dead.aggregate(stages)
    return {row["_id"]: row["n"] async for row in cursor}


async def holds(db: Database, now: datetime) -> dict[str, datetime]:
    """Hosts that are to be left alone now, and until when."""
    cursor = db.hosts.find({"hold_until": {"$gt": now}})
    return {row["_id"]: row["hold_until"] async for row in cursor}


async def hold(db: Database, host: str, until: datetime) -> None:
    """Leave a host alone until `until`."""
    await db.hosts.update_one({"_id": host}, {"$max": {"hold_until": until}}, upsert=True)
