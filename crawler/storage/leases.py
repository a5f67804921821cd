"""`leases`: who does what only one may do at a time, one document for each such piece of work.

A lease ends by the server's time (`$$NOW`), so the clocks of the machines do not matter. Its holder
renews it; where the holder's process has died on this machine, the next one takes over immediately,
else once the lease has ended. Each new owner raises `number`: whoever finds another number than its
own has lost the lease, and stops.

The workers of a run that is shared through Redis hold its lease together, by the id of that Redis.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError, PyMongoError

from crawler.config import Config
from crawler.errors import Busy, LeaseLost
from crawler.storage.client import Database, Document
from crawler.storage.retry import Patience
from crawler.utils import tasks
from crawler.utils.time import steady_seconds

logger = logging.getLogger(__name__)
CRAWL, CHECK = "crawl ", "duplicates check "
REPLAN, REBUILD, PUSH = "replan", "duplicates rebuild", "feeds push"
# Of the lease: when it is renewed, so that two renewals may fail.
RENEW_SHARE = 0.3
RELEASE_SECONDS = 3.0
# Leases of holders that died on this machine are taken over one after the other.
MAX_TRIES = 5
PROC = Path("/proc")
# Of the fields behind the name in /proc/PID/stat: the state, and when the process was started.
STATE, STARTED = 0, 19
ENDED = ("Z", "X")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lease.

    place, began: of the process: where its pid means something, and when it was started
    since, until: by the server's time
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
        """Whether its process is known to have ended; one of another machine never is."""
        return has_ended(self.place, self.pid, self.began)


class Lease:
    """The right of this process to do one piece of work.

    name:     of the work; `CRAWL` and the name of a spider for a run
    seconds:  after which it ends if it is not renewed
    number:   of this owner, 0 until it is taken; it only ever grows
    """

    def __init__(self, db: Database, name: str, seconds: float, patience: Patience) -> None:
        self.name, self.number = name, 0
        self._leases, self._seconds, self._patience = db.leases, seconds, patience
        self._id = secrets.token_hex(8)
        self._since: datetime | None = None
        self._sure_until = 0.0
        self._error: LeaseLost | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def take(self, busy: str, shared: str = "") -> None:
        """Take the lease; raises Busy, which says `busy` and who holds it.

        shared: id of the Redis through which workers share this work, empty where nobody does
        """
        gone: list[str] = []
        for _ in range(MAX_TRIES):
            began = steady_seconds()
            found = await self._patience.read(partial(self._ask_for, shared, gone))
            holders = _holders(found)
            if own := [one for one in holders if one.id == self._id]:
                self.number, self._since = found["number"], own[0].since
                self._sure_until = began + self._seconds
                return
            if not (died := [one.id for one in holders if one.has_died]):
                break
            gone += died
        raise Busy(_refusal(busy, holders, found["shared"], shared))

    def keep(self, lost: Callable[[LeaseLost], None]) -> None:
        """Renew the lease from now on; `lost` is called once another process has it."""
        self._keeping = asyncio.create_task(self._keep(lost))

    async def release(self) -> None:
        """Give the lease back; harmless where it was lost, and where the server is unavailable."""
        if self._keeping is not None:
            await tasks.end(self._keeping)
        if self.number:
            own: Document = {"$pull": {"holders": {"id": self._id}}}
            # A lease that cannot be given back ends on its own.
            with suppress(PyMongoError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._leases.update_one({"_id": self.name}, own)

    @property
    def is_sure(self) -> bool:
        """Whether the last renewal is so recent that no other process can have the lease."""
        return self._error is None and steady_seconds() <= self._sure_until

    async def still_holds(self, key: str = "") -> bool:
        """Whether this process has the lease, and so all targets; asks unless that is sure."""
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
                # Nothing is written without a lease that is sure.
                logger.debug("The lease of %s was not renewed: %s", self.name, error)

    async def _renew(self) -> None:
        if self._error is not None:
            raise self._error
        began = steady_seconds()
        others = {"$filter": {"input": "$holders", "cond": {"$ne": ["$$this.id", self._id]}}}
        renewed = {"$concatArrays": [others, [self._as_holder(self._since)]]}
        query: Document = {"_id": self.name, "number": self.number}
        done = await self._leases.update_one(query, [{"$set": {"holders": renewed}}])
        if done.matched_count:
            self._sure_until = began + self._seconds
            return
        found = await self._leases.find_one({"_id": self.name}) or {}
        by = "".join(f": {one}" for one in _holders(found)[:1])
        self._error = LeaseLost(
            f"{self.name}: this process was not heard of for {self._seconds:g} s, and another has "
            f"taken over{by}. Nothing more is written"
        )
        raise self._error

    async def _ask_for(self, shared: str, gone: Sequence[str]) -> Document:
        """The document after an attempt; `gone` names holders that do not count."""
        counts: Document = {
            "$and": [
                IN_TIME,
                {"$not": {"$in": ["$$this.id", [self._id, *gone]]}},
            ]
        }
        there = {"$ifNull": ["$holders", []]}
        is_free = {"$eq": ["$holders", []]}
        raised = {"$add": [{"$ifNull": ["$number", 0]}, 1]}
        ours = {"$eq": ["$shared", {"$literal": shared}]} if shared else is_free
        joined = {"$concatArrays": ["$holders", [self._as_holder(None)]]}
        stages: list[Document] = [
            {"$set": {"holders": {"$filter": {"input": there, "cond": counts}}}},
            {
                "$set": {
                    "number": {"$cond": [is_free, raised, "$number"]},
                    "shared": {"$cond": [is_free, {"$literal": shared}, "$shared"]},
                }
            },
            {"$set": {"holders": {"$cond": [ours, joined, "$holders"]}}},
        ]
        while True:
            # Two that insert the document at the same moment: the later one finds it there.
            with suppress(DuplicateKeyError):
                query, after = {"_id": self.name}, ReturnDocument.AFTER
                return (
                    await self._leases.find_one_and_update(
                        query, stages, upsert=True, return_document=after
                    )
                    or {}
                )

    def _as_holder(self, since: datetime | None) -> Document:
        """Return this process as an expression; since: None means from now on."""
        said = {"id": self._id} | this_process()
        until = {"$add": ["$$NOW", int(self._seconds * 1000)]}
        return {
            **{name: {"$literal": value} for name, value in said.items()},
            "since": since or "$$NOW",
            "until": until,
        }


@asynccontextmanager
async def held(db: Database, config: Config, name: str, busy: str) -> AsyncIterator[None]:
    """Hold a lease for the length of a block; raises Busy, and LeaseLost where it was lost."""
    lease = Lease(db, name, config.lease_seconds, Patience(0, _nothing))
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


async def at_work(db: Database, names: str) -> dict[str, list[Holder]]:
    """Who holds leases now, by the name of the work; the workers of a shared run hold one together.

    names: with which the names begin
    """
    stages: list[Document] = [
        {"$match": {"_id": {"$gte": names, "$lt": f"{names}\uffff"}}},
        {"$set": {"holders": {"$filter": {"input": "$holders", "cond": IN_TIME}}}},
        {"$sort": {"_id": 1}},
    ]
    found = {row["_id"]: _holders(row) async for row in await db.leases.aggregate(stages)}
    alive = {work: [one for one in some if not one.has_died] for work, some in found.items()}
    return {work: some for work, some in alive.items() if some}


async def refuse_second(db: Database, name: str, busy: str, *, shares: bool) -> None:
    """Raise Busy where a piece of work cannot be begun now, without a lease on it.

    shares: workers may share it, so that only work that nobody shares is in the way
    """
    found = await db.leases.find_one({"_id": name}) or {}
    if shares and found.get("shared"):
        return
    if by := (await at_work(db, name)).get(name):
        raise Busy(_refusal(busy, by, found["shared"], "shares" if shares else ""))


IN_TIME: Document = {"$gt": ["$$this.until", "$$NOW"]}


def this_process() -> Document:
    """Return what tells this process from all others, as documents name their owners."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(), "pid": pid, "place": _place(), "began": _state(pid)[1],
    }  # fmt: skip


def has_ended(place: str, pid: int, began: str) -> bool:
    """Return whether a process is known to have ended; of another machine nothing is known."""
    return place == _place() and not _is_alive(pid, began)


def _refusal(busy: str, by: Sequence[Holder], theirs: str, ours: str) -> str:
    """Return who holds a lease; theirs, ours: through which Redis the work is shared."""
    more = f" and {len(by) - 1} more" if len(by) > 1 else ""
    said = f"{busy} on {by[0]}{more}"
    if not ours:
        return f"{said}; nothing to do"
    way = "shared through another Redis" if theirs else "not shared, as it has no REDIS_URL"
    return f"{said}; that run is {way}"


def _holders(found: Document) -> list[Holder]:
    names = Holder.__slots__
    return [Holder(**{name: one[name] for name in names}) for one in found.get("holders", ())]


def _place() -> str:
    """The system since its start and its numbers of processes: a pid means nothing elsewhere."""
    try:
        booted = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{booted} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def _state(pid: int) -> tuple[str, str]:
    """State and start of a process; both empty where it is gone, or nothing is told of it."""
    try:
        said = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = said.rpartition(")")[2].split()
    return fields[STATE], fields[STARTED]


def _is_alive(pid: int, began: str) -> bool:
    """Whether the process that was started then is at work yet; numbers are given again."""
    if began:
        state, started = _state(pid)
        return started == began and state not in ENDED
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def _nothing() -> Any:
    """The server is another's to bring back."""
