"""Which targets show changes of which others, and when they did, as arrays.

The columns come from PyMongoArrow, as in `histories`: a million edges take a few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from typing import NamedTuple

import numpy as np

from crawler.items import SEEN
from crawler.storage.client import Database, Document, in_batches, raw_batches
from crawler.storage.columns import Keys, NumberColumn, Texts, keys_of, keys_of_texts
from crawler.storage.listings import LASTMOD, LIST, MAX_SHOWN, is_trusted
from crawler.utils.time import HOUR_MILLISECONDS
from schedules.history import Flags, Floats, Ints, Times, offsets, places_of

BATCH = 20_000
# Sources whose visits one query reads.
SOURCES = 1000
# Visits of sources that are read, at most: the newest of each batch of sources.
MAX_LOOKS = 500_000
HINTS = (LIST, LASTMOD)


class Edges(NamedTuple):
    """Hold k pairs of a list page, or a sitemap, and an item that it shows.

    source, item: (k,) rows of their targets
    has_digest:   (k,) whether the text of the entry is compared; sitemaps have dates instead
    begun:        (k,) time from which each source has shown the item
    shown:        newest times at which each showed another content of the item, oldest first
    """

    source: Ints
    item: Ints
    has_digest: Flags
    begun: Floats
    shown: Times

    def of(self, rows: Ints) -> Edges:
        """Return some of the pairs."""
        first, place = places_of(rows, self.shown.first)
        shown = Times(first, self.shown.at[place])
        return Edges(
            self.source[rows], self.item[rows], self.has_digest[rows], self.begun[rows], shown
        )

    @property
    def since(self) -> Floats:
        """Return the (k,) times from which `shown` is complete."""
        is_full = np.diff(self.shown.first) >= MAX_SHOWN
        oldest = np.append(self.shown.at, 0.0)[self.shown.first[:-1]]
        since: Floats = np.where(is_full, oldest, self.begun)
        return since


async def read_edges(db: Database, keys: Keys, spiders: Sequence[str]) -> Edges:
    """Return the pairs of watched targets. keys: (n,) of the targets, as of `keys_of`."""
    if not await db.listings.estimated_document_count():
        no_rows = np.empty(0, np.int64)
        none = Times(np.zeros(1, np.int64), np.empty(0))
        return Edges(no_rows, no_rows, np.empty(0, np.bool_), np.empty(0), none)
    from crawler.storage.arrow import EDGES, columns_of

    sources, items = NumberColumn(np.int64), NumberColumn(np.int64)
    counts, times = NumberColumn(np.int64), NumberColumn(np.float64)
    digests, begins = NumberColumn(np.bool_), NumberColumn(np.float64)
    rows = _Rows(keys)
    fields: Document = {
        "_id": 0,
        "list": {"$concat": ["$spider", " ", "$list"]},
        "item": {"$concat": ["$spider", " ", "$item"]},
        "has_digest": {"$eq": [{"$type": "$digest"}, "string"]},
        "since": 1,
        "showed": 1,
    }
    query: Document = {"spider": {"$in": list(spiders)}, "shown": True}
    stages: list[Document] = [{"$match": query}, {"$project": fields}]
    async with aclosing(raw_batches(db.listings, stages, batchSize=BATCH)) as batches:
        async for data in batches:
            batch = columns_of(data, EDGES)
            sources.add(rows.of(batch.texts("list")))
            items.add(rows.of(batch.texts("item")))
            digests.add(batch.numbers("has_digest") == 1)
            begins.add(batch.numbers("since") / HOUR_MILLISECONDS)
            lengths, showed = batch.lists("showed")
            counts.add(lengths)
            times.add(showed / HOUR_MILLISECONDS)
    source, item = sources.finish(), items.finish()
    shown = Times(offsets(counts.finish()), times.finish())
    edges = Edges(source, item, digests.finish(), begins.finish(), shown)
    return edges.of(np.flatnonzero((source >= 0) & (item >= 0) & (source != item)))


async def are_stored(db: Database, spiders: Sequence[str]) -> bool:
    """Return whether a list page or a sitemap of these spiders has shown a change."""
    query: Document = {"spider": {"$in": list(spiders)}, "showed": {"$exists": True}}
    return await db.listings.find_one(query, {"_id": 1}) is not None


async def read_looks(db: Database, ids: Texts, since: datetime) -> Times:
    """Return the times since `since` at which targets were read, in order; ids: (s,) their `_id`s.

    Of a thousand targets, at most the newest MAX_LOOKS divided by their thousands are read.
    """
    from crawler.storage.arrow import LOOKS, columns_of

    names = list(enumerate(id_.partition(" ")[::2] for id_ in ids))
    rows, times = NumberColumn(np.int64), NumberColumn(np.float64)
    by_spider: dict[str, list[tuple[int, str]]] = {}
    for number, (spider, url) in names:
        by_spider.setdefault(spider, []).append((number, url))
    limit = MAX_LOOKS * SOURCES // max(len(names), SOURCES)
    for spider, own in by_spider.items():
        for some in in_batches(own, SOURCES):
            urls = [url for _, url in some]
            query: Document = {
                "spider": spider, "target": {"$in": urls}, "at": {"$gte": since},
                "outcome": {"$in": sorted(map(str, SEEN))},
            }  # fmt: skip
            stages: list[Document] = [
                {"$match": query}, {"$sort": {"at": -1}}, {"$limit": limit},
                {"$project": {"_id": 0, "target": 1, "at": 1}},
            ]  # fmt: skip
            places = _Rows(keys_of_texts(urls))
            numbers = np.array([number for number, _ in some])
            async with aclosing(raw_batches(db.visits, stages, batchSize=BATCH)) as batches:
                async for data in batches:
                    batch = columns_of(data, LOOKS)
                    rows.add(numbers[places.of(batch.texts("target"))])
                    times.add(batch.numbers("at") / HOUR_MILLISECONDS)
    row, at = rows.finish(), times.finish()
    order = np.lexsort((at, row))
    return Times(offsets(np.bincount(row, minlength=len(ids))), at[order])


async def trusted_hints(db: Database, spiders: Sequence[str]) -> Flags:
    """Return the (s, len(HINTS)) flags of the hints that crawls of each spider follow."""
    flags = [[await is_trusted(db, spider, hint) for hint in HINTS] for spider in spiders]
    return np.array(flags, np.bool_).reshape(-1, len(HINTS))


async def count_followed(db: Database, spiders: Sequence[str], since: datetime) -> int:
    """Return the number of visits since a time that change hints have caused."""
    query: Document = {"spider": {"$in": list(spiders)}, "hint": {"$in": HINTS}}
    return await db.visits.count_documents(query | {"at": {"$gte": since}})


class _Rows:
    """Find the rows of targets by their keys. keys: (n,)."""

    def __init__(self, keys: Keys) -> None:
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]

    def of(self, texts: Texts) -> Ints:
        """Return the (k,) row of each `_id`; -1: no such target."""
        wanted = keys_of(texts)
        place = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        found: Ints = np.where(self._sorted[place] == wanted, self._order[place], -1)
        return found
