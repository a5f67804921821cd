"""WebSub: subscriptions in `push` of the documents in `feeds`, and deliveries in `pushes`.

`pushes` has delivered documents until a run stores their posts.

The states of a subscription (`push.state`):

requested not confirmed by the hub yet
active    confirmed, until `lease_until`
refused   rejected by the hub; requested again after a week
ended     expired or unsubscribed; deliveries are answered with 410
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pymongo.errors import DuplicateKeyError

from crawler.storage.client import (
    Database,
    Document,
    aggregated,
    count_by,
    in_async_batches,
    insert_new,
)
from crawler.storage.targets import ALIVE

Push = Mapping[str, Any]  # `push` of a document in `feeds`
BATCH = 200
KEY_BYTES = 32
FIELDS = {"spider": 1, "url": 1, "hubs": 1, "topic": 1, "push": 1}
# Maximum number of waiting deliveries of a feed; older ones are deleted.
MAX_DELIVERIES = 20
# Approximate limit for the bodies of one read.
MAX_READ_BYTES = 32_000_000


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed and its subscription; `push` is empty if it was never requested."""

    key: str
    spider: str
    url: str
    hubs: tuple[str, ...]
    topic: str
    push: Document

    @classmethod
    def of(cls, document: Document) -> Feed:
        """Return the feed of a document in `feeds`; its topic defaults to its URL."""
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
    """A request to a hub, as stored before it is sent."""

    hub: str
    topic: str
    callback: str
    token: str
    secret: str


class DeliveryResult(StrEnum):
    """The result of a delivery."""

    STORED = "stored"
    REPEATED = "repeated"
    POLLED = "polled"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered document.

    url:  of the feed's target     at: time of the delivery
    body: as delivered, with a verified signature
    """

    id: str
    url: str
    at: datetime
    content_type: str
    body: bytes


def is_active(push: Push | None, now: datetime) -> bool:
    """Return True if a hub has confirmed the subscription and its lease has not expired."""
    if not push or push.get("state") != "active":
        return False
    until = push.get("lease_until")
    return until is not None and until > now


def is_proven(push: Push | None, now: datetime) -> bool:
    """Return True if the subscription is active and has delivered within one lease period."""
    if not push or not is_active(push, now):
        return False
    delivered = push.get("delivered_at")
    began = push.get("leased_at") or push.get("requested_at")
    if delivered is None or began is None:
        return False
    return bool(delivered >= now - (push["lease_until"] - began))


async def token_key(db: Database) -> bytes:
    """Return the key for this database's tokens; create it at the first call."""
    new_key = {"key": secrets.token_bytes(KEY_BYTES)}
    with contextlib.suppress(DuplicateKeyError):
        await db.meta.update_one({"_id": "push"}, {"$setOnInsert": new_key}, upsert=True)
    stored = await db.meta.find_one({"_id": "push"})
    assert stored is not None
    return bytes(stored["key"])


async def feeds_to_request(db: Database, callback: str, now: datetime) -> AsyncIterator[Feed]:
    """Yield feeds to subscribe to: new ones, or with an expiring lease, a new hub or callback."""
    query: Document = {
        "hubs.0": {"$exists": True},
        "$or": [
            {"push.token": {"$exists": False}},
            {"push.next_request_at": {"$lte": now}},
            {"push.callback": {"$ne": callback}},
            {"$expr": {"$not": {"$in": ["$push.hub", {"$ifNull": ["$hubs", []]}]}}},
            {"$expr": {"$ne": ["$push.topic", {"$ifNull": ["$topic", "$url"]}]}},
        ],
    }
    rows = db.feeds.find(query, FIELDS, batch_size=BATCH).sort("push.next_request_at")
    async for batch in in_async_batches(rows, BATCH):
        for feed in await _watched(db, batch):
            yield feed


async def _watched(db: Database, batch: list[Document]) -> list[Feed]:
    """Return the feeds that are still targets."""
    query = {
        "_id": {"$in": [row["_id"] for row in batch]},
        "gone": {"$ne": True},
        "alias_of": {"$exists": False},
    }
    targets = {target["_id"] async for target in db.targets.find(query, {"_id": 1})}
    return [Feed.of(row) for row in batch if row["_id"] in targets]


async def record_request(
    db: Database, feed: Feed, request: HubRequest, now: datetime, again: datetime
) -> bool:
    """Store a request before it is sent to a hub, and when to repeat it if no answer comes.

    Returns False if another request was stored since `feed` was read: do not send this one.
    """
    push = feed.push
    noted: Document = {
        "requested_at": now, "next_request_at": again, "attempts": push.get("attempts", 0) + 1,
    }  # fmt: skip
    if push.get("token") == request.token and push.get("callback") == request.callback:
        if push.get("state") != "active":
            # With the lease of an ended subscription, the next check would end this one, too.
            noted |= {"state": "requested", "lease_until": None}
        update = {f"push.{name}": value for name, value in noted.items()}
    else:
        started: Document = {
            "hub": request.hub, "topic": request.topic, "secret": request.secret,
            "token": request.token, "callback": request.callback, "state": "requested",
            "lease_until": None, "delivered_at": None, "deliveries": push.get("deliveries", 0),
            "ignored": push.get("ignored", 0),
        }  # fmt: skip
        update = {"push": started | noted}
    # Matches the state as read, and the state after this same write, whose reply may be lost.
    query = {
        "_id": feed.key,
        "push.token": {"$in": [push.get("token"), request.token]},
        "push.requested_at": {"$in": [push.get("requested_at"), now]},
    }
    return (await db.feeds.update_one(query, {"$set": update})).matched_count == 1


async def record_failure(db: Database, feed_key: str, token: str, reason: str) -> None:
    """Store why a request to a hub failed."""
    await _set(db, feed_key, token, {"reason": reason})


async def record_refusal(
    db: Database, feed_key: str, token: str, reason: str, again: datetime
) -> None:
    """Store that the hub refused the subscription."""
    noted = {"state": "refused", "reason": reason, "next_request_at": again}
    await _set(db, feed_key, token, noted)


async def postpone(db: Database, feed_key: str, until: datetime) -> None:
    """Postpone requests to a hub; feeds that were never requested stay unchanged."""
    query = {"_id": feed_key, "push.token": {"$exists": True}}
    await db.feeds.update_one(query, {"$set": {"push.next_request_at": until}})


async def _set(db: Database, feed_key: str, token: str, noted: Document) -> None:
    update = {f"push.{name}": value for name, value in noted.items()}
    await db.feeds.update_one({"_id": feed_key, "push.token": token}, {"$set": update})


async def of_token(db: Database, token: str) -> Feed | None:
    """Return the feed with this token, if it is still a target."""
    row = await db.feeds.find_one({"push.token": token}, FIELDS)
    return next(iter(await _watched(db, [row])), None) if row else None


async def confirm(
    db: Database, token: str, topic: str, now: datetime, lease: timedelta, renewal: timedelta
) -> bool:
    """Store the hub's confirmation of a subscription; return False if it is not wanted."""
    query = {
        "push.token": token, "push.topic": topic, "push.state": {"$ne": "ended"},
        "push.unsubscribing": {"$ne": True},
    }  # fmt: skip
    noted: Document = {
        "push.state": "active", "push.leased_at": now, "push.lease_until": now + lease,
        "push.next_request_at": now + renewal, "push.attempts": 0,
    }  # fmt: skip
    update = {"$set": noted, "$unset": {"push.reason": ""}}
    return (await db.feeds.update_one(query, update)).matched_count == 1


async def deny(db: Database, token: str, topic: str, reason: str, again: datetime) -> bool:
    """Store that the hub refused or ended a subscription; return False if it was not requested."""
    query = {"push.token": token, "push.topic": topic, "push.state": {"$ne": "ended"}}
    noted = {"push.state": "refused", "push.reason": reason, "push.next_request_at": again}
    return (await db.feeds.update_one(query, {"$set": noted})).matched_count == 1


async def expire_leases(db: Database, now: datetime) -> int:
    """End subscriptions whose lease has expired; return their number."""
    query: Document = {
        "push.state": {"$in": ["active", "requested"]},
        "push.lease_until": {"$lte": now, "$ne": None},
    }
    return (await db.feeds.update_many(query, {"$set": {"push.state": "ended"}})).modified_count


async def start_unsubscribe(db: Database, callback: str) -> list[Feed]:
    """Mark all subscriptions of a callback for unsubscribing, and return their feeds."""
    query = {
        "push.callback": callback, "push.state": {"$in": ["requested", "active"]},
    }  # fmt: skip
    await db.feeds.update_many(query, {"$set": {"push.unsubscribing": True}})
    return [Feed.of(row) async for row in db.feeds.find({"push.unsubscribing": True}, FIELDS)]


async def confirm_unsubscribe(db: Database, token: str, topic: str, now: datetime) -> bool:
    """Store the hub's confirmation of an unsubscription; return False if it is wanted."""
    query = {"push.token": token, "push.topic": topic, "push.unsubscribing": True}
    return (await db.feeds.update_one(query, _ended(now))).matched_count == 1


async def end_unconfirmed(db: Database, now: datetime) -> int:
    """End subscriptions whose hub did not confirm the unsubscription; return their number."""
    return (await db.feeds.update_many({"push.unsubscribing": True}, _ended(now))).modified_count


def _ended(now: datetime) -> Document:
    noted = {"push.state": "ended", "push.lease_until": now, "push.next_request_at": now}
    return {"$set": noted, "$unset": {"push.unsubscribing": ""}}


async def count_unsubscribing(db: Database) -> int:
    """Return the number of subscriptions that are still being unsubscribed."""
    return await db.feeds.count_documents({"push.unsubscribing": True})


async def states(db: Database) -> dict[str, int]:
    """Return the number of subscriptions in each state."""
    counts = await count_by(db.feeds, "push.state", {"push.token": {"$exists": True}})
    return dict(sorted(counts.items()))


async def count_ignored(db: Database, feed_key: str, token: str) -> None:
    """Count a delivery without a valid signature."""
    query = {"_id": feed_key, "push.token": token}
    await db.feeds.update_one(query, {"$inc": {"push.ignored": 1}})


async def require_proof(db: Database, keys: Sequence[str]) -> None:
    """Keep polling these feeds, because a poll found posts that their hub did not deliver."""
    query = {"_id": {"$in": list(keys)}, "push.delivered_at": {"$ne": None}}
    await db.feeds.update_many(query, {"$set": {"push.delivered_at": None}})


async def store(
    db: Database, feed: Feed, content_type: str, body: bytes, now: datetime, max_bytes: int
) -> DeliveryResult:
    """Store a delivered document; return when it is in the journal.

    max_bytes: limit for the documents of all feeds together

    A document beyond the limit is not stored (POLLED): the feed is due immediately, so that a poll
    fetches its posts. Only the newest 20 of each feed are kept; deleting an older one makes the
    feed due as well.
    """
    digest = hashlib.sha256(body).hexdigest()
    if feed.push.get("digest") == digest:
        await _delivered(db, feed, now, digest)
        return DeliveryResult.REPEATED
    # From the collection statistics: the bytes of all stored deliveries.
    stats = await aggregated(db.pushes, [{"$collStats": {"storageStats": {}}}])
    kept_bytes = sum(int(row["storageStats"]["size"]) for row in stats)
    if kept_bytes + len(body) > max_bytes:
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
    """Make a feed due now, because a delivery of its hub was not stored."""
    await db.targets.update_one({"_id": feed.key} | ALIVE, {"$min": {"next_visit": now}})


async def _delivered(db: Database, feed: Feed, now: datetime, digest: str | None) -> None:
    """Count a delivery. digest: of its body, if that is stored."""
    noted: Document = {"push.delivered_at": now}
    if digest is not None:
        noted["push.digest"] = digest
    query = {"_id": feed.key, "push.token": feed.push["token"]}
    await db.feeds.update_one(query, {"$set": noted, "$inc": {"push.deliveries": 1}})


async def oldest_deliveries(db: Database, spider: str, limit: int) -> list[Delivery]:
    """Return the oldest deliveries, at most `limit` and about 32 MB."""
    query: Document = {"spider": spider}
    taken: list[Delivery] = []
    room_bytes = MAX_READ_BYTES
    # Small batches limit what is read beyond the limit.
    async for row in db.pushes.find(query, batch_size=8).sort("at").limit(limit):
        body = bytes(row["body"])
        taken.append(Delivery(row["_id"], row["url"], row["at"], row["content_type"], body))
        room_bytes -= len(body)
        if room_bytes <= 0:
            break
    return taken


async def delete_deliveries(db: Database, ids: Sequence[str]) -> int:
    """Delete deliveries whose posts are stored; return their number."""
    return (await db.pushes.delete_many({"_id": {"$in": list(ids)}})).deleted_count
