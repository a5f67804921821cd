"""One database copied to another server, whole or not at all.

While a copy is made, `meta` of the new database says so, and no command works with it. A copy that
was cut off is begun anew by the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from crawler.config import Config
from crawler.errors import StorageError
from crawler.storage.client import (
    Database,
    Document,
    check_reachable,
    open_client,
    with_database,
    without_password,
)
from crawler.storage.health import TEST
from crawler.storage.indexes import definitions
from crawler.storage.retry import in_short
from crawler.storage.schema import (
    COPYING,
    META,
    VALIDATORS,
    VERSION,
    create_collections,
    create_indexes,
)

Say = Callable[[str], None]
Raw = AsyncCollection[RawBSONDocument]
RAW = CodecOptions(document_class=RawBSONDocument)
BATCH, BATCH_BYTES = 1000, 8 * 1024**2
# Who is at work here says nothing of the copy.
LEASES = "leases"
NAMED = "TO_URI names it"
AGAIN = "what is there is not whole: run the same command again, it begins anew"


@asynccontextmanager
async def target_of(uri: str, config: Config) -> AsyncIterator[Database]:
    """The database that a URI names, as it is. Raises ConfigError and StorageError."""
    uri = with_database(uri, config.database, "TO_URI")
    client = open_client(uri, config)
    try:
        await check_reachable(client, uri, NAMED)
        yield client.get_default_database()
    finally:
        await client.close()


async def copy(source: Database, target: Database, origin: str, say: Say) -> dict[str, int]:
    """Copy everything; how many documents, by collection. Raises StorageError.

    source: brought to this version, and nobody writes to it
    target: without documents, or with what a copy that was cut off left there
    origin: URI of the source, which is told to whoever meets an unfinished copy
    """
    try:
        await _begin(target, without_password(origin))
    except PyMongoError as error:
        raise StorageError(f"database {target.name!r}: {in_short(error)}") from None
    try:
        return await _copy(source, target, say)
    except PyMongoError as error:
        raise StorageError(f"{_why(error)}; {AGAIN}") from None


async def _copy(source: Database, target: Database, say: Say) -> dict[str, int]:
    kept = [one async for one in await source.list_collections(filter=ORDINARY)]
    await create_collections(target)
    for one in kept:
        if one["name"] not in (*VALIDATORS, "meta"):
            await target.create_collection(one["name"], **one.get("options", {}))
    names = sorted(one["name"] for one in kept if one["name"] != LEASES)
    counts = {name: await _copy_collection(source, target, name, say) for name in names}
    say("making the indexes")
    await create_indexes(target)
    await _create_other_indexes(source, target, names)
    say("counting")
    await _verify(source, target, counts)
    await target.meta.replace_one(META, {"version": VERSION}, upsert=True)
    return counts


ORDINARY: Document = {"type": "collection", "name": {"$not": {"$regex": r"^system\."}}}


async def _begin(target: Database, origin: str) -> None:
    """Refuse a database that is in use, remove what a copy left that was cut off, set the mark."""
    names = await target.list_collection_names(filter=ORDINARY)
    meta = await target.meta.find_one(META) or {}
    if COPYING not in meta:
        for name in names:
            query = OF_SOMEBODY if name == "meta" else {}
            if name != LEASES and await target[name].find_one(query, {"_id": 1}) is not None:
                raise StorageError(
                    f"database {target.name!r} is not empty (there are documents in {name}): name "
                    "another, as in mongodb://host/another"
                )
    mark: Document = {"version": VERSION, COPYING: origin}
    await target.meta.replace_one(META, mark, upsert=True)
    # Empty ones too: they would be of another make.
    for name in set(names) - {"meta"}:
        await target.drop_collection(name)
    await target.meta.delete_many({"_id": {"$ne": META["_id"]}})


# Of `meta`: what is there in an empty database that was looked at.
OF_SOMEBODY: Document = {"_id": {"$nin": [META["_id"]], "$not": {"$regex": f"^{TEST} "}}}


async def _copy_collection(source: Database, target: Database, name: str, say: Say) -> int:
    """Copy the documents as they are, byte for byte; how many."""
    total, done = await source[name].estimated_document_count(), 0
    query: Document = {"_id": {"$ne": META["_id"]}} if name == "meta" else {}
    into = target[name].with_options(codec_options=RAW)
    async for batch in _batches(source[name].with_options(codec_options=RAW), query):
        say(f"copying {name}: {done:,} of {total:,}")
        await into.insert_many(batch, ordered=False)
        done += len(batch)
    return done


async def _batches(collection: Raw, query: Document) -> AsyncIterator[list[RawBSONDocument]]:
    batch: list[RawBSONDocument] = []
    size = 0
    async for document in collection.find(query, batch_size=BATCH):
        batch.append(document)
        size += len(document.raw)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _create_other_indexes(source: Database, target: Database, names: Sequence[str]) -> None:
    """Those that are not the schema's: of what is kept of checks, and the user's own."""
    for name in names:
        there = await definitions(target, name)
        wanted = [
            {key: value for key, value in one.items() if key not in ("v", "ns")}
            for known, one in (await definitions(source, name)).items()
            if known not in there
        ]
        if wanted:
            await target.command("createIndexes", name, indexes=wanted)


async def _verify(source: Database, target: Database, counts: dict[str, int]) -> None:
    """Raise StorageError where a collection has not the documents that it should have."""
    for name, copied in counts.items():
        query: Document = {"_id": {"$ne": META["_id"]}} if name == "meta" else {}
        there = await target[name].count_documents(query)
        now = await source[name].count_documents(query)
        if not copied == there == now:
            raise StorageError(
                f"{name}: {copied:,} documents were copied, {there:,} are there, {now:,} are in "
                f"the source now: end what writes to it; {AGAIN}"
            )


def _why(error: PyMongoError) -> str:
    """What went wrong; of a document that is refused, which."""
    if isinstance(error, BulkWriteError) and (problems := error.details.get("writeErrors")):
        first = problems[0]
        return f"document {first['op']['_id']!r} is refused: {first['errmsg']}"
    if isinstance(error, OperationFailure):
        return f"MongoDB: {(error.details or {}).get('errmsg') or in_short(error)}"
    return f"MongoDB: {in_short(error)}"
