"""`outbox`: messages of notifications, from the event that caused them until they are delivered.

`insert` stores the messages of marked events (`change_events`), each with an `_id` derived from
event, rule and channel. The marks are removed afterwards: a crash in between repeats both, and
any number of processes may do it concurrently.

The states of a message:

unconfirmed  it waits for the next visit of its page, which `confirm` describes
waiting      to be delivered from `due` on
delivered    the channel accepted it; deleted after KEPT
dead         it will not be tried again, until somebody retries it; `reason` says why
dropped      the next visit found another state, so it is not sent; deleted after KEPT

A channel is delivered by one process at a time, under a lease. Updates require the number of
attempts that the process has read, so a process that lost its lease changes nothing afterwards. A
message waits as long as an earlier one of the same channel and target does, which keeps the order.

Messages that are sent as one are a bundle. Its id is stored in its messages before the first
attempt, so a repeated attempt has the same id and the same messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import cast

from pymongo import ASCENDING, DESCENDING, UpdateMany, UpdateOne
from typing_extensions import TypedDict

from crawler.storage.client import Database, Document, delete_or_count, in_async_batches, write_all
from crawler.storage.paging import Key, read_page
from crawler.utils.shapes import copied

# Prefix of the names of the leases on channels.
LEASE = "notify "
KEPT = timedelta(days=7)
# Dead letters are shown and can be retried for a longer time.
DEAD_KEPT = timedelta(days=60)
# Maximum number of waiting messages of a channel. The oldest ones beyond it become dead letters.
MAX_WAITING = 10_000
MAX_DEAD = 10_000
BATCH = 200
# Maximum number of messages in a digest, of a page that are joined, and of a bundle that are read.
MAX_DIGEST, MAX_JOINED, MAX_READ = 1000, 50, 50
MAX_REASON_CHARACTERS = 300
# Maximum counts of messages in a state: high enough for all that may wait, and lower for web pages,
# which read the states of all channels.
MAX_COUNTED, FEW_COUNTED = MAX_WAITING, 1000
ORDER = [("at", ASCENDING), ("_id", ASCENDING)]
NEWEST_FIRST = [("at", DESCENDING), ("_id", DESCENDING)]
# Index of waiting messages.
BY_ATTEMPTS = [("channel", ASCENDING), ("attempts", ASCENDING)]
TOO_MANY = f"more than {MAX_WAITING} messages were waiting for the channel"


class State(StrEnum):
    """State of a message."""

    UNCONFIRMED = "unconfirmed"
    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"
    DROPPED = "dropped"


# States with a limited number of messages, and, for the others, the field with their start time.
LIMITED = (State.UNCONFIRMED, State.WAITING)
BEGAN = {
    State.DELIVERED: "delivered_at",
    State.DEAD: "dead_at",
    State.DROPPED: "dropped_at",
}


class Grouping(StrEnum):
    """Which messages of a channel are sent as one.

    PAGE:   those about one page and of one rule
    RULE:   those of one rule that are due, such as all of a run
    DIGEST: all that are due
    """

    NONE = "none"
    PAGE = "page"
    RULE = "rule"
    DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Messages that a channel receives as one; often a single one.

    id:       id for the receiver, the same for every attempt
    messages: documents in order, at most MAX_READ
    more:     number of further messages, which were not read
    is_fixed: whether the id is stored in the messages
    """

    id: str
    messages: list[Document]
    more: int = 0
    is_fixed: bool = False

    @property
    def size(self) -> int:
        """Return the number of messages."""
        return len(self.messages) + self.more

    @property
    def attempts(self) -> int:
        """Return the number of attempts so far."""
        return int(self.messages[0]["attempts"])

    @property
    def accepted(self) -> tuple[str, ...]:
        """Return the receivers of the channel that have the bundle, although attempts failed."""
        return tuple(self.messages[0].get("accepted", ()))

    def first_at(self, now: datetime) -> datetime:
        """Return the time of the first attempt; `now` if it is the one in progress."""
        first: datetime | None = self.messages[0].get("first_at")
        return first or now


class ChannelState(TypedDict):
    """The messages of a channel.

    Counting stops at 10,000 in commands and at 1,000 in the web app.
    """

    channel: str
    """Name of the channel."""
    waiting: int
    """Number of messages that wait for their delivery."""
    retrying: int
    """Number of these whose last attempt failed."""
    unconfirmed: int
    """Number of messages that wait for the next visit of their page."""
    delivered: int
    """Number of messages that were delivered in the last week."""
    dropped: int
    """Number of messages that the next visit did not confirm in the last week."""
    dead: int
    """Number of dead letters."""
    oldest: datetime | None
    """Time of the oldest event that waits; null: no message waits."""
    last_delivered: datetime | None
    """Time of the last delivery; null: none in the last week."""
    broken: bool
    """Whether attempts fail, and nothing was delivered since the first one that failed."""
    reason: str
    """Cause of the last failure of a waiting message; empty without one."""


class OutboxMessage(TypedDict):
    """A message of a channel."""

    id: str
    """Id of the message, which its receiver gets with each attempt."""
    state: str
    """`unconfirmed`, `waiting`, `delivered`, `dead` or `dropped`."""
    channel: str
    """Name of the channel."""
    rule: str
    """Name of the rule; `SITE/NAME` for a rule of a site definition."""
    event: str
    """Name of the event, such as `changed`."""
    spider: str
    """Name of the spider."""
    target: str
    """URL of the page; empty for a whole site."""
    at: datetime
    """Time of the event."""
    due: datetime
    """Time of the next attempt, if the message waits."""
    ended_at: datetime | None
    """Time when it was delivered, dropped or became a dead letter; null: it waits."""
    attempts: int
    """Number of attempts."""
    reason: str
    """Cause of the last failure, or why it was dropped; empty without one."""


def message_id(*parts: str) -> str:
    """Return the `_id` of a message, or the id of a bundle.

    parts: `MarkedEvent.key`, rule and channel; for a bundle, the ids of its messages
    """
    digest = hashlib.sha256("\n".join(parts).encode())
    return f"msg_{digest.hexdigest()[:32]}"


def _in_state(channel: str, state: State) -> Document:
    return {"channel": channel, "state": str(state)}


async def insert(db: Database, messages: Sequence[Document], now: datetime) -> int:
    """Store messages whose `_id` is new; return their number.

    messages: documents with `_id`, `channel`, `rule`, `event`, `spider`, `target`, `at`, `data`,
              and `due`, unless it is now; those with `confirm` are unconfirmed
    """
    if not messages:
        return 0
    updates = []
    for message in messages:
        state = State.UNCONFIRMED if "confirm" in message else State.WAITING
        document = {"state": str(state), "due": now, "attempts": 0} | message
        updates.append(UpdateOne({"_id": message["_id"]}, {"$setOnInsert": document}, upsert=True))
    inserted = (await db.outbox.bulk_write(updates, ordered=False)).upserted_count
    for channel in {message["channel"] for message in messages}:
        for state in LIMITED:
            await _bound(db, channel, state, now)
    return inserted


def unconfirmed(db: Database) -> AsyncIterator[list[Document]]:
    """Yield the unconfirmed messages in order, in batches, without their data."""
    cursor = db.outbox.find({"state": str(State.UNCONFIRMED)}, {"data": 0}).sort(ORDER)
    return in_async_batches(cursor, BATCH)


async def record_confirmed(db: Database, ids: Sequence[str], due_at: datetime) -> None:
    """Make unconfirmed messages wait for their delivery from a time on."""
    query: Document = {"_id": {"$in": list(ids)}, "state": str(State.UNCONFIRMED)}
    await db.outbox.update_many(query, {"$set": {"state": str(State.WAITING), "due": due_at}})


async def record_dropped(db: Database, ids: Sequence[str], reason: str, now: datetime) -> None:
    """Store that the next visit of a page did not confirm messages."""
    query: Document = {"_id": {"$in": list(ids)}, "state": str(State.UNCONFIRMED)}
    state: Document = {"state": str(State.DROPPED), "dropped_at": now, "reason": reason}
    await db.outbox.update_many(query, {"$set": state, "$unset": {"data": ""}})


async def due(
    db: Database,
    channel: str,
    now: datetime,
    grouping: Grouping = Grouping.NONE,
    limit: int = BATCH,
) -> list[Bundle]:
    """Return the bundles to send to a channel, in order.

    At most one of each page, one of each rule, or a digest.

    Fixes the messages of new bundles, so the caller needs the lease on the channel.
    """
    if grouping is Grouping.DIGEST:
        return await _due_digest(db, channel, now)
    bundles: dict[str, Bundle] = {}
    for message in await _first_of_targets(db, channel, now, limit):
        key: str | None = message.get("bundle")
        if key is None and grouping is not Grouping.NONE:
            key = await _bundle_with(db, message, grouping, now)
            if key is None:
                continue
        if key is None:
            bundles[message["_id"]] = Bundle(message["_id"], [message])
        elif key not in bundles and (bundle := await _read_bundle(db, channel, key)) is not None:
            bundles[key] = bundle
    return list(bundles.values())


async def _bundle_with(
    db: Database, message: Document, grouping: Grouping, now: datetime
) -> str | None:
    """Begin the bundle of a message; None if another one has it, or an earlier one has failed."""
    names = ("channel", "rule", *(("spider", "target") if grouping is Grouping.PAGE else ()))
    query: Document = {"state": str(State.WAITING)} | {name: message[name] for name in names}
    if grouping is Grouping.PAGE:
        return await _begin_bundle(db, query, MAX_JOINED, now)
    failed: Document = {"bundle": {"$exists": True}, "due": {"$gt": now}}
    if await db.outbox.find_one(query | failed, {"_id": 1}) is not None:
        return None
    return await _begin_bundle(db, query | {"due": {"$lte": now}}, MAX_DIGEST, now)


async def _first_of_targets(
    db: Database, channel: str, now: datetime, limit: int
) -> list[Document]:
    """Return due messages of a channel in order, at most one of each target.

    A message is postponed as long as an earlier one of its target waits for its next attempt.
    """
    waiting: Document = _in_state(channel, State.WAITING)
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
        # Otherwise they would fill each batch, and other targets would wait as well.
        await db.outbox.bulk_write(postponed, ordered=False)
    return list(messages.values())


async def _due_digest(db: Database, channel: str, now: datetime) -> list[Bundle]:
    """Return the digest that has to be sent; a failed one comes before all later messages."""
    waiting: Document = _in_state(channel, State.WAITING)
    begun: Document = waiting | {"bundle": {"$exists": True}}
    fixed = await db.outbox.find_one(begun, {"bundle": 1, "due": 1}, sort=ORDER)
    if fixed is None:
        key = await _begin_bundle(db, waiting | {"due": {"$lte": now}}, MAX_DIGEST, now)
    else:
        key = fixed["bundle"] if fixed["due"] <= now else None
    bundle = None if key is None else await _read_bundle(db, channel, key)
    return [] if bundle is None else [bundle]


async def _begin_bundle(db: Database, query: Document, limit: int, now: datetime) -> str | None:
    """Store the id of a new bundle in the oldest messages of a query; None if there are none."""
    free: Document = query | {"bundle": {"$exists": False}}
    if (first := await db.outbox.find_one(free, {"accepted": 1}, sort=ORDER)) is None:
        return None
    # A retry of dead letters leaves out the receivers that have them, but not for other messages.
    free["accepted"] = first.get("accepted")
    ids = await _oldest(db, free, limit)
    key = ids[0] if len(ids) == 1 else message_id(*ids)
    fixed: Document = {
        "$set": {"bundle": key, "due": now, "attempts": 0},
        "$unset": {"first_at": ""},
    }
    await db.outbox.update_many(free | {"_id": {"$in": ids}}, fixed)
    return key


async def _read_bundle(db: Database, channel: str, key: str) -> Bundle | None:
    query: Document = {"channel": channel, "bundle": key, "state": str(State.WAITING)}
    messages = await db.outbox.find(query).sort(ORDER).limit(MAX_READ).to_list(None)
    if not messages:
        return None
    more = await db.outbox.count_documents(query) - len(messages)
    return Bundle(key, messages, max(0, more), is_fixed=True)


async def sent_times(db: Database, channel: str, since: datetime) -> list[datetime]:
    """Return when a channel accepted messages after a time, oldest first; a bundle counts once."""
    delivered: Document = _in_state(channel, State.DELIVERED)
    stages: list[Document] = [
        {"$match": delivered | {"delivered_at": {"$gt": since}}},
        {"$group": {"_id": {"$ifNull": ["$bundle", "$_id"]}, "at": {"$max": "$delivered_at"}}},
        {"$sort": {"at": 1}},
    ]
    return [row["at"] async for row in await db.outbox.aggregate(stages)]


async def record_delivered(db: Database, bundles: Sequence[Bundle], now: datetime) -> None:
    """Store that a channel accepted bundles."""
    done: Document = {
        "$set": {"state": str(State.DELIVERED), "delivered_at": now},
        "$inc": {"attempts": 1},
        # Only the id and the times are needed from now on.
        "$unset": {"reason": "", "data": "", "accepted": ""},
    }
    updates = [UpdateMany(_as_read(bundle), done) for bundle in bundles]
    await write_all(db.outbox, updates)


async def record_failure(
    db: Database,
    bundle: Bundle,
    reason: str,
    again: datetime | None,
    now: datetime,
    accepted: Sequence[str] = (),
) -> None:
    """Store that an attempt failed.

    again:    time of the next one; None: the messages are dead
    accepted: receivers of the channel that have the bundle
    """
    state: Document = {"reason": reason[:MAX_REASON_CHARACTERS], "first_at": bundle.first_at(now)}
    if accepted:
        state["accepted"] = list(accepted)
    if again is not None:
        state["due"] = again
    else:
        state |= {"state": str(State.DEAD), "dead_at": now}
    await db.outbox.update_many(_as_read(bundle), {"$set": state, "$inc": {"attempts": 1}})
    if again is None:
        await _bound_dead(db, bundle.messages[0]["channel"])


async def _bound_dead(db: Database, channel: str) -> None:
    """Delete the oldest dead letters of a channel beyond MAX_DEAD."""
    query = _dead(None, channel)
    excess = await db.outbox.count_documents(query) - MAX_DEAD
    if excess > 0:
        await discard(db, await _oldest(db, query, excess))


def _as_read(bundle: Bundle) -> Document:
    """Return a query for the messages of a bundle; no match if another process has tried it."""
    read: Document = {"state": str(State.WAITING), "attempts": bundle.attempts}
    if bundle.is_fixed:
        return read | {"channel": bundle.messages[0]["channel"], "bundle": bundle.id}
    return read | {"_id": bundle.id, "bundle": {"$exists": False}}


async def _bound(db: Database, channel: str, state: State, now: datetime) -> None:
    """Make the oldest messages of a state beyond MAX_WAITING dead letters."""
    query: Document = _in_state(channel, state)
    excess = await db.outbox.count_documents(query) - MAX_WAITING
    if excess <= 0:
        return
    excessive: Document = {"_id": {"$in": await _oldest(db, query, excess)}}
    dead: Document = {"state": str(State.DEAD), "dead_at": now, "reason": TOO_MANY}
    await db.outbox.update_many(query | excessive, {"$set": dead})
    await _bound_dead(db, channel)


async def _oldest(db: Database, query: Document, number: int) -> list[str]:
    """Return the ids of the oldest messages of a query."""
    cursor = db.outbox.find(query, {"_id": 1}).sort(ORDER).limit(number)
    return [row["_id"] async for row in cursor]


async def postpone(db: Database, channel: str, now: datetime, until: datetime) -> int:
    """Postpone the due messages of a channel that accepts none before a time; return their number.

    Safe to repeat, but a repeated call does not count the messages of the first one.
    """
    due_now: Document = {"channel": channel, "state": str(State.WAITING), "due": {"$lte": now}}
    return (await db.outbox.update_many(due_now, {"$set": {"due": until}})).modified_count


async def is_any_due(db: Database, channels: Collection[str], now: datetime) -> bool:
    """Return whether a message of some channels is due."""
    waiting: Document = {"channel": {"$in": list(channels)}, "state": str(State.WAITING)}
    return await db.outbox.find_one(waiting | {"due": {"$lte": now}}, {"_id": 1}) is not None


async def is_any_unconfirmed(db: Database) -> bool:
    """Return whether a message waits for the next visit of its page."""
    query: Document = {"state": str(State.UNCONFIRMED)}
    return await db.outbox.find_one(query, {"_id": 1}) is not None


async def dead_letters(
    db: Database, channel: str | None = None, limit: int = BATCH
) -> list[OutboxMessage]:
    """Return the dead letters of a channel, or of all, newest first."""
    cursor = db.outbox.find(_dead(None, channel), {"data": 0}).sort("dead_at", DESCENDING)
    return [_shown(row) async for row in cursor.limit(limit)]


async def retry(
    db: Database, now: datetime, ids: Sequence[str] | None = None, channel: str | None = None
) -> int:
    """Make dead letters wait again; return their number. ids, channel: only these."""
    again: Document = {"state": str(State.WAITING), "due": now, "attempts": 0}
    ended = dict.fromkeys(("dead_at", "reason", "first_at", "bundle"), "")
    update: Document = {"$set": again, "$unset": ended}
    return (await db.outbox.update_many(_dead(ids, channel), update)).modified_count


async def discard(
    db: Database, ids: Sequence[str] | None = None, channel: str | None = None
) -> int:
    """Delete dead letters; return their number. ids, channel: only these."""
    return (await db.outbox.delete_many(_dead(ids, channel))).deleted_count


def _dead(ids: Sequence[str] | None, channel: str | None) -> Document:
    query: Document = {"state": str(State.DEAD)}
    query |= {"_id": {"$in": list(ids)}} if ids is not None else {}
    return query | ({"channel": channel} if channel is not None else {})


def empty_state(channel: str) -> ChannelState:
    """Return the state of a channel without messages."""
    return {**copied(ChannelState, {}), "channel": channel, "reason": ""}


async def channel_names(db: Database) -> list[str]:
    """Return the names of the channels that have messages."""
    return sorted(await db.outbox.distinct("channel"))


async def state_of(db: Database, channel: str, limit: int = MAX_COUNTED) -> ChannelState:
    """Return the state of a channel, which may have no messages. limit: maximum of each count."""

    def counted(name: str, query: Document) -> list[Document]:
        return [{"$match": query}, {"$limit": limit}, {"$group": {"_id": name, "n": {"$sum": 1}}}]

    def first(name: str, state: State, field: str, direction: int) -> list[Document]:
        shown = {"_id": {"$literal": name}, "at": f"${field}"}
        return [{"$match": _in_state(channel, state)}, {"$sort": {field: direction}}, {"$limit": 1},
                {"$project": shown}]  # fmt: skip

    # Each part reads few entries of its own index, so one command is enough.
    parts = [counted(state.value, _in_state(channel, state)) for state in State]
    parts.append(first("last_delivered", State.DELIVERED, "delivered_at", DESCENDING))
    parts.append(first("oldest", State.WAITING, "at", ASCENDING))
    stages = counted("retrying", _in_state(channel, State.WAITING) | {"attempts": {"$gt": 0}})
    stages += [{"$unionWith": {"coll": "outbox", "pipeline": part}} for part in parts]
    cursor = await db.outbox.aggregate(stages, hint=dict(BY_ATTEMPTS))
    values: Document = {row["_id"]: row["n"] if "n" in row else row["at"] async for row in cursor}
    result = cast("ChannelState", {**empty_state(channel), **values})
    if result["retrying"]:
        result["broken"], result["reason"] = await failure_of(db, channel)
    return result


async def failure_of(db: Database, channel: str) -> tuple[bool, str]:
    """Return whether a channel is broken, and the cause of the last failure; see ChannelState."""
    failed: Document = _in_state(channel, State.WAITING) | {"attempts": {"$gt": 0}}
    fields, often = {"at": 1, "first_at": 1, "reason": 1}, [("attempts", DESCENDING)]
    message = await db.outbox.find_one(failed, fields, sort=often, hint=BY_ATTEMPTS)
    if message is None:
        return False, ""
    first: datetime = message.get("first_at") or message["at"]
    since: Document = _in_state(channel, State.DELIVERED)
    works = await db.outbox.find_one(since | {"delivered_at": {"$gte": first}}, {"_id": 1})
    return works is None, message.get("reason", "")


async def is_any_waiting(db: Database, channel: str) -> bool:
    """Return whether a message waits for a channel, or for the next visit of its page."""
    query: Document = {"channel": channel, "state": {"$in": list(map(str, LIMITED))}}
    return await db.outbox.find_one(query, {"_id": 1}) is not None


async def count_dead(db: Database, channel: str) -> int:
    """Return the number of dead letters of a channel, at most FEW_COUNTED."""
    return await db.outbox.count_documents(_dead(None, channel), limit=FEW_COUNTED)


async def messages(
    db: Database, channel: str, state: State, limit: int, after: Key | None = None
) -> tuple[list[OutboxMessage], Key | None]:
    """Return messages of a channel, the newest events first, and the key of the next page."""
    # Messages of deleted pages have no names.
    query: Document = _in_state(channel, state) | {"spider": {"$ne": ""}}
    found = await read_page(db.outbox, query, NEWEST_FIRST, limit, after, {"data": 0})
    return list(map(_shown, found.rows)), found.last


def _shown(row: Document) -> OutboxMessage:
    state = State(row["state"])
    return {
        **copied(OutboxMessage, row),
        "id": row["_id"],
        "ended_at": row.get(BEGAN[state]) if state in BEGAN else None,
        "reason": row.get("reason", ""),
    }


async def remove_from(db: Database, collection: str, query: Document, *, delete: bool) -> int:
    """Delete the documents of deleted pages in a collection; return their number.

    Delivered messages are not counted, and stay without the names of site, page and rule: their
    times limit the rate of a channel, and show that it works.

    delete: False to only count
    """
    if collection != "outbox":
        return await delete_or_count(db[collection], query, delete=delete)
    delivered = str(State.DELIVERED)
    if delete:
        unnamed = {"spider": "", "target": "", "rule": ""}
        await db.outbox.update_many(query | {"state": delivered}, {"$set": unnamed})
    return await delete_or_count(db.outbox, query | {"state": {"$ne": delivered}}, delete=delete)


async def drop_old(db: Database, now: datetime) -> int:
    """Delete messages that ended long ago; return their number."""
    return (await db.outbox.delete_many(old(now))).deleted_count


def old(now: datetime) -> Document:
    """Return the query for ended messages that are old enough to delete."""
    ages = {state: DEAD_KEPT if state is State.DEAD else KEPT for state in BEGAN}
    return {
        "$or": [
            {"state": str(state), BEGAN[state]: {"$lt": now - age}} for state, age in ages.items()
        ]
    }
