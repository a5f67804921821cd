"""Collections, validators, indexes and the version of the data: created, migrated and checked.

The version is a number in the collection `meta`. A database with a higher one is rejected; one with
a lower one is migrated by the functions in MIGRATIONS, in order. Each is safe to run again.

`collections.toml` describes the fields of each collection, for its validator and the reference.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any, TypeGuard

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import CollectionInvalid, OperationFailure

from crawler.errors import NewerDatabase, StorageError
from crawler.storage import client, items, search
from crawler.storage.client import META, Database, Document
from crawler.storage.dedup.signatures import (
    BOILERPLATE_INDEXES,
    CLUSTER_INDEXES,
    LABEL_INDEXES,
    SIGNATURE_INDEXES,
)
from crawler.storage.readers import Reader, document_of
from crawler.storage.users import posts_reader

logger = logging.getLogger(__name__)
ALREADY_THERE, NAMESPACE_NOT_FOUND = 48, 26
# Fields of META.
RESTORING = "restoring"
# Prefix of the `_id` of documents in `meta` with which `scrapy doctor` tests writes.
TEST = "doctor"
# Prefix of the collections that a restore has loaded, but that are not in use yet.
RESTORED = "restored_"
# Collections whose documents hardly change. With zstd, also for the indexes, a visit needs 110
# bytes instead of 160, and a post half as much. Inserting a visit takes the server 5 us longer.
COMPRESSED = frozenset(
    ("visits", "versions", "days", "posts", "listings", "runs", "signatures", "pushes", "rereads",
     "outbox", "audit")
)  # fmt: skip
# The indexes of these collections, which the server does not compress by default.
COMPRESSED_INDEXES = COMPRESSED - {"signatures"}
ZSTD: Document = {"wiredTiger": {"configString": "block_compressor=zstd"}}

# Types of `collections.toml` that are more than a BSON type.
TYPES: dict[str, Document] = {
    "text": {"bsonType": "string"},
    "texts": {"bsonType": "array", "items": {"bsonType": "string"}},
    "time": {"bsonType": "date"},
    "time or null": {"bsonType": ["date", "null"]},
    "count": {"bsonType": ["int", "long"], "minimum": 0},
    "number": {"bsonType": ["int", "long", "double"], "minimum": 0},
    "one of": {},
}
REQUIRED = ", required"

# Options that change how an index works; the server adds others.
INDEX_OPTIONS = (
    "unique", "sparse", "partialFilterExpression", "expireAfterSeconds", "default_language",
    "language_override",
)  # fmt: skip
TEXT = "text"
# The server's names for the fields of a text index.
TEXT_FIELDS = ("_fts", "_ftsx")
# Audit entries are deleted after this time.
AUDIT_SECONDS = 400 * 24 * 3600
_EXISTS: Document = {"$exists": True}


def _index(*keys: str, **options: object) -> IndexModel:
    return IndexModel([(key, ASCENDING) for key in keys], **options)


INDEXES: dict[str, list[IndexModel]] = {
    "targets": [
        _index("spider", "next_visit", "url"),
        _index("url"),
        _index("spider", "categories", "url"),
        _index("spider", "kind", "url"),
        _index("spider", "aliases", partialFilterExpression={"aliases": {"$exists": True}}),
        _index("spider", "canonical_url", partialFilterExpression={"canonical_url": _EXISTS}),
        _index("spider", "post", partialFilterExpression={"post": {"$exists": True}}),
        _index("kind", "spider", "content_hash", partialFilterExpression={"kind": "feed"}),
        _index(
            "spider",
            "consecutive_errors",
            "url",
            partialFilterExpression={"consecutive_errors": {"$gt": 0}},
        ),
        _index("gone", "spider", "url", partialFilterExpression={"gone": True}),
        _index("spider", "url", partialFilterExpression={"muted_at": _EXISTS}),
        _index("spider", "broken.how", "url", partialFilterExpression={"broken": _EXISTS}),
        # Pages that were requested twice.
        _index("spider", "noise.scheme", partialFilterExpression={"noise.requests": {"$gt": 0}}),
    ],
    "visits": [
        _index("target", "at"),
        _index("spider", "at"),
        _index("spider", "hint", "at", partialFilterExpression={"hint": {"$exists": True}}),
        _index("pushed", "spider", "at", partialFilterExpression={"pushed": True}),
        _index("shared_fetch", "spider", "at", partialFilterExpression={"shared_fetch": True}),
        _index("event", "spider", "at", "_id", partialFilterExpression={"event": True}),
        # For the inbox of changes: of a site and of all, newest first, and of a target.
        _index("news", "spider", "at", "_id", partialFilterExpression={"news": True}),
        _index("news", "at", "_id", partialFilterExpression={"news": True}),
        _index("news", "target", "at", partialFilterExpression={"news": True}),
        # For the rules of notifications: visits to which they have not been applied.
        _index("notify", "at", "_id", partialFilterExpression={"notify": True}),
    ],
    "versions": [_index("target", "at"), _index("spider", "at")],
    "posts": [
        _index("url"),
        _index("spider", "changed_at"),
        _index("spider", "feed", "guid", partialFilterExpression={"guid": _EXISTS}),
        _index("feed", "stated", partialFilterExpression={"stated": _EXISTS}),
        _index("first_seen", "published", "_id", partialFilterExpression={"guid": _EXISTS}),
        _index(
            "spider",
            "feed",
            "first_seen",
            "published",
            "_id",
            partialFilterExpression={"guid": _EXISTS},
        ),
        # Lists of items, by name and by last change, of a site and of a category. The name at the
        # end lets the server search names without reading the documents.
        _index("spider", "sort_name", "_id", partialFilterExpression={"sort_name": _EXISTS}),
        _index(
            "spider",
            "categories",
            "sort_name",
            "_id",
            partialFilterExpression={"sort_name": _EXISTS},
        ),
        _index(
            "spider",
            "changed_at",
            "_id",
            "sort_name",
            partialFilterExpression={"sort_name": _EXISTS},
        ),
        _index(
            "spider",
            "categories",
            "changed_at",
            "_id",
            "sort_name",
            partialFilterExpression={"sort_name": _EXISTS},
        ),
        search.index_model(),
        _index("published", "first_seen", partialFilterExpression={"original": True}),
        # For searches in a site, the newest posts first.
        _index("spider", "published", "first_seen", partialFilterExpression={"original": True}),
        _index("item", partialFilterExpression={"item": _EXISTS}),
        _index("link", partialFilterExpression={"link": _EXISTS}),
        _index("cluster", partialFilterExpression={"cluster": _EXISTS}),
        _index("duplicate_of", partialFilterExpression={"duplicate_of": _EXISTS}),
    ],
    "signatures": SIGNATURE_INDEXES,
    "clusters": CLUSTER_INDEXES,
    "boilerplate": BOILERPLATE_INDEXES,
    "duplicate_labels": LABEL_INDEXES,
    "feeds": [
        _index("push.token", unique=True, partialFilterExpression={"push.token": _EXISTS}),
        _index("push.next_request_at", partialFilterExpression={"hubs.0": _EXISTS}),
        _index("push.unsubscribing", partialFilterExpression={"push.unsubscribing": _EXISTS}),
    ],
    "pushes": [_index("spider", "at"), _index("spider", "url", "at")],
    "listings": [
        _index("spider", "list"),
        _index("spider", "item"),
        # Of the few edges that were hidden in this run.
        _index("spider", partialFilterExpression={"shown": False}),
    ],
    "runs": [_index("spider", "started")],
    "dead_letters": [_index("spider", "at")],
    "alarms": [
        _index("ended_at", "spider", "chance"),
        _index("notify", "at", "_id", partialFilterExpression={"notify": True}),
        _index("at", "_id"),
    ],
    "outbox": [
        _index("channel", "state", "at", "_id"),
        _index("channel", "state", "due"),
        _index("channel", "state", "delivered_at"),
        _index("channel", "target", "at", partialFilterExpression={"state": "waiting"}),
        _index("channel", "attempts", partialFilterExpression={"state": "waiting"}),
        _index(
            "channel",
            "bundle",
            "at",
            partialFilterExpression={"state": "waiting", "bundle": _EXISTS},
        ),
        _index("state", "delivered_at"),
        _index("state", "dead_at"),
        _index("state", "dropped_at"),
        _index("at", "_id", partialFilterExpression={"state": "unconfirmed"}),
        _index("spider", "target"),
    ],
    "plans": [_index("spiders", "at")],
    "rereads": [_index("spider")],
    "days": [_index("target", "day"), _index("spider", "day")],
    # The server deletes documents whose time in these fields has passed.
    "sessions": [_index("expires_at", expireAfterSeconds=0), _index("user")],
    "api_tokens": [_index("expires_at", expireAfterSeconds=0), _index("user")],
    "readers": [
        _index("feed.token", unique=True, partialFilterExpression={"feed.token": _EXISTS}),
    ],
    "saved_searches": [
        _index("user", "name", unique=True),
        _index("feed.token", unique=True, partialFilterExpression={"feed.token": _EXISTS}),
    ],
    "audit": [
        _index("at", expireAfterSeconds=AUDIT_SECONDS),
        IndexModel([("at", DESCENDING), ("_id", DESCENDING)]),
    ],
}


async def _join_read_states(db: Database) -> None:
    """Store the posts that users have read like the changes: `reading` becomes `readers`."""
    async for row in db.readers.find({"sites": {"$exists": True}}):
        row["sources"] = [{"source": s["site"], "until": s["until"]} for s in row.pop("sites")]
        row["items"] = [{"item": p["page"], "until": p["until"]} for p in row.pop("pages")]
        await db.readers.replace_one({"_id": row["_id"]}, row, bypass_document_validation=True)
    for user in await db.reading.distinct("reader"):
        reader = Reader(posts_reader(user), revision=1)
        async for row in db.reading.find({"reader": user}):
            feed = row["feed"]
            reader = reader.read_all(row["until"], [feed] if feed else None)
            posts = db.posts.find({"_id": {"$in": row["read"]}}, {"first_seen": 1})
            async for post in posts:
                item = feed, post["_id"], post["first_seen"]
                reader = reader.with_room().read_items([item])
        await db.readers.replace_one(
            {"_id": reader.name}, document_of(reader), upsert=True, bypass_document_validation=True
        )
    await db.drop_collection("reading")


# The function that migrates a database to each version, if stored documents change. Each must be
# safe to repeat, because a crash may end it halfway.
MIGRATIONS: dict[int, Callable[[Database], Awaitable[None]]] = {
    4: _join_read_states,
    5: items.add_sort_names,
}


async def prepare(db: Database) -> None:
    """Migrate the database to this version; cheap if it is current."""
    try:
        meta = await db.meta.find_one(META)
        if (mark := restore_mark(meta)) is not None:
            logger.warning("Completing the restore of %s", mark["from"])
            await complete_restore(db, mark)
            meta = await db.meta.find_one(META)
        current = version_in(db, meta) or 0
        if current > client.VERSION:
            raise NewerDatabase(
                f"database {db.name!r} has data version {current}, this Freshet supports up to "
                f"{client.VERSION}. Upgrade Freshet, or use another database (FRESHET_DATABASE)"
            )
        if current == client.VERSION:
            return
        for number in range(current + 1, client.VERSION + 1):
            if current and (migration := MIGRATIONS.get(number)):
                logger.info("Migrating database %r to data version %d", db.name, number)
                await migration(db)
        await create_collections(db)
        await create_indexes(db)
        await db.meta.replace_one(META, {"version": client.VERSION}, upsert=True)
    except OperationFailure as error:
        reason = (error.details or {}).get("errmsg") or error
        raise StorageError(f"cannot use database {db.name!r}: {reason}") from None


def restore_mark(meta: Document | None) -> Document | None:
    """Return the mark of an unfinished restore in a database's META; None without a valid one."""
    mark = (meta or {}).get(RESTORING)
    if not isinstance(mark, dict) or not isinstance(mark.get("from"), str):
        return None
    lists = [mark.get("collections"), mark.get("dropped")]
    texts = [isinstance(each, list) and all(isinstance(x, str) for x in each) for each in lists]
    return mark if all(texts) else None


def is_version(value: object) -> TypeGuard[int]:
    """Return whether a stored value can be the version of data."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def version_in(db: Database, meta: Document | None) -> int | None:
    """Return the version in a database's META; None without META.

    Raises StorageError if it has no valid version: the database is damaged.
    """
    if meta is None:
        return None
    if not is_version(version := meta.get("version")):
        raise StorageError(
            f"database {db.name!r} is damaged: its collection 'meta' has no valid data version. "
            "Restore a backup: scrapy restore FILE --replace"
        )
    return version


async def complete_restore(db: Database, mark: Document) -> None:
    """Put restored collections in the place of the current ones; safe to repeat after a crash.

    mark: the field RESTORING of META: `collections` to rename, and `dropped`, to delete
    """
    for name in mark["dropped"]:
        await db.drop_collection(name)
    # `meta` is the last one: its replacement has no mark.
    for name in (*mark["collections"], "meta"):
        try:
            await db[RESTORED + name].rename(name, dropTarget=True)
        except OperationFailure as error:
            # Renamed before the interruption, or by another process that completes the restore.
            if error.code != NAMESPACE_NOT_FOUND:
                raise


def schema_of(about: str, fields: Mapping[str, Sequence[Any]]) -> Document:
    """Return the JSON schema of documents with these rows of `collections.toml`, by path."""
    root: Document = {"bsonType": "object", "description": about}
    schemas = {"": root}
    for path, (kind, description, *rules) in fields.items():
        name = kind.removesuffix(REQUIRED)
        if name.startswith("("):
            schema: Document = {"title": name[1:-1]}
        else:
            types = name.split(" or ")
            schema = dict(TYPES.get(name, {"bsonType": types if len(types) > 1 else name}))
        schemas[path] = schema
        schema["description"] = description
        for rule, value in rules[0].items() if rules else ():
            schema[rule] = value_of(value)
        if path.endswith("[]"):
            schemas[path[:-2]]["items"] = schema
            continue
        outer, _, field = path.rpartition(".")
        if outer not in schemas:
            schemas[outer] = schemas[outer[:-2]]["items"] = {}
        parent = schemas[outer]
        parent.setdefault("properties", {})[field] = schema
        if name != kind:
            parent.setdefault("required", []).append(field)
    return root


def value_of(rule: Any) -> Any:
    """Return the value of a rule: a text names a constant or an enumeration of the code."""
    if not isinstance(rule, str):
        return rule
    value = resolve_name(rule)
    return [str(each) for each in value] if isinstance(value, Iterable) else value


VALIDATORS: dict[str, Document] = {
    name: {"$jsonSchema": schema_of(collection["about"], collection["fields"])}
    for name, collection in tomllib.loads(
        # Read as a package resource: a project that is deployed as an egg is not a folder.
        files(__package__).joinpath("collections.toml").read_text(encoding="utf-8")
    ).items()
}


async def create_collections(db: Database) -> None:
    """Create all collections; update the validators of existing ones."""
    for name, validator in VALIDATORS.items():
        try:
            await db.create_collection(name, **collection_options(name))
        except (CollectionInvalid, OperationFailure) as error:
            if not (isinstance(error, CollectionInvalid) or error.code == ALREADY_THERE):
                raise
            await db.command("collMod", name, validator=validator)


def collection_options(name: str) -> Document:
    """Return the options with which a collection is created."""
    engine: Document = {"storageEngine": ZSTD} if name in COMPRESSED else {}
    return {"validator": VALIDATORS[name]} | engine


async def create_indexes(db: Database, prefix: str = "") -> None:
    """Create the indexes that are missing. prefix: of the names of the collections."""
    for name, indexes in INDEXES.items():
        engine: Document = {"storageEngine": ZSTD} if name in COMPRESSED_INDEXES else {}
        await db.command(
            "createIndexes", prefix + name, indexes=[i.document | engine for i in indexes]
        )


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


async def data_version(db: Database) -> int | None:
    """Return the version of the data; None if the database has none.

    Raises StorageError for an unfinished restore, and for a damaged database.
    """
    meta = await db.meta.find_one(META)
    if (mark := restore_mark(meta)) is not None:
        raise StorageError(
            f"database {db.name!r}: the restore of {mark['from']} was interrupted. "
            "Run scrapy targets, which completes it"
        )
    return version_in(db, meta)


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
    return {
        row["name"]: {key: value for key, value in row.items() if key not in ("v", "ns")}
        for row in rows
        if row["name"] != "_id_"
    }


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
