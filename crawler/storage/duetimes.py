"""When a spider has something to do next, and since when it has been at work; by indexes alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pymongo import ASCENDING, DESCENDING

from crawler.storage import hosts
from crawler.storage.client import Database, Document
from crawler.storage.plans import IN_EFFECT

BY_TIME = [("spider", ASCENDING), ("next_visit", ASCENDING)]


async def earliest(db: Database, spider: str, now: datetime) -> datetime | None:
    """When the first target of a spider is due; None without targets.

    Deliveries of hubs are due now. What asked to be left alone (`hosts`) does not count until then.
    """
    if await db.pushes.find_one({"spider": spider}, {"_id": 1}):
        return now
    query: Document = {"spider": spider}
    if held := sorted(await hosts.holds(db, now)):
        query["host"] = {"$nin": held}
    found = await db.targets.find_one(
        query, {"_id": 0, "next_visit": 1}, sort=[("next_visit", ASCENDING)], hint=BY_TIME
    )
    return found["next_visit"] if found else None


async def planned_at(db: Database) -> datetime | None:
    """When the newest plan was made."""
    found = await db.plans.find_one({"state": IN_EFFECT}, {"at": 1}, sort=[("at", DESCENDING)])
    return found["at"] if found else None


async def at_work_since(db: Database, spiders: Sequence[str]) -> datetime | None:
    """When the first pass of these spiders began."""
    query = {"spider": {"$in": list(spiders)}}
    found = await db.runs.find_one(query, {"started": 1}, sort=[("started", ASCENDING)])
    return found["started"] if found else None
