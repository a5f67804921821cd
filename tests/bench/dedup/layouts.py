"""Ways to keep posts' features in MongoDB so that a near-duplicate is found.

The paper's three (Lee, Lee, Kim 2010), with MongoDB's B-tree where it has B-trees and R*-trees:

    B6D1   six indexes, one of each feature: a post that comes back twice is a duplicate
    R15D2  fifteen indexes, one of each pair of features: the first hit is one
    R1D3   one index of (pair number, feature, feature): the first hit is one

Each look-up asks one index after the other, as the paper does, and stops as soon as it knows.
Beside them Freshet's own: one index of all bands, which one question asks for all of them.

Each is kept in a scratch collection, which lasts as long as it is measured.
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
from crawler.storage.client import UNJOURNALED, Database, Document
from crawler.storage.retry import in_short

Features = Sequence[int]
Collection = AsyncCollection[Document]
BATCH = 2000


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up came to.

    posts:    ids of posts that are duplicates; the first hit alone where the look-up stops there
    probes:   keys that were looked for in an index, each a way from its root to a leaf
    examined: posts that these keys brought
    """

    posts: list[int]
    probes: int
    examined: int


class Layout(ABC):
    """Six features of each post in a collection; feature i agrees with feature i alone.

    pairs: the pairs (i, j) of features in the order in which they are tried
    """

    name: ClassVar[str]

    def __init__(self, collection: Collection, pairs: Sequence[tuple[int, int]]) -> None:
        self.collection = collection
        self.pairs = pairs
        self.features = range(1 + max(j for _, j in pairs))

    @abstractmethod
    def indexes(self) -> list[IndexModel]:
        """The indexes of the layout."""

    @abstractmethod
    async def find(self, features: Features) -> Found:
        """Posts of which two features agree with these, as far as the scheme looks."""

    def document(self, post: int, features: Features) -> Document:
        """How a post is kept."""
        return {"_id": post} | {f"f{i}": features[i] for i in self.features}

    async def _posts(self, query: Document, index: str, most: int = 0) -> list[int]:
        cursor = self.collection.find(query, {"_id": 1}, limit=most, hint=index)
        return [found["_id"] async for found in cursor]


class B6D1(Layout):
    """Six indexes; what comes back from two of them is a duplicate."""

    name = "B6D1"

    def indexes(self) -> list[IndexModel]:
        """One of each feature."""
        return [IndexModel([(f"f{i}", ASCENDING)], name=f"f{i}") for i in self.features]

    async def find(self, features: Features) -> Found:
        """Ask index after index until a post has come back twice."""
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
    """The first pair of features that a post has too is enough."""

    @abstractmethod
    def asked(self, pair: int, features: Features) -> tuple[Document, str]:
        """What to ask for one pair, and of which index."""

    async def find(self, features: Features) -> Found:
        """Ask for pair after pair until there is a hit."""
        for pair in range(len(self.pairs)):
            query, index = self.asked(pair, features)
            if posts := await self._posts(query, index, most=1):
                return Found(posts, pair + 1, len(posts))
        return Found([], len(self.pairs), 0)


class R15D2(PairLayout):
    """Fifteen indexes, one of each pair."""

    name = "R15D2"

    def indexes(self) -> list[IndexModel]:
        """One of each pair of features."""
        return [
            IndexModel([(f"f{i}", ASCENDING), (f"f{j}", ASCENDING)], name=f"f{i}f{j}")
            for i, j in self.pairs
        ]

    def asked(self, pair: int, features: Features) -> tuple[Document, str]:
        """Both features, of the pair's own index."""
        i, j = self.pairs[pair]
        return {f"f{i}": features[i], f"f{j}": features[j]}, f"f{i}f{j}"


class R1D3(PairLayout):
    """One index of all pairs with their numbers."""

    name = "R1D3"

    def indexes(self) -> list[IndexModel]:
        """One, with a key for each pair of a post."""
        keys = [(f"pairs.{key}", ASCENDING) for key in ("n", "a", "b")]
        return [IndexModel(keys, name="pairs")]

    def document(self, post: int, features: Features) -> Document:
        """The pairs, written out."""
        pairs = [self._pair(pair, features) for pair in range(len(self.pairs))]
        return {"_id": post, "pairs": pairs}

    def asked(self, pair: int, features: Features) -> tuple[Document, str]:
        """One pair in all its parts."""
        return {"pairs": {"$elemMatch": self._pair(pair, features)}}, "pairs"

    def _pair(self, pair: int, features: Features) -> Document:
        i, j = self.pairs[pair]
        return {"n": pair, "a": features[i], "b": features[j]}


class Bands:
    """As Freshet keeps sketches: each band has one owner, and one question asks for all bands."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def indexes(self) -> list[IndexModel]:
        """One, unique: of two posts with a band the first has it."""
        return [IndexModel([("bands", ASCENDING)], name="bands", unique=True, sparse=True)]

    def document(self, post: int, bands: Features, sketch: bytes) -> Document:
        """How a post is kept that owns these bands."""
        return {"_id": post, "sketch": sketch} | ({"bands": bands} if bands else {})

    async def owners(self, bands: Features) -> list[tuple[int, bytes]]:
        """Posts that own any of these bands, with their sketches."""
        query = {"bands": {"$in": bands}}
        cursor = self.collection.find(query, {"sketch": 1}, hint="bands")
        return [(found["_id"], bytes(found["sketch"])) async for found in cursor]


LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in (B6D1, R15D2, R1D3)}


@asynccontextmanager
async def scratch(db: Database, name: str) -> AsyncIterator[Collection]:
    """An empty collection of this process, gone afterwards. Raises StorageError for what fails.

    What is written to it is worth nothing, so it does not wait for the journal.
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
    """What fails is a StorageError."""
    try:
        yield
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {in_short(error)}") from None


async def fill(collection: Collection, documents: Iterable[Document]) -> AsyncIterator[int]:
    """Store documents in batches; how many there are after each."""
    rest, done = iter(documents), 0
    while batch := list(islice(rest, BATCH)):
        await _written(collection, collection.insert_many(batch, ordered=False))
        yield (done := done + len(batch))


async def create_indexes(collection: Collection, indexes: list[IndexModel]) -> None:
    """Index what is there."""
    await _written(collection, collection.create_indexes(indexes))


async def _written(collection: Collection, write: Coroutine[Any, Any, object]) -> None:
    """Wait for a write to end, even where the wait is interrupted.

    The server goes on with a write whose client has left, and would create the collection again
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
    """Bytes of all indexes but that of `_id`, as they lie on the disk."""
    database = collection.database
    # Not everybody may ask for it; sizes are then those of the last checkpoint.
    with suppress(OperationFailure):
        await database.client.admin.command("fsync")
    sizes: dict[str, int] = (await database.command("collStats", collection.name))["indexSizes"]
    return sum(size for name, size in sizes.items() if name != "_id_")


async def ping_seconds(db: Database) -> float:
    """Time of a command that does nothing: what the way to the server and back takes."""
    start = time.perf_counter()
    await db.command("ping")
    return time.perf_counter() - start
