"""All targets with their histories as arrays for a replan: a million targets take seconds.

The server reduces each document to a row of the needed fields, with times as numbers. Each batch of
rows is converted to columns immediately, so that no target keeps a Python object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

import bson
import numpy as np
from numpy.typing import NDArray

from crawler.storage.client import Database, Document
from crawler.storage.outages import in_batches
from crawler.storage.scans import draw_keys, resting
from crawler.storage.targets import to_plan
from schedules.history import (
    CHANGE,
    FIELD_CHANGE,
    MINUTES,
    FieldHistories,
    Floats,
    Histories,
    Ints,
)
from schedules.schedule import Schedules

Number = TypeVar("Number", bound=np.generic)
BATCH = 10_000
# Keys of a query: URLs of 2,000 bytes are a quarter of the largest one.
KEYS = 2000
HOUR_MILLISECONDS = 3_600_000
HOUR_SECONDS = 3600
# A scan is faster than the index for spiders with more than this share of all targets.
MAX_INDEXED_SHARE = 0.2
# Reading one joined text is much faster than four. A category may contain the separator, so it is
# last.
NAMES = ("$spider", "$kind", {"$toString": "$plan.id"}, {"$first": "$categories"})
BETWEEN = "\0"


def _unless(field: str, usual: float) -> Document:
    """Return an expression that omits a field if it is missing or has its default value."""
    given = {"$ifNull": [field, usual]}
    return {"$cond": [{"$eq": [given, usual]}, "$$REMOVE", field]}


ROW: Document = {
    "names": {
        "$concat": [{"$ifNull": [NAMES[0], ""]}]
        + [part for name in NAMES[1:] for part in (BETWEEN, {"$ifNull": [name, ""]})]
    },
    "next": {"$toLong": "$next_visit"},
    "visited": {"$toLong": "$visited_at"},
    "refreshed": "$refreshed",
    "feed_size": _unless("$feed_size", 0),
    "asks": _unless("$stated_interval_hours", 0),
    "least": _unless("$limits.min_hours", 0),
    "most": _unless("$limits.max_hours", 0),
    "since": {"$toLong": "$history.since"},
    "until": {"$toLong": "$history.until"},
    "changes": "$history.changes",
    "false_dates": _unless("$history.false_dates", 0),
    # Values that other selectors extracted are not comparable with those that follow.
    "fields": {
        "$cond": [
            {"$eq": ["$field_history.digest", "$selector_digest"]},
            "$field_history",
            "$$REMOVE",
        ]
    },
    "weeks": _unless("$plan.weeks", 1),
    "slots": "$plan.slots",
    "every": _unless("$plan.every_hours", 0),
    "phase": _unless("$plan.phase_hours", 0),
}


@dataclass(frozen=True, slots=True)
class Texts:
    """n texts in one block of memory; a text is decoded when it is read.

    data:  all texts, UTF-8, one after the other
    first: (n + 1,) text i is data[first[i]:first[i + 1]]
    """

    data: bytes
    first: Ints

    def __len__(self) -> int:
        return len(self.first) - 1

    def __getitem__(self, i: int) -> str:
        return self.data[self.first[i] : self.first[i + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


class NumberColumn(Generic[Number]):
    """A growing column of numbers."""

    def __init__(self, dtype: type[Number] | np.dtype[Number]) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Number]] = []

    def add(self, values: Sequence[Any] | NDArray[Any]) -> None:
        """Append values."""
        self._parts.append(np.asarray(values, self._dtype))

    def finish(self) -> NDArray[Number]:
        """Return the whole column and empty this object."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else np.empty(0, self._dtype)


class TextColumn:
    """A growing column of texts."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._lengths = NumberColumn(np.int64)

    def add(self, texts: Iterable[str]) -> None:
        """Append texts."""
        encoded = [text.encode() for text in texts]
        self._data.append(b"".join(encoded))
        self._lengths.add([len(text) for text in encoded])

    def finish(self) -> Texts:
        """Return the whole column and empty this object."""
        data, self._data = b"".join(self._data), []
        return Texts(data, offsets(self._lengths.finish()))


class NameColumn:
    """A growing column with few distinct names: a number for each row, and the names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._rows = NumberColumn(np.int32)

    def add(self, names: Iterable[str | None]) -> None:
        """Append names; None becomes -1."""
        numbers = self._numbers
        self._rows.add(
            [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
        )

    def finish(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Return the names, and for each row the number of its name, -1 for none."""
        return tuple(self._numbers), self._rows.finish()

    def finish_split(
        self, between: str, count: int
    ) -> list[tuple[tuple[str, ...], NDArray[np.int32]]]:
        """Split every name into `count` parts, and return each part as `finish` does.

        Empty parts get -1. Without any name, all parts have no names.
        """
        texts, row = self.finish()
        parts = zip(*(text.split(between, count - 1) for text in texts), strict=True)
        columns = []
        for part in list(parts) or [()] * count:
            names = {name: number for number, name in enumerate(dict.fromkeys(filter(None, part)))}
            numbers = np.array([names.get(name, -1) for name in part], np.int32)
            columns.append((tuple(names), numbers[row]))
        return columns


def offsets(lengths: Ints) -> Ints:
    """Return (n + 1,) offsets from (n,) lengths: the beginning of each, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class Watched:
    """The n watched targets: all except gone targets, aliases and dead links.

    Times are hours since 1970 (UTC). A column of numbers such as `spider` indexes the tuple of
    names next to it; -1 means none.

    ids:        (n,) texts, `_id` of each target
    spider, kind, category, plan: (n,) numbers of names; plan: the one in effect
    next_visit: (n,)
    visited:    (n,) the last visit, successful or not; NaN before the first
    refreshed:  (n,) visits that saw the page
    feed_size:  (n,) posts in a feed's document; 0 for pages
    asks:       (n,) minimum hours between visits that a feed requests; 0: none
    least, most: (n,) limits of the interval in hours that were set for the target; 0: none
    false_dates:   (n,) visits with a new Last-Modified and the old content
    histories:  up to now
    fields:     which fields of items changed, by the present selectors
    stated:     (c,) when each change happened according to the page itself; NaN where unknown
    schedules:  active schedules; 0 visits a week without a plan
    ahead:      number of histories with changes after `now`, which were cut off
    """

    ids: Texts
    spiders: tuple[str, ...]
    spider: NDArray[np.int32]
    kinds: tuple[str, ...]
    kind: NDArray[np.int32]
    categories: tuple[str, ...]
    category: NDArray[np.int32]
    plans: tuple[str, ...]
    plan: NDArray[np.int32]
    next_visit: Floats
    visited: Floats
    refreshed: Ints
    feed_size: Ints
    asks: Floats
    least: Floats
    most: Floats
    false_dates: Ints
    histories: Histories
    fields: FieldHistories
    stated: Floats
    schedules: Schedules
    ahead: int

    def __len__(self) -> int:
        return len(self.ids)


async def read(db: Database, now: datetime, spiders: Sequence[str] | None = None) -> Watched:
    """Read all watched targets of these spiders, of all if None; cut changes after `now`."""
    query, options = to_plan(spiders), dict[str, Any](batchSize=BATCH)
    if spiders is not None:
        total = await db.targets.estimated_document_count()
        selected = await db.targets.count_documents({"spider": query["spider"]})
        if selected > MAX_INDEXED_SHARE * total:
            options["hint"] = {"$natural": 1}
    columns = _Columns()
    await _add(db, columns, query, options)
    return columns.finish(now.timestamp() / HOUR_SECONDS)


async def read_sample(
    db: Database, now: datetime, spider: str, size: int, included: str
) -> Watched:
    """Read a random sample of the watched targets of a spider, with pauses for other requests.

    included: `_id` of a target that is in the sample in any case
    """
    keys = sorted({included, *await draw_keys(db, spider, size)})
    columns = _Columns()
    for some in in_batches(keys, KEYS):
        query = to_plan([spider]) | {"_id": {"$in": some}}
        await resting(_add(db, columns, query, {}))
    return columns.finish(now.timestamp() / HOUR_SECONDS)


async def _add(db: Database, columns: _Columns, query: Document, options: dict[str, Any]) -> None:
    """Add the targets that a query finds. options: of the aggregation."""
    pipeline: list[Document] = [{"$match": query}, {"$project": ROW}]
    cursor = await db.targets.aggregate_raw_batches(pipeline, **options)
    async with cursor:
        # The server prepares the next batch while one is read.
        coming = asyncio.ensure_future(anext(cursor, None))
        while (batch := await coming) is not None:
            coming = asyncio.ensure_future(anext(cursor, None))
            # Sends the request before decoding blocks the event loop.
            await asyncio.sleep(0)
            columns.add(bson.decode_all(cast(bytes, batch)))


class _Columns:
    """The growing columns of `Watched`."""

    def __init__(self) -> None:
        self.ids = TextColumn()
        self.names = NameColumn()
        self.times = {
            key: NumberColumn(np.float64) for key in ("next", "visited", "since", "until")
        }
        self.counts = {
            key: NumberColumn(np.int64) for key in ("refreshed", "feed_size", "false_dates")
        }
        self.changes = NumberColumn(CHANGE)
        self.changes_of = NumberColumn(np.int64)
        self.fields = _FieldColumns()
        self.weeks = NumberColumn(np.uint8)
        self.slots = NumberColumn(np.uint16)
        self.slots_of = NumberColumn(np.int64)
        self.even = {
            key: NumberColumn(np.float64) for key in ("every", "phase", "asks", "least", "most")
        }

    def add(self, rows: list[Document]) -> None:
        """Append a batch of rows as ROW makes them."""
        self.ids.add([row["_id"] for row in rows])
        self.names.add([row["names"] for row in rows])
        for key, times in self.times.items():
            times.add(np.array([row.get(key) for row in rows], np.float64) / HOUR_MILLISECONDS)
        for key, counts in self.counts.items():
            counts.add([row.get(key) or 0 for row in rows])
        changes = [row.get("changes") or b"" for row in rows]
        self.changes.add(np.frombuffer(b"".join(changes), CHANGE))
        self.changes_of.add([len(records) // CHANGE.itemsize for records in changes])
        self.fields.add([row.get("fields") for row in rows])
        slots = [row.get("slots") or () for row in rows]
        self.weeks.add([row.get("weeks") or 1 for row in rows])
        self.slots.add([slot for of_row in slots for slot in of_row])
        self.slots_of.add([len(of_row) for of_row in slots])
        for key, even in self.even.items():
            even.add([row.get(key) or 0.0 for row in rows])

    def finish(self, now: float) -> Watched:
        """Return the arrays; now: hours since 1970, later changes are cut off."""
        spiders, kinds, plans, categories = self.names.finish_split(BETWEEN, len(NAMES))
        changes, first = self.changes.finish(), offsets(self.changes_of.finish())
        histories = Histories(
            self.times["since"].finish(), self.times["until"].finish(), first,
            changes["after"] / MINUTES, changes["by"] / MINUTES,
        )  # fmt: skip
        stated = np.where(changes["stated"] > 0, changes["stated"] / MINUTES, np.nan)
        histories, stated, ahead = until_now(histories, stated, now)
        schedules = Schedules(
            self.weeks.finish(), offsets(self.slots_of.finish()), self.slots.finish(),
            self.even["every"].finish(), self.even["phase"].finish(),
        )  # fmt: skip
        return Watched(
            self.ids.finish(), *spiders, *kinds, *categories, *plans,
            self.times["next"].finish(), self.times["visited"].finish(),
            self.counts["refreshed"].finish(), self.counts["feed_size"].finish(),
            self.even["asks"].finish(), self.even["least"].finish(), self.even["most"].finish(),
            self.counts["false_dates"].finish(),
            histories, self.fields.finish(now), stated, schedules, ahead,
        )  # fmt: skip


class _FieldColumns:
    """The growing columns of `FieldHistories`; targets without one take no memory."""

    def __init__(self) -> None:
        self._number = 0
        self._rows, self._counts = NumberColumn(np.int64), NumberColumn(np.int64)
        self._names, self._since = NameColumn(), NumberColumn(np.float64)
        self._changes = NumberColumn(FIELD_CHANGE)

    def add(self, documents: Sequence[Document | None]) -> None:
        """Append the field histories of the next targets, None for targets without one."""
        stored = [(i, document) for i, document in enumerate(documents) if document is not None]
        self._rows.add([self._number + i for i, _ in stored])
        self._names.add([BETWEEN.join(document["names"]) for _, document in stored])
        self._since.add([document["since"].timestamp() / HOUR_SECONDS for _, document in stored])
        changes = [document["changes"] for _, document in stored]
        self._changes.add(np.frombuffer(b"".join(changes), FIELD_CHANGE))
        self._counts.add([len(records) // FIELD_CHANGE.itemsize for records in changes])
        self._number += len(documents)

    def finish(self, now: float) -> FieldHistories:
        """Return the arrays; now: hours since 1970, later changes are cut off."""
        names, number = self._names.finish()
        counts, changes = self._counts.finish(), self._changes.finish()
        keep = changes["by"] <= now * MINUTES
        row = np.repeat(np.arange(len(counts)), counts)[keep]
        first = offsets(np.bincount(row, minlength=len(counts)).astype(np.int64))
        return FieldHistories(
            self._rows.finish(), tuple(tuple(each.split(BETWEEN)) for each in names),
            number.astype(np.int64), self._since.finish(), first,
            changes["by"][keep], changes["fields"][keep],
        )  # fmt: skip


def until_now(histories: Histories, stated: Floats, now: float) -> tuple[Histories, Floats, int]:
    """Cut histories at `now`; return them and the number of those with later changes.

    stated: (c,) times that pages state for the changes   now: hours since 1970
    """
    ahead = int(np.count_nonzero(histories.until > now))
    if not ahead:
        return histories, stated, 0
    keep = histories.by <= now
    counts = np.diff(histories.first)
    row = np.repeat(np.arange(len(histories)), counts)
    until = np.minimum(histories.until, now)
    np.minimum.at(until, row[~keep], histories.after[~keep])
    unseen = ~(histories.since <= now)
    since = np.where(unseen, np.nan, histories.since)
    until = np.where(unseen, np.nan, until)
    kept = np.bincount(row[keep], minlength=len(histories)).astype(np.int64)
    after, by = histories.after[keep], histories.by[keep]
    return Histories(since, until, offsets(kept), after, by), stated[keep], ahead
