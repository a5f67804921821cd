"""Opening the index of sketches, after checking that it matches the settings, and its rebuild.

`meta` stores the scheme of the sketches and `backend`, the backend of the claims: MongoDB or Redis.
`index` identifies the claims in Redis, so that outdated claims are not mistaken for current ones.
While `backend` is MongoDB, `index` marks a move to Redis that has not finished.

A rebuild compares all posts again, in the order of their dates. While it runs, and after an
interruption, `meta` marks the index as rebuilding and crawls are refused. A rebuild can be
repeated. Posts show their former verdicts until it reaches them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError

from crawler.config import Config
from crawler.dedup.posts import AHEAD, ALONE, OLDEST, Verdicts
from crawler.dedup.sketch import Scheme, scheme_of
from crawler.errors import BandsLost, Busy, ConfigError, StorageError
from crawler.storage import leases
from crawler.storage.client import Database, Document
from crawler.storage.dedup import boilerplate, claims, clusters, edits, signatures
from crawler.storage.dedup.signatures import POST_FIELDS, Registry, candidate_of

if TYPE_CHECKING:
    from crawler.storage.dedup.redis import RedisBands

logger = logging.getLogger(__name__)
META: Document = {"_id": "duplicates"}
MONGODB, REDIS, REBUILDING = "mongodb", "redis", "rebuilding"
INDEX, FILLING = "index", "filling"
# Attempts when other processes change `meta`, or Redis loses its claims.
MAX_AGREEMENTS = MAX_REFILLS = 10
BATCH = 1000
HINT = "run scrapy duplicates rebuild to compare all posts again"
# Posts of a rebuild that are compared together.
REBUILD_BATCH = 250
FLAGGED: Document = {"$or": [{"original": {"$ne": True}}, {"cluster": {"$exists": True}}]}
_STATED: Document = {
    "$cond": [{"$eq": [{"$type": "$published"}, "date"]}, "$published", "$fields.published"]
}
_LATEST: Document = {"$add": ["$first_seen", AHEAD // timedelta(milliseconds=1)]}
_IS_PLAUSIBLE: Document = {
    "$and": [
        {"$eq": [{"$type": _STATED}, "date"]},
        {"$gte": [_STATED, OLDEST]},
        {"$lte": [_STATED, _LATEST]},
    ]
}
# Like `signatures.created_of`, but without the page of a feed's post; claims work in any order.
_CREATED: Document = {"$cond": [_IS_PLAUSIBLE, {"$min": [_STATED, "$first_seen"]}, "$first_seen"]}


@asynccontextmanager
async def opened(db: Database, config: Config) -> AsyncIterator[Registry | None]:
    """Yield the index that the settings ask for; None if duplicates are off.

    Claims move between MongoDB and Redis if the settings ask for it. A move to Redis needs Redis,
    the way back does not. `meta` is updated once all claims are in their new place.
    Raises StorageError if the index has another scheme or backend.
    """
    wanted = wanted_meta(config)
    if wanted is None:
        yield None
        return
    scheme = scheme_of(config.duplicates, config.duplicate_threshold)
    if config.redis_url is None:
        await _agree(db, wanted)
        registry = Registry.of(db, scheme)
        await take_back(db, registry, wanted)
        async with reviewed_at_end(db, registry):
            yield registry
        return
    async with _connected(db, config) as bands:
        registry = Registry.of(db, scheme, bands)
        meta = await _agree(db, wanted)
        await refill(registry, bands, meta[INDEX])
        if meta["backend"] != REDIS:
            await record_move(db, wanted, meta[INDEX])
        # Remove the bands that an interrupted move has left in MongoDB.
        await db.signatures.update_many({"bands": {"$exists": True}}, {"$unset": {"bands": ""}})
        async with reviewed_at_end(db, registry):
            yield registry


@asynccontextmanager
async def as_stored(db: Database, config: Config, *, fills: bool = True) -> AsyncIterator[Registry]:
    """Yield the index as it is stored, regardless of the settings, to remove posts.

    fills: restore the claims in Redis if Redis has lost them
    """
    meta = await db.meta.find_one(META) or {}
    scheme = stored_scheme(meta, config)
    if meta.get("backend") != REDIS:
        registry = Registry.of(db, scheme)
        async with boilerplate.stored_at_end(registry):
            yield registry
        return
    if config.redis_url is None:
        raise ConfigError(
            "band reservations are in Redis. Set REDIS_URL to that server, or run a crawl without "
            "it, which moves them to MongoDB"
        )
    async with _connected(db, config) as bands:
        registry = Registry.of(db, scheme, bands)
        if fills:
            await refill(registry, bands, meta[INDEX])
        async with boilerplate.stored_at_end(registry):
            yield registry


@asynccontextmanager
async def reviewed_at_end(db: Database, registry: Registry) -> AsyncIterator[Registry]:
    """Yield an index; unless an error occurs, compare pending posts and store tables afterwards."""
    async with boilerplate.stored_at_end(registry):
        yield registry
        verdicts = await claims.review(registry, datetime.now(UTC))
        await clusters.confirm(db, registry, verdicts, written=())


@asynccontextmanager
async def _connected(db: Database, config: Config) -> AsyncIterator[RedisBands]:
    from crawler.storage.dedup.redis import RedisBands
    from crawler.storage.redis import open_redis

    url, seconds = config.redis_url or "", config.commit_retry_seconds
    client = await open_redis(url, retry_seconds=seconds)
    try:
        yield RedisBands(client, f"freshet:{db.name}:duplicates")
    finally:
        await client.aclose()


def stored_scheme(meta: Document, config: Config) -> Scheme:
    """Return the scheme of the stored posts; without posts, the one in the settings."""
    name = meta.get("scheme", config.duplicates).partition("-")[0]
    return scheme_of("characters" if name == "off" else name, config.duplicate_threshold)


def wanted_meta(config: Config) -> Document | None:
    """Return the `meta` fields that the settings ask for; None if duplicates are off."""
    if config.duplicates == "off":
        return None
    scheme = scheme_of(config.duplicates, config.duplicate_threshold)
    return {"scheme": scheme.name, "backend": MONGODB if config.redis_url is None else REDIS}


def with_index(wanted: Document) -> Document:
    """Return the `meta` fields of a new index; each index in Redis gets its own id."""
    return wanted | ({INDEX: ObjectId()} if wanted["backend"] == REDIS else {})


def name_of(scheme: Scheme, index: ObjectId) -> str:
    """Return the name under which Redis stores a complete index."""
    return f"{scheme.name} {index}"


async def _agree(db: Database, wanted: Document) -> Document:
    """Set scheme and backend of an empty index; raise StorageError if the index has different ones.

    Returns `meta`, which identifies the move to Redis if one is needed.
    """
    for _ in range(MAX_AGREEMENTS):
        meta = await db.meta.find_one(META)
        if meta is None:
            with suppress(DuplicateKeyError):
                await db.meta.insert_one(META | with_index(wanted))
        elif (reason := await refusal(db, wanted, meta)) is not None:
            # Another process may have moved the claims, and begun to crawl.
            if await db.meta.find_one(META) == meta:
                raise StorageError(reason)
        elif meta | wanted != meta and await _is_empty(db):
            await db.meta.replace_one(meta, META | with_index(wanted))
        elif wanted["backend"] == REDIS and INDEX not in meta:
            lacking = META | {"backend": meta["backend"], INDEX: {"$exists": False}}
            await db.meta.update_one(lacking, {"$set": {INDEX: ObjectId()}})
        elif wanted["backend"] == meta["backend"] == MONGODB and INDEX in meta:
            # Redis will lack the next claims, so the move must start again.
            await db.meta.update_one(meta, {"$unset": {INDEX: ""}})
        else:
            return meta
    raise StorageError("other processes are moving the band reservations. Try again")


async def refusal(db: Database, wanted: Document, meta: Document) -> str | None:
    """Return why a crawl with these settings cannot use an index; None if it can.

    wanted: see `wanted_meta`
    """
    if meta.get(REBUILDING):
        return f"a rebuild of near-duplicates is in progress or was interrupted: {HINT}"
    if meta | wanted == meta or await _is_empty(db):
        return None
    is_move = meta | wanted == meta | {"backend": wanted["backend"]}
    if is_move and not (holders := await _claiming_elsewhere(db, wanted)):
        return None
    if is_move and wanted["backend"] == MONGODB:
        return (
            f"the band reservations move from Redis to MongoDB once the crawl with REDIS_URL on "
            f"{holders[0]} has ended. Try again then"
        )
    return (
        f"the index of near-duplicates has scheme {meta['scheme']} and reservations in "
        f"{meta['backend']}, but the settings require {wanted['scheme']} and "
        f"{wanted['backend']}: {HINT}"
    )


async def _is_empty(db: Database) -> bool:
    return await db.signatures.find_one({}, {"_id": 1}) is None


async def _claiming_elsewhere(db: Database, wanted: Document) -> list[leases.Holder]:
    """Return the holders of crawls that claim in the other place: without REDIS_URL, or with it."""
    shared = wanted["backend"] == MONGODB
    active = await leases.active(db, leases.CRAWL, shared=shared)
    return [holder for holders in active.values() for holder in holders]


async def take_back(db: Database, registry: Registry, wanted: Document) -> None:
    """Move the claims from Redis to MongoDB, if they are there; safe to repeat.

    MongoDB has all sketches, so Redis need not be reachable.
    """
    in_redis = META | {"backend": REDIS}
    if await db.meta.find_one(in_redis) is None:
        return
    logger.info("Moving band reservations from Redis to MongoDB")
    # Oldest first, so that originals own the bands that they share with their copies.
    lacking: Document = {"bands": {"$exists": False}}
    cursor = registry.signatures.find(lacking, signatures.OWNER_FIELDS).sort([("created", 1)])
    cursor = cursor.allow_disk_use(True).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await clusters.take_bands(registry, [signatures.owner_of(row) for row in rows])
    if not await _claiming_elsewhere(db, wanted):
        await db.meta.update_one(in_redis, {"$set": wanted, "$unset": {INDEX: ""}})
    if await db.meta.find_one(in_redis) is not None:
        raise StorageError(
            "a crawl with REDIS_URL started while band reservations were moved to MongoDB. "
            "Try again after it has ended"
        )


async def record_move(db: Database, wanted: Document, index: ObjectId) -> None:
    """Record that claims are in Redis; raise StorageError if a crawl claims in MongoDB."""
    moving = META | {"backend": MONGODB, INDEX: index}
    claiming = await _claiming_elsewhere(db, wanted)
    if await db.meta.find_one(moving) is not None and not claiming:
        await db.meta.update_one(moving, {"$set": wanted})
    if await db.meta.find_one(moving | {"backend": REDIS}) is None:
        raise StorageError(
            "a crawl without REDIS_URL started while band reservations were moved to Redis. "
            "Try again after it has ended"
        )
    logger.info("Band reservations moved from MongoDB to Redis")


async def refill(registry: Registry, bands: RedisBands, index: ObjectId) -> None:
    """Copy all claims from MongoDB to Redis unless Redis has this index."""
    whole, filling = name_of(registry.scheme, index), f"{FILLING} {index}"
    for _ in range(MAX_REFILLS):
        held = await bands.scheme()
        if held == whole:
            return
        logger.info("Band reservations not found in Redis, restoring them from MongoDB")
        # Several processes may copy concurrently; a late one continues, or finds the copy complete.
        with suppress(BandsLost):
            if held == filling or await bands.empty(held, filling):
                await _copy_claims(registry, bands)
                await bands.change(filling, whole)
    raise BandsLost("Redis lost its band reservations repeatedly. Try again when it is stable")


async def _copy_claims(registry: Registry, bands: RedisBands) -> None:
    # Redis needs a cluster for each post; MongoDB creates one only with the first copy.
    lacking: Document = {"cluster": {"$exists": False}}
    cursor = registry.signatures.find(lacking, {"_id": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await registry.signatures.bulk_write(
            [UpdateOne(row | lacking, {"$set": {"cluster": ObjectId()}}) for row in rows],
            ordered=False,
        )
    # Oldest first, so that originals own the bands that they share with their copies.
    cursor = registry.signatures.find({}, signatures.OWNER_FIELDS).sort([("created", 1)])
    cursor = cursor.allow_disk_use(True).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await bands.put(signatures.claims_of(map(signatures.owner_of, rows)))


@asynccontextmanager
async def rebuilding(db: Database, config: Config) -> AsyncIterator[Registry]:
    """Yield an empty index that matches the settings; `meta` is updated if the block succeeds.

    Raises Busy while any machine is crawling a spider of this database.
    """
    before, wanted = await db.meta.find_one(META), wanted_meta(config)
    wanted = wanted and with_index(wanted)
    marked: Document = (before or {}) | (wanted or {}) | {REBUILDING: True}
    await db.meta.replace_one(META, marked, upsert=True)
    async with AsyncExitStack() as stack:
        try:
            # `meta` is marked as rebuilding, so no new crawl can begin.
            for lease, holders in (await leases.active(db, leases.CRAWL)).items():
                spider = lease.removeprefix(leases.CRAWL)
                raise Busy(
                    f"a crawl of {spider} is running on {holders[0]}. Try again after it has ended"
                )
            registry = await stack.enter_async_context(as_stored(db, config, fills=False))
        except BaseException:
            await _put(db, before)
            raise
        # Indexes and validators stay: a crawl of another machine may be about to write.
        if registry.shared is not None:
            bands = cast("RedisBands", registry.shared)
            await bands.clear()
            # Claims under any other name are refused.
            await bands.begin(REBUILDING)
        await signatures.keep_times(db)
        await registry.signatures.delete_many({})
        await registry.clusters.delete_many({})
        # Regardless of the settings, as tables of deleted sources would remain.
        await db.boilerplate.delete_many({})
        registry.tables.clear()
        yield registry
        if registry.shared is not None and wanted is not None:
            whole = name_of(registry.scheme, wanted[INDEX])
            await cast("RedisBands", registry.shared).begin(whole)
    await _put(db, wanted)


async def _put(db: Database, meta: Document | None) -> None:
    if meta is None:
        await db.meta.delete_one(META)
    else:
        await db.meta.replace_one(META, meta, upsert=True)


async def posts_by_date(db: Database) -> AsyncIterator[list[Document]]:
    """Yield all posts in batches, the oldest first, without posts deleted in the meantime."""
    stages: list[Document] = [{"$project": {"date": _CREATED}}, {"$sort": {"date": 1, "_id": 1}}]
    cursor = await db.posts.aggregate(stages, allowDiskUse=True, batchSize=REBUILD_BATCH)
    async with cursor:
        while rows := await cursor.to_list(REBUILD_BATCH):
            keys = [row["_id"] for row in rows]
            fields = (*POST_FIELDS, "original", *clusters.FIELDS)
            query = {"_id": {"$in": keys}}
            stored = {post["_id"]: post async for post in db.posts.find(query, fields)}
            yield [stored[key] for key in keys if key in stored]


async def learn(registry: Registry, batch: list[Document], now: datetime) -> None:
    """Learn the boilerplate of sources from posts, before any of them is compared."""
    read_candidates = (candidate_of(post, registry.scheme) for post in batch)
    candidates = [candidate for candidate in read_candidates if candidate is not None]
    await boilerplate.learn(registry, candidates, now)
    await boilerplate.evict(registry)


async def compare_again(
    db: Database, registry: Registry, batch: list[Document], now: datetime
) -> int:
    """Claim posts, and show those without copies; return the number with a text to compare."""
    read_candidates = {post["_id"]: candidate_of(post, registry.scheme) for post in batch}
    candidates = [candidate for candidate in read_candidates.values() if candidate is not None]
    verdicts = await claims.claim(registry, candidates, now)
    alone = {key for key in read_candidates if verdicts.get(key, ALONE).cluster is None}
    flagged = [
        post["_id"]
        for post in batch
        if post.get("original") is not True or any(name in post for name in clusters.FIELDS)
    ]
    await clusters.show_verdicts(db, dict.fromkeys(alone.intersection(flagged), ALONE))
    # Includes earlier posts whose boilerplate was found later.
    others = {key: verdict for key, verdict in verdicts.items() if key not in read_candidates}
    await _show_alone(db, others)
    # Posts deleted before their claim are still in the index.
    existing = await db.posts.distinct("_id", {"_id": {"$in": list(read_candidates)}})
    await edits.release(registry, list(read_candidates.keys() - set(existing)), now)
    return len(candidates)


async def _show_alone(db: Database, verdicts: Verdicts) -> None:
    """Show the posts without a cluster; `settle` updates the others later."""
    await clusters.show_verdicts(
        db, {key: verdict for key, verdict in verdicts.items() if verdict.cluster is None}
    )


async def end_rebuild(db: Database, registry: Registry, now: datetime) -> None:
    """Compare posts again whose boilerplate was found later, and show all clusters."""
    await _show_alone(db, await claims.review(registry, now))
    cursor = registry.clusters.find({}, {"_id": 1}).batch_size(REBUILD_BATCH)
    while rows := await cursor.to_list(REBUILD_BATCH):
        await clusters.settle(db, registry, [row["_id"] for row in rows])


async def show_all(db: Database) -> int:
    """Make all posts originals; return how many were not."""
    update = clusters.update_of(ALONE)
    return (await db.posts.update_many(FLAGGED, update)).modified_count
