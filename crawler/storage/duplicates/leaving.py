"""Posts that leave: their bands are free again, and where one was the original the next is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from bson import ObjectId
from pymongo import DeleteOne

from crawler.dedup.model import id_of
from crawler.storage.bulk import in_batches
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import clusters, flags, signatures
from crawler.storage.duplicates.registry import Registry

BATCH = 1000
# Of looks at posts that others change between the look and the deletion.
ROUNDS = 10
# A missing field equals None.
READ = ("_id", "cluster", "sketch", *signatures.FENCES)


async def release_posts(db: Database, registry: Registry, query: Document, now: datetime) -> None:
    """Take all posts that a query finds out of the index, before they are deleted."""
    cursor = db.posts.find(query, {"_id": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        left = await release(registry, [row["_id"] for row in rows], now)
        await flags.settle(db, registry, left)


async def recover(
    db: Database, registry: Registry, spider: str, since: datetime, now: datetime
) -> None:
    """Free what was claimed for a spider's posts since a time, where a crash kept them out.

    Clusters that it kept from electing an original do so.
    """
    query: Document = {
        "at": {"$gte": since},
        "post": {"$gte": f"{spider} ", "$lt": f"{spider}!"},
    }
    cursor = registry.signatures.find(query, {"post": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        keys = {row["post"] for row in rows}
        keys -= set(await db.posts.distinct("_id", {"_id": {"$in": list(keys)}}))
        await flags.settle(db, registry, await release(registry, list(keys), now))
    await clusters.unsettle(registry, await clusters.without_original(registry))
    await flags.settle_all(db, registry)


async def release(
    registry: Registry,
    keys: Sequence[str],
    now: datetime,
    fenced: Mapping[str, Mapping[str, int]] | None = None,
) -> set[ObjectId]:
    """Forget the sketches of these posts; the clusters that they were in.

    fenced: numbers under which the visits that say so are stored, by name; what newer visits have
            stored stays

    A cluster that loses its original elects another.
    """
    numbers = {id_of(key): fences for key, fences in (fenced or {}).items()}
    touched: set[ObjectId] = set()
    for some in in_batches(keys, BATCH):
        waiting: Collection[int] = [id_of(key) for key in some]
        for _ in range(ROUNDS):
            found = await signatures.by_id(registry, waiting)
            rows = [row for id_, row in found.items() if not _is_newer(row, numbers.get(id_, {}))]
            if not rows:
                break
            gone = await forget(registry, rows, now)
            touched |= {row["cluster"] for row in rows if "cluster" in row}
            waiting = {row["_id"] for row in rows} - {row["_id"] for row in gone}
    return await clusters.there(registry, touched)


def _is_newer(row: Document, fences: Mapping[str, int]) -> bool:
    return any(row.get(name, 0) > number for name, number in fences.items())


async def forget(registry: Registry, rows: Sequence[Document], now: datetime) -> list[Document]:
    """Take signatures out of the index, those of them that are stored as they are given.

    Another process may have stored a post anew since it was read, or made a cluster of it and its
    first copy: that one is another cluster's, which nobody would tell that its original has left.
    Returns the signatures that were taken out.
    """
    within = {row["cluster"] for row in rows if "cluster" in row}
    # Where this is interrupted, the next one to settle clusters elects their originals.
    await clusters.unsettle(registry, within)
    deletes = [DeleteOne({name: row.get(name) for name in READ}) for row in rows]
    done = await registry.signatures.bulk_write(deletes, ordered=False)
    gone = list(rows)
    if done.deleted_count < len(rows):
        stored = await signatures.by_id(registry, [row["_id"] for row in rows])
        gone = [row for row in rows if row["_id"] not in stored]
    # Who settled them in between has not seen that these are gone.
    await clusters.unsettle(registry, within)
    if registry.shared is not None:
        await registry.shared.release(signatures.claims_of(map(signatures.owner_of, gone)))
    for cluster in await clusters.there(registry, within):
        original = await clusters.elect(registry, cluster, now)
        if original is not None:
            # What has left may have owned the bands by which the others were found.
            await clusters.take_bands(registry, original)
    return gone
