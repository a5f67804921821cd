"""Posts as `clusters` has them: which one the search index holds, and whose duplicates others are.

A post is written by whoever stores it, a cluster by whoever claims: between the two another worker
may have made another post the original. So what was written is compared once more.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from bson import ObjectId
from pymongo import UpdateOne

from crawler.sketches.claim import Verdict, Verdicts, id_of
from crawler.sketches.stored import Sketch
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import clusters, signatures
from crawler.storage.duplicates.registry import Registry

BATCH = 1000
TRIES = 10
UNSETTLED: Document = {"unsettled": True}
FIELDS = ("duplicate_of", "similarity", "cluster")


def update_of(verdict: Verdict | None) -> Document:
    """What a verdict changes of a post's document; a new post without one is an original."""
    if verdict is None:
        return {"$setOnInsert": {"original": True}}
    values = (verdict.duplicate_of, verdict.similarity, verdict.cluster)
    fields = dict(zip(FIELDS, values, strict=True))
    there = {name: value for name, value in fields.items() if value is not None}
    update: Document = {"$set": {"original": verdict.is_original} | there}
    if gone := [name for name in FIELDS if name not in there]:
        update["$unset"] = dict.fromkeys(gone, "")
    return update


def merged(update: Document, verdict: Verdict | None) -> Document:
    """An update of a post that shows its verdict too."""
    flags = update_of(verdict)
    return {name: update.get(name, {}) | flags.get(name, {}) for name in update.keys() | flags}


async def show(db: Database, verdicts: Verdicts) -> None:
    """Write verdicts on posts that are stored."""
    updates = [UpdateOne({"_id": key}, update_of(verdict)) for key, verdict in verdicts.items()]
    if updates:
        await db.posts.bulk_write(updates, ordered=False)


async def confirm(
    db: Database, registry: Registry, verdicts: Verdicts, written: Container[str]
) -> None:
    """Bring posts into line where what was written is not what holds by now.

    written: posts that show their verdict; others had theirs changed by an edit of these
    """
    await show(db, {key: one for key, one in verdicts.items() if key not in written})
    ids = {id_of(key): key for key in verdicts}
    found = registry.signatures.find({"_id": {"$in": list(ids)}}, {"cluster": 1})
    stored = {ids[row["_id"]]: row.get("cluster") async for row in found}
    members = {key: cluster for key, cluster in stored.items() if cluster is not None}
    rows = registry.clusters.find(
        {"$or": [{"_id": {"$in": list(set(members.values()))}}, UNSETTLED]}
    )
    now = {row["_id"]: row async for row in rows}
    stale = {c for key, c in members.items() if not _holds(key, verdicts[key], now.get(c))}
    stale |= {cluster for cluster, row in now.items() if row.get("unsettled")}
    await settle(db, registry, stale)


def _holds(key: str, verdict: Verdict, cluster: Document | None) -> bool:
    if cluster is None or verdict.cluster != cluster["_id"]:
        return False
    return bool(cluster["post"] == (verdict.duplicate_of or key))


async def settle(db: Database, registry: Registry, wanted: Collection[ObjectId]) -> None:
    """Bring all posts of these clusters into line with them."""
    for _ in range(TRIES):
        if not wanted:
            return
        found = await registry.clusters.find({"_id": {"$in": list(wanted)}}).to_list(None)
        originals = await signatures.by_id(registry, [row["original"] for row in found])
        # Whose original has gone is settled by whoever elects the next.
        rows = {row["_id"]: row for row in found if row["original"] in originals}
        sketches = {id_: _sketch(originals[row["original"]]) for id_, row in rows.items()}
        await _settle_members(db, registry, rows, sketches)
        wanted = await clusters.settled(registry, rows)


async def _settle_members(
    db: Database,
    registry: Registry,
    rows: Mapping[ObjectId, Document],
    originals: Mapping[ObjectId, Sketch],
) -> None:
    def verdict(member: Document) -> Verdict:
        cluster = member["cluster"]
        return _verdict(member, rows[cluster], originals[cluster])

    cursor = registry.signatures.find({"cluster": {"$in": list(rows)}}, signatures.OF_OWNER)
    while members := await cursor.to_list(BATCH):
        await show(db, {one["post"]: verdict(one) for one in members})


def _verdict(member: Document, row: Document, original: Sketch) -> Verdict:
    if member["_id"] == row["original"]:
        return Verdict(cluster=row["_id"])
    return Verdict(row["post"], _sketch(member).similarity(original), row["_id"])


def _sketch(stored: Document) -> Sketch:
    return Sketch.decode(stored["sketch"])
