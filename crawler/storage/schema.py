"""Collections, validators, indexes and the version of the data, created and migrated at start-up.

The version is a number in the collection `meta`. A database with a higher one is rejected; one with
a lower one is migrated by the functions in MIGRATIONS, in order. Each is safe to run again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from pymongo import ASCENDING, IndexModel, UpdateMany, UpdateOne
from pymongo.errors import CollectionInvalid, OperationFailure

from crawler.errors import NewerDatabase, StorageError
from crawler.items import SEEN
from crawler.storage import runs, search, visits
from crawler.storage.client import Database, Document
from crawler.storage.dedup.registry import BOILERPLATE_INDEXES, CLUSTER_INDEXES, SIGNATURE_INDEXES
from crawler.storage.retry import in_batches_by_size
from crawler.storage.targets import history_document
from crawler.storage.validators import VALIDATORS

logger = logging.getLogger(__name__)
VERSION = 7
ALREADY_THERE = 48
# The document of `meta` with the version, and during a copy, with the source.
META: Document = {"_id": "schema"}
COPYING = "copying"
# Collections of large documents, which zstd compresses better than the server's default.
COMPRESSED = ("versions", "pushes", "signatures")
BATCH = 1000
# Limit for batches of posts, as one text may have a million characters.
BATCH_CHARACTERS = 5_000_000
MINUTE_MS = 60_000
# The observations of each target, unsorted: twice the time in milliseconds, plus 1 if the target
# had changed. Visits that were redirected to another target are not observations of this one.
OBSERVATIONS: list[Document] = [
    {
        "$match": {
            "outcome": {"$in": sorted(SEEN)},
            "reason": {"$not": {"$regex": "^redirects to "}},
        }
    },
    {
        "$group": {
            "_id": {"$concat": ["$spider", " ", "$target"]},
            "looks": {"$push": {"$add": [{"$multiply": [{"$toLong": "$at"}, 2]}, "$changed"]}},
        }
    },
]


async def build_histories(db: Database) -> None:
    """Migrate to version 2: build the history of each target from its visits.

    The server groups the log by target (on disk if needed) and sends one target after the other, so
    memory use here is constant. Visits that were aggregated into days are gone: such histories
    begin with the first remaining visit. Existing histories stay, as a
    crawl may have extended them.
    """
    from schedules.history import History

    # Histories include visits that a crash kept out of the log.
    for spider in await db.runs.distinct("spider", {"finished": None}):
        if since := await runs.unfinished_since(db, spider):
            await visits.recover(db, spider, since)
    writes: list[UpdateOne] = []
    # Reads the log in natural order: an index would cause random reads.
    hint = {"$natural": 1}
    async for row in await db.visits.aggregate(OBSERVATIONS, allowDiskUse=True, hint=hint):
        observed = [(value >> 1, bool(value & 1)) for value in sorted(row["looks"])]
        history = History.begin(observed[0][0] // MINUTE_MS)
        for at, changed in observed[1:]:
            history = history.seen(at // MINUTE_MS, changed=changed)
        lacking: Document = {
            "_id": row["_id"], "history": {"$exists": False}, "alias_of": {"$exists": False},
        }  # fmt: skip
        writes.append(UpdateOne(lacking, {"$set": {"history": history_document(history)}}))
        if len(writes) == BATCH:
            await db.targets.bulk_write(writes, ordered=False)
            writes = []
    if writes:
        await db.targets.bulk_write(writes, ordered=False)


async def index_posts(db: Database) -> None:
    """Migrate to version 4: add all posts to the search index, with their search words.

    Comparing them takes hours for many posts, so users start that themselves. The index is built
    afterwards, for all posts together.
    """
    fields = ("title", "text", "fields", "page.fields")
    n = 0
    lacking = db.posts.find({"original": {"$exists": False}}, fields)
    async for posts in in_batches_by_size(
        lacking, lambda post: len(post.get("text") or ""), BATCH, BATCH_CHARACTERS
    ):
        shown: Document = {"original": True}
        writes: list[UpdateOne | UpdateMany] = []
        plain: list[str] = []
        for post in posts:
            if words := search.words_of(post):
                writes.append(UpdateOne({"_id": post["_id"]}, {"$set": shown | {"words": words}}))
            else:
                plain.append(post["_id"])
        # Most posts need no extra words, so one update covers them.
        if plain:
            writes.append(UpdateMany({"_id": {"$in": plain}}, {"$set": shown}))
        await db.posts.bulk_write(writes, ordered=False)
        n += len(posts)
    if n:
        message = (
            "Added %d posts to the search index; run scrapy duplicates rebuild to compare them"
        )
        logger.info(message, n)


MIGRATIONS: dict[int, Callable[[Database], Awaitable[None]]] = {
    2: build_histories,
    4: index_posts,
}

_EXISTS: Document = {"$exists": True}


def _index(*keys: str, **options: object) -> IndexModel:
    return IndexModel([(key, ASCENDING) for key in keys], **options)


INDEXES: dict[str, list[IndexModel]] = {
    "targets": [
        _index("spider", "next_visit"),
        _index("url"),
        _index("spider", "categories"),
        _index("spider", "aliases", partialFilterExpression={"aliases": {"$exists": True}}),
        _index("spider", "post", partialFilterExpression={"post": {"$exists": True}}),
        _index("kind", "spider", "content_hash", partialFilterExpression={"kind": "feed"}),
        _index(
            "spider",
            "consecutive_errors",
            "url",
            partialFilterExpression={"consecutive_errors": {"$gt": 0}},
        ),
        _index("gone", "spider", "url", partialFilterExpression={"gone": True}),
    ],
    "visits": [
        _index("target", "at"),
        _index("spider", "at"),
        _index("spider", "hint", "at", partialFilterExpression={"hint": {"$exists": True}}),
        _index("pushed", "spider", "at", partialFilterExpression={"pushed": True}),
        _index("shared_fetch", "spider", "at", partialFilterExpression={"shared_fetch": True}),
        _index("event", "spider", "at", partialFilterExpression={"event": True}),
    ],
    "versions": [_index("target", "at"), _index("spider", "at")],
    "posts": [
        _index("url"),
        _index("spider", "changed_at"),
        _index("spider", "feed", "guid", partialFilterExpression={"guid": _EXISTS}),
        search.index_model(),
        _index("published", "first_seen", partialFilterExpression={"original": True}),
        _index("item", partialFilterExpression={"item": _EXISTS}),
        _index("link", partialFilterExpression={"link": _EXISTS}),
        _index("cluster", partialFilterExpression={"cluster": _EXISTS}),
        _index("duplicate_of", partialFilterExpression={"duplicate_of": _EXISTS}),
    ],
    "signatures": SIGNATURE_INDEXES,
    "clusters": CLUSTER_INDEXES,
    "boilerplate": BOILERPLATE_INDEXES,
    "feeds": [
        _index("push.token", unique=True, partialFilterExpression={"push.token": _EXISTS}),
        _index("push.next_ask", partialFilterExpression={"hubs.0": _EXISTS}),
        _index("push.leaving", partialFilterExpression={"push.leaving": _EXISTS}),
    ],
    "pushes": [_index("spider", "at"), _index("spider", "url", "at")],
    "listings": [_index("spider", "list"), _index("spider", "item"), _index("spider", "shown")],
    "runs": [_index("spider", "started")],
    "dead_letters": [_index("spider", "at")],
    "plans": [_index("spiders", "at")],
    "days": [_index("target", "day"), _index("spider", "day")],
}


async def prepare(db: Database) -> None:
    """Migrate the database to this version; cheap if it is current."""
    try:
        meta = await db.meta.find_one(META)
        refuse_partial_copy(db, meta)
        current = int(meta["version"]) if meta else 0
        if current > VERSION:
            raise NewerDatabase(
                f"database {db.name!r} has data version {current}, this Freshet supports up to "
                f"{VERSION}. Upgrade Freshet, or use another database (FRESHET_DATABASE)"
            )
        if current == VERSION:
            return
        for version in range(current + 1, VERSION + 1):
            if current and (migration := MIGRATIONS.get(version)):
                logger.info("Migrating database %r to data version %d", db.name, version)
                await migration(db)
        await create_collections(db)
        await create_indexes(db)
        await db.meta.replace_one(META, {"version": VERSION}, upsert=True)
    except OperationFailure as error:
        reason = (error.details or {}).get("errmsg") or error
        raise StorageError(f"cannot use database {db.name!r}: {reason}") from None


def refuse_partial_copy(db: Database, meta: Document | None) -> None:
    """Raise StorageError for a database with an unfinished copy. meta: its META."""
    if meta and COPYING in meta:
        raise StorageError(
            f"database {db.name!r} is an unfinished copy of {meta[COPYING]}. Wait until the copy "
            "is complete; if it was interrupted, run scrapy db copy again"
        )


async def create_collections(db: Database) -> None:
    """Create all collections; update the validators of existing ones."""
    for name, validator in VALIDATORS.items():
        options: Document = {"validator": validator}
        if name in COMPRESSED:
            engine = {"wiredTiger": {"configString": "block_compressor=zstd"}}
            options["storageEngine"] = engine
        try:
            await db.create_collection(name, **options)
        except (CollectionInvalid, OperationFailure) as error:
            if not (isinstance(error, CollectionInvalid) or error.code == ALREADY_THERE):
                raise
            await db.command("collMod", name, validator=validator)


async def create_indexes(db: Database) -> None:
    """Create the indexes that are missing."""
    for name, indexes in INDEXES.items():
        await db[name].create_indexes(indexes)
