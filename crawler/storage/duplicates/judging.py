"""What the texts of a batch are when all of it is claimed, for who prints it at once.

A claim says of each what it was found to be; another of the same batch may have changed that. Who
stores posts confirms them later. What is printed cannot be taken back, so it is read once more.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crawler.sketches.claim import ALONE, Candidate, Verdict, Verdicts
from crawler.storage.client import Document
from crawler.storage.duplicates import claims, leaving, signatures
from crawler.storage.duplicates.registry import Registry


@dataclass(frozen=True, slots=True)
class Judged:
    """What texts are. replaced: by each new original the one before, if that has been printed."""

    verdicts: Verdicts = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)


async def judge(
    registry: Registry, candidates: Sequence[Candidate], emptied: Sequence[str], now: datetime
) -> Judged:
    """Claim texts.

    emptied: keys of texts without anything to compare, which may have had something before
    now:     no other batch has this time
    """
    await leaving.release(registry, emptied, now)
    claimed = await claims.claim(registry, candidates, now)
    found = registry.signatures.find(
        {"_id": {"$in": [candidate.id for candidate in candidates]}},
        {"post": 1, "at": 1, "cluster": 1},
    )
    stored = {row["post"]: row async for row in found}
    query = {"_id": {"$in": [row["cluster"] for row in stored.values() if "cluster" in row]}}
    clusters = {row["_id"]: row async for row in registry.clusters.find(query)}
    standing = {
        candidate: cluster
        for candidate in candidates
        if (cluster := clusters.get(stored.get(candidate.key, {}).get("cluster"))) is not None
    }
    new = {key for key, row in stored.items() if row["at"] == now}
    return Judged(
        await _verdicts(registry, claimed, standing), _replaced(clusters.values(), new, now)
    )


async def _verdicts(
    registry: Registry, claimed: Verdicts, standing: dict[Candidate, Document]
) -> Verdicts:
    """Verdicts by the clusters that texts are in now."""
    stale = {
        cluster["original"]
        for candidate, cluster in standing.items()
        if cluster["post"] not in (candidate.key, claimed[candidate.key].duplicate_of)
    }
    originals = await signatures.by_id(registry, stale) if stale else {}
    verdicts: Verdicts = dict.fromkeys(claimed, ALONE)
    for candidate, cluster in standing.items():
        verdict = claimed[candidate.key]
        if cluster["post"] == candidate.key:
            verdict = Verdict(cluster=cluster["_id"])
        elif cluster["original"] in originals:
            original = signatures.owner_of(originals[cluster["original"]])
            alike = candidate.sketch.similarity(original.sketch)
            verdict = Verdict(original.post, alike, cluster["_id"])
        verdicts[candidate.key] = verdict
    return verdicts


def _replaced(clusters: Iterable[Document], new: Container[str], now: datetime) -> dict[str, str]:
    """By each original of now the one that its cluster had before this batch, if it had one."""
    found = {}
    for cluster in clusters:
        before = [change["was"] for change in cluster.get("changes", ()) if change["at"] == now]
        if before and before[0] not in new and before[0] != cluster["post"]:
            found[cluster["post"]] = before[0]
    return found
