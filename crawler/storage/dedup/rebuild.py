"""All posts compared anew, in the order in which they were written.

While that goes on, and after it was cut short, `meta` says so and crawls are refused; it may be
begun again as often as it takes. Until it reaches a post, that shows what it did before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

from crawler.config import Config
from crawler.dedup.model import AHEAD, ALONE, OLDEST
from crawler.storage.client import Database, Document
from crawler.storage.dedup import boilerplate, flags
from crawler.storage.dedup import candidates as comparing
from crawler.storage.dedup import edits as leaving
from crawler.storage.dedup import index as claims
from crawler.storage.dedup.index import (
    INDEX,
    META,
    REBUILDING,
    as_stored,
    asked_of,
    name_of,
    with_index,
)
from crawler.storage.dedup.registry import Registry

if TYPE_CHECKING:
    from crawler.storage.dedup.redis import RedisBands

BATCH = 250
Check = Callable[[], Awaitable[None]]
FLAGGED: Document = {"$or": [{"original": {"$ne": True}}, {"cluster": {"$exists": True}}]}


@asynccontextmanager
async def begun(db: Database, config: Config, check: Check) -> AsyncIterator[Registry]:
    """An empty index as the settings ask for it; `meta` names it when the block has ended well.

    check: raises where it must not begin; no crawl can begin any more when it is called
    """
    before, asked = await db.meta.find_one(META), asked_of(config)
    asked = asked and with_index(asked)
    marked: Document = (before or {}) | (asked or {}) | {REBUILDING: True}
    await db.meta.replace_one(META, marked, upsert=True)
    async with AsyncExitStack() as stack:
        try:
            await check()
            registry = await stack.enter_async_context(as_stored(db, config, fills=False))
        except BaseException:
            await _put(db, before)
            raise
        await _empty(registry)
        yield registry
        if registry.shared is not None and asked is not None:
            whole = name_of(registry.scheme, asked[INDEX])
            await cast("RedisBands", registry.shared).begin(whole)
    await _put(db, asked)


async def _put(db: Database, meta: Document | None) -> None:
    if meta is None:
        await db.meta.delete_one(META)
    else:
        await db.meta.replace_one(META, meta, upsert=True)


async def _empty(registry: Registry) -> None:
    """Indexes and validators stay: a crawl of another machine may be about to write."""
    if registry.shared is not None:
        bands = cast("RedisBands", registry.shared)
        await bands.clear()
        # Whoever claims under another name than this is refused.
        await bands.begin(REBUILDING)
    await registry.signatures.delete_many({})
    await registry.clusters.delete_many({})
    # Of other settings too: sources that are gone would stay.
    await registry.signatures.database.boilerplate.delete_many({})
    registry.tables.clear()


async def posts(db: Database) -> AsyncIterator[list[Document]]:
    """All posts in batches, the oldest first; they may have gone meanwhile."""
    stages: list[Document] = [{"$project": {"date": _CREATED}}, {"$sort": {"date": 1, "_id": 1}}]
    found = await db.posts.aggregate(stages, allowDiskUse=True, batchSize=BATCH)
    async with found:
        while rows := await found.to_list(BATCH):
            keys = [row["_id"] for row in rows]
            fields = (*comparing.FIELDS, "original", *flags.FIELDS)
            some = db.posts.find({"_id": {"$in": keys}}, fields)
            known = {post["_id"]: post async for post in some}
            yield [known[key] for key in keys if key in known]


_STATED: Document = {
    "$cond": [{"$eq": [{"$type": "$published"}, "date"]}, "$published", "$fields.published"]
}
_LATEST: Document = {"$add": ["$first_seen", AHEAD // timedelta(milliseconds=1)]}
_BELIEVABLE: Document = {
    "$and": [
        {"$eq": [{"$type": _STATED}, "date"]},
        {"$gte": [_STATED, OLDEST]},
        {"$lte": [_STATED, _LATEST]},
    ]
}
# As `comparing.created_of` has it, but for the page of a feed's post; a claim bears any order.
_CREATED: Document = {"$cond": [_BELIEVABLE, {"$min": [_STATED, "$first_seen"]}, "$first_seen"]}


async def learn(registry: Registry, some: list[Document], now: datetime) -> None:
    """Learn the boilerplate of sources from some posts, before any of them is compared."""
    made = (comparing.candidate_of(post, registry.scheme) for post in some)
    await boilerplate.learn(registry, [one for one in made if one is not None], now)


async def compare(db: Database, registry: Registry, some: list[Document], now: datetime) -> int:
    """Claim some posts; those that are alone show it. How many have a text to compare."""
    made = {post["_id"]: comparing.candidate_of(post, registry.scheme) for post in some}
    candidates = [candidate for candidate in made.values() if candidate is not None]
    verdicts = await claims.claim(registry, candidates, now)
    alone = {key for key in made if verdicts.get(key, ALONE).cluster is None}
    flagged = [post["_id"] for post in some if not _is_plain(post)]
    await flags.show(db, dict.fromkeys(alone.intersection(flagged), ALONE))
    # Earlier ones that boilerplate has become known of; clusters are shown at the end.
    others = {key: one for key, one in verdicts.items() if key not in made and one.cluster is None}
    await flags.show(db, others)
    # Who deleted a post before it was claimed could not take it out of the index.
    there = await db.posts.distinct("_id", {"_id": {"$in": list(made)}})
    await leaving.release(registry, list(made.keys() - set(there)), now)
    return len(candidates)


def _is_plain(post: Document) -> bool:
    """Whether a post shows that it is alone."""
    return post.get("original") is True and not any(name in post for name in flags.FIELDS)


async def settle(db: Database, registry: Registry) -> None:
    """Let posts show the clusters that they are in now."""
    cursor = registry.clusters.find({}, {"_id": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await flags.settle(db, registry, [row["_id"] for row in rows])


async def show_all(db: Database) -> int:
    """Make all posts originals, as nothing is compared; how many were not."""
    update = flags.update_of(ALONE)
    return (await db.posts.update_many(FLAGGED, update)).modified_count
