"""`boilerplate`: passages that the posts of each source share, learned while posts are stored.

There is one document per source. Each worker caches the tables of recently used sources, and with
each batch reads those that other workers have changed; a table that has not changed for long is
checked less often. Updates are optimistic: a table is written only if its stored revision is still
the one that was read; otherwise the worker merges its changes into the new revision and retries. So
a worker that finds a passage to be boilerplate also knows the earlier posts that have the passage,
and marks them for another comparison. They are compared again in groups: when a post of the source
is judged a copy, after many posts of the source, and at the end of a run.

A worker stores a table when a passage has become common, when the table has as many new posts as
stored ones, when a post of a new source was judged a copy, and at the end of its run. If a process
is killed, its unsaved changes are lost, and the source is learned from later posts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
from bson import Binary
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawler.dedup.boilerplate import MAX_POSTS, MIN_POSTS, Sourced, Table, weighed
from crawler.dedup.posts import Candidate
from crawler.storage.client import Database, Document, duplicate_keys, in_batches
from crawler.storage.dedup.signatures import Registry
from crawler.storage.paging import keys_of

logger = logging.getLogger(__name__)
# Attempts to write a table that other workers write too; then the change stays in memory.
MAX_TRIES = 5
# Beyond this number, the least recently used sources are deleted, and learned again if needed.
MAX_SOURCES = 20_000
# Tables that a worker caches, up to 200 kB each.
MAX_TABLES = 250
TABLES_A_WRITE = 100


@dataclass(slots=True)
class WeighedBatch:
    """Posts to compare, without their boilerplate.

    candidates: the given posts
    earlier:    stored posts in which boilerplate was found since they were compared
    again:      versions of the tables to record for these earlier posts, by source and post
    """

    candidates: list[Candidate]
    earlier: list[Candidate] = field(default_factory=list)
    again: dict[str, dict[str, int]] = field(default_factory=dict)


async def weigh(registry: Registry, candidates: Sequence[Candidate], now: datetime) -> WeighedBatch:
    """Learn from posts, then remove the known boilerplate from their sketches."""
    tables = await learn(registry, candidates, now)
    weighing = WeighedBatch([_weighed(post, tables) for post in candidates])
    counts = Counter(post.text.source for post in candidates if post.text is not None)
    due = {source: table for source, table in tables.items() if table.needs_review(counts[source])}
    due |= {table.source: table for table in _least_used(registry) if table.pending}
    weighing = await _with_pending(registry, weighing, due, candidates)
    await evict(registry)
    return weighing


async def weigh_pending(registry: Registry) -> WeighedBatch:
    """Return the earlier posts of all cached sources that have to be compared again."""
    tables = {source: table for source, table in registry.tables.items() if table.pending}
    return await _with_pending(registry, WeighedBatch([]), tables, ())


async def weigh_copies(
    registry: Registry, copies: Iterable[tuple[Candidate, str]], batch: Iterable[Candidate]
) -> WeighedBatch:
    """Learn from posts that were judged copies; return the posts to compare again.

    If other posts of the source also have the same passages, the passages are boilerplate, and the
    posts are not copies.

    copies: posts, each with the key of its original
    batch:  all posts of the batch, which is not written yet, so their stored texts are outdated
    """
    tables: dict[str, Table] = {}
    originals = set[str]()
    for copy, original in sorted(copies, key=lambda pair: (pair[0].created, pair[0].key)):
        table = registry.tables.get(copy.text.source) if copy.text is not None else None
        if table is None or copy.text is None:
            continue
        tables[table.source] = table
        before = table.version
        if copy.key not in table.posts:
            table.learn(copy.key, copy.text)
        # The original may have been compared when less boilerplate was known.
        if copy.sketch.own is not None or table.version > before:
            originals.add(original)
    # Posts of a new source are often judged copies because of its boilerplate: store them now.
    due = [
        table
        for table in tables.values()
        if table.learned and (table.is_new or table.has_new_common or _is_due(table))
    ]
    tables |= await _store(registry, due)
    return await _with_pending(registry, WeighedBatch([]), tables, (), originals, batch)


async def _with_pending(
    registry: Registry,
    weighing: WeighedBatch,
    tables: dict[str, Table],
    given: Iterable[Candidate],
    originals: Collection[str] = (),
    batch: Iterable[Candidate] = (),
) -> WeighedBatch:
    """Add the earlier posts that have to be compared again, except the given ones.

    batch: posts that need not be read
    """
    keys = {post.key for post in given}
    due = {post for table in tables.values() for post in table.pending}.union(originals) - keys
    again = [post for post in batch if post.key in due]
    if registry.read_again and (unread := due.difference(post.key for post in again)):
        again += await registry.read_again(sorted(unread))
    for candidate in again:
        keys.add(candidate.key)
        # An original may be of a source without a table.
        if candidate.text is not None and candidate.text.source in tables:
            weighing.earlier.append(replace(_weighed(candidate, tables), edited=True))
    for source, table in tables.items():
        if done := {post: table.pending[post] for post in table.pending.keys() & keys}:
            weighing.again[source] = done
    return weighing


def _weighed(candidate: Candidate, tables: dict[str, Table]) -> Candidate:
    text = candidate.text
    if text is None or text.source not in tables:
        return candidate
    sketch = weighed(candidate.sketch, text, tables[text.source])
    return candidate if sketch is candidate.sketch else replace(candidate, sketch=sketch)


async def learn(
    registry: Registry, candidates: Iterable[Candidate], now: datetime
) -> dict[str, Table]:
    """Learn from posts; return the tables of their sources.

    Passages that become common are stored before any post is compared without them. Other changes
    are stored when a table has as many new posts as stored ones, and by `store`.
    """
    texts: defaultdict[str, list[tuple[Candidate, Sourced]]] = defaultdict(list)
    for candidate in sorted(candidates, key=lambda post: (post.created, post.key)):
        if candidate.text is not None:
            texts[candidate.text.source].append((candidate, candidate.text))
    if registry.boilerplate is None or not texts:
        return {}
    cached = {source: registry.tables[source] for source in texts if source in registry.tables}
    tables = await _read_tables(registry, texts.keys() - cached.keys()) | cached
    for source, table in tables.items():
        for candidate, text in texts[source]:
            if table.learns_from(candidate.key, candidate.id):
                table.learn(candidate.key, text)
        table.at = now
        registry.tables.pop(source, None)
        registry.tables[source] = table
    due = [table for table in tables.values() if table.has_new_common or _is_due(table)]
    tables |= await _store(registry, due)
    # Storing a table detects changes by other processes, so only the other tables are checked.
    seconds = time.monotonic()
    cached = {
        source: table for source, table in cached.items()
        if table not in due and not table.is_fresh(seconds)
    }  # fmt: skip
    changed = await _changed(registry, cached)
    for source, table in changed.items():
        table.at = now
        registry.tables[source] = table
    return (
        tables | changed | await _store(registry, [t for t in changed.values() if t.has_new_common])
    )


def _least_used(registry: Registry) -> list[Table]:
    """Return the tables that exceed the size of the cache."""
    return list(registry.tables.values())[: max(0, len(registry.tables) - MAX_TABLES)]


async def evict(registry: Registry) -> None:
    """Store the tables that exceed the size of the cache, and remove them from it."""
    if tables := _least_used(registry):
        await store(registry, [table.source for table in tables])


def _is_due(table: Table) -> bool:
    """Return whether a table has as many new posts as stored ones."""
    return len(table.learned) >= max(MIN_POSTS, len(table.posts) - len(table.learned))


async def store(registry: Registry, sources: Iterable[str] | None = None) -> None:
    """Store the changed tables of sources (default: all), and remove them from the cache."""
    names = list(registry.tables) if sources is None else sources
    tables = [registry.tables[name] for name in names]
    await _store(registry, [table for table in tables if table.learned])
    for table in tables:
        del registry.tables[table.source]


@asynccontextmanager
async def stored_at_end(registry: Registry) -> AsyncIterator[Registry]:
    """Yield an index, and store its changed tables afterwards unless an error occurred."""
    try:
        yield registry
    except asyncio.CancelledError:
        await store(registry)
        raise
    await store(registry)


async def forget(db: Database, spider: str, feed: str | None = None) -> None:
    """Delete the table of a feed; without `feed`, of all sources of a spider."""
    sources = keys_of(spider) if feed is None else f"{spider} {feed}"
    await db.boilerplate.delete_many({"_id": sources})


async def tables_of(registry: Registry, sources: Collection[str]) -> dict[str, Table]:
    """Return the tables of sources: as stored, with this process's unsaved changes."""
    cached = {source: registry.tables[source] for source in sources if source in registry.tables}
    tables = await _read_tables(registry, set(sources) - cached.keys())
    return tables | cached | await _changed(registry, cached)


async def _read_tables(registry: Registry, sources: Collection[str]) -> dict[str, Table]:
    """Return the tables of sources, with new ones for sources without a stored table."""
    seconds = time.monotonic()
    tables = {source: Table(source, changed_at=seconds, checked_at=seconds) for source in sources}
    return tables | {table.source: table for table in await _read_stored(registry, sources)}


async def _changed(registry: Registry, cached: Mapping[str, Table]) -> dict[str, Table]:
    """Return the tables that other processes have changed, with this process's changes."""
    if not cached:
        return {}
    assert registry.boilerplate is not None
    rows = registry.boilerplate.find({"_id": {"$in": list(cached)}}, {"revision": 1})
    revisions: dict[str, int] = {row["_id"]: row["revision"] for row in await rows.to_list(None)}
    seconds = time.monotonic()
    for table in cached.values():
        table.checked_at = seconds
    stale = [
        source for source, table in cached.items() if table.revision != revisions.get(source, 0)
    ]
    changed = await _read_tables(registry, stale)
    for source in changed.keys() & revisions.keys():
        changed[source].take_over(cached[source])
    return changed


async def _read_stored(registry: Registry, sources: Collection[str]) -> list[Table]:
    if not sources:
        return []
    assert registry.boilerplate is not None
    seconds = time.monotonic()
    return [
        Table(
            row["_id"],
            row["version"],
            {post["post"]: np.frombuffer(post["marks"], "<u4") for post in row["posts"]},
            np.frombuffer(row["common"], "<u4"),
            {post["post"]: post["version"] for post in row["pending"]},
            row["at"],
            row["revision"],
            changed_at=seconds,
            checked_at=seconds,
        )
        async for row in registry.boilerplate.find({"_id": {"$in": list(sources)}})
    ]


async def _store(registry: Registry, tables: Sequence[Table]) -> dict[str, Table]:
    """Store tables, merging the changes that other processes have made in the meantime."""
    changed: dict[str, Table] = {}
    waiting = list(tables)
    for _ in range(MAX_TRIES):
        lost = await _write(registry, waiting) if waiting else []
        if not lost:
            return changed
        waiting = []
        for table in await _read_stored(registry, [table.source for table in lost]):
            table.take_over(registry.tables[table.source])
            table.at = registry.tables[table.source].at
            registry.tables[table.source] = changed[table.source] = table
            waiting.append(table)
    # The tables are used anyway, and stored with their next changes.
    logger.debug("Boilerplate of %d sources not stored: changed concurrently", len(waiting))
    return changed


async def _write(registry: Registry, tables: Sequence[Table]) -> list[Table]:
    """Write tables; return those that another process has changed in the meantime."""
    assert registry.boilerplate is not None
    lost: list[Table] = []
    for some in in_batches(tables, TABLES_A_WRITE):
        failed = set[int]()
        try:
            done = await registry.boilerplate.bulk_write(
                [_table_update(table) for table in some], ordered=False
            )
        except BulkWriteError as error:
            failed = duplicate_keys(error)
        else:
            extra = 0
            if done.upserted_count:
                extra = await registry.boilerplate.estimated_document_count() - MAX_SOURCES
            if extra > 0:
                oldest = registry.boilerplate.find({}, {"_id": 1}).sort("at").limit(extra)
                query = {"_id": {"$in": [row["_id"] async for row in oldest]}}
                await registry.boilerplate.delete_many(query)
        for index, table in enumerate(some):
            if index in failed:
                lost.append(table)
                continue
            table.revision += 1
            table.checked_at = time.monotonic()
            if table.has_new_common:
                table.changed_at = table.checked_at
            table.learned.clear()
            table.has_new_common = False
    return lost


def _table_update(table: Table) -> UpdateOne:
    """Return the update of a table.

    If the stored revision differs, the upsert becomes an insert, which fails as a duplicate.
    """
    fields: Document = {"at": table.at, "version": table.version}
    fields["common"] = Binary(table.common.astype("<u4").tobytes())
    fields["pending"] = [
        {"post": post, "version": version} for post, version in table.pending.items()
    ]
    new = [
        {"post": post, "marks": Binary(table.posts[post].astype("<u4").tobytes())}
        for post in table.learned
    ]
    update: Document = {"$set": fields, "$inc": {"revision": 1}}
    update["$push"] = {"posts": {"$each": new, "$slice": -MAX_POSTS}}
    return UpdateOne({"_id": table.source, "revision": table.revision}, update, upsert=True)


async def note(registry: Registry, again: dict[str, dict[str, int]]) -> None:
    """Record that posts were compared again, after their claims are stored."""
    if registry.boilerplate is None or not again:
        return
    updates = {}
    for source, posts in again.items():
        done = {"post": {"$in": sorted(posts)}, "version": {"$lte": max(posts.values())}}
        updates[source] = {"$pull": {"pending": done}, "$inc": {"revision": 1}}
    tables = [registry.tables[source] for source in again if source in registry.tables]
    if len(tables) == len(again):
        of_tables = [
            UpdateOne({"_id": table.source, "revision": table.revision}, updates[table.source])
            for table in tables
        ]
        noted = await registry.boilerplate.bulk_write(of_tables, ordered=False)
        if noted.matched_count == len(tables):
            # These tables are the stored ones, and need not be read again.
            for table in tables:
                table.note(again[table.source])
            return
    # Repeats the updates of tables that no other process has changed: they are read again.
    await registry.boilerplate.bulk_write(
        [UpdateOne({"_id": source}, update) for source, update in updates.items()], ordered=False
    )
