"""`outbox`: messages of notifications, from the event that caused them until they are delivered.

Visits and alarms are stored with a mark (`notify`). `insert` stores the messages of marked events,
each with an `_id` that follows from event, rule and channel, and `unmark` removes the marks
afterwards: a crash in between repeats both, and any number of processes may do it concurrently.

The states of a message:

waiting    to be delivered from `due` on
delivered  the channel accepted it; deleted after KEPT
dead       it will not be tried again, until somebody retries it; `reason` says why

A channel is delivered by one process at a time, under a lease. Updates name the number of attempts
that the process has read, so that a process that lost its lease changes nothing afterwards. A
message waits as long as an earlier one of the same channel and target does, which keeps the order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pymongo import ASCENDING, DESCENDING, UpdateMany, UpdateOne
from typing_extensions import TypedDict

from crawler.storage.client import Database, Document

# Collections with marked events: documents with `at`, `spider` and `target`.
SOURCES = ("visits", "alarms")
# Prefix of the names of the leases on channels.
LEASE = "notify "
KEPT = timedelta(days=7)
# Dead letters are shown and can be retried for a longer time.
DEAD_KEPT = timedelta(days=60)
# Maximum number of waiting messages of a channel. The oldest ones beyond it become dead letters.
MAX_WAITING = 10_000
MAX_DEAD = 10_000
BATCH = 200
MAX_REASON_CHARACTERS = 300
ORDER = [("at", ASCENDING), ("_id", ASCENDING)]
TOO_MANY = f"more than {MAX_WAITING} messages were waiting for the channel"


class State(StrEnum):
    """State of a message."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Marked:
    """An event to which the rules have not been applied.

    source: its collection
    row:    its document
    """

    source: str
    row: Document

    @property
    def key(self) -> str:
        """Key of the event among all sources, of which message ids are made."""
        return f"{self.source} {self.row['_id']}"


class DeadLetter(TypedDict):
    """A message that could not be delivered."""

    id: str
    """Id of the message, which its receiver got with each attempt."""
    channel: str
    """Name of the channel."""
    rule: str
    """Name of the rule."""
    spider: str
    """Name of the spider."""
    target: str
    """URL of the page; empty for a whole site."""
    at: datetime
    """Time of the event."""
    attempts: int
    """Number of attempts."""
    reason: str
    """Why it is not tried again."""


class ChannelState(TypedDict):
    """The messages of a channel."""

    channel: str
    """Name of the channel."""
    waiting: int
    """Number of messages that wait for their delivery."""
    delivered: int
    """Number of messages that were delivered in the last week."""
    dead: int
    """Number of dead letters."""
    oldest: datetime | None
    """Time of the oldest event that waits; null: no message waits."""
    reason: str
    """Cause of the last failure of a waiting message; empty without one."""


def message_id(event: str, rule: str, channel: str) -> str:
    """Return the `_id` of the message about an event. event: `Marked.key`."""
    digest = hashlib.sha256("\n".join((event, rule, channel)).encode())
    return f"msg_{digest.hexdigest()[:32]}"


async def marked(db: Database, limit: int = BATCH) -> list[Marked]:
    """Return the oldest events to which the rules have not been applied, in order of time.

    All of a source up to the last one returned are among them.
    """
    events: list[Marked] = []
    for source in SOURCES:
        cursor = db[source].find({"notify": True}).sort(ORDER).limit(limit)
        events += [Marked(source, row) async for row in cursor]
    events.sort(key=lambda event: (event.row["at"], event.key))
    return events[:limit]


async def insert(db: Database, messages: Sequence[Document], now: datetime) -> int:
    """Store messages whose `_id` is new; return their number.

    messages: documents with `_id`, `channel`, `rule`, `event`, `spider`, `target`, `at`, `data`
    """
    if not messages:
        return 0
    state: Document = {"state": str(State.WAITING), "due": now, "attempts": 0, "first_at": now}
    updates = [
        UpdateOne({"_id": message["_id"]}, {"$setOnInsert": message | state}, upsert=True)
        for message in messages
    ]
    inserted = (await db.outbox.bulk_write(updates, ordered=False)).upserted_count
    for channel in {message["channel"] for message in messages}:
        await _bound(db, channel, State.WAITING, MAX_WAITING, now)
    return inserted


async def unmark(db: Database, events: Sequence[Marked]) -> None:
    """Remove the marks of events whose messages are stored."""
    for source in SOURCES:
        if ids := [event.row["_id"] for event in events if event.source == source]:
            await db[source].update_many({"_id": {"$in": ids}}, {"$unset": {"notify": ""}})


async def due(db: Database, channel: str, now: datetime, limit: int = BATCH) -> list[Document]:
    """Return due messages of a channel in order, at most one of each target.

    A message is postponed as long as an earlier one of its target waits for its next attempt.
    """
    waiting: Document = {"channel": channel, "state": str(State.WAITING)}
    cursor = db.outbox.find(waiting | {"due": {"$lte": now}}).sort(ORDER).limit(limit)
    messages: dict[tuple[str, str], Document] = {}
    async for message in cursor:
        messages.setdefault((message["spider"], message["target"]), message)
    targets = list({message["target"] for message in messages.values()})
    later: Document = waiting | {"target": {"$in": targets}, "due": {"$gt": now}}
    postponed = []
    async for row in db.outbox.find(later, {"spider": 1, "target": 1, "at": 1, "due": 1}):
        message = messages.get((row["spider"], row["target"]), {})
        if message and (row["at"], row["_id"]) < (message["at"], message["_id"]):
            del messages[row["spider"], row["target"]]
            of_target = waiting | {"spider": row["spider"], "target": row["target"]}
            postponed.append(UpdateMany(of_target, {"$max": {"due": row["due"]}}))
    if postponed:
        # They would fill each batch otherwise, and other targets would wait as well.
        await db.outbox.bulk_write(postponed, ordered=False)
    return list(messages.values())


async def record_delivered(db: Database, messages: Sequence[Document], now: datetime) -> None:
    """Store that a channel accepted messages."""
    done: Document = {
        "$set": {"state": str(State.DELIVERED), "delivered_at": now},
        "$inc": {"attempts": 1},
        "$unset": {"reason": ""},
    }
    updates = [UpdateOne(_as_read(message), done) for message in messages]
    if updates:
        await db.outbox.bulk_write(updates, ordered=False)


async def record_failure(
    db: Database, message: Document, reason: str, again: datetime | None, now: datetime
) -> None:
    """Store that an attempt failed. again: time of the next one; None: the message is dead."""
    state: Document = {"reason": reason[:MAX_REASON_CHARACTERS]}
    if again is not None:
        state["due"] = again
    else:
        state |= {"state": str(State.DEAD), "dead_at": now}
    await db.outbox.update_one(_as_read(message), {"$set": state, "$inc": {"attempts": 1}})
    if again is None:
        query: Document = {"channel": message["channel"], "state": str(State.DEAD)}
        cursor = db.outbox.find(query, {"_id": 1}).sort("dead_at", DESCENDING).skip(MAX_DEAD)
        if old := [row["_id"] async for row in cursor]:
            await db.outbox.delete_many({"_id": {"$in": old}})


def _as_read(message: Document) -> Document:
    """Return a query for a message unless another process has tried it meanwhile."""
    attempts = message["attempts"]
    return {"_id": message["_id"], "state": str(State.WAITING), "attempts": attempts}


async def _bound(db: Database, channel: str, state: State, most: int, now: datetime) -> None:
    query: Document = {"channel": channel, "state": str(state)}
    excess = await db.outbox.count_documents(query) - most
    if excess <= 0:
        return
    cursor = db.outbox.find(query, {"_id": 1}).sort(ORDER).limit(excess)
    old = [row["_id"] async for row in cursor]
    dead: Document = {"state": str(State.DEAD), "dead_at": now, "reason": TOO_MANY}
    await db.outbox.update_many({"_id": {"$in": old}, "state": str(state)}, {"$set": dead})


async def next_due(db: Database, channels: Sequence[str]) -> datetime | None:
    """Return when the next message of some channels is due; None if none waits."""
    query: Document = {"channel": {"$in": list(channels)}, "state": str(State.WAITING)}
    row = await db.outbox.find_one(query, {"due": 1}, sort=[("due", ASCENDING)])
    return row["due"] if row else None


async def dead_letters(
    db: Database, channel: str | None = None, limit: int = BATCH
) -> list[DeadLetter]:
    """Return the dead letters of a channel, or of all, newest first."""
    query: Document = {"state": str(State.DEAD)} | ({"channel": channel} if channel else {})
    cursor = db.outbox.find(query).sort("dead_at", DESCENDING).limit(limit)
    return [
        {
            "id": row["_id"],
            "channel": row["channel"],
            "rule": row["rule"],
            "spider": row["spider"],
            "target": row["target"],
            "at": row["at"],
            "attempts": row["attempts"],
            "reason": row["reason"],
        }
        async for row in cursor
    ]


async def retry(
    db: Database, now: datetime, ids: Sequence[str] | None = None, channel: str | None = None
) -> int:
    """Make dead letters wait again; return their number. ids, channel: only these."""
    query: Document = {"state": str(State.DEAD)}
    query |= {"_id": {"$in": list(ids)}} if ids is not None else {}
    query |= {"channel": channel} if channel is not None else {}
    again: Document = {"state": str(State.WAITING), "due": now, "first_at": now}
    update: Document = {"$set": again, "$unset": {"dead_at": "", "reason": ""}}
    return (await db.outbox.update_many(query, update)).modified_count


async def channel_states(db: Database) -> list[ChannelState]:
    """Return the state of each channel with messages, by name."""

    def number(state: State) -> Document:
        return {"$sum": {"$cond": [{"$eq": ["$state", str(state)]}, 1, 0]}}

    is_waiting = {"$eq": ["$state", str(State.WAITING)]}
    stages: list[Document] = [
        {
            "$group": {
                "_id": "$channel",
                **{str(state): number(state) for state in State},
                "oldest": {"$min": {"$cond": [is_waiting, "$at", None]}},
                "reason": {"$max": {"$cond": [is_waiting, "$reason", None]}},
            }
        },
        {"$sort": {"_id": 1}},
    ]
    return [
        {
            "channel": row["_id"],
            "waiting": row["waiting"],
            "delivered": row["delivered"],
            "dead": row["dead"],
            "oldest": row["oldest"],
            "reason": row["reason"] or "",
        }
        async for row in await db.outbox.aggregate(stages)
    ]


async def drop_old(db: Database, now: datetime) -> int:
    """Delete messages that were delivered or died long ago; return their number."""
    query: Document = {
        "$or": [
            {"state": str(State.DELIVERED), "delivered_at": {"$lt": now - KEPT}},
            {"state": str(State.DEAD), "dead_at": {"$lt": now - DEAD_KEPT}},
        ]
    }
    return (await db.outbox.delete_many(query)).deleted_count
