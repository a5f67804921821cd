"""`clusters`: posts that are duplicates of one another, and which of them is the original.

One document a cluster, and each change of the original is one atomic update of it: the truth that
posts are brought into line with. Its first copy makes it; a post alone has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne

from crawler.sketches.claim import ALONE, Candidate, Owner, Verdict
from crawler.storage.client import Document
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.claimed import Member
from crawler.storage.duplicates.registry import Registry

KEPT_CHANGES = 100
ELECTIONS = 20


async def standing(
    registry: Registry, members: Sequence[Member], now: datetime
) -> dict[str, Verdict]:
    """What posts are that are stored with a cluster: alone where that has no document."""
    if not members:
        return {}
    found = await there(registry, {cluster for _, cluster in members})
    alone = dict.fromkeys((one.key for one, cluster in members if cluster not in found), ALONE)
    return alone | await verdicts(registry, [one for one in members if one[1] in found], now)


async def verdicts(
    registry: Registry, members: Sequence[Member], now: datetime
) -> dict[str, Verdict]:
    """What members of clusters are; an earlier one than the original takes its place."""
    if not members:
        return {}
    joining = [Owner(one.id, one.key, one.created, one.sketch, to) for one, to in members]
    await _enter(registry, joining, now)
    found = await _with_originals(registry, {cluster for _, cluster in members}, now)
    return {one.key: _verdict(one, found.get(cluster), cluster) for one, cluster in members}


async def _enter(registry: Registry, joining: Sequence[Owner], now: datetime) -> None:
    """Propose posts, after those that have been in their clusters without a document."""
    clusters, ids = {one.cluster for one in joining}, [one.id for one in joining]
    new = clusters - await there(registry, clusters)
    before = await _earliest(registry, new, ids)
    made = await _propose(registry, before, now) | await _propose(registry, joining, now)
    # Who was stored between these questions has not seen the cluster yet.
    known = {one.id for one in before}.union(ids)
    late = [one for one in await _earliest(registry, made) if one.id not in known]
    await _propose(registry, late, now)


async def there(registry: Registry, clusters: Collection[ObjectId]) -> set[ObjectId]:
    """Those of these clusters that have a document."""
    if not clusters:
        return set()
    return set(await registry.clusters.distinct("_id", {"_id": {"$in": list(clusters)}}))


async def _earliest(
    registry: Registry, clusters: Collection[ObjectId], besides: Sequence[int] = ()
) -> list[Owner]:
    """The earliest stored post of each of these clusters."""
    if not clusters:
        return []
    stages: list[Document] = [
        {"$match": {"cluster": {"$in": list(clusters)}, "_id": {"$nin": list(besides)}}},
        {"$project": signatures.OF_OWNER | {"at": 1}},
        {"$sort": {"created": 1, "at": 1, "post": 1}},
        {"$group": {"_id": "$cluster", "first": {"$first": "$$ROOT"}}},
    ]
    found = await registry.signatures.aggregate(stages, allowDiskUse=True)
    return [signatures.owner_of(row["first"]) async for row in found]


def is_source(item: int | None, original: int | None) -> bool:
    """Whether a post is no copy of its cluster's original, but has the same item as that one."""
    return item is not None and item == original


def _verdict(candidate: Candidate, original: Owner | None, cluster: ObjectId) -> Verdict:
    if original is None:
        return ALONE
    if original.id == candidate.id or is_source(candidate.item, original.item):
        return Verdict(cluster=cluster)
    return Verdict(original.post, candidate.sketch.similarity(original.sketch), cluster)


async def _propose(registry: Registry, members: Iterable[Owner], now: datetime) -> set[ObjectId]:
    """Each member becomes the original of its cluster if it is earlier than that, or there is none.

    Whoever joins proposes itself, and who makes a cluster's document whom it finds there: in
    whatever order that comes, the earliest is left. Returns the clusters that were made.
    """
    earliest: dict[ObjectId, Owner] = {}
    for one in sorted(members, key=lambda member: member.created):
        earliest.setdefault(one.cluster, one)
    updates = []
    for one in earliest.values():
        earlier = {"$or": [_NONE, {"$gt": ["$created", one.created]}]}
        change = _change(one, now, "an earlier one came late", earlier)
        updates.append(UpdateOne({"_id": one.cluster}, change, upsert=True))
    if not updates:
        return set()
    done = await registry.clusters.bulk_write(updates, ordered=False)
    return set((done.upserted_ids or {}).values())


_ALWAYS: Document = {"$literal": True}
_NONE: Document = {"$eq": [{"$type": "$original"}, "missing"]}


def _change(one: Owner, now: datetime, why: str, condition: Document) -> list[Document]:
    """An update that makes a post the original under a condition, and notes it if it was not."""
    change = {"at": now, "was": "$post", "post": {"$literal": one.post}, "why": why}
    noted = {"$concatArrays": [{"$ifNull": ["$changes", []]}, [change]]}
    same = {"$or": [_NONE, {"$eq": ["$original", one.id]}]}
    fields = {
        "changes": {"$cond": [same, "$changes", {"$slice": [noted, -KEPT_CHANGES]}]},
        "original": one.id,
        "post": {"$literal": one.post},
        "created": one.created,
        "unsettled": True,
    }
    kept = {name: {"$cond": [condition, value, f"${name}"]} for name, value in fields.items()}
    return [{"$set": kept}]


async def _with_originals(
    registry: Registry, clusters: Iterable[ObjectId], now: datetime
) -> dict[ObjectId, Owner]:
    """The original of each cluster; one that has gone is replaced."""
    wanted, found = set(clusters), {}
    rows = await registry.clusters.find({"_id": {"$in": list(wanted)}}).to_list(None)
    stored = await signatures.by_id(registry, [row["original"] for row in rows])
    for row in rows:
        holder = stored.get(row["original"])
        if holder is not None and holder.get("cluster") == row["_id"]:
            found[row["_id"]] = signatures.owner_of(holder)
    for cluster in wanted - found.keys():
        if (elected := await elect(registry, cluster, now)) is not None:
            found[cluster] = elected
    return found


async def elect(registry: Registry, cluster: ObjectId, now: datetime) -> Owner | None:
    """The original of a cluster, the earliest of its posts where it has none; None: no posts."""
    for _ in range(ELECTIONS):
        row = await registry.clusters.find_one({"_id": cluster})
        before = row["original"] if row else None
        holder = (
            (await signatures.by_id(registry, [before])).get(before) if before is not None else None
        )
        if holder is not None and holder.get("cluster") == cluster:
            return signatures.owner_of(holder)
        heirs = await _earliest(registry, [cluster])
        if not heirs:
            await registry.clusters.delete_one({"_id": cluster, "original": before})
            return None
        if row is None:
            await _propose(registry, heirs, now)
        else:
            change = _change(heirs[0], now, "the original has gone", _ALWAYS)
            await registry.clusters.update_one({"_id": cluster, "original": before}, change)
    return None


async def take_bands(registry: Registry, owner: Owner) -> None:
    """Claim those of a post's bands that nobody owns, so that its copies are found by it."""
    if registry.shared is not None:
        await registry.shared.put(signatures.claims_of([owner]))
        return
    bands = frozenset(owner.sketch.bands.tolist())
    owners, _ = await signatures.holders(registry, bands)
    free = sorted(bands - owners.keys())
    if free:
        # Each by itself: one that is taken meanwhile must not cost the others.
        await signatures.add_bands(registry, owner.id, free)


async def settled(registry: Registry, shown: Mapping[ObjectId, Document]) -> set[ObjectId]:
    """Note that posts show what these clusters said; those that say something else by now."""
    if not shown:
        return set()
    unset = {"$unset": {"unsettled": ""}}
    said = [
        UpdateOne({"_id": id_, "original": row["original"]}, unset) for id_, row in shown.items()
    ]
    done = await registry.clusters.bulk_write(said, ordered=False)
    if done.matched_count == len(said):
        return set()
    query = {"_id": {"$in": list(shown)}, "unsettled": {"$exists": True}}
    return set(await registry.clusters.distinct("_id", query))
