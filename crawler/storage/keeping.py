"""Bytes of versions that are kept: bounded for each target and each site, the oldest go first.

A version counts as its content in BSON, before MongoDB compresses it. Each target has `kept_bytes`,
written with its visit, so that nothing has to be asked before a page is stored. The number may be
too large (a content that comes back is counted again), never too small; whoever removes versions
because of it reads what is there and sets it right. A site's number is in `sites`.

The current content of every target and post stays, and so does every row of the change log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from bson import encode
from pymongo import ReturnDocument, UpdateOne

from crawler.config import Config
from crawler.items import Kind, Visit
from crawler.storage.bulk import in_batches
from crawler.storage.client import Database, Document
from crawler.storage.patience import Patience
from crawler.storage.versions import content_of
from crawler.utils.text import count

logger = logging.getLogger(__name__)
MEGABYTE = 1024**2
# What is left of a bound after versions were removed: else each visit would remove one.
LEFT_OF_TARGET, LEFT_OF_SITE = 0.75, 0.9
# New bytes of a site are written down in steps of this size: a crash forgets no more.
STEP_BYTES = 64 * MEGABYTE
BATCH = 500
SIZE: Document = {"$bsonSize": {"$ifNull": ["$content", {}]}}
FIELDS: Document = {"spider": 1, "target": 1, "content_hash": 1, "bytes": SIZE}


@dataclass(frozen=True, slots=True)
class Kept:
    """What one look at a site's versions found: bytes that are kept, and versions that went."""

    bytes: int
    removed: int


def measure(batch: Iterable[Visit]) -> None:
    """Note with each visit how many bytes the versions have that it brought."""
    for visit in batch:
        visit.version_bytes = 0
        if visit.collected is not None:
            visit.version_bytes = sum(len(encode(p.content)) for _, p in visit.collected.posts)
        elif visit.stores_content:
            visit.version_bytes = len(encode(content_of(visit.fetched)))


async def recount(db: Database, spider: str, name: str) -> None:
    """Set right what a target keeps, after versions of it were removed; a post has no number."""
    of_one: Document = {"$match": {"spider": spider, "target": name}}
    sums: Document = {"$group": {"_id": None, "bytes": {"$sum": SIZE}}}
    found = await (await db.versions.aggregate([of_one, sums])).to_list(1)
    kept = found[0]["bytes"] if found else 0
    await db.targets.update_one(
        {"_id": f"{spider} {name}", "kind": {"$ne": str(Kind.FEED)}}, {"$set": {"kept_bytes": kept}}
    )


class Keeping:
    """The bounds of one site."""

    def __init__(self, db: Database, spider: str, config: Config) -> None:
        self._db, self._spider = db, spider
        self._target_bytes = config.max_target_mb * MEGABYTE or math.inf
        self._site_bytes = config.max_site_mb * MEGABYTE or math.inf
        # Of all processes and runs, as of the last question.
        self._known: int | None = None
        self._unwritten = 0

    async def stored(self, batch: Sequence[Visit], patience: Patience) -> None:
        """Bound what is kept, once a batch is stored; asks nothing while all is within bounds."""
        self._unwritten += sum(visit.version_bytes for visit in batch)
        for visit in batch:
            target = visit.fetched.target
            kept_bytes = target.kept_bytes + visit.version_bytes
            if visit.version_bytes and kept_bytes > self._target_bytes:
                one = partial(self._bound_one, target.key, target.kind is Kind.FEED)
                await patience.ask(one)
        if self._known is None or self._unwritten >= STEP_BYTES:
            await patience.ask(self.note)
        if (self._known or 0) + self._unwritten > self._site_bytes:
            await patience.ask(self.bound_site)

    async def note(self) -> None:
        """Write down what this process has added, and learn what all have."""
        if self._known is not None and not self._unwritten:
            return
        more = {"$inc": {"kept_bytes": self._unwritten}}
        found = await self._db.sites.find_one_and_update(
            {"_id": self._spider}, more, {"kept_bytes": 1}, return_document=ReturnDocument.AFTER
        )
        self._known, self._unwritten = (found or {}).get("kept_bytes", 0), 0

    async def bound_targets(self, *, really: bool = True) -> int:
        """Bound all targets, as after a setting was changed; how many versions go."""
        if self._target_bytes == math.inf:
            return 0
        query: Document = {"spider": self._spider, "kept_bytes": {"$gt": self._target_bytes}}
        found = await self._db.targets.find(query, {"kind": 1}).to_list(None)
        ones = [(row["_id"], row["kind"] == Kind.FEED) for row in found]
        return sum([await self._bound_one(*one, really=really) for one in ones])

    async def _bound_one(self, key: str, is_feed: bool, *, really: bool = True) -> int:
        """Remove the oldest versions of a target that has too many bytes; how many go."""
        current = await self._current_of(key, is_feed)
        rows = [row async for row in self._rows(list(current))]
        kept = sum(row["bytes"] for row in rows)
        most = self._target_bytes * LEFT_OF_TARGET if kept > self._target_bytes else math.inf
        gone: list[str] = []
        for row in sorted(rows, key=lambda row: row["at"]):
            if kept <= most:
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
        """The `_id` of the current version of a target, or of each post of a feed, by its key."""
        fields = {"content_hash": 1}
        if not is_feed:
            found = await self._db.targets.find_one({"_id": key}, fields) or {}
            return {key: f"{key} {found.get('content_hash')}"}
        of_feed = {"spider": self._spider, "feed": key.removeprefix(f"{self._spider} ")}
        posts = self._db.posts.find(of_feed, fields)
        return {post["_id"]: f"{post['_id']} {post['content_hash']}" async for post in posts}

    async def _rows(self, keys: list[str]) -> AsyncIterator[Document]:
        """The versions of targets or posts, without their contents."""
        names = [key.removeprefix(f"{self._spider} ") for key in keys]
        for some in in_batches(names, BATCH):
            query = {"spider": self._spider, "target": {"$in": some}}
            stages = [{"$match": query}, {"$project": FIELDS | {"at": 1}}]
            async for row in await self._db.versions.aggregate(stages):
                yield row

    async def bound_site(self, *, really: bool = True) -> Kept:
        """Count the site's versions, and remove the oldest where they have too many bytes."""
        of_site: Document = {"$match": {"spider": self._spider}}
        sums: Document = {"$group": {"_id": None, "bytes": {"$sum": SIZE}}}
        found = await (await self._db.versions.aggregate([of_site, sums])).to_list(1)
        kept = found[0]["bytes"] if found else 0
        result = Kept(kept, 0)
        if kept > self._site_bytes:
            result = await self._remove_oldest(kept, really=really)
        if really:
            update = {"$set": {"kept_bytes": result.bytes}}
            await self._db.sites.update_one({"_id": self._spider}, update)
            self._known, self._unwritten = result.bytes, 0
            self._tell(result)
        return result

    async def _remove_oldest(self, kept: int, *, really: bool) -> Kept:
        most, removed = self._site_bytes * LEFT_OF_SITE, 0
        stages: list[Document] = [
            {"$match": {"spider": self._spider}},
            {"$sort": {"at": 1}},
            {"$project": FIELDS},
        ]
        batch: list[Document] = []
        async for row in await self._db.versions.aggregate(stages, batchSize=BATCH):
            batch.append(row)
            if len(batch) == BATCH:
                kept, removed = await self._remove(batch, kept, removed, most, really=really)
                batch = []
            if kept <= most:
                break
        return Kept(*await self._remove(batch, kept, removed, most, really=really))

    async def _remove(
        self, rows: list[Document], kept: int, removed: int, most: float, *, really: bool
    ) -> tuple[int, int]:
        """Remove some of these versions, in order, until `most` bytes are kept."""
        current, gone = await self._current(rows), []
        for row in rows:
            if kept > most and row["_id"] not in current:
                gone.append(row)
                kept -= row["bytes"]
        if really and gone:
            await self._db.versions.delete_many({"_id": {"$in": [row["_id"] for row in gone]}})
            await self._db.targets.bulk_write([_less(row) for row in gone], ordered=False)
        return kept, removed + len(gone)

    async def _current(self, rows: list[Document]) -> set[str]:
        """The `_id` of the current versions of the targets and posts that these versions are of."""
        keys = {f"{row['spider']} {row['target']}" for row in rows}
        query: Document = {"_id": {"$in": sorted(keys)}}
        return {
            f"{found['_id']} {found['content_hash']}"
            for collection in (self._db.targets, self._db.posts)
            async for found in collection.find(query, {"content_hash": 1})
            if found.get("content_hash")
        }

    def _tell(self, result: Kept) -> None:
        if result.removed:
            logger.info(
                "%s: removed %s: the site had more than FRESHET_MAX_SITE_MB (%.0f)",
                self._spider, count(result.removed, "old version"), self._site_bytes / MEGABYTE,
            )  # fmt: skip
        if result.bytes > self._site_bytes:
            logger.warning(
                "%s: its current contents have %.0f MB, more than FRESHET_MAX_SITE_MB (%.0f); no "
                "older version is kept",
                self._spider, result.bytes / MEGABYTE, self._site_bytes / MEGABYTE,
            )  # fmt: skip
            # To look again at each batch would help nobody.
            self._site_bytes = result.bytes / LEFT_OF_SITE


def _less(row: Document) -> UpdateOne:
    """What a target keeps without a version; the `_id` of a post is no target's."""
    less: Document = {"$subtract": [{"$ifNull": ["$kept_bytes", 0]}, row["bytes"]]}
    update = [{"$set": {"kept_bytes": {"$max": [0, less]}}}]
    return UpdateOne({"_id": f"{row['spider']} {row['target']}"}, update)
