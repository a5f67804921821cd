"""Rebuild of the index: compare all posts again, in the order of their dates.

During a rebuild, and after an interrupted one, `meta` marks the index as rebuilding and crawls are
refused. A rebuild can be repeated. Posts show their former verdicts until it reaches them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

from crawler.config import Config
from crawler.dedup.posts import AHEAD, ALONE, OLDEST, Verdicts
from crawler.errors import Busy
from crawler.storage import leases
from crawler.storage.client import Database, Document
from crawler.storage.dedup import boilerplate, claims, clusters, edits
from crawler.storage.dedup.candidates import FIELDS, candidate_of
from crawler.storage.dedup.index import (
    INDEX,
    META,
    REBUILDING,
    as_stored,
    name_of,
    wanted_meta,
    with_index,
)
from crawler.storage.dedup.signatures import Registry

if TYPE_CHECKING:
    from crawler.storage.dedup.redis import RedisBands

BATCH = 250
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
# Like `candidates.created_of`, but without the page of a feed's post; claims work in any order.
_CREATED: Document = {"$cond": [_IS_PLAUSIBLE, {"$min": [_STATED, "$first_seen"]}, "$first_seen"]}


@asynccontextmanager
async def begun(db: Database, config: Config) -> AsyncIterator[Registry]:
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


async def posts(db: Database) -> AsyncIterator[list[Document]]:
    """Yield all posts in batches, the oldest first, without posts deleted in the meantime."""
    stages: list[Document] = [{"$project": {"date": _CREATED}}, {"$sort": {"date": 1, "_id": 1}}]
    cursor = await db.posts.aggregate(stages, allowDiskUse=True, batchSize=BATCH)
    async with cursor:
        while rows := await cursor.to_list(BATCH):
            keys = [row["_id"] for row in rows]
            fields = (*FIELDS, "original", *clusters.FIELDS)
            query = {"_id": {"$in": keys}}
            stored = {post["_id"]: post async for post in db.posts.find(query, fields)}
            yield [stored[key] for key in keys if key in stored]


async def learn(registry: Registry, batch: list[Document], now: datetime) -> None:
    """Learn the boilerplate of sources from posts, before any of them is compared."""
    read_candidates = (candidate_of(post, registry.scheme) for post in batch)
    candidates = [candidate for candidate in read_candidates if candidate is not None]
    await boilerplate.learn(registry, candidates, now)
    await boilerplate.evict(registry)


async def compare(db: Database, registry: Registry, batch: list[Document], now: datetime) -> int:
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


async def settle(db: Database, registry: Registry, now: datetime) -> None:
    """Compare posts again whose boilerplate was found later, and show all clusters."""
    await _show_alone(db, await claims.review(registry, now))
    cursor = registry.clusters.find({}, {"_id": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await clusters.settle(db, registry, [row["_id"] for row in rows])


async def show_all(db: Database) -> int:
    """Make all posts originals; return how many were not."""
    update = clusters.update_of(ALONE)
    return (await db.posts.update_many(FLAGGED, update)).modified_count
