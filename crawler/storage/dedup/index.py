"""Opening the index of sketches, after checking that it matches the settings, and its rebuild.

`meta` stores the scheme of the sketches.

A rebuild compares all posts again, in the order of their dates. While it runs, and after an
interruption, `meta` marks the index as rebuilding and crawls are refused. A rebuild can be
repeated. Posts show their former verdicts until it reaches them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from pymongo.errors import DuplicateKeyError

from crawler.config import Config
from crawler.dedup.posts import AHEAD, ALONE, OLDEST, Verdicts
from crawler.dedup.schemes import Scheme, scheme_of
from crawler.errors import Busy, StorageError
from crawler.storage import leases
from crawler.storage.client import Database, Document
from crawler.storage.dedup import boilerplate, claims, clusters, edits, signatures
from crawler.storage.dedup.signatures import POST_FIELDS, Registry, candidate_of
from crawler.storage.verdicts import FIELDS, update_of

META: Document = {"_id": "duplicates"}
REBUILDING = "rebuilding"
# Attempts when other processes change `meta`.
MAX_TRIES = 10
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

    Raises StorageError if the index has another scheme.
    """
    scheme = wanted_scheme(config)
    if scheme is None:
        yield None
        return
    await _agree(db, scheme)
    async with reviewed_at_end(db, Registry.of(db, scheme)) as registry:
        yield registry


@asynccontextmanager
async def as_stored(db: Database, config: Config) -> AsyncIterator[Registry]:
    """Yield the index as it is stored, regardless of the settings, to remove posts."""
    meta = await db.meta.find_one(META) or {}
    registry = Registry.of(db, stored_scheme(meta, config))
    async with boilerplate.stored_at_end(registry):
        yield registry


@asynccontextmanager
async def reviewed_at_end(db: Database, registry: Registry) -> AsyncIterator[Registry]:
    """Yield an index; unless an error occurs, compare pending posts and store tables afterwards."""
    async with boilerplate.stored_at_end(registry):
        yield registry
        verdicts = await claims.review(registry, datetime.now(UTC))
        await clusters.confirm(db, registry, verdicts, written=())


def wanted_scheme(config: Config) -> Scheme | None:
    """Return the scheme that the settings ask for; None if duplicates are off."""
    if config.duplicates == "off":
        return None
    return scheme_of(config.duplicates, config.duplicate_threshold)


def stored_scheme(meta: Document, config: Config) -> Scheme:
    """Return the scheme of the stored posts; without posts, the one in the settings."""
    name = meta.get("scheme", config.duplicates).partition("-")[0]
    return scheme_of("characters" if name == "off" else name, config.duplicate_threshold)


async def _agree(db: Database, scheme: Scheme) -> None:
    """Set the scheme of an empty index; raise StorageError if the index has another one."""
    for _ in range(MAX_TRIES):
        meta = await db.meta.find_one(META)
        if meta is None:
            with suppress(DuplicateKeyError):
                await db.meta.insert_one(META | {"scheme": scheme.name})
        elif reason := await refusal(db, scheme, meta):
            raise StorageError(reason)
        elif meta["scheme"] != scheme.name:
            await db.meta.replace_one(meta, META | {"scheme": scheme.name})
        else:
            return
    raise StorageError("other processes keep changing the scheme of near-duplicates. Try again")


async def refusal(db: Database, scheme: Scheme, meta: Document) -> str | None:
    """Return why a crawl with this scheme cannot use an index; None if it can.

    meta: the stored document of the index
    """
    if meta.get(REBUILDING):
        return f"a rebuild of near-duplicates is in progress or was interrupted: {HINT}"
    if meta["scheme"] == scheme.name or await db.signatures.find_one({}, {"_id": 1}) is None:
        return None
    return (
        f"the index of near-duplicates has scheme {meta['scheme']}, but the settings require "
        f"{scheme.name}: {HINT}"
    )


@asynccontextmanager
async def rebuilding(db: Database, config: Config) -> AsyncIterator[Registry]:
    """Yield an empty index that matches the settings; `meta` is updated if the block succeeds.

    Raises Busy while any machine is crawling a spider of this database.
    """
    before, scheme = await db.meta.find_one(META), wanted_scheme(config)
    wanted: Document = {} if scheme is None else {"scheme": scheme.name}
    marked: Document = (before or {}) | wanted | {REBUILDING: True}
    await db.meta.replace_one(META, marked, upsert=True)
    # From now on, no new crawl can begin.
    try:
        for lease, holders in (await leases.active(db, leases.CRAWL)).items():
            spider = lease.removeprefix(leases.CRAWL)
            raise Busy(
                f"a crawl of {spider} is running on {holders[0]}. Try again after it has ended"
            )
    except BaseException:
        await _put(db, before)
        raise
    async with as_stored(db, config) as registry:
        # Indexes and validators stay: a crawl of another machine may be about to write.
        await signatures.keep_times(db)
        await registry.signatures.delete_many({})
        await registry.clusters.delete_many({})
        # Regardless of the settings, as tables of deleted sources would remain.
        await db.boilerplate.delete_many({})
        registry.tables.clear()
        yield registry
    await _put(db, wanted)


async def _put(db: Database, meta: Document | None) -> None:
    """Replace `meta`, or delete it if nothing is given."""
    if meta:
        await db.meta.replace_one(META, meta, upsert=True)
    else:
        await db.meta.delete_one(META)


async def posts_by_date(db: Database) -> AsyncIterator[list[Document]]:
    """Yield all posts in batches, the oldest first, without posts deleted in the meantime."""
    stages: list[Document] = [{"$project": {"date": _CREATED}}, {"$sort": {"date": 1, "_id": 1}}]
    cursor = await db.posts.aggregate(stages, allowDiskUse=True, batchSize=REBUILD_BATCH)
    async with cursor:
        while rows := await cursor.to_list(REBUILD_BATCH):
            keys = [row["_id"] for row in rows]
            fields = (*POST_FIELDS, "original", *FIELDS)
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
        if post.get("original") is not True or any(name in post for name in FIELDS)
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
    update = update_of(ALONE)
    return (await db.posts.update_many(FLAGGED, update)).modified_count
