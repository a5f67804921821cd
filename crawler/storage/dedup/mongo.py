"""A claim in MongoDB: insert first, and ask only where the unique index refuses.

An original is stored in one round trip, together with the rest of its batch. Of two that come at
the same moment the index lets one in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne

from crawler.dedup.model import Candidate, Owner, most_similar
from crawler.storage.client import Document
from crawler.storage.dedup import signatures
from crawler.storage.dedup.registry import Claimed, Registry

ROUNDS = 10
Row = tuple[Document, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Copy:
    """A candidate that is a duplicate of an owner. free: those of its bands that had no owner."""

    candidate: Candidate
    owner: Owner
    free: frozenset[int]


async def join(registry: Registry, copies: Sequence[Copy], claimed: Claimed, now: datetime) -> None:
    """Store copies and sort them into what is claimed."""
    if not copies:
        return
    clusters = await _clusters_of(registry, {copy.owner.id for copy in copies})
    there = [copy for copy in copies if copy.owner.id in clusters]
    claimed.lost.extend(copy.candidate for copy in copies if copy.owner.id not in clusters)
    rows = []
    for copy in there:
        bare = signatures.row_of(registry, copy.candidate, (), now)
        rows.append((bare | {"cluster": clusters[copy.owner.id]}, copy.free))
    stored = await _insert_joining(registry, rows)
    for copy in there:
        if copy.candidate.id in stored:
            claimed.known.append((copy.candidate, stored[copy.candidate.id]))
        else:
            claimed.members.append((copy.candidate, clusters[copy.owner.id]))


async def _clusters_of(registry: Registry, owners: set[int]) -> dict[int, ObjectId]:
    """The cluster of each of these posts, made where there is none; posts that are gone miss."""
    query: Document = {"_id": {"$in": list(owners)}}
    found = await registry.signatures.find(query, {"cluster": 1}).to_list(None)
    if alone := [row["_id"] for row in found if "cluster" not in row]:
        lacking = {"cluster": {"$exists": False}}
        await registry.signatures.bulk_write(
            [UpdateOne({"_id": id_} | lacking, {"$set": {"cluster": ObjectId()}}) for id_ in alone],
            ordered=False,
        )
        found = await registry.signatures.find(query, {"cluster": 1}).to_list(None)
    return {row["_id"]: row["cluster"] for row in found if "cluster" in row}


async def _insert_joining(registry: Registry, rows: list[Row]) -> dict[int, Document]:
    """Store copies with those of their free bands that nobody has taken meanwhile.

    rows: documents without bands, and the bands they want
    returns the documents of those that another process stored first
    """
    known: dict[int, Document] = {}
    for _ in range(ROUNDS):
        documents = [row | signatures.bands_of(registry, bands) for row, bands in rows]
        refused = await signatures.insert(registry, documents)
        if not refused:
            return known
        rows = [(row, bands) for row, bands in rows if row["_id"] in refused]
        wanted = frozenset[int]().union(*(bands for _, bands in rows))
        owners, own = await signatures.holders(registry, wanted, list(refused))
        known |= own
        rows = [(row, bands - owners.keys()) for row, bands in rows if row["_id"] not in own]
    refused = await signatures.insert(registry, [row for row, _ in rows])
    return known | await signatures.by_id(registry, refused)


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
