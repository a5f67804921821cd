"""Queries for the inbox of changes and for notifications: events that people are told of.

These are the events of the change log that are news; see `crawler.storage.visits.is_news`.

Visits and alarms that notification rules select are stored with a mark (`notify`), which is removed
once their messages are stored.

Each query reads a bounded number of documents by an index, however long the log is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bson import ObjectId

from crawler.items import Outcome
from crawler.storage.client import Database, Document, aggregated
from crawler.storage.paging import Key, Rows, read_page
from crawler.storage.readers import Reader
from crawler.utils.time import EPOCH

# Lower than all ids: sorted newest first, no event at the same time comes after it.
FIRST_ID = ObjectId("0" * 24)
NEWEST_FIRST = [("at", -1), ("_id", -1)]
BY_TIME = [("news", 1), ("at", 1), ("_id", 1)]
BY_SITE = [("news", 1), ("spider", 1), ("at", 1), ("_id", 1)]
BATCH = 1000
# Maximum number of sites whose events the server merges; each adds a branch to the query.
MAX_MERGED = 200
OLDEST_FIRST = (("at", 1), ("_id", 1))
# Collections with marked events: documents with `at`, `spider` and `target`.
SOURCES = ("visits", "alarms")
# Marked events that are read together.
MAX_MARKED = 200
# Maximum number of unread changes of a page that are joined. The net difference begins
# before the oldest of them.
MAX_JOINED = 50
# Condition on the visits of `_of_same_urls`: those of the event's own spider.
OF_SPIDER: Document = {"$expr": {"$eq": ["$spider", "$$spider"]}}
# Uncompressed bytes. Larger contents are not compared in the inbox.
MAX_CONTENT_BYTES = 400_000
# Maximum bytes of all contents that are read together.
MAX_BYTES = 40_000_000
FIELDS: Document = {
    "spider": 1, "target": 1, "at": 1, "outcome": 1, "diff_size": 1, "content_hash": 1,
    "reason": 1, "status": 1, "posts_new": 1, "posts_edited": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageState:
    """A page before and after some of its changes.

    content_hash: None if the page was not known
    is_gone:      whether the page did not exist then
    """

    content_hash: str | None
    is_gone: bool


NEVER_SEEN = PageState(None, is_gone=False)


async def newest(
    db: Database,
    reader: Reader,
    until: datetime,
    limit: int,
    after: Key | None = None,
    spider: str | None = None,
) -> Rows:
    """Return events up to `until`, newest first, without most of those that a reader has read.

    after:  key (time, `_id`) of the last event of the previous page
    spider: only events of this spider
    """
    span: Document = {"$lte": until if after is None else min(until, after[0])}
    if reader.read_until is not None:
        span["$gt"] = reader.read_until
    query: Document = {"news": True, "at": span}
    if after is not None:
        # The bound above is a part of the key, so that the index begins there.
        query["$nor"] = [{"at": after[0], "_id": {"$gte": after[1]}}]
    hint = BY_TIME
    if spider is not None:
        query, hint = query | {"spider": spider}, BY_SITE
    elif reader.sources:
        query, hint = _by_site(query, reader, await db.targets.distinct("spider"))
    cursor = db.visits.find(query, FIELDS, hint=hint).sort(NEWEST_FIRST).limit(limit + 1)
    rows = await cursor.to_list(None)
    if len(rows) <= limit:
        return Rows(rows, None)
    return Rows(rows[:limit], (rows[limit - 1]["at"], rows[limit - 1]["_id"]))


def _by_site(
    query: Document, reader: Reader, spiders: Sequence[str]
) -> tuple[Document, list[tuple[str, int]]]:
    """Return a query for the events after the reader's position in each site, and its index.

    The server merges the sites in order of time. With more than MAX_MERGED sites, it scans
    the events of all sites instead, and drops those that the reader has read.
    """
    if len(spiders) > MAX_MERGED:
        read = [{"spider": name, "at": {"$lte": at}} for name, at in reader.sources.items()]
        return query | {"$nor": [*query.get("$nor", ()), *read]}, BY_TIME
    branches = []
    for name in spiders:
        until = reader.until_of(name)
        since = {} if until is None else {"$gt": until}
        branches.append(query | {"spider": name, "at": query["at"] | since})
    return {"$or": branches} if branches else query, BY_SITE if branches else BY_TIME


async def oldest(db: Database, since: datetime | None, until: datetime, limit: int) -> Rows:
    """Return events after `since` and up to `until`, oldest first."""
    query: Document = {"news": True, "at": {"$lte": until}}
    if since is not None:
        query["at"]["$gt"] = since
    fields = {"spider": 1, "target": 1, "at": 1}
    return await read_page(db.visits, query, OLDEST_FIRST, limit, None, fields)


async def count(
    db: Database,
    since: datetime | None,
    limit: int,
    spider: str | None = None,
    until: datetime | None = None,
) -> int:
    """Return the number of events after `since`, at most `limit`. until: count up to this time."""
    query: Document = {"news": True}
    if spider is not None:
        query["spider"] = spider
    # A comparison needs only the index; `$exists` would read the documents.
    query["at"] = {"$gt": since or EPOCH} | ({} if until is None else {"$lte": until})
    return await db.visits.count_documents(query, limit=limit)


async def places(
    db: Database, since: datetime | None, limit: int, spider: str | None = None
) -> AsyncIterator[tuple[str, str, datetime]]:
    """Yield spider, target and time of the events after `since`, newest first, at most `limit`."""
    query: Document = {"news": True, "at": {"$gt": since or EPOCH}}
    hint = BY_TIME if spider is None else BY_SITE
    if spider is not None:
        query["spider"] = spider
    fields = {"spider": 1, "target": 1, "at": 1}
    cursor = db.visits.find(query, fields, hint=hint).sort(NEWEST_FIRST).limit(limit)
    while rows := await cursor.to_list(BATCH):
        for row in rows:
            yield row["spider"], row["target"], row["at"]


async def by_ids(db: Database, ids: Sequence[ObjectId]) -> list[Document]:
    """Return events by their ids; unknown ids are left out."""
    query: Document = {"_id": {"$in": list(ids)}, "event": True}
    return await db.visits.find(query, FIELDS).to_list(None)


async def of_pages(
    db: Database, ids: Sequence[ObjectId], since: datetime | None, until: datetime
) -> dict[ObjectId, list[Document]]:
    """Return for each event all events of its page in a span of time, newest first.

    At most MAX_JOINED for each page.
    """
    span: Document = {"$lte": until} if since is None else {"$gt": since, "$lte": until}
    stages: list[Document] = [
        {"$match": {"news": True, "at": span} | OF_SPIDER},
        {"$sort": {"at": -1}},
        {"$limit": MAX_JOINED},
        {"$project": FIELDS},
    ]
    return await _of_same_urls(db, ids, stages)


async def _of_same_urls(
    db: Database, ids: Sequence[ObjectId], stages: list[Document]
) -> dict[ObjectId, list[Document]]:
    """Return for each event the result of a pipeline on the visits of its URL.

    stages: may use `$$spider` and `$$at` of the event
    """
    lookup = {
        "from": "visits",
        "localField": "target",
        "foreignField": "target",
        "let": {"spider": "$spider", "at": "$at"},
        "pipeline": stages,
        "as": "visits",
    }
    pipeline: list[Document] = [
        {"$match": {"_id": {"$in": list(ids)}}},
        {"$lookup": lookup},
        {"$project": {"visits": 1}},
    ]
    rows = await aggregated(db.visits, pipeline)
    return {row["_id"]: row["visits"] for row in rows}


async def before(db: Database, ids: Sequence[ObjectId]) -> dict[ObjectId, PageState]:
    """Return for each event its page before the event, as the preceding visit left it."""
    stages: list[Document] = [
        {"$match": {"$expr": {"$lt": ["$at", "$$at"]}}},
        {"$sort": {"at": -1}},
        {"$match": OF_SPIDER},
        {"$limit": 1},
        {"$project": {"_id": 0, "content_hash": 1, "outcome": 1}},
    ]
    earlier = await _of_same_urls(db, ids, stages)
    return {
        id_: PageState(rows[0].get("content_hash"), rows[0]["outcome"] == Outcome.GONE)
        if rows
        else NEVER_SEEN
        for id_, rows in earlier.items()
    }


async def contents(db: Database, keys: Sequence[str]) -> tuple[dict[str, Document], int]:
    """Return stored contents by the `_id` of their versions, and their uncompressed bytes.

    Omits contents larger than MAX_CONTENT_BYTES, and those that would exceed MAX_BYTES in total.
    """
    sizes = await _sizes(db, keys)
    wanted, total = [], 0
    for key in keys:
        size = sizes.get(key, MAX_CONTENT_BYTES + 1)
        if size <= MAX_CONTENT_BYTES and total + size <= MAX_BYTES:
            wanted.append(key)
            total += size
    query: Document = {"_id": {"$in": wanted}}
    rows = db.versions.find(query, {"content": 1})
    by_key = {row["_id"]: row["content"] async for row in rows if row.get("content") is not None}
    return by_key, total


async def with_contents(
    db: Database, events: Sequence[Document]
) -> AsyncIterator[tuple[Document, Document | None, Document | None]]:
    """Yield events in their order, each with the contents of its page before and after it.

    A content is None if it is not stored. At most MAX_BYTES of contents are in memory at a time,
    unless the contents of a single event are larger.

    events: rows of `visits`; others, such as alarms, have no contents
    """
    states = await before(db, [event["_id"] for event in events if "outcome" in event])
    keys: list[Sequence[str]] = []
    for event in events:
        state = states.get(event["_id"])
        hashes = () if state is None else (state.content_hash, event.get("content_hash"))
        keys.append([f"{event['spider']} {event['target']} {each}" for each in hashes])
    sizes = await _sizes(db, [key for pair in keys for key in pair])
    start = 0
    while start < len(events):
        stop, total = start, 0
        while stop < len(events):
            total += sum(sizes.get(key, 0) for key in keys[stop])
            if total > MAX_BYTES and stop > start:
                break
            stop += 1
        query: Document = {"_id": {"$in": [key for pair in keys[start:stop] for key in pair]}}
        rows = db.versions.find(query, {"content": 1})
        stored = {row["_id"]: row["content"] async for row in rows}
        for event, pair in zip(events[start:stop], keys[start:stop], strict=True):
            earlier, later = map(stored.get, pair or ("", ""))
            yield event, earlier, later
        # Free these contents before the next ones are read.
        stored.clear()
        start = stop


async def _sizes(db: Database, keys: Sequence[str]) -> dict[str, int]:
    """Return the uncompressed bytes of versions."""
    stages: list[Document] = [
        {"$match": {"_id": {"$in": list(keys)}}},
        {"$project": {"size": {"$bsonSize": "$$ROOT"}}},
    ]
    cursor = await db.versions.aggregate(stages)
    return {row["_id"]: row["size"] async for row in cursor}


async def categories(db: Database, keys: Sequence[str]) -> Mapping[str, list[str]]:
    """Return the categories of targets by their `_id`, at most ten per target."""
    query: Document = {"_id": {"$in": list(keys)}, "categories.0": {"$exists": True}}
    rows = db.targets.find(query, {"categories": {"$slice": 10}})
    return {row["_id"]: row["categories"] async for row in rows}


@dataclass(frozen=True, slots=True)
class MarkedEvent:
    """An event to which the rules have not been applied.

    source: its collection
    row:    its document
    """

    source: str
    row: Document

    @property
    def key(self) -> str:
        """Return the key of the event among all sources, from which message ids are made."""
        return f"{self.source} {self.row['_id']}"


async def marked(db: Database, limit: int = MAX_MARKED) -> list[MarkedEvent]:
    """Return the oldest events to which the rules have not been applied, in order of time.

    They include all marked events of a source up to the last one returned.
    """
    events: list[MarkedEvent] = []
    for source in SOURCES:
        cursor = db[source].find({"notify": True}).sort(list(OLDEST_FIRST)).limit(limit)
        events += [MarkedEvent(source, row) async for row in cursor]
    events.sort(key=lambda event: (event.row["at"], event.key))
    return events[:limit]


async def newest_of_all(db: Database, limit: int) -> list[MarkedEvent]:
    """Return the newest events of all sites, with alarms, whether marked or not, newest first."""
    events: list[MarkedEvent] = []
    for source, query in (("visits", {"news": True}), ("alarms", {})):
        cursor = db[source].find(query).sort(NEWEST_FIRST).limit(limit)
        events += [MarkedEvent(source, row) async for row in cursor]
    events.sort(key=lambda event: (event.row["at"], event.key), reverse=True)
    return events[:limit]


async def oldest_mark(db: Database) -> datetime | None:
    """Return the time of the oldest event to which the rules have not been applied; else None."""
    events = await marked(db, 1)
    return events[0].row["at"] if events else None


async def count_marked(db: Database, limit: int) -> int:
    """Return the number of events to which the rules have not been applied, at most `limit`."""
    counts = [await db[source].count_documents({"notify": True}, limit=limit) for source in SOURCES]
    return min(sum(counts), limit)


async def unmark(db: Database, events: Sequence[MarkedEvent]) -> None:
    """Remove the marks of events whose messages are stored."""
    for source in SOURCES:
        if ids := [event.row["_id"] for event in events if event.source == source]:
            await db[source].update_many({"_id": {"$in": ids}}, {"$unset": {"notify": ""}})
