"""Sites for users: their states, targets and visits in lists, and statistics.

Each list of targets follows one index. Conditions that the index does not have are tested on at
most MAX_SCANNED targets for each page, so that a page takes bounded time; the next page continues
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from pymongo import ASCENDING, DESCENDING
from pymongo.asynchronous.collection import AsyncCollection

from crawler.items import Kind
from crawler.storage import plans, runs, sites, target_queries, targets
from crawler.storage.client import Database, Document, aggregated, all_of, count_by
from crawler.storage.paging import (
    MAX_SCANNED,
    Key,
    Listing,
    Order,
    Rows,
    aggregated_targets,
    draw_keys,
    keys_of,
    search_page,
)
from crawler.storage.runs import MAX_COUNTED
from crawler.storage.sites import Marks
from crawler.storage.target_queries import FIELDS, TargetState
from crawler.storage.targets import ALIVE, BY_TIME, MUTED
from crawler.utils.time import NEVER
from crawler.utils.urls import like

# Targets are overdue after this time, because plans have a resolution of an hour.
OVERDUE = timedelta(hours=1)
# Maximum number of failing targets to group, and of groups and categories to return.
MAX_FAILING = 200_000
MAX_GROUPS = 100
MAX_CATEGORIES = 2000
# Maximum number of categories to count, to return those with most targets.
MAX_COUNTED_CATEGORIES = 50_000
# Targets to draw for each history, because some targets were never observed.
MAX_DRAWN_FACTOR = 2
NO_MARKS = Marks()
BY_KIND = [("spider", ASCENDING), ("kind", ASCENDING)]
# Maximum number of visits with the same time in a list: a site has far fewer requests in flight.
MAX_SAME_TIME = 1000
# Most overdue targets of a site among which one is sought whose host did not request a pause.
MAX_WAITING = 200
# Visits that are not requests: hub deliveries, and cells that shared the fetch of another cell.
NO_REQUEST: Document = {"$or": [{"$eq": ["$pushed", True]}, {"$eq": ["$shared_fetch", True]}]}


class TargetStatus(StrEnum):
    """A state to filter targets by."""

    DUE = "due"
    OVERDUE = "overdue"
    ERROR = "error"
    GONE = "gone"
    MUTED = "muted"


class Sorting(StrEnum):
    """An order of targets."""

    URL = "url"
    SOONEST = "soonest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TargetFilter:
    """Conditions on the targets of a site; None: all.

    text: part of the URL, a pattern of `crawler.utils.urls.like`
    """

    kind: Kind | None = None
    category: str | None = None
    status: TargetStatus | None = None
    text: str | None = None
    sorting: Sorting = Sorting.URL


@dataclass(frozen=True, slots=True)
class TargetPage:
    """A page of targets.

    last:       key after which the next page begins; None: no more targets
    is_partial: whether the search stopped at its limit, so that a page may have few rows
    """

    rows: list[TargetState]
    last: Key | None
    is_partial: bool = False


async def page_of_targets(
    db: Database, spider: str, wanted: TargetFilter, now: datetime, limit: int, after: Key | None
) -> TargetPage:
    """Return a page of the targets of a site. after: last key of the previous page; None: first."""
    indexed, order, rest = query_of(spider, wanted, now)
    # Without it, the server tries all indexes of the spider, which takes 30 times as long.
    listing = Listing(indexed, rest, order, _index_of(indexed, order))
    fields = dict.fromkeys(FIELDS, 1)
    found, is_partial = await search_page(db.targets, listing, limit, after, fields, MAX_SCANNED)
    rows = [target_queries.state_of(row) for row in found.rows]
    return TargetPage(rows, found.last, is_partial)


def query_of(
    spider: str | None, wanted: TargetFilter, now: datetime, spiders: Sequence[str] = ()
) -> tuple[Document, Order, Document]:
    """Return the conditions that an index has, its order, and the other conditions.

    spiders: names of all spiders with targets, for a query without `spider`
    """
    indexed: Document = {"spider": {"$in": list(spiders)} if spider is None else spider}
    rest: Document = {}
    order: Order = [("spider", ASCENDING), ("url", ASCENDING)]
    status, is_by_time = wanted.status, wanted.sorting is not Sorting.URL
    if status in (TargetStatus.DUE, TargetStatus.OVERDUE) or (status is None and is_by_time):
        direction = DESCENDING if wanted.sorting is Sorting.LATEST else ASCENDING
        order = [("next_visit", direction), ("url", direction)]
        until = {TargetStatus.DUE: now, TargetStatus.OVERDUE: now - OVERDUE}
        indexed["next_visit"] = {"$lte": until[status]} if status else {"$lt": NEVER}
    elif status is TargetStatus.ERROR:
        order = [(name, DESCENDING) for name in ("spider", "consecutive_errors", "url")]
        indexed["consecutive_errors"] = {"$gt": 0}
    elif status in (TargetStatus.GONE, TargetStatus.MUTED):
        indexed |= MUTED if status is TargetStatus.MUTED else {"gone": True}
    elif wanted.category is not None:
        indexed["categories"] = wanted.category
    elif wanted.kind is not None:
        indexed["kind"] = str(wanted.kind)
    else:
        order = [("_id", ASCENDING)]
        indexed = {} if spider is None else {"_id": keys_of(spider)}
    if status is TargetStatus.DUE:
        rest |= ALIVE
    if wanted.category is not None and "categories" not in indexed:
        rest["categories"] = wanted.category
    if wanted.kind is not None and "kind" not in indexed:
        rest["kind"] = str(wanted.kind)
    if wanted.text:
        # The last field of the index, so that documents that do not match are not read.
        name, start = ("_id", "^[^ ]+ ") if order[0][0] == "_id" else ("url", "^")
        rest[name] = {"$regex": f"{start}{like(wanted.text)}", "$options": "i"}
    # The keys of pages, and cursors, do not repeat the name of a single spider.
    return indexed, [key for key in order if spider is None or key[0] != "spider"], rest


def _index_of(indexed: Document, order: Order) -> list[tuple[str, int]]:
    """Return the keys of the index that has the conditions and the order of a query."""
    if "_id" in indexed:
        return [("_id", ASCENDING)]
    if "gone" in indexed:
        return [(name, ASCENDING) for name in ("gone", "spider", "url")]
    if "muted_at" in indexed:
        return [(name, ASCENDING) for name in ("spider", "url")]
    names = dict.fromkeys((*indexed, *(name for name, _ in order)))
    return [(name, ASCENDING) for name in names]


@dataclass(frozen=True, slots=True)
class TargetProfile:
    """Statistics of the targets of a site.

    categories: number of targets in each category, the MAX_CATEGORIES with most targets
    slots:      rows of `weeks`, `slot` and `targets` of planned targets
    even:       rows of `per_week`, of planned targets with even intervals
    """

    categories: dict[str, int]
    slots: list[Document]
    even: list[Document]


async def profile_of(db: Database, spider: str) -> TargetProfile:
    """Read all targets of a site, part by part with pauses.

    Rare categories are left out if 10,000 targets have more than 4,000 categories, or a site has
    more than MAX_COUNTED_CATEGORIES.
    """
    facets = {
        "categories": [
            {"$unwind": "$categories"},
            {"$group": {"_id": "$categories", "n": {"$sum": 1}}},
            # The results of a part are one document.
            {"$sort": {"n": DESCENDING, "_id": ASCENDING}},
            {"$limit": 2 * MAX_CATEGORIES},
        ],
        "slots": plans.slots(),
        "even": plans.even(),
    }
    categories: Counter[str] = Counter()
    slots: Counter[tuple[int, int]] = Counter()
    per_week = 0.0
    async for (part,) in aggregated_targets(db, [{"$facet": facets}], spider):
        for row in part["categories"]:
            categories[row["_id"]] += row["n"]
        for row in part["slots"]:
            slots[row.get("weeks") or 1, row["slot"]] += row["targets"]
        per_week += sum(row["per_week"] for row in part["even"])
        if len(categories) > MAX_COUNTED_CATEGORIES:
            categories = Counter(dict(categories.most_common(MAX_COUNTED_CATEGORIES // 2)))
    return TargetProfile(
        dict(sorted(categories.items(), key=lambda row: (-row[1], row[0]))[:MAX_CATEGORIES]),
        [{"weeks": weeks, "slot": at, "targets": n} for (weeks, at), n in slots.items()],
        [{"per_week": per_week}],
    )


async def kinds_of(db: Database, spider: str) -> dict[str, int]:
    """Return the number of targets of each kind, by keys of an index only."""
    counts = {
        str(kind): await db.targets.count_documents({"spider": spider, "kind": str(kind)})
        for kind in Kind
    }
    return {kind: n for kind, n in counts.items() if n}


async def failures_of(db: Database, spider: str) -> list[dict[str, Any]]:
    """Return the failing targets of a site by cause, most targets first, at most MAX_GROUPS rows.

    Each row has `reason`, `targets`, and the `first` and the `last` failure: `url`, `at`, `status`.
    Only the last visit of each target counts; at most MAX_FAILING targets are read.
    """
    example = {"url": "$url", "at": "$last_visit.at", "status": "$last_visit.status"}

    def extreme(operator: str) -> Document:
        return {operator: {"sortBy": {"last_visit.at": 1, "url": 1}, "output": example}}

    pipeline: list[Document] = [
        {"$match": {"spider": spider, "consecutive_errors": {"$gt": 0}}},
        {"$limit": MAX_FAILING},
        {
            "$group": {
                "_id": {"$ifNull": ["$last_visit.reason", "$outcome"]},
                "targets": {"$sum": 1},
                "first": extreme("$top"),
                "last": extreme("$bottom"),
            }
        },
        {"$sort": {"targets": DESCENDING, "_id": ASCENDING}},
        {"$limit": MAX_GROUPS},
        {"$project": {"_id": 0, "reason": "$_id", "targets": 1, "first": 1, "last": 1}},
    ]
    return await aggregated(db.targets, pipeline)


async def sample_histories(db: Database, spider: str, size: int) -> list[Document]:
    """Return `history` of a random sample of the observed targets of a site."""
    # In the order in which they were drawn: the server returns them by URL.
    keys = await draw_keys(db, spider, MAX_DRAWN_FACTOR * size)
    query: Document = {"_id": {"$in": keys}, "history.until": {"$exists": True}}
    found = {row["_id"]: row["history"] async for row in db.targets.find(query, {"history": 1})}
    return [found[key] for key in keys if key in found][:size]


@dataclass(frozen=True, slots=True)
class SiteState:
    """The state of a site, read by a few keys of indexes.

    started, finished, reason, counts: of the last run
    next_visit: earliest planned visit, not before the end of a pause that its host requested; None
                if no visit is planned
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


async def states_of(db: Database, names: list[str], now: datetime | None = None) -> list[SiteState]:
    """Return the states of some sites, in their order; everything is empty for an unknown one.

    now: delays the next visits of hosts that are paused now; None: of no host
    """
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
    holds = {} if now is None else await runs.held_hosts(db, now)
    for name, first in planned.items() if holds else ():
        first["next_visit"] = await _after_pauses(db, name, holds)
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


async def state_of(db: Database, name: str, now: datetime | None = None) -> SiteState:
    """Return the state of one site, as `states_of`."""
    (state,) = await states_of(db, [name], now)
    return state


async def _after_pauses(db: Database, name: str, holds: Mapping[str, datetime]) -> datetime:
    """Return the earliest planned visit of a site of which some hosts requested pauses."""
    first = db.targets.find({"spider": name}, {"next_visit": 1, "host": 1})
    return min(
        [
            max(row["next_visit"], holds.get(row.get("host", ""), row["next_visit"]))
            async for row in first.sort(BY_TIME[:2]).limit(MAX_WAITING)
        ],
        default=NEVER,
    )


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
    rows = await aggregated(collection, stages)
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
    return await count_by(db.visits, "outcome", {"spider": name, "at": {"$gte": started}})


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
