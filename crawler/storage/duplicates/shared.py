"""A claim in Redis: its script says which cluster a post is in, MongoDB's documents follow.

Each post comes with the number of a cluster that it founds if it is nobody's copy. So whoever finds
it as a copy's original knows the cluster at once, though the original's document may come later, or
never, if its worker is killed in between: the copies that it leaves meet in that cluster all the
same. That cluster has its document in `clusters` as soon as a copy comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bson import ObjectId

from crawler.dedup.model import Candidate, Claim
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.claimed import Claimed
from crawler.storage.duplicates.registry import Registry


async def claim(registry: Registry, candidates: Sequence[Candidate], now: datetime) -> Claimed:
    """Store originals and copies in the clusters that the script says."""
    assert registry.shared is not None
    asked = [Claim(one.id, ObjectId().binary, one.sketch) for one in candidates]
    said = await registry.shared.claim(asked, registry.scheme.threshold)
    rows = [
        signatures.row_of(registry, candidate, (), now) | {"cluster": ObjectId(cluster)}
        for candidate, cluster in zip(candidates, said, strict=True)
    ]
    refused = await signatures.insert(registry, rows)
    stored = await signatures.by_id(registry, refused) if refused else {}
    claimed = Claimed()
    for candidate, own, row in zip(candidates, asked, rows, strict=True):
        if candidate.id in stored:
            claimed.known.append((candidate, stored[candidate.id]))
        elif candidate.id in refused:
            claimed.lost.append(candidate)
        elif row["cluster"].binary == own.cluster:
            claimed.founders.append((candidate, row["cluster"]))
        else:
            claimed.members.append((candidate, row["cluster"]))
    return claimed
