"""`boilerplate`: what the posts of each source have in common, learned as posts come.

One document a source, which every worker reads and changes with each batch that has posts of it.
A change is made to the revision that was read, or not at all, so each worker knows which posts
another one has compared with an older table: those are compared again with the next batch.
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

from crawler.sketches.boilerplate import Common, Learned, Sourced, Table, weighed
from crawler.sketches.claim import Candidate
from crawler.storage.bulk import DUPLICATE_KEY
from crawler.storage.client import Document
from crawler.storage.duplicates.registry import Registry

logger = logging.getLogger(__name__)
# Workers that write the same source at the same moment; who loses each time only reads.
TRIES = 5
# The sources that have learned longest ago are dropped, to be learned again if they come back.
MAX_SOURCES = 20_000


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
    if registry.read_again is None:
        return found
    given = {one.key for one in candidates}
    due = {source: set(table.due()) - given for source, table in tables.items()}
    keys = set[str]().union(*due.values())
    earlier = await registry.read_again(sorted(keys)) if keys else []
    for candidate in earlier:
        found.candidates.append(replace(_weighed(candidate, tables), edited=True))
        for source, posts in due.items():
            if candidate.key in posts:
                version = tables[source].version
                found.again.setdefault(source, {})[candidate.key] = version
    return found


def _weighed(candidate: Candidate, tables: dict[str, Table]) -> Candidate:
    text = candidate.text
    if text is None or text.source not in tables:
        return candidate
    return replace(candidate, sketch=weighed(candidate.sketch, text, tables[text.source]))


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
    found = {source: (Table(source), 0) for source in sources}
    async for row in registry.boilerplate.find({"_id": {"$in": list(sources)}}):
        found[row["_id"]] = (_table_of(row), row["revision"])
    return found


def _table_of(row: Document) -> Table:
    posts = [Learned(p["post"], _marks_of(p["marks"]), p["version"]) for p in row["posts"]]
    common = [Common(c["version"], _marks_of(c["marks"])) for c in row["common"]]
    return Table(row["_id"], row["version"], posts, common)


def _marks_of(stored: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(stored, "<u4").astype(np.uint32)


async def _write(registry: Registry, read: dict[str, tuple[Table, int]], now: datetime) -> set[str]:
    """Store what was learned; the sources that somebody else has changed meanwhile."""
    assert registry.boilerplate is not None
    taught = {source: one for source, one in read.items() if one[0].taught}
    if not taught:
        return set()
    updates = [_update_of(table, revision, now) for table, revision in taught.values()]
    try:
        done = await registry.boilerplate.bulk_write(updates, ordered=False)
    except BulkWriteError as error:
        problems = error.details["writeErrors"]
        if any(problem["code"] != DUPLICATE_KEY for problem in problems):
            raise
        sources = list(taught)
        return {sources[problem["index"]] for problem in problems}
    if done.upserted_count:
        await _bound(registry)
    return set()


def _update_of(table: Table, revision: int, now: datetime) -> UpdateOne:
    """An update of this revision; of any other it is an insert, which is refused."""
    new = set(table.taught)
    posts = [
        {"post": one.post, "marks": _stored(one.marks),
         "version": table.version if one.post in new else one.version}
        for one in table.posts
    ]  # fmt: skip
    common = [{"version": one.version, "marks": _stored(one.marks)} for one in table.common]
    fields = {"posts": posts, "common": common, "version": table.version}
    changed: Document = {"$set": fields | {"at": now}, "$inc": {"revision": 1}}
    return UpdateOne({"_id": table.source, "revision": revision}, changed, upsert=True)


def _stored(marks: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> Binary:
    return Binary(marks.astype("<u4").tobytes())


async def _bound(registry: Registry) -> None:
    """Forget the sources that nothing was learned of for the longest time."""
    assert registry.boilerplate is not None
    more = await registry.boilerplate.estimated_document_count() - MAX_SOURCES
    if more > 0:
        oldest = registry.boilerplate.find({}, {"_id": 1}).sort("at").limit(more)
        query = {"_id": {"$in": [row["_id"] async for row in oldest]}}
        await registry.boilerplate.delete_many(query)


async def note(registry: Registry, again: dict[str, dict[str, int]]) -> None:
    """Note that earlier posts have been compared again, after their claims are stored."""
    if registry.boilerplate is None or not again:
        return
    updates = []
    for source, posts in again.items():
        version = max(posts.values())
        updates.append(UpdateOne(
            {"_id": source},
            {"$set": {"posts.$[one].version": version}, "$inc": {"revision": 1}},
            array_filters=[{"one.post": {"$in": sorted(posts)}, "one.version": {"$lt": version}}],
        ))  # fmt: skip
    await registry.boilerplate.bulk_write(updates, ordered=False)
