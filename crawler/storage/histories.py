"""All targets with their histories as arrays for a replan: a million targets take seconds.

The server reduces each document to the needed fields, and PyMongoArrow converts each batch to
columns, so that no value becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crawler.storage.client import Database, Document, in_batches, raw_batches
from crawler.storage.columns import (
    BETWEEN,
    Keys,
    NameColumn,
    NumberColumn,
    TextColumn,
    Texts,
    keys_of,
)
from crawler.storage.paging import draw_keys, resting
from crawler.storage.targets import to_plan
from crawler.utils.time import HOUR_MILLISECONDS
from schedules.history import (
    CHANGE,
    FIELD_CHANGE,
    MINUTES,
    FieldHistories,
    Flags,
    Floats,
    Histories,
    Ints,
    offsets,
    places_of,
)
from schedules.schedule import Schedules

if TYPE_CHECKING:
    from crawler.storage.arrow import Columns

BATCH = 3000
# Keys per query: with URLs of 2,000 bytes, they fill a quarter of the largest possible query.
KEYS = 2000
HOUR_SECONDS = 3600
# A scan is faster than the index for spiders with more than this share of all targets.
MAX_INDEXED_SHARE = 0.2
NAMES = ("spider", "kind", "plan.id", "categories")
TIMES = ("next_visit", "visited_at", "history.since", "history.until", "lastmod")
COUNTS = ("refreshed", "feed_size", "history.false_dates")
HOURS = (
    "plan.every_hours", "plan.phase_hours", "stated_interval_hours",
    "limits.min_hours", "limits.max_hours",
)  # fmt: skip
FIELDS = dict.fromkeys(
    (
        "_id", *NAMES, *TIMES, *COUNTS, *HOURS, "history.changes", "field_history",
        "selector_digest", "plan.weeks", "plan.slots",
    ),
    1,
)  # fmt: skip
# Fields of Watched: numbers of names, and other numbers of each target.
NAMED = {"spiders": "spider", "kinds": "kind", "categories": "category", "plans": "plan"}
PER_TARGET = (
    "key", *NAMED.values(), "next_visit", "visited", "refreshed", "feed_size", "feed_min_hours",
    "min_hours", "max_hours", "false_dates", "has_lastmod",
)  # fmt: skip
# Keys from which the borders of ranges are chosen.
KEYS_OF_A_RANGE = 50


@dataclass(frozen=True, slots=True)
class Watched:
    """The n watched targets: all except gone targets, aliases and dead links.

    Times are hours since 1970 (UTC). A column of numbers such as `spider` indexes the tuple of
    names next to it; -1 means none.

    ids:        (n,) texts, `_id` of each target
    key:        (n,) pseudorandom number of each target that is the same in every run
    spider, kind, category, plan: (n,) numbers of names; plan: the one in effect
    next_visit: (n,)
    visited:    (n,) the last visit, successful or not; NaN before the first
    refreshed:  (n,) visits that saw the page
    feed_size:  (n,) posts in a feed's document; 0 for pages
    feed_min_hours: (n,) minimum interval that a feed requests; 0: none
    min_hours, max_hours: (n,) limits of the interval that were set for the target; 0: none
    false_dates: (n,) visits with a new Last-Modified and the old content
    has_lastmod: (n,) whether a sitemap has stated a date
    histories:  up to now
    stated:     (c,) when each change happened according to the page itself; NaN where unknown
    fields:     changes of the fields of items that the current selectors extracted
    schedules:  active schedules; 0 visits a week without a plan
    ahead:      number of histories with changes after `now`, which were cut off
    """

    ids: Texts
    key: Keys
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
    feed_min_hours: Floats
    min_hours: Floats
    max_hours: Floats
    false_dates: Ints
    has_lastmod: Flags
    histories: Histories
    fields: FieldHistories
    stated: Floats
    schedules: Schedules
    ahead: int

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, rows: Ints) -> Watched:
        """Return some of the targets; `ahead` still counts all."""
        histories = self.histories.of(rows)
        stated = self.stated[places_of(rows, self.histories.first)[1]]
        per_target = {name: getattr(self, name)[rows] for name in PER_TARGET}
        return replace(
            self, ids=self.ids.of(rows), histories=histories,
            fields=self.fields.of_targets(rows, len(self)), stated=stated,
            schedules=self.schedules.of(rows), **per_target,
        )  # fmt: skip

    def renamed(
        self, spiders: tuple[str, ...], categories: tuple[str, ...], kinds: tuple[str, ...]
    ) -> Watched:
        """Return the same targets, renumbered for these names, which include all of their names."""
        return replace(
            self,
            spiders=spiders, spider=_renumbered(self.spider, self.spiders, spiders),
            categories=categories, category=_renumbered(self.category, self.categories, categories),
            kinds=kinds, kind=_renumbered(self.kind, self.kinds, kinds),
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Watched]) -> Watched:
        """Return all targets of parts, with the names in alphabetical order."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in PER_TARGET
        }
        for many, one in NAMED.items():
            names = tuple(sorted({name for part in parts for name in getattr(part, many)}))
            numbers = [
                _renumbered(getattr(part, one), getattr(part, many), names) for part in parts
            ]
            columns |= {many: names, one: np.concatenate(numbers)}
        ids = TextColumn()
        for part in parts:
            ids.extend(part.ids)
        return cls(
            ids=ids.finish(),
            histories=Histories.joined([part.histories for part in parts]),
            fields=FieldHistories.joined([part.fields for part in parts], list(map(len, parts))),
            stated=np.concatenate([part.stated for part in parts]),
            schedules=Schedules.joined([part.schedules for part in parts]),
            ahead=sum(part.ahead for part in parts),
            **columns,
        )


def _renumbered(
    numbers: NDArray[np.int32], names: tuple[str, ...], others: tuple[str, ...]
) -> NDArray[np.int32]:
    """Return places in `names` as places of the same names in `others`."""
    place = {name: number for number, name in enumerate(others)}
    # The last entry is for rows without a name, whose number is -1.
    table = np.array([*(place[name] for name in names), -1], np.int32)
    result: NDArray[np.int32] = table[numbers]
    return result


async def id_ranges(db: Database, parts: int) -> list[Document]:
    """Return conditions on `_id` that divide the targets into about `parts` equal ranges."""
    pipeline: list[Document] = [
        {"$sample": {"size": parts * KEYS_OF_A_RANGE}}, {"$project": {"_id": 1}}
    ]  # fmt: skip
    keys = sorted([row["_id"] async for row in await db.targets.aggregate(pipeline)])
    places = (len(keys) * number // parts for number in range(1, parts))
    borders = sorted({keys[place] for place in places}) if keys else []
    return [
        ({"$gte": begin} if begin else {}) | ({"$lt": end} if end else {})
        for begin, end in pairwise(["", *borders, ""])
    ]


async def read_range(
    db: Database, now: datetime, spiders: Sequence[str] | None, ids: Document
) -> Watched:
    """Read the watched targets of these spiders in a range of `id_ranges`, as `read` does."""
    columns = _Columns()
    query = to_plan(spiders) | ({"_id": ids} if ids else {})
    await _add(db, columns, query, {"batchSize": BATCH, "hint": "_id_"})
    return columns.finish(now.timestamp() / HOUR_SECONDS)


async def read(db: Database, now: datetime, spiders: Sequence[str] | None = None) -> Watched:
    """Read the watched targets of these spiders (None: of all), without changes after `now`."""
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

    included: `_id` of a target that is always in the sample
    """
    keys = sorted({included, *await draw_keys(db, spider, size)})
    columns = _Columns()
    for some in in_batches(keys, KEYS):
        query = to_plan([spider]) | {"_id": {"$in": some}}
        await resting(_add(db, columns, query, {}))
    return columns.finish(now.timestamp() / HOUR_SECONDS)


async def _add(db: Database, columns: _Columns, query: Document, options: dict[str, Any]) -> None:
    """Add the targets that a query matches. options: arguments of the aggregation."""
    pipeline: list[Document] = [{"$match": query}, {"$project": FIELDS}]
    async with aclosing(raw_batches(db.targets, pipeline, **options)) as batches:
        async for batch in batches:
            columns.add(batch)


class _Columns:
    """The growing columns of `Watched`."""

    def __init__(self) -> None:
        # Slow to import, and only a replan needs it.
        from crawler.storage.arrow import columns_of

        self._columns_of = columns_of
        self.ids = TextColumn()
        self.keys = NumberColumn(np.uint64)
        self.names = {path: NameColumn() for path in NAMES}
        self.times = {path: NumberColumn(np.float64) for path in TIMES}
        self.counts = {path: NumberColumn(np.int64) for path in COUNTS}
        self.hours = {path: NumberColumn(np.float64) for path in HOURS}
        self.changes = NumberColumn(CHANGE)
        self.changes_of = NumberColumn(np.int64)
        self.fields = _FieldColumns()
        self.weeks = NumberColumn(np.uint8)
        self.slots = NumberColumn(np.uint16)
        self.slots_of = NumberColumn(np.int64)

    def add(self, data: bytes) -> None:
        """Append a batch of targets, as the server sends them."""
        batch = self._columns_of(data)
        ids = batch.texts("_id")
        self.ids.extend(ids)
        # Computed here, while the server prepares the next batch.
        self.keys.add(keys_of(ids))
        for path, names in self.names.items():
            names.extend(batch.names(path))
        for path, times in self.times.items():
            times.add(batch.numbers(path) / HOUR_MILLISECONDS)
        for path, counts in self.counts.items():
            counts.add(np.nan_to_num(batch.numbers(path)))
        for path, hours in self.hours.items():
            hours.add(np.nan_to_num(batch.numbers(path)))
        changes = batch.binaries("history.changes")
        self.changes.add(np.frombuffer(changes.data, CHANGE))
        self.changes_of.add(np.diff(changes.first) // CHANGE.itemsize)
        self.fields.add(batch)
        weeks = batch.numbers("plan.weeks")
        self.weeks.add(np.where(weeks > 0, weeks, 1))
        slots_of, slots = batch.lists("plan.slots")
        self.slots.add(slots)
        self.slots_of.add(slots_of)

    def finish(self, now: float) -> Watched:
        """Return the arrays; now: hours since 1970, later changes are cut off."""
        spiders, kinds, plans, categories = (column.finish() for column in self.names.values())
        next_visit, visited, since, until, dated = (each.finish() for each in self.times.values())
        refreshed, feed_size, false_dates = (column.finish() for column in self.counts.values())
        every, phase, feed_min, shortest, longest = (col.finish() for col in self.hours.values())
        changes, first = self.changes.finish(), offsets(self.changes_of.finish())
        after, by = changes["after"] / MINUTES, changes["by"] / MINUTES
        stated = np.where(changes["stated"] > 0, changes["stated"] / MINUTES, np.nan)
        histories, stated, ahead = until_now(Histories(since, until, first, after, by), stated, now)
        slots_of = offsets(self.slots_of.finish())
        schedules = Schedules(self.weeks.finish(), slots_of, self.slots.finish(), every, phase)
        return Watched(
            self.ids.finish(), self.keys.finish(), *spiders, *kinds, *categories, *plans,
            next_visit, visited, refreshed, feed_size, feed_min, shortest, longest, false_dates,
            ~np.isnan(dated), histories, self.fields.finish(now), stated,
            schedules, ahead,
        )  # fmt: skip


class _FieldColumns:
    """The growing columns of `FieldHistories`; targets without one take no memory."""

    def __init__(self) -> None:
        self._number = 0
        self._rows, self._counts = NumberColumn(np.int64), NumberColumn(np.int64)
        self._names, self._since = NameColumn(), NumberColumn(np.float64)
        self._changes = NumberColumn(FIELD_CHANGE)

    def add(self, batch: Columns) -> None:
        """Append the field histories of a batch of targets."""
        # Values that other selectors extracted are not comparable with those that follow.
        own = batch.with_equal("field_history.digest", "selector_digest")
        self._rows.add(own.rows + self._number)
        self._number += len(batch)
        self._names.extend(own.joined_names("field_history.names"))
        self._since.add(own.numbers("field_history.since") / HOUR_MILLISECONDS)
        changes = own.binaries("field_history.changes")
        self._changes.add(np.frombuffer(changes.data, FIELD_CHANGE))
        self._counts.add(np.diff(changes.first) // FIELD_CHANGE.itemsize)

    def finish(self, now: float) -> FieldHistories:
        """Return the arrays; now: hours since 1970, later changes are cut off."""
        joined, number = self._names.finish()
        names = tuple(tuple(text.split(BETWEEN)) for text in joined)
        counts, changes = self._counts.finish(), self._changes.finish()
        keep = changes["by"] <= now * MINUTES
        row = np.repeat(np.arange(len(counts)), counts)[keep]
        first = offsets(np.bincount(row, minlength=len(counts)).astype(np.int64))
        return FieldHistories(
            self._rows.finish(), names, number.astype(np.int64), self._since.finish(), first,
            changes["by"][keep], changes["fields"][keep],
        )  # fmt: skip


def until_now(histories: Histories, stated: Floats, now: float) -> tuple[Histories, Floats, int]:
    """Return histories and `stated` up to `now`, and the number of histories that were longer.

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
