"""`boilerplate`: what the posts of each source have in common, learned as posts come.

One document a source, which every worker reads and changes with each batch that has posts of it.
A change is made to the revision that was read, or not at all. So whoever finds something to be
boilerplate knows all earlier posts that have it, and notes that they have to be compared again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
from bson import Binary
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawler.sketches.boilerplate import MAX_POSTS, Sourced, Table, weighed
from crawler.sketches.claim import Candidate
from crawler.storage.bulk import DUPLICATE_KEY
from crawler.storage.client import Document
from crawler.storage.duplicates.registry import Registry

logger = logging.getLogger(__name__)
# Workers that write the same source at the same moment; who loses each time only reads.
TRIES = 5
# The sources that have learned longest ago are dropped, to be learned again if they come back.
MAX_SOURCES = 20_000
# Tables that a worker keeps in memory, 40 kB each.
MAX_TABLES = 500


@dataclass(slots=True)
class Weighing:
    """Posts as they are compared now.

    candidates: those that were given, and earlier ones whose boilerplate has become known since
    again:      the versions to note for the earlier ones, by source and post
    """

    candidates: list[Candidate]
    again: dict[str, dict[str, int]] = field(default_factory=dict)


async def weigh(registry: Registry, candidates: Sequence[Candidate], now: datetime) -> Weighing:
    """Learn from posts and take what is boilerplate by now out of their sketches."""
    tables = await learn(registry, candidates, now)
    found = Weighing([_weighed(one, tables) for one in candidates])
    given = {one.key for one in candidates}
    due = {
        post: source for source, table in tables.items() for post in table.pending.keys() - given
    }
    for candidate in await registry.read_again(sorted(due)) if registry.read_again and due else []:
        found.candidates.append(replace(_weighed(candidate, tables), edited=True))
        given.add(candidate.key)
    for source, table in tables.items():
        if done := {post: table.pending[post] for post in table.pending.keys() & given}:
            found.again[source] = done
    return found


def _weighed(candidate: Candidate, tables: dict[str, Table]) -> Candidate:
    text = candidate.text
    if text is None or text.source not in tables:
        return candidate
    sketch = weighed(candidate.sketch, text, tables[text.source])
    return candidate if sketch is candidate.sketch else replace(candidate, sketch=sketch)


async def learn(
    registry: Registry, candidates: Iterable[Candidate], now: datetime
) -> dict[str, Table]:
    """Learn from posts; what is known of their sources then."""
    texts: defaultdict[str, list[tuple[str, Sourced]]] = defaultdict(list)
    for one in sorted(candidates, key=lambda one: (one.created, one.key)):
        if one.text is not None:
            texts[one.text.source].append((one.key, one.text))
    if registry.boilerplate is None or not texts:
        return {}
    tables: dict[str, Table] = {}
    waiting: Collection[str] = texts.keys()
    for _ in range(TRIES):
        read = await _read(registry, waiting)
        for source in waiting:
            table, _ = read[source]
            for key, text in texts[source]:
                table.learn(key, text)
            tables[source] = table
        waiting = await _write(registry, {source: read[source] for source in waiting}, now)
        if not waiting:
            return tables
    # What is known is used all the same; the next post of the source teaches again.
    logger.debug("%d sources are learned from by others at the same moment", len(waiting))
    return tables | {
        source: table for source, (table, _) in (await _read(registry, waiting)).items()
    }


async def tables_of(registry: Registry, sources: Iterable[str]) -> dict[str, Table]:
    """Return what is known of these sources."""
    return {source: table for source, (table, _) in (await _read(registry, set(sources))).items()}


async def _read(registry: Registry, sources: Collection[str]) -> dict[str, tuple[Table, int]]:
    """The tables of sources with their revisions; 0 where nothing is known."""
    assert registry.boilerplate is not None
    kept = {source: registry.tables.pop(source) for source in sources if source in registry.tables}
    query: Document = {"_id": {"$in": list(kept)}}
    current = registry.boilerplate.find(query, {"revision": 1}) if kept else None
    for row in await current.to_list(None) if current is not None else []:
        if row["revision"] != kept[row["_id"]][1]:
            del kept[row["_id"]]
    found = {source: kept.get(source, (Table(source), 0)) for source in sources}
    if missing := [source for source in sources if source not in kept]:
        async for row in registry.boilerplate.find({"_id": {"$in": missing}}):
            found[row["_id"]] = (_table_of(row), row["revision"])
    return found


def _table_of(row: Document) -> Table:
    posts = {one["post"]: np.frombuffer(one["marks"], "<u4") for one in row["posts"]}
    pending = {one["post"]: one["version"] for one in row["pending"]}
    common = np.frombuffer(row["common"], "<u4")
    return Table(row["_id"], row["version"], posts, common, pending)


async def _write(registry: Registry, read: dict[str, tuple[Table, int]], now: datetime) -> set[str]:
    """Store what was learned; the sources that somebody else has changed meanwhile."""
    assert registry.boilerplate is not None
    taught = [one for one in read.values() if one[0].taught]
    lost = set[str]()
    if taught:
        try:
            done = await registry.boilerplate.bulk_write(
                [_update_of(*one, now) for one in taught], ordered=False
            )
        except BulkWriteError as error:
            problems = error.details["writeErrors"]
            if any(problem["code"] != DUPLICATE_KEY for problem in problems):
                raise
            lost = {taught[problem["index"]][0].source for problem in problems}
        else:
            if done.upserted_count:
                await _bound(registry)
    for source, (table, revision) in read.items():
        if source not in lost:
            registry.tables[source] = (table, revision + bool(table.taught))
            table.taught.clear()
    while len(registry.tables) > MAX_TABLES:
        del registry.tables[next(iter(registry.tables))]
    return lost


def _update_of(table: Table, revision: int, now: datetime) -> UpdateOne:
    """An update of this revision; of any other it is an insert, which is refused."""
    fields: Document = {"at": now, "version": table.version}
    fields["common"] = Binary(table.common.astype("<u4").tobytes())
    fields["pending"] = [
        {"post": post, "version": version} for post, version in table.pending.items()
    ]
    last = list(table.posts)[-len(table.taught) :]
    new = [
        {"post": post, "marks": Binary(table.posts[post].astype("<u4").tobytes())} for post in last
    ]
    update: Document = {"$set": fields, "$inc": {"revision": 1}}
    update["$push"] = {"posts": {"$each": new, "$slice": -MAX_POSTS}}
    return UpdateOne({"_id": table.source, "revision": revision}, update, upsert=True)


async def _bound(registry: Registry) -> None:
    """Forget the sources that nothing was learned of for the longest time."""
    assert registry.boilerplate is not None
    more = await registry.boilerplate.estimated_document_count() - MAX_SOURCES
    if more > 0:
        oldest = registry.boilerplate.find({}, {"_id": 1}).sort("at").limit(more)
        query = {"_id": {"$in": [row["_id"] async for row in oldest]}}
        await registry.boilerplate.delete_many(query)


async def note(registry: Registry, again: dict[str, dict[str, int]]) -> None:
    """Note that posts have been compared again, after their claims are stored."""
    if registry.boilerplate is None or not again:
        return
    updates = []
    for source, posts in again.items():
        done = {"post": {"$in": sorted(posts)}, "version": {"$lte": max(posts.values())}}
        update: Document = {"$pull": {"pending": done}, "$inc": {"revision": 1}}
        updates.append(UpdateOne({"_id": source}, update))
        registry.tables.pop(source, None)
    await registry.boilerplate.bulk_write(updates, ordered=False)
