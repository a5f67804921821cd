"""`runs`: one document a run, with its counts; an unfinished one means a crash.

Also what runs leave for later ones: `dead`, the dead letters of queues, and `hosts` that asked to
be left alone.
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
    """Begin a run; its id."""
    document: Document = {"spider": spider, "started": started, "finished": None}
    run: ObjectId = (await db.runs.insert_one(document)).inserted_id
    return run


async def mark_full(db: Database, run: ObjectId) -> None:
    """Note that a run visits everything, whatever the caps are."""
    await db.runs.update_one({"_id": run}, {"$set": {"full": True}})


async def is_full(db: Database, run: ObjectId) -> bool:
    """Whether a run visits everything."""
    return await db.runs.find_one({"_id": run, "full": True}, {"_id": 1}) is not None


async def finish(
    db: Database, run: ObjectId, finished: datetime, reason: str, counts: Document, workers: int
) -> None:
    """Note the end of a run; workers: how many took part."""
    end = {"finished": finished, "reason": reason, "counts": counts, "workers": workers}
    # Where one of several workers failed, the others have ended it.
    await db.runs.update_one({"_id": run}, {"$set": end, "$unset": {"error": ""}})


async def fail(db: Database, spider: str, started: datetime, at: datetime, error: str) -> None:
    """Note why a run failed; the next one repairs what it left.

    One that failed before it began has nothing to repair. Raises StorageError where the
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
    """Names of all that have had a run."""
    return sorted(await db.runs.distinct("spider"))


async def has_ended(db: Database, spider: str) -> bool:
    """Whether a spider has had a run that came to its end."""
    query: Document = {"spider": spider, "counts.visits": {"$gt": 0}}
    return await db.runs.find_one(query, {"_id": 1}, sort=[("started", -1)]) is not None


async def last_ended(db: Database, spider: str) -> Document | None:
    """The last run of a spider that ended; None before the first."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    return await db.runs.find_one(query, sort=[("started", -1)])


async def unfinished_since(db: Database, spider: str) -> datetime | None:
    """Start of the oldest run of a spider that never ended; None if all did."""
    oldest = await db.runs.find_one({"spider": spider, "finished": None}, sort=[("started", 1)])
    return oldest["started"] if oldest else None


async def is_any_running(db: Database, longest: timedelta) -> bool:
    """Whether a run is going on that began less than `longest` ago, by the server's clock."""
    recent: Document = {"$gt": ["$started", {"$subtract": ["$$NOW", longest // MILLISECOND]}]}
    query: Document = {"finished": None, "reason": {"$exists": False}, "$expr": recent}
    return await db.runs.find_one(query, {"_id": 1}) is not None


async def close_unfinished(
    db: Database, spider: str, at: datetime, but: ObjectId | None = None
) -> None:
    """Runs that a crash interrupted count as ended once their log is repaired; not `but`."""
    interrupted: Document = {"spider": spider, "finished": None, "_id": {"$ne": but}}
    why = {"$ifNull": ["$reason", "cut off"]}
    await db.runs.update_many(interrupted, [{"$set": {"finished": at, "reason": why}}])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry of a queue that was given up.

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


async def add_dead_letter(db: Database, entry: DeadLetter) -> None:
    """Note an entry; its target is not visited any more. Safe to repeat."""
    row = asdict(entry)
    row["_id"] = row.pop("key")
    await db.dead.replace_one({"_id": entry.key}, row, upsert=True)
    state: Document = {"dead": entry.at, "next_visit": NEVER}
    # The worker that had it last may be alive after all.
    await db.targets.update_one({"_id": entry.key}, {"$set": state, "$inc": {"fence": 1}})


async def dead_letters(db: Database, spider: str | None = None) -> list[Document]:
    """All dead letters of a spider, of all spiders if None, the newest first."""
    query: Document = {} if spider is None else {"spider": spider}
    return await db.dead.find(query).sort([("at", -1), ("_id", 1)]).to_list(None)


async def dead_letter_keys(
    db: Database, spider: str | None, urls: Sequence[str] | None
) -> list[str]:
    """Keys of the dead letters of a spider (of all if None) under these URLs (all if None)."""
    query: Document = {} if spider is None else {"spider": spider}
    if urls is not None:
        query["url"] = {"$in": list(urls)}
    return [row["_id"] async for row in db.dead.find(query, {"_id": 1})]


async def retry_dead_letters(db: Database, keys: Sequence[str], now: datetime) -> None:
    """Remove dead letters; their targets are due again."""
    query: Document = {"_id": {"$in": list(keys)}, "dead": {"$exists": True}}
    back: Document = {"$unset": {"dead": ""}, "$set": {"next_visit": now}}
    await db.targets.update_many(query, back)
    await db.dead.delete_many({"_id": {"$in": list(keys)}})


async def drop_dead_letters(db: Database, keys: Sequence[str]) -> None:
    """Remove dead letters; their targets stay unvisited, wherever they are linked."""
    await db.dead.delete_many({"_id": {"$in": list(keys)}})


async def count_dead_letters(db: Database) -> dict[str, int]:
    """How many dead letters each spider has."""
    stages: list[Document] = [{"$group": {"_id": "$spider", "n": {"$sum": 1}}}]
    cursor = await db.dead.aggregate(stages)
    return {row["_id"]: row["n"] async for row in cursor}


async def held_hosts(db: Database, now: datetime) -> dict[str, datetime]:
    """Hosts that are to be left alone now, and until when."""
    cursor = db.hosts.find({"hold_until": {"$gt": now}})
    return {row["_id"]: row["hold_until"] async for row in cursor}


async def hold_host(db: Database, host: str, until: datetime) -> None:
    """Leave a host alone until `until`."""
    await db.hosts.update_one({"_id": host}, {"$max": {"hold_until": until}}, upsert=True)
