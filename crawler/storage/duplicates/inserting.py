"""A claim in MongoDB: insert first, and ask only where the unique index refuses.

An original is stored in one round trip, together with the rest of its batch. Of two that come at
the same moment the index lets one in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from crawler.dedup.model import Candidate, most_similar
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.claimed import Claimed
from crawler.storage.duplicates.joining import ROUNDS, Copy, join
from crawler.storage.duplicates.registry import Registry

logger = logging.getLogger(__name__)
Wanted = dict[Candidate, frozenset[int]]


async def claim(registry: Registry, candidates: Sequence[Candidate], now: datetime) -> Claimed:
    """Store originals under their free bands, and copies in the clusters of their owners."""
    claimed, copies = Claimed(), list[Copy]()
    wanted = {candidate: candidate.bands for candidate in candidates}
    for _ in range(ROUNDS):
        wanted = await _once(registry, wanted, claimed, copies, now)
        if not wanted:
            break
    else:
        # Others take what is free faster than we can look: then it goes without bands.
        logger.warning("%d posts are stored without bands of their own", len(wanted))
        bare = dict.fromkeys(wanted, frozenset[int]())
        claimed.lost.extend(await _once(registry, bare, claimed, copies, now))
    await join(registry, copies, claimed, now)
    return claimed


async def _once(
    registry: Registry, wanted: Wanted, claimed: Claimed, copies: list[Copy], now: datetime
) -> Wanted:
    """Insert what can be, and judge the rest; what has to be tried with fewer bands."""
    refused = await _insert(registry, wanted, now)
    claimed.alone.extend(wanted.keys() - refused.keys())
    return await _judge(registry, refused, claimed, copies) if refused else {}


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


async def _judge(
    registry: Registry, refused: Wanted, claimed: Claimed, copies: list[Copy]
) -> Wanted:
    """Sort the refused into copies and known ones; the rest with the bands that are left."""
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
        owner = most_similar(candidate.sketch, distinct, registry.scheme.threshold)
        if candidate.id in own:
            claimed.known.append((candidate, own[candidate.id]))
        elif owner is not None:
            copies.append(Copy(candidate, owner, free))
        else:
            again[candidate] = free
    return again
