"""From one version of the data to the next; each step may be done again after a crash."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING

from pymongo import UpdateMany, UpdateOne

from crawler.items import SEEN
from crawler.storage import runs, search, visits
from crawler.storage.client import Database, Document
from crawler.storage.parts import history_document

if TYPE_CHECKING:
    from schedules.history import History

logger = logging.getLogger(__name__)
BATCH = 1000
# Of posts, the text of each of which may have a million characters.
BATCH_CHARACTERS = 5_000_000
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
    from schedules.history import History

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


async def index_posts(db: Database) -> None:
    """Version 4: the search index takes all posts, with the words that it needs besides.

    They are compared with one another when the user says so: for many that takes hours. The index
    itself is built after this, at once for all.
    """
    fields = ("title", "text", "fields", "page.fields")
    n = 0
    async for posts in _batches(db.posts.find({"original": {"$exists": False}}, fields)):
        await _index_posts(db, posts)
        n += len(posts)
    if n:
        said = "%d posts collected before are searched; scrapy duplicates rebuild compares them"
        logger.info(said, n)


async def _batches(posts: AsyncIterable[Document]) -> AsyncIterator[list[Document]]:
    """Lists of posts, shorter where texts are long."""
    batch: list[Document] = []
    characters = 0
    async for post in posts:
        batch.append(post)
        characters += len(post.get("text") or "")
        if len(batch) == BATCH or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


async def _index_posts(db: Database, posts: list[Document]) -> None:
    """Most need no words of their own, and are written at once."""
    shown: Document = {"original": True}
    writes: list[UpdateOne | UpdateMany] = []
    plain: list[str] = []
    for post in posts:
        if words := search.words_of(post):
            writes.append(UpdateOne({"_id": post["_id"]}, {"$set": shown | {"words": words}}))
        else:
            plain.append(post["_id"])
    if plain:
        writes.append(UpdateMany({"_id": {"$in": plain}}, {"$set": shown}))
    await db.posts.bulk_write(writes, ordered=False)
