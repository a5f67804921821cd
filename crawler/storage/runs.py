"""`runs`: one document per run, with its counts; an unfinished one means a crash.

Also what runs leave for later ones: `dead`, the dead letters of queues, and `hosts` that asked
for a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from bson import ObjectId
from pymongo.errors import PyMongoError
from typing_extensions import TypedDict

from crawler.errors import StorageError
from crawler.items import LinkCounts
from crawler.storage.client import Database, Document
from crawler.utils.time import NEVER

MILLISECOND = timedelta(milliseconds=1)
# Maximum number of links in a run's document.
MAX_LINKS = 40
FAILED = "failed"


async def begin(db: Database, spider: str, started: datetime) -> ObjectId:
    """Insert a new run; return its id."""
    document: Document = {"spider": spider, "started": started, "finished": None}
    run: ObjectId = (await db.runs.insert_one(document)).inserted_id
    return run


async def mark_full(db: Database, run: ObjectId) -> None:
    """Mark a run that visits all due targets, regardless of caps."""
    await db.runs.update_one({"_id": run}, {"$set": {"full": True}})


async def is_full(db: Database, run: ObjectId) -> bool:
    """Return whether a run visits all due targets, regardless of caps."""
    return await db.runs.find_one({"_id": run, "full": True}, {"_id": 1}) is not None


async def finish(
    db: Database, run: ObjectId, finished: datetime, reason: str, counts: Document, workers: int
) -> None:
    """Store the end of a run; workers: number of workers that took part."""
    end = {"finished": finished, "reason": reason, "counts": counts, "workers": workers}
    # If one of several workers failed, the others have completed the run.
    await db.runs.update_one({"_id": run}, {"$set": end, "$unset": {"error": ""}})


async def fail(db: Database, spider: str, started: datetime, at: datetime, error: str) -> None:
    """Store why a run failed; the next run repairs its data.

    A run that failed before it started needs no repair. Raises StorageError if this cannot be
    stored.
    """
    failed: Document = {
        "$set": {"reason": FAILED, "error": error},
        "$setOnInsert": {"finished": at},
    }
    try:
        await db.runs.update_one({"spider": spider, "started": started}, failed, upsert=True)
    except PyMongoError as problem:
        raise StorageError(f"{spider}: failure of the run not stored: {problem}") from None


async def note_links(db: Database, run: ObjectId, links: LinkCounts) -> None:
    """Store links that a worker found, for the worker that ends the run.

    Safe to repeat; MAX_LINKS are kept in all.
    """
    seen: Document = {"$push": {"unmatched": {"$each": [*links.unmatched], "$slice": MAX_LINKS}}}
    if links.examples:
        seen["$set"] = {f"examples.{name}": url for name, url in links.examples.items()}
    await db.runs.update_one({"_id": run}, seen)


async def links(db: Database, run: ObjectId) -> LinkCounts:
    """Return the links that all workers stored."""
    row = await db.runs.find_one({"_id": run}, {"unmatched": 1, "examples": 1}) or {}
    unmatched = dict.fromkeys(row.get("unmatched", ()))
    return LinkCounts(len(unmatched), unmatched=unmatched, examples=row.get("examples", {}))


async def spiders(db: Database) -> list[str]:
    """Return the names of all spiders that had a run."""
    return sorted(await db.runs.distinct("spider"))


async def has_ended(db: Database, spider: str) -> bool:
    """Return whether a spider had a run that made visits and ended."""
    query: Document = {"spider": spider, "counts.visits": {"$gt": 0}}
    return await db.runs.find_one(query, {"_id": 1}, sort=[("started", -1)]) is not None


async def last_ended(db: Database, spider: str) -> Document | None:
    """Return the last run of a spider that ended; None before the first."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    return await db.runs.find_one(query, sort=[("started", -1)])


async def unfinished_since(db: Database, spider: str) -> datetime | None:
    """Return the start of a spider's oldest unfinished run; None if all ended."""
    oldest = await db.runs.find_one({"spider": spider, "finished": None}, sort=[("started", 1)])
    return oldest["started"] if oldest else None


async def is_any_running(db: Database, longest: timedelta) -> bool:
    """Return whether an unfinished run started less than `longest` ago, by server time."""
    recent: Document = {"$gt": ["$started", {"$subtract": ["$$NOW", longest // MILLISECOND]}]}
    query: Document = {"finished": None, "reason": {"$exists": False}, "$expr": recent}
    return await db.runs.find_one(query, {"_id": 1}) is not None


async def close_unfinished(
    db: Database, spider: str, at: datetime, but: ObjectId | None = None
) -> None:
    """Mark interrupted runs as ended after their log is repaired, except `but`."""
    interrupted: Document = {"spider": spider, "finished": None, "_id": {"$ne": but}}
    why = {"$ifNull": ["$reason", "interrupted"]}
    await db.runs.update_many(interrupted, [{"$set": {"finished": at, "reason": why}}])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry that was removed from a queue after repeated failures.

    key:    of the target, or of a request that a spider made
    leases: number of failed attempts
    worker: the worker that removed it
    """

    key: str
    spider: str
    url: str
    at: datetime
    leases: int
    worker: str


async def add_dead_letter(db: Database, entry: DeadLetter) -> None:
    """Store a dead letter, and stop visits of its target. Safe to repeat."""
    row = asdict(entry)
    row["_id"] = row.pop("key")
    await db.dead_letters.replace_one({"_id": entry.key}, row, upsert=True)
    state: Document = {"dead_lettered_at": entry.at, "next_visit": NEVER}
    # Fences off the worker that had it last, which may still be alive.
    await db.targets.update_one({"_id": entry.key}, {"$set": state, "$inc": {"fence": 1}})


class DeadLetterReport(TypedDict):
    """A page that repeatedly crashed its workers."""

    id: str
    """Id of the target (spider and URL), or of a request."""
    spider: str
    """Name of the spider."""
    url: str
    """URL of the page."""
    at: datetime
    """Time when the page was dead-lettered."""
    leases: int
    """Number of failed attempts."""
    worker: str | None
    """Worker that removed the page from the queue."""


async def dead_letters(db: Database, spider: str | None = None) -> list[DeadLetterReport]:
    """Return the dead letters of a spider, of all spiders if None, newest first."""
    query: Document = {} if spider is None else {"spider": spider}
    cursor = db.dead_letters.find(query).sort([("at", -1), ("_id", 1)])
    return [
        {
            "id": row["_id"],
            "spider": row["spider"],
            "url": row["url"],
            "at": row["at"],
            "leases": row["leases"],
            "worker": row.get("worker"),
        }
        async for row in cursor
    ]


async def dead_letter_keys(
    db: Database, spider: str | None, urls: Sequence[str] | None
) -> list[str]:
    """Return the keys of dead letters by spider and URLs; None means all."""
    query: Document = {} if spider is None else {"spider": spider}
    if urls is not None:
        query["url"] = {"$in": list(urls)}
    return [row["_id"] async for row in db.dead_letters.find(query, {"_id": 1})]


async def retry_dead_letters(db: Database, keys: Sequence[str], now: datetime) -> None:
    """Remove dead letters, and make their targets due."""
    query: Document = {"_id": {"$in": list(keys)}, "dead_lettered_at": {"$exists": True}}
    back: Document = {"$unset": {"dead_lettered_at": ""}, "$set": {"next_visit": now}}
    await db.targets.update_many(query, back)
    await db.dead_letters.delete_many({"_id": {"$in": list(keys)}})


async def drop_dead_letters(db: Database, keys: Sequence[str]) -> None:
    """Remove dead letters; their targets are never visited again, even if linked."""
    await db.dead_letters.delete_many({"_id": {"$in": list(keys)}})


async def count_dead_letters(db: Database) -> dict[str, int]:
    """Return the number of dead letters of each spider."""
    stages: list[Document] = [{"$group": {"_id": "$spider", "n": {"$sum": 1}}}]
    cursor = await db.dead_letters.aggregate(stages)
    return {row["_id"]: row["n"] async for row in cursor}


async def held_hosts(db: Database, now: datetime) -> dict[str, datetime]:
    """Return the hosts that asked for a pause that has not ended, and its end."""
    cursor = db.hosts.find({"hold_until": {"$gt": now}})
    return {row["_id"]: row["hold_until"] async for row in cursor}


async def hold_host(db: Database, host: str, until: datetime) -> None:
    """Pause visits of a host until `until`."""
    await db.hosts.update_one({"_id": host}, {"$max": {"hold_until": until}}, upsert=True)
