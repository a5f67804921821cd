"""Layouts of posts' features in MongoDB for finding near-duplicates.

The paper's three (Lee, Lee, Kim 2010), with MongoDB's B-tree in place of B-trees and R*-trees:

B6D1   six indexes, one per feature: a post found in two indexes is a duplicate
R15D2  fifteen indexes, one per pair of features: the first hit is a duplicate
R1D3   one index of (pair number, feature, feature): the first hit is a duplicate

As in the paper, a lookup queries one index after the other and stops when the result is certain.
For comparison, there is Freshet's own layout: one index of all bands, searched in one query.

Each layout is stored in a scratch collection, which is dropped after the measurement.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from pymongo import ASCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError

from crawler.errors import StorageError
from crawler.storage.client import UNJOURNALED, Database, Document, in_short

Features = Sequence[int]
Collection = AsyncCollection[Document]
BATCH = 2000


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a lookup.

    posts:    IDs of duplicate posts; only the first hit if the lookup stops there
    probes:   number of keys searched in an index, each a path from the root to a leaf
    examined: number of posts found by these keys
    """

    posts: list[int]
    probes: int
    examined: int


class Layout(ABC):
    """Six features of each post in a collection; feature i matches only feature i.

    pairs: the pairs (i, j) of features in the order of the search
    """

    name: ClassVar[str]

    def __init__(self, collection: Collection, pairs: Sequence[tuple[int, int]]) -> None:
        self.collection = collection
        self.pairs = pairs
        self.features = range(1 + max(j for _, j in pairs))

    @abstractmethod
    def indexes(self) -> list[IndexModel]:
        """Return the indexes of the layout."""

    @abstractmethod
    async def find(self, features: Features) -> Found:
        """Find posts that share two features with these, until the layout's search stops."""

    def document(self, post: int, features: Features) -> Document:
        """Return the document of a post."""
        return {"_id": post} | {f"f{i}": features[i] for i in self.features}

    async def _posts(self, query: Document, index: str, most: int = 0) -> list[int]:
        cursor = self.collection.find(query, {"_id": 1}, limit=most, hint=index)
        return [row["_id"] async for row in cursor]


class B6D1(Layout):
    """Six indexes; a post found in two of them is a duplicate."""

    name = "B6D1"

    def indexes(self) -> list[IndexModel]:
        """Return one index per feature."""
        return [IndexModel([(f"f{i}", ASCENDING)], name=f"f{i}") for i in self.features]

    async def find(self, features: Features) -> Found:
        """Query index after index until a post is found twice."""
        seen: set[int] = set()
        examined = 0
        for i in self.features:
            posts = await self._posts({f"f{i}": features[i]}, f"f{i}")
            examined += len(posts)
            if again := seen.intersection(posts):
                return Found(sorted(again), i + 1, examined)
            seen.update(posts)
        return Found([], len(self.features), examined)


class PairLayout(Layout):
    """A layout in which the first shared pair of features makes a duplicate."""

    @abstractmethod
    def query_of(self, pair: int, features: Features) -> tuple[Document, str]:
        """Return the query for a pair, and the index to use."""

    async def find(self, features: Features) -> Found:
        """Query pair after pair until there is a hit."""
        for pair in range(len(self.pairs)):
            query, index = self.query_of(pair, features)
            if posts := await self._posts(query, index, most=1):
                return Found(posts, pair + 1, len(posts))
        return Found([], len(self.pairs), 0)


class R15D2(PairLayout):
    """Fifteen indexes, one per pair."""

    name = "R15D2"

    def indexes(self) -> list[IndexModel]:
        """Return one index per pair of features."""
        return [
            IndexModel([(f"f{i}", ASCENDING), (f"f{j}", ASCENDING)], name=f"f{i}f{j}")
            for i, j in self.pairs
        ]

    def query_of(self, pair: int, features: Features) -> tuple[Document, str]:
        """Return a query for both features, and the pair's own index."""
        i, j = self.pairs[pair]
        return {f"f{i}": features[i], f"f{j}": features[j]}, f"f{i}f{j}"


class R1D3(PairLayout):
    """One index of all pairs with their numbers."""

    name = "R1D3"

    def indexes(self) -> list[IndexModel]:
        """Return one index, with a key for each pair of a post."""
        keys = [(f"pairs.{key}", ASCENDING) for key in ("n", "a", "b")]
        return [IndexModel(keys, name="pairs")]

    def document(self, post: int, features: Features) -> Document:
        """Return the document with all pairs."""
        pairs = [self._pair(pair, features) for pair in range(len(self.pairs))]
        return {"_id": post, "pairs": pairs}

    def query_of(self, pair: int, features: Features) -> tuple[Document, str]:
        """Return a query for a pair with its number."""
        return {"pairs": {"$elemMatch": self._pair(pair, features)}}, "pairs"

    def _pair(self, pair: int, features: Features) -> Document:
        i, j = self.pairs[pair]
        return {"n": pair, "a": features[i], "b": features[j]}


class Bands:
    """Freshet's layout for sketches: each band has one owner, and one query searches all bands."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def indexes(self) -> list[IndexModel]:
        """Return one unique index: the first post with a band owns it."""
        return [IndexModel([("bands", ASCENDING)], name="bands", unique=True, sparse=True)]

    def document(self, post: int, bands: Features, sketch: bytes) -> Document:
        """Return the document of a post that owns these bands."""
        return {"_id": post, "sketch": sketch} | ({"bands": bands} if bands else {})

    async def owners(self, bands: Features) -> list[tuple[int, bytes]]:
        """Return the posts that own any of these bands, with their sketches."""
        query = {"bands": {"$in": bands}}
        cursor = self.collection.find(query, {"sketch": 1}, hint="bands")
        return [(row["_id"], bytes(row["sketch"])) async for row in cursor]


LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in (B6D1, R15D2, R1D3)}


@asynccontextmanager
async def scratch(db: Database, name: str) -> AsyncIterator[Collection]:
    """Create an empty collection for this process and drop it at the end. Raises StorageError.

    Its data is disposable, so writes do not wait for the journal.
    """
    name = f"duplicates_bench_{os.getpid()}_{name}"
    collection = db.get_collection(name, write_concern=UNJOURNALED)
    with explained():
        await collection.drop()
        try:
            yield collection
        finally:
            await collection.drop()


@contextmanager
def explained() -> Iterator[None]:
    """Convert MongoDB's errors to StorageError."""
    try:
        yield
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {in_short(error)}") from None


async def fill(collection: Collection, documents: Iterable[Document]) -> AsyncIterator[int]:
    """Store documents in batches; yield the number of documents after each batch."""
    rest, done = iter(documents), 0
    while batch := list(islice(rest, BATCH)):
        await _written(collection, collection.insert_many(batch, ordered=False))
        yield (done := done + len(batch))


async def create_indexes(collection: Collection, indexes: list[IndexModel]) -> None:
    """Create the indexes on the stored documents."""
    await _written(collection, collection.create_indexes(indexes))


async def _written(collection: Collection, write: Coroutine[Any, Any, object]) -> None:
    """Wait for a write to end, even if the wait is interrupted.

    The server continues a write after its client disconnects, and would recreate the collection
    after it was dropped. A drop ends the creation of indexes, which may take minutes.
    """
    task = asyncio.ensure_future(write)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await collection.drop()
        with suppress(PyMongoError):
            await task
        raise


async def index_bytes(collection: Collection) -> int:
    """Return the bytes on disk of all indexes except that of `_id`."""
    database = collection.database
    # Not every user may run fsync; sizes are then those of the last checkpoint.
    with suppress(OperationFailure):
        await database.client.admin.command("fsync")
    sizes: dict[str, int] = (await database.command("collStats", collection.name))["indexSizes"]
    return sum(size for name, size in sizes.items() if name != "_id_")


async def ping_seconds(db: Database) -> float:
    """Return the round-trip time of a no-op command."""
    start = time.perf_counter()
    await db.command("ping")
    return time.perf_counter() - start
