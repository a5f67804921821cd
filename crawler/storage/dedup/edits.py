"""Removal and editing of posts in the index.

Removing a post frees its bands, and its cluster elects a new original if the post was the original.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from bson import Binary, ObjectId
from pymongo import DeleteOne

from crawler.dedup.posts import Candidate, id_of
from crawler.storage.client import Database, Document, in_batches
from crawler.storage.dedup import clusters, signatures
from crawler.storage.dedup.signatures import Registry
from crawler.storage.paging import keys_of

BATCH = 1000
# Attempts when other processes change posts between the read and the deletion.
MAX_ROUNDS = 10
# A missing field equals None.
READ = ("_id", "cluster", "sketch", *signatures.FENCES)


async def release_posts(db: Database, registry: Registry, query: Document, now: datetime) -> None:
    """Remove all posts that a query finds from the index, before they are deleted."""
    cursor = db.posts.find(query, {"_id": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        left = await release(registry, [row["_id"] for row in rows], now)
        await clusters.settle(db, registry, left)


async def recover(
    db: Database, registry: Registry, spider: str, since: datetime, now: datetime
) -> None:
    """Free the claims of a spider's posts that a crash kept from being stored.

    Also elects originals for clusters whose election the crash interrupted.
    """
    query: Document = {"at": {"$gte": since}, "post": keys_of(spider)}
    cursor = registry.signatures.find(query, {"post": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        keys = {row["post"] for row in rows}
        keys -= set(await db.posts.distinct("_id", {"_id": {"$in": list(keys)}}))
        await clusters.settle(db, registry, await release(registry, list(keys), now))
    await clusters.mark_unsettled(registry, await clusters.without_original(registry))
    await clusters.settle_all(db, registry)


async def release(
    registry: Registry,
    keys: Sequence[str],
    now: datetime,
    fenced: Mapping[str, Mapping[str, int]] | None = None,
) -> set[ObjectId]:
    """Delete the sketches of posts; return the clusters that they were in.

    fenced: fence numbers of the visits by name, by post; signatures of newer visits are kept

    A cluster that loses its original elects another.
    """
    numbers = {id_of(key): fences for key, fences in (fenced or {}).items()}
    touched: set[ObjectId] = set()
    for some in in_batches(keys, BATCH):
        waiting: Collection[int] = [id_of(key) for key in some]
        for _ in range(MAX_ROUNDS):
            stored = await signatures.by_id(registry, waiting)
            rows = [
                row
                for id_, row in stored.items()
                if not any(row.get(name, 0) > n for name, n in numbers.get(id_, {}).items())
            ]
            if not rows:
                break
            gone = await forget(registry, rows, now)
            touched |= {row["cluster"] for row in rows if "cluster" in row}
            waiting = {row["_id"] for row in rows} - {row["_id"] for row in gone}
    return await clusters.existing_clusters(registry, touched)


async def forget(registry: Registry, rows: Sequence[Document], now: datetime) -> list[Document]:
    """Delete signatures that are unchanged since they were read; return the deleted ones.

    Another process may have stored a post again since, or created a cluster of the post and its
    first copy; deleting that signature would leave a cluster without an original.
    """
    if not rows:
        return []
    affected = {row["cluster"] for row in rows if "cluster" in row}
    # If this is interrupted, the next process that settles clusters elects their originals.
    await clusters.mark_unsettled(registry, affected)
    signatures.forget_owners(registry, rows)
    deletes = [DeleteOne({name: row.get(name) for name in READ}) for row in rows]
    done = await registry.signatures.bulk_write(deletes, ordered=False)
    gone = list(rows)
    if done.deleted_count < len(rows):
        stored = await signatures.by_id(registry, [row["_id"] for row in rows])
        gone = [row for row in rows if row["_id"] not in stored]
    # A process that settled the clusters in between did not see the deletion.
    await clusters.mark_unsettled(registry, affected)
    for cluster in await clusters.existing_clusters(registry, affected):
        original = await clusters.elect(registry, cluster, now)
        if original is not None:
            # The deleted posts may have owned the bands by which the others were found.
            await clusters.take_bands(registry, [original])
    return gone


async def judge(
    registry: Registry, candidate: Candidate, stored: Document
) -> tuple[bool, list[Document]]:
    """Return whether an edited post stays in its cluster, and the copies it no longer resembles.

    A copy stays if it resembles the original, the original if any copy resembles it.
    """
    cluster = stored.get("cluster")
    if cluster is None:
        return False, []
    row = await registry.clusters.find_one({"_id": cluster})
    if row is None or row["original"] != candidate.id:
        original = (await signatures.by_id(registry, [row["original"]])) if row else {}
        return any(_alike(registry, candidate, row) for row in original.values()), []
    strays, stay = [], False
    query = {"cluster": cluster, "_id": {"$ne": candidate.id}}
    async for member in registry.signatures.find(query, signatures.OWNER_FIELDS):
        if _alike(registry, candidate, member):
            stay = True
        else:
            strays.append(member)
    return stay, strays if stay else []


def _alike(registry: Registry, candidate: Candidate, stored: Document) -> bool:
    other = signatures.owner_of(stored).sketch
    return candidate.sketch.similarity(other) >= registry.scheme.threshold


async def release_strays(
    registry: Registry, strays: Sequence[Document], now: datetime
) -> list[Candidate]:
    """Remove strays from the index; return them as candidates for a new claim.

    Strays that another process has stored again are already in the right cluster.
    """
    gone: list[Document] = []
    for _ in range(MAX_ROUNDS):
        if not strays:
            break
        gone += await forget(registry, strays, now)
        stored = await signatures.by_id(registry, [row["_id"] for row in strays])
        # An unchanged visit raises the fence only; such rows are still strays.
        strays = [
            now_stored
            for row in strays
            if (now_stored := stored.get(row["_id"])) is not None
            and all(now_stored.get(name) == row.get(name) for name in ("cluster", "sketch"))
        ]
    return [signatures.owner_of(row).claimed_again() for row in gone]


async def renew(registry: Registry, candidate: Candidate, stored: Document) -> bool:
    """Replace the sketch and bands of an edited post.

    The sketch is written last: after an interruption the old one is found, and the edit repeated.
    Returns False if the post was removed in the meantime, or a newer visit has stored it.
    """
    signatures.forget_owners(registry, [stored])
    sketch = Binary(candidate.sketch.encode())
    owner = signatures.owner_of(stored | {"sketch": sketch})
    await clusters.take_bands(registry, [owner])
    kept_bands = {"$setIntersection": [{"$ifNull": ["$bands", []]}, list(candidate.bands)]}
    changed: Document = {
        "sketch": {"$literal": sketch},
        **dict.fromkeys(signatures.DATED, "$$REMOVE"),
        **signatures.times_of(candidate),
        "bands": {"$cond": [{"$eq": [kept_bands, []]}, "$$REMOVE", kept_bands]},
    }
    changed |= {
        name: {"$literal": value} for name, value in signatures.text_of(registry, candidate).items()
    }
    changed |= candidate.fences
    query = signatures.unless_late(candidate)
    done = await registry.signatures.update_one(query, [{"$set": changed}])
    return done.matched_count > 0
