"""`clusters`: posts that are duplicates of one another, and which of them is the original.

One document a cluster, and each change of the original is one atomic update of it: the truth that
posts are brought into line with. Its first copy makes a cluster; a post alone has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne

from crawler.sketches.claim import ALONE, Candidate, Owner, Verdict
from crawler.storage.client import Document
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.inserting import Copy, insert_copies
from crawler.storage.duplicates.registry import Registry

KEPT_CHANGES = 100
ELECTIONS = 20


async def join(
    registry: Registry, copies: Sequence[Copy], now: datetime
) -> tuple[dict[str, Verdict], list[Candidate], list[Candidate]]:
    """Store copies in the clusters of their matches.

    Returns verdicts, those that lost their match meanwhile, and those that were stored before.
    """
    if not copies:
        return {}, [], []
    clusters = await _clusters_of(registry, {copy.match.owner.id for copy in copies}, now)
    there = [copy for copy in copies if copy.match.owner.id in clusters]
    rows = []
    for copy in there:
        bare = signatures.row_of(registry, copy.candidate, (), now)
        rows.append((bare | {"cluster": clusters[copy.match.owner.id]}, copy.free))
    stored_before = await insert_copies(registry, rows)
    joined = [copy for copy in there if copy.candidate.id not in stored_before]
    lost = [copy.candidate for copy in copies if copy.match.owner.id not in clusters]
    before = [copy.candidate for copy in there if copy.candidate.id in stored_before]
    members = [(copy.candidate, clusters[copy.match.owner.id]) for copy in joined]
    return await verdicts(registry, members, now), lost, before


async def _clusters_of(registry: Registry, owners: set[int], now: datetime) -> dict[int, ObjectId]:
    """The cluster of each of these posts, made where there is none; posts that are gone miss."""
    query: Document = {"_id": {"$in": list(owners)}}
    found = await registry.signatures.find(query, signatures.OF_OWNER).to_list(None)
    if alone := [row["_id"] for row in found if "cluster" not in row]:
        lacking = {"cluster": {"$exists": False}}
        await registry.signatures.bulk_write(
            [UpdateOne({"_id": id_} | lacking, {"$set": {"cluster": ObjectId()}}) for id_ in alone],
            ordered=False,
        )
        found = await registry.signatures.find(query, signatures.OF_OWNER).to_list(None)
        founders = [row for row in found if row["_id"] in alone and "cluster" in row]
        await _propose(registry, map(signatures.owner_of, founders), now)
    return {row["_id"]: row["cluster"] for row in found if "cluster" in row}


async def verdicts(
    registry: Registry, members: Sequence[tuple[Candidate, ObjectId]], now: datetime
) -> dict[str, Verdict]:
    """What members of clusters are; an earlier one than the original takes its place."""
    if not members:
        return {}
    proposed = (
        Owner(one.id, one.key, one.created, one.sketch, cluster) for one, cluster in members
    )
    await _propose(registry, proposed, now)
    found = await _with_originals(registry, {cluster for _, cluster in members}, now)
    return {
        candidate.key: _verdict(candidate, found.get(cluster), cluster)
        for candidate, cluster in members
    }


def _verdict(candidate: Candidate, original: Owner | None, cluster: ObjectId) -> Verdict:
    if original is None:
        return ALONE
    if original.id == candidate.id:
        return Verdict(cluster=cluster)
    return Verdict(original.post, candidate.sketch.similarity(original.sketch), cluster)


async def _propose(registry: Registry, members: Iterable[Owner], now: datetime) -> None:
    """Each member becomes the original of its cluster if it is earlier than that, or there is none.

    Whoever joins proposes itself, and who makes a cluster its founder: in whatever order that
    comes, the earliest is left.
    """
    earliest: dict[ObjectId, Owner] = {}
    for one in sorted(members, key=lambda member: member.created):
        earliest.setdefault(one.cluster, one)
    updates = []
    for one in earliest.values():
        earlier = {"$or": [_NONE, {"$gt": ["$created", one.created]}]}
        change = _change(one, now, "an earlier one came late", earlier)
        updates.append(UpdateOne({"_id": one.cluster}, change, upsert=True))
    if updates:
        await registry.clusters.bulk_write(updates, ordered=False)


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
        holder = (await signatures.by_id(registry, [before])).get(before) if before else None
        if holder is not None and holder.get("cluster") == cluster:
            return signatures.owner_of(holder)
        members = registry.signatures.find({"cluster": cluster, "ghost": {"$exists": False}})
        heirs = await members.sort([("created", 1), ("_id", 1)]).limit(1).to_list()
        if not heirs:
            await registry.clusters.delete_one({"_id": cluster, "original": before})
            return None
        heir = signatures.owner_of(heirs[0])
        if row is None:
            await _propose(registry, [heir], now)
        else:
            change = _change(heir, now, "the original has gone", _ALWAYS)
            await registry.clusters.update_one({"_id": cluster, "original": before}, change)
    return None


async def take_bands(registry: Registry, owner: Owner) -> None:
    """Claim those of a post's bands that nobody owns, so that its copies are found by it."""
    if registry.shared is not None:
        await registry.shared.claim([(owner.id, owner.sketch)], registry.scheme.threshold)
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
