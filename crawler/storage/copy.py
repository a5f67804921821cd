"""Copy one database to another server, whole or not at all.

While a copy is made, `meta` of the new database is marked, and no command works with it. After an
interrupted copy the next one starts from scratch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
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
from crawler.storage.health import TEST, index_definitions
from crawler.storage.retry import in_batches_by_size, in_short
from crawler.storage.schema import (
    COPYING,
    META,
    VALIDATORS,
    VERSION,
    create_collections,
    create_indexes,
)

Say = Callable[[str], None]
RAW = CodecOptions(document_class=RawBSONDocument)
BATCH, BATCH_BYTES = 1000, 8 * 1024**2
ORDINARY: Document = {"type": "collection", "name": {"$not": {"$regex": r"^system\."}}}
# Running processes of either database do not matter to the copy.
LEASES = "leases"
# Documents of `meta` in a database that is in use: each database that a command has opened has its
# version there, and one that was tested may have documents of the test.
META_IN_USE: Document = {"_id": {"$nin": [META["_id"]], "$not": {"$regex": f"^{TEST} "}}}
RETRY_HINT = "what is there is not whole: run the same command again, it begins anew"


@asynccontextmanager
async def target_of(uri: str, config: Config) -> AsyncIterator[Database]:
    """The database that a URI names, as it is. Raises ConfigError and StorageError."""
    uri = with_database(uri, config.database, "TO_URI")
    client = open_client(uri, config)
    try:
        await check_reachable(client, uri, "TO_URI names it")
        yield client.get_default_database()
    finally:
        await client.close()


async def copy(source: Database, target: Database, origin: str, say: Say) -> dict[str, int]:
    """Copy everything; the number of documents by collection. Raises StorageError.

    source: migrated to this version, and without writers
    target: empty, or with the remains of an interrupted copy
    origin: URI of the source, for the message that an unfinished copy causes
    """
    try:
        await _prepare(target, without_password(origin))
    except PyMongoError as error:
        raise StorageError(f"database {target.name!r}: {in_short(error)}") from None
    try:
        counts = await _copy_collections(source, target, say)
        say("counting")
        for name, copied in counts.items():
            query = _to_copy(name)
            there = await target[name].count_documents(query)
            now = await source[name].count_documents(query)
            if not copied == there == now:
                raise StorageError(
                    f"{name}: {copied:,} documents were copied, {there:,} are there, {now:,} are "
                    f"in the source now: end what writes to it; {RETRY_HINT}"
                )
        await target.meta.replace_one(META, {"version": VERSION}, upsert=True)
        return counts
    except PyMongoError as error:
        reason = in_short(error)
        if isinstance(error, BulkWriteError) and (problems := error.details.get("writeErrors")):
            problem = problems[0]
            message = f"document {problem['op']['_id']!r} is refused: {problem['errmsg']}"
        elif isinstance(error, OperationFailure):
            message = f"MongoDB: {(error.details or {}).get('errmsg') or reason}"
        else:
            message = f"MongoDB: {reason}"
        raise StorageError(f"{message}; {RETRY_HINT}") from None


async def _prepare(target: Database, origin: str) -> None:
    """Reject a database that is in use, remove the remains of a copy, and set the mark."""
    names = await target.list_collection_names(filter=ORDINARY)
    meta = await target.meta.find_one(META) or {}
    if COPYING not in meta:
        for name in names:
            query = META_IN_USE if name == "meta" else {}
            if name != LEASES and await target[name].find_one(query, {"_id": 1}) is not None:
                raise StorageError(
                    f"database {target.name!r} is not empty (there are documents in {name}): name "
                    "another, as in mongodb://host/another"
                )
    mark: Document = {"version": VERSION, COPYING: origin}
    await target.meta.replace_one(META, mark, upsert=True)
    # Empty collections too: they may have other options and indexes.
    for name in set(names) - {"meta"}:
        await target.drop_collection(name)
    await target.meta.delete_many({"_id": {"$ne": META["_id"]}})


async def _copy_collections(source: Database, target: Database, say: Say) -> dict[str, int]:
    """Copy documents byte for byte, then indexes; the number of documents by collection."""
    collections = [row async for row in await source.list_collections(filter=ORDINARY)]
    await create_collections(target)
    for collection in collections:
        if collection["name"] not in (*VALIDATORS, "meta"):
            options = collection.get("options", {})
            await target.create_collection(collection["name"], **options)
    counts: dict[str, int] = {}
    for name in sorted(row["name"] for row in collections if row["name"] != LEASES):
        total, counts[name] = await source[name].estimated_document_count(), 0
        into = target[name].with_options(codec_options=RAW)
        raw = source[name].with_options(codec_options=RAW)
        documents = raw.find(_to_copy(name), batch_size=BATCH)
        async for batch in in_batches_by_size(
            documents, lambda document: len(document.raw), BATCH, BATCH_BYTES
        ):
            say(f"copying {name}: {counts[name]:,} of {total:,}")
            await into.insert_many(batch, ordered=False)
            counts[name] += len(batch)
    say("making the indexes")
    await create_indexes(target)
    for name in counts:
        # Those that the schema does not have: of named checks, and the user's own.
        existing = await index_definitions(target, name)
        missing = [
            {key: value for key, value in index.items() if key not in ("v", "ns")}
            for index_name, index in (await index_definitions(source, name)).items()
            if index_name not in existing
        ]
        if missing:
            await target.command("createIndexes", name, indexes=missing)
    return counts


def _to_copy(collection: str) -> Document:
    """A query for the documents to copy; the source's version is not among them."""
    return {"_id": {"$ne": META["_id"]}} if collection == "meta" else {}
