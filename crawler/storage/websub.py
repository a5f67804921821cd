"""WebSub in the database: `push` of the documents in `feeds`, what came of asking hubs; `pushes`.

`pushes` holds delivered documents until a run stores their posts.

The states of a subscription (`push.state`):

asked     the hub was asked and has not confirmed it yet
active    confirmed, until `lease_until`
refused   the hub will not have it; it is asked again after a week
ended     the lease has run out, or it was given up; deliveries are answered with 410
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pymongo.errors import DuplicateKeyError, OperationFailure

from crawler.storage.client import Database, Document
from crawler.storage.retry import insert_new

BATCH = 200
KEY_BYTES = 32
FIELDS = {"spider": 1, "url": 1, "hubs": 1, "topic": 1, "push": 1}
# Deliveries of one feed that wait; for more, older ones go.
MAX_DELIVERIES = 20
# Bodies that one look into the queue reads, nearly.
MAX_READ_BYTES = 32_000_000
NO_SUCH_COLLECTION = 26


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed with what is known of its push; `push` is empty where no hub was ever asked."""

    key: str
    spider: str
    url: str
    hubs: tuple[str, ...]
    topic: str
    push: Document

    @classmethod
    def of(cls, document: Document) -> Feed:
        """The feed of a document in `feeds`; its topic is its URL where it names none."""
        return cls(
            key=document["_id"],
            spider=document["spider"],
            url=document["url"],
            hubs=tuple(document.get("hubs") or ()),
            topic=document["url"] if document.get("topic") is None else document["topic"],
            push=document.get("push") or {},
        )


@dataclass(frozen=True, slots=True)
class HubRequest:
    """A request to a hub, as it is noted before it is sent."""

    hub: str
    topic: str
    callback: str
    token: str
    secret: str


class DeliveryResult(StrEnum):
    """What became of a delivery."""

    STORED = "stored"
    REPEATED = "repeated"
    POLLED = "polled"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered document.

    url:  of the feed's target     at: when it came
    body: as it came, its signature verified
    """

    id: str
    url: str
    at: datetime
    content_type: str
    body: bytes


async def token_key(db: Database) -> bytes:
    """The key that makes this database's tokens; made at the first call."""
    made = {"key": secrets.token_bytes(KEY_BYTES)}
    with contextlib.suppress(DuplicateKeyError):
        await db.meta.update_one({"_id": "push"}, {"$setOnInsert": made}, upsert=True)
    stored = await db.meta.find_one({"_id": "push"})
    assert stored is not None
    return bytes(stored["key"])


async def feeds_to_request(db: Database, callback: str, now: datetime) -> AsyncIterator[Feed]:
    """Feeds whose hub is to be asked: new ones, leases to renew, changed hubs, a new callback."""
    query: Document = {
        "hubs.0": {"$exists": True},
        "$or": [
            {"push.token": {"$exists": False}},
            {"push.next_ask": {"$lte": now}},
            {"push.callback": {"$ne": callback}},
            {"$expr": {"$not": {"$in": ["$push.hub", {"$ifNull": ["$hubs", []]}]}}},
            {"$expr": {"$ne": ["$push.topic", {"$ifNull": ["$topic", "$url"]}]}},
        ],
    }
    batch: list[Document] = []
    async for row in db.feeds.find(query, FIELDS, batch_size=BATCH).sort("push.next_ask"):
        batch.append(row)
        if len(batch) == BATCH:
            for feed in await _watched(db, batch):
                yield feed
            batch = []
    for feed in await _watched(db, batch):
        yield feed


async def _watched(db: Database, batch: list[Document]) -> list[Feed]:
    """Those feeds that are still targets."""
    query = {
        "_id": {"$in": [row["_id"] for row in batch]},
        "gone": {"$ne": True},
        "alias_of": {"$exists": False},
    }
    targets = {target["_id"] async for target in db.targets.find(query, {"_id": 1})}
    return [Feed.of(row) for row in batch if row["_id"] in targets]


async def record_request(
    db: Database, feed: Feed, ask: HubRequest, now: datetime, again: datetime
) -> bool:
    """Note that a hub is about to be asked, and when that is repeated if nothing comes of it.

    False if it was asked since `feed` was read: then it is not to be asked now.
    """
    push = feed.push
    noted: Document = {
        "asked_at": now, "next_ask": again, "attempts": push.get("attempts", 0) + 1,
    }  # fmt: skip
    if push.get("token") == ask.token and push.get("callback") == ask.callback:
        if push.get("state") != "active":
            noted["state"] = "asked"
        update = {f"push.{name}": value for name, value in noted.items()}
    else:
        started: Document = {
            "hub": ask.hub, "topic": ask.topic, "secret": ask.secret, "token": ask.token,
            "callback": ask.callback, "state": "asked", "lease_until": None, "delivered_at": None,
            "deliveries": push.get("deliveries", 0), "ignored": push.get("ignored", 0),
        }  # fmt: skip
        update = {"push": started | noted}
    # If all is as it was read, or as this very write left it: an answer may get lost.
    query = {
        "_id": feed.key,
        "push.token": {"$in": [push.get("token"), ask.token]},
        "push.asked_at": {"$in": [push.get("asked_at"), now]},
    }
    return (await db.feeds.update_one(query, {"$set": update})).matched_count == 1


async def record_failure(db: Database, feed_key: str, token: str, reason: str) -> None:
    """Note why a hub gave no answer."""
    await _set(db, feed_key, token, {"reason": reason})


async def record_refusal(
    db: Database, feed_key: str, token: str, reason: str, again: datetime
) -> None:
    """The hub will not have the subscription."""
    noted = {"state": "refused", "reason": reason, "next_ask": again}
    await _set(db, feed_key, token, noted)


async def postpone(db: Database, feed_key: str, until: datetime) -> None:
    """The hub is left alone for now; a feed whose hub was never asked stays as it is."""
    query = {"_id": feed_key, "push.token": {"$exists": True}}
    await db.feeds.update_one(query, {"$set": {"push.next_ask": until}})


async def _set(db: Database, feed_key: str, token: str, noted: Document) -> None:
    update = {f"push.{name}": value for name, value in noted.items()}
    await db.feeds.update_one({"_id": feed_key, "push.token": token}, {"$set": update})


async def of_token(db: Database, token: str) -> Feed | None:
    """The feed that has this token, if it is still under watch."""
    row = await db.feeds.find_one({"push.token": token}, FIELDS)
    return next(iter(await _watched(db, [row])), None) if row else None


async def confirm(
    db: Database, token: str, topic: str, now: datetime, lease: timedelta, renewal: timedelta
) -> bool:
    """The hub has confirmed the subscription; False if it is not wanted."""
    query = {
        "push.token": token, "push.topic": topic, "push.state": {"$ne": "ended"},
        "push.leaving": {"$ne": True},
    }  # fmt: skip
    noted: Document = {
        "push.state": "active", "push.leased_at": now, "push.lease_until": now + lease,
        "push.next_ask": now + renewal, "push.attempts": 0,
    }  # fmt: skip
    update = {"$set": noted, "$unset": {"push.reason": ""}}
    return (await db.feeds.update_one(query, update)).matched_count == 1


async def deny(db: Database, token: str, topic: str, reason: str, again: datetime) -> bool:
    """The hub has refused the subscription, or ended it; False if it never was asked for."""
    query = {"push.token": token, "push.topic": topic, "push.state": {"$ne": "ended"}}
    noted = {"push.state": "refused", "push.reason": reason, "push.next_ask": again}
    return (await db.feeds.update_one(query, {"$set": noted})).matched_count == 1


async def expire_leases(db: Database, now: datetime) -> int:
    """Subscriptions whose lease has run out end; how many did."""
    query: Document = {
        "push.state": {"$in": ["active", "asked"]},
        "push.lease_until": {"$lte": now, "$ne": None},
    }
    return (await db.feeds.update_many(query, {"$set": {"push.state": "ended"}})).modified_count


async def start_unsubscribe(db: Database, callback: str) -> list[Feed]:
    """All subscriptions of a callback, from now on to be given up."""
    query = {
        "push.callback": callback, "push.state": {"$in": ["asked", "active"]},
    }  # fmt: skip
    await db.feeds.update_many(query, {"$set": {"push.leaving": True}})
    return [Feed.of(row) async for row in db.feeds.find({"push.leaving": True}, FIELDS)]


async def confirm_unsubscribe(db: Database, token: str, topic: str, now: datetime) -> bool:
    """The hub has confirmed that a subscription is given up; False if it is wanted."""
    query = {"push.token": token, "push.topic": topic, "push.leaving": True}
    return (await db.feeds.update_one(query, _ended(now))).matched_count == 1


async def end_unconfirmed(db: Database, now: datetime) -> int:
    """Those that a hub did not let go count as ended all the same; how many."""
    return (await db.feeds.update_many({"push.leaving": True}, _ended(now))).modified_count


def _ended(now: datetime) -> Document:
    noted = {"push.state": "ended", "push.lease_until": now, "push.next_ask": now}
    return {"$set": noted, "$unset": {"push.leaving": ""}}


async def count_leaving(db: Database) -> int:
    """How many subscriptions are still to be given up."""
    return await db.feeds.count_documents({"push.leaving": True})


async def states(db: Database) -> dict[str, int]:
    """How many subscriptions are in which state."""
    pipeline: list[Document] = [
        {"$match": {"push.token": {"$exists": True}}},
        {"$group": {"_id": "$push.state", "n": {"$sum": 1}}},
        {"$sort": {"_id": 1}},
    ]
    cursor = await db.feeds.aggregate(pipeline)
    return {row["_id"]: row["n"] async for row in cursor}


async def count_ignored(db: Database, feed_key: str, token: str) -> None:
    """Count a delivery that was not signed as it has to be."""
    query = {"_id": feed_key, "push.token": token}
    await db.feeds.update_one(query, {"$inc": {"push.ignored": 1}})


async def require_proof(db: Database, keys: Sequence[str]) -> None:
    """A poll of these feeds found what their hub had not sent: it has to prove it again."""
    query = {"_id": {"$in": list(keys)}, "push.delivered_at": {"$ne": None}}
    await db.feeds.update_many(query, {"$set": {"push.delivered_at": None}})


async def store(
    db: Database, feed: Feed, content_type: str, body: bytes, now: datetime, max_bytes: int
) -> DeliveryResult:
    """Keep a delivered document; returns when it is in the journal.

    max_bytes: for the documents of all feeds together

    What would be too much is not kept (POLLED): the feed is due immediately, so a poll brings its
    posts. Of each feed the newest 20 are kept; when an older one goes, the feed is due as well.
    """
    digest = hashlib.sha256(body).hexdigest()
    if feed.push.get("digest") == digest:
        await _delivered(db, feed, now, digest)
        return DeliveryResult.REPEATED
    if await _bytes_kept(db) + len(body) > max_bytes:
        await make_due(db, feed, now)
        await _delivered(db, feed, now, None)
        return DeliveryResult.POLLED
    row = {
        "_id": f"{feed.key} {digest[:32]}", "spider": feed.spider, "url": feed.url, "at": now,
        "content_type": content_type, "size": len(body), "body": body,
    }  # fmt: skip
    new = await insert_new(db.pushes, [row])
    of_feed = {"spider": feed.spider, "url": feed.url}
    cursor = db.pushes.find(of_feed, {"_id": 1}).sort("at", -1).skip(MAX_DELIVERIES)
    if old := [push["_id"] async for push in cursor]:
        await make_due(db, feed, now)
        await delete_deliveries(db, old)
    await _delivered(db, feed, now, digest)
    return DeliveryResult.STORED if new else DeliveryResult.REPEATED


async def make_due(db: Database, feed: Feed, now: datetime) -> None:
    """The feed is due now: its hub has news that could not be kept."""
    await db.targets.update_one({"_id": feed.key}, {"$min": {"next_visit": now}})


async def _delivered(db: Database, feed: Feed, now: datetime, digest: str | None) -> None:
    """Count a delivery. digest: of its body, where that is in safe keeping."""
    noted: Document = {"push.delivered_at": now}
    if digest is not None:
        noted["push.digest"] = digest
    query = {"_id": feed.key, "push.token": feed.push["token"]}
    await db.feeds.update_one(query, {"$set": noted, "$inc": {"push.deliveries": 1}})


async def _bytes_kept(db: Database) -> int:
    """Bytes of all documents kept, as the server counts them; no document is read for that."""
    try:
        cursor = await db.pushes.aggregate([{"$collStats": {"storageStats": {}}}])
        return sum([int(stats["storageStats"]["size"]) async for stats in cursor])
    except OperationFailure as error:
        if error.code == NO_SUCH_COLLECTION:
            return 0
        raise


async def oldest_deliveries(db: Database, spider: str, limit: int) -> list[Delivery]:
    """The oldest pushes, `limit` at most, and not many more than 32 MB of them."""
    query: Document = {"spider": spider}
    taken: list[Delivery] = []
    room_bytes = MAX_READ_BYTES
    # Small batches, so that little is read in vain.
    async for row in db.pushes.find(query, batch_size=8).sort("at").limit(limit):
        body = bytes(row["body"])
        taken.append(Delivery(row["_id"], row["url"], row["at"], row["content_type"], body))
        room_bytes -= len(body)
        if room_bytes <= 0:
            break
    return taken


async def delete_deliveries(db: Database, ids: Sequence[str]) -> int:
    """Delete pushes whose posts are stored; how many there were."""
    return (await db.pushes.delete_many({"_id": {"$in": list(ids)}})).deleted_count
