"""Items in lists: the posts of a site that are not of a feed, sorted, searched and counted.

Each list follows an index of `sort_name`, which only items have. The values of fields have no
index: reports sort them among the items that changed last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pymongo import ASCENDING, DESCENDING, UpdateOne

from crawler.extract.item_names import name_of, sort_name
from crawler.storage.client import Database, Document, aggregated
from crawler.storage.paging import MAX_SCANNED, Key, Listing, read_page, search_page
from crawler.utils.urls import like

# Names of sortings; a field of the site definition follows OF_VALUE.
NAME, CHANGED, OF_VALUE = "name", "changed", "value:"
# Larger values are neither shown nor sorted; a text of 80 characters has at most 320 bytes.
MAX_VALUE_BYTES = 600
# Characters of a text in a file, as in a cell of a spreadsheet, and bytes of another value.
MAX_CELL_CHARACTERS, MAX_CELL_BYTES = 32_767, 65_536
# Maximum number of items that are sorted by a value.
MAX_SORTED = 20_000
# Maximum number of fields that a file has.
MAX_FIELDS = 200
# Items that a migration writes together, and that a file reads together.
BATCH, FILE_BATCH = 1000, 100
IS_ITEM: Document = {"sort_name": {"$gte": ""}}
TITLE: Document = {
    "$cond": [{"$eq": [{"$type": "$title"}, "string"]}, {"$substrCP": ["$title", 0, 1000]}, None]
}
STATE: Document = {
    "url": 1, "title": TITLE, "categories": 1, "first_seen": 1, "changed_at": 1, "sort_name": 1,
    "markup": 1, "content_hash": 1,
}  # fmt: skip


def _size_of(value: str | Document) -> Document:
    return {"$bsonSize": {"v": value}}


def _short(fields: str) -> Document:
    """Return an expression for the pairs of `k` and `v` of the short values in a document."""
    return {
        "$filter": {
            "input": {"$objectToArray": {"$ifNull": [fields, {}]}},
            "cond": {"$lte": [_size_of("$$this.v"), MAX_VALUE_BYTES]},
        }
    }


SHORT_FIELDS = _short("$fields")
# Whole values, but long texts cut, and other long values left out.
CELLS: Document = {
    "$map": {
        "input": {"$objectToArray": {"$ifNull": ["$fields", {}]}},
        "in": {
            "k": "$$this.k",
            "v": {
                "$cond": [
                    {"$eq": [{"$type": "$$this.v"}, "string"]},
                    {"$substrCP": ["$$this.v", 0, MAX_CELL_CHARACTERS]},
                    {"$cond": [{"$lte": [_size_of("$$this.v"), MAX_CELL_BYTES]}, "$$this.v", None]},
                ]
            },
        },
    }
}


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """Conditions on the items of a site, and their order; None: all.

    text:    part of the name
    sorting: NAME, CHANGED, or OF_VALUE and the name of a field
    """

    category: str | None = None
    text: str | None = None
    sorting: str = CHANGED
    is_descending: bool = True

    @property
    def field(self) -> str | None:
        """Return the field by which items are sorted; None for an order that has an index."""
        is_value = self.sorting.startswith(OF_VALUE)
        return self.sorting.removeprefix(OF_VALUE) if is_value else None


@dataclass(frozen=True, slots=True)
class ItemRows:
    """A page of items.

    last:       key after which the next page begins; None: no more items
    is_partial: whether the search stopped at its limit, so that a page may have few rows
    """

    rows: list[Document]
    last: Key | None
    is_partial: bool = False


def listing_of(spider: str, wanted: ItemFilter) -> Listing:
    """Return the list of the items with some conditions.

    Values of fields have no index: items are then in the order of their last change.
    """
    indexed: Document = {"spider": spider} | IS_ITEM
    leading = ["spider"]
    if wanted.category is not None:
        indexed["categories"] = wanted.category
        leading.append("categories")
    by_name = wanted.sorting == NAME
    is_descending = wanted.is_descending if wanted.field is None else True
    direction = DESCENDING if is_descending else ASCENDING
    names = ["sort_name", "_id"] if by_name else ["changed_at", "_id"]
    keys = [*leading, *names, *(() if by_name else ("sort_name",))]
    rest: Document = {}
    if wanted.text:
        rest["sort_name"] = {"$regex": f"^{like(sort_name(wanted.text))}"}
    return Listing(
        indexed, rest, [(name, direction) for name in names], [(key, ASCENDING) for key in keys]
    )


async def page_of_items(
    db: Database, spider: str, wanted: ItemFilter, limit: int, after: Key | None
) -> ItemRows:
    """Return a page of the items of a site by name or last change, with their short values.

    after: last key of the previous page; None: first page
    """
    fields = STATE | {"values": SHORT_FIELDS}
    listing = listing_of(spider, wanted)
    page, is_partial = await search_page(db.posts, listing, limit, after, fields, MAX_SCANNED)
    return ItemRows(page.rows, page.last, is_partial)


async def all_items(
    db: Database, spider: str, wanted: ItemFilter, after: Key | None = None
) -> AsyncIterator[Document]:
    """Yield all items by name or last change, with the cells of a file as `values`."""
    listing, fields = listing_of(spider, wanted), STATE | {"values": CELLS}
    while True:
        # Pages, because a cursor of the server ends if a client reads slowly.
        page = await read_page(
            db.posts, listing.query, listing.order, FILE_BATCH, after, fields, listing.index
        )
        for row in page.rows:
            yield row
        if page.last is None:
            return
        after = page.last


async def newest_values(db: Database, spider: str, wanted: ItemFilter, name: str) -> list[Document]:
    """Return rows of `_id`, `changed_at` and a short value `v`, at most MAX_SORTED + 1.

    The items that changed last come first. The last row is only there if there are more.
    """
    listing = listing_of(spider, wanted)
    value: Document = {"$getField": {"field": {"$literal": name}, "input": "$fields"}}
    short: Document = {"$cond": [{"$lte": [_size_of(value), MAX_VALUE_BYTES]}, value, None]}
    rows = db.posts.find(listing.query, {"changed_at": 1, "v": short}, hint=list(listing.index))
    return await rows.sort(list(listing.order)).limit(MAX_SORTED + 1).to_list(None)


async def of_ids(db: Database, ids: Sequence[str], *, whole: bool = False) -> list[Document]:
    """Return some items in the order of their ids, without those that are not stored any more.

    whole: with the cells of a file as `values`, instead of the short values
    """
    fields = STATE | {"values": CELLS if whole else SHORT_FIELDS}
    found = {row["_id"]: row async for row in db.posts.find({"_id": {"$in": list(ids)}}, fields)}
    return [found[each] for each in ids if each in found]


async def newest(db: Database, spider: str, limit: int) -> list[Document]:
    """Return the items of a site that changed last, with their short values."""
    return (await page_of_items(db, spider, ItemFilter(), limit, None)).rows


async def is_any(db: Database, spider: str) -> bool:
    """Return whether a site has items."""
    listing = listing_of(spider, ItemFilter(sorting=NAME))
    found = db.posts.find(listing.indexed, {"_id": 1}, hint=list(listing.index))
    return bool(await found.limit(1).to_list(1))


async def count(db: Database, spider: str, category: str | None = None) -> int:
    """Return the number of items of a site, or in a category, by keys of an index only."""
    listing = listing_of(spider, ItemFilter(category, sorting=NAME))
    return await db.posts.count_documents(listing.indexed, hint=list(listing.index))


@dataclass(slots=True)
class StoredField:
    """A field that some items have.

    is_plain: whether it has values that are no documents, or none at all
    parts:    names of the parts of its values that are documents, such as prices
    """

    name: str
    is_plain: bool = False
    parts: dict[str, None] = field(default_factory=dict)


async def fields_of(db: Database, spider: str, wanted: ItemFilter) -> list[StoredField]:
    """Return the fields of all items of a list, at most MAX_FIELDS. Reads all items once."""
    listing, kind = listing_of(spider, wanted), {"$type": "$f.v"}
    parts = {"$map": {"input": {"$objectToArray": "$f.v"}, "in": "$$this.k"}}
    shape = {
        "$switch": {
            "branches": [
                {"case": {"$eq": [kind, "object"]}, "then": parts},
                {"case": {"$eq": [kind, "null"]}, "then": None},
            ],
            "default": True,
        }
    }
    stages: list[Document] = [
        {"$match": listing.query},
        {"$project": {"_id": 0, "f": {"$objectToArray": {"$ifNull": ["$fields", {}]}}}},
        {"$unwind": "$f"},
        {"$group": {"_id": {"k": "$f.k", "shape": shape}}},
        {"$sort": {"_id.k": ASCENDING}},
        {"$limit": 10 * MAX_FIELDS},
    ]
    found: dict[str, StoredField] = {}
    for row in await aggregated(db.posts, stages, hint=dict(listing.index), allowDiskUse=True):
        name, shape_of = row["_id"]["k"], row["_id"].get("shape")
        stored = found.setdefault(name, StoredField(name))
        stored.is_plain = stored.is_plain or shape_of is True
        stored.parts |= dict.fromkeys(shape_of if isinstance(shape_of, list) else ())
    for stored in found.values():
        stored.is_plain = stored.is_plain or not stored.parts
    return list(found.values())[:MAX_FIELDS]


async def gone_of(db: Database, ids: Sequence[str]) -> set[str]:
    """Return the ids of those items whose pages are gone, or were at the last visit."""
    is_gone: list[Document] = [{"gone": True}, {"consecutive_gone": {"$gt": 0}}]
    query: Document = {"_id": {"$in": list(ids)}, "$or": is_gone}
    return {row["_id"] async for row in db.targets.find(query, {"_id": 1})}


async def values_at(
    db: Database, spider: str, urls: Sequence[str], since: datetime
) -> dict[str, Document]:
    """Return the short values of items by URL at a time, or when they were first seen, if later.

    Items whose values then are not known are left out. Uses the last visit until then, because a
    page may return to earlier content, and if visits were pruned, the last version until then.
    """
    hashes: dict[str, str] = {}
    for collection in ("visits", "versions"):
        left = [url for url in urls if url not in hashes]
        hashes |= await _hashes_at(db, spider, left, since, collection) if left else {}
    keys = {f"{spider} {url} {content_hash}": url for url, content_hash in hashes.items()}
    fields: Document = {"values": _short("$content")}
    found = db.versions.find({"_id": {"$in": list(keys)}}, fields)
    return {keys[row["_id"]]: values_in(row) async for row in found}


async def _hashes_at(
    db: Database, spider: str, urls: Sequence[str], since: datetime, collection: str
) -> dict[str, str]:
    """Return the hash of each URL in the last row of a collection until a time."""
    last: list[Document] = [
        {"$match": {"$expr": {"$lte": ["$at", "$$since"]}}},
        {"$sort": {"at": DESCENDING}},
        {"$match": {"spider": spider, "content_hash": {"$type": "string"}}},
        {"$limit": 1},
        {"$project": {"_id": 0, "content_hash": 1}},
    ]
    stages: list[Document] = [
        {"$match": {"_id": {"$in": [f"{spider} {url}" for url in urls]}}},
        {"$project": {"url": 1, "since": {"$max": [since, "$first_seen"]}}},
        {"$lookup": {
            "from": collection, "localField": "url", "foreignField": "target",
            "let": {"since": "$since"}, "pipeline": last, "as": "last",
        }},
    ]  # fmt: skip
    rows = await aggregated(db.posts, stages)
    return {row["url"]: row["last"][0]["content_hash"] for row in rows if row["last"]}


async def short_contents(
    db: Database, spider: str, url: str, hashes: Sequence[str]
) -> dict[str, Document]:
    """Return the short values of versions of an item by content hash, without pruned versions."""
    keys = [f"{spider} {url} {name}" for name in dict.fromkeys(hashes)]
    fields: Document = {"content_hash": 1, "values": _short("$content")}
    found = db.versions.find({"_id": {"$in": keys}}, fields)
    return {row["content_hash"]: values_in(row) async for row in found}


def values_in(row: Document) -> Document:
    """Return the values of a row as a document."""
    return {pair["k"]: pair.get("v") for pair in row.get("values") or ()}


async def add_sort_names(db: Database) -> None:
    """Add `sort_name` to the items of an earlier version of the data."""
    query: Document = {"feed": {"$exists": False}, "sort_name": {"$exists": False}}
    fields = {"url": 1, "title": 1, "fields.name": 1, "fields.headline": 1}
    updates: list[UpdateOne] = []

    async def write() -> None:
        if updates:
            await db.posts.bulk_write(updates, ordered=False, bypass_document_validation=True)
            updates.clear()

    async for row in db.posts.find(query, fields):
        content = (row.get("fields") or {}) | {"title": row.get("title")}
        name = sort_name(name_of(content, row.get("url") or ""))
        updates.append(UpdateOne({"_id": row["_id"]}, {"$set": {"sort_name": name}}))
        if len(updates) >= BATCH:
            await write()
    await write()
