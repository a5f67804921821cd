"""`clusters`: groups of posts that are duplicates of one another, and their originals.

There is one document per cluster. It is authoritative: posts are updated to match it. Each change
of the original is one atomic update. The first copy creates the document, so a post without copies
has none.

The original is found in three steps, so that a source cannot become the original by stating a false
date. First, the post with the earliest `claimed` sets the `bound`: a post that its own source did
not show at that time (`absent`) cannot be the first. Second, of the others, the post that was seen
first decides which source leads. Third, the earliest post of that source is the original. The
document stores the bound, the leading source, its sort key (`lead`) with its `absent`, and the sort
key of the original (`order`). The result does not depend on the order in which posts are stored.

Each post stores its verdict, so that readers need only `posts`. Between the claim and the write of
a post, another worker may make another post the original. So each batch is compared with its
clusters again after it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from pymongo import UpdateOne

from crawler.dedup.posts import ALONE, Candidate, Owner, Verdict, Verdicts, id_of
from crawler.storage.client import Database, Document, in_batches, write_all
from crawler.storage.dedup import signatures
from crawler.storage.dedup.signatures import Member, Registry
from crawler.storage.verdicts import update_of

# Sort keys of the bound, of sources, and of the posts of one source.
BOUND, LEAD = ("claimed", "post"), ("seen", "created", "post")
ORDER = ("created", "seen", "post")
# In place of a missing `absent`: the post may have been there always.
ALWAYS_THERE = datetime(1, 1, 1, tzinfo=UTC)
MAX_CHANGES = 100
MAX_ELECTIONS = 20
# Conditions in updates: always, and if the cluster has no original yet.
_ALWAYS: Document = {"$literal": True}
_NONE: Document = {"$eq": [{"$type": "$original"}, "missing"]}
BATCH = 1000
MAX_TRIES = 10
UNSETTLED: Document = {"unsettled": True}


async def stored_verdicts(
    registry: Registry, members: Sequence[Member], now: datetime
) -> dict[str, Verdict]:
    """Return the verdicts of posts stored with a cluster; alone if it has no other post."""
    if not members:
        return {}
    ids = {cluster for _, cluster in members}
    shared = await existing_clusters(registry, ids)
    shared |= await _with_copies(registry, ids - shared)
    alone = dict.fromkeys((post.key for post, to in members if to not in shared), ALONE)
    return alone | await verdicts(registry, [pair for pair in members if pair[1] in shared], now)


async def verdicts(
    registry: Registry, members: Sequence[Member], now: datetime
) -> dict[str, Verdict]:
    """Return the verdicts of members; a member earlier than the original replaces it."""
    if not members:
        return {}
    joining = [
        Owner(
            post.id,
            post.key,
            post.created,
            post.sketch,
            to,
            None,
            post.seen,
            post.source,
            absent=post.absent,
            claimed=post.claimed,
        )
        for post, to in members
    ]
    ids = {cluster for _, cluster in members}
    # Propose the stored posts of clusters without a document first.
    new = ids - await existing_clusters(registry, ids)
    own = [owner.id for owner in joining]
    before = await _firsts(registry, {"cluster": {"$in": list(new)}, "_id": {"$nin": own}})
    made = await _propose(registry, now, before, joining)
    # Posts stored between these reads did not find the cluster's document.
    proposed = {owner.id for owner in before}.union(own)
    late = await _firsts(registry, {"cluster": {"$in": list(made)}})
    await _propose(registry, now, [owner for owner in late if owner.id not in proposed])
    originals = {}
    rows = await current(registry, ids, now)
    stored = await signatures.by_id(registry, set().union(*map(_needed, rows)))
    for row in rows:
        if all(stored.get(id_, {}).get("cluster") == row["_id"] for id_ in _needed(row)):
            originals[row["_id"]] = signatures.owner_of(stored[row["original"]])
    for cluster in ids - originals.keys():
        # The original, or the leading post of its source, was deleted.
        if (elected := await elect(registry, cluster, now)) is not None:
            originals[cluster] = elected
    result = {}
    for post, cluster in members:
        original = originals.get(cluster)
        result[post.key] = ALONE if original is None else _verdict(post, original, cluster)
    return result


def _verdict(post: Candidate | Owner, original: Owner, cluster: ObjectId) -> Verdict:
    """Return the verdict on a post of a cluster with this original."""
    if post.id == original.id or is_source(post.item, original.item):
        return Verdict(cluster=cluster)
    return Verdict(original.post, post.sketch.similarity(original.sketch), cluster)


async def _with_copies(registry: Registry, clusters: Collection[ObjectId]) -> set[ObjectId]:
    """Return the clusters with several posts, of clusters without a document.

    A process that stored a copy may have died before it created the document.
    """
    if not clusters:
        return set()
    stages: list[Document] = [
        {"$match": {"cluster": {"$in": list(clusters)}}},
        {"$group": {"_id": "$cluster", "posts": {"$sum": 1}}},
        {"$match": {"posts": {"$gt": 1}}},
    ]
    cursor = await registry.signatures.aggregate(stages)
    return {row["_id"] for row in await cursor.to_list(None)}


async def existing_clusters(registry: Registry, clusters: Collection[ObjectId]) -> set[ObjectId]:
    """Return the given clusters that have a document."""
    if not clusters:
        return set()
    return set(await registry.clusters.distinct("_id", {"_id": {"$in": list(clusters)}}))


async def _firsts(registry: Registry, query: Document) -> list[Owner]:
    """Return the stored posts that decide the original of their clusters.

    For each cluster: the post of the bound, the leading post, and the earliest post of its source.
    """
    if query["cluster"] == {"$in": []}:
        return []
    keys = {
        name: {field: f"${field}" for field in key}
        for name, key in (("bounds", BOUND), ("leads", LEAD))
    }
    is_eligible = {"$lt": ["$absent", "$bound.claimed"]}
    stages: list[Document] = [
        {"$match": query},
        {"$project": signatures.OWNER_FIELDS | keys},
        {"$setWindowFields": {"partitionBy": "$cluster", "output": {"bound": {"$min": "$bounds"}}}},
        {"$sort": dict.fromkeys(ORDER, 1)},
        {"$group": {
            "_id": {"cluster": "$cluster", "source": "$source"},
            "bound": {"$first": "$bound"},
            "earliest": {"$first": "$post"},
            # A missing value is less than any other.
            "leads": {"$min": {"$cond": [is_eligible, "$leads", None]}},
        }},
        {"$match": {"leads": {"$ne": None}}},
        {"$sort": {"leads": 1}},
        {"$group": {"_id": "$_id.cluster", "first": {"$first": "$$ROOT"}}},
    ]  # fmt: skip
    cursor = await registry.signatures.aggregate(stages, allowDiskUse=True)
    # The bound first: no later proposal overtakes the leading post.
    posts = [
        post
        for row in [row["first"] async for row in cursor]
        for post in (row["bound"]["post"], row["leads"]["post"], row["earliest"])
    ]
    ids = list(dict.fromkeys(map(id_of, posts)))
    stored = await signatures.by_id(registry, ids)
    rows = [stored[id_] for id_ in ids if id_ in stored]
    return [signatures.owner_of(row) for row in rows if "cluster" in row]


def is_source(item: int | None, original: int | None) -> bool:
    """Return whether a post has the original's item, and so is not a copy."""
    return item is not None and item == original


async def _propose(registry: Registry, now: datetime, *groups: Sequence[Owner]) -> set[ObjectId]:
    """Make members the originals of their clusters if they come first, or if there is no original.

    groups: members, in the order in which they are proposed
    Returns the clusters whose documents were created. Each post that joins a cluster is proposed;
    the process that creates the document also proposes the posts stored before. The result is the
    same in any order.

    If another source takes the lead, posts of that source that were stored before have not been
    considered yet. If an earlier bound excludes the leading post, no other stored post has been.
    The document is marked as `overtaken` until the stored posts that decide are proposed.
    """
    updates = []
    for owner in (member for members in groups for member in members):
        times = signatures.times_of(owner)
        bound, lead, order = ({"$literal": _key(owner, key)} for key in (BOUND, LEAD, ORDER))
        absent = times.get("absent", ALWAYS_THERE)
        lowest = {"$min": ["$bound", bound]}
        limit = {"$first": lowest}
        is_excluded = {"$gte": ["$lead_absent", limit]}
        is_sooner = {"$or": [is_excluded, {"$gt": ["$lead", lead]}]}
        leads = {"$and": [{"$lt": [absent, limit]}, is_sooner]}
        same = {"$eq": ["$source", owner.source]}
        takes = {"$cond": [same, {"$gt": ["$order", order]}, leads]}
        change = _change(owner, now, "an earlier one came late", {"$or": [_NONE, takes]})
        ahead = {"$or": [_NONE, leads]}
        overtakes = {"$or": [is_excluded, {"$and": [{"$not": [same]}, leads]}]}
        overtakes = {"$and": [{"$not": [_NONE]}, overtakes]}
        change |= {
            "bound": lowest,
            "lead": {"$cond": [ahead, lead, "$lead"]},
            "lead_absent": {"$cond": [ahead, absent, "$lead_absent"]},
            "source": {"$cond": [ahead, owner.source, "$source"]},
            "overtaken": {"$cond": [overtakes, True, "$overtaken"]},
        }
        updates.append(UpdateOne({"_id": owner.cluster}, [{"$set": change}], upsert=True))
    if not updates:
        return set()
    done = await registry.clusters.bulk_write(updates, ordered=False)
    return set((done.upserted_ids or {}).values())


def _key(owner: Owner, names: Sequence[str]) -> list[Any]:
    """Return a sort key of a post, of the fields BOUND, LEAD or ORDER."""
    values = {**signatures.times_of(owner), "post": owner.post}
    return [values[name] for name in names]


async def current(registry: Registry, ids: Collection[ObjectId], now: datetime) -> list[Document]:
    """Return the documents of clusters, after searching those whose lead has just changed."""
    query: Document = {"_id": {"$in": list(ids)}}
    rows = await registry.clusters.find(query).to_list(None)
    for _ in range(MAX_TRIES):
        overtaken = [row["_id"] for row in rows if "overtaken" in row]
        for cluster in overtaken:
            if not (firsts := await _firsts(registry, {"cluster": cluster})):
                continue
            await _propose(registry, now, firsts)
            settled = {"_id": cluster, "bound": _key(firsts[0], BOUND)}
            settled["lead"] = _key(_heirs(firsts)[0], LEAD)
            await registry.clusters.update_one(settled, {"$unset": {"overtaken": ""}})
        if not overtaken:
            break
        rows = await registry.clusters.find(query).to_list(None)
    return rows


def _eligible(firsts: Sequence[Owner]) -> list[Owner]:
    """Return the posts that can be the first of a cluster, given all of `_firsts`."""
    bound = min(_key(post, BOUND) for post in firsts)[0]
    return [
        post for post in firsts
        if signatures.times_of(post).get("absent", ALWAYS_THERE) < bound
    ]  # fmt: skip


def _change(owner: Owner, now: datetime, why: str, condition: Document) -> Document:
    """Return update expressions that make a post the original if a condition holds.

    A change of the original is added to `changes`.
    """
    change = {"at": now, "was": "$post", "post": {"$literal": owner.post}, "why": why}
    noted = {"$concatArrays": [{"$ifNull": ["$changes", []]}, [change]]}
    same = {"$or": [_NONE, {"$eq": ["$original", owner.id]}]}
    fields = {
        "changes": {"$cond": [same, "$changes", {"$slice": [noted, -MAX_CHANGES]}]},
        "original": owner.id,
        "post": {"$literal": owner.post},
        "created": owner.created,
        "order": {"$literal": _key(owner, ORDER)},
        "unsettled": True,
    }
    return {name: {"$cond": [condition, value, f"${name}"]} for name, value in fields.items()}


def _needed(row: Document) -> set[int]:
    """Return the posts that a cluster's document depends on."""
    return {row["original"], id_of(row["lead"][-1]), id_of(row["bound"][-1])}


async def elect(registry: Registry, cluster: ObjectId, now: datetime) -> Owner | None:
    """Return the original of a cluster, electing a new one if a post it depends on was deleted.

    Returns None if the cluster has no posts.
    """
    for _ in range(MAX_ELECTIONS):
        row = next(iter(await current(registry, [cluster], now)), None)
        if row is not None:
            stored = await signatures.by_id(registry, _needed(row))
            if all(stored.get(id_, {}).get("cluster") == cluster for id_ in _needed(row)):
                return signatures.owner_of(stored[row["original"]])
        heirs = await _firsts(registry, {"cluster": cluster})
        of_then = {"_id": cluster} | {
            name: row and row[name] for name in ("original", "lead", "bound")
        }
        if not heirs:
            await registry.clusters.delete_one(of_then)
            return None
        if row is not None:
            bound, (leading, earliest) = min(_key(heir, BOUND) for heir in heirs), _heirs(heirs)
            is_there = row["original"] in stored
            why = "the first of its source has gone" if is_there else "the original has gone"
            change = _change(earliest, now, why, _ALWAYS) | {
                "bound": {"$literal": bound},
                "lead": {"$literal": _key(leading, LEAD)},
                "lead_absent": signatures.times_of(leading).get("absent", ALWAYS_THERE),
                "source": leading.source,
                "overtaken": "$$REMOVE",
            }
            await registry.clusters.update_one(of_then, [{"$set": change}])
            # Posts stored in the meantime were compared with the deleted one.
            heirs = await _firsts(registry, {"cluster": cluster})
        await _propose(registry, now, heirs)
    return None


def _heirs(firsts: Sequence[Owner]) -> tuple[Owner, Owner]:
    """Return the leading post and the earliest of its source, given the `_firsts` of a cluster."""
    leading = min(_eligible(firsts), key=lambda post: _key(post, LEAD))
    own = [post for post in firsts if post.source == leading.source]
    return leading, min(own, key=lambda post: _key(post, ORDER))


async def take_bands(registry: Registry, owners: Sequence[Owner]) -> None:
    """Claim the free bands of posts, so that their copies find them."""
    if not owners:
        return
    bands = {owner.id: frozenset(owner.sketch.bands.tolist()) for owner in owners}
    taken = set((await signatures.holders(registry, frozenset().union(*bands.values())))[0])
    free: dict[int, list[int]] = {}
    for id_, own in bands.items():
        free[id_] = sorted(own - taken)
        taken |= own
    await signatures.add_bands(registry, free)


async def take_free_bands(registry: Registry, posts: Sequence[Candidate]) -> None:
    """Claim the free bands of those posts that are stored with these sketches."""
    rows = await signatures.by_id(registry, [post.id for post in posts])
    owners = [
        signatures.owner_of(row)
        for post in posts
        if (row := rows.get(post.id)) is not None and row["sketch"] == post.sketch.encode()
    ]
    await take_bands(registry, owners)


async def without_original(registry: Registry) -> set[ObjectId]:
    """Return the clusters whose original is deleted or in another cluster; scans all clusters."""
    original: Document = {
        "from": registry.signatures.name, "localField": "original", "foreignField": "_id",
        "pipeline": [{"$project": {"cluster": 1}}], "as": "original",
    }  # fmt: skip
    stages: list[Document] = [
        {"$lookup": original},
        {"$match": {"$expr": {"$ne": [{"$first": "$original.cluster"}, "$_id"]}}},
        {"$project": {"_id": 1}},
    ]
    return {row["_id"] async for row in await registry.clusters.aggregate(stages)}


async def mark_unsettled(registry: Registry, clusters: Collection[ObjectId]) -> None:
    """Mark clusters whose posts may show outdated verdicts."""
    if clusters:
        query: Document = {"_id": {"$in": list(clusters)}}
        await registry.clusters.update_many(query, {"$set": {"unsettled": True}})


async def mark_settled(registry: Registry, shown: Mapping[ObjectId, Document]) -> set[ObjectId]:
    """Mark clusters as shown; return those that have changed since."""
    if not shown:
        return set()
    unset = {"$unset": {"unsettled": ""}}
    updates = [
        UpdateOne({"_id": id_, "original": row["original"]}, unset) for id_, row in shown.items()
    ]
    done = await registry.clusters.bulk_write(updates, ordered=False)
    if done.matched_count == len(updates):
        return set()
    query = {"_id": {"$in": list(shown)}, "unsettled": {"$exists": True}}
    return set(await registry.clusters.distinct("_id", query))


async def show_verdicts(db: Database, verdicts: Verdicts) -> None:
    """Write verdicts to stored posts."""
    updates = [UpdateOne({"_id": key}, update_of(verdict)) for key, verdict in verdicts.items()]
    await write_all(db.posts, updates)


async def confirm(
    db: Database, registry: Registry, verdicts: Verdicts, written: Container[str]
) -> None:
    """Update posts whose verdicts have changed since they were written.

    written: posts that show their verdict; the other verdicts changed through edits of these
    """
    if not verdicts:
        return
    await show_verdicts(
        db, {key: verdict for key, verdict in verdicts.items() if key not in written}
    )
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
    await show_verdicts(db, dict.fromkeys(keys, ALONE))
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
        if is_source(items.get(own), items.get(original))
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
        stored = await current(registry, wanted, datetime.now(UTC))
        elected = await signatures.by_id(registry, [row["original"] for row in stored])
        rows = {
            row["_id"]: row
            for row in stored
            if elected.get(row["original"], {}).get("cluster") == row["_id"]
        }
        # The process that released the original may have been interrupted before the election.
        for row in stored:
            if row["_id"] not in rows:
                await elect(registry, row["_id"], datetime.now(UTC))
        owners = {id_: signatures.owner_of(elected[row["original"]]) for id_, row in rows.items()}
        cursor = registry.signatures.find({"cluster": {"$in": list(rows)}}, signatures.OWNER_FIELDS)
        while members := await cursor.to_list(BATCH):
            verdicts = Verdicts()
            for member in map(signatures.owner_of, members):
                original = owners[member.cluster]
                verdicts[member.post] = _verdict(member, original, member.cluster)
            await show_verdicts(db, verdicts)
        others = {row["_id"] for row in stored} - rows.keys()
        others |= await _settle_others(db, registry, wanted)
        wanted = others | await mark_settled(registry, rows)


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
