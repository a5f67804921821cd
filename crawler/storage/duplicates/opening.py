"""Opening the index of the posts' sketches: what is stored there must be what the settings ask for.

`meta` says which scheme the stored sketches are of, and whether MongoDB or Redis keeps the claims.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from crawler.config import Config
from crawler.errors import BandsLost, ConfigError, StorageError
from crawler.sketches.schemes import Scheme, scheme_of
from crawler.storage import runs
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import signatures
from crawler.storage.duplicates.registry import Registry

if TYPE_CHECKING:
    from crawler.redis.bands import RedisBands

logger = logging.getLogger(__name__)
META: Document = {"_id": "duplicates"}
MONGODB, REDIS, REBUILDING = "mongodb", "redis", "rebuilding"
FILLING = "filling"
FILLINGS = 10
# A pass that began longer ago and has not ended was cut off.
AT_WORK = timedelta(hours=1)
BATCH = 1000
HINT = "scrapy duplicates rebuild compares all posts anew"


@asynccontextmanager
async def opened(db: Database, config: Config) -> AsyncIterator[Registry | None]:
    """The index as the settings ask for it; None where duplicates are off.

    Raises StorageError where what is stored is of another scheme, or kept elsewhere.
    """
    if config.duplicates == "off":
        yield None
        return
    scheme = scheme_of(config.duplicates, config.duplicate_threshold)
    await agree(db, scheme, config)
    if config.redis_url is None:
        yield Registry.of(db, scheme)
        return
    async with _in_redis(db, config, scheme) as registry:
        yield registry


@asynccontextmanager
async def as_stored(db: Database, config: Config) -> AsyncIterator[Registry]:
    """The index as it is, whatever the settings ask for: to take posts out of it."""
    meta = await db.meta.find_one(META) or {}
    name = meta.get("scheme", config.duplicates).partition("-")[0]
    scheme = scheme_of("characters" if name == "off" else name, config.duplicate_threshold)
    if meta.get("keeper") != REDIS:
        yield Registry.of(db, scheme)
        return
    if config.redis_url is None:
        raise ConfigError("near-duplicates are claimed in Redis: REDIS_URL has to name it")
    async with _in_redis(db, config, scheme) as registry:
        yield registry


@asynccontextmanager
async def _in_redis(db: Database, config: Config, scheme: Scheme) -> AsyncIterator[Registry]:
    from crawler.redis.bands import RedisBands
    from crawler.redis.client import open_redis

    url, seconds = config.redis_url or "", config.commit_retry_seconds
    client = await open_redis(url, retry_seconds=seconds)
    try:
        bands = RedisBands(client, f"freshet:{db.name}:duplicates")
        registry = Registry.of(db, scheme, bands)
        await refill(registry, bands)
        yield registry
    finally:
        await client.aclose()


async def agree(db: Database, scheme: Scheme, config: Config) -> None:
    """Note in an empty index what it is to be of; raise StorageError where it is of another."""
    keeper = MONGODB if config.redis_url is None else REDIS
    asked: Document = {"scheme": scheme.name, "keeper": keeper}
    found = await db.meta.find_one(META)
    if found is not None and found.get(REBUILDING):
        raise StorageError(f"near-duplicates are being rebuilt, or that was cut short: {HINT}")
    if found is not None and {name: found.get(name) for name in asked} == asked:
        return
    if found is None or await db.signatures.find_one({}, {"_id": 1}) is None:
        await db.meta.replace_one(META, asked, upsert=True)
        return
    if found | asked == found | {"keeper": REDIS} and not await runs.at_work(db, AT_WORK):
        await _move_to_redis(db, asked)
        return
    raise StorageError(
        f"the stored posts are compared by {found['scheme']} with claims in {found['keeper']}, "
        f"the settings ask for {scheme.name} in {keeper}: {HINT}"
    )


async def _move_to_redis(db: Database, asked: Document) -> None:
    """Nobody claims in MongoDB any more; Redis is filled like one that lost its data."""
    logger.info("Near-duplicates are claimed in Redis from now on")
    await db.meta.replace_one(META, asked, upsert=True)
    await db.signatures.update_many({"bands": {"$exists": True}}, {"$unset": {"bands": ""}})


async def refill(registry: Registry, bands: RedisBands) -> None:
    """Make Redis hold what MongoDB does, where it has lost it."""
    for _ in range(FILLINGS):
        held = await bands.scheme()
        if held == registry.scheme.name:
            return
        logger.info("Redis holds no claims of near-duplicates; they are taken from MongoDB")
        # Two may do it at the same moment: whoever is late finds that it is done, or goes on.
        with suppress(BandsLost):
            await _fill(registry, bands, begin=held != FILLING)
    raise BandsLost("Redis loses its claims again and again: start again when it is at rest")


async def _fill(registry: Registry, bands: RedisBands, *, begin: bool) -> None:
    if begin:
        await bands.clear()
        await bands.begin(FILLING)
    cursor = registry.signatures.find({}, signatures.OF_OWNER)
    # In the order of their creation, originals own what their copies would own else.
    cursor = cursor.sort([("created", 1)]).allow_disk_use(True).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await bands.put(signatures.claims_of(map(signatures.owner_of, rows)))
    await bands.begin(registry.scheme.name)
