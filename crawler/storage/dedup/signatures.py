"""`signatures`: the sketch of each post, and the bands that it owns."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from bson import Binary, ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawler.dedup.boilerplate import sourced
from crawler.dedup.model import Candidate, Claim, Owner, id_of, rank_of
from crawler.dedup.sketch import Sketch
from crawler.storage import fences
from crawler.storage.client import Document
from crawler.storage.dedup.registry import Registry
from crawler.storage.retry import DUPLICATE_KEY, all_of, in_batches

PARTS, LEAST_OF_A_PART = 4, 50
# A post of a feed is stored by its feed, and by its page.
FENCES = ("fence", "page_fence")
OF_OWNER = {
    "post": 1, "created": 1, "seen": 1, "source": 1, "sketch": 1, "cluster": 1, "item": 1,
} | dict.fromkeys(FENCES, 1)  # fmt: skip


def row_of(
    registry: Registry, candidate: Candidate, bands: Iterable[int], now: datetime
) -> Document:
    """The document of a post that owns these bands."""
    row = {
        "_id": candidate.id,
        "post": candidate.key,
        **times_of(registry, candidate),
        "source": candidate.source,
        "at": now,
        "scheme": registry.scheme.name,
        "sketch": Binary(candidate.sketch.encode()),
    }
    if candidate.item is not None:
        row["item"] = candidate.item
    return row | candidate.fences | bands_of(registry, bands) | text_of(registry, candidate)


def is_late(candidate: Candidate, stored: Document) -> bool:
    """Whether a newer visit has stored the signature of a candidate."""
    return any(stored.get(name, 0) > number for name, number in candidate.fences.items())


def unless_late(candidate: Candidate) -> Document:
    """The signature of a candidate, if no newer visit has stored it."""
    query: Document = {"_id": candidate.id}
    for name, number in candidate.fences.items():
        query |= fences.passed(number, name)
    return query


def fences_of(stored: Document) -> dict[str, int]:
    """The numbers under which visits have stored a signature, by name."""
    return {name: stored[name] for name in FENCES if name in stored}


async def raise_fences(registry: Registry, candidates: Iterable[Candidate]) -> None:
    """Note that these visits have seen their posts as they are stored."""
    raised = [
        UpdateOne({"_id": post.id}, {"$max": post.fences}) for post in candidates if post.fences
    ]
    if raised:
        await registry.signatures.bulk_write(raised, ordered=False)


def times_of(registry: Registry, post: Candidate | Owner) -> dict[str, datetime]:
    """The fields by which originals are chosen, each the earlier the better."""
    # Dates are stored to the millisecond.
    created, seen = (
        date.replace(microsecond=date.microsecond // 1000 * 1000)
        for date in (post.created, post.seen or post.created)
    )
    return {"created": created, "seen": seen, "rank": rank_of(created, seen, registry.date_days)}


def text_of(registry: Registry, candidate: Candidate) -> Document:
    """The fields of a text that is kept, where no post keeps it."""
    if not registry.keeps_texts or candidate.text is None:
        return {}
    packed = zlib.compress(candidate.text.text.encode("utf-8", "surrogatepass"))
    return {"text_source": candidate.text.source, "text": Binary(packed)}


async def candidates_of(registry: Registry, keys: Sequence[str]) -> list[Candidate]:
    """Those of these texts that are kept, as they are compared."""
    query = {"_id": {"$in": [id_of(key) for key in keys]}, "text": {"$exists": True}}
    candidates = []
    async for row in registry.signatures.find(
        query, {"post": 1, "created": 1, "seen": 1, "source": 1, "text_source": 1, "text": 1}
    ):
        text = zlib.decompress(row["text"]).decode("utf-8", "surrogatepass")
        if (sketch := registry.scheme.sketch(text)) is not None:
            candidate = Candidate(
                row["post"], row["created"], sketch, text=sourced(row["text_source"], text),
                seen=row["seen"], source=row["source"],
            )  # fmt: skip
            candidates.append(candidate)
    return candidates


def bands_of(registry: Registry, bands: Iterable[int]) -> Document:
    """The field of owned bands, as far as it is needed."""
    owned = sorted(bands)
    return {"bands": owned} if owned and registry.shared is None else {}


def owner_of(row: Document) -> Owner:
    """A stored signature as the holder of bands."""
    return Owner(
        row["_id"], row["post"], row["created"], Sketch.decode(row["sketch"]),
        row.get("cluster"), row.get("item"), row["seen"], row["source"], fences_of(row),
    )  # fmt: skip


def claims_of(owners: Iterable[Owner]) -> list[Claim]:
    """Stored posts as they are put into Redis, and taken out of it."""
    return [Claim(owner.id, owner.cluster.binary, owner.sketch) for owner in owners]


async def insert(registry: Registry, rows: list[Document]) -> set[int]:
    """Insert what can be; the `_id`s that were refused, for their own sake or a band's."""
    if not rows:
        return set()
    # The server is at work on one part while the next is encoded.
    parts = in_batches(rows, max(LEAST_OF_A_PART, -(-len(rows) // PARTS)))
    refused = await all_of(_insert(registry, part) for part in parts)
    return set().union(*refused)


async def _insert(registry: Registry, rows: Sequence[Document]) -> set[int]:
    try:
        await registry.signatures.insert_many(rows, ordered=False)
    except BulkWriteError as error:
        problems = error.details["writeErrors"]
        if any(problem["code"] != DUPLICATE_KEY for problem in problems):
            raise
        return {rows[problem["index"]]["_id"] for problem in problems}
    return set()


async def by_id(registry: Registry, ids: Iterable[int]) -> dict[int, Document]:
    """Those of these signatures that are stored."""
    query = {"_id": {"$in": list(ids)}}
    rows = await registry.signatures.find(query, OF_OWNER).to_list(None)
    return {row["_id"]: row for row in rows}


async def holders(
    registry: Registry, bands: Iterable[int], ids: Sequence[int] = ()
) -> tuple[dict[int, Owner], dict[int, Document]]:
    """Owners by each of these bands that has one, and the documents with these `_id`s."""
    query: Document = {"bands": {"$in": list(bands)}}
    if ids:
        query = {"$or": [{"_id": {"$in": list(ids)}}, query]}
    owners: dict[int, Owner] = {}
    own: dict[int, Document] = {}
    wanted = frozenset(ids)
    async for row in registry.signatures.find(query, OF_OWNER | {"bands": 1}):
        if row["_id"] in wanted:
            own[row["_id"]] = row
        owners |= dict.fromkeys(row.get("bands", ()), owner_of(row))
    return owners, own


async def add_bands(registry: Registry, id_: int, bands: Sequence[int]) -> None:
    """Let a stored post own these bands too, but those that others own."""
    each = [UpdateOne({"_id": id_}, {"$addToSet": {"bands": band}}) for band in bands]
    try:
        await registry.signatures.bulk_write(each, ordered=False)
    except BulkWriteError as error:
        if any(problem["code"] != DUPLICATE_KEY for problem in error.details["writeErrors"]):
            raise


def is_earlier(candidate: Candidate, stored: Document) -> bool:
    """Whether a stored post is older than was known."""
    seen = candidate.seen or candidate.created
    return bool(candidate.created < stored["created"] or seen < stored["seen"])


async def predate(registry: Registry, candidate: Candidate) -> None:
    """Note that a stored post is older than was known."""
    update = {"$min": times_of(registry, candidate)}
    await registry.signatures.update_one({"_id": candidate.id}, update)


async def set_items(registry: Registry, items: Mapping[int, int | None]) -> set[ObjectId]:
    """Note that stored posts are sources of other items than before, or of none; their clusters.

    items: by the posts' `_id`s. The clusters are marked: their posts have to be compared with them.
    """
    updates = [
        UpdateOne(
            {"_id": id_}, {"$unset": {"item": ""}} if item is None else {"$set": {"item": item}}
        )
        for id_, item in items.items()
    ]
    if not updates:
        return set()
    await registry.signatures.bulk_write(updates, ordered=False)
    query: Document = {"_id": {"$in": list(items)}, "cluster": {"$exists": True}}
    touched = set(await registry.signatures.distinct("cluster", query))
    if touched:
        there = {"_id": {"$in": list(touched)}}
        await registry.clusters.update_many(there, {"$set": {"unsettled": True}})
    return touched
