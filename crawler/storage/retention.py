"""Size limits of versions, and deletion of whole targets and sites (forget)."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from bson import encode
from pymongo import ReturnDocument, UpdateOne

from crawler.config import Config
from crawler.items import Kind, Visit
from crawler.storage import feeds
from crawler.storage.client import Database, Document, MongoRetry, in_batches
from crawler.storage.dedup import boilerplate
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.signatures import Registry
from crawler.storage.posts import content_of
from crawler.storage.targets import with_url
from crawler.utils.text import count
from crawler.utils.urls import item_key

logger = logging.getLogger(__name__)
MEGABYTE = 1024**2
# Share of a limit to keep when removing versions; with 1, each visit would remove one.
LEFT_OF_TARGET, LEFT_OF_SITE = 0.75, 0.9
# New bytes of a site are stored in steps of this size, so a crash loses at most one step.
STEP_BYTES = 64 * MEGABYTE
BATCH = 500
SIZE: Document = {"$bsonSize": {"$ifNull": ["$content", {}]}}
FIELDS: Document = {"spider": 1, "target": 1, "content_hash": 1, "bytes": SIZE}
# Collections with URLs of pages, and the field that has the URL.
OF_A_URL = {
    "targets": "url",
    "visits": "target",
    "versions": "target",
    "posts": "url",
    "days": "target",
    "alarms": "target",
    "outbox": "target",
}
OF_A_SPIDER = (*OF_A_URL, "listings", "runs", "feeds", "pushes", "cells", "dead_letters", "rereads")


@dataclass(frozen=True, slots=True)
class SiteSize:
    """The bytes of a site's versions, and the number of versions removed."""

    bytes: int
    removed: int


def measure(batch: Iterable[Visit]) -> None:
    """Store in each visit the size of its new versions in bytes."""
    for visit in batch:
        visit.version_bytes = 0
        if visit.collected is not None:
            visit.version_bytes = sum(len(encode(p.content)) for _, p in visit.collected.posts)
        elif visit.stores_content:
            visit.version_bytes = len(encode(content_of(visit.fetched)))


async def recount_all(db: Database, spider: str, names: Sequence[str]) -> None:
    """Correct the `kept_bytes` of targets other than feeds after versions were replaced.

    names: URLs, at most a batch
    """
    stages: list[Document] = [
        {"$match": {"target": {"$in": list(names)}, "spider": spider}},
        {"$group": {"_id": "$target", "bytes": {"$sum": SIZE}}},
    ]
    kept = {row["_id"]: row["bytes"] async for row in await db.versions.aggregate(stages)}
    updates = [
        UpdateOne({"_id": f"{spider} {name}"}, {"$set": {"kept_bytes": kept.get(name, 0)}})
        for name in names
    ]
    if updates:
        await db.targets.bulk_write(updates, ordered=False)


async def current_versions(db: Database, keys: Collection[str]) -> set[str]:
    """Return the `_id`s of the current versions of targets and posts. keys: their `_id`s."""
    query: Document = {"_id": {"$in": sorted(keys)}}
    return {
        f"{row['_id']} {row['content_hash']}"
        for collection in (db.targets, db.posts)
        async for row in collection.find(query, {"content_hash": 1})
        if row.get("content_hash")
    }


async def _sum_bytes(db: Database, query: Document) -> int:
    sums: Document = {"$group": {"_id": None, "bytes": {"$sum": SIZE}}}
    rows = await (await db.versions.aggregate([{"$match": query}, sums])).to_list(1)
    return rows[0]["bytes"] if rows else 0


class SizeLimits:
    """The size limits of a site and its targets."""

    def __init__(self, db: Database, spider: str, config: Config) -> None:
        self._db, self._spider = db, spider
        self._target_bytes = config.max_target_mb * MEGABYTE or math.inf
        self._site_bytes = config.max_site_mb * MEGABYTE or math.inf
        # Bytes of all processes and runs, as of the last query.
        self._site_kept: int | None = None
        self._unwritten = 0

    async def stored(self, batch: Sequence[Visit], patience: MongoRetry) -> None:
        """Apply the limits after a batch is stored; no query while all sizes are below them."""
        self._unwritten += sum(visit.version_bytes for visit in batch)
        for visit in batch:
            target = visit.fetched.target
            kept_bytes = target.kept_bytes + visit.version_bytes
            if visit.version_bytes and kept_bytes > self._target_bytes:
                await patience.ask(
                    partial(self._bound_target, target.key, target.kind is Kind.FEED)
                )
        if self._site_kept is None or self._unwritten >= STEP_BYTES:
            await patience.ask(self.note)
        if (self._site_kept or 0) + self._unwritten > self._site_bytes:
            await patience.ask(self.bound_site)

    async def note(self) -> None:
        """Store the bytes that this process added, and load those of all processes."""
        if self._site_kept is not None and not self._unwritten:
            return
        more = {"$inc": {"kept_bytes": self._unwritten}}
        site = await self._db.sites.find_one_and_update(
            {"_id": self._spider}, more, {"kept_bytes": 1}, return_document=ReturnDocument.AFTER
        )
        self._site_kept, self._unwritten = (site or {}).get("kept_bytes", 0), 0

    async def bound_targets(self, *, really: bool = True) -> int:
        """Apply the limit to all targets after a change of settings; return removed versions."""
        if self._target_bytes == math.inf:
            return 0
        query: Document = {"spider": self._spider, "kept_bytes": {"$gt": self._target_bytes}}
        removed = 0
        for row in await self._db.targets.find(query, {"kind": 1}).to_list(None):
            is_feed = row["kind"] == Kind.FEED
            removed += await self._bound_target(row["_id"], is_feed, really=really)
        return removed

    async def _bound_target(self, key: str, is_feed: bool, *, really: bool = True) -> int:
        """Remove the oldest versions of a target that is too large; return their number."""
        current = await self._current_of(key, is_feed)
        names = [post.removeprefix(f"{self._spider} ") for post in current]
        rows = []
        for batch in in_batches(names, BATCH):
            query = {"spider": self._spider, "target": {"$in": batch}}
            stages = [{"$match": query}, {"$project": FIELDS | {"at": 1}}]
            rows += await (await self._db.versions.aggregate(stages)).to_list(None)
        kept = sum(row["bytes"] for row in rows)
        limit_bytes = self._target_bytes * LEFT_OF_TARGET if kept > self._target_bytes else math.inf
        gone: list[str] = []
        for row in sorted(rows, key=lambda row: row["at"]):
            if kept <= limit_bytes:
                break
            if row["_id"] != current[f"{row['spider']} {row['target']}"]:
                gone.append(row["_id"])
                kept -= row["bytes"]
        if really:
            for ids in in_batches(gone, BATCH):
                await self._db.versions.delete_many({"_id": {"$in": ids}})
            await self._db.targets.update_one({"_id": key}, {"$set": {"kept_bytes": kept}})
        return len(gone)

    async def _current_of(self, key: str, is_feed: bool) -> dict[str, str]:
        """Return the `_id` of the current version of a target, or of each post of a feed."""
        fields = {"content_hash": 1}
        if not is_feed:
            target = await self._db.targets.find_one({"_id": key}, fields) or {}
            return {key: f"{key} {target.get('content_hash')}"}
        of_feed = {"spider": self._spider, "feed": key.removeprefix(f"{self._spider} ")}
        posts = self._db.posts.find(of_feed, fields)
        return {post["_id"]: f"{post['_id']} {post['content_hash']}" async for post in posts}

    async def bound_site(self, *, really: bool = True) -> SiteSize:
        """Measure the site's versions, and remove the oldest if they are too large."""
        kept = await _sum_bytes(self._db, {"spider": self._spider})
        result = SiteSize(kept, 0)
        if kept > self._site_bytes:
            result = await self._remove_oldest(kept, really=really)
        if really:
            update = {"$set": {"kept_bytes": result.bytes}}
            await self._db.sites.update_one({"_id": self._spider}, update)
            self._site_kept, self._unwritten = result.bytes, 0
            self._log(result)
        return result

    async def _remove_oldest(self, kept: int, *, really: bool) -> SiteSize:
        limit_bytes, removed = self._site_bytes * LEFT_OF_SITE, 0
        stages: list[Document] = [
            {"$match": {"spider": self._spider}},
            {"$sort": {"at": 1}},
            {"$project": FIELDS},
        ]
        batch: list[Document] = []
        async for row in await self._db.versions.aggregate(stages, batchSize=BATCH):
            batch.append(row)
            if len(batch) == BATCH:
                kept, removed = await self._remove(batch, kept, removed, limit_bytes, really=really)
                batch = []
            if kept <= limit_bytes:
                break
        return SiteSize(*await self._remove(batch, kept, removed, limit_bytes, really=really))

    async def _remove(
        self, rows: list[Document], kept: int, removed: int, limit_bytes: float, *, really: bool
    ) -> tuple[int, int]:
        """Remove some of these versions, in order, until `limit_bytes` are kept."""
        keys = {f"{row['spider']} {row['target']}" for row in rows}
        current, gone = await current_versions(self._db, keys), []
        for row in rows:
            if kept > limit_bytes and row["_id"] not in current:
                gone.append(row)
                kept -= row["bytes"]
        if really and gone:
            await self._db.versions.delete_many({"_id": {"$in": [row["_id"] for row in gone]}})
            updates = []
            for row in gone:
                # Versions of posts match no target here, as a post's `_id` is not a target's.
                remaining: Document = {"$subtract": [{"$ifNull": ["$kept_bytes", 0]}, row["bytes"]]}
                kept_bytes = [{"$set": {"kept_bytes": {"$max": [0, remaining]}}}]
                updates.append(UpdateOne({"_id": f"{row['spider']} {row['target']}"}, kept_bytes))
            await self._db.targets.bulk_write(updates, ordered=False)
        return kept, removed + len(gone)

    def _log(self, result: SiteSize) -> None:
        if result.removed:
            logger.info(
                "%s: removed %s: the site exceeded FRESHET_MAX_SITE_MB (%.0f)",
                self._spider, count(result.removed, "old version"), self._site_bytes / MEGABYTE,
            )  # fmt: skip
        if result.bytes > self._site_bytes:
            logger.warning(
                "%s: all old versions removed: the current contents take %.0f MB, more than "
                "FRESHET_MAX_SITE_MB (%.0f)",
                self._spider, result.bytes / MEGABYTE, self._site_bytes / MEGABYTE,
            )  # fmt: skip
            # Raising the limit avoids measuring the site again after each batch.
            self._site_bytes = result.bytes / LEFT_OF_SITE


async def forget_url(
    db: Database, registry: Registry, url: str, now: datetime, *, really: bool
) -> dict[str, int]:
    """Remove a URL and its aliases for all spiders; return counts by collection.

    Also removes the feeds' posts of the page: all sources of its item, with their versions.
    """
    fields = {"spider": 1, "url": 1, "kind": 1, "final_url": 1}
    rows = await db.targets.find(await with_url(db, [url]), fields).to_list(None)
    counts: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == Kind.FEED:
            # Removing a feed removes its posts and pages.
            spider, urls = row["spider"], [row["url"]]
            counts += Counter(await feeds.remove(db, registry, spider, urls, now, really=really))
    pages = [row for row in rows if row["kind"] != Kind.FEED]
    owners = sorted({row["url"] for row in pages})
    queries: dict[str, Document] = {
        name: {field: {"$in": owners}} for name, field in OF_A_URL.items()
    }
    items = [item_key(row.get("final_url") or row["url"]) for row in pages]
    by_key: Document = {"_id": {"$in": [row["_id"] for row in pages]}}
    queries["posts"] = {"$or": [by_key, {"item": {"$in": [item for item in items if item]}}]}
    of_feeds = queries["posts"] | {"feed": {"$exists": True}}
    posts = await db.posts.find(of_feeds, {"spider": 1}).to_list(None)
    of_posts = [
        {"spider": post["spider"], "target": post["_id"].removeprefix(f"{post['spider']} ")}
        for post in posts
    ]
    queries["versions"] = {"$or": [queries["versions"], *of_posts]}
    if really:
        await release_posts(db, registry, queries["posts"], now)
    cells = [row["_id"] for row in rows if row["kind"] == Kind.CELL]
    queries["cells"] = {"_id": {"$in": cells}}
    queries["listings"] = {
        # The indexes begin with the spider.
        "spider": {"$in": sorted({row["spider"] for row in rows})},
        "$or": [{"item": {"$in": owners}}, {"list": {"$in": owners}}],
    }
    of_pages = await _remove(db, queries, really=really)
    for spider in {row["spider"] for row in rows} if really else ():
        if await db.posts.find_one({"spider": spider}, {"_id": 1}) is None:
            await boilerplate.forget(db, spider)
        # The next run adds start URLs again.
        await db.sites.update_one({"_id": spider}, {"$unset": {"inputs": ""}})
    names_in_order = dict.fromkeys((*of_pages, *counts))
    return {name: of_pages.get(name, 0) + counts[name] for name in names_in_order}


async def forget_spider(
    db: Database, registry: Registry, spider: str, now: datetime, *, really: bool
) -> dict[str, int]:
    """Remove all data of a spider; return counts by collection.

    Plans that include other spiders are kept for those spiders.
    """
    queries: dict[str, Document] = {name: {"spider": spider} for name in OF_A_SPIDER}
    queries["plans"] = {"$or": [{"spiders": [spider]}, {"samples": spider}]}
    queries["sites"] = {"_id": spider}
    if really:
        await release_posts(db, registry, queries["posts"], now)
    counts = await _remove(db, queries, really=really)
    if really:
        await boilerplate.forget(db, spider)
        await db.plans.update_many({"spiders": spider}, {"$pull": {"spiders": spider}})
        await db.reading.delete_many({"feed": {"$regex": f"^{re.escape(spider)} "}})
    return counts


async def _remove(db: Database, queries: dict[str, Document], *, really: bool) -> dict[str, int]:
    counts = {}
    for name, query in queries.items():
        if really:
            counts[name] = (await db[name].delete_many(query)).deleted_count
        else:
            counts[name] = await db[name].count_documents(query)
    return counts
