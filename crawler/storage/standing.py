"""How each spider stands: its last run, what failed there, what is due; by indexes alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pymongo import ASCENDING, DESCENDING

from crawler.items import Outcome
from crawler.storage.client import Database, Document

MOST = 100_000
# Runs that are looked at for one that fetched anything: a week of runs, one every ten minutes.
MAX_RUNS = 1000
FAILED = (str(Outcome.ERROR), str(Outcome.BLOCKED))


@dataclass(frozen=True, slots=True)
class Fetches:
    """What the last run that fetched anything fetched.

    failed:  visits that failed or were refused
    reason, url: why most of these failed, and one of them; None where the log does not say
    """

    at: datetime
    visits: int
    failed: int
    reason: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """The last run of a spider, and its targets that are due.

    finished: None: it is at work, or was cut off
    stored:   when its newest visit was made; None: never
    due:      targets whose time has come, MOST at most; since: the first of their times
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
        """When the run is known to have been at work."""
        return self.finished or max(self.started, self.stored or self.started)


async def standing(db: Database, spider: str, now: datetime) -> Standing | None:
    """How a spider stands; None before its first run."""
    run = await db.runs.find_one({"spider": spider}, sort=[("started", DESCENDING)])
    if run is None:
        return None
    visit = await db.visits.find_one({"spider": spider}, {"at": 1}, sort=[("at", DESCENDING)])
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    by_time = [("next_visit", ASCENDING)]
    first = await db.targets.find_one(query, {"next_visit": 1}, sort=by_time)
    return Standing(
        started=run["started"],
        finished=run["finished"],
        reason=run.get("reason"),
        stored=visit["at"] if visit else None,
        due=await db.targets.count_documents(query, limit=MOST) if first else 0,
        since=first["next_visit"] if first else None,
        fetches=await _fetches(db, spider),
    )


async def _fetches(db: Database, spider: str) -> Fetches | None:
    """The fetches of the last run that ended and made any; None where there is none such."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    fields = ("started", "finished", "counts")
    runs = db.runs.find(query, fields).sort("started", DESCENDING).limit(MAX_RUNS)
    async for run in runs:
        counts = run.get("counts") or {}
        if visits := counts.get("visits", 0):
            failed = sum(counts.get(outcome, 0) for outcome in FAILED)
            reason, url = await _why(db, spider, run) if failed else (None, None)
            return Fetches(run["finished"], visits, failed, reason, url)
    return None


async def _why(db: Database, spider: str, run: Document) -> tuple[str | None, str | None]:
    """The reason of most failures of a run, and the URL of one of them."""
    during = {"$gte": run["started"], "$lte": run["finished"]}
    stages: list[Document] = [
        {"$match": {"spider": spider, "at": during}},
        {"$sort": {"at": ASCENDING}},
        {"$limit": MOST},
        {"$match": {"outcome": {"$in": FAILED}}},
        {"$group": {"_id": "$reason", "n": {"$sum": 1}, "url": {"$first": "$target"}}},
        {"$sort": {"n": DESCENDING, "_id": ASCENDING}},
        {"$limit": 1},
    ]
    async for row in await db.visits.aggregate(stages):
        return row["_id"], row["url"]
    return None, None
