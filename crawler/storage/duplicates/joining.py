"""Copies that MongoDB's index found, stored in the clusters of what they are copies of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne

from crawler.dedup.model import Candidate, Owner
from crawler.storage.client import Document
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.claimed import Claimed
from crawler.storage.duplicates.registry import Registry

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
    stored = await _insert(registry, rows)
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


async def _insert(registry: Registry, rows: list[Row]) -> dict[int, Document]:
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
