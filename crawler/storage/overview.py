"""The state of each site for the web app's board, and counts that take longer to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pymongo import ASCENDING, DESCENDING
from pymongo.asynchronous.collection import AsyncCollection

from crawler.items import Kind
from crawler.storage import runs, sites, targets
from crawler.storage.client import Database, Document, all_of
from crawler.storage.paging import Rows
from crawler.storage.runs import MAX_COUNTED
from crawler.storage.site_targets import OVERDUE
from crawler.storage.sites import Marks
from crawler.storage.targets import BY_TIME
from crawler.utils.time import NEVER

NO_MARKS = Marks()
BY_KIND = [("spider", ASCENDING), ("kind", ASCENDING)]
# Maximum number of visits with the same time in a list: a site has far fewer requests in flight.
MAX_SAME_TIME = 1000
# Visits that are not requests: hub deliveries, and cells that shared the fetch of another cell.
NO_REQUEST: Document = {"$or": [{"$eq": ["$pushed", True]}, {"$eq": ["$shared_fetch", True]}]}


@dataclass(frozen=True, slots=True)
class SiteState:
    """The state of a site, read by a few keys of indexes.

    started, finished, reason, counts: of the last run
    next_visit: earliest planned visit; None if no visit is planned
    kind:       first kind of its targets by name, which is `cell` or `feed` if the site has any of
                them; None without targets
    """

    name: str
    marks: Marks
    started: datetime | None
    finished: datetime | None
    reason: str | None
    error: str | None
    counts: dict[str, Any]
    next_visit: datetime | None
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class TargetNumbers:
    """Numbers of targets of a site. Counting them takes longer the more there are.

    targets: all, including gone ones and aliases
    overdue: due for more than an hour
    errors:  targets whose last visit failed
    """

    targets: int
    due: int
    overdue: int
    errors: int


async def site_names(db: Database) -> list[str]:
    """Return the names of all sites with a site definition, targets or runs, sorted."""
    stored = await sites.editable_names(db)
    return sorted({*stored, *await targets.spiders(db), *await runs.spiders(db)})


async def states_of(db: Database, names: list[str]) -> list[SiteState]:
    """Return the states of some sites, in their order; everything is empty for an unknown one."""
    marks = await sites.marks(db)
    fields = ("started", "finished", "reason", "error", "counts")
    last, planned, kinds = await all_of(
        [
            _first_of_each(
                db.runs, names, [("spider", DESCENDING), ("started", DESCENDING)], fields
            ),
            _first_of_each(db.targets, names, BY_TIME[:2], ("next_visit",)),
            _first_of_each(db.targets, names, BY_KIND, ("kind",)),
        ]
    )
    states = []
    for name in names:
        run = last.get(name, {})
        next_visit = planned.get(name, {}).get("next_visit") or NEVER
        kind = kinds.get(name, {}).get("kind")
        states.append(
            SiteState(
                name=name,
                marks=marks.get(name, NO_MARKS),
                started=run.get("started"),
                finished=run.get("finished"),
                reason=run.get("reason"),
                error=run.get("error"),
                counts=run.get("counts") or {},
                next_visit=next_visit if next_visit < NEVER else None,
                kind=None if kind is None else Kind(kind),
            )
        )
    return states


async def state_of(db: Database, name: str) -> SiteState:
    """Return the state of one site; everything is empty for an unknown one."""
    (state,) = await states_of(db, [name])
    return state


async def _first_of_each(
    collection: AsyncCollection[Document],
    names: list[str],
    order: list[tuple[str, int]],
    fields: Sequence[str],
) -> dict[str, Document]:
    """Return fields of the first document of each spider.

    order: begins with `spider`, and is the beginning of an index: the server reads one key of each
           spider (DISTINCT_SCAN)
    """
    first = {name: {"$first": f"${name}"} for name in fields}
    stages: list[Document] = [
        {"$match": {"spider": {"$in": names}}},
        {"$sort": dict(order)},
        {"$group": {"_id": "$spider"} | first},
    ]
    rows = await (await collection.aggregate(stages)).to_list(None)
    return {row.pop("_id"): row for row in rows}


async def target_numbers(db: Database, name: str, now: datetime) -> TargetNumbers:
    """Count the targets of a site, by keys of indexes only."""
    failing: Document = {"spider": name, "consecutive_errors": {"$gt": 0}}
    return TargetNumbers(
        targets=await db.targets.count_documents({"spider": name}, hint=BY_TIME),
        due=await targets.count_due(db, name, now),
        overdue=await targets.count_due(db, name, now - OVERDUE),
        errors=await db.targets.count_documents(failing),
    )


async def visits_by_hour(
    db: Database, name: str, minutes: int, since: datetime, until: datetime | None = None
) -> list[Document]:
    """Count the visits of a site since a time. until: only visits before this time.

    minutes: offset of the hours from full hours in UTC, 0 to 59

    Returns rows of `hour` (its start), `outcome`, `is_event`, `is_request` and `n`.
    """
    hour = {"date": "$at", "unit": "hour", "timezone": f"-00:{minutes:02}"}
    key = {
        "hour": {"$dateTrunc": hour},
        "outcome": "$outcome",
        "is_event": {"$eq": ["$event", True]},
        "is_request": {"$not": [NO_REQUEST]},
    }
    span = {"$gte": since} | ({} if until is None else {"$lt": until})
    pipeline: list[Document] = [
        {"$match": {"spider": name, "at": span}},
        {"$group": {"_id": key, "n": {"$sum": 1}}},
    ]
    return [row["_id"] | {"n": row["n"]} async for row in await db.visits.aggregate(pipeline)]


async def visits_of_run(db: Database, name: str, started: datetime) -> dict[str, int]:
    """Return the number of stored visits of a site since the start of a run, by outcome."""
    pipeline: list[Document] = [
        {"$match": {"spider": name, "at": {"$gte": started}}},
        {"$group": {"_id": "$outcome", "n": {"$sum": 1}}},
    ]
    return {row["_id"]: row["n"] async for row in await db.visits.aggregate(pipeline)}


async def count_waiting(db: Database, name: str, now: datetime) -> int:
    """Return the number of due targets of a site, at most MAX_COUNTED."""
    query: Document = {"spider": name, "next_visit": {"$lte": now}}
    return await db.targets.count_documents(query, limit=MAX_COUNTED)


async def page_of_visits(
    db: Database,
    name: str,
    times: tuple[datetime, datetime],
    hour_of_week: tuple[int, ZoneInfo] | None,
    limit: int,
    *,
    only_events: bool = False,
) -> Rows:
    """Read visits of a site, newest first, by an index.

    times:        from the first until before the second
    hour_of_week: 0 to 167 (0: Monday 00:00) in a zone, to read only visits in this hour
    only_events:  only visits that found a page new, changed, gone or back

    A page is longer than `limit` if several visits have the time of its last row. Its last key is
    this time, before which the next page begins.
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
        return Rows(rows, None)
    last = rows[limit - 1]["at"]
    same = await db.visits.find(query | {"at": last}).limit(MAX_SAME_TIME).to_list(None)
    return Rows([row for row in rows[:limit] if row["at"] != last] + same, (last,))


def spans_of_hour(
    times: tuple[datetime, datetime], hour: int, zone: ZoneInfo
) -> list[tuple[datetime, datetime]]:
    """Return the spans of an hour of the local week within `times`, newest first.

    Where a clock change skips the hour, its week has none; where the hour occurs twice, it has two.
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
