"""The index of sketches: its collections, its scheme, and its Redis backend if any."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bson import ObjectId
from pymongo import ASCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection

from crawler.dedup.posts import Candidate, Claim
from crawler.storage.client import UNJOURNALED, Database, Document
from crawler.storage.field_schemas import (
    count,
    number,
    shown,
    shown_rows,
    text,
    time,
    typed,
    validator,
)

if TYPE_CHECKING:
    from crawler.dedup.boilerplate import Table
    from crawler.dedup.sketch import Scheme

DATE_DAYS = 2.0
MAX_HOT_BANDS = 100_000
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


class HotBands:
    """The latest bands that are known to have owners; memory is bounded.

    When `_new` is full, it replaces `_old`: two sets take a tenth of the time of an ordered one.
    """

    def __init__(self) -> None:
        self._new, self._old = set[int](), set[int]()

    def add(self, bands: Iterable[int]) -> None:
        """Add bands that have owners."""
        self._new.update(bands)
        if len(self._new) >= MAX_HOT_BANDS // 2:
            self._new, self._old = set(), self._new

    def discard(self, bands: Collection[int]) -> None:
        """Remove bands that have no owner."""
        self._new.difference_update(bands)
        self._old.difference_update(bands)

    def among(self, bands: frozenset[int]) -> frozenset[int]:
        """Return those of the given bands that are known to have an owner."""
        return (bands & self._new) | (bands & self._old)


class Bands(Protocol):
    """Claims of bands in place of MongoDB's unique index; they can be rebuilt from MongoDB."""

    async def claim(self, batch: Sequence[Claim], threshold: float) -> list[bytes]:
        """Return the cluster of each post: that of its original, else a new one."""

    async def put(self, batch: Sequence[Claim]) -> None:
        """Claim bands for posts whose clusters are known."""

    async def release(self, batch: Sequence[Claim]) -> None:
        """Free the bands that the given posts own."""


@dataclass(frozen=True, slots=True)
class Registry:
    """An index of sketches.

    shared:      claims in Redis; None: in MongoDB
    boilerplate: tables of sources; None: no boilerplate is learned
    date_days:   maximum days by which a stated date may precede the first sight, to rank sources
    read_again:  reads candidates of stored posts; None: posts are not stored
    keeps_texts: store texts with the signatures, as there are no posts
    labels:      people's decisions on pairs of posts; None: posts are not stored
    tables:      of recently used sources
    """

    signatures: AsyncCollection[Document]
    clusters: AsyncCollection[Document]
    scheme: Scheme
    shared: Bands | None = None
    date_days: float = DATE_DAYS
    boilerplate: AsyncCollection[Document] | None = None
    read_again: Callable[[Sequence[str]], Awaitable[list[Candidate]]] | None = None
    keeps_texts: bool = False
    labels: AsyncCollection[Document] | None = None
    hot: HotBands = field(default_factory=HotBands)
    tables: dict[str, Table] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        db: Database,
        scheme: Scheme,
        shared: Bands | None = None,
        date_days: float = DATE_DAYS,
    ) -> Registry:
        """Return the index of the database's posts; a claim is journaled with the post after it."""
        claims, clusters = (
            db.get_collection(name, write_concern=UNJOURNALED)
            for name in ("signatures", "clusters")
        )
        # Commands that only count targets start faster without numpy.
        from crawler.storage.dedup.candidates import candidates_of

        if not scheme.weighs:
            return cls(claims, clusters, scheme, shared, date_days, labels=db.duplicate_labels)
        boilerplate = db.get_collection("boilerplate", write_concern=UNJOURNALED)
        again = partial(candidates_of, db, scheme)
        return cls(
            claims, clusters, scheme, shared, date_days, boilerplate, again,
            labels=db.duplicate_labels,
        )  # fmt: skip

    async def create_indexes(self) -> None:
        """Create the MongoDB indexes of a check index; the schema creates those of the posts."""
        await self.signatures.create_indexes(SIGNATURE_INDEXES)
        await self.clusters.create_indexes(CLUSTER_INDEXES)
        if self.boilerplate is not None:
            await self.boilerplate.create_indexes(BOILERPLATE_INDEXES)


DEDUP_VALIDATORS: dict[str, Document] = {
    "signatures": validator(
        ["post", "created", "seen", "rank", "source", "at", "signature_scheme", "sketch"],
        "signatures by which posts are compared: one document per post",
        {
            "_id": typed(["int", "long"], "number derived from the post's `_id`"),
            "post": text("`_id` of the post"),
            "created": time("date of the post"),
            "seen": time("time when the post was first seen"),
            "rank": time("time by which sources are ordered; the earliest is the original's"),
            "source": typed(["int", "long"], "number derived from the feed or host"),
            "at": time("time when the signature was stored"),
            "signature_scheme": text("name and version of the signature scheme"),
            "sketch": typed("binData", "MinHash sketch; 130 or 266 bytes for most texts"),
            "bands": typed(
                "array", "LSH bands that the post owns; a unique index. Absent if Redis has them"
            ),
            "cluster": typed("objectId", "`_id` of the cluster"),
            "item": typed(["int", "long"], "number derived from the post's `item`"),
            "fence": shown("number", "fence number of the visit of the post's target"),
            "page_fence": shown("number", "fence number of the visit of the page of a feed post"),
            "text": shown("binary", "compressed text, only in `check_NAME_signatures`"),
            "text_source": shown("string", "source of that text"),
        },
    ),
    "clusters": validator(
        ["original", "post", "created", "source", "lead", "order"],
        "posts that are near-duplicates of one another: one document per cluster",
        {
            "_id": shown("objectId", "id of the cluster"),
            "original": shown("number", "`_id` of the original in `signatures`"),
            "post": text("`_id` of the original in `posts`"),
            "created": time("date of the original"),
            "source": typed(["int", "long"], "number of the original's source"),
            "lead": typed("array", "sort key by which this source was first"),
            "order": typed("array", "sort key of the original among the posts of its source"),
            "changes": shown_rows(
                "the last 100 changes of the original",
                {
                    "at": shown("time", "time of the change"),
                    "was": shown("string", "`_id` of the former original"),
                    "post": shown("string", "`_id` of the new original"),
                    "why": shown("string", "cause"),
                },
            ),
            "unsettled": shown("boolean", "true if its posts may show the former original"),
            "overtaken": shown(
                "boolean", "true if another source took the lead, until its earliest post is known"
            ),
        },
    ),
    "boilerplate": validator(
        ["revision", "version", "posts", "common", "pending", "at"],
        "text that the posts of a source share, for the 20,000 most recently updated sources",
        {
            "_id": text("spider and feed URL, or spider and host"),
            "posts": typed("array", "the newest 48 posts that were learned from")
            | {
                "items": {
                    "properties": {
                        "post": shown("string", "`_id` of the post"),
                        "marks": shown("binary", "hashes of samples of its text, as uint32"),
                    }
                }
            },
            "common": typed("binData", "hashes that are boilerplate, as uint32, at most 8,192"),
            "pending": typed("array", "posts to compare again")
            | {
                "items": {
                    "properties": {
                        "post": shown("string", "`_id` of the post"),
                        "version": shown("number", "version that it was last compared with"),
                    }
                }
            },
            "version": count("number of changes of `common`"),
            "revision": count("number of changes of the document"),
            "at": time("time of the last change"),
        },
    ),
    "duplicate_labels": validator(
        ["posts", "ids", "same", "flagged", "by", "at"],
        "pairs of posts that people labeled as the same, or as not the same",
        {
            "_id": shown("string", "`_id`s of both posts in `signatures`, in order"),
            "posts": typed("array", "`_id`s of both posts in `posts`")
            | {"items": {"bsonType": "string"}, "minItems": 2, "maxItems": 2},
            "ids": typed("array", "`_id`s of both posts in `signatures`, in the order of `posts`")
            | {"items": {"bsonType": ["int", "long"]}, "minItems": 2, "maxItems": 2},
            "same": typed("bool", "true: the posts are the same; false: they are not"),
            "flagged": typed(
                "bool", "true if the posts were in one cluster when they were first labeled"
            ),
            "similarity": number("estimated Jaccard similarity at that time"),
            "scheme": text("signature scheme at that time"),
            "by": text("name of the user that labeled the pair last"),
            "at": time("time of the last label"),
        },
    ),
}
