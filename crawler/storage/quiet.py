"""Runs with nothing to do: their check, which reads indexes, and their row in `runs`.

Cron starts a run every few minutes for each site, mostly for nothing. The check finds that a run
would visit nothing and change nothing, without the site definition and the libraries that read it:
the run before stored `inputs`, the digest of everything outside of the database that it read, and
the inputs of this run have the same digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ASCENDING

from crawler.items import Kind
from crawler.storage import alarms, targets
from crawler.storage.client import UNJOURNALED, Database, Document
from crawler.storage.targets import RemainingTargets

BY_TIME = [("spider", ASCENDING), ("next_visit", ASCENDING), ("url", ASCENDING)]


@dataclass(frozen=True, slots=True)
class LastInputs:
    """What the last run of a site read.

    digest: of its inputs; None if the spider may do more than visit due targets
    keys:   site definition as JSON; None if a spider class defines the site
    file:   TOML file of the site definition; None without one
    """

    digest: str | None
    keys: str | None = None
    file: str | None = None


async def note_inputs(db: Database, spider: str, digest: str | None) -> None:
    """Store the inputs of a run that ends. Confirmed by the next journaled write."""
    sites = db.sites.with_options(write_concern=UNJOURNALED)
    await sites.update_one({"_id": spider}, {"$set": {"inputs": digest}})


async def last_inputs(db: Database, spider: str) -> LastInputs | None:
    """Return the inputs of the last run of a spider; None before the first."""
    fields = {"inputs": 1, "definition.keys": 1, "definition.file": 1}
    site = await db.sites.find_one({"_id": spider}, fields)
    if site is None:
        return None
    definition: Document = site.get("definition") or {}
    return LastInputs(site.get("inputs"), definition.get("keys"), definition.get("file"))


async def is_quiet(db: Database, spider: str, now: datetime, confirmations: int) -> bool:
    """Return whether a run with the inputs of the run before would visit and change nothing.

    Anything that an interrupted process or another command has left for the next run counts as
    work, and so does a due target that the run would not visit.

    confirmations: number of visits after which a feed that has moved is renamed
    """
    of_spider: Document = {"spider": spider}
    due = of_spider | {"next_visit": {"$lte": now}}
    if await db.targets.find_one(due, {"_id": 1}, hint=BY_TIME):
        return False
    moved = of_spider | {"kind": str(Kind.FEED), "moves": {"$gte": confirmations}}
    broken = of_spider | {"broken": {"$exists": True}}
    left: list[tuple[Any, Document]] = [
        (db.runs, of_spider | {"finished": None}),
        # A run reports an interrupted rebuild as an error.
        (db.meta, {"_id": "duplicates", "rebuilding": True}),
        (db.pushes, of_spider),
        (db.rereads, of_spider),
        (db.listings, of_spider | {"shown": False}),
        (db.plans, {"$or": [
            {"spiders": spider, "state": "activating"}, {"samples": spider, "ended": None},
        ]}),
        (db.targets, moved),
        (db.targets, broken),
        (db.alarms, of_spider | {"event": alarms.BROKEN} | alarms.OPEN),
    ]  # fmt: skip
    for collection, query in left:
        if await collection.find_one(query, {"_id": 1}):
            return False
    return True


async def record(
    db: Database, spider: str, started: datetime, finished: datetime, outlook: RemainingTargets
) -> None:
    """Store a run that visited nothing. outlook: its targets after the run."""
    # Confirmed by the journaled write after it.
    sites = db.sites.with_options(write_concern=UNJOURNALED)
    await sites.update_one({"_id": spider}, {"$set": {"at": started}})
    counts = {"due": 0, "targets": outlook.targets, "unlisted": 0}
    run: Document = {
        "spider": spider, "started": started, "finished": finished, "reason": "finished",
        "counts": counts, "workers": 1,
    }  # fmt: skip
    await db.runs.insert_one(run)


async def outlook(db: Database, spider: str, now: datetime) -> RemainingTargets:
    """Return the targets of a spider, of which none is due."""
    return await targets.remaining(db, spider, now, now)
