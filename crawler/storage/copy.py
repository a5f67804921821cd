"""Copy a database to another server.

While the copy runs, `meta` of the new database has a mark, and no command opens that database.
After an interrupted copy, the next one starts from scratch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
from crawler.storage.health import index_definitions
from crawler.storage.outages import in_batches_by_size, in_short
from crawler.storage.schema import COPYING, create_collections, create_indexes
from crawler.storage.transfer import (
    BATCH,
    BATCH_BYTES,
    LEASES,
    ORDINARY,
    RAW,
    Say,
    collection_in_use,
)
from crawler.storage.validators import VALIDATORS
from crawler.storage.version import META, VERSION

RETRY_HINT = "the copy is incomplete. Run the same command again to start over"


@asynccontextmanager
async def target_of(uri: str, config: Config) -> AsyncIterator[Database]:
    """Open the database that a URI names. Raises ConfigError and StorageError."""
    uri = with_database(uri, config.database, "TO_URI")
    client = open_client(uri, config)
    try:
        await check_reachable(client, uri, "Check TO_URI")
        yield client.get_default_database()
    finally:
        await client.close()


async def copy(source: Database, target: Database, origin: str, say: Say) -> dict[str, int]:
    """Copy all documents; return their number by collection. Raises StorageError.

    source: migrated to the current version, without writers
    target: empty, or with the remains of an interrupted copy
    origin: URI of the source, for the error message about an unfinished copy
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
                    f"{name}: {copied:,} documents were copied, the copy has {there:,}, the source "
                    f"now has {now:,}. Stop all processes that write to the source; {RETRY_HINT}"
                )
        await target.meta.replace_one(META, {"version": VERSION}, upsert=True)
        return counts
    except PyMongoError as error:
        reason = in_short(error)
        if isinstance(error, BulkWriteError) and (problems := error.details.get("writeErrors")):
            problem = problems[0]
            message = f"document {problem['op']['_id']!r} was rejected: {problem['errmsg']}"
        elif isinstance(error, OperationFailure):
            message = f"MongoDB: {(error.details or {}).get('errmsg') or reason}"
        else:
            message = f"MongoDB: {reason}"
        raise StorageError(f"{message}; {RETRY_HINT}") from None


async def _prepare(target: Database, origin: str) -> None:
    """Reject a database that is in use, remove the remains of a copy, and set the mark."""
    names = await target.list_collection_names(filter=ORDINARY)
    meta = await target.meta.find_one(META) or {}
    if COPYING not in meta and (used := await collection_in_use(target)) is not None:
        raise StorageError(
            f"database {target.name!r} is not empty: it has documents in {used}. Name another "
            "database, such as mongodb://host/another"
        )
    mark: Document = {"version": VERSION, COPYING: origin}
    await target.meta.replace_one(META, mark, upsert=True)
    # Includes empty collections, which may have other options and indexes.
    for name in set(names) - {"meta"}:
        await target.drop_collection(name)
    await target.meta.delete_many({"_id": {"$ne": META["_id"]}})


async def _copy_collections(source: Database, target: Database, say: Say) -> dict[str, int]:
    """Copy documents byte for byte, then indexes; return counts by collection."""
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
    say("creating the indexes")
    await create_indexes(target)
    for name in counts:
        # Indexes outside the schema: of named duplicate checks, and the user's own.
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
    """Return a query for the documents to copy, which excludes the source's version."""
    return {"_id": {"$ne": META["_id"]}} if collection == "meta" else {}
