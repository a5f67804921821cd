"""One row for each site, as the web app's board shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ASCENDING

from crawler.storage import runs, targets
from crawler.storage.client import Database, Document
from crawler.storage.due import BY_TIME
from crawler.storage.outages import all_of
from crawler.utils.time import NEVER


@dataclass(frozen=True, slots=True)
class SiteOverview:
    """The state of a site.

    targets:     stored targets, including gone ones and aliases
    due:         targets that are due now
    errors:      targets whose last visit failed
    last_run:    start of the last run; None before the first
    last_reason: how the last run ended; None while it is in progress
    next_visit:  earliest planned visit; None if no visit is planned
    """

    name: str
    targets: int
    due: int
    errors: int
    last_run: datetime | None
    last_reason: str | None
    next_visit: datetime | None


async def sites_overview(db: Database, now: datetime) -> list[SiteOverview]:
    """Return all sites with targets or runs, by name."""
    names = sorted({*await targets.spiders(db), *await runs.spiders(db)})
    return await all_of(site_overview(db, name, now) for name in names)


async def site_overview(db: Database, name: str, now: datetime) -> SiteOverview:
    """Return the state of one site; all numbers are 0 for an unknown one."""
    last = await db.runs.find_one(
        {"spider": name}, {"started": 1, "reason": 1}, sort=[("started", -1)]
    )
    planned: Document = {"spider": name, "next_visit": {"$lt": NEVER}}
    soonest: dict[str, Any] | None = await db.targets.find_one(
        planned, {"_id": 0, "next_visit": 1}, sort=[("next_visit", ASCENDING)], hint=BY_TIME
    )
    failing: Document = {"spider": name, "consecutive_errors": {"$gt": 0}}
    return SiteOverview(
        name=name,
        targets=await db.targets.count_documents({"spider": name}, hint=BY_TIME),
        due=await targets.count_due(db, name, now),
        errors=await db.targets.count_documents(failing),
        last_run=last["started"] if last else None,
        last_reason=last.get("reason") if last else None,
        next_visit=soonest["next_visit"] if soonest else None,
    )
