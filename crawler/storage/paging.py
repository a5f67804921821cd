"""Long lists in bounded steps: pages for users, and parts of scans with pauses in between.

A page begins after a *key*: the values by which the rows are sorted, of the last row shown. Its
cost does not grow with the number of pages before it. Rows that are added or deleted meanwhile do
not shift the following pages, as they would with a number of rows to skip.

A scan reads a whole collection. One query over a million documents occupies a processor of the
server for seconds, and what it reads displaces what pages need. A part takes tens of milliseconds,
and the pause after it is longer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pymongo import ASCENDING
from pymongo.asynchronous.collection import AsyncCollection

from crawler.errors import ConfigError
from crawler.storage.client import Database, Document, aggregated

# Values of the sort fields of a row, in the order of the fields.
Key = tuple[Any, ...]
# Field names, each with 1 for ascending or -1 for descending order.
Order = Sequence[tuple[str, int]]
# Documents in a part. With all numbers of their plans, a part is 3 MB.
PART = 10_000
# Pause after a part, as a multiple of its duration: a scan uses at most a third of the time.
PAUSE_FACTOR = 2.0
# Maximum number of documents that a page tests with conditions that its index does not have.
MAX_SCANNED = 20_000
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a page.

    last: key after which the next page begins; None: no more rows
    """

    rows: list[Document]
    last: Key | None


async def read_page(
    collection: AsyncCollection[Document],
    query: Document,
    order: Order,
    limit: int,
    after: Key | None = None,
    fields: Mapping[str, Any] | None = None,
    hint: Order | None = None,
) -> Rows:
    """Read a page of documents.

    order:  the last field must be unique, such as `_id`; an index should have the same fields
    after:  key of the last row of the previous page; None: first page
    fields: projection; must include the fields of `order`
    hint:   index to use; None: as the server chooses, which may try several for longer than the
            page takes
    """
    if after is not None:
        query = {"$and": [query, later(order, after)]}
    matches = collection.find(query, fields, hint=None if hint is None else list(hint))
    rows = await matches.sort(list(order)).limit(limit + 1).to_list(None)
    if len(rows) <= limit:
        return Rows(rows, None)
    rows = rows[:limit]
    return Rows(rows, tuple(_value(rows[-1], name) for name, _ in order))


@dataclass(frozen=True, slots=True)
class Listing:
    """A list that follows an index.

    indexed: conditions that the index has
    rest:    the other conditions; empty: none
    order:   order of the list, which the index has; the last field is unique
    index:   keys of the index
    """

    indexed: Document
    rest: Document
    order: Order
    index: Order

    @property
    def query(self) -> Document:
        """Return all conditions."""
        return {"$and": [self.indexed, self.rest]} if self.rest else self.indexed


async def search_page(
    collection: AsyncCollection[Document],
    listing: Listing,
    limit: int,
    after: Key | None = None,
    fields: Mapping[str, Any] | None = None,
    max_scanned: int = MAX_SCANNED,
) -> tuple[Rows, bool]:
    """Read a page of a list, of which at most `max_scanned` documents are tested.

    A cursor of another list is ignored. Returns the page, and whether the search stopped at its
    limit, so that the page may have few rows: the next page continues there.
    """
    order, index = listing.order, listing.index
    if after is not None and len(after) != len(order):
        after = None
    if not listing.rest:
        return await read_page(
            collection, listing.indexed, order, limit, after, fields, index
        ), False
    # The end of the part to search, by the keys of the index only.
    indexed = listing.indexed
    part = indexed if after is None else {"$and": [indexed, later(order, after)]}
    keys = {"_id": 0} | {name: 1 for name, _ in order}
    scanned = collection.find(part, keys, hint=list(index)).sort(list(order))
    border = await scanned.skip(max_scanned).limit(1).to_list(1)
    end = tuple(_value(border[0], name) for name, _ in order) if border else None
    query: Document = {"$and": [indexed, listing.rest]}
    if end is not None:
        # The range of the first field, where the server stops reading the index.
        (name, direction), limit_value = order[0], end[0]
        if limit_value is not None:
            # Not $lte and $gte, because these do not match null.
            past = {"$gt" if direction > 0 else "$lt": limit_value}
            query["$and"].append({name: {"$not": past}})
        query["$and"].append({"$nor": [later(order, end)]})
    found = await read_page(collection, query, order, limit, after, fields, index)
    if found.last is None and end is not None:
        return Rows(found.rows, end), True
    return found, False


def later(order: Order, key: Key) -> Document:
    """Return a query for the rows after a key; raises ConfigError for a key of another list.

    Its first condition is implied by the others: it makes the server begin at the key in the index,
    instead of at the first row of the list.
    """
    if len(key) != len(order):
        raise ConfigError("cursor: not a cursor of this list. Begin with the first page")
    branches: list[Document] = []
    equal: Document = {}
    for (name, direction), value in zip(order, key, strict=True):
        # Null and absent values come first in ascending order, but comparisons with null match
        # nothing.
        if direction > 0:
            branches.append(equal | {name: {"$ne": None} if value is None else {"$gt": value}})
        elif value is not None:
            branches += [equal | {name: {"$lt": value}}, equal | {name: None}]
        equal = equal | {name: value}
    if not branches:
        # MongoDB rejects an empty $or. Nothing comes after a null in descending order.
        return {"_id": {"$in": []}}
    (name, direction), value = order[0], key[0]
    if value is None:
        return {"$or": branches}
    # Not $gte and $lte, because these do not match null.
    return {name: {"$not": {"$lt" if direction > 0 else "$gt": value}}, "$or": branches}


def _value(row: Mapping[str, Any], name: str) -> Any:
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


async def resting(work: Awaitable[Value]) -> Value:
    """Return the result of a query, after a pause in which the server can handle other requests."""
    began = time.monotonic()
    result = await work
    await asyncio.sleep(PAUSE_FACTOR * (time.monotonic() - began))
    return result


def keys_of(name: str) -> Document:
    """Return a condition for keys that begin with a name and a space, as those of a spider do."""
    return {"$gte": f"{name} ", "$lt": f"{name}!"}


async def aggregated_targets(
    db: Database, stages: Sequence[Document], spider: str | None = None
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the results of an aggregation over each part of the targets of a spider, or of all.

    stages: after the `$match` of the part; a part has few results, or PART short ones
    """
    rest = {"$gte": ""} if spider is None else keys_of(spider)
    while rest:
        keys = db.targets.find({"_id": rest}, {"_id": 1}).sort("_id", ASCENDING)
        border = [row["_id"] for row in await keys.skip(PART).limit(1).to_list(1)]
        part = rest | {"$lt": border[0]} if border else rest
        yield await resting(aggregated(db.targets, [{"$match": {"_id": part}}, *stages]))
        rest = rest | {"$gte": border[0]} if border else {}


async def is_larger(db: Database, spider: str, size: int) -> bool:
    """Return whether a spider has more than `size` targets."""
    query: Document = {"_id": keys_of(spider)}
    return await db.targets.count_documents(query, limit=size + 1) > size


async def draw_keys(db: Database, spider: str, size: int) -> list[str]:
    """Return the `_id` of a random sample of the targets of a spider, in random order.

    The server reads only keys of an index, part by part with pauses.
    """
    total = await db.targets.count_documents({"_id": keys_of(spider)})
    drawn: list[str] = []
    # More than needed, because the number of drawn keys is random.
    share = min(1.0, (size + 4 * size**0.5) / max(total, 1))
    # After $project, so that the server does not read the documents.
    stages: list[Document] = [
        {"$project": {"_id": 1}},
        {"$match": {"$expr": {"$lt": [{"$rand": {}}, share]}}},
    ]
    async for rows in aggregated_targets(db, stages, spider):
        drawn += [row["_id"] for row in rows]
    random.shuffle(drawn)
    return drawn[:size]
