"""Claims: decide which posts of a batch are originals, and find the originals of the copies.

In MongoDB the insert is the claim: the originals of a batch are stored in one round trip, and the
unique index accepts one of two concurrent claims. The owners of bands are read only for inserts
that the index refused. In Redis a script looks up bands and claims them, and MongoDB stores the
clusters that the script returns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne

from crawler.dedup.posts import ALONE, Candidate, Claim, Owner, Verdicts, most_similar
from crawler.storage.client import Document
from crawler.storage.dedup import boilerplate, clusters, edits, signatures
from crawler.storage.dedup.signatures import Bands, Member, Registry

logger = logging.getLogger(__name__)
# Attempts when other processes claim bands or change posts between a read and the write.
MAX_ROUNDS = 10
# Maximum number of labels of a post that claims read; people create fewer.
MAX_LABELS = 1000

# Candidates with the bands that they still have to claim, or whose owners are queried.
Wanted = dict[Candidate, frozenset[int]]
# A copy, the owner that it duplicates, and the copy's bands that had no owner.
Copy = tuple[Candidate, Owner, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The constraints of labels on the cluster of a post.

    owner:    stored post labeled as the same, whose cluster the post joins; None: no such post
    apart:    numbers of the posts labeled as not the same
    clusters: clusters of these posts
    """

    owner: Owner | None = None
    apart: frozenset[int] = frozenset()
    clusters: frozenset[ObjectId] = frozenset()

    def allows(self, owner: Owner) -> bool:
        """Return whether the post may be a copy of an owner."""
        return owner.id not in self.apart and owner.cluster not in self.clusters


NO_RULING = Ruling()


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """The posts of a batch by the result of their claims. All but `lost` are stored.

    alone:    originals without a cluster
    founders: originals; their cluster has a document only if a copy was claimed since
    members:  copies, with their clusters
    stored:   posts that were stored before, with their documents
    lost:     posts whose owner, or whose own document, was deleted in the meantime
    """

    alone: list[Candidate] = field(default_factory=list)
    founders: list[Member] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    stored: list[tuple[Candidate, Document]] = field(default_factory=list)
    lost: list[Candidate] = field(default_factory=list)

    def placed(self) -> list[Candidate]:
        """Return the posts that this batch has stored."""
        return [*self.alone, *(post for post, _ in self.founders + self.members)]

    def add(self, other: ClaimedBatch) -> None:
        """Add the posts of another batch."""
        self.alone.extend(other.alone)
        self.founders.extend(other.founders)
        self.members.extend(other.members)
        self.stored.extend(other.stored)
        self.lost.extend(other.lost)


async def claim(registry: Registry, candidates: Iterable[Candidate], now: datetime) -> Verdicts:
    """Claim posts and return their verdicts by key.

    Of several candidates with one key the last counts. Within a batch the earliest post is the
    original. Copies that an edited original no longer resembles are claimed again, as are posts
    in which boilerplate was found since they were compared; the result has their new verdicts too.
    """
    verdicts = Verdicts()
    given = list({candidate.id: candidate for candidate in candidates}.values())
    weighed = await boilerplate.weigh(registry, given, now)
    await _claim_weighed(registry, weighed, verdicts, now)
    copies = [
        (candidate, original)
        for candidate in weighed.candidates
        if (original := verdicts.get(candidate.key, ALONE).duplicate_of)
    ]
    if registry.boilerplate is not None and copies:
        again = await boilerplate.weigh_copies(registry, copies, weighed.candidates)
        await _claim_weighed(registry, again, verdicts, now)
    return verdicts


async def review(registry: Registry, now: datetime) -> Verdicts:
    """Compare posts again whose boilerplate was found later; return their new verdicts."""
    verdicts = Verdicts()
    weighing = await boilerplate.weigh_pending(registry)
    if weighing.earlier:
        await _claim_weighed(registry, weighing, verdicts, now)
    return verdicts


async def _claim_weighed(
    registry: Registry, weighing: boilerplate.WeighedBatch, verdicts: Verdicts, now: datetime
) -> None:
    """Store verdicts on posts whose boilerplate is known, and on those that they affect."""
    earlier, alone = await _changed_earlier(registry, weighing.earlier, verdicts)
    waiting, stored = weighing.candidates + earlier, list[tuple[Candidate, Document]]()
    placed, refused = list[Candidate](), frozenset[int]()
    for _ in range(MAX_ROUNDS):
        edited = [candidate.id for candidate in waiting if candidate.edited]
        rows = await signatures.by_id(registry, edited)
        stored += [(post, rows[post.id]) for post in waiting if post.id in rows]
        # Edited posts leave their places first, so they are claimed together with the new ones.
        again = await _judge_stored(registry, stored, verdicts, now) if stored else []
        # A given post replaces the copy that an edited original has just released.
        by_id = {post.id: post for post in again}
        by_id |= {post.id: post for post in waiting if post.id not in rows}
        new = sorted(by_id.values(), key=lambda candidate: (candidate.created, candidate.key))
        claimed = await _claim_new(registry, new, now)
        verdicts |= dict.fromkeys((candidate.key for candidate in claimed.alone), ALONE)
        verdicts |= await clusters.verdicts(registry, claimed.members, now)
        verdicts |= await clusters.stored_verdicts(registry, claimed.founders, now)
        placed += claimed.placed()
        refused = refused.union(*(candidate.bands for candidate, _ in claimed.stored))
        waiting, stored = claimed.lost, claimed.stored
        if not waiting and not stored:
            break
    # Bands for which a refused post came first may have no owner now.
    if refused:
        freed = [post for post in placed if post.bands & refused]
        await clusters.take_free_bands(registry, freed)
    for candidate in waiting + [candidate for candidate, _ in stored]:
        logger.warning("%s judged an original: its duplicates kept changing", candidate.key)
        verdicts[candidate.key] = ALONE
    for key in alone:
        if verdicts.get(key) == ALONE:
            del verdicts[key]
    await boilerplate.note(registry, weighing.again)


async def _changed_earlier(
    registry: Registry, earlier: Sequence[Candidate], verdicts: Verdicts
) -> tuple[list[Candidate], set[str]]:
    """Return the earlier posts that have another sketch now, and the keys shown as originals.

    Posts without a signature were deleted after they were read, unless they are of this batch.
    """
    rows = await signatures.by_id(registry, [post.id for post in earlier])
    changed = []
    for post in earlier:
        row = rows.get(post.id)
        if post.key in verdicts if row is None else row["sketch"] != post.sketch.encode():
            changed.append(post)
    alone = {
        post.key
        for post in earlier
        if post.id in rows and "cluster" not in rows[post.id] and post.key not in verdicts
    }
    return changed, alone


async def _claim_new(
    registry: Registry, candidates: Sequence[Candidate], now: datetime
) -> ClaimedBatch:
    """Claim posts that are probably not stored; labeled ones last, one by one."""
    claim_posts = claim_in_mongodb if registry.shared is None else claim_in_redis
    pairs = await labeled(registry, candidates)
    claimed = await claim_posts(
        registry, [post for post in candidates if post.id not in pairs], now
    )
    for post in candidates:
        if post.id not in pairs:
            continue
        # A stored post keeps its place until it is edited or labeled again.
        if stored := await signatures.by_id(registry, [post.id]):
            claimed.stored.append((post, stored[post.id]))
            continue
        ruling = await ruling_of(registry, pairs[post.id])
        claimed.add(await claim_posts(registry, [post], now, ruling))
    return claimed


async def claim_in_mongodb(
    registry: Registry,
    candidates: Sequence[Candidate],
    now: datetime,
    ruling: Ruling = NO_RULING,
) -> ClaimedBatch:
    """Store originals with their free bands, and copies in the clusters of their owners.

    ruling: constraints of the labels on all candidates
    """
    claimed, copies = ClaimedBatch(), list[Copy]()
    wanted = {candidate: candidate.bands for candidate in candidates}
    if ruling.owner is not None:
        copies += [(candidate, ruling.owner, bands) for candidate, bands in wanted.items()]
        wanted = {}
    for _ in range(MAX_ROUNDS):
        if not wanted:
            break
        wanted = await _insert_originals(registry, wanted, claimed, copies, now, ruling)
        if not wanted:
            break
    else:
        # Other processes claimed the free bands in every round.
        logger.warning("%d posts stored without bands: others kept claiming them", len(wanted))
        bare = dict.fromkeys(wanted, frozenset[int]())
        lost = await _insert_originals(registry, bare, claimed, copies, now, ruling)
        claimed.lost.extend(lost)
    if copies:
        await _insert_copies(registry, copies, claimed, now)
    return claimed


async def _insert_originals(
    registry: Registry,
    wanted: Wanted,
    claimed: ClaimedBatch,
    copies: list[Copy],
    now: datetime,
    ruling: Ruling,
) -> Wanted:
    """Insert posts, and sort the others into copies and stored posts.

    Returns the posts to try again, with the bands that are still free.
    """
    taken, similar = _by_known_owners(registry, wanted, ruling)
    owners, own = await _holders(registry, similar)
    # The bands that posts of this batch are about to get.
    claiming: dict[int, Candidate] = {}
    rows: dict[Candidate, Document] = {}
    refused: list[Candidate] = []
    for candidate, bands in wanted.items():
        if candidate.id in own:
            claimed.stored.append((candidate, own[candidate.id]))
            continue
        holder = _most_similar(registry, candidate, ruling, owners, claiming)
        if isinstance(holder, Owner):
            copies.append((candidate, holder, candidate.bands.difference(owners)))
        elif holder is not None:
            refused.append(candidate)
        else:
            # One after another: with several arguments, all of each are read, not those of `bands`.
            free = bands.difference(owners).difference(claiming).difference(taken)
            claiming |= dict.fromkeys(free, candidate)
            rows[candidate] = signatures.row_of(registry, candidate, free, now)
    denied = await signatures.insert(registry, list(rows.values()))
    registry.known.add({band: c for band, c in claiming.items() if c.id not in denied})
    for candidate in rows:
        (refused if candidate.id in denied else claimed.alone).append(candidate)
    owners, own = await _holders(registry, {post: post.bands for post in refused})
    again: Wanted = {}
    for candidate in refused:
        holder = _most_similar(registry, candidate, ruling, owners)
        free = candidate.bands.difference(owners)
        if candidate.id in own:
            claimed.stored.append((candidate, own[candidate.id]))
        elif isinstance(holder, Owner):
            copies.append((candidate, holder, free))
        else:
            again[candidate] = free
    return again


async def _holders(
    registry: Registry, wanted: Wanted
) -> tuple[dict[int, Owner], dict[int, Document]]:
    """Return the owners of bands, and the documents of the posts that are already stored."""
    if not wanted:
        return {}, {}
    bands = frozenset[int]().union(*wanted.values())
    owners, own = await signatures.holders(registry, bands, [post.id for post in wanted])
    registry.known.add(owners)
    registry.known.discard(bands.difference(owners))
    return owners, own


def _by_known_owners(
    registry: Registry, wanted: Wanted, ruling: Ruling
) -> tuple[set[int], dict[Candidate, frozenset[int]]]:
    """Return the bands whose known owners are not similar, and the other known bands by post.

    The owners of the latter have to be read: they may have changed, and have clusters. All known
    bands are taken, so an insert of them would fail.
    """
    taken, similar = set[int](), dict[Candidate, frozenset[int]]()
    threshold = registry.scheme.threshold
    for post, bands in wanted.items():
        known = registry.known.of(bands)
        sketches = {id(sketch): sketch for sketch in known.values()}.values()
        if ruling is not NO_RULING or any(
            post.sketch.similarity(sketch) >= threshold for sketch in sketches
        ):
            similar[post] = frozenset(known)
        else:
            taken.update(known)
    return taken, similar


def _most_similar(
    registry: Registry,
    candidate: Candidate,
    ruling: Ruling,
    *owners: Mapping[int, Owner | Candidate],
) -> Owner | Candidate | None:
    """Return the owner of a post's bands that the post duplicates; None: it has no duplicate.

    owners: by band, stored ones and posts of the same batch
    """
    held = {
        owner.id: owner
        for by_band in owners
        for owner in map(by_band.__getitem__, candidate.bands & by_band.keys())
        if isinstance(owner, Candidate) or ruling.allows(owner)
    }
    return most_similar(candidate.sketch, held.values(), registry.scheme.threshold)


async def _insert_copies(
    registry: Registry, copies: Sequence[Copy], claimed: ClaimedBatch, now: datetime
) -> None:
    """Store copies in the clusters of their owners, and add them to `claimed`."""
    query: Document = {"_id": {"$in": list({owner.id for _, owner, _ in copies})}}
    rows = await registry.signatures.find(query, {"cluster": 1}).to_list(None)
    if alone := {row["_id"]: ObjectId() for row in rows if "cluster" not in row}:
        lacking = {"cluster": {"$exists": False}}
        done = await registry.signatures.bulk_write(
            [
                UpdateOne({"_id": id_} | lacking, {"$set": {"cluster": cluster}})
                for id_, cluster in alone.items()
            ],
            ordered=False,
        )
        if done.matched_count == len(alone):
            rows += [{"_id": id_, "cluster": cluster} for id_, cluster in alone.items()]
        else:
            # Another process created a cluster first, or deleted an owner.
            rows = await registry.signatures.find(query, {"cluster": 1}).to_list(None)
    cluster_of = {row["_id"]: row["cluster"] for row in rows if "cluster" in row}
    # A deleted owner has no cluster.
    claimed.lost.extend(copy for copy, owner, _ in copies if owner.id not in cluster_of)
    members = [
        (copy, cluster_of[owner.id], free) for copy, owner, free in copies if owner.id in cluster_of
    ]
    stored = await _insert_with_free_bands(
        registry,
        [
            (signatures.row_of(registry, copy, (), now) | {"cluster": cluster}, free)
            for copy, cluster, free in members
        ],
    )
    for copy, cluster, _ in members:
        if copy.id in stored:
            claimed.stored.append((copy, stored[copy.id]))
        else:
            claimed.members.append((copy, cluster))


async def _insert_with_free_bands(
    registry: Registry, rows: list[tuple[Document, frozenset[int]]]
) -> dict[int, Document]:
    """Store copies with their bands that are still free.

    rows: documents without bands, and the bands to claim
    Returns the documents of posts that another process stored first.
    """
    stored: dict[int, Document] = {}
    for _ in range(MAX_ROUNDS):
        documents = [row | signatures.bands_of(registry, bands) for row, bands in rows]
        refused = await signatures.insert(registry, documents)
        if not refused:
            return stored
        rows = [(row, bands) for row, bands in rows if row["_id"] in refused]
        wanted = frozenset[int]().union(*(bands for _, bands in rows))
        owners, own = await signatures.holders(registry, wanted, list(refused))
        stored |= own
        rows = [(row, bands - owners.keys()) for row, bands in rows if row["_id"] not in own]
    refused = await signatures.insert(registry, [row for row, _ in rows])
    return stored | await signatures.by_id(registry, refused)


async def claim_in_redis(
    registry: Registry,
    candidates: Sequence[Candidate],
    now: datetime,
    ruling: Ruling = NO_RULING,
) -> ClaimedBatch:
    """Claim bands in Redis, and store posts in the clusters that the script returns.

    ruling: constraints of the labels on all candidates
    """
    assert registry.shared is not None
    claims = [Claim(post.id, ObjectId().binary, post.sketch) for post in candidates]
    cluster_ids = await _clusters_in_redis(registry.shared, claims, registry, ruling)
    rows = [
        signatures.row_of(registry, candidate, (), now) | {"cluster": ObjectId(cluster)}
        for candidate, cluster in zip(candidates, cluster_ids, strict=True)
    ]
    refused = await signatures.insert(registry, rows)
    stored = await signatures.by_id(registry, refused) if refused else {}
    claimed = ClaimedBatch()
    for candidate, own, row in zip(candidates, claims, rows, strict=True):
        if candidate.id in stored:
            claimed.stored.append((candidate, stored[candidate.id]))
        elif candidate.id in refused:
            claimed.lost.append(candidate)
        elif row["cluster"].binary == own.cluster:
            claimed.founders.append((candidate, row["cluster"]))
        else:
            claimed.members.append((candidate, row["cluster"]))
    return claimed


async def _clusters_in_redis(
    shared: Bands, claims: Sequence[Claim], registry: Registry, ruling: Ruling
) -> list[bytes]:
    """Claim bands, and return the clusters of the posts."""
    if ruling.owner is not None and ruling.owner.cluster is not None:
        cluster: bytes = ruling.owner.cluster.binary
        await shared.put([claim._replace(cluster=cluster) for claim in claims])
        return [cluster] * len(claims)
    cluster_ids = await shared.claim(claims, registry.scheme.threshold)
    if ruling.clusters.isdisjoint(map(ObjectId, cluster_ids)):
        return cluster_ids
    # The script ignores labels: found clusters of their own instead.
    await shared.release(claims)
    await shared.put(claims)
    return [claim.cluster for claim in claims]


async def _judge_stored(
    registry: Registry,
    stored: Sequence[tuple[Candidate, Document]],
    verdicts: Verdicts,
    now: datetime,
) -> list[Candidate]:
    """Update posts that are stored already; return the posts to claim again."""
    if late := [(post, row) for post, row in stored if signatures.is_late(post, row)]:
        await _keep_newer(registry, late, verdicts, now)
        stored = [(post, row) for post, row in stored if not signatures.is_late(post, row)]
    # Posts without a shared cluster are released in one step; relearned sources have many.
    shared = await clusters.existing_clusters(
        registry, {row["cluster"] for _, row in stored if "cluster" in row}
    )
    again = [
        replace(signatures.merged(registry, post, row), edited=False)
        for post, row in stored
        if row.get("cluster") not in shared and row["sketch"] != post.sketch.encode()
    ]
    left = {post.id for post in again}
    gone = await edits.forget(registry, [row for post, row in stored if post.id in left], now)
    changed = [post for post in again if post.id not in {row["_id"] for row in gone}]
    await edits.release(
        registry, [post.key for post in changed], now, {post.key: post.fences for post in changed}
    )
    kept: dict[int, Candidate] = {}
    given = {candidate.id for candidate, _ in stored}
    for candidate, row in stored:
        if candidate.id in left:
            continue
        post = signatures.merged(registry, candidate, row)
        keeps_place, freed = await _keeps_place(registry, post, row, now)
        # A freed copy that is also a given post is claimed only with its new text.
        again += [each for each in freed if each.id == post.id or each.id not in given]
        if keeps_place:
            kept[post.id] = post
    await signatures.raise_fences(registry, kept.values())
    verdicts |= dict.fromkeys((post.key for post in kept.values()), ALONE)
    # Read again: these posts may have got their first copies, or have been released.
    rows = await signatures.by_id(registry, kept)
    members = [(kept[id_], row["cluster"]) for id_, row in rows.items() if "cluster" in row]
    verdicts |= await clusters.stored_verdicts(registry, members, now)
    return again + [post for id_, post in kept.items() if id_ not in rows]


async def _keep_newer(
    registry: Registry,
    late: Sequence[tuple[Candidate, Document]],
    verdicts: Verdicts,
    now: datetime,
) -> None:
    """Restore claims of newer visits, which Redis overwrote before the visits were compared."""
    owners = [signatures.owner_of(row) for _, row in late]
    if registry.shared is not None:
        await registry.shared.release(
            [
                Claim(post.id, owner.cluster.binary, post.sketch)
                for (post, _), owner in zip(late, owners, strict=True)
            ]
        )
        await registry.shared.put(signatures.claims_of(owners))
    verdicts |= dict.fromkeys((post.key for post, _ in late), ALONE)
    members = [(owner.claimed_again(), owner.cluster) for owner in owners if owner.cluster]
    verdicts |= await clusters.stored_verdicts(registry, members, now)


async def _keeps_place(
    registry: Registry, candidate: Candidate, stored: Document, now: datetime
) -> tuple[bool, list[Candidate]]:
    """Return whether a stored post keeps its place, and the posts to claim again."""
    if stored.get("item") != candidate.item:
        await signatures.set_items(registry, {candidate.id: candidate.item})
    if stored["sketch"] == candidate.sketch.encode():
        if signatures.is_earlier(candidate, stored):
            await signatures.predate(registry, candidate)
        return True, []
    stays, strays = await edits.judge(registry, candidate, stored)
    if not stays:
        await edits.release(registry, [candidate.key], now, {candidate.key: candidate.fences})
        return False, [replace(candidate, edited=False)]
    freed = await edits.release_strays(registry, strays, now)
    if not await edits.renew(registry, candidate, stored):
        return False, [candidate, *freed]
    return True, freed


async def labeled(
    registry: Registry, candidates: Sequence[Candidate]
) -> dict[int, list[tuple[int, bool]]]:
    """Return the labeled posts among candidates, each with the other posts and `same`."""
    if registry.labels is None or not candidates:
        return {}
    wanted = {candidate.id for candidate in candidates}
    found: dict[int, list[tuple[int, bool]]] = {}
    cursor = registry.labels.find({"ids": {"$in": list(wanted)}}, {"ids": 1, "same": 1})
    async for row in cursor.sort("at", -1).limit(MAX_LABELS * len(wanted)):
        first, second = row["ids"]
        for own, other in ((first, second), (second, first)):
            if own in wanted:
                found.setdefault(own, []).append((other, row["same"]))
    return found


async def ruling_of(registry: Registry, pairs: Sequence[tuple[int, bool]]) -> Ruling:
    """Return the constraints that the labels of a post imply, given the stored posts.

    pairs: numbers of other posts, each with whether it is labeled as the same
    """
    stored = await signatures.by_id(registry, [other for other, _ in pairs])
    apart = frozenset(other for other, same in pairs if not same)
    clusters = frozenset(
        row["cluster"] for id_, row in stored.items() if id_ in apart and "cluster" in row
    )
    ruling = Ruling(None, apart, clusters)
    owners = [
        owner
        for other, same in pairs
        if same and other in stored and ruling.allows(owner := signatures.owner_of(stored[other]))
    ]
    first = min(owners, key=lambda owner: (owner.created, owner.post), default=None)
    return Ruling(first, apart, clusters)
