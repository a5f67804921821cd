"""The state of each site, as the web app's board shows it: of now, and numbers that take longer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING

from crawler.items import Kind
from crawler.storage import definitions, runs, sites, targets
from crawler.storage.client import Database, Document
from crawler.storage.due import BY_TIME, MAX_COUNTED
from crawler.storage.outages import all_of
from crawler.storage.site_targets import OVERDUE
from crawler.storage.sites import Marks
from crawler.utils.time import NEVER

NO_MARKS = Marks()
# Maximum number of visits with the same time in a list: a site has far fewer requests in flight.
MAX_SAME_TIME = 1000
# Visits that are not requests: hub deliveries, and cells that shared the fetch of another cell.
NO_REQUEST: Document = {"$or": [{"$eq": ["$pushed", True]}, {"$eq": ["$shared_fetch", True]}]}


@dataclass(frozen=True, slots=True)
class SiteState:
    """The state of a site, read by a few keys of indexes.

    run:        id of the last run; None before the first
    started, finished, reason, counts: of the last run
    next_visit: earliest planned visit; None if no visit is planned
    kinds:      kinds of targets that the site has
    """

    name: str
    marks: Marks
    run: ObjectId | None
    started: datetime | None
    finished: datetime | None
    reason: str | None
    error: str | None
    counts: dict[str, Any]
    next_visit: datetime | None
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class TargetNumbers:
    """Numbers of targets of a site. Counting them takes longer the more there are.

    targets: all, including gone ones and aliases
    overdue: due for more than an hour
    errors:  their last visit failed
    """

    targets: int
    due: int
    overdue: int
    errors: int


async def site_names(db: Database) -> list[str]:
    """Return the names of all sites with a site definition, targets or runs, sorted."""
    stored = await definitions.names(db)
    return sorted({*stored, *await targets.spiders(db), *await runs.spiders(db)})


async def states_of(db: Database, names: list[str]) -> list[SiteState]:
    """Return the states of some sites, in their order."""
    marks = await sites.marks(db)
    return await all_of(state_of(db, name, marks.get(name, NO_MARKS)) for name in names)


async def state_of(db: Database, name: str, marks: Marks) -> SiteState:
    """Return the state of one site; everything is empty for an unknown one."""
    fields = ("started", "finished", "reason", "error", "counts")
    last: Document = (
        await db.runs.find_one({"spider": name}, fields, sort=[("started", DESCENDING)]) or {}
    )
    planned: Document = {"spider": name, "next_visit": {"$lt": NEVER}}
    soonest: Document | None = await db.targets.find_one(
        planned, {"_id": 0, "next_visit": 1}, sort=[("next_visit", ASCENDING)], hint=BY_TIME
    )
    kinds = [
        kind
        for kind in Kind
        if await db.targets.find_one({"spider": name, "kind": str(kind)}, {"_id": 1})
    ]
    return SiteState(
        name=name,
        marks=marks,
        run=last.get("_id"),
        started=last.get("started"),
        finished=last.get("finished"),
        reason=last.get("reason"),
        error=last.get("error"),
        counts=last.get("counts") or {},
        next_visit=soonest["next_visit"] if soonest else None,
        kinds=tuple(kinds),
    )


async def target_numbers(db: Database, name: str, now: datetime) -> TargetNumbers:
    """Count the targets of a site, by keys of indexes only."""
    failing: Document = {"spider": name, "consecutive_errors": {"$gt": 0}}
    return TargetNumbers(
        targets=await db.targets.count_documents({"spider": name}, hint=BY_TIME),
        due=await targets.count_due(db, name, now),
        overdue=await targets.count_due(db, name, now - OVERDUE),
        errors=await db.targets.count_documents(failing),
    )


async def visits_by_hour(db: Database, name: str, since: datetime) -> list[Document]:
    """Count the visits of a site since a time.

    Returns rows of `hour` (UTC), `outcome`, `is_event`, `is_request` and `n`.
    """
    key = {
        "hour": {"$dateTrunc": {"date": "$at", "unit": "hour"}},
        "outcome": "$outcome",
        "is_event": {"$eq": ["$event", True]},
        "is_request": {"$not": [NO_REQUEST]},
    }
    pipeline: list[Document] = [
        {"$match": {"spider": name, "at": {"$gte": since}}},
        {"$group": {"_id": key, "n": {"$sum": 1}}},
    ]
    return [row["_id"] | {"n": row["n"]} async for row in await db.visits.aggregate(pipeline)]


async def visits_of_run(db: Database, name: str, started: datetime) -> dict[str, int]:
    """Return the stored visits of a site since the start of a run, by outcome."""
    pipeline: list[Document] = [
        {"$match": {"spider": name, "at": {"$gte": started}}},
        {"$group": {"_id": "$outcome", "n": {"$sum": 1}}},
    ]
    return {row["_id"]: row["n"] async for row in await db.visits.aggregate(pipeline)}


async def count_waiting(db: Database, name: str, now: datetime) -> int:
    """Return the number of due targets of a site, at most MAX_COUNTED."""
    query: Document = {"spider": name, "next_visit": {"$lte": now}}
    return await db.targets.count_documents(query, limit=MAX_COUNTED)


@dataclass(frozen=True, slots=True)
class VisitRows:
    """Visits of a site, newest first.

    before: time before which the next page begins; None: no more visits
    """

    rows: list[Document]
    before: datetime | None


async def page_of_visits(
    db: Database,
    name: str,
    times: tuple[datetime, datetime],
    hour_of_week: tuple[int, ZoneInfo] | None,
    limit: int,
    *,
    only_events: bool = False,
) -> VisitRows:
    """Read visits of a site, newest first, by an index.

    times:        from the first until before the second
    hour_of_week: 0 to 167 (0: Monday 00:00) in a zone, to read only visits in this hour
    only_events:  only visits that found a page new, changed, gone or back

    A page is longer than `limit` if several visits have the time of its last row.
    """
    spans = [times] if hour_of_week is None else spans_of_hour(times, *hour_of_week)
    rows: list[Document] = []
    query: Document = {"spider": name} | ({"event": True} if only_events else {})
    for start, end in spans:
        wanted = query | {"at": {"$gte": start, "$lt": end}}
        room = limit + 1 - len(rows)
        rows += await db.visits.find(wanted).sort("at", DESCENDING).limit(room).to_list(None)
        if len(rows) > limit:
            break
    if len(rows) <= limit:
        return VisitRows(rows, None)
    last = rows[limit - 1]["at"]
    same = await db.visits.find(query | {"at": last}).limit(MAX_SAME_TIME).to_list(None)
    return VisitRows([row for row in rows[:limit] if row["at"] != last] + same, last)


def spans_of_hour(
    times: tuple[datetime, datetime], hour: int, zone: ZoneInfo
) -> list[tuple[datetime, datetime]]:
    """Return the spans of an hour of the local week within `times`, newest first.

    Where a clock change skips the hour, its week has none; where the hour comes twice, it has two.
    """
    since, until = times
    spans = []
    at = until.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    while at > since - timedelta(hours=1):
        local = at.astimezone(zone)
        if local.weekday() * 24 + local.hour == hour:
            # Zones with offsets of half an hour: the local hour begins at the half hour before.
            start = at - timedelta(minutes=local.minute, seconds=local.second)
            spans.append((max(start, since), min(start + timedelta(hours=1), until)))
        at -= timedelta(hours=1)
    return [span for span in spans if span[0] < span[1]]
