"""`runs`: one document per run, with its counts; an unfinished one means a crash.

Also data that runs leave for later ones: `dead_letters`, the dead letters of queues, and `hosts`
that requested a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING
from pymongo.errors import PyMongoError
from typing_extensions import TypedDict

from crawler import items
from crawler.errors import StorageError
from crawler.items import LinkCounts
from crawler.storage.client import Database, Document, aggregated, count_by
from crawler.utils.shapes import copied
from crawler.utils.time import NEVER

WEEK = timedelta(days=7)
MAX_BASELINE = WEEK

MILLISECOND = timedelta(milliseconds=1)
# Maximum number of links in a run's document.
MAX_LINKS = 40
FAILED = "failed"
# Limit for counting due targets, and for reading the visits of a run.
MAX_COUNTED = 100_000
# Runs to search for one that fetched anything: a week with a run every ten minutes.
MAX_RUNS = 1000


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

    Safe to repeat; at most MAX_LINKS are kept.
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


async def is_baseline(db: Database, spider: str, now: datetime) -> bool:
    """Return whether the first crawl of a site is not complete: no run has visited all due pages.

    It counts as complete MAX_BASELINE after it began, as caps may leave pages due forever.
    """
    first = await db.runs.find_one({"spider": spider}, {"started": 1}, sort=[("started", 1)])
    if first is not None and now - first["started"] > MAX_BASELINE:
        return False
    query: Document = {"spider": spider, "reason": "finished", "counts.due": 0}
    query["counts.visits"] = {"$gt": 0}
    return await db.runs.find_one(query, {"_id": 1}) is None


async def last_ended(db: Database, spider: str) -> Document | None:
    """Return the last run of a spider that ended; None before the first."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    return await db.runs.find_one(query, sort=[("started", -1)])


async def unfinished_since(db: Database, spider: str) -> datetime | None:
    """Return the start of a spider's oldest unfinished run; None if all ended."""
    oldest = await db.runs.find_one({"spider": spider, "finished": None}, sort=[("started", 1)])
    return oldest["started"] if oldest else None


async def second_requests(db: Database, spiders: Sequence[str], now: datetime) -> int:
    """Return how many second requests for pages the runs of the last week have sent.

    They find random text, and are in addition to the visits.
    """
    pipeline: list[Document] = [
        {"$match": {"spider": {"$in": list(spiders)}, "started": {"$gte": now - WEEK}}},
        {"$group": {"_id": None, "sent": {"$sum": "$counts.second_requests"}}},
    ]
    return sum(int(row["sent"]) for row in await aggregated(db.runs, pipeline))


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
    return [{**copied(DeadLetterReport, row), "id": row["_id"]} async for row in cursor]


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
    return await count_by(db.dead_letters, "spider", {})


async def held_hosts(db: Database, now: datetime) -> dict[str, datetime]:
    """Return the hosts whose requested pause has not ended, and when it ends."""
    cursor = db.hosts.find({"hold_until": {"$gt": now}})
    return {row["_id"]: row["hold_until"] async for row in cursor}


async def hold_host(db: Database, host: str, until: datetime) -> None:
    """Pause visits of a host until `until`."""
    await db.hosts.update_one({"_id": host}, {"$max": {"hold_until": until}}, upsert=True)


@dataclass(frozen=True, slots=True)
class Fetches:
    """The fetches of the last run that made any.

    failed:  visits that failed or were blocked
    reason, url: the most frequent reason and one of its URLs; None if the log has none
    """

    at: datetime
    visits: int
    failed: int
    reason: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a spider, and its targets that are due now.

    finished: None while the run is in progress, and if it was interrupted
    stored:   time of the spider's newest visit; None without visits
    due:      number of due targets, at most MAX_COUNTED; since: the earliest of their times
    """

    started: datetime
    finished: datetime | None
    reason: str | None
    stored: datetime | None
    due: int
    since: datetime | None
    fetches: Fetches | None = None

    @property
    def latest(self) -> datetime:
        """Return the latest time at which the run is known to have been running."""
        return self.finished or max(self.started, self.stored or self.started)


async def last_run(db: Database, spider: str, now: datetime) -> LastRun | None:
    """Return the last run of a spider; None before the first."""
    run = await db.runs.find_one({"spider": spider}, sort=[("started", DESCENDING)])
    if run is None:
        return None
    visit = await db.visits.find_one({"spider": spider}, {"at": 1}, sort=[("at", DESCENDING)])
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    by_time = [("next_visit", ASCENDING)]
    first = await db.targets.find_one(query, {"next_visit": 1}, sort=by_time)
    return LastRun(
        started=run["started"],
        finished=run["finished"],
        reason=run.get("reason"),
        stored=visit["at"] if visit else None,
        due=await db.targets.count_documents(query, limit=MAX_COUNTED) if first else 0,
        since=first["next_visit"] if first else None,
        fetches=await _last_fetches(db, spider),
    )


async def _last_fetches(db: Database, spider: str) -> Fetches | None:
    """Return the fetches of the last ended run that made any; None without such a run."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    fields = ("started", "finished", "counts")
    async for run in db.runs.find(query, fields).sort("started", DESCENDING).limit(MAX_RUNS):
        counts = run.get("counts") or {}
        visits = counts.get("visits", 0)
        if not visits:
            continue
        failed = sum(counts.get(outcome, 0) for outcome in items.FAILED)
        if not failed:
            return Fetches(run["finished"], visits, failed)
        during = {"$gte": run["started"], "$lte": run["finished"]}
        by_reason: list[Document] = [
            {"$match": {"spider": spider, "at": during}},
            {"$sort": {"at": ASCENDING}},
            {"$limit": MAX_COUNTED},
            {"$match": {"outcome": {"$in": [*map(str, items.FAILED)]}}},
            {"$group": {"_id": "$reason", "n": {"$sum": 1}, "url": {"$first": "$target"}}},
            {"$sort": {"n": DESCENDING, "_id": ASCENDING}},
            {"$limit": 1},
        ]
        async for row in await db.visits.aggregate(by_reason):
            return Fetches(run["finished"], visits, failed, row["_id"], row["url"])
        return Fetches(run["finished"], visits, failed)
    return None
