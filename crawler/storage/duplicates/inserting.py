"""A claim in MongoDB: insert first, and ask only where the unique index refuses.

An original is stored in one round trip, together with the rest of its batch. Of two that come at
the same moment the index lets one in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crawler.sketches.claim import Candidate, Match, best_match
from crawler.storage.client import Document
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.registry import Registry

logger = logging.getLogger(__name__)
ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Copy:
    """A candidate that is a duplicate. free: those of its bands that had no owner."""

    candidate: Candidate
    match: Match
    free: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Claimed:
    """What came of a batch: originals are stored, copies not yet, known ones have been before."""

    originals: list[Candidate] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    known: list[tuple[Candidate, Document]] = field(default_factory=list)


async def claim(registry: Registry, candidates: Sequence[Candidate], now: datetime) -> Claimed:
    """Store originals under their free bands, and find whose duplicates the others are."""
    claimed = Claimed()
    wanted = {candidate: candidate.bands for candidate in candidates}
    for _ in range(ROUNDS):
        refused = await _insert(registry, wanted, now)
        claimed.originals.extend(wanted.keys() - refused.keys())
        if not refused:
            return claimed
        wanted = await _judge(registry, refused, claimed)
    # Others take what is free faster than we can look: then it goes without bands.
    logger.warning("%d posts are stored without bands of their own", len(wanted))
    refused = await _insert(registry, dict.fromkeys(wanted, frozenset()), now)
    claimed.originals.extend(wanted.keys() - refused.keys())
    await _judge(registry, refused, claimed)
    return claimed


Wanted = dict[Candidate, frozenset[int]]


async def _insert(registry: Registry, wanted: Wanted, now: datetime) -> Wanted:
    """Insert; those that were refused, or would be as far as can be told without asking."""
    rows, seen = [], set[int]()
    for candidate, bands in wanted.items():
        if seen.isdisjoint(bands) and not registry.hot.any(bands):
            rows.append(signatures.row_of(registry, candidate, bands, now))
        seen |= bands
    refused = await signatures.insert(registry, rows)
    stored = {row["_id"] for row in rows} - refused
    return {one: bands for one, bands in wanted.items() if one.id not in stored}


async def _judge(registry: Registry, refused: Wanted, claimed: Claimed) -> Wanted:
    """Sort the refused into copies and known ones; the rest with the bands that are left."""
    if not refused:
        return {}
    bands = frozenset[int]().union(*(candidate.bands for candidate in refused))
    ids = [candidate.id for candidate in refused]
    owners, own = await signatures.holders(registry, bands, ids)
    registry.hot.add(owners)
    registry.hot.discard(bands - owners.keys())
    again: Wanted = {}
    for candidate in refused:
        held = {band: owners[band] for band in candidate.bands if band in owners}
        free = candidate.bands - held.keys()
        distinct = {owner.id: owner for owner in held.values()}.values()
        match = best_match(candidate.sketch, distinct, registry.scheme.threshold)
        if candidate.id in own:
            claimed.known.append((candidate, own[candidate.id]))
        elif match is not None:
            claimed.copies.append(Copy(candidate, match, free))
        else:
            again[candidate] = free
    return again


async def insert_copies(
    registry: Registry, rows: list[tuple[Document, frozenset[int]]]
) -> set[int]:
    """Store copies with those of their free bands that nobody has taken meanwhile.

    rows: documents without bands, and the bands they want
    returns the `_id`s that another process stored first
    """
    stored: set[int] = set()
    for _ in range(ROUNDS):
        documents = [row | signatures.bands_of(registry, bands) for row, bands in rows]
        refused = await signatures.insert(registry, documents)
        if not refused:
            return stored
        rows = [(row, bands) for row, bands in rows if row["_id"] in refused]
        wanted = frozenset[int]().union(*(bands for _, bands in rows))
        owners, own = await signatures.holders(registry, wanted, list(refused))
        stored |= own.keys()
        rows = [(row, bands - owners.keys()) for row, bands in rows if row["_id"] not in own]
    return stored | await signatures.insert(registry, [row for row, _ in rows])
