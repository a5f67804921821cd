"""`visits`: the change log, its repair after a crash, and its queries.

The log is append-only and has every acknowledged visit once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pymongo import ASCENDING, DESCENDING
from pymongo.errors import OperationFailure

from crawler.errors import ConfigError
from crawler.items import FAILED, SEEN, Event, Kind, Outcome, Visit
from crawler.storage.client import Database, Document, aggregated
from crawler.storage.paging import Key, Rows, read_page
from crawler.utils.urls import like

# Reason of a visit that found a page again.
WAS_GONE = "the page was gone before this visit"
# Maximum number of events to search and count.
MAX_EVENTS = 100_000
MAX_TITLES = 3
SUMS = ("changes", "update_size", "diff_size")
SUMMED: Document = {"changes": {"$sum": 1}} | {name: {"$sum": f"${name}"} for name in SUMS[1:]}
UNKNOWN_ZONE = 40485
NEWEST_FIRST = [("at", DESCENDING)]
BY_TARGET = [("target", ASCENDING), ("at", ASCENDING)]
# Maximum number of visits of a target or site to search for outcomes.
MAX_SEARCHED = 5000
MILLISECOND = timedelta(milliseconds=1)


async def latest(
    db: Database,
    spiders: Sequence[str],
    times: tuple[datetime | None, datetime | None],
    match: str | None,
    limit: int,
) -> tuple[list[Document], int, bool]:
    """Return the newest events of the change log: pages that are new, changed, gone or back.

    times: from the first until before the second; None: no limit
    match: part of the URL, as in `crawler.utils.urls.like`

    Returns at most `limit` rows of `visits`, the total number, and whether there are more than
    MAX_EVENTS events, so that older ones are neither searched nor counted.
    """
    query: Document = {"event": True, "spider": {"$in": list(spiders)}}
    since, until = times
    span = {} if since is None else {"$gte": since}
    span |= {} if until is None else {"$lt": until}
    if span:
        query["at"] = span
    newest: list[Document] = [
        {"$match": query}, {"$sort": {"at": DESCENDING}}, {"$limit": MAX_EVENTS + 1},
    ]  # fmt: skip
    matching: list[Document] = []
    if match is not None:
        matching = [{"$match": {"target": {"$regex": f"^{like(match)}", "$options": "i"}}}]
    shown = await aggregated(db.visits, [*newest, *matching, {"$limit": limit}])
    n_events = await db.visits.count_documents(query, limit=MAX_EVENTS + 1)
    total = n_events
    if matching:
        counting: list[Document] = [*newest, *matching, {"$count": "n"}]
        rows = await aggregated(db.visits, counting)
        total = rows[0]["n"] if rows else 0
    return shown, total, n_events > MAX_EVENTS


async def first_after(
    db: Database, spider: str, url: str, at: datetime, outcomes: Sequence[str]
) -> Document | None:
    """Return outcome and content of a target's first visit after a time with these outcomes."""
    query: Document = {"target": url, "spider": spider, "at": {"$gt": at}}
    fields: Document = {"outcome": 1, "content_hash": 1}
    query["outcome"] = {"$in": list(outcomes)}
    return await db.visits.find_one(query, fields, sort=[("at", ASCENDING)])


async def posts_of(db: Database, event: Document, limit: int) -> list[Document]:
    """Return new and edited posts of a feed's visit: `url`, `title`, `text` and their fields."""
    query: Document = {"spider": event["spider"], "changed_at": event["at"]}
    wanted = ("url", "title", "text", "fields")
    rows = db.posts.find(query | {"feed": event["target"]}, wanted).limit(limit)
    return [
        (row.get("fields") or {}) | {name: row.get(name) for name in wanted[:3]}
        async for row in rows
    ]


async def titles(db: Database, event: Document) -> list[str]:
    """Return the titles of posts that a feed's visit added or edited, at most MAX_TITLES."""
    query: Document = {"spider": event["spider"], "changed_at": event["at"]}
    rows = db.posts.find(query | {"feed": event["target"]}, {"title": 1}).limit(MAX_TITLES)
    return [str(row["title"]) async for row in rows if row.get("title")]


async def by_hour(
    db: Database, spider: str, zone: ZoneInfo, since: datetime | None = None,
    until: datetime | None = None,
) -> list[Document]:  # fmt: skip
    """Return rows of `day` (0 = Monday), `hour`, and the sums of changes and their sizes.

    since, until: only visits from then on, and before then
    """
    stages: list[Document] = [{"$group": {"_id": "$local"} | SUMMED}]
    rows = await _local(db, spider, zone, (since, until), stages)
    return [row.pop("_id") | row for row in rows]


async def by_url(
    db: Database, spider: str, zone: ZoneInfo, since: datetime | None = None, limit: int = 20
) -> list[Document]:
    """Return the `limit` URLs with most changes: `url`, the sums, and `hours` as in by_hour."""
    stages: list[Document] = [
        {"$group": {"_id": {"url": "$target", "local": "$local"}} | SUMMED},
        {
            "$group": {
                "_id": "$_id.url",
                "hours": {
                    "$push": {"$mergeObjects": ["$_id.local", {name: f"${name}" for name in SUMS}]}
                },
            }
            | {name: {"$sum": f"${name}"} for name in SUMS}
        },
        {"$sort": {"changes": -1, "_id": 1}},
        {"$limit": limit},
    ]
    rows = await _local(db, spider, zone, (since, None), stages)
    return [{"url": row.pop("_id")} | row for row in rows]


async def _local(
    db: Database, spider: str, zone: ZoneInfo, span: tuple[datetime | None, datetime | None],
    stages: list[Document],
) -> list[Document]:  # fmt: skip
    """Run stages on a spider's changes, each with its `local` day and hour in a zone."""
    # Every change is an event, so that the index of events has it.
    query: Document = {"event": True, "spider": spider, "changed": 1}
    since, until = span
    bounds = {"$gte": since, "$lt": until}
    if at := {name: bound for name, bound in bounds.items() if bound is not None}:
        query["at"] = at
    moment: dict[str, Any] = {"date": "$at", "timezone": str(zone)}
    local = {"day": {"$subtract": [{"$isoDayOfWeek": moment}, 1]}, "hour": {"$hour": moment}}
    fields = {"target": 1, "update_size": 1, "diff_size": 1, "local": local}
    pipeline: list[Document] = [{"$match": query}, {"$project": fields}, *stages]
    try:
        return await aggregated(db.visits, pipeline, allowDiskUse=True)
    except OperationFailure as error:
        if error.code != UNKNOWN_ZONE:
            raise
    # The server's time zone data is older than ours: use the zone's current offset.
    minutes = (datetime.now(zone).utcoffset() or timedelta(0)) // timedelta(minutes=1)
    moment["timezone"] = (
        f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    )
    return await aggregated(db.visits, pipeline, allowDiskUse=True)


def row_of(visit: Visit) -> Document:
    """Return the row of the change log for a visit (the paper's table 3.1, and more)."""
    fetched = visit.fetched
    row: Document = {
        "_id": visit.id,
        "at": fetched.at,
        "outcome": str(visit.outcome),
        "status": fetched.status,
        "get_size": fetched.size,
        "update_size": visit.update_size,
        "diff_size": visit.diff_size,
        "changed": int(visit.changed),
        "content_hash": fetched.content_hash or fetched.target.content_hash,
        "elapsed_ms": fetched.elapsed_ms,
        "fence": fetched.target.fence,
    }
    if collected := visit.collected:
        row |= {"posts_new": len(collected.new), "posts_edited": len(collected.edited)}
        row |= {"missed_posts": collected.missed_posts} if collected.missed_posts else {}
    if fetched.push is not None:
        row["pushed"] = True
    if fetched.shared_fetch:
        row["shared_fetch"] = True
    if is_event(visit):
        row["event"] = True
        row |= {"news": True} if is_news(visit) else {}
    if visit.broken is not None:
        row["broken"] = str(visit.broken.how)
    if visit.reason:
        row["reason"] = visit.reason
    if fetched.target.hinted:
        row["hint"] = fetched.target.hint
    if fetched.final_url:
        row["final_url"] = fetched.final_url
    if fetched.archived is not None:
        place = fetched.archived.place
        row["archived"] = {"file": place.file, "offset": place.offset, "length": place.length}
        row["archived"] |= {"revisit": True} if place.is_revisit else {}
    return row | _mark_of(visit)


def _mark_of(visit: Visit) -> Document:
    """Return the fields that mark a row for notifications; empty if no rule selects its events.

    They are part of the write that acknowledges the visit, so neither exists without the other.
    """
    if visit.wanted is None:
        return {}
    # The verdicts are those of the whole batch.
    verdicts = (visit.verdicts.get(post.key) for post in visit.candidates)
    duplicates = sum(verdict is not None and not verdict.is_original for verdict in verdicts)
    events = events_of(visit, duplicates) & visit.wanted.events
    if Event.FAILING in events and visit.consecutive_errors not in visit.wanted.failures:
        events -= {Event.FAILING}
    if not events:
        return {}
    row: Document = {"notify": True, "events": sorted(events)}
    if duplicates:
        row["duplicates"] = duplicates
    if visit.consecutive_errors:
        row["failures"] = visit.consecutive_errors
    return row


def events_of(visit: Visit, duplicates: int) -> frozenset[Event]:
    """Return the events of a visit. duplicates: number of near-duplicates that it stores."""
    events: set[Event] = set()
    if is_event(visit) and is_news(visit):
        is_back = visit.outcome in SEEN and visit.fetched.target.consecutive_gone > 0
        if visit.outcome is Outcome.GONE:
            events.add(Event.GONE)
        elif visit.has_new_content:
            events.add(Event.NEW if visit.outcome is Outcome.NEW else Event.CHANGED)
        if is_back:
            events.add(Event.BACK)
    if duplicates:
        events.add(Event.NEAR_DUPLICATE)
    if visit.consecutive_errors:
        events.add(Event.FAILING)
    return frozenset(events)


def is_event(visit: Visit) -> bool:
    """Return whether a visit found a page that is new, changed, gone, or back after it was gone."""
    target = visit.fetched.target
    if visit.alias_of is not None:
        return False
    if visit.outcome is Outcome.GONE:
        # A dead link never was a page, so it cannot be gone.
        return visit.consecutive_gone == 1 and target.content_hash is not None
    is_back = visit.outcome in SEEN and target.consecutive_gone > 0
    return is_back or visit.outcome in (Outcome.NEW, Outcome.CHANGED)


def is_news(visit: Visit) -> bool:
    """Return whether people are told of an event.

    They are not told of the pages of the first crawl of a site and the posts of the first visit of
    a feed, which are there to begin with, nor of new links on list pages, as they are told of the
    items.
    """
    kind = visit.fetched.target.kind
    if visit.outcome is Outcome.NEW:
        return not visit.is_baseline and kind not in (Kind.LIST, Kind.FEED)
    return not (kind is Kind.LIST and visit.outcome is Outcome.CHANGED)


def log_row_of(visit: Visit) -> Document:
    """Return the row as stored in `visits`: with the names of spider and target."""
    target = visit.fetched.target
    return {"spider": target.spider, "target": target.url} | row_of(visit)


async def recover(
    db: Database, spider: str, since: datetime, keys: Sequence[str] | None = None
) -> None:
    """Copy to the log the acknowledged visits since `since` that a crash kept out of it.

    keys: only visits of these targets
    """
    query: Document = {"spider": spider, "last_visit.at": {"$gte": since}}
    if keys is not None:
        query["_id"] = {"$in": list(keys)}
    pipeline: list[Document] = [
        {"$match": query},
        {
            "$replaceRoot": {
                "newRoot": {
                    "$mergeObjects": [{"spider": "$spider", "target": "$url"}, "$last_visit"]
                }
            }
        },
        {"$merge": {"into": "visits", "on": "_id", "whenMatched": "keepExisting"}},
    ]
    await aggregated(db.targets, pipeline)


async def by_outcome(db: Database, spider: str, since: datetime) -> list[Document]:
    """Return visits, bytes and posts since a time by `outcome`, without hub deliveries."""
    summed: Document = {
        "visits": {"$sum": 1},
        "bytes": {"$sum": "$get_size"},
        "posts": {"$sum": "$posts_new"},
        "edited posts": {"$sum": "$posts_edited"},
        "missed posts": {"$sum": "$missed_posts"},
    }
    query: Document = {"spider": spider, "at": {"$gte": since}, "pushed": {"$ne": True}}
    stages: list[Document] = [{"$match": query}, {"$group": {"_id": "$outcome"} | summed}]
    return await aggregated(db.visits, stages)


async def by_kind(db: Database, spider: str, since: datetime) -> list[Document]:
    """Return targets visited since a time by kind (`_id`), as `pages`; without hub deliveries."""
    query: Document = {"spider": spider, "last_visit.at": {"$gte": since}}
    query["last_visit.pushed"] = {"$ne": True}
    stages: list[Document] = [{"$match": query}, {"$group": {"_id": "$kind", "pages": {"$sum": 1}}}]
    return await aggregated(db.targets, stages)


async def failing_pages(db: Database, spider: str) -> tuple[int, datetime | None]:
    """Return how many pages failed since the last visit that did not, and when the first of them.

    Reads at most MAX_SEARCHED visits, so that the time may be later than the true one.
    """
    query: Document = {"spider": spider, "pushed": {"$ne": True}}
    fields: Document = {"_id": 0, "outcome": 1, "target": 1, "at": 1}
    newest = db.visits.find(query, fields).sort(NEWEST_FIRST).limit(MAX_SEARCHED)
    urls, since = set[str](), None
    async for row in newest:
        if row["outcome"] not in FAILED:
            break
        urls.add(row["target"])
        since = row["at"]
    return len(urls), since


async def count_since(db: Database, spiders: list[str], since: datetime) -> int:
    """Return the number of requests that these spiders made since a time.

    Hub deliveries are not requests, and cells of one page share a request.
    """
    query: Document = {"spider": {"$in": spiders}, "at": {"$gte": since}}
    pushed = await db.visits.count_documents(query | {"pushed": True})
    shared = await db.visits.count_documents(query | {"shared_fetch": True})
    return await db.visits.count_documents(query) - pushed - shared


async def of_target(db: Database, spider: str, url: str, limit: int = 0) -> list[Document]:
    """Return the visits of a target, oldest first; only the last `limit` if it is not 0."""
    cursor = db.visits.find({"target": url, "spider": spider}).sort("at", DESCENDING)
    rows = await cursor.limit(limit).to_list(None)
    return rows[::-1]


async def page_of_target(
    db: Database, spider: str, url: str, outcomes: Sequence[str], limit: int, after: Key | None
) -> Rows:
    """Read a page of the visits of a target, newest first.

    outcomes: only visits with these outcomes; empty: all visits

    With `outcomes`, at most MAX_SEARCHED visits are read, so a page may have fewer rows than
    `limit` although more follow; `last` is not None in this case.
    """
    query: Document = {"target": url, "spider": spider}
    if (before := time_of(after)) is not None:
        query["at"] = {"$lt": before}
    if not outcomes:
        return await read_page(db.visits, query, NEWEST_FIRST, limit)
    # Reads only keys of the index, and so counts the rare visits of other spiders to the same URL.
    keys = {name: value for name, value in query.items() if name != "spider"}
    place = db.visits.find(keys, {"_id": 0, "at": 1}, hint=BY_TARGET).sort(NEWEST_FIRST)
    searched = await place.skip(MAX_SEARCHED).limit(1).to_list(None)
    query["outcome"] = {"$in": list(outcomes)}
    if searched:
        query["at"] = query.get("at", {}) | {"$gt": searched[0]["at"]}
    found = await read_page(db.visits, query, NEWEST_FIRST, limit)
    if found.last is None and searched:
        # The next page begins with the first visit that was not searched.
        return Rows(found.rows, (searched[0]["at"] + MILLISECOND,))
    return found


def time_of(after: Key | None) -> datetime | None:
    """Return the time in the key of a row; None without a key. Raises ConfigError for other keys.

    A target has one visit at a time, so that the time is a unique key of its visits.
    """
    if after is None:
        return None
    if len(after) == 1 and isinstance(after[0], datetime):
        return after[0]
    raise ConfigError("cursor: not valid. Begin with the first page")
