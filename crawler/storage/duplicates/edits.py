"""A post whose text was edited: it stays what it is, or is claimed anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bson import Binary

from crawler.dedup.model import Candidate
from crawler.storage.client import Document
from crawler.storage.duplicates import clusters, leaving, signatures
from crawler.storage.duplicates.registry import Registry


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit comes to. strays: signatures of copies that the post resembles no more."""

    stays: bool
    strays: list[Document] = field(default_factory=list)


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
            strays.append(member)
    return Edited(stay, strays if stay else [])


def _alike(registry: Registry, candidate: Candidate, stored: Document) -> bool:
    other = signatures.owner_of(stored).sketch
    return candidate.sketch.similarity(other) >= registry.scheme.threshold


async def let_go(registry: Registry, strays: Sequence[Document], now: datetime) -> list[Candidate]:
    """Take strays out of the index; returns them as they are to be claimed again.

    Those that another process has stored anew meanwhile are where they belong.
    """
    gone: list[Document] = []
    for _ in range(leaving.ROUNDS):
        if not strays:
            break
        gone += await leaving.forget(registry, strays, now)
        stored = await signatures.by_id(registry, [row["_id"] for row in strays])
        # Those that were seen as they are have another fence, and nothing else.
        strays = [
            found
            for row in strays
            if (found := stored.get(row["_id"])) is not None
            and all(found.get(name) == row.get(name) for name in ("cluster", "sketch"))
        ]
    return [signatures.owner_of(row).claimed_again() for row in gone]


async def renew(registry: Registry, candidate: Candidate, stored: Document) -> bool:
    """Put the sketch of the new text in place of the old one, and its bands.

    The sketch comes last: whoever is interrupted before finds the old one, and begins again.
    Returns False where the post has left the index meanwhile, or a newer visit has stored it.
    """
    if registry.shared is not None:
        await registry.shared.release(signatures.claims_of([signatures.owner_of(stored)]))
    sketch = Binary(candidate.sketch.encode())
    owner = signatures.owner_of(stored | {"sketch": sketch})
    await clusters.take_bands(registry, owner)
    own = {"$setIntersection": [{"$ifNull": ["$bands", []]}, list(candidate.bands)]}
    changed: Document = {
        "sketch": {"$literal": sketch},
        **{
            name: {"$min": [f"${name}", value]}
            for name, value in signatures.times_of(registry, candidate).items()
        },
        "bands": {"$cond": [{"$eq": [own, []]}, "$$REMOVE", own]},
    }
    changed |= {
        name: {"$literal": value} for name, value in signatures.text_of(registry, candidate).items()
    }
    changed |= candidate.fences
    query = signatures.unless_late(candidate)
    done = await registry.signatures.update_one(query, [{"$set": changed}])
    if not done.matched_count and registry.shared is not None:
        # Else Redis would say that it is in its former cluster.
        await registry.shared.release(signatures.claims_of([owner]))
    return done.matched_count > 0
