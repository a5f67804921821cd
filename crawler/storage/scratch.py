"""Collections that last as long as an experiment, and what can be measured of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from typing import Any

from pymongo import IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError

from crawler.errors import StorageError
from crawler.storage.client import UNHURRIED, Database, Document
from crawler.storage.retry import in_short

Collection = AsyncCollection[Document]
BATCH = 2000


@asynccontextmanager
async def scratch(db: Database, name: str) -> AsyncIterator[Collection]:
    """An empty collection of this process, gone afterwards. Raises StorageError for what fails.

    What is written to it is worth nothing, so it does not wait for the journal.
    """
    name = f"duplicates_bench_{os.getpid()}_{name}"
    collection = db.get_collection(name, write_concern=UNHURRIED)
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
