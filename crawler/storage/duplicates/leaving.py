"""Posts that leave: their bands are free again, and where one was the original the next is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bson import ObjectId

from crawler.sketches.claim import id_of
from crawler.storage.bulk import in_batches
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import clusters, flags, signatures
from crawler.storage.duplicates.registry import Registry

BATCH = 1000


async def release_posts(db: Database, registry: Registry, query: Document, now: datetime) -> None:
    """Take all posts that a query finds out of the index, before they are deleted."""
    cursor = db.posts.find(query, {"_id": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        left = await release(registry, [row["_id"] for row in rows], now)
        await flags.settle(db, registry, left)


async def recover(
    db: Database, registry: Registry, spider: str, since: datetime, now: datetime
) -> None:
    """Free what was claimed for a spider's posts since a time, where a crash kept them out."""
    query: Document = {
        "at": {"$gte": since},
        "post": {"$gte": f"{spider} ", "$lt": f"{spider}!"},
    }
    cursor = registry.signatures.find(query, {"post": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        keys = {row["post"] for row in rows}
        keys -= set(await db.posts.distinct("_id", {"_id": {"$in": list(keys)}}))
        await flags.settle(db, registry, await release(registry, list(keys), now))


async def release(registry: Registry, keys: Sequence[str], now: datetime) -> set[ObjectId]:
    """Forget the sketches of these posts; the clusters that they were in.

    A cluster that loses its original elects another.
    """
    touched: set[ObjectId] = set()
    for some in in_batches(keys, BATCH):
        found = await signatures.by_id(registry, map(id_of, some))
        owners = [signatures.owner_of(row) for row in found.values()]
        await registry.signatures.delete_many({"_id": {"$in": list(found)}})
        if registry.shared is not None:
            await registry.shared.release(signatures.claims_of(owners))
        left = await clusters.there(registry, {owner.cluster for owner in owners} - {None})
        for cluster in left:
            original = await clusters.elect(registry, cluster, now)
            if original is not None:
                # What has left may have owned the bands by which the others were found.
                await clusters.take_bands(registry, original)
        touched |= left
    return touched
