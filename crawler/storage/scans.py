"""Scans of whole collections in short parts with pauses, so that other requests wait little.

One query over a million documents occupies a processor of the server for seconds, and what it reads
displaces what pages need. A part takes tens of milliseconds, and the pause after it is longer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

from pymongo import ASCENDING

from crawler.storage.client import Database, Document

# Documents of a part. A part with all their planned numbers is 3 MB.
PART = 10_000
# Pause after a part, as a multiple of its duration: a scan uses at most a third of the time.
PAUSE_FACTOR = 2.0
Value = TypeVar("Value")


async def resting(work: Awaitable[Value]) -> Value:
    """Return the result of a query, after a pause for the requests of others."""
    began = time.monotonic()
    result = await work
    await asyncio.sleep(PAUSE_FACTOR * (time.monotonic() - began))
    return result


def keys_of(spider: str) -> Document:
    """Return the bounds of the `_id` of the targets of a spider."""
    return {"$gte": f"{spider} ", "$lt": f"{spider}!"}


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
        yield await resting(_aggregated(db, [{"$match": {"_id": part}}, *stages]))
        rest = rest | {"$gte": border[0]} if border else {}


async def _aggregated(db: Database, stages: list[Document]) -> list[dict[str, Any]]:
    return await (await db.targets.aggregate(stages)).to_list(None)


async def is_larger(db: Database, spider: str, size: int) -> bool:
    """Return whether a spider has more targets than a number."""
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
