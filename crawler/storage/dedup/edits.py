"""Posts that leave the index, or are edited.

The bands of a post that leaves are free again, and where it was the original the next one is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from bson import Binary, ObjectId
from pymongo import DeleteOne

from crawler.dedup.model import Candidate, id_of
from crawler.storage.client import Database, Document
from crawler.storage.dedup import clusters, flags, signatures
from crawler.storage.dedup.registry import Registry
from crawler.storage.retry import in_batches

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
    return await clusters.there(registry, touched)


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


async def judge(
    registry: Registry, candidate: Candidate, stored: Document
) -> tuple[bool, list[Document]]:
    """Whether an edited post stays in its cluster, and the copies that it resembles no more.

    A copy belongs there if it resembles the original; the original if a copy resembles it.
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
    async for member in registry.signatures.find(query, signatures.OF_OWNER):
        if _alike(registry, candidate, member):
            stay = True
        else:
            strays.append(member)
    return stay, strays if stay else []


def _alike(registry: Registry, candidate: Candidate, stored: Document) -> bool:
    other = signatures.owner_of(stored).sketch
    return candidate.sketch.similarity(other) >= registry.scheme.threshold


async def let_go(registry: Registry, strays: Sequence[Document], now: datetime) -> list[Candidate]:
    """Take strays out of the index; returns them as they are to be claimed again.

    Those that another process has stored anew meanwhile are where they belong.
    """
    gone: list[Document] = []
    for _ in range(ROUNDS):
        if not strays:
            break
        gone += await forget(registry, strays, now)
        stored = await signatures.by_id(registry, [row["_id"] for row in strays])
        # Those that were seen as they are have another fence, and nothing else.
        strays = [
            now_stored
            for row in strays
            if (now_stored := stored.get(row["_id"])) is not None
            and all(now_stored.get(name) == row.get(name) for name in ("cluster", "sketch"))
        ]
    return [signatures.owner_of(row).claimed_again() for row in gone]


async def renew(registry: Registry, candidate: Candidate, stored: Document) -> bool:
    """Put the sketch of the new text in place of the old one, and its bands.

    The sketch comes last: whoever is interrupted before finds the old one, and begins again.
    Returns False where the post has left the index meanwhile, or a newer visit has stored it.
    """
    if registry.shared is not None:
        await registry.shared.release(signatures.claims_of([signatures.owner_of(stored)]))
    sketch = Binary(candidate.sketch.encode())
    owner = signatures.owner_of(stored | {"sketch": sketch})
    await clusters.take_bands(registry, owner)
    own = {"$setIntersection": [{"$ifNull": ["$bands", []]}, list(candidate.bands)]}
    changed: Document = {
        "sketch": {"$literal": sketch},
        **{
            name: {"$min": [f"${name}", value]}
            for name, value in signatures.times_of(registry, candidate).items()
        },
        "bands": {"$cond": [{"$eq": [own, []]}, "$$REMOVE", own]},
    }
    changed |= {
        name: {"$literal": value} for name, value in signatures.text_of(registry, candidate).items()
    }
    changed |= candidate.fences
    query = signatures.unless_late(candidate)
    done = await registry.signatures.update_one(query, [{"$set": changed}])
    if not done.matched_count and registry.shared is not None:
        # Else Redis would say that it is in its former cluster.
        await registry.shared.release(signatures.claims_of([owner]))
    return done.matched_count > 0
