"""From one version of the data to the next; each step may be done again after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pymongo import UpdateOne

from crawler.items import SEEN
from crawler.storage import runs, visits
from crawler.storage.client import Database, Document
from crawler.storage.parts import history_document
from schedules.history import History

BATCH = 1000
MINUTE = 60_000


async def build_histories(db: Database) -> None:
    """Version 2: the past of each target, from its visits.

    The server groups the log by target (on disk where it is long) and sends one after the other,
    so nothing grows with it here. Visits that were rolled up into days are gone: there the past
    begins with the first one left. A history that is there already stays, as a crawl may have
    extended it.
    """
    await _complete_log(db)
    writes: list[UpdateOne] = []
    async for key, history in _pasts(db):
        lacking: Document = {
            "_id": key, "history": {"$exists": False}, "alias_of": {"$exists": False},
        }  # fmt: skip
        writes.append(UpdateOne(lacking, {"$set": {"history": history_document(history)}}))
        if len(writes) == BATCH:
            await db.targets.bulk_write(writes, ordered=False)
            writes = []
    if writes:
        await db.targets.bulk_write(writes, ordered=False)


async def _complete_log(db: Database) -> None:
    """Visits that a crash kept out of the log belong to the past too."""
    for spider in await db.runs.distinct("spider", {"finished": None}):
        if since := await runs.unfinished_since(db, spider):
            await visits.recover(db, spider, since)


async def _pasts(db: Database) -> AsyncIterator[tuple[str, History]]:
    """Each target's `_id` and past, as far as the log tells."""
    async for row in await db.visits.aggregate(_LOOKS, allowDiskUse=True, hint={"$natural": 1}):
        looks = [(look >> 1, bool(look & 1)) for look in sorted(row["looks"])]
        history = History.begin(looks[0][0] // MINUTE)
        for at, changed in looks[1:]:
            history = history.seen(at // MINUTE, changed=changed)
        yield row["_id"], history


# The looks of each target, in no order: twice the time in milliseconds, and one where it changed.
# A visit that was redirected to another target saw that one's page.
_LOOKS: list[Document] = [
    {
        "$match": {
            "outcome": {"$in": sorted(SEEN)},
            "reason": {"$not": {"$regex": "^redirects to "}},
        }
    },
    {
        "$group": {
            "_id": {"$concat": ["$spider", " ", "$target"]},
            "looks": {"$push": {"$add": [{"$multiply": [{"$toLong": "$at"}, 2]}, "$changed"]}},
        }
    },
]
