"""The index of sketches: its collections and scheme, and the sketch and bands of each post.

`signatures` has one document per post: its sketch, and the bands that the post owns. Candidates for
comparison are built from stored posts in the same way as a crawl builds them.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from bson import Binary, ObjectId
from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError

from crawler.dedup import compared as texts
from crawler.dedup.posts import Candidate, Owner, created_at, id_of
from crawler.extract.plain_text import as_texts
from crawler.storage import leases
from crawler.storage.client import (
    UNJOURNALED,
    Database,
    Document,
    all_of,
    duplicate_keys,
    in_batches,
    write_all,
)
from crawler.utils.time import in_milliseconds

if TYPE_CHECKING:
    from crawler.dedup.boilerplate import Sourced, Table
    from crawler.dedup.schemes import Scheme
    from crawler.dedup.sketch import Sketch

MAX_KNOWN_BANDS, MAX_KNOWN_OWNERS, KNOWN_SECONDS = 100_000, 10_000, 60.0
# A missing field would be indexed as null in a unique index that is not sparse, and an empty
# array as undefined: a post without bands has no such field.
BANDS = IndexModel([("bands", ASCENDING)], unique=True, sparse=True)
CLUSTER = IndexModel([("cluster", ASCENDING)], sparse=True)
UNSETTLED = IndexModel(
    [("unsettled", ASCENDING)], partialFilterExpression={"unsettled": {"$exists": True}}
)
LEARNED_AT = IndexModel([("at", ASCENDING)])
SIGNATURE_INDEXES, CLUSTER_INDEXES = [BANDS, CLUSTER], [UNSETTLED]
BOILERPLATE_INDEXES = [LEARNED_AT]
LABEL_INDEXES = [
    IndexModel([("ids", ASCENDING)]),
    IndexModel([("flagged", ASCENDING), ("same", ASCENDING)]),
]

Member = tuple[Candidate, ObjectId]
POST_FIELDS = (
    "title", "text", "fields", "markup", "page.at", "page.fields", "page.markup", "changed_at",
    "compare", "published", "first_seen", "dated", "item", "spider", "feed", "url", "page.url",
    "fence", "page.fence",
)  # fmt: skip
PARTS, MIN_PART_ROWS = 4, 50
# Resolution of the times of visits in histories.
RESOLUTION = timedelta(minutes=1)
# A feed's post is stored by visits of the feed and of its page.
FENCES = ("fence", "page_fence")
# By which originals are chosen; see `clusters`.
DATED = ("seen", "claimed", "absent")
OWNER_FIELDS = dict.fromkeys(
    ("post", "created", *DATED, "source", "sketch", "cluster", "item", *FENCES), 1
)


class KnownOwners:
    """The sketches of the latest known owners of bands, by band.

    Most owners that share a band with a post are not similar to it, which their sketches tell
    without a query. Other processes may edit or delete owners, so a sketch is forgotten after a
    minute. Memory is bounded: when `_new` is full or old, it replaces `_old`.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._new: dict[int, Sketch] = {}
        self._old: dict[int, Sketch] = {}
        self._owners, self._since = 0, clock()

    def add(self, owners: Mapping[int, Owner | Candidate]) -> None:
        """Add bands with their owners."""
        self._new.update({band: owner.sketch for band, owner in owners.items()})
        self._owners += len({owner.id for owner in owners.values()})
        if len(self._new) >= MAX_KNOWN_BANDS // 2 or self._owners >= MAX_KNOWN_OWNERS // 2:
            self._rotate()

    def discard(self, bands: Iterable[int]) -> None:
        """Remove bands that have no owner, or another one."""
        for band in bands:
            self._new.pop(band, None)
            self._old.pop(band, None)

    def of(self, bands: frozenset[int]) -> dict[int, Sketch]:
        """Return the sketches of the known owners of the given bands."""
        age = self._clock() - self._since
        if age >= KNOWN_SECONDS / 2:
            self._rotate()
        if age >= KNOWN_SECONDS:
            self._old = {}
        new, old = self._new, self._old
        known = {band: old[band] for band in bands & old.keys()}
        return known | {band: new[band] for band in bands & new.keys()}

    def _rotate(self) -> None:
        self._new, self._old = {}, self._new
        self._owners, self._since = 0, self._clock()


@dataclass(frozen=True, slots=True)
class Registry:
    """An index of sketches.

    boilerplate: tables of sources; None: no boilerplate is learned
    read_again:  reads candidates of stored posts; None: posts are not stored
    keeps_texts: store texts with the signatures, as there are no posts
    labels:      people's decisions on pairs of posts; None: posts are not stored
    known:       owners of bands that this process has stored or read
    tables:      of recently used sources
    """

    signatures: AsyncCollection[Document]
    clusters: AsyncCollection[Document]
    scheme: Scheme
    boilerplate: AsyncCollection[Document] | None = None
    read_again: Callable[[Sequence[str]], Awaitable[list[Candidate]]] | None = None
    keeps_texts: bool = False
    labels: AsyncCollection[Document] | None = None
    known: KnownOwners = field(default_factory=KnownOwners)
    tables: dict[str, Table] = field(default_factory=dict)

    @classmethod
    def of(cls, db: Database, scheme: Scheme) -> Registry:
        """Return the index of the database's posts; a claim is journaled with the post after it."""
        claims, clusters = (
            db.get_collection(name, write_concern=UNJOURNALED)
            for name in ("signatures", "clusters")
        )
        registry = cls(claims, clusters, scheme, labels=db.duplicate_labels)
        if not scheme.weighs:
            return registry
        boilerplate = db.get_collection("boilerplate", write_concern=UNJOURNALED)
        read_again = partial(candidates_of, db, scheme)
        return replace(registry, boilerplate=boilerplate, read_again=read_again)

    async def create_indexes(self) -> None:
        """Create the MongoDB indexes of a check index; the schema creates those of the posts."""
        await self.signatures.create_indexes(SIGNATURE_INDEXES)
        await self.clusters.create_indexes(CLUSTER_INDEXES)
        if self.boilerplate is not None:
            await self.boilerplate.create_indexes(BOILERPLATE_INDEXES)


def row_of(
    registry: Registry, candidate: Candidate, bands: Iterable[int], now: datetime
) -> Document:
    """Return the document of a post that owns the given bands."""
    row = {
        "_id": candidate.id,
        "post": candidate.key,
        **times_of(candidate),
        "source": candidate.source,
        "at": now,
        "signature_scheme": registry.scheme.name,
        "sketch": Binary(candidate.sketch.encode()),
    }
    if candidate.item is not None:
        row["item"] = candidate.item
    return row | candidate.fences | bands_of(bands) | text_of(registry, candidate)


def is_late(candidate: Candidate, stored: Document) -> bool:
    """Return whether a newer visit has stored the signature of a candidate."""
    return any(stored.get(name, 0) > number for name, number in candidate.fences.items())


def unless_late(candidate: Candidate) -> Document:
    """Return a query for a candidate's signature unless a newer visit has stored it."""
    query: Document = {"_id": candidate.id}
    for name, fence in candidate.fences.items():
        query |= leases.unless_passed(fence, name)
    return query


def fences_of(stored: Document) -> dict[str, int]:
    """Return the fence numbers of the visits that stored a signature, by name."""
    return {name: stored[name] for name in FENCES if name in stored}


async def raise_fences(registry: Registry, candidates: Iterable[Candidate]) -> None:
    """Record that visits have seen their posts unchanged."""
    raised = [
        UpdateOne({"_id": post.id}, {"$max": post.fences}) for post in candidates if post.fences
    ]
    await write_all(registry.signatures, raised)


def times_of(post: Candidate | Owner) -> dict[str, datetime]:
    """Return the times by which originals are chosen; `absent` only if it is known."""
    created = in_milliseconds(post.created)
    seen = in_milliseconds(post.seen) if post.seen not in (None, post.created) else created
    claimed = in_milliseconds(post.claimed) if post.claimed is not None else seen
    times = {"created": created, "seen": seen, "claimed": min(claimed, seen)}
    return times if post.absent is None else times | {"absent": in_milliseconds(post.absent)}


def text_of(registry: Registry, candidate: Candidate) -> Document:
    """Return the fields of a text in an index that has no posts."""
    if not registry.keeps_texts or candidate.text is None:
        return {}
    packed = zlib.compress(candidate.text.text.encode("utf-8", "surrogatepass"))
    return {"text_source": candidate.text.source, "text": Binary(packed)}


async def text_candidates(registry: Registry, keys: Sequence[str]) -> list[Candidate]:
    """Return candidates for the given texts that are stored with their signatures."""
    from crawler.dedup.boilerplate import sourced  # slow: loads the compiled kernels

    query = {"_id": {"$in": [id_of(key) for key in keys]}, "text": {"$exists": True}}
    candidates = []
    async for row in registry.signatures.find(query, OWNER_FIELDS | {"text_source": 1, "text": 1}):
        text = zlib.decompress(row["text"]).decode("utf-8", "surrogatepass")
        if (sketch := registry.scheme.sketch(text)) is not None:
            origin = sourced(row["text_source"], text)
            candidate = replace(owner_of(row).claimed_again(), sketch=sketch, text=origin)
            candidates.append(candidate)
    return candidates


def bands_of(bands: Iterable[int]) -> Document:
    """Return the field of owned bands; empty without bands."""
    owned = sorted(bands)
    return {"bands": owned} if owned else {}


def owner_of(row: Document) -> Owner:
    """Return the owner that a stored signature describes."""
    from crawler.dedup.sketch import Sketch  # slow: loads numpy

    return Owner(
        row["_id"], row["post"], row["created"], Sketch.decode(row["sketch"]),
        row.get("cluster"), row.get("item"), row["seen"], row["source"], fences_of(row),
        row.get("absent"), row["claimed"],
    )  # fmt: skip


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
    given = frozenset(bands)
    query: Document = {"bands": {"$in": list(given)}}
    # All bands of an owner are read: with $setIntersection, the server would sort the given bands
    # for each owner, which took 0.3 ms for each page of a first run by four workers.
    fields: Document = OWNER_FIELDS | {"bands": 1}
    if ids:
        query = {"$or": [{"_id": {"$in": list(ids)}}, query]}
    owners: dict[int, Owner] = {}
    own: dict[int, Document] = {}
    wanted = frozenset(ids)
    for row in await registry.signatures.find(query, fields).to_list(None):
        if row["_id"] in wanted:
            own[row["_id"]] = row
        if owned := given.intersection(row.get("bands", ())):
            owners |= dict.fromkeys(owned, owner_of(row))
    return owners, own


def forget_owners(registry: Registry, rows: Iterable[Document]) -> None:
    """Forget the owners of the bands of signatures that are about to change."""
    for row in rows:
        registry.known.discard(owner_of(row).sketch.repeated_bands().tolist())


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
    """Store the earlier date of a candidate, and the times of its earlier sight."""
    times = times_of(candidate)
    is_sooner = {"$lt": [times["seen"], "$seen"]}
    update: Document = {
        name: {"$cond": [is_sooner, times.get(name, "$$REMOVE"), f"${name}"]}
        for name in ("seen", "claimed", "absent")
    }
    update["created"] = {"$min": ["$created", times["created"]]}
    await registry.signatures.update_one({"_id": candidate.id}, [{"$set": update}])


def merged(registry: Registry, candidate: Candidate, stored: Document) -> Candidate:
    """Return a candidate with the times of its stored signature, where these are earlier.

    A visit that found another text in place of the stored one has seen a new post. Otherwise an old
    page could take over a new post by copying it.
    """
    kept = {"source": stored["source"], "fences": fences_of(stored) | candidate.fences}
    held = owner_of(stored)
    is_replaced = (
        candidate.absent is not None
        and candidate.absent > stored["seen"] - RESOLUTION
        and candidate.sketch.similarity(held.sketch) < registry.scheme.threshold
    )
    if is_replaced:
        return replace(candidate, **kept)
    kept["created"] = min(candidate.created, held.created)
    if stored["seen"] <= (candidate.seen or candidate.created):
        kept |= {"seen": held.seen, "claimed": held.claimed, "absent": held.absent}
    return replace(candidate, **kept)


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


def compared_text(post: Document) -> str:
    """Return the text by which a post is compared."""
    title, fields = _content(post)
    return texts.text_of(title, post.get("text"), fields, post.get("compare"))


async def why_not_compared(db: Database, key: str) -> str | None:
    """Return why a post is not compared with others; None if it is, or is not stored."""
    if (post := await db.posts.find_one({"_id": key}, POST_FIELDS)) is None:
        return None
    title, fields = _content(post)
    return texts.why_not_compared(title, post.get("text"), fields, post.get("compare"))


def compared(post: Document, scheme: Scheme) -> tuple[Sketch | None, Sourced | None]:
    """Return the sketch and the text of a post, as `crawler.dedup.posts` does."""
    title, fields = _content(post)
    return texts.compared(
        scheme, source_of(post), title, post.get("text"), fields, post.get("compare")
    )


def candidate_of(post: Document, scheme: Scheme) -> Candidate | None:
    """Return a post as a candidate for a claim; None if the post has no text."""
    sketch, text = compared(post, scheme)
    if sketch is None:
        return None
    item = id_of(post["item"]) if post.get("item") else None
    origin = texts.source_of(
        post["spider"], post.get("feed") or post.get("url") or "", is_feed="feed" in post
    )
    # If a newer visit has claimed the post but not stored it yet, this text is outdated.
    fences = {"fence": post.get("fence"), "page_fence": (post.get("page") or {}).get("fence")}
    return Candidate(
        post["_id"], created_of(post), sketch, item=item, text=text,
        fences={name: number for name, number in fences.items() if number is not None},
        source=id_of(origin), **({"seen": post["first_seen"]} | post.get("dated", {})),
    )  # fmt: skip


def source_of(post: Document) -> str:
    """Return the source of a post's text: its feed, or the host of its page."""
    page = post.get("page")
    if page and page["at"] >= post.get("changed_at", page["at"]):
        return texts.source_of(post["spider"], page.get("url") or "", is_feed=False)
    url = post.get("feed") or post.get("url") or ""
    return texts.source_of(post["spider"], url, is_feed="feed" in post)


async def candidates_of(db: Database, scheme: Scheme, keys: Sequence[str]) -> list[Candidate]:
    """Return candidates for the given posts that are stored and have a text."""
    ids = [id_of(key) for key in keys]
    cursor = db.signatures.find({"_id": {"$in": ids}}, dict.fromkeys(("post", *DATED), 1))
    dated = {row["post"]: dated_of(row) async for row in cursor}
    candidates = []
    async for post in db.posts.find({"_id": {"$in": list(keys)}}, POST_FIELDS):
        if post["_id"] in dated:
            post["dated"] = dated[post["_id"]]
        candidates.append(candidate_of(post, scheme))
    return [candidate for candidate in candidates if candidate is not None]


def dated_of(row: Document) -> Document:
    """Return the times of a signature that its post does not have."""
    return {name: row[name] for name in DATED if name in row}


async def keep_times(db: Database) -> None:
    """Store the times of all signatures with their posts, before the signatures are deleted."""
    times = {"_id": "$post", "dated": {name: f"${name}" for name in DATED}}
    into = {"into": "posts", "whenMatched": "merge", "whenNotMatched": "discard"}
    cursor = await db.signatures.aggregate([{"$project": times}, {"$merge": into}])
    await cursor.to_list(None)


def created_of(post: Document) -> datetime:
    """Return the stated date of a post if it is plausible, else when it was first seen."""
    seen = post["first_seen"]
    created = created_at(post.get("published"), seen)
    for holder in (post, post.get("page") or {}):
        date = (holder.get("fields") or {}).get("published")
        if isinstance(date, datetime):
            created = min(created, created_at(date, seen))
    return created


def _content(post: Document) -> tuple[str | None, Mapping[str, Any]]:
    """Return title and fields as plain text, from whichever of feed and page was read last."""
    page = post.get("page")
    if page and page["at"] >= post.get("changed_at", page["at"]):
        fields = as_texts(page.get("fields") or {}, page.get("markup") or ())
        return fields.get("title"), fields
    return post.get("title"), as_texts(post.get("fields") or {}, post.get("markup") or ())
