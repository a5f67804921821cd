"""`duplicate_labels`: pairs of posts that people labeled as the same, or as not the same.

Claims respect the labels. A post labeled as the same as a stored post joins its cluster, however
different the texts are. Posts labeled as not the same are never in one cluster. If labels
of both kinds contradict each other, the posts stay in different clusters. `label` moves stored
posts immediately.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from typing_extensions import TypedDict

from crawler.dedup.posts import id_of
from crawler.errors import Busy, ConfigError
from crawler.storage.client import Database, Document
from crawler.storage.dedup import claims, clusters, edits, signatures
from crawler.storage.dedup.index import HINT, META, REBUILDING
from crawler.storage.dedup.signatures import Registry
from crawler.utils.shapes import copied

# Quantile of the normal distribution for an interval of 95 %.
QUANTILE = 1.959964


class Label(TypedDict):
    """A person's decision on a pair of posts."""

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


def pair_id(a: str, b: str) -> str:
    """Return the `_id` of the label of two posts, in any order."""
    return " ".join(map(str, sorted((id_of(a), id_of(b)))))


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
    return copied(Label, row)


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


async def label(
    db: Database,
    registry: Registry,
    posts: tuple[str, str],
    now: datetime,
    *,
    same: bool,
    by: str,
) -> Label:
    """Store that two posts are the same, or are not, and move one of them if necessary.

    A former label of the pair is replaced, except for how the pair was before its first label.
    Posts that have not been compared yet keep their place; the next comparison respects the label.
    Raises ConfigError for posts that are not stored, and Busy during a rebuild.
    """
    a, b = posts
    if a == b:
        raise ConfigError(f"both are the same post: {a}")
    found = set(await db.posts.distinct("_id", {"_id": {"$in": [a, b]}}))
    if missing := [post for post in posts if post not in found]:
        raise ConfigError(f"post not found: {missing[0]}. It may have been removed")
    meta = await db.meta.find_one(META) or {}
    if meta.get(REBUILDING):
        raise Busy(f"a rebuild of near-duplicates is running or was interrupted: {HINT}")
    rows = await signatures.by_id(registry, [id_of(a), id_of(b)])
    similarity = 0.0
    if len(rows) == len(posts):
        first, second = (signatures.owner_of(row).sketch for row in rows.values())
        similarity = first.similarity(second)
    before: Document = {
        "flagged": _are_together(rows), "similarity": similarity, "scheme": registry.scheme.name,
    }  # fmt: skip
    ordered = sorted(posts, key=id_of)
    update = {
        "$set": {"same": same, "by": by, "at": now},
        "$setOnInsert": before | {"posts": ordered, "ids": [id_of(post) for post in ordered]},
    }
    await db.duplicate_labels.update_one({"_id": pair_id(a, b)}, update, upsert=True)
    if len(rows) == len(posts) and _are_together(rows) != same:
        clusters_of = {row["cluster"] for row in rows.values() if "cluster" in row}
        cursor = registry.clusters.find({"_id": {"$in": list(clusters_of)}}, {"original": 1})
        leading = {row["original"] async for row in cursor}
        # The post that moves is not an original, or else the later one.
        row = max(
            rows.values(), key=lambda row: (row["_id"] not in leading, row["created"], row["post"])
        )
        left = {row["cluster"]} if "cluster" in row else set()
        freed = await edits.release_strays(registry, [row], now)
        verdicts = await claims.claim(registry, freed, now)
        await clusters.confirm(db, registry, verdicts, written=())
        await clusters.settle(db, registry, await clusters.existing_clusters(registry, left))
    stored = await of_pair(db, a, b)
    assert stored is not None
    return stored


def _are_together(rows: dict[int, Document]) -> bool:
    """Return whether two signatures are in one cluster."""
    clusters = [row.get("cluster") for row in rows.values()]
    return len(clusters) > 1 and clusters[0] is not None and clusters[0] == clusters[1]
