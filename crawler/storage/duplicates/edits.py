"""A post whose text was edited: it stays what it is, or is claimed anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from bson import Binary

from crawler.sketches.claim import Candidate
from crawler.storage.client import Document
from crawler.storage.duplicates import clusters, signatures
from crawler.storage.duplicates.registry import Registry


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit comes to. strays: copies that the post resembles no more."""

    stays: bool
    strays: list[Candidate] = field(default_factory=list)


async def judge(registry: Registry, candidate: Candidate, stored: Document) -> Edited:
    """Whether a post belongs to its cluster still.

    A copy does if it resembles the original; the original if a copy resembles it.
    """
    cluster = stored.get("cluster")
    if cluster is None:
        return Edited(stays=False)
    row = await registry.clusters.find_one({"_id": cluster})
    if row is None or row["original"] != candidate.id:
        original = (await signatures.by_id(registry, [row["original"]])) if row else {}
        return Edited(any(_alike(registry, candidate, one) for one in original.values()))
    strays, stay = [], False
    query = {"cluster": cluster, "_id": {"$ne": candidate.id}}
    async for member in registry.signatures.find(query, signatures.OF_OWNER):
        if _alike(registry, candidate, member):
            stay = True
        else:
            owner = signatures.owner_of(member)
            strays.append(Candidate(owner.post, owner.created, owner.sketch, item=owner.item))
    return Edited(stay, strays if stay else [])


def _alike(registry: Registry, candidate: Candidate, stored: Document) -> bool:
    other = signatures.owner_of(stored).sketch
    return candidate.sketch.similarity(other) >= registry.scheme.threshold


async def renew(registry: Registry, candidate: Candidate, stored: Document) -> None:
    """Put the sketch of the new text in place of the old one, and its bands.

    The sketch comes last: whoever is interrupted before finds the old one, and begins again.
    """
    if registry.shared is not None:
        await registry.shared.release(signatures.claims_of([signatures.owner_of(stored)]))
    sketch = Binary(candidate.sketch.encode())
    await clusters.take_bands(registry, signatures.owner_of(stored | {"sketch": sketch}))
    own = {"$setIntersection": [{"$ifNull": ["$bands", []]}, list(candidate.bands)]}
    changed: Document = {
        "sketch": {"$literal": sketch},
        "created": {"$min": ["$created", candidate.created]},
        "bands": {"$cond": [{"$eq": [own, []]}, "$$REMOVE", own]},
    }
    changed |= {
        name: {"$literal": value} for name, value in signatures.text_of(registry, candidate).items()
    }
    await registry.signatures.update_one({"_id": candidate.id}, [{"$set": changed}])
