"""What the texts of a batch are when all of it is claimed, for who prints it at once.

A claim says of each what it was found to be; another of the same batch may have changed that. Who
stores posts confirms them later. What is printed cannot be taken back, so it is read once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crawler.dedup.model import ALONE, Candidate, Verdict, Verdicts
from crawler.storage.client import Document
from crawler.storage.dedup import claims, edits, signatures
from crawler.storage.dedup.registry import Registry


@dataclass(frozen=True, slots=True)
class Judged:
    """What texts are, but for those that are alone.

    replaced: by each new original the one before, where that is of an earlier batch
    """

    verdicts: Verdicts = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)


async def judge(
    registry: Registry, candidates: Sequence[Candidate], emptied: Sequence[str], now: datetime
) -> Judged:
    """Claim texts.

    emptied: keys of texts without anything to compare, which may have had something before
    now:     no other batch has this time
    """
    await edits.release(registry, emptied, now)
    rows = await _stored(registry, candidates, {"sketch": 1, "created": 1, "seen": 1})
    # Those that tell more than what is stored of them.
    new = [
        candidate
        for candidate in candidates
        if (row := rows.get(candidate.key)) is None
        or signatures.is_earlier(candidate, row)
        or row["sketch"] != candidate.sketch.encode()
    ]
    claimed = await claims.claim(registry, new, now)
    stored = await _stored(registry, candidates, {"at": 1, "cluster": 1})
    query = {"_id": {"$in": [row["cluster"] for row in stored.values() if "cluster" in row]}}
    clusters = {row["_id"]: row async for row in registry.clusters.find(query)}
    standing = {
        candidate: cluster
        for candidate in candidates
        if (cluster := clusters.get(stored.get(candidate.key, {}).get("cluster"))) is not None
    }
    # By each original of now the one that its cluster had before this batch, if it had one.
    new_keys = {key for key, row in stored.items() if row["at"] == now}
    replaced = {}
    for cluster in clusters.values():
        before = [change["was"] for change in cluster.get("changes", ()) if change["at"] == now]
        if before and before[0] not in new_keys and before[0] != cluster["post"]:
            replaced[cluster["post"]] = before[0]
    return Judged(await _verdicts(registry, claimed, standing), replaced)


async def _stored(
    registry: Registry, candidates: Sequence[Candidate], fields: Document
) -> dict[str, Document]:
    """What is stored of texts, by key."""
    query = {"_id": {"$in": [candidate.id for candidate in candidates]}}
    return {row["post"]: row async for row in registry.signatures.find(query, fields | {"post": 1})}


async def _verdicts(
    registry: Registry, claimed: Verdicts, standing: dict[Candidate, Document]
) -> Verdicts:
    """Verdicts by the clusters that texts are in now; those that are alone are left out."""
    verdicts = {candidate.key: claimed.get(candidate.key, ALONE) for candidate in standing}
    stale = {
        cluster["original"]
        for candidate, cluster in standing.items()
        if cluster["post"] not in (candidate.key, verdicts[candidate.key].duplicate_of)
    }
    originals = await signatures.by_id(registry, stale) if stale else {}
    for candidate, cluster in standing.items():
        if cluster["post"] == candidate.key:
            verdicts[candidate.key] = Verdict(cluster=cluster["_id"])
        elif cluster["original"] in originals:
            original = signatures.owner_of(originals[cluster["original"]])
            alike = candidate.sketch.similarity(original.sketch)
            verdicts[candidate.key] = Verdict(original.post, alike, cluster["_id"])
    return verdicts
