"""Claims: decide which posts of a batch are originals, and find the originals of the copies.

The insert is the claim: the originals of a batch are stored in one round trip, and the unique index
accepts one of two concurrent claims. The owners of bands are read only for inserts that the index
refused, and for posts that resemble a known owner.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from bson import ObjectId
from pymongo import UpdateOne

from crawler.dedup.posts import ALONE, Candidate, Owner, Verdict, Verdicts, most_similar
from crawler.storage.client import Document
from crawler.storage.dedup import boilerplate, clusters, edits, signatures
from crawler.storage.dedup.signatures import Member, Registry

if TYPE_CHECKING:
    from crawler.dedup.sketch import Sketch

logger = logging.getLogger(__name__)
# Attempts when other processes claim bands or change posts between a read and the write.
MAX_ROUNDS = 10
# Maximum number of labels of a post that claims read; people create fewer.
MAX_LABELS = 1000

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

    alone:   originals without a cluster
    members: copies, with their clusters
    stored:  posts that were stored before, with their documents
    lost:    posts whose owner, or whose own document, was deleted in the meantime
    """

    alone: list[Candidate] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    stored: list[tuple[Candidate, Document]] = field(default_factory=list)
    lost: list[Candidate] = field(default_factory=list)

    def placed(self) -> list[Candidate]:
        """Return the posts that this batch has stored."""
        return [*self.alone, *(post for post, _ in self.members)]

    def add(self, other: ClaimedBatch) -> None:
        """Add the posts of another batch."""
        self.alone.extend(other.alone)
        self.members.extend(other.members)
        self.stored.extend(other.stored)
        self.lost.extend(other.lost)


@dataclass(frozen=True, slots=True)
class Holders:
    """What is stored for the posts of a batch.

    owners: owners of their bands, by band
    rows:   documents of those posts that are already stored, by `_id`
    taken:  bands with other owners, which are known not to be similar
    """

    owners: Mapping[int, Owner] = field(default_factory=dict)
    rows: Mapping[int, Document] = field(default_factory=dict)
    taken: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class SortedBatch:
    """The posts of a batch by what their claims need next.

    inserts: presumed originals, with the bands to claim
    copies:  copies of stored posts
    waiting: posts similar to one of `inserts`, which has to be stored first
    stored:  posts that were stored before, with their documents
    """

    inserts: dict[Candidate, frozenset[int]] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    waiting: list[Candidate] = field(default_factory=list)
    stored: list[tuple[Candidate, Document]] = field(default_factory=list)


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
    pairs = await labeled(registry, candidates)
    unlabeled = [post for post in candidates if post.id not in pairs]
    claimed = await _claim_batch(registry, unlabeled, now)
    for post in candidates:
        if post.id not in pairs:
            continue
        # A stored post keeps its place until it is edited or labeled again.
        if stored := await signatures.by_id(registry, [post.id]):
            claimed.stored.append((post, stored[post.id]))
            continue
        ruling = await ruling_of(registry, pairs[post.id])
        claimed.add(await _claim_batch(registry, [post], now, ruling))
    return claimed


async def _claim_batch(
    registry: Registry,
    candidates: Sequence[Candidate],
    now: datetime,
    ruling: Ruling = NO_RULING,
) -> ClaimedBatch:
    """Store originals with their free bands, and copies in the clusters of their owners.

    ruling: constraints of the labels on all candidates
    """
    claimed, copies, waiting = ClaimedBatch(), list[Copy](), list(candidates)
    if ruling.owner is not None:
        copies = [(post, ruling.owner, post.bands) for post in candidates]
        waiting = []
    for attempt in range(MAX_ROUNDS):
        if not waiting:
            break
        # At first most posts are new: only owners that are probably similar are read.
        holders = await _read_holders(registry, waiting, ruling, all_owners=attempt > 0)
        plan = sort_candidates(waiting, holders, ruling, registry.scheme.threshold)
        claimed.stored.extend(plan.stored)
        copies += plan.copies
        denied = await _insert_originals(registry, plan.inserts, claimed, now)
        waiting = [*plan.waiting, *denied]
    if waiting:
        # Other processes claimed the free bands in every round.
        logger.warning("%d posts stored without bands: others kept claiming them", len(waiting))
        bare = dict.fromkeys(waiting, frozenset[int]())
        denied = await _insert_originals(registry, bare, claimed, now)
        rows = await signatures.by_id(registry, [post.id for post in denied])
        claimed.stored.extend((post, rows[post.id]) for post in denied if post.id in rows)
        claimed.lost.extend(post for post in denied if post.id not in rows)
    if copies:
        await _insert_copies(registry, copies, claimed, now)
    return claimed


async def _read_holders(
    registry: Registry, posts: Sequence[Candidate], ruling: Ruling, *, all_owners: bool
) -> Holders:
    """Return the owners of the bands of posts, and the posts that are already stored.

    all_owners: also read the owners of bands that are not known to be owned by a similar post
    """
    taken, wanted = set[int](), dict[Candidate, frozenset[int]]()
    for post in posts:
        bands = post.bands
        if not all_owners:
            known = registry.known.of(bands)
            if not _may_be_copy(post, known.values(), ruling, registry.scheme.threshold):
                taken.update(known)
                continue
            # Read again: these owners may have changed, and have clusters.
            bands = frozenset(known)
        wanted[post] = bands
    if not wanted:
        return Holders(taken=taken)
    read = frozenset[int]().union(*wanted.values())
    owners, rows = await signatures.holders(registry, read, [post.id for post in wanted])
    registry.known.add(owners)
    registry.known.discard(read.difference(owners))
    return Holders(owners, rows, taken)


def _may_be_copy(
    post: Candidate, sketches: Iterable[Sketch], ruling: Ruling, threshold: float
) -> bool:
    """Return whether a post resembles a known owner of its bands, or is labeled."""
    several = {id(sketch): sketch for sketch in sketches}.values()
    return ruling is not NO_RULING or any(
        post.sketch.similarity(sketch) >= threshold for sketch in several
    )


def sort_candidates(
    candidates: Sequence[Candidate], holders: Holders, ruling: Ruling, threshold: float
) -> SortedBatch:
    """Sort posts by what their claims need next, given the owners of their bands.

    A post gets those of its free bands that no earlier post of the batch gets.
    """
    batch = SortedBatch()
    # The bands that posts of this batch are about to get.
    claiming: dict[int, Candidate] = {}
    for post in candidates:
        if post.id in holders.rows:
            batch.stored.append((post, holders.rows[post.id]))
            continue
        owner = _most_similar(post, ruling, threshold, holders.owners, claiming)
        # One after another: with several arguments, all of each are read, not those of `bands`.
        free = post.bands.difference(holders.owners)
        if isinstance(owner, Owner):
            batch.copies.append((post, owner, free))
        elif owner is not None:
            batch.waiting.append(post)
        else:
            batch.inserts[post] = free.difference(claiming).difference(holders.taken)
            claiming |= dict.fromkeys(batch.inserts[post], post)
    return batch


def _most_similar(
    post: Candidate, ruling: Ruling, threshold: float, *owners: Mapping[int, Owner | Candidate]
) -> Owner | Candidate | None:
    """Return the owner of a post's bands that the post duplicates; None: it has no duplicate.

    owners: by band, stored ones and posts of the same batch
    """
    held = {
        owner.id: owner
        for by_band in owners
        for owner in map(by_band.__getitem__, post.bands & by_band.keys())
        if isinstance(owner, Candidate) or ruling.allows(owner)
    }
    return most_similar(post.sketch, held.values(), threshold)


async def _insert_originals(
    registry: Registry,
    inserts: Mapping[Candidate, frozenset[int]],
    claimed: ClaimedBatch,
    now: datetime,
) -> list[Candidate]:
    """Insert posts with the given bands; return those denied because a band or `_id` is taken."""
    rows = [signatures.row_of(registry, post, bands, now) for post, bands in inserts.items()]
    denied = await signatures.insert(registry, rows)
    alone = {post: bands for post, bands in inserts.items() if post.id not in denied}
    claimed.alone.extend(alone)
    registry.known.add({band: post for post, bands in alone.items() for band in bands})
    return [post for post in inserts if post.id in denied]


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
        documents = [row | signatures.bands_of(bands) for row, bands in rows]
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


async def _judge_stored(
    registry: Registry,
    stored: Sequence[tuple[Candidate, Document]],
    verdicts: Verdicts,
    now: datetime,
) -> list[Candidate]:
    """Update posts that are stored already; return the posts to claim again."""
    if late := [row for post, row in stored if signatures.is_late(post, row)]:
        verdicts |= await _kept_verdicts(registry, late, now)
        stored = [(post, row) for post, row in stored if not signatures.is_late(post, row)]
    # Posts without copies are released in one step; relearned sources have many.
    again = [
        replace(signatures.merged(registry, post, row), edited=False)
        for post, row in stored
        if "cluster" not in row and row["sketch"] != post.sketch.encode()
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


async def _kept_verdicts(
    registry: Registry, rows: Sequence[Document], now: datetime
) -> dict[str, Verdict]:
    """Return the verdicts of posts that newer visits have stored."""
    owners = [signatures.owner_of(row) for row in rows]
    members = [(owner.claimed_again(), owner.cluster) for owner in owners if owner.cluster]
    alone = dict.fromkeys((owner.post for owner in owners), ALONE)
    return alone | await clusters.stored_verdicts(registry, members, now)


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
