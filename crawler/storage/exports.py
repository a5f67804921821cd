"""Ordered reading of whole collections for exports, in batches of bounded size.

Documents are decoded with naive times in UTC, which takes a third of the time of aware ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import ASCENDING

from crawler.storage.client import Database, Document, in_batches

# Maximum number of documents in a batch; the server also limits a batch to 16 MB.
BATCH = 10_000
DAY = timedelta(days=1)
FIRST_DAY = datetime.min.replace(tzinfo=UTC)
SIZE_BYTES = 4
# Times that Python cannot represent become its first or last time.
NAIVE: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_CLAMP)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a collection.

    spider: only documents of this spider; None: of all spiders
    time:   field of the times `since` (inclusive) and `until` (exclusive), by which the documents
            are ordered; None: all documents, ordered by `_id`
    """

    spider: str | None
    time: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def query(self) -> Document:
        """Return the query for the documents."""
        query: Document = {} if self.spider is None else {"spider": self.spider}
        limits = {"$gte": self.since, "$lt": self.until}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        if self.time is not None and limits:
            query[self.time] = limits
        elif self.time is None and self.spider is not None:
            # These `_id`s begin with the spider and a space. The index has them in order.
            query["_id"] = {"$gte": f"{self.spider} ", "$lt": f"{self.spider}!"}
        return query

    @property
    def order(self) -> list[tuple[str, int]]:
        """Return the sort order, which is complete, so that the same data is read the same way."""
        times = [] if self.time is None else [(self.time, ASCENDING)]
        return [*times, ("_id", ASCENDING)]


async def spiders_of(db: Database, collection: str) -> list[str]:
    """Return the names of the spiders that have documents in a collection."""
    return sorted(await db[collection].distinct("spider"))


async def count_by_day(
    db: Database, collection: str, spider: str, time: str, since: datetime | None
) -> dict[date, int]:
    """Return the number of a spider's documents for each UTC day with documents, in order.

    since: start of the first day; None: all days

    Only the index of spider and time is read. Counting its keys day by day takes a third of the
    time of grouping them.
    """
    counts: dict[date, int] = {}
    start = since or FIRST_DAY
    while True:
        later = Span(spider, time, start)
        nearest = await db[collection].find_one(later.query, {time: 1}, sort=later.order[:1])
        if nearest is None:
            return counts
        start = nearest[time].replace(hour=0, minute=0, second=0, microsecond=0)
        count = 1
        while count:
            until = start + DAY
            count = await db[collection].count_documents(Span(spider, time, start, until).query)
            if count:
                counts[start.date()] = count
            start = until


async def count_after(db: Database, collection: str, span: Span, time: str) -> int:
    """Return the number of documents of a span after a time in ISO format, by an index only."""
    assert span.time is not None
    later = {span.time: {"$gt": datetime.fromisoformat(time)}}
    return await db[collection].count_documents({"$and": [span.query, later]})


async def stored_keys(db: Database, collection: str, keys: Sequence[Any]) -> set[Any]:
    """Return those of some `_id`s that are stored."""
    stored: set[Any] = set()
    for some in in_batches(keys, BATCH):
        cursor = db[collection].find({"_id": {"$in": some}}, {"_id": 1})
        stored.update([row["_id"] async for row in cursor])
    return stored


async def read_raw(
    db: Database, collection: str, span: Span, fields: Sequence[str]
) -> AsyncIterator[bytes]:
    """Yield the documents of a span in order, in batches of concatenated BSON.

    Without an index in this order, the server sorts, on disk if the data does not fit into memory.
    """
    cursor = db[collection].find_raw_batches(
        span.query, dict.fromkeys(fields, 1), sort=span.order, batch_size=BATCH, allow_disk_use=True
    )
    async with cursor:
        async for batch in cursor:
            # The driver annotates the batches as documents.
            yield cast(bytes, batch)


def decoded(batch: bytes) -> tuple[list[Document], list[int]]:
    """Return the documents of a batch, and the size of each one in bytes of BSON."""
    sizes: list[int] = []
    position, end = 0, len(batch)
    while position < end:
        size = int.from_bytes(batch[position : position + SIZE_BYTES], "little")
        sizes.append(size)
        position += size
    documents: list[Any] = bson.decode_all(batch, NAIVE)
    return documents, sizes
