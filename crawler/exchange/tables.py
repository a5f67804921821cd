"""The tables of an export: their columns with fixed types, and the values of documents.

A column never gets its type from the data, so that every file of a table has the same schema. The
columns are documented by the validators of the collections, in which they must have a field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

from bson import ObjectId

from crawler.errors import StorageError
from crawler.storage.client import Document
from crawler.utils.time import EPOCH

# Increased when the columns of a table change. Exported days of an earlier schema are written
# again, as far as the database still has their rows.
SCHEMA = 1


class ColumnType(StrEnum):
    """The type of a column."""

    TEXT = "text"
    NAME = "name"
    """A text with few different values."""
    ID = "id"
    TIME = "time"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    TEXTS = "list of texts"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    path:        field in the collection, with a dot for a field of a subdocument
    description: only if it differs from that of the field
    """

    name: str
    type: ColumnType
    path: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the name of its collection, what a row is, and its columns.

    time: field by whose UTC day the rows are partitioned; None for a table that is replaced as a
          whole, because its rows change all the time
    by_spider: has a partition for each spider
    is_log:    rows are only added, so a day with as many rows as before is unchanged
    key:       fields of which `_id` consists, separated by spaces; empty if it has a column
    """

    name: str
    rows: str
    columns: tuple[Column, ...]
    time: str | None = None
    by_spider: bool = True
    is_log: bool = False
    key: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of the collection to read."""
        paths = dict.fromkeys(column.path for column in self.columns)
        # MongoDB rejects a projection of both a document and a field in it.
        whole = {path for path in paths if "." not in path}
        return tuple(path for path in paths if path in whole or path.split(".")[0] not in whole)


def _column(column_type: ColumnType) -> Callable[..., Column]:
    return lambda name, path="", description="": Column(
        name, column_type, path or name, description
    )


_text, _name, _id, _time = map(
    _column, (ColumnType.TEXT, ColumnType.NAME, ColumnType.ID, ColumnType.TIME)
)
_integer, _number, _boolean = map(
    _column, (ColumnType.INTEGER, ColumnType.NUMBER, ColumnType.BOOLEAN)
)
_texts, _json = map(_column, (ColumnType.TEXTS, ColumnType.JSON))

_VISITS = (
    _id("id", "_id"),
    _name("spider"),
    _text("target"),
    _time("visited_at", "at"),
    _name("outcome"),
    _text("reason"),
    _boolean("changed", "changed", "true if a change was found; false for the first visit"),
    _boolean("event"),
    _boolean("news"),
    _integer("status"),
    _integer("elapsed_ms"),
    _integer("get_size"),
    _integer("update_size"),
    _integer("diff_size"),
    _text("content_hash"),
    _text("final_url"),
    _name("hint"),
    _integer("posts_new"),
    _integer("posts_edited"),
    _number("missed_posts"),
    _boolean("pushed"),
    _boolean("shared_fetch"),
)
_VERSIONS = (
    _name("spider"),
    _text("target"),
    _text("content_hash"),
    _time("first_seen", "at"),
    _id("visit"),
    _integer("size"),
    _text("title", "content.title", "title, as text"),
    _text("main_text", "content.main_text", "main text"),
    _texts("links", "content.links", "for a list page: its links, at most 20,000"),
    _json("fields", "content", "fields by name, without `main_text` and `links`"),
)
_POSTS = (
    _text("id", "_id"),
    _name("spider"),
    _text("url"),
    _text("title"),
    _text("text"),
    _json("fields"),
    _texts("categories"),
    _time("first_seen"),
    _time("changed_at"),
    _text("content_hash"),
    _id("visit"),
    _name("feed"),
    _text("guid"),
    _time("published"),
    _text("page_url", "page.url", "for a feed post whose page was fetched: URL of the page"),
    _time("page_at", "page.at", "time of the visit of that page"),
    _text("item"),
    _text("duplicate_of"),
    _number("similarity"),
    _id("cluster"),
)
_TARGETS = (
    _text("id", "_id"),
    _name("spider"),
    _text("url"),
    _name("host"),
    _name("kind"),
    _boolean("start"),
    _integer("depth"),
    _texts("categories"),
    _text("title"),
    _text("post"),
    _time("first_seen"),
    _time("next_visit"),
    _time("visited_at"),
    _time("changed_at"),
    _time("unlisted_at"),
    _name("outcome"),
    _integer("requested"),
    _integer("refreshed"),
    _integer("missed_visits"),
    _integer("consecutive_errors"),
    _integer("consecutive_gone"),
    _boolean("gone"),
    _time("dead_lettered_at"),
    _time("muted_at"),
    _number("limits_min_hours", "limits.min_hours"),
    _number("limits_max_hours", "limits.max_hours"),
    _boolean("retired"),
    _text("content_hash"),
    _integer("size"),
    _integer("kept_bytes"),
    _text("final_url"),
    _text("alias_of"),
    _time("lastmod"),
    _integer("feed_size"),
    _time("observed_since", "history.since"),
    _time("observed_until", "history.until"),
    _integer("false_dates", "history.false_dates"),
    _name("policy", "plan.policy"),
    _name("frequency_class", "plan.frequency_class"),
    _number("every_hours", "plan.every_hours"),
    _number("visits_per_week", "plan.visits_per_week"),
    _number("rate_per_week", "plan.rate_per_week"),
    _number("rate_low", "plan.rate_low"),
    _number("rate_high", "plan.rate_high"),
    _number("freshness", "plan.freshness"),
    _number("age_days", "plan.age_days"),
    _number("missed_per_week", "plan.missed_per_week"),
    _number("delay_hours", "plan.delay_hours"),
    _number("marginal_value", "plan.marginal_value"),
    _name("limited_by", "plan.limited_by"),
)
# The subscription's token and secret are left out: anyone could deliver posts with them.
_FEEDS = (
    _text("id", "_id"),
    _name("spider"),
    _text("url"),
    _text("title"),
    _text("site"),
    _name("format"),
    _integer("feed_size"),
    _boolean("full"),
    _integer("posts"),
    _time("newest"),
    _number("missed_posts"),
    _integer("gaps"),
    _time("last_gap_at"),
    _texts("hubs"),
    _name("push_state", "push.state"),
    _time("delivered_at", "push.delivered_at"),
    _texts("problems"),
    _text("error"),
    _time("seen_at"),
)
_PLANS = (
    _id("id", "_id"),
    _time("planned_at", "at"),
    _name("kind"),
    _texts("spiders"),
    _name("state"),
    _name("policy"),
    _name("objective"),
    _number("budget_per_day"),
    _name("budget_from"),
    _number("daily_cap"),
    _number("hourly_cap"),
    _number("shadow_price"),
    _integer("targets"),
    _integer("updated"),
    _integer("unplanned"),
    _integer("learning"),
    _number("requests_per_day", "totals.requests_per_day"),
    _number("freshness", "totals.freshness"),
    _number("age_days", "totals.age_days"),
    _number("posts_per_day", "totals.posts_per_day"),
    _number("missed_share", "totals.missed_share"),
    _number("delay_hours", "totals.delay_hours"),
    _texts("warnings"),
    _name("samples"),
    _time("until"),
    _time("ended"),
)

TABLES = {
    table.name: table
    for table in (
        Table("visits", "a visit", _VISITS, time="at", is_log=True),
        Table(
            "versions",
            "a content of a page or post",
            _VERSIONS,
            time="at",
            is_log=True,
            key=("spider", "target", "content_hash"),
        ),
        Table("posts", "an item or feed post with its current content", _POSTS, time="first_seen"),
        Table("targets", "a URL or cell that Freshet visits", _TARGETS),
        Table("feeds", "the state of a feed", _FEEDS),
        Table("plans", "a replan", _PLANS, by_spider=False),
    )
}
# Fields of `content` and `fields` that have a column of their own. A title is also kept in
# `fields`, where its type is that of the site definition.
_OWN_COLUMNS = ("main_text", "links")


def values_of(column: Column, documents: Sequence[Document]) -> list[Any]:
    """Return the value of a column for each document; None if the document has none.

    The values are `str`, `int`, `float`, `bool`, naive `datetime` in UTC, a list of `str`, or for
    JSON a document. Raises StorageError for a value of another type.
    """
    head, dot, tail = column.path.partition(".")
    if dot:
        holders = [document.get(head) for document in documents]
        values = [holder.get(tail) if isinstance(holder, dict) else None for holder in holders]
    else:
        values = [document.get(head) for document in documents]
    convert, plain = _CONVERTERS[column.type]
    if plain is not None and set(map(type, values)) <= plain:
        return values
    try:
        return [convert(value) for value in values]
    except (ValueError, TypeError, OverflowError):
        raise _invalid(column, documents, values, convert) from None


def document_of(table: Table, row: Mapping[str, Any]) -> Document:
    """Return the document of a log that gives a row of an export, with its `_id`.

    row: values by column, as JSON or CSV has them. Raises ValueError for invalid values.
    """
    document: Document = {}
    for column in table.columns:
        if (value := row[column.name]) is None:
            continue
        value = _PARSERS[column.type](value) if isinstance(value, str) else value
        head, dot, tail = column.path.partition(".")
        if dot or column.type is ColumnType.JSON:
            # A title is also in the JSON, where it has its own type.
            document[head] = document.get(head, {}) | ({tail: value} if dot else value)
        else:
            document[head] = value
    if "_id" in document:
        document["_id"] = ObjectId(document["_id"])
    else:
        document["_id"] = " ".join(document[name] for name in table.key)
    return document


def as_json(value: Any) -> str:
    """Return a stored value as compact JSON: ids and times as text, NaN and infinity as null."""
    try:
        return _encoder.encode(value)
    except ValueError:
        return _encoder.encode(_finite(value))


def iso(moment: datetime) -> str:
    """Return a naive time in UTC as ISO 8601 with milliseconds: `2026-03-01T08:00:00.000Z`."""
    return f"{moment.isoformat(timespec='milliseconds')}Z"


# NaN is not JSON; databases reject the whole file.
_encoder = json.JSONEncoder(
    ensure_ascii=False,
    separators=(",", ":"),
    default=lambda value: iso(value) if isinstance(value, datetime) else str(value),
    allow_nan=False,
)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (list, Mapping)):
        return as_json(value)
    return str(value)


def _only(kinds: type | tuple[type, ...], convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a conversion of values of some types, and of None; it rejects all other values."""

    def converted(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, kinds):
            raise TypeError
        return convert(value)

    return converted


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError
    return int(value)


def _as_fields(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: part for name, part in value.items() if name not in _OWN_COLUMNS}
    return value


# Parsers of texts by the type of their column.
_PARSERS: dict[ColumnType, Callable[[str], Any]] = {
    ColumnType.TEXT: str,
    ColumnType.NAME: str,
    ColumnType.ID: str,
    ColumnType.TIME: lambda text: datetime.fromisoformat(text).replace(tzinfo=None),
    ColumnType.INTEGER: int,
    ColumnType.NUMBER: float,
    ColumnType.BOOLEAN: lambda text: text == "true",
    ColumnType.TEXTS: json.loads,
    ColumnType.JSON: json.loads,
}
_NONE = type(None)
# By type: the conversion of a value, and the types of values that need none.
_CONVERTERS: dict[ColumnType, tuple[Callable[[Any], Any], set[type] | None]] = {
    ColumnType.TEXT: (_as_text, {str, _NONE}),
    ColumnType.NAME: (_as_text, {str, _NONE}),
    ColumnType.ID: (
        lambda value: value.binary.hex() if isinstance(value, ObjectId) else _as_text(value),
        None,
    ),
    ColumnType.TIME: (_only(datetime, lambda value: value), {datetime, _NONE}),
    ColumnType.INTEGER: (_only((int, float), _whole), {int, _NONE}),
    ColumnType.NUMBER: (_only((int, float), float), {float, _NONE}),
    ColumnType.BOOLEAN: (lambda value: _only((int, float), bool)(value) or False, {bool}),
    ColumnType.TEXTS: (
        _only(list, lambda values: [_as_text(value) or "" for value in values]),
        None,
    ),
    ColumnType.JSON: (_as_fields, None),
}


def _invalid(
    column: Column, documents: Sequence[Document], values: list[Any], convert: Callable[[Any], Any]
) -> StorageError:
    """Return the error for the first value that `convert` rejects."""
    for document, value in zip(documents, values, strict=True):
        try:
            convert(value)
        except (ValueError, TypeError, OverflowError):
            return StorageError(
                f"document {document.get('_id')!s}: {column.path} is not of type {column.type}: "
                f"{str(value)[:50]!r}. Correct the document, then export again"
            )
    raise AssertionError("a value is invalid")


def midnight(day: date) -> datetime:
    """Return the aware start of a UTC day."""
    return EPOCH + timedelta(days=(day - EPOCH.date()).days)
