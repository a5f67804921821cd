"""Pages of long lists by the last row of the page before, whose cost does not grow with the page.

A page begins after a *key*: the values by which the rows are sorted, of the last row shown. Rows
that are added or deleted meanwhile do not shift the following pages, as they would with a number of
rows to skip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection

from crawler.errors import ConfigError
from crawler.storage.client import Document

# Values of the sort fields of a row, in the order of the fields.
Key = tuple[Any, ...]
# Field names, each with 1 for ascending or -1 for descending order.
Order = Sequence[tuple[str, int]]


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
    after:  key of the last row of the page before; None: first page
    fields: projection; must include the fields of `order`
    hint:   index to use; None: as the server chooses, which may try several for longer than the
            page takes
    """
    if after is not None:
        query = {"$and": [query, later(order, after)]}
    found = collection.find(query, fields, hint=None if hint is None else list(hint))
    rows = await found.sort(list(order)).limit(limit + 1).to_list(None)
    if len(rows) <= limit:
        return Rows(rows, None)
    rows = rows[:limit]
    return Rows(rows, tuple(_value(rows[-1], name) for name, _ in order))


def later(order: Order, key: Key) -> Document:
    """Return a query for the rows after a key; raises ConfigError for a key of another list.

    Its first part is implied by the others: it makes the server begin at the key of the index,
    instead of at the first row of the list.
    """
    if len(key) != len(order):
        raise ConfigError("cursor: not a cursor of this list. Begin with the first page")
    branches: list[Document] = []
    equal: Document = {}
    for (name, direction), value in zip(order, key, strict=True):
        branches += [equal | beyond for beyond in _beyond(name, direction, value)]
        equal = equal | {name: value}
    if not branches:
        # MongoDB rejects an empty $or. Nothing comes after a null in descending order.
        return {"_id": {"$in": []}}
    (name, direction), value = order[0], key[0]
    if value is None:
        return {"$or": branches}
    # Not $gte and $lte, because these do not match null.
    return {name: {"$not": {"$lt" if direction > 0 else "$gt": value}}, "$or": branches}


def _beyond(name: str, direction: int, value: Any) -> list[Document]:
    """Return queries for the values after `value`.

    Null and absent values come first in ascending order, but comparisons with null match nothing.
    """
    if direction > 0:
        return [{name: {"$ne": None} if value is None else {"$gt": value}}]
    return [] if value is None else [{name: {"$lt": value}}, {name: None}]


def _value(row: Mapping[str, Any], name: str) -> Any:
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
