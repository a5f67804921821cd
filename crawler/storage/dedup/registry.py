"""The index of sketches: its collections, its scheme, and Redis where that claims bands."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bson import ObjectId
from pymongo import ASCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection

from crawler.dedup.model import Candidate, Claim
from crawler.storage.client import UNHURRIED, Database, Document

if TYPE_CHECKING:
    from crawler.dedup.boilerplate import Table
    from crawler.dedup.scheme import Scheme

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

Member = tuple[Candidate, ObjectId]


class HotBands:
    """The latest bands that a unique index refused; memory is bounded."""

    def __init__(self) -> None:
        self._bands: OrderedDict[int, None] = OrderedDict()

    def add(self, bands: Iterable[int]) -> None:
        """Bands that have owners."""
        for band in bands:
            self._bands[band] = None
            self._bands.move_to_end(band)
        while len(self._bands) > MAX_HOT_BANDS:
            self._bands.popitem(last=False)

    def discard(self, bands: Iterable[int]) -> None:
        """Bands that have none."""
        for band in bands:
            self._bands.pop(band, None)

    def any(self, bands: frozenset[int]) -> bool:
        """Whether one of these was refused."""
        return not self._bands.keys().isdisjoint(bands)


class Bands(Protocol):
    """Claims bands in place of MongoDB's unique index; what it holds can be made anew."""

    async def claim(self, batch: Sequence[Claim], threshold: float) -> list[bytes]:
        """The cluster of each post: that of what it is a duplicate of, else the one it founds."""

    async def put(self, batch: Sequence[Claim]) -> None:
        """Claim bands for posts whose clusters are known."""

    async def release(self, batch: Sequence[Claim]) -> None:
        """Free the bands that these posts own."""


@dataclass(frozen=True, slots=True)
class Registry:
    """An index of sketches.

    shared:      claims bands in Redis; None: MongoDB does
    boilerplate: what is known of sources; None: nothing is learned
    date_days:   how many days before a post is first seen its date may move it among sources
    read_again:  those of these posts that are stored, as they are compared; None: none is kept
    keeps_texts: with the signatures, as there are no posts
    tables:      of the sources that were used lately
    """

    signatures: AsyncCollection[Document]
    clusters: AsyncCollection[Document]
    scheme: Scheme
    shared: Bands | None = None
    date_days: float = DATE_DAYS
    boilerplate: AsyncCollection[Document] | None = None
    read_again: Callable[[Sequence[str]], Awaitable[list[Candidate]]] | None = None
    keeps_texts: bool = False
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
        """The index of the database's posts; a claim is in the journal with the post after it."""
        claims, clusters = (
            db.get_collection(name, write_concern=UNHURRIED) for name in ("signatures", "clusters")
        )
        # Commands that only count targets start faster without numpy.
        from crawler.storage.dedup.candidates import candidates_of

        if not scheme.weighs:
            return cls(claims, clusters, scheme, shared, date_days)
        boilerplate = db.get_collection("boilerplate", write_concern=UNHURRIED)
        again = partial(candidates_of, db, scheme)
        return cls(claims, clusters, scheme, shared, date_days, boilerplate, again)

    async def create_indexes(self) -> None:
        """The indexes of an index that is not the posts'; theirs come with the schema."""
        await self.signatures.create_indexes(SIGNATURE_INDEXES)
        await self.clusters.create_indexes(CLUSTER_INDEXES)
        if self.boilerplate is not None:
            await self.boilerplate.create_indexes(BOILERPLATE_INDEXES)
