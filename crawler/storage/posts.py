"""`posts`: the current content of items, one document each; `versions`: contents over time.

The versions of a site and of each target have a maximum size.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId, encode
from pymongo import ASCENDING, DESCENDING, ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError

from crawler.config import Config
from crawler.dedup.posts import Verdicts
from crawler.extract.item_names import name_of, sort_name
from crawler.extract.plain_text import as_texts, fields_of_post
from crawler.items import CAPS_SEPARATOR, Fetched, Kind, Outcome, Target, Visit
from crawler.search import search_words
from crawler.storage import leases
from crawler.storage.client import (
    Database,
    Document,
    MongoRetry,
    aggregated,
    count_by,
    duplicate_keys,
    in_async_batches,
    in_batches,
    write_all,
)
from crawler.storage.paging import Key, Rows, read_page
from crawler.storage.verdicts import with_verdict
from crawler.storage.visits import page_of_target, time_of
from crawler.utils.text import count
from crawler.utils.urls import item_key

logger = logging.getLogger(__name__)

# A sitemap may have 50,000 entries; a document has to stay below 16 MB.
MAX_LINKS = 20_000
# Number of newest posts to count fields in.
SAMPLE = 100
# Stored as `text`; all other fields are below `fields`.
MAIN_TEXT = "main_text"
# Maximum number of versions, and of changes, to read for the values of fields over time.
MAX_POINTS = 500
# Longer texts are not drawn.
MAX_VALUE_CHARACTERS = 40
# Types of the numbers to draw; prices and short texts, which may be numbers, are drawn as well.
DRAWN_TYPES = ("int", "long", "double", "decimal")
BY_TIME = [("at", DESCENDING)]
WITHOUT_CONTENT = {"content_hash": 1, "at": 1, "size": 1, "visit": 1}
MEGABYTE = 1024**2
# Share of a limit to keep when removing versions; with 1, each visit would remove one.
LEFT_OF_TARGET, LEFT_OF_SITE = 0.75, 0.9
# New bytes of a site are stored in steps of this size, so a crash loses at most one step.
STEP_BYTES = 64 * MEGABYTE
BATCH = 500
CONTENT_SIZE: Document = {"$bsonSize": {"$ifNull": ["$content", {}]}}
SIZE_FIELDS: Document = {"spider": 1, "target": 1, "content_hash": 1, "bytes": CONTENT_SIZE}


@dataclass(frozen=True, slots=True)
class FieldCoverage:
    """Numbers of posts for which a field was read, and in which it was found."""

    read: int = 0
    found: int = 0

    @property
    def share(self) -> float:
        """Return the share of posts that have the field; 0 without posts."""
        return self.found / self.read if self.read else 0.0


async def store_versions(db: Database, rows: Sequence[Document]) -> None:
    """Insert new versions; safe to repeat.

    A version of an earlier attempt at the same visit is overwritten: the log has only this attempt.
    """
    if not rows:
        return
    try:
        await db.versions.insert_many(rows, ordered=False)
    except BulkWriteError as error:
        updates = []
        for row in (rows[index] for index in duplicate_keys(error)):
            attempts = {"fence": {"$gte": leases.first_fence(row["fence"]), "$lte": row["fence"]}}
            updates.append(UpdateOne({"_id": row["_id"]} | attempts, {"$set": row}))
        await db.versions.bulk_write(updates, ordered=False)


def row_of(visit: Visit) -> Document:
    """Return the version that a visit stores."""
    fetched = visit.fetched
    return version_of(
        visit, fetched.target.key, fetched.content_hash, fetched.size, content_of(fetched)
    )


def version_of(
    visit: Visit, key: str, content_hash: str | None, size: int, content: Document
) -> Document:
    """Return a version of a target or post that a visit stores."""
    target = visit.fetched.target
    return {
        "_id": f"{key} {content_hash}",
        "spider": target.spider,
        "target": key.removeprefix(f"{target.spider} "),
        "content_hash": content_hash,
        "visit": visit.id,
        "fence": target.fence,
        "at": visit.fetched.at,
        "size": size,
        "content": content,
    }


def content_of(fetched: Fetched) -> Document:
    """Return the content of a version: fields and main text of an item, or links of a list page."""
    if fetched.content is not None:
        return fetched.content
    return {"links": [link.url for link in (fetched.links or ())[:MAX_LINKS]]}


async def contents(db: Database, targets: Iterable[Target]) -> dict[str, Document]:
    """Return the contents of targets at their last visits, by key, without pruned ones."""
    keys = {f"{each.key} {each.content_hash}": each.key for each in targets}
    cursor = db.versions.find({"_id": {"$in": list(keys)}}, {"content": 1})
    return {keys[row["_id"]]: row["content"] async for row in cursor}


async def count_copies(db: Database, originals: list[str]) -> dict[str, int]:
    """Return the numbers of copies by original, without originals that have none."""
    return await count_by(db.posts, "duplicate_of", {"duplicate_of": {"$in": originals}})


async def named(
    db: Database,
    urls: Sequence[str],
    spider: str | None,
    ids: Sequence[str] = (),
    fields: Collection[str] | None = None,
) -> list[Document]:
    """Return posts by URL or `_id`, and all sources of the URLs' items, sorted by `_id`."""
    items = [item for item in map(item_key, urls) if item]
    names = {"url": list(urls), "item": items, "_id": list(ids)}
    query: Document = {"$or": [{name: {"$in": values}} for name, values in names.items()]}
    if spider is not None:
        query["spider"] = spider
    return await db.posts.find(query, fields).sort("_id").to_list(None)


def of_feed(spider: str, url: str) -> Document:
    """Return a query for the posts of a feed. Only posts with an id are in the index of feeds."""
    return {"spider": spider, "feed": url, "guid": {"$exists": True}}


async def of_target(db: Database, spider: str, url: str) -> list[Document]:
    """Return all versions of a target, oldest first."""
    return await db.versions.find({"target": url, "spider": spider}).sort("at").to_list(None)


def as_lines(content: Document) -> list[str]:
    """Return a content as lines of text, to compare or print."""
    lines: list[str] = []
    for name, value in content.items():
        lines += _field_lines(name, value)
    return lines


def _field_lines(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [line for key, v in value.items() for line in _field_lines(f"{name}.{key}", v)]
    if isinstance(value, list):
        return [f"{name}: {entry}" for entry in value]
    parts = str(value).splitlines() or [""]
    return [f"{name}: {parts[0]}", *parts[1:]]


def words_of(post: Document) -> str | None:
    """Return the `words` of a post's document; None if the index needs none."""
    return search_words(post.get("title"), post.get("text"), fields_of_post(post)) or None


def with_words(update: Document, post: Document) -> Document:
    """Add to an update the `words` of the updated post."""
    return with_field(update, "words", words_of(post))


def with_field(update: Document, name: str, value: Any) -> Document:
    """Add to an update a field with this value, or remove the field if it is None."""
    operator, value = ("$unset", "") if value is None else ("$set", value)
    return update | {operator: update.get(operator, {}) | {name: value}}


async def store(db: Database, items: list[Visit], verdicts: Verdicts) -> None:
    """Store the fetched contents of items, with their current categories."""
    if not items:
        return
    query = {"_id": {"$in": [item.fetched.target.key for item in items]}}
    found = await db.targets.find(query, {"categories": 1}).to_list()
    categories = {target["_id"]: target["categories"] for target in found}
    # The feeds' texts of posts whose pages were fetched: search words include them.
    of_feeds = [item.fetched.target.post for item in items if item.fetched.target.post]
    stored: dict[str, Document] = {}
    if of_feeds:
        cursor = db.posts.find({"_id": {"$in": of_feeds}}, ("title", "text", "fields"))
        stored = {post["_id"]: post async for post in cursor}
    updates = [
        _page_of_post(item, stored, verdicts)
        if item.fetched.target.post
        else _update_of_page(item, categories.get(item.fetched.target.key, []), verdicts)
        for item in items
    ]
    await leases.write_unless_passed(db.posts, updates)


def _page_of_post(visit: Visit, stored: dict[str, Document], verdicts: Verdicts) -> UpdateOne:
    """Return the update of a feed's post with the text of its page; feed fields stay."""
    fetched = visit.fetched
    content = fetched.content or {}
    page = {"url": fetched.target.url, "at": fetched.at, "content_hash": fetched.content_hash}
    page |= {"visit": visit.id, "fence": fetched.target.fence}
    page |= {"fields": _without_main_text(content), "markup": list(fetched.markup)}
    current: Document = {"page": page}
    if text := as_texts(content, fetched.markup).get("main_text"):
        current["text"] = text
    key = str(fetched.target.post)
    post = stored.get(key, {}) | current
    if item := visit.items.get(key):
        current["item"] = item
    query = {"_id": key} | leases.unless_passed(fetched.target.fence, "page.fence")
    return UpdateOne(query, with_verdict(with_words({"$set": current}, post), verdicts.get(key)))


def _update_of_page(visit: Visit, categories: list[str], verdicts: Verdicts) -> UpdateOne:
    fetched, target, content = visit.fetched, visit.fetched.target, visit.fetched.content or {}
    texts = as_texts(content, fetched.markup)
    current: Document = {
        "title": texts.get("title"),
        "text": texts.get("main_text"),
        "sort_name": sort_name(name_of(texts, target.url)),
        "categories": categories,
        "content_hash": fetched.content_hash,
    }
    query, update = update_of(visit, target.key, content, current, {"url": target.url}, verdicts)
    return UpdateOne(query, update, upsert=True)


def update_of(
    visit: Visit, key: str, content: Document, current: Document, constant: Document,
    verdicts: Verdicts,
) -> tuple[Document, Document]:  # fmt: skip
    """Return the query and the update of a post that a visit saw.

    current, constant: fields of the post in addition to those of every post; the constant ones are
                       set only if the post is new
    """
    fetched, target = visit.fetched, visit.fetched.target
    current = current | {"changed_at": fetched.at, "visit": visit.id, "fence": target.fence}
    constant = constant | {"spider": target.spider, "first_seen": fetched.at}
    update = content_update(content, fetched.markup, fetched.compared, current)
    update = with_verdict(update | {"$setOnInsert": constant}, verdicts.get(key))
    update = with_field(update, "item", visit.items.get(key))
    return {"_id": key} | leases.unless_passed(target.fence), update


def content_update(
    content: Document, markup: Sequence[str], compared: Sequence[str] | None, current: Document
) -> Document:
    """Return the update that stores a content in its post.

    markup:   names of the fields with HTML
    compared: names of the fields to compare; None: the default fields
    current:  other fields to set: the title, the text and so on
    """
    update: Document = {"$set": current | {"fields": _without_main_text(content)}}
    for name, names in (("compare", compared), ("markup", markup or None)):
        update = with_field(update, name, None if names is None else list(names))
    return with_words(update, update["$set"])


def _without_main_text(content: Document) -> Document:
    """Return a content without its main text, which posts have as `text`."""
    return {name: value for name, value in content.items() if name != MAIN_TEXT}


async def field_coverage(
    db: Database, spider: str, scheme: str, names: Sequence[str], *, with_broken: bool = True
) -> dict[str, FieldCoverage]:
    """Count how many of a spider's newest posts have each of some fields.

    scheme:      selector digest of the site definition; posts read with another one are skipped
    with_broken: whether posts of broken pages count
    """
    places = {name: "text" if name == MAIN_TEXT else f"fields.{name}" for name in names}
    newest = db.posts.find({"spider": spider}, dict.fromkeys(places.values(), 1))
    rows = await newest.sort("changed_at", DESCENDING).limit(SAMPLE).to_list(None)
    query: Document = {"_id": {"$in": [row["_id"] for row in rows]}}
    if not with_broken:
        query["broken"] = {"$exists": False}
    read_by = db.targets.find(query, {"selector_digest": 1})
    schemes = {
        row["_id"]: (row.get("selector_digest") or "").partition(CAPS_SEPARATOR)[0]
        async for row in read_by
    }
    current = [row for row in rows if schemes.get(row["_id"]) == scheme]
    counts = {}
    for name in names:
        held = [row if name == MAIN_TEXT else row.get("fields") or {} for row in current]
        key = "text" if name == MAIN_TEXT else name
        values = [fields[key] for fields in held if key in fields]
        counts[name] = FieldCoverage(
            len(values), sum(value not in (None, [], "") for value in values)
        )
    return counts


async def read_versions(
    db: Database, spider: str, url: str, limit: int, after: Key | None = None
) -> Rows:
    """Read a page of the versions of a target without their contents, newest first."""
    query: Document = {"target": url, "spider": spider}
    if (before := time_of(after)) is not None:
        query["at"] = {"$lt": before}
    return await read_page(db.versions, query, BY_TIME, limit, fields=WITHOUT_CONTENT)


async def newest_two_versions(db: Database, spider: str, url: str) -> list[str]:
    """Return the content hashes of the last two versions, the older one first."""
    query: Document = {"target": url, "spider": spider}
    cursor = db.versions.find(query, {"content_hash": 1}).sort(BY_TIME).limit(2)
    return [row["content_hash"] async for row in cursor][::-1]


async def hashes_around(db: Database, spider: str, url: str, visit: str) -> tuple[str, str] | None:
    """Return the content hashes before and after a visit; None if one of them is unknown.

    visit: id of the visit
    """
    query: Document = {"target": url, "spider": spider}
    if not ObjectId.is_valid(visit):
        return None
    row = await db.visits.find_one({"_id": ObjectId(visit)} | query)
    if row is None or not row.get("content_hash"):
        return None
    earlier: Document = {"at": {"$lt": row["at"]}, "content_hash": {"$type": "string"}}
    before = await db.visits.find_one(query | earlier, {"content_hash": 1}, sort=BY_TIME)
    return (before["content_hash"], row["content_hash"]) if before else None


async def read_version(db: Database, spider: str, url: str, content_hash: str) -> Document | None:
    """Return a version with its content; None if it was never stored, or pruned."""
    return await db.versions.find_one({"_id": f"{spider} {url} {content_hash}"})


async def neighbors_of(
    db: Database, spider: str, url: str, at: datetime
) -> tuple[str | None, str | None]:
    """Return the content hashes of the versions of a target before and after a time."""
    found: list[str | None] = []
    for operator, direction in (("$lt", DESCENDING), ("$gt", ASCENDING)):
        query: Document = {"target": url, "spider": spider, "at": {operator: at}}
        rows = db.versions.find(query, {"content_hash": 1}).sort("at", direction).limit(1)
        found.append(next((row["content_hash"] for row in await rows.to_list(1)), None))
    return found[0], found[1]


def _drawn() -> Document:
    """Return an expression for the pairs of `k` and `v` of the numbers and short texts."""
    kind = {"$type": "$$this.v"}
    length = {"$cond": [{"$eq": [kind, "string"]}, {"$strLenBytes": "$$this.v"}, 0]}
    is_text = {"$and": [{"$eq": [kind, "string"]}, {"$lte": [length, MAX_VALUE_CHARACTERS]}]}
    is_object = {"$eq": [kind, "object"]}
    # $bsonSize fails for values of other types.
    size = {"$bsonSize": {"$cond": [is_object, "$$this.v", {"$literal": {}}]}}
    is_price = {"$and": [is_object, {"$lte": [size, 200]}]}
    is_drawn = {"$or": [{"$in": [kind, list(DRAWN_TYPES)]}, is_text, is_price]}
    return {
        "$filter": {"input": {"$objectToArray": {"$ifNull": ["$content", {}]}}, "cond": is_drawn}
    }


async def short_values(db: Database, spider: str, url: str) -> list[Document]:
    """Return the numbers and short texts of the newest versions, newest first.

    Rows of `content_hash`, `at`, and `values`: pairs of `k` (field) and `v`. A price is a document
    with `amount` and `currency`.
    """
    stages: list[Document] = [
        {"$match": {"target": url, "spider": spider}},
        {"$sort": {"at": DESCENDING}},
        {"$limit": MAX_POINTS},
        {"$project": {"_id": 0, "content_hash": 1, "at": 1, "values": _drawn()}},
    ]
    return await aggregated(db.versions, stages)


async def newest_values(
    db: Database, spider: str, ids: Sequence[str], limit: int
) -> list[Document]:
    """Return the newest versions of items, and their newest changes, in one query.

    Rows of `_id`, `versions` as of `short_values`, and `changes` with `at` and `content_hash`.

    limit: of the versions, and of the changes, of each item
    """

    def of_same_url(collection: str, condition: Document, fields: Document) -> Document:
        stages: list[Document] = [
            {"$match": condition | {"spider": spider}},
            {"$sort": {"at": DESCENDING}},
            {"$limit": limit},
            {"$project": {"_id": 0, "content_hash": 1, "at": 1} | fields},
        ]
        return {"from": collection, "localField": "url", "foreignField": "target",
                "pipeline": stages}  # fmt: skip

    values = of_same_url("versions", {}, {"values": _drawn()})
    changes = of_same_url("visits", {"news": True}, {})
    stages: list[Document] = [
        {"$match": {"_id": {"$in": list(ids)}}},
        {"$project": {"url": 1}},
        {"$lookup": values | {"as": "versions"}},
        {"$lookup": changes | {"as": "changes"}},
    ]
    return await aggregated(db.posts, stages)


async def content_changes(db: Database, spider: str, url: str) -> list[Document]:
    """Return the newest visits that found another content, among the last MAX_SEARCHED."""
    found = [str(Outcome.NEW), str(Outcome.CHANGED)]
    return (await page_of_target(db, spider, url, found, MAX_POINTS, None)).rows


def measure_versions(batch: Iterable[Visit]) -> None:
    """Store in each visit the size of its new versions in bytes."""
    for visit in batch:
        visit.version_bytes = 0
        if visit.collected is not None:
            visit.version_bytes = sum(len(encode(p.content)) for _, p in visit.collected.posts)
        elif visit.stores_content:
            visit.version_bytes = len(encode(content_of(visit.fetched)))


async def recount_bytes(db: Database, spider: str, names: Sequence[str]) -> None:
    """Correct the `kept_bytes` of targets other than feeds after versions were replaced.

    names: URLs, at most a batch
    """
    stages: list[Document] = [
        {"$match": {"target": {"$in": list(names)}, "spider": spider}},
        {"$group": {"_id": "$target", "bytes": {"$sum": CONTENT_SIZE}}},
    ]
    kept = {row["_id"]: row["bytes"] async for row in await db.versions.aggregate(stages)}
    updates = [
        UpdateOne({"_id": f"{spider} {name}"}, {"$set": {"kept_bytes": kept.get(name, 0)}})
        for name in names
    ]
    await write_all(db.targets, updates)


async def current_versions(db: Database, keys: Collection[str]) -> set[str]:
    """Return the `_id`s of the current versions of targets and posts. keys: their `_id`s."""
    query: Document = {"_id": {"$in": sorted(keys)}}
    return {
        f"{row['_id']} {row['content_hash']}"
        for collection in (db.targets, db.posts)
        async for row in collection.find(query, {"content_hash": 1})
        if row.get("content_hash")
    }


class VersionDeletion:
    """Deletes versions, or only counts those that would be deleted.

    delete: False to only count. Versions that were counted are then treated as deleted, so that
            none is counted for two limits.
    """

    def __init__(self, db: Database, *, delete: bool = True) -> None:
        self._db, self.deletes = db, delete
        self.count = 0
        # Hashes instead of ids, as a first dry run may count millions.
        self._counted: set[int] = set()

    async def add(self, ids: Sequence[str]) -> None:
        """Delete or count some versions."""
        self.count += len(ids)
        if not self.deletes:
            self._counted.update(map(hash, ids))
            return
        for batch in in_batches(ids, BATCH):
            await self._db.versions.delete_many({"_id": {"$in": batch}})

    def remaining(self, rows: Iterable[Document]) -> list[Document]:
        """Return the rows of versions that were not counted."""
        return [row for row in rows if hash(row["_id"]) not in self._counted]

    async def remaining_bytes(self, spider: str) -> int:
        """Return the bytes of a spider's versions that were not counted."""
        match: Document = {"$match": {"spider": spider}}
        if self._counted:
            n_bytes = 0
            async for row in await self._db.versions.aggregate([match, {"$project": SIZE_FIELDS}]):
                n_bytes += sum(version["bytes"] for version in self.remaining([row]))
            return n_bytes
        total: Document = {"$group": {"_id": None, "bytes": {"$sum": CONTENT_SIZE}}}
        rows = await aggregated(self._db.versions, [match, total])
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
                is_feed, deletion = target.kind is Kind.FEED, VersionDeletion(self._db)
                await patience.ask(partial(self._bound_target, target.key, is_feed, deletion))
        if self._site_kept is None or self._unwritten >= STEP_BYTES:
            await patience.ask(self.note)
        if (self._site_kept or 0) + self._unwritten > self._site_bytes:
            await patience.ask(partial(self.bound_site, VersionDeletion(self._db)))

    async def note(self) -> None:
        """Store the bytes that this process added, and load those of all processes."""
        if self._site_kept is not None and not self._unwritten:
            return
        more = {"$inc": {"kept_bytes": self._unwritten}}
        site = await self._db.sites.find_one_and_update(
            {"_id": self._spider}, more, {"kept_bytes": 1}, return_document=ReturnDocument.AFTER
        )
        self._site_kept, self._unwritten = (site or {}).get("kept_bytes", 0), 0

    async def bound_targets(self, deletion: VersionDeletion) -> None:
        """Apply the limit to all targets after a change of settings."""
        if self._target_bytes == math.inf:
            return
        query: Document = {"spider": self._spider, "kept_bytes": {"$gt": self._target_bytes}}
        for row in await self._db.targets.find(query, {"kind": 1}).to_list(None):
            await self._bound_target(row["_id"], row["kind"] == Kind.FEED, deletion)

    async def _bound_target(self, key: str, is_feed: bool, deletion: VersionDeletion) -> None:
        """Remove the oldest versions of a target that is too large."""
        current = await self._current_of(key, is_feed)
        names = [post.removeprefix(f"{self._spider} ") for post in current]
        rows = []
        for batch in in_batches(names, BATCH):
            query = {"spider": self._spider, "target": {"$in": batch}}
            stages = [{"$match": query}, {"$project": SIZE_FIELDS | {"at": 1}}]
            sizes = await aggregated(self._db.versions, stages)
            rows += deletion.remaining(sizes)
        kept = sum(row["bytes"] for row in rows)
        limit_bytes = self._target_bytes * LEFT_OF_TARGET if kept > self._target_bytes else math.inf
        gone: list[str] = []
        for row in sorted(rows, key=lambda row: row["at"]):
            if kept <= limit_bytes:
                break
            if row["_id"] != current[f"{row['spider']} {row['target']}"]:
                gone.append(row["_id"])
                kept -= row["bytes"]
        await deletion.add(gone)
        if deletion.deletes:
            await self._db.targets.update_one({"_id": key}, {"$set": {"kept_bytes": kept}})

    async def _current_of(self, key: str, is_feed: bool) -> dict[str, str]:
        """Return the `_id` of the current version of a target, or of each post of a feed."""
        fields = {"content_hash": 1}
        if not is_feed:
            target = await self._db.targets.find_one({"_id": key}, fields) or {}
            return {key: f"{key} {target.get('content_hash')}"}
        url = key.removeprefix(f"{self._spider} ")
        posts = self._db.posts.find(of_feed(self._spider, url), fields)
        return {post["_id"]: f"{post['_id']} {post['content_hash']}" async for post in posts}

    async def bound_site(self, deletion: VersionDeletion) -> int:
        """Remove the oldest versions of a site that is too large; return the remaining bytes."""
        kept, count_before = await deletion.remaining_bytes(self._spider), deletion.count
        if kept > self._site_bytes:
            limit_bytes = self._site_bytes * LEFT_OF_SITE
            stages: list[Document] = [
                {"$match": {"spider": self._spider}},
                {"$sort": {"at": 1}},
                {"$project": SIZE_FIELDS},
            ]
            oldest_first = await self._db.versions.aggregate(stages, batchSize=BATCH)
            async for batch in in_async_batches(oldest_first, BATCH):
                kept = await self._remove(batch, kept, limit_bytes, deletion)
                if kept <= limit_bytes:
                    break
        if deletion.deletes:
            update = {"$set": {"kept_bytes": kept}}
            await self._db.sites.update_one({"_id": self._spider}, update)
            self._site_kept, self._unwritten = kept, 0
            if removed := deletion.count - count_before:
                logger.info(
                    "%s: removed %s: the site exceeded FRESHET_MAX_SITE_MB (%.0f)",
                    self._spider, count(removed, "old version"), self._site_bytes / MEGABYTE,
                )  # fmt: skip
            if kept > self._site_bytes:
                logger.warning(
                    "%s: all old versions removed: the current contents take %.0f MB, more than "
                    "FRESHET_MAX_SITE_MB (%.0f)",
                    self._spider, kept / MEGABYTE, self._site_bytes / MEGABYTE,
                )  # fmt: skip
                # Raising the limit avoids measuring the site again after each batch.
                self._site_bytes = kept / LEFT_OF_SITE
        return kept

    async def _remove(
        self, rows: list[Document], kept: int, limit_bytes: float, deletion: VersionDeletion
    ) -> int:
        """Remove some of these versions, in order, until `limit_bytes` are kept."""
        keys = {f"{row['spider']} {row['target']}" for row in rows}
        current, gone = await current_versions(self._db, keys), []
        for row in deletion.remaining(rows):
            if kept > limit_bytes and row["_id"] not in current:
                gone.append(row)
                kept -= row["bytes"]
        await deletion.add([row["_id"] for row in gone])
        if deletion.deletes and gone:
            updates = []
            for row in gone:
                # Versions of posts match no target here: a post's `_id` is not a target's.
                remaining: Document = {"$subtract": [{"$ifNull": ["$kept_bytes", 0]}, row["bytes"]]}
                kept_bytes = [{"$set": {"kept_bytes": {"$max": [0, remaining]}}}]
                updates.append(UpdateOne({"_id": f"{row['spider']} {row['target']}"}, kept_bytes))
            await self._db.targets.bulk_write(updates, ordered=False)
        return kept
