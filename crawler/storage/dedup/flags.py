"""Duplicate flags on posts, kept in line with `clusters`.

Between the claim and the write of a post, another worker may make another post the original. So
each batch is compared with its clusters again after it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from bson import ObjectId
from pymongo import UpdateOne

from crawler.dedup.model import ALONE, Verdict, Verdicts, id_of
from crawler.dedup.sketch import Sketch
from crawler.storage.client import Database, Document
from crawler.storage.dedup import clusters, signatures
from crawler.storage.dedup.registry import Registry
from crawler.storage.outages import in_batches

BATCH = 1000
MAX_TRIES = 10
UNSETTLED: Document = {"unsettled": True}
FIELDS = ("duplicate_of", "similarity", "cluster")


def update_of(verdict: Verdict | None) -> Document:
    """Return the update by which a post shows a verdict; without one a new post is original."""
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
    """Return an update of a post with its verdict added."""
    flags = update_of(verdict)
    return {name: update.get(name, {}) | flags.get(name, {}) for name in update.keys() | flags}


async def show(db: Database, verdicts: Verdicts) -> None:
    """Write verdicts to stored posts."""
    updates = [UpdateOne({"_id": key}, update_of(verdict)) for key, verdict in verdicts.items()]
    if updates:
        await db.posts.bulk_write(updates, ordered=False)


async def confirm(
    db: Database, registry: Registry, verdicts: Verdicts, written: Container[str]
) -> None:
    """Update posts whose verdicts have changed since they were written.

    written: posts that show their verdict; the other verdicts changed through edits of these
    """
    if not verdicts:
        return
    await show(db, {key: verdict for key, verdict in verdicts.items() if key not in written})
    members, unsettled = await _to_compare(registry, verdicts)
    now = await _clusters(registry, set(members.values()))
    doubtful = {
        key: cluster
        for key, cluster in members.items()
        if cluster in now
        and (verdicts[key].cluster, verdicts[key].duplicate_of or key)
        != (cluster, now[cluster]["post"])
    }
    sources = await _sources(registry, verdicts, doubtful, now) if doubtful else set()
    stale = {cluster for key, cluster in doubtful.items() if key not in sources}
    alone = [
        key
        for key, verdict in verdicts.items()
        if verdict.cluster is not None and members.get(key) not in now
    ]
    await settle(db, registry, stale.union(unsettled, await _show_alone(db, registry, alone)))


async def _show_alone(db: Database, registry: Registry, keys: Sequence[str]) -> set[ObjectId]:
    """Show posts as having no copies; return the clusters of those that have copies by now."""
    if not keys:
        return set()
    await show(db, dict.fromkeys(keys, ALONE))
    members, _ = await _to_compare(registry, keys)
    return set(await _clusters(registry, set(members.values())))


async def _to_compare(
    registry: Registry, keys: Iterable[str]
) -> tuple[dict[str, ObjectId], set[ObjectId]]:
    """Return the clusters of posts, and all unsettled clusters.

    One round trip: most batches have neither.
    """
    query = {"_id": {"$in": [id_of(key) for key in keys]}, "cluster": {"$exists": True}}
    unsettled: Document = {
        "coll": registry.clusters.name,
        "pipeline": [{"$match": UNSETTLED}, {"$project": {"_id": 1}}],
    }
    cursor = await registry.signatures.aggregate([
        {"$match": query},
        {"$project": {"post": 1, "cluster": 1}},
        {"$unionWith": unsettled},
    ])  # fmt: skip
    rows = await cursor.to_list(None)
    members = {row["post"]: row["cluster"] for row in rows if "post" in row}
    return members, {row["_id"] for row in rows if "post" not in row}


async def _clusters(registry: Registry, ids: Collection[ObjectId]) -> dict[ObjectId, Document]:
    if not ids:
        return {}
    cursor = registry.clusters.find({"_id": {"$in": list(ids)}}, {"post": 1, "original": 1})
    return {row["_id"]: row async for row in cursor}


async def _sources(
    registry: Registry,
    verdicts: Verdicts,
    members: Mapping[str, ObjectId],
    now: Mapping[ObjectId, Document],
) -> set[str]:
    """Return the members that are originals because they have the original's item."""
    ids = {
        key: (id_of(key), now[cluster]["original"])
        for key, cluster in members.items()
        if verdicts[key].is_original and verdicts[key].cluster == cluster
    }
    query = {"_id": {"$in": [id_ for pair in ids.values() for id_ in pair]}}
    cursor = registry.signatures.find(query, {"item": 1})
    items = {row["_id"]: row.get("item") async for row in cursor}
    return {
        key
        for key, (own, original) in ids.items()
        if clusters.is_source(items.get(own), items.get(original))
    }


async def settle_all(db: Database, registry: Registry) -> None:
    """Update the posts of all unsettled clusters."""
    wanted = await registry.clusters.distinct("_id", {"unsettled": {"$exists": True}})
    for some in in_batches(wanted, BATCH):
        await settle(db, registry, some)


async def settle(db: Database, registry: Registry, wanted: Collection[ObjectId]) -> None:
    """Update all posts of these clusters to match."""
    for _ in range(MAX_TRIES):
        if not wanted:
            return
        stored = await clusters.current(registry, wanted, datetime.now(UTC))
        elected = await signatures.by_id(registry, [row["original"] for row in stored])
        rows = {
            row["_id"]: row
            for row in stored
            if elected.get(row["original"], {}).get("cluster") == row["_id"]
        }
        # The process that released the original may have been interrupted before the election.
        for row in stored:
            if row["_id"] not in rows:
                await clusters.elect(registry, row["_id"], datetime.now(UTC))
        owners = {id_: signatures.owner_of(elected[row["original"]]) for id_, row in rows.items()}
        cursor = registry.signatures.find({"cluster": {"$in": list(rows)}}, signatures.OWNER_FIELDS)
        while members := await cursor.to_list(BATCH):
            verdicts = Verdicts()
            for member in members:
                cluster, original = member["cluster"], owners[member["cluster"]]
                if member["_id"] == original.id or clusters.is_source(
                    member.get("item"), original.item
                ):
                    verdicts[member["post"]] = Verdict(cluster=cluster)
                    continue
                similarity = Sketch.decode(member["sketch"]).similarity(original.sketch)
                verdicts[member["post"]] = Verdict(rows[cluster]["post"], similarity, cluster)
            await show(db, verdicts)
        others = {row["_id"] for row in stored} - rows.keys()
        others |= await _settle_others(db, registry, wanted)
        wanted = others | await clusters.settled(registry, rows)


async def _settle_others(
    db: Database, registry: Registry, wanted: Collection[ObjectId]
) -> set[ObjectId]:
    """Update posts that show these clusters but are no longer in them.

    The process that removed them may have been interrupted. Returns their current clusters.
    """
    now_in: set[ObjectId] = set()
    cursor = db.posts.find({"cluster": {"$in": list(wanted)}}, {"cluster": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        stored = await signatures.by_id(registry, [id_of(row["_id"]) for row in rows])
        shown = {row["_id"]: row["cluster"] for row in rows}
        left = [
            key
            for key, cluster in shown.items()
            if stored.get(id_of(key), {}).get("cluster") != cluster
        ]
        now_in |= await _show_alone(db, registry, left)
    return now_in
