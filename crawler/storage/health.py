"""Health of a MongoDB server, a database and its indexes; nothing is created, fixed or migrated."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pymongo import WriteConcern
from pymongo.errors import OperationFailure, PyMongoError

from crawler.config import Config
from crawler.errors import StorageError
from crawler.storage.client import (
    META,
    Database,
    Document,
    check_reachable,
    disk_of,
    in_short,
    open_client,
    read_clock,
    server_uri,
)
from crawler.storage.schema import INDEXES, NAMESPACE_NOT_FOUND, RESTORING, refuse_partial_copy

PINGS = 5
# Age at which the documents of interrupted tests are deleted.
TEST_LIFETIME = timedelta(hours=1)
# Prefix of the `_id` of test documents in `meta`.
TEST = "doctor"
# Options that change how an index works; the server adds others.
INDEX_OPTIONS = (
    "unique", "sparse", "partialFilterExpression", "expireAfterSeconds", "default_language",
    "language_override",
)  # fmt: skip
TEXT = "text"
# The server's names for the fields of a text index.
TEXT_FIELDS = ("_fts", "_ftsx")


@dataclass(frozen=True, slots=True)
class Server:
    """The properties that a server reports.

    replica_set: its name; None for a standalone server and a shard router (`is_router`)
    ahead_seconds: its clock minus ours; negative if it is behind
    free_bytes, total_bytes: of the disk with its data; None if the server does not report them
    """

    version: tuple[int, ...]
    replica_set: str | None
    members: int
    is_router: bool
    ahead_seconds: float
    round_trip_ms: float
    free_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class IndexProblem:
    """An index that is missing or differs from the schema.

    differs: another index has this name
    command: mongosh command that creates the index
    """

    collection: str
    name: str
    differs: bool
    unique: bool
    command: str


@asynccontextmanager
async def reached(config: Config) -> AsyncIterator[Database]:
    """Open the database without migrating it. Raises StorageError or ConfigError.

    Starts the embedded server if needed.
    """
    uri = await asyncio.to_thread(server_uri, config)
    client = open_client(uri, config)
    try:
        await check_reachable(client, uri)
        await read_clock(client)
        yield client.get_default_database()
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {in_short(error)}") from None
    finally:
        await client.close()


async def server(db: Database) -> Server:
    """Return the properties that the server reports."""
    admin = db.client.admin
    built = await admin.command("buildInfo")
    clock = await read_clock(db.client, PINGS)
    hello = clock.hello
    free, total = await disk_of(db)
    return Server(
        version=tuple(built["versionArray"][:3]),
        replica_set=hello.get("setName"),
        members=len(hello.get("hosts", ())),
        is_router=hello.get("msg") == "isdbgrid",
        ahead_seconds=-clock.ahead_seconds,
        round_trip_ms=statistics.median(clock.round_trips) * 1000,
        free_bytes=free,
        total_bytes=total,
    )


async def write(db: Database, now: datetime, timeout_seconds: float) -> float:
    """Return how many milliseconds a write to a majority's journal takes; remove the document.

    Raises StorageError if the write or reading it back fails.
    """
    concern = WriteConcern("majority", int(timeout_seconds * 1000), j=True)
    meta = db.meta.with_options(write_concern=concern)
    key = f"{TEST} {platform.node()} {os.getpid()}"
    old: Document = {"_id": {"$regex": f"^{TEST} "}, "at": {"$lt": now - TEST_LIFETIME}}
    began = time.perf_counter()
    try:
        await meta.replace_one({"_id": key}, {"at": now}, upsert=True)
        taken = time.perf_counter() - began
        document = await meta.find_one({"_id": key})
        await meta.delete_many({"$or": [{"_id": key}, old]})
    except PyMongoError as error:
        raise StorageError(in_short(error)) from None
    if document is None:
        raise StorageError("the written test document could not be read back")
    return taken * 1000


async def data_version(db: Database) -> int | None:
    """Return the version of the data; None if the database has none.

    Raises StorageError for an unfinished copy or restore.
    """
    meta = await db.meta.find_one(META)
    refuse_partial_copy(db, meta)
    if meta and RESTORING in meta:
        raise StorageError(
            f"database {db.name!r}: the restore of {meta[RESTORING]['from']} was interrupted. "
            "Run scrapy targets, which completes it"
        )
    return int(meta["version"]) if meta else None


async def index_problems(db: Database) -> list[IndexProblem]:
    """Return the schema's indexes that are missing, or differ from the schema."""
    problems: list[IndexProblem] = []
    for collection, models in INDEXES.items():
        existing = await index_definitions(db, collection)
        for index in (model.document for model in models):
            name, same_name = index["name"], existing.get(index["name"])
            if same_name is not None and _effect_of(same_name) == _effect_of(index):
                continue
            keys = json.dumps(dict(index["key"]))
            options = json.dumps({key: value for key, value in index.items() if key != "key"})
            command = f"db.{collection}.createIndex({keys}, {options})"
            if same_name is not None:
                command = f'db.{collection}.dropIndex("{name}"); {command}'
            is_unique = bool(index.get("unique"))
            problems.append(
                IndexProblem(collection, name, same_name is not None, is_unique, command)
            )
    return problems


async def index_definitions(db: Database, collection: str) -> dict[str, Document]:
    """Return the indexes of a collection by name, without `_id_`; empty if it does not exist."""
    try:
        rows = await (await db[collection].list_indexes()).to_list(None)
    except OperationFailure as error:
        if error.code != NAMESPACE_NOT_FOUND:
            raise
        rows = []
    return {row["name"]: dict(row) for row in rows if row["name"] != "_id_"}


def _effect_of(index: Mapping[str, Any]) -> Document:
    """Return the properties that two indexes with the same effect have in common."""
    options = {name: index[name] for name in INDEX_OPTIONS if index.get(name)}
    # The server moves the fields of a text index to its weights.
    fields = [(name, kind) for name, kind in index["key"].items() if name not in TEXT_FIELDS]
    texts = {name: 1 for name, kind in fields if kind == TEXT}
    return options | {
        "key": [(name, kind) for name, kind in fields if kind != TEXT],
        "weights": texts | dict(index.get("weights", {})),
    }
