"""A claim in Redis: its script decides, MongoDB's documents follow.

An owner that Redis names may not be in MongoDB yet: its worker is between the two, or was killed
there. It is waited for; one that does not come is a ghost. Its place is taken by the first that
meets it, and the ghost's own number is stored as a copy: `_id` lets in one of two that try, and
should the ghost come back, it finds that it is a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from bson import ObjectId

from crawler.sketches.claim import Candidate, Match
from crawler.storage.client import Document
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.inserting import Claimed, Copy
from crawler.storage.duplicates.registry import Registry

PAUSES_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)
GHOST = "ghost"
Named = list[tuple[Candidate, int, float]]


async def claim(registry: Registry, candidates: Sequence[Candidate], now: datetime) -> Claimed:
    """As `inserting.claim`, by the script."""
    assert registry.shared is not None
    entries = [(candidate.id, candidate.sketch) for candidate in candidates]
    said = await registry.shared.claim(entries, registry.scheme.threshold)
    pairs = list(zip(candidates, said, strict=True))
    claimed = Claimed()
    await _store_originals(registry, [one for one, owner in pairs if owner is None], claimed, now)
    named = _with_roots([(one, *owner) for one, owner in pairs if owner is not None])
    owners = await _owners(registry, named, now)
    for candidate, owner, similarity in named:
        match = Match(signatures.owner_of(owners[owner]), similarity)
        claimed.copies.append(Copy(candidate, match))
    return claimed


def _with_roots(named: Named) -> Named:
    """Owners that are copies of this batch themselves, and not stored yet, give way to theirs."""
    owner_of = {candidate.id: owner for candidate, owner, _ in named}

    def root(owner: int) -> int:
        # Posts that are claimed again may be named as copies of each other.
        for _ in owner_of:
            owner = owner_of.get(owner, owner)
        return owner

    return [(candidate, root(owner), similarity) for candidate, owner, similarity in named]


async def _store_originals(
    registry: Registry, originals: list[Candidate], claimed: Claimed, now: datetime
) -> None:
    rows = [signatures.row_of(registry, candidate, (), now) for candidate in originals]
    refused = await signatures.insert(registry, rows)
    own = await signatures.by_id(registry, refused) if refused else {}
    for candidate in originals:
        if candidate.id in own:
            claimed.known.append((candidate, own[candidate.id]))
        else:
            claimed.originals.append(candidate)


async def _owners(registry: Registry, named: Named, now: datetime) -> dict[int, Document]:
    """The documents of owners, as soon as they are there; marks in place of ghosts'."""
    if not named:
        return {}
    found = await signatures.by_id(registry, {owner for _, owner, _ in named})
    for pause_seconds in PAUSES_SECONDS:
        if all(owner in found for _, owner, _ in named):
            return found
        await asyncio.sleep(pause_seconds)
        found |= await signatures.by_id(registry, {owner for _, owner, _ in named})
    ghosts = {owner: candidate for candidate, owner, _ in named if owner not in found}
    marks = [_mark(registry, candidate, ghost, now) for ghost, candidate in ghosts.items()]
    await signatures.insert(registry, marks)
    return found | await signatures.by_id(registry, ghosts)


def _mark(registry: Registry, candidate: Candidate, ghost: int, now: datetime) -> Document:
    """A copy in a cluster that elects the first post that comes to it."""
    row = signatures.row_of(registry, candidate, (), now)
    return row | {"_id": ghost, "post": "", GHOST: True, "cluster": ObjectId()}
