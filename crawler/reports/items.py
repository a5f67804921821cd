"""Items of a site as a table: names, current values, and what changed in the last week.

The order by name and by last change follows an index. The order by a value is made here, among the
items that changed last: numbers first, then texts, then items without the value. If there are more
items than that, the others follow in the order of their last change.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import TypedDict

from crawler.extract.item_names import NAMES, name_of
from crawler.extract.item_values import Value, ValueChange, change_of, number_of, values_of
from crawler.storage import items
from crawler.storage.client import Database, Document
from crawler.storage.items import ItemFilter
from crawler.storage.paging import Key
from crawler.storage.target_queries import TargetState
from crawler.utils.urls import target_id

# Changes of this time are marked.
WEEK = timedelta(days=7)
# Newest items whose fields become the columns, and the maximum number of columns.
SAMPLE, MAX_COLUMNS = 100, 12
# Kinds of values in their order; REST are the items that are not sorted by the value.
NUMBER, TEXT, MISSING, REST = range(4)
# Kind, value, and id of an item; of REST the time of the change and the id.
SortKey = tuple[int, Any, str]


class ItemValue(Value):
    """A value of an item, and its change."""

    change: ValueChange | None
    """The change in the last seven days; null if the value is the same, or new to Freshet."""


class Item(TypedDict):
    """An item with its current values."""

    id: str
    """Id in URLs of the web app and of its API, such as `/api/v1/targets/ID`."""
    url: str
    """Canonical URL."""
    name: str
    """Name of the item."""
    values: list[ItemValue]
    """Fields of the item that fit on a line, without its name, in their order."""
    categories: list[str]
    """Categories when its content changed last."""
    gone: bool
    """Whether the page is gone."""
    first_seen: datetime
    """Time of the first visit that saw it."""
    changed_at: datetime | None
    """Time of the visit that found the current content."""


class ListedTarget(TargetState):
    """A target in a list, with its name and its current values."""

    name: str
    """Name of an item: its title, or what its URL says of it."""
    values: list[Value]
    """Fields of an item that fit on a line, without its name; empty for other targets."""


class Column(TypedDict):
    """A column of values in the table."""

    name: str
    """Name of the field."""
    is_number: bool
    """Whether most values are numbers."""


@dataclass(frozen=True, slots=True)
class ItemPage:
    """A page of items.

    last:        key after which the next page begins; None: no more items
    is_partial:  whether the search stopped at its limit, so that the page may have few rows
    is_cut:      whether only the items that changed last are sorted by a value
    """

    items: list[Item]
    last: Key | None
    is_partial: bool = False
    is_cut: bool = False


async def columns_of(db: Database, spider: str) -> tuple[list[Column], int]:
    """Return the columns of a site's table, and the number of columns that it has no room for.

    They are the fields that are short in at least half of the newest items that have them.
    """
    order: dict[str, None] = {}
    present: Counter[str] = Counter()
    short: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for row in await items.newest(db, spider, SAMPLE):
        content = content_of(row)
        order |= dict.fromkeys(content)
        present.update(name for name, value in content.items() if value not in (None, "", []))
        for value in values_of(content):
            short[value["name"]] += 1
            numbers[value["name"]] += value["number"] is not None
    columns = [
        Column(name=name, is_number=2 * numbers[name] > short[name])
        for name in order
        if short[name] and 2 * short[name] >= present[name]
    ]
    return columns[:MAX_COLUMNS], max(0, len(columns) - MAX_COLUMNS)


async def newest_fields(db: Database, spider: str) -> list[str]:
    """Return the names of the short fields of the newest items, in their order."""
    rows = await items.newest(db, spider, SAMPLE)
    return list(dict.fromkeys(name for row in rows for name in items.values_in(row)))


async def item_page(
    db: Database, spider: str, wanted: ItemFilter, now: datetime, limit: int, after: Key | None
) -> ItemPage:
    """Return a page of the items of a site. after: last key of the previous page; None: first."""
    if wanted.field is None:
        page = await items.page_of_items(db, spider, wanted, limit, after)
        return ItemPage(await items_of(db, spider, page.rows, now), page.last, page.is_partial)
    ranked = await _ranked(db, spider, wanted, wanted.field)
    rest = _rest_after(after)
    rows: list[Document] = []
    last: Key | None = None
    if rest is None:
        start = ranked.place_after(after)
        chosen = ranked.keys[start : start + limit]
        rows = await items.of_ids(db, [key[2] for key in chosen])
        if start + limit < len(ranked.keys):
            last = chosen[-1]
        elif ranked.end is not None:
            last = (REST, *ranked.end)
    else:
        others = ItemFilter(wanted.category, wanted.text)
        page = await items.page_of_items(db, spider, others, limit, rest)
        rows = page.rows
        last = None if page.last is None else (REST, *page.last)
    found = await items_of(db, spider, rows, now)
    return ItemPage(found, last, is_cut=ranked.end is not None)


async def rows_of_file(db: Database, spider: str, wanted: ItemFilter) -> AsyncIterator[Document]:
    """Yield all items of a list in its order, with their whole values as `values`."""
    if wanted.field is None:
        async for row in items.all_items(db, spider, wanted):
            yield row
        return
    ranked = await _ranked(db, spider, wanted, wanted.field)
    for start in range(0, len(ranked.keys), items.FILE_BATCH):
        ids = [key[2] for key in ranked.keys[start : start + items.FILE_BATCH]]
        for row in await items.of_ids(db, ids, whole=True):
            yield row
    if ranked.end is not None:
        others = ItemFilter(wanted.category, wanted.text)
        async for row in items.all_items(db, spider, others, ranked.end):
            yield row


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Items in the order of a value.

    keys: of the items, those without a value last
    end:  key in the order of the last change after which the other items begin; None: no others
    """

    keys: list[SortKey]
    is_descending: bool
    end: Key | None

    def place_after(self, after: Key | None) -> int:
        """Return the place of the first item after a key; 0 for the cursor of another list."""
        if after is None or len(after) != 3 or after[0] not in (NUMBER, TEXT, MISSING):
            return 0
        try:
            return bisect_right(self.keys, self._rank(after), key=self._rank)
        except TypeError:
            return 0

    def _rank(self, key: Any) -> tuple[Any, ...]:
        kind, value, name = key
        if kind == MISSING or not self.is_descending:
            return (kind, value, name)
        # Texts cannot be negated, so their letters are.
        inverse = -value if kind == NUMBER else _Backward(value)
        return (kind, inverse, name)


@dataclass(frozen=True, slots=True)
class _Backward:
    """A text that sorts in the opposite order."""

    text: str

    def __lt__(self, other: _Backward) -> bool:
        """Return whether this text comes first."""
        return self.text > other.text


async def _ranked(db: Database, spider: str, wanted: ItemFilter, field: str) -> _Ranked:
    rows = await items.newest_values(db, spider, wanted, field)
    end: Key | None = None
    if len(rows) > items.MAX_SORTED:
        rows.pop()
        end = (rows[-1].get("changed_at"), rows[-1]["_id"])
    ranked = _Ranked([], wanted.is_descending, end)
    # In a thread, because reading the numbers of 20,000 texts takes a fifth of a second.
    await asyncio.to_thread(_sort, ranked, rows)
    return ranked


def _sort(ranked: _Ranked, rows: Sequence[Document]) -> None:
    ranked.keys.extend(_key_of(row.get("v"), row["_id"]) for row in rows)
    ranked.keys.sort(key=ranked._rank)


def _key_of(value: Any, name: str) -> SortKey:
    number = number_of(value)
    if number is not None:
        return (NUMBER, number[0], name)
    for each in values_of({"value": value}):
        return (TEXT, each["text"].casefold(), name)
    return (MISSING, None, name)


def _rest_after(after: Key | None) -> Key | None:
    """Return the key in the order of the last change, if a page begins after the sorted items."""
    if after is None or len(after) != 3 or after[0] != REST:
        return None
    return after[1:]


async def described(
    db: Database, targets: Sequence[tuple[str, str]]
) -> list[tuple[str, list[Value]]]:
    """Return the names and the current values of targets. targets: spiders and URLs.

    Targets that are no items, or have no content yet, have a name from their URL, and no values.
    """
    keys = [f"{spider} {url}" for spider, url in targets]
    rows = await items.of_ids(db, list(dict.fromkeys(keys)))
    contents = {row["_id"]: content_of(row) for row in rows}
    return [
        (name_of(contents.get(key), url), values_of(contents.get(key) or {}))
        for key, (_, url) in zip(keys, targets, strict=True)
    ]


async def listed_targets(db: Database, rows: Sequence[TargetState]) -> list[ListedTarget]:
    """Return targets with their names and values."""
    found = await described(db, [(row["spider"], row["url"]) for row in rows])
    return [
        {**row, "name": name, "values": values}
        for row, (name, values) in zip(rows, found, strict=True)
    ]


async def items_of(
    db: Database, spider: str, rows: Sequence[Document], now: datetime
) -> list[Item]:
    """Return stored items with their changes since a week ago, or since they were first seen."""
    since = now - WEEK
    recent = [
        row["url"]
        for row in rows
        if row.get("changed_at") and row["changed_at"] > max(since, row["first_seen"])
    ]
    gone, before = await asyncio.gather(
        items.gone_of(db, [row["_id"] for row in rows]),
        items.values_at(db, spider, recent, since),
    )
    return [_item(row, row["_id"] in gone, before.get(row["url"])) for row in rows]


def _item(row: Document, is_gone: bool, before: Document | None) -> Item:
    content = content_of(row)
    return {
        "id": target_id(row["_id"]),
        "url": row["url"],
        "name": name_of(content, row["url"]),
        "values": with_changes(content, before),
        "categories": row.get("categories") or [],
        "gone": is_gone,
        "first_seen": row["first_seen"],
        "changed_at": row.get("changed_at"),
    }


def with_changes(content: Document, before: Document | None) -> list[ItemValue]:
    """Return the values of an item with their changes. before: its content then; None: unknown."""
    earlier = {} if before is None else {value["name"]: value for value in values_of(before)}
    values: list[ItemValue] = []
    for value in values_of(content):
        # A field that the site definition did not have then has not changed.
        is_known = before is not None and value["name"] in before
        was = earlier.get(value["name"])
        is_same = was is not None and was["text"] == value["text"]
        change = change_of(value["name"], was, value) if is_known and not is_same else None
        values.append({**value, "change": change})
    return values


def content_of(row: Document) -> Document:
    """Return the short values of a stored item, with its title and without fields of HTML."""
    markup = set(row.get("markup") or ()) - set(NAMES)
    content = {name: value for name, value in items.values_in(row).items() if name not in markup}
    title = {"title": row["title"]} if row.get("title") else {}
    return title | content | title
