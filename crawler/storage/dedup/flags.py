"""Posts as `clusters` has them: which one the search index holds, and whose duplicates others are.

A post is written by whoever stores it, a cluster by whoever claims: between the two another worker
may have made another post the original. So what was written is compared once more.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from bson import ObjectId
from pymongo import UpdateOne

from crawler.dedup.model import ALONE, Owner, Verdict, Verdicts, id_of
from crawler.dedup.sketch import Sketch
from crawler.storage.client import Database, Document
from crawler.storage.dedup import clusters, signatures
from crawler.storage.dedup.registry import Registry
from crawler.storage.retry import in_batches

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
    """Let posts show that they have no copies; their clusters, where they have got some by now."""
    if not keys:
        return set()
    await show(db, dict.fromkeys(keys, ALONE))
    members, _ = await _to_compare(registry, keys)
    return set(await _clusters(registry, set(members.values())))


async def _to_compare(
    registry: Registry, keys: Iterable[str]
) -> tuple[dict[str, ObjectId], set[ObjectId]]:
    """The clusters of those of these posts that have one, and those that are not settled.

    In one round trip: of most batches there is nothing to be told.
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
    """Those of these members that rightly say that they are originals, as sources of one item."""
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
    """Bring posts into line with all clusters that were left unsettled."""
    wanted = await registry.clusters.distinct("_id", {"unsettled": {"$exists": True}})
    for some in in_batches(wanted, BATCH):
        await settle(db, registry, some)


async def settle(db: Database, registry: Registry, wanted: Collection[ObjectId]) -> None:
    """Bring all posts of these clusters into line with them."""
    for _ in range(TRIES):
        if not wanted:
            return
        stored = await clusters.current(registry, wanted, datetime.now(UTC))
        originals = await signatures.by_id(registry, [row["original"] for row in stored])
        rows = {
            row["_id"]: row
            for row in stored
            if originals.get(row["original"], {}).get("cluster") == row["_id"]
        }
        # Else whoever released the original elects the next, unless that was interrupted.
        for row in stored:
            if row["_id"] not in rows:
                await clusters.elect(registry, row["_id"], datetime.now(UTC))
        owners = {id_: signatures.owner_of(originals[row["original"]]) for id_, row in rows.items()}
        cursor = registry.signatures.find({"cluster": {"$in": list(rows)}}, signatures.OF_OWNER)
        while members := await cursor.to_list(BATCH):
            await show(
                db,
                {
                    member["post"]: _verdict(
                        member, rows[member["cluster"]], owners[member["cluster"]]
                    )
                    for member in members
                },
            )
        others = {row["_id"] for row in stored} - rows.keys()
        others |= await _settle_others(db, registry, wanted)
        wanted = others | await clusters.settled(registry, rows)


async def _settle_others(
    db: Database, registry: Registry, wanted: Collection[ObjectId]
) -> set[ObjectId]:
    """Bring posts into line that show these clusters but are in none of them.

    Whoever took them out may have been interrupted before they showed it. Returns the clusters
    that they are in, if any.
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


def _verdict(member: Document, row: Document, original: Owner) -> Verdict:
    if member["_id"] == original.id or clusters.is_source(member.get("item"), original.item):
        return Verdict(cluster=row["_id"])
    alike = Sketch.decode(member["sketch"]).similarity(original.sketch)
    return Verdict(row["post"], alike, row["_id"])
