"""`pushes`: what hubs delivered, until a crawl has taken it.

A hub may leave out what it delivered before: a post that is missing from a push has not left its
feed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pymongo.errors import OperationFailure

from crawler.storage.bulk import insert_new
from crawler.storage.client import Database, Document
from crawler.storage.websub import Feed

MOST_KEPT = 20
TAKEN_BYTES = 32_000_000
NO_SUCH_COLLECTION = 26


class Kept(StrEnum):
    """What became of a delivery."""

    STORED = "stored"
    REPEATED = "repeated"
    POLLED = "polled"


@dataclass(frozen=True, slots=True)
class Push:
    """A delivered document.

    url:  of the feed's target     at: when it came
    body: as it came, its signature verified
    """

    id: str
    url: str
    at: datetime
    content_type: str
    body: bytes


async def store(
    db: Database, feed: Feed, content_type: str, body: bytes, now: datetime, most_bytes: int
) -> Kept:
    """Keep a delivered document; returns when it is in the journal.

    most_bytes: for the documents of all feeds together

    What would be too much is not kept (POLLED): the feed is due at once, so a poll brings what it
    says. Of each feed the newest 20 are kept; when an older one goes, the feed is due as well.
    """
    digest = hashlib.sha256(body).hexdigest()
    if feed.push.get("digest") == digest:
        await _delivered(db, feed, now, digest)
        return Kept.REPEATED
    if await _bytes_kept(db) + len(body) > most_bytes:
        await poll(db, feed, now)
        await _delivered(db, feed, now, None)
        return Kept.POLLED
    row = {
        "_id": f"{feed.key} {digest[:32]}", "spider": feed.spider, "url": feed.url, "at": now,
        "content_type": content_type, "size": len(body), "body": body,
    }  # fmt: skip
    new = await insert_new(db.pushes, [row])
    await _drop_oldest(db, feed, now)
    await _delivered(db, feed, now, digest)
    return Kept.STORED if new else Kept.REPEATED


async def poll(db: Database, feed: Feed, now: datetime) -> None:
    """The feed is due now: its hub has news that could not be kept."""
    await db.targets.update_one({"_id": feed.key}, {"$min": {"next_visit": now}})


async def _delivered(db: Database, feed: Feed, now: datetime, digest: str | None) -> None:
    """Count a delivery. digest: of its body, where that is in safe keeping."""
    noted: Document = {"push.delivered_at": now}
    if digest is not None:
        noted["push.digest"] = digest
    query = {"_id": feed.key, "push.token": feed.push["token"]}
    await db.feeds.update_one(query, {"$set": noted, "$inc": {"push.deliveries": 1}})


async def _drop_oldest(db: Database, feed: Feed, now: datetime) -> None:
    of_feed = {"spider": feed.spider, "url": feed.url}
    cursor = db.pushes.find(of_feed, {"_id": 1}).sort("at", -1).skip(MOST_KEPT)
    if old := [found["_id"] async for found in cursor]:
        await poll(db, feed, now)
        await done(db, old)


async def _bytes_kept(db: Database) -> int:
    """Bytes of all documents kept, as the server counts them; no document is read for that."""
    try:
        cursor = await db.pushes.aggregate([{"$collStats": {"storageStats": {}}}])
        return sum([int(found["storageStats"]["size"]) async for found in cursor])
    except OperationFailure as error:
        if error.code == NO_SUCH_COLLECTION:
            return 0
        raise


async def take(db: Database, spider: str, limit: int) -> list[Push]:
    """The oldest pushes, `limit` at most, and not many more than 32 MB of them."""
    query: Document = {"spider": spider}
    taken: list[Push] = []
    room_bytes = TAKEN_BYTES
    # Small batches, so that little is read in vain.
    async for found in db.pushes.find(query, batch_size=8).sort("at").limit(limit):
        taken.append(_push(found))
        room_bytes -= len(taken[-1].body)
        if room_bytes <= 0:
            break
    return taken


def _push(found: Document) -> Push:
    return Push(
        found["_id"], found["url"], found["at"], found["content_type"], bytes(found["body"])
    )


async def done(db: Database, ids: Sequence[str]) -> int:
    """Delete pushes whose posts are stored; how many there were."""
    return (await db.pushes.delete_many({"_id": {"$in": list(ids)}})).deleted_count
