"""`leases`: which process does a piece of work, and what it may store after it lost the lease.

There is one document per piece of work that only one process may do at a time.

A lease ends by the server's clock (`$$NOW`), so the clocks of the machines do not matter. Its
holder renews it. If the holder's process on this machine is dead, the next process takes over
immediately, otherwise when the lease has ended. Each new owner raises `number`: a process that
finds a different number has lost the lease, and stops.

The workers of a run that is shared through Redis hold its lease together, by the id of that Redis.

A periodic job of the service needs no lease, only that no machine has started it recently.

A lease does not stop a stalled process from writing late. Fences do: each target has a number that
only grows. An acknowledged visit raises it to the next multiple of FENCES_OF_A_VISIT; a process
that takes the target over from another one raises it by 1. A visit writes with the number that its
target had when the visit began. The database compares the numbers: an update applies only to
documents without a higher number, an acknowledgment only to a target with the same number. All
attempts at one visit have the same quotient by FENCES_OF_A_VISIT.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from pymongo import ReturnDocument, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from crawler.config import Config
from crawler.errors import Busy, LeaseLost
from crawler.items import Target
from crawler.storage.client import Database, Document, MongoRetry, duplicate_keys
from crawler.utils.process import end_tasks, has_ended, this_process
from crawler.utils.time import steady_seconds

logger = logging.getLogger(__name__)
CRAWL, EXPORT = "crawl ", "export "
REPLAN, REBUILD, PUSH = "replan", "duplicates rebuild", "feeds push"
# Of the services that crawl what is due: several may share it, and one more may stand by.
SERVICE, STANDBY = "service", "service standby"
# Share of a lease's time after which it is renewed; two renewals may fail.
RENEW_SHARE = 0.3
RELEASE_SECONDS = 3.0
FENCES_OF_A_VISIT = 1000
# Each attempt takes over from holders whose processes on this machine have ended.
MAX_TRIES = 5
# Condition of an aggregation over `holders`: the lease of the holder has not ended.
IN_TIME: Document = {"$gt": ["$$this.until", "$$NOW"]}


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lease.

    place, began: the scope in which the pid is valid, and the start time of the process
    since, until: by the server's clock
    """

    id: str
    host: str
    pid: int
    place: str
    began: str
    since: datetime
    until: datetime

    def __str__(self) -> str:
        since, until = (f"{at:%Y-%m-%d %H:%M:%S}" for at in (self.since, self.until))
        return f"{self.host} (process {self.pid}) since {since}, until {until} UTC if not renewed"

    @property
    def has_died(self) -> bool:
        """Return whether its process is known to have ended; False on another machine."""
        return has_ended(self.place, self.pid, self.began)


class Lease:
    """The right of this process to do a piece of work.

    name:     of the work; for a run `CRAWL` and the name of the spider
    seconds:  time until the lease ends if it is not renewed
    number:   of this owner, 0 until the lease is taken; it only grows
    """

    def __init__(self, db: Database, name: str, seconds: float, patience: MongoRetry) -> None:
        self.name, self.number = name, 0
        self._leases, self._seconds, self._patience = db.leases, seconds, patience
        self._id = secrets.token_hex(8)
        self._since: datetime | None = None
        self._sure_until = 0.0
        self._error: LeaseLost | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def take(self, busy: str, shared: str = "") -> None:
        """Take the lease; raise Busy with `busy` and the holder if another process has it.

        shared: id of the Redis through which workers share this work; empty if not shared
        """
        dead: list[str] = []
        for _ in range(MAX_TRIES):
            began = steady_seconds()
            lease = await self._patience.read(partial(self._try_to_take, shared, dead))
            holders = _holders(lease)
            if own := [holder for holder in holders if holder.id == self._id]:
                self.number, self._since = lease["number"], own[0].since
                self._sure_until = began + self._seconds
                return
            if not (died := [holder.id for holder in holders if holder.has_died]):
                break
            dead += died
        raise Busy(_refusal(busy, holders, lease["shared"], shared))

    def keep(self, lost: Callable[[LeaseLost], None]) -> None:
        """Renew the lease from now on; call `lost` if another process took it."""
        self._keeping = asyncio.create_task(self._keep(lost))

    async def release(self) -> None:
        """Release the lease; harmless if it was lost or the server is unavailable."""
        if self._keeping is not None:
            await end_tasks(self._keeping)
        if self.number:
            own: Document = {"$pull": {"holders": {"id": self._id}}}
            # A lease that cannot be released ends on its own.
            with suppress(PyMongoError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._leases.update_one({"_id": self.name}, own)

    async def reserve(self, requests: int) -> None:
        """Store how many requests this work may still make that no visit in the database counts."""
        own: Document = {"_id": self.name, "number": self.number}
        stored = {"$set": {"reserved": requests}}
        await self._patience.read(lambda: self._leases.update_one(own, stored))

    @property
    def is_sure(self) -> bool:
        """Return whether the last renewal is recent enough that no other process has the lease."""
        return self._error is None and steady_seconds() <= self._sure_until

    async def still_holds(self, key: str = "") -> bool:
        """Return whether this process has the lease, and so all targets; renew if unsure."""
        while not self.is_sure and self._error is None:
            with suppress(LeaseLost):
                await self._patience.read(self._renew)
        return self._error is None

    async def _keep(self, lost: Callable[[LeaseLost], None]) -> None:
        while True:
            await asyncio.sleep(self._seconds * RENEW_SHARE)
            try:
                await self._renew()
            except LeaseLost as error:
                lost(error)
                return
            except PyMongoError as error:
                # The writer writes nothing while the lease is uncertain.
                logger.debug("Lease of %s not renewed: %s", self.name, error)

    async def _renew(self) -> None:
        if self._error is not None:
            raise self._error
        began = steady_seconds()
        us, is_us = self._as_holder(self._since), {"$eq": ["$$this.id", self._id]}
        # In place: the oplog then has the changed time only, not the holders of a large run.
        replaced = {"$map": {"input": "$holders", "in": {"$cond": [is_us, us, "$$this"]}}}
        added = {"$concatArrays": ["$holders", [us]]}
        renewed = {"$cond": [{"$in": [self._id, "$holders.id"]}, replaced, added]}
        query: Document = {"_id": self.name, "number": self.number}
        done = await self._leases.update_one(query, [{"$set": {"holders": renewed}}])
        if done.matched_count:
            self._sure_until = began + self._seconds
            return
        lease = await self._leases.find_one({"_id": self.name}) or {}
        by = "".join(f": {holder}" for holder in _holders(lease)[:1])
        self._error = LeaseLost(
            f"{self.name}: this process did not renew its lease for {self._seconds:g} s, and "
            f"another process has taken over{by}. It stopped writing"
        )
        raise self._error

    async def _try_to_take(self, shared: str, dead: Sequence[str]) -> Document:
        """Return the document after an attempt; dead: ids of holders to ignore."""
        others: Document = {"$not": {"$in": ["$$this.id", [self._id, *dead]]}}
        stored = {"$ifNull": ["$holders", []]}
        counted = {"$filter": {"input": stored, "cond": {"$and": [IN_TIME, others]}}}
        is_free = {"$eq": ["$holders", []]}
        raised = {"$add": [{"$ifNull": ["$number", 0]}, 1]}
        is_ours = {"$eq": ["$shared", {"$literal": shared}]} if shared else is_free
        joined = {"$concatArrays": ["$holders", [self._as_holder(None)]]}
        stages: list[Document] = [
            {"$set": {"holders": counted}},
            {
                "$set": {
                    "number": {"$cond": [is_free, raised, "$number"]},
                    "shared": {"$cond": [is_free, {"$literal": shared}, "$shared"]},
                    "reserved": {"$cond": [is_free, 0, {"$ifNull": ["$reserved", 0]}]},
                }
            },
            {"$set": {"holders": {"$cond": [is_ours, joined, "$holders"]}}},
        ]
        while True:
            # If two processes insert the document concurrently, the later one tries again.
            with suppress(DuplicateKeyError):
                lease = await self._leases.find_one_and_update(
                    {"_id": self.name}, stages, upsert=True, return_document=ReturnDocument.AFTER
                )
                return lease or {}

    def _as_holder(self, since: datetime | None) -> Document:
        """Return this process as an expression; since: None means from now on."""
        identity = {"id": self._id} | this_process()
        return {
            **{name: {"$literal": value} for name, value in identity.items()},
            "since": since or "$$NOW",
            "until": {"$add": ["$$NOW", int(self._seconds * 1000)]},
        }


@asynccontextmanager
async def held(db: Database, config: Config, name: str, busy: str) -> AsyncIterator[None]:
    """Hold a lease during a block; raise Busy, and LeaseLost if it was lost."""
    lease = Lease(db, name, config.lease_seconds, MongoRetry(0))
    task, lost = asyncio.current_task(), list[LeaseLost]()
    assert task is not None

    def stop(error: LeaseLost) -> None:
        lost.append(error)
        task.cancel()

    await lease.take(busy)
    lease.keep(stop)
    try:
        yield
    except asyncio.CancelledError:
        if lost and not task.uncancel():
            raise lost[0] from None
        raise
    finally:
        await lease.release()


async def active(db: Database, names: str) -> dict[str, list[Holder]]:
    """Return the current holders of leases by name; a shared run has several.

    names: prefix of the names
    """
    query: Document = {"_id": {"$gte": names, "$lt": f"{names}\uffff"}}
    return {lease["_id"]: holders async for lease, holders in _held(db, query)}


async def is_held(db: Database, name: str) -> bool:
    """Return whether a process holds a lease."""
    async for _ in _held(db, {"_id": name}):
        return True
    return False


async def reserved(db: Database, spiders: Sequence[str]) -> int:
    """Return the number of requests that the current runs of these spiders have reserved."""
    query: Document = {"_id": {"$in": [f"{CRAWL}{spider}" for spider in spiders]}}
    return sum([lease.get("reserved", 0) async for lease, _ in _held(db, query)])


async def refuse_second(db: Database, name: str, busy: str, *, shares: bool) -> None:
    """Raise Busy if another process holds a lease; do not take it.

    shares: workers may share the work, so a shared lease is not an obstacle
    """
    async for lease, holders in _held(db, {"_id": name}):
        if not (shares and lease["shared"]):
            raise Busy(_refusal(busy, holders, lease["shared"], "shares" if shares else ""))


async def _held(db: Database, query: Document) -> AsyncIterator[tuple[Document, list[Holder]]]:
    """Yield leases in the order of their names, each with its current holders, at least one."""
    stages: list[Document] = [
        {"$match": query},
        {"$set": {"holders": {"$filter": {"input": "$holders", "cond": IN_TIME}}}},
        {"$sort": {"_id": 1}},
    ]
    async for lease in await db.leases.aggregate(stages):
        if holders := [holder for holder in _holders(lease) if not holder.has_died]:
            yield lease, holders


def _refusal(busy: str, holders: Sequence[Holder], theirs: str, ours: str) -> str:
    """Return the message of Busy; theirs, ours: ids of the Redis that workers share, if any."""
    more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    message = f"{busy} on {holders[0]}{more}"
    if not ours:
        return f"{message}{Busy.ENDING}"
    way = "shared through another Redis" if theirs else "not shared because it has no REDIS_URL"
    return f"{message}; that run is {way}"


def _holders(lease: Document) -> list[Holder]:
    names = Holder.__slots__
    return [Holder(**{name: row[name] for name in names}) for row in lease.get("holders", ())]


async def claim_job(db: Database, work: str, now: datetime, apart: timedelta) -> bool:
    """Claim a periodic job; return False if a machine started it less than `apart` ago."""
    query: Document = {"_id": f"job {work}", "at": {"$lte": now - apart}}
    try:
        await db.meta.update_one(query, {"$set": {"at": now}}, upsert=True)
    except DuplicateKeyError:
        # The upsert collides with the existing document, which has a later start.
        return False
    return True


def new_fence(now: datetime) -> int:
    """Return the fence of a new target, higher than that of a deleted target with its key."""
    return int(now.timestamp()) * FENCES_OF_A_VISIT


def fence_after(number: int) -> int:
    """Return the fence of a target after the visit with this number is acknowledged."""
    return first_fence(number) + FENCES_OF_A_VISIT


def first_fence(number: int) -> int:
    """Return the lowest fence of all attempts at the same visit."""
    return number - number % FENCES_OF_A_VISIT


def unless_passed(number: int, field: str = "fence") -> Document:
    """Return a condition: no process wrote the document with a higher number."""
    return {field: {"$not": {"$gt": number}}}


def fence_of(target: Target) -> tuple[str, int]:
    """Return the field of a post's signature for a target's number, and the number.

    A feed's post is stored by its feed and by its page, which have independent numbers.
    """
    return "page_fence" if target.post else "fence", target.fence


def same_fence(number: int) -> Document:
    """Return a condition: the target has this number. A missing number counts as 0."""
    return {"fence": number or {"$in": [0, None]}}


async def write_unless_passed(
    collection: AsyncCollection[Document], updates: Sequence[UpdateOne]
) -> None:
    """Apply updates; upserts of documents with a higher number change nothing."""
    if not updates:
        return
    try:
        await collection.bulk_write(updates, ordered=False)
    except BulkWriteError as error:
        # Upserts of these documents find another one with their `_id`.
        duplicate_keys(error)
