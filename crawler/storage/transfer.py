"""Whole collections, to replace a database byte for byte, and to export in order.

A restore first loads every collection under a temporary name, next to the current data, with the
validators and indexes of the schema. It never uses those of the file: an index that deletes old
documents would delete the log. Then it sets a mark in `meta` and renames the collections. An
interrupted load leaves the current data unchanged; an interrupted renaming is completed by the next
command that opens the database, because all new data is already there (`schema.complete_restore`).

Documents of an export are decoded with naive times in UTC, which takes a third of the time of aware
ones.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING
from pymongo.errors import BulkWriteError, CollectionInvalid, OperationFailure, PyMongoError

from crawler.config import Config
from crawler.errors import Busy, ServerError, StorageError
from crawler.storage import leases, runs, targets
from crawler.storage.client import (
    META,
    VERSION,
    Database,
    Document,
    in_async_batches,
    in_batches,
    in_short,
)
from crawler.storage.dedup.signatures import (
    BOILERPLATE_INDEXES,
    CLUSTER_INDEXES,
    SIGNATURE_INDEXES,
)
from crawler.storage.paging import keys_of
from crawler.storage.schema import (
    INDEXES,
    RESTORED,
    RESTORING,
    TEST,
    VALIDATORS,
    collection_options,
    complete_restore,
    create_indexes,
    index_definitions,
    prepare,
    restore_mark,
)
from crawler.utils.process import Say
from crawler.utils.time import start_of_day, steady_seconds

RAW = CodecOptions(document_class=RawBSONDocument)
BATCH, BATCH_BYTES = 1000, 8 * 1024**2
# Collections with data: neither MongoDB's own, nor those of an unfinished restore.
ORDINARY: Document = {
    "type": "collection", "name": {"$not": {"$regex": rf"^(system\.|{RESTORED})"}},
}  # fmt: skip
# Leases belong to running processes, not to the data.
LEASES = "leases"
# Documents of `meta` that show that a database is in use. Every opened database has its version
# there, and `scrapy doctor` may have left test documents.
META_IN_USE: Document = {"_id": {"$nin": [META["_id"]], "$not": {"$regex": f"^{TEST} "}}}
# Options of a collection outside the schema that a restore creates again.
OPTIONS = ("validator", "validationLevel", "validationAction", "capped", "size", "max", "collation")
# Maximum number of documents in a batch of an export; the server also limits a batch to 16 MB.
EXPORT_BATCH = 10_000
# Interval of checks whether a crawl has ended.
WAIT_POLL_SECONDS = 0.5
DAY = timedelta(days=1)
FIRST_DAY = datetime.min.replace(tzinfo=UTC)
SIZE_BYTES = 4
# Times that Python cannot represent become its first or last time.
NAIVE: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_CLAMP)


@dataclass(frozen=True, slots=True)
class Shape:
    """A collection without its documents.

    options: of a collection outside the schema, else empty
    indexes: names of indexes outside the schema, which a restore does not create
    """

    name: str
    options: Document
    indexes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Contents:
    """A collection of a backup.

    documents: number of documents
    sha256:    digest of the documents' BSON, one after the other
    """

    shape: Shape
    documents: int
    sha256: str


@asynccontextmanager
async def writers_locked_out(
    db: Database, config: Config, wait_seconds: float = 0.0, say: Say = lambda _: None
) -> AsyncIterator[None]:
    """Keep crawls, replans and rebuilds from starting during a block, on any machine.

    wait_seconds: time to wait until those that are running have ended; meanwhile, none of the
                  others starts

    Raises ServerError if one of them is still running.
    """
    deadline = steady_seconds() + wait_seconds
    spiders = sorted({str(name) for name in (*await runs.spiders(db), *await targets.spiders(db))})
    writers = {f"{leases.CRAWL}{name}": f"{name} is being crawled" for name in spiders}
    for name in (leases.REPLAN, leases.REBUILD, leases.PUSH):
        writers[name] = f"{name} is running"
    # A restore opens a new or damaged database without creating its collections.
    with suppress(CollectionInvalid):
        await db.create_collection(LEASES, **collection_options(LEASES))
    async with AsyncExitStack() as stack:
        try:
            for lease, message in writers.items():
                while True:
                    try:
                        await stack.enter_async_context(leases.held(db, config, lease, message))
                        break
                    except Busy:
                        if steady_seconds() >= deadline:
                            raise
                    say(f"waiting: {message}")
                    await asyncio.sleep(WAIT_POLL_SECONDS)
        except Busy as busy:
            raise ServerError(
                f"{busy.without_ending}. Wait until it has finished, or stop it"
            ) from None
        yield


async def collection_in_use(db: Database) -> str | None:
    """Return the name of a collection with data; None if the database has no data."""
    for name in sorted(await db.list_collection_names(filter=ORDINARY)):
        query = META_IN_USE if name == "meta" else {}
        if name != LEASES and await db[name].find_one(query, {"_id": 1}) is not None:
            return name
    return None


async def shapes(db: Database) -> list[Shape]:
    """Return the collections with data, in the order of their names; views are left out."""
    return [
        Shape(
            row["name"],
            {
                key: row["options"][key]
                for key in OPTIONS
                if key in row.get("options", {}) and row["name"] not in VALIDATORS
            },
            sorted((await index_definitions(db, row["name"])).keys() - _names_of(row["name"])),
        )
        for row in sorted(
            [row async for row in await db.list_collections(filter=ORDINARY)],
            key=lambda row: str(row["name"]),
        )
        if row["name"] != LEASES
    ]


def _names_of(collection: str) -> set[str]:
    """Return the names of the indexes that Freshet creates itself."""
    # The collections of a check of duplicates in progress have no fixed names.
    own = INDEXES.get(collection, [*SIGNATURE_INDEXES, *CLUSTER_INDEXES, *BOILERPLATE_INDEXES])
    return {index.document["name"] for index in own}


async def documents(db: Database, name: str) -> AsyncIterator[list[bytes]]:
    """Yield batches of the documents of a collection as BSON, in the order of insertion.

    Raises StorageError.
    """
    raw = db[name].with_options(codec_options=RAW)
    cursor = raw.find({}, batch_size=BATCH).sort("$natural", 1)
    try:
        async for batch in in_async_batches(
            cursor, BATCH, lambda document: len(document.raw), BATCH_BYTES
        ):
            yield [bytes(document.raw) for document in batch]
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {name}: {in_short(error)}") from None


async def replace_all(
    db: Database,
    origin: str,
    version: int,
    contents: Sequence[Contents],
    read: Callable[[str], Iterable[list[bytes]]],
    say: Say,
) -> None:
    """Replace all data of a database, or leave it unchanged and raise StorageError.

    origin:   name of the backup, for messages about an unfinished restore
    version:  version of the new data
    contents: the new collections; `meta` is one of them
    read:     yields batches of the documents of a collection as BSON
    """
    try:
        # The collections of an interrupted restore are the current data.
        if (mark := restore_mark(await db.meta.find_one(META))) is not None:
            await complete_restore(db, mark)
        await drop_remains(db)
        try:
            for number, collection in enumerate(contents, start=1):
                name = collection.shape.name
                say(f"restoring {name} ({number} of {len(contents)})")
                await _load(db, collection, read(name), say, is_valid=version == VERSION)
            # Other collections of the schema are replaced with empty ones, not dropped: another
            # command may already have created them again.
            for name in sorted(VALIDATORS.keys() - {each.shape.name for each in contents}):
                if name != LEASES:
                    await db.create_collection(RESTORED + name, **collection_options(name))
            # `meta` of the backup may have the mark of another restore.
            await db[RESTORED + "meta"].replace_one(META, {"version": version}, upsert=True)
            say("creating the indexes")
            await create_indexes(db, RESTORED)
        except BaseException:
            await drop_remains(db)
            raise
    except PyMongoError as error:
        raise StorageError(f"{_reason(error)}; the database is unchanged") from None
    except BSONError as error:
        raise StorageError(f"invalid BSON: {error}; the database is unchanged") from None
    say("switching to the restored data")
    try:
        await _switch(db, origin)
    except PyMongoError as error:
        raise StorageError(
            f"{_reason(error)}; the restore is incomplete. The next command that opens "
            "the database completes it, such as scrapy targets"
        ) from None


async def drop_remains(db: Database) -> None:
    """Drop what an interrupted load left behind. The current data is unchanged."""
    for name in await db.list_collection_names(filter={"name": {"$regex": f"^{RESTORED}"}}):
        await db.drop_collection(name)


async def _load(
    db: Database, collection: Contents, batches: Iterable[list[bytes]], say: Say, *, is_valid: bool
) -> None:
    """Store a collection under its temporary name, and check that it can be read back.

    is_valid: documents must match the validator; those of older data need not
    """
    shape = collection.shape
    options: Document = {key: value for key, value in shape.options.items() if key in OPTIONS}
    if shape.name in VALIDATORS:
        options = collection_options(shape.name)
    into = await db.create_collection(RESTORED + shape.name, **options)
    raw, loaded = into.with_options(codec_options=RAW), 0
    bypasses = shape.name not in VALIDATORS or not is_valid
    for batch in batches:
        documents_of_batch = map(RawBSONDocument, batch)
        await raw.insert_many(documents_of_batch, bypass_document_validation=bypasses)
        loaded += len(batch)
        say(f"restoring {shape.name}: {loaded:,} of {collection.documents:,}")
    digest, stored = hashlib.sha256(), 0
    async for batch in documents(db, RESTORED + shape.name):
        stored += len(batch)
        for document in batch:
            digest.update(document)
        say(f"checking {shape.name}: {stored:,} of {collection.documents:,}")
    if (stored, digest.hexdigest()) != (collection.documents, collection.sha256):
        raise StorageError(
            f"{shape.name}: MongoDB returned documents that differ from those stored. "
            "Check its disk with scrapy doctor; the database is unchanged"
        )


async def _switch(db: Database, origin: str) -> None:
    """Mark the restored collections as the data of this database, and rename them.

    `meta` is the last collection to be renamed, and its replacement has a valid version. So any
    command can complete this, and later open the database.
    """
    names = await db.list_collection_names(filter={"name": {"$regex": f"^{RESTORED}"}})
    restored = sorted(name.removeprefix(RESTORED) for name in names)
    current = await db.list_collection_names(filter=ORDINARY)
    mark = {
        "from": origin,
        "collections": [name for name in restored if name != "meta"],
        "dropped": sorted(set(current) - {*restored, LEASES, "meta"}),
    }
    # From here on, the restore is completed even if this process ends.
    await db.meta.update_one(META, {"$set": {RESTORING: mark}}, upsert=True)
    await complete_restore(db, mark)
    await prepare(db)


def _reason(error: PyMongoError) -> str:
    """Return one line about a failed write."""
    if isinstance(error, BulkWriteError) and (problems := error.details.get("writeErrors")):
        return f"document {problems[0]['op']['_id']!r} was rejected: {problems[0]['errmsg']}"
    if isinstance(error, OperationFailure):
        return f"MongoDB: {(error.details or {}).get('errmsg') or in_short(error)}"
    return f"MongoDB: {in_short(error)}"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a collection.

    spider: only documents of this spider; None: of all spiders
    time:   field of the times `since` (inclusive) and `until` (exclusive), by which the documents
            are ordered; None: all documents, ordered by `_id`
    """

    spider: str | None
    time: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def query(self) -> Document:
        """Return the query for the documents."""
        query: Document = {} if self.spider is None else {"spider": self.spider}
        limits = {"$gte": self.since, "$lt": self.until}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        if self.time is not None and limits:
            query[self.time] = limits
        elif self.time is None and self.spider is not None:
            # These `_id`s begin with the spider and a space. The index has them in order.
            query["_id"] = keys_of(self.spider)
        return query

    @property
    def order(self) -> list[tuple[str, int]]:
        """Return the sort order, which is complete, so that the same data is read the same way."""
        times = [] if self.time is None else [(self.time, ASCENDING)]
        return [*times, ("_id", ASCENDING)]


async def spiders_of(db: Database, collection: str) -> list[str]:
    """Return the names of the spiders that have documents in a collection."""
    return sorted(await db[collection].distinct("spider"))


async def count_by_day(
    db: Database, collection: str, spider: str, time: str, since: datetime | None
) -> dict[date, int]:
    """Return the number of a spider's documents for each UTC day with documents, in order.

    since: start of the first day; None: all days

    Only the index of spider and time is read. Counting its keys day by day takes a third of the
    time of grouping them.
    """
    counts: dict[date, int] = {}
    start = since or FIRST_DAY
    while True:
        later = Span(spider, time, start)
        nearest = await db[collection].find_one(later.query, {time: 1}, sort=later.order[:1])
        if nearest is None:
            return counts
        start = start_of_day(nearest[time])
        count = 1
        while count:
            until = start + DAY
            count = await db[collection].count_documents(Span(spider, time, start, until).query)
            if count:
                counts[start.date()] = count
            start = until


async def count_after(db: Database, collection: str, span: Span, time: str) -> int:
    """Return the number of documents of a span after a time in ISO format, by an index only."""
    assert span.time is not None
    later = {span.time: {"$gt": datetime.fromisoformat(time)}}
    return await db[collection].count_documents({"$and": [span.query, later]})


async def stored_keys(db: Database, collection: str, keys: Sequence[Any]) -> set[Any]:
    """Return those of some `_id`s that are stored."""
    stored: set[Any] = set()
    for some in in_batches(keys, EXPORT_BATCH):
        cursor = db[collection].find({"_id": {"$in": some}}, {"_id": 1})
        stored.update([row["_id"] async for row in cursor])
    return stored


async def read_raw(
    db: Database, collection: str, span: Span, fields: Sequence[str]
) -> AsyncIterator[bytes]:
    """Yield the documents of a span in order, in batches of concatenated BSON.

    Without an index in this order, the server sorts, on disk if the data does not fit into memory.
    """
    cursor = db[collection].find_raw_batches(
        span.query,
        dict.fromkeys(fields, 1),
        sort=span.order,
        batch_size=EXPORT_BATCH,
        allow_disk_use=True,
    )
    async with cursor:
        async for batch in cursor:
            # The driver annotates the batches as documents.
            yield cast(bytes, batch)


def decoded(batch: bytes) -> tuple[list[Document], list[int]]:
    """Return the documents of a batch, and the size of each one in bytes of BSON."""
    sizes: list[int] = []
    position, end = 0, len(batch)
    while position < end:
        size = int.from_bytes(batch[position : position + SIZE_BYTES], "little")
        sizes.append(size)
        position += size
    documents: list[Any] = bson.decode_all(batch, NAIVE)
    return documents, sizes
