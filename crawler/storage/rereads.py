"""Histories that `scrapy reread` restated: their writes, and `rereads`, the log of these writes.

All writes of a target are first stored in `rereads`, and the last part completes them. If the
process ends in between, the next run or reread applies complete ones and drops incomplete ones, so
each target has either its old or its new history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bson import Binary, decode, encode
from pymongo import DeleteOne, UpdateOne

from crawler.extract.item_names import name_of, sort_name
from crawler.extract.plain_text import as_texts
from crawler.items import Kind
from crawler.storage.client import Database, Document, Item, in_batches
from crawler.storage.posts import content_update, recount_bytes

BATCH = 500
# A document is limited to 16 MB, and a write cannot be split over several documents.
MAX_PART_BYTES, MAX_WRITE_BYTES = 8 * 1024**2, 15 * 1024**2
# The newest visits of a target; older ones keep their contents.
MAX_VISITS = 50_000
VISIT_FIELDS = (
    "at", "outcome", "changed", "content_hash", "archived", "fence", "event", "news",
    "get_size", "reason",
)  # fmt: skip
TARGET_FIELDS = (
    "url", "content_hash", "selector_digest", "depth", "history", "last_visit._id", "alias_of",
    "changed_at", "noise",
)  # fmt: skip
COLLECTIONS = ("versions", "visits", "posts", "targets")


@dataclass(slots=True)
class Writes:
    """The writes that restate the history of one target.

    updates: by collection, pairs of a query and an update; each is safe to repeat
    deleted: `_id`s of versions to delete
    """

    key: str
    updates: dict[str, list[tuple[Document, Document]]] = field(
        default_factory=lambda: {name: [] for name in COLLECTIONS}
    )
    deleted: list[str] = field(default_factory=list)

    def encoded(self) -> list[bytes]:
        """Return all writes as BSON documents."""
        rows: list[Document] = [
            {"in": name, "query": query, "update": update}
            for name, pairs in self.updates.items()
            for query, update in pairs
        ]
        rows.append({"in": "versions", "deleted": self.deleted})
        return [encode(row) for row in rows]


async def items(db: Database, spider: str) -> AsyncIterator[Document]:
    """Yield the items of a spider with an archived response, ordered by URL."""
    query: Document = {
        "spider": spider, "kind": str(Kind.ITEM), "archived": {"$exists": True},
        "post": {"$exists": False},
    }  # fmt: skip
    cursor = db.targets.find(query, TARGET_FIELDS).sort("url").batch_size(BATCH)
    async for row in cursor:
        yield row


async def visits_of(db: Database, spider: str, url: str) -> list[Document]:
    """Return the newest visits of a target, at most MAX_VISITS, oldest first."""
    query: Document = {"target": url, "spider": spider}
    cursor = db.visits.find(query, VISIT_FIELDS).sort("at", -1).limit(MAX_VISITS)
    return (await cursor.to_list(None))[::-1]


async def version_visits(db: Database, spider: str, url: str) -> dict[str, Any]:
    """Return the visit of each stored version of a target, by content hash."""
    rows = db.versions.find({"target": url, "spider": spider}, ("content_hash", "visit"))
    return {row["content_hash"]: row.get("visit") async for row in rows}


def post_update(
    url: str, content: Document, markup: Sequence[str], compared: Sequence[str] | None
) -> Document:
    """Return the update of an item with a restated content. compared: None: the default fields."""
    texts = as_texts(content, markup)
    current = {"title": texts.get("title"), "text": texts.get("main_text")}
    current["sort_name"] = sort_name(name_of(texts, url))
    return content_update(content, markup, compared, current)


async def store(db: Database, spider: str, batch: Sequence[Writes], now: datetime) -> list[str]:
    """Restate the histories of some targets; return the keys of those that are too large."""
    parts: list[Document] = []
    too_large = []
    for writes in batch:
        encoded = writes.encoded()
        if any(len(row) > MAX_WRITE_BYTES for row in encoded):
            too_large.append(writes.key)
            continue
        groups = list(_by_size(encoded, len))
        for number, rows in enumerate(groups, 1):
            part: Document = {
                "_id": f"{writes.key} {number}", "spider": spider, "target": writes.key,
                "part": number, "parts": len(groups), "at": now,
                "writes": [Binary(row) for row in rows],
            }  # fmt: skip
            parts.append(part)
    # Ordered, so that the last part is stored after all others.
    for few in _by_size(parts, lambda part: sum(map(len, part["writes"]))):
        await db.rereads.insert_many(few, ordered=True)
    await _write(db, parts)
    keys = list(dict.fromkeys(part["target"] for part in parts))
    await _finish(db, spider, keys, [part["_id"] for part in parts])
    return too_large


async def recover(db: Database, spider: str) -> int:
    """Apply or drop what an interrupted reread left; return the number of targets completed.

    No crawl of the spider may be running.
    """
    done = 0
    by_target = db.rereads.find({"spider": spider}, {"writes": 0}).sort("_id", 1)
    parts_by_target: dict[str, list[Document]] = defaultdict(list)
    async for part in by_target:
        parts_by_target[part["target"]].append(part)
    for key, parts in parts_by_target.items():
        ids = [part["_id"] for part in parts]
        if len(parts) < parts[0]["parts"]:
            await db.rereads.delete_many({"_id": {"$in": ids}})
            continue
        for id_ in ids:
            # One part at a time: a part has up to 8 MB.
            await _write(db, await db.rereads.find({"_id": id_}).to_list(None))
        await _finish(db, spider, [key], ids)
        done += 1
    return done


async def _write(db: Database, parts: Sequence[Document]) -> None:
    writes: dict[str, list[Any]] = {name: [] for name in COLLECTIONS}
    for part in parts:
        for data in part["writes"]:
            row = decode(bytes(data), codec_options=db.codec_options)
            if "deleted" in row:
                writes["versions"] += [DeleteOne({"_id": id_}) for id_ in row["deleted"]]
            else:
                upsert = row["in"] == "versions"
                writes[row["in"]].append(UpdateOne(row["query"], row["update"], upsert=upsert))
    for name, of_collection in writes.items():
        for few in in_batches(of_collection, BATCH):
            await db[name].bulk_write(few, ordered=False)


async def _finish(db: Database, spider: str, keys: Iterable[str], ids: Sequence[str]) -> None:
    for few in in_batches([key.removeprefix(f"{spider} ") for key in keys], BATCH):
        await recount_bytes(db, spider, few)
    await db.rereads.delete_many({"_id": {"$in": list(ids)}})


def _by_size(values: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield values in lists of at most MAX_PART_BYTES, or of a single larger value."""
    few: list[Item] = []
    size = 0
    for value in values:
        if few and size + size_of(value) > MAX_PART_BYTES:
            yield few
            few, size = [], 0
        few.append(value)
        size += size_of(value)
    if few:
        yield few
