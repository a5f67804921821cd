"""`duplicate_labels`: pairs of posts that people labeled as the same, or as not the same.

Claims respect the labels. A post labeled as the same as a stored post joins its cluster, however
different the texts are. Posts labeled as not the same are never in one cluster. If both kinds of
labels contradict each other, the posts stay apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bson import ObjectId
from typing_extensions import TypedDict

from crawler.dedup.model import Candidate, Owner, id_of
from crawler.storage.client import Database, Document
from crawler.storage.dedup import signatures
from crawler.storage.dedup.registry import Registry

# Labels of one post that claims read; more are not made by people.
MAX_LABELS = 1000
# Quantile of the normal distribution for an interval of 95 %.
QUANTILE = 1.959964


class Label(TypedDict):
    """What a person decided on a pair of posts."""

    same: bool
    """Whether the posts are the same."""
    flagged: bool
    """Whether the posts were in one cluster when they were first labeled."""
    by: str
    """Name of the user that labeled the pair last."""
    at: datetime
    """Time of the last label."""


class MeasuredPrecision(TypedDict):
    """How many flagged pairs people confirmed."""

    labels: int
    """Number of labeled pairs."""
    flagged: int
    """Number of them that were in one cluster when they were first labeled."""
    confirmed: int
    """Number of these that are labeled as the same."""
    missed: int
    """Number of pairs labeled as the same that were not in one cluster."""
    precision: float | None
    """Share of `flagged` that is confirmed; null without labels of flagged pairs."""
    low: float | None
    """Lower end of the 95 % interval (Wilson)."""
    high: float | None
    """Upper end of the 95 % interval (Wilson)."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the labels decide on the place of a post.

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


def pair_id(a: str, b: str) -> str:
    """Return the `_id` of the label of two posts, in any order."""
    return " ".join(map(str, sorted((id_of(a), id_of(b)))))


async def put(
    db: Database, posts: tuple[str, str], now: datetime, *, same: bool, by: str, first: Document
) -> None:
    """Store a label; it replaces a former label of the pair, except for the fields in `first`.

    first: `flagged`, `similarity` and `scheme`, as they are before the pair is labeled
    """
    ordered = sorted(posts, key=id_of)
    constant = first | {"posts": ordered, "ids": [id_of(post) for post in ordered]}
    update = {"$set": {"same": same, "by": by, "at": now}, "$setOnInsert": constant}
    await db.duplicate_labels.update_one({"_id": pair_id(*posts)}, update, upsert=True)


async def of_pair(db: Database, a: str, b: str) -> Label | None:
    """Return the label of two posts; None without one."""
    row = await db.duplicate_labels.find_one({"_id": pair_id(a, b)})
    return None if row is None else _label(row)


async def with_post(db: Database, post: str, others: Iterable[str]) -> dict[str, Label]:
    """Return the labels of pairs of a post and each of some others, by the other post."""
    by_pair = {pair_id(post, other): other for other in others}
    cursor = db.duplicate_labels.find({"_id": {"$in": list(by_pair)}})
    return {by_pair[row["_id"]]: _label(row) async for row in cursor}


def _label(row: Document) -> Label:
    return {"same": row["same"], "flagged": row["flagged"], "by": row["by"], "at": row["at"]}


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); 0 to 1 without trials."""
    if not trials:
        return 0.0, 1.0
    share, square = successes / trials, QUANTILE**2
    center = share + square / (2 * trials)
    spread = QUANTILE * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    scale = 1 + square / trials
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


async def measured_precision(db: Database) -> MeasuredPrecision:
    """Return how many of the flagged pairs that people labeled are the same."""
    numbers: dict[tuple[bool, bool], int] = {}
    for pair in ((True, True), (True, False), (False, True), (False, False)):
        query = dict(zip(("flagged", "same"), pair, strict=True))
        numbers[pair] = await db.duplicate_labels.count_documents(query)
    confirmed = numbers[True, True]
    flagged = confirmed + numbers[True, False]
    low, high = wilson(confirmed, flagged)
    return {
        "labels": sum(numbers.values()),
        "flagged": flagged,
        "confirmed": confirmed,
        "missed": numbers[False, True],
        "precision": round(confirmed / flagged, 4) if flagged else None,
        "low": round(low, 4) if flagged else None,
        "high": round(high, 4) if flagged else None,
    }


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
    """Return what the labels of a post decide, by the posts that are stored now.

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
