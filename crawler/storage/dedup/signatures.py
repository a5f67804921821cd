"""`signatures`: the sketch of each post, and the bands that the post owns."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from bson import Binary, ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawler.dedup.boilerplate import sourced
from crawler.dedup.posts import Candidate, Claim, Owner, id_of, rank_of
from crawler.dedup.sketch import Sketch
from crawler.storage import leases
from crawler.storage.client import DUPLICATE_KEY, Document, all_of, in_batches
from crawler.storage.dedup.registry import Registry

PARTS, MIN_PART_ROWS = 4, 50
# A feed's post is stored by visits of the feed and of its page.
FENCES = ("fence", "page_fence")
OWNER_FIELDS = {
    "post": 1, "created": 1, "seen": 1, "source": 1, "sketch": 1, "cluster": 1, "item": 1,
} | dict.fromkeys(FENCES, 1)  # fmt: skip


def row_of(
    registry: Registry, candidate: Candidate, bands: Iterable[int], now: datetime
) -> Document:
    """Return the document of a post that owns the given bands."""
    row = {
        "_id": candidate.id,
        "post": candidate.key,
        **times_of(registry, candidate),
        "source": candidate.source,
        "at": now,
        "signature_scheme": registry.scheme.name,
        "sketch": Binary(candidate.sketch.encode()),
    }
    if candidate.item is not None:
        row["item"] = candidate.item
    return row | candidate.fences | bands_of(registry, bands) | text_of(registry, candidate)


def is_late(candidate: Candidate, stored: Document) -> bool:
    """Return whether a newer visit has stored the signature of a candidate."""
    return any(stored.get(name, 0) > number for name, number in candidate.fences.items())


def unless_late(candidate: Candidate) -> Document:
    """Return a query for a candidate's signature unless a newer visit has stored it."""
    query: Document = {"_id": candidate.id}
    for name, number in candidate.fences.items():
        query |= leases.unless_passed(number, name)
    return query


def fences_of(stored: Document) -> dict[str, int]:
    """Return the fence numbers of the visits that stored a signature, by name."""
    return {name: stored[name] for name in FENCES if name in stored}


async def raise_fences(registry: Registry, candidates: Iterable[Candidate]) -> None:
    """Record that visits have seen their posts unchanged."""
    raised = [
        UpdateOne({"_id": post.id}, {"$max": post.fences}) for post in candidates if post.fences
    ]
    if raised:
        await registry.signatures.bulk_write(raised, ordered=False)


def times_of(registry: Registry, post: Candidate | Owner) -> dict[str, datetime]:
    """Return the dates by which originals are chosen; the earliest wins."""
    created = _in_milliseconds(post.created)
    seen = _in_milliseconds(post.seen) if post.seen not in (None, post.created) else created
    return {"created": created, "seen": seen, "rank": rank_of(created, seen, registry.date_days)}


def _in_milliseconds(date: datetime) -> datetime:
    """Return a date as MongoDB stores it."""
    return date.replace(microsecond=date.microsecond // 1000 * 1000)


def text_of(registry: Registry, candidate: Candidate) -> Document:
    """Return the fields of a text in an index that has no posts."""
    if not registry.keeps_texts or candidate.text is None:
        return {}
    packed = zlib.compress(candidate.text.text.encode("utf-8", "surrogatepass"))
    return {"text_source": candidate.text.source, "text": Binary(packed)}


async def candidates_of(registry: Registry, keys: Sequence[str]) -> list[Candidate]:
    """Return candidates for the given texts that are stored with their signatures."""
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
    """Return the field of owned bands; empty if Redis has the bands."""
    owned = sorted(bands)
    return {"bands": owned} if owned and registry.shared is None else {}


def owner_of(row: Document) -> Owner:
    """Return the owner that a stored signature describes."""
    return Owner(
        row["_id"], row["post"], row["created"], Sketch.decode(row["sketch"]),
        row.get("cluster"), row.get("item"), row["seen"], row["source"], fences_of(row),
    )  # fmt: skip


def claims_of(owners: Iterable[Owner]) -> list[Claim]:
    """Return the claims of stored posts, to put into Redis or to release."""
    return [Claim(owner.id, owner.cluster.binary, owner.sketch) for owner in owners]


async def insert(registry: Registry, rows: list[Document]) -> set[int]:
    """Insert signatures; return the `_id`s refused because the `_id` or a band is taken."""
    if not rows:
        return set()

    async def insert_part(part: Sequence[Document]) -> set[int]:
        try:
            await registry.signatures.insert_many(part, ordered=False)
        except BulkWriteError as error:
            return {part[index]["_id"] for index in duplicate_keys(error)}
        return set()

    if len(rows) <= MIN_PART_ROWS:
        return await insert_part(rows)
    # The server inserts one part while the next is encoded.
    parts = in_batches(rows, max(MIN_PART_ROWS, -(-len(rows) // PARTS)))
    return set().union(*await all_of(insert_part(part) for part in parts))


def duplicate_keys(error: BulkWriteError) -> set[int]:
    """Return the positions of writes that a unique index refused; raise any other error."""
    problems = error.details["writeErrors"]
    if any(problem["code"] != DUPLICATE_KEY for problem in problems):
        raise error
    return {problem["index"] for problem in problems}


async def by_id(registry: Registry, ids: Iterable[int]) -> dict[int, Document]:
    """Return the stored signatures among the given `_id`s."""
    wanted = list(ids)
    if not wanted:
        return {}
    query = {"_id": {"$in": wanted}}
    rows = await registry.signatures.find(query, OWNER_FIELDS).to_list(None)
    return {row["_id"]: row for row in rows}


async def holders(
    registry: Registry, bands: Iterable[int], ids: Sequence[int] = ()
) -> tuple[dict[int, Owner], dict[int, Document]]:
    """Return the owners of the given bands, and the stored documents with the given `_id`s."""
    listed = list(bands)
    query: Document = {"bands": {"$in": listed}}
    # Reading all bands of an owner would take most of the time.
    fields: Document = OWNER_FIELDS | {"bands": {"$setIntersection": ["$bands", listed]}}
    if ids:
        query = {"$or": [{"_id": {"$in": list(ids)}}, query]}
    owners: dict[int, Owner] = {}
    own: dict[int, Document] = {}
    wanted = frozenset(ids)
    for row in await registry.signatures.find(query, fields).to_list(None):
        if row["_id"] in wanted:
            own[row["_id"]] = row
        if owned := row.get("bands"):
            owners |= dict.fromkeys(owned, owner_of(row))
    return owners, own


async def add_bands(registry: Registry, bands_by_id: Mapping[int, Sequence[int]]) -> None:
    """Add bands to stored posts, except bands that other posts own."""
    # One update per band: a band taken in the meantime must not block the others.
    each = [
        UpdateOne({"_id": id_}, {"$addToSet": {"bands": band}})
        for id_, bands in bands_by_id.items()
        for band in bands
    ]
    if not each:
        return
    try:
        await registry.signatures.bulk_write(each, ordered=False)
    except BulkWriteError as error:
        duplicate_keys(error)


def is_earlier(candidate: Candidate, stored: Document) -> bool:
    """Return whether a candidate has an earlier date than its stored signature."""
    seen = candidate.seen or candidate.created
    return bool(candidate.created < stored["created"] or seen < stored["seen"])


async def predate(registry: Registry, candidate: Candidate) -> None:
    """Store the earlier date of a candidate."""
    update = {"$min": times_of(registry, candidate)}
    await registry.signatures.update_one({"_id": candidate.id}, update)


async def set_items(registry: Registry, items: Mapping[int, int | None]) -> set[ObjectId]:
    """Set the items that stored posts are sources of; return the affected clusters.

    items: item numbers by the posts' `_id`s; None removes the item. The clusters are marked as
    unsettled, so that their posts are updated.
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
        of_touched = {"_id": {"$in": list(touched)}}
        await registry.clusters.update_many(of_touched, {"$set": {"unsettled": True}})
    return touched
