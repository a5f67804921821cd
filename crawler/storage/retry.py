"""Patience with a server that is unavailable, and small helpers for writes in batches.

Unavailable is a server that cannot be reached, does not answer in time, is shutting down, or cannot
write because its disk is full. All of these are the server's, never a page's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from pymongo import UpdateMany
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, ConnectionFailure, OperationFailure, PyMongoError

from crawler.errors import StorageError, Unreachable
from crawler.storage.client import Document

# Claims may be in Redis, whose errors name the address of the server.
MONGODB, REDIS = "MongoDB", "Redis"
# Before the second attempt of a call; the pause doubles with each further one.
FIRST_PAUSE_SECONDS = 0.1
# Between two lines about an outage that goes on.
LOG_INTERVAL_SECONDS = 60.0
# Longer than between two attempts of a call: without a failure for so long, no call retries.
QUIET_SECONDS = 15.0
# InterruptedAtShutdown, InterruptedDueToReplStateChange, ShutdownInProgress, PrimarySteppedDown,
# NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary, HostUnreachable,
# HostNotFound, NetworkTimeout, SocketException: the driver recognizes them in the answer to a
# command, not in the errors of a bulk's single writes. MaxTimeMSExpired, WriteConcernFailed
# (wtimeout) and ExceededTimeLimit are timeouts.
UNAVAILABLE = frozenset(
    {11600, 11602, 91, 189, 10107, 13435, 13436, 6, 7, 89, 9001, 50, 64, 262}
)  # fmt: skip
OUT_OF_DISK_SPACE = 14031
# The driver of a call whose connection it closed, as the server did not answer its heartbeat.
CANCELLED = "operation cancelled"
# InternalError, UnknownError (what WiredTiger cannot do), FileStreamFailed and failed writes of
# temporary files: the text names the cause. Messages of other codes may quote a page.
OF_FILES = frozenset({1, 8, 39, 16814, 16821})
FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large|open/extend")
DISK_FULL = "its disk is full. Make room; writes are repeated until there is some"
DUPLICATE_KEY = 11000

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Item = TypeVar("Item")


@dataclass(slots=True)
class Outage:
    """Whether a server is unavailable, and since when.

    logger:   of the module that retries
    name:     of the server, as a line begins with it
    count:    outages so far
    ended_at: when the last one ended
    """

    logger: logging.Logger
    name: str
    count: int = 0
    ended_at: float = -math.inf
    _began: float | None = None
    _logged_at: float = 0.0
    _failed_at: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it lasts."""
        return self._began is not None

    def lasts(self, now: float, reason: str, max_seconds: float) -> None:
        """Note an attempt that failed at `now`, in seconds of a clock that never goes back.

        reason: in one line; max_seconds: how long attempts go on
        """
        self._failed_at = now
        if self._began is None:
            self.count += 1
            self._began = self._logged_at = now
            self.logger.warning(
                "%s unavailable, retrying for up to %.0f s: %s", self.name, max_seconds, reason
            )
        elif now >= self._logged_at + LOG_INTERVAL_SECONDS:
            self._logged_at = now
            self.logger.warning(
                "%s still unavailable after %.0f s, retrying: %s",
                self.name, now - self._began, reason,
            )  # fmt: skip

    def succeeds(self, now: float, *, has_failed: bool) -> bool:
        """Note that a call succeeded at `now`; whether that ended an outage.

        has_failed: whether an attempt of this call failed before. The success of another call
        proves little: a server without room for writes can be read.
        """
        if self._began is None or not (has_failed or now > self._failed_at + QUIET_SECONDS):
            return False
        self.logger.warning("%s available again after %.0f s", self.name, now - self._began)
        self._began, self.ended_at = None, now
        return True


class Retrying(ABC):
    """Calls a server, and again with growing pauses while the server is unavailable.

    seconds: after this long without success the call fails
    outage:  whether the server is unavailable, as logged
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    max_pause_seconds: ClassVar[float]

    def __init__(self, seconds: float, outage: Outage) -> None:
        self.seconds = seconds
        self.outage = outage

    def hurry(self) -> None:
        """Wait no longer for a server that is unavailable."""
        self.seconds = 0.0

    async def ask(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `call`, which has to be safe to repeat.

        Raises Unreachable when the server stays unavailable; other errors of the driver pass.
        """
        now = asyncio.get_running_loop().time
        began, pause_seconds = now(), FIRST_PAUSE_SECONDS
        has_failed = False
        while True:
            try:
                result = await call()
            except self.errors as error:
                await self._failed(error, began)
                has_failed = True
            else:
                self.outage.succeeds(now(), has_failed=has_failed)
                return result
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, self.max_pause_seconds)

    @abstractmethod
    async def _failed(self, error: Exception, began: float) -> None:
        """Note that an attempt failed of a call that began then; raises where it is the last."""


class MongoRetry(Retrying):
    """How long to bear with MongoDB, and how to bring it back.

    revive: starts the embedded server again; does nothing for a server by URI; None: not needed
    counts: `retries` so far
    """

    errors = (PyMongoError, Unreachable)
    max_pause_seconds = 5.0

    def __init__(self, seconds: float, revive: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(seconds, Outage(logger, MONGODB))
        self._revive = revive
        self.counts: Counter[str] = Counter()

    async def _failed(self, error: Exception, began: float) -> None:
        reason = why_unavailable(error)
        if reason is None:
            raise error
        self.outage.name = REDIS if isinstance(error, Unreachable) else MONGODB
        # Nobody waits for a server that would be started after the call has failed.
        if self.seconds and self._revive is not None:
            try:
                await self._revive()
            except StorageError as problem:
                reason = str(problem) or reason
        now = asyncio.get_running_loop().time()
        if now > began + self.seconds:
            lasted = f"{self.outage.name} unavailable for {now - began:.0f} s"
            raise Unreachable(f"{lasted}: {reason}") from None
        self.outage.lasts(now, reason, self.seconds)
        self.counts["retries"] += 1

    async def read(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """As `ask`, with every error of the driver as a StorageError."""
        try:
            return await self.ask(call)
        except PyMongoError as error:
            raise StorageError(f"MongoDB: {in_short(error)}") from None


def why_unavailable(error: Exception) -> str | None:
    """Why the server cannot do now what it could do later, in one line; None for other errors."""
    if isinstance(error, Unreachable):
        return str(error)
    if not isinstance(error, PyMongoError):
        return None
    if isinstance(error, ConnectionFailure):
        text = in_short(error)
        return "no answer, the driver gave its connections up" if text == CANCELLED else text
    # What the server said of a command, or of the single writes of a bulk.
    answers: list[tuple[int | None, str]] = []
    if isinstance(error, BulkWriteError):
        for kind in ("writeErrors", "writeConcernErrors"):
            answers += [
                (p.get("code"), str(p.get("errmsg", ""))) for p in error.details.get(kind, ())
            ]
    elif isinstance(error, OperationFailure):
        answers.append((error.code, str((error.details or {}).get("errmsg", error))))
    for code, text in answers:
        if code == OUT_OF_DISK_SPACE or (code in OF_FILES and FULL.search(text)):
            return DISK_FULL
    if error.timeout or any(code in UNAVAILABLE for code, _ in answers):
        return in_short(error)
    return None


def in_short(error: PyMongoError) -> str:
    """The first part of a driver's message, in one line."""
    return " ".join(str(error).split(" (configured")[0].split())[:200]


def in_batches(values: Sequence[Result], size: int) -> Iterator[list[Result]]:
    """`values` in lists of `size` at most: a query of 50,000 URLs would be too large."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


async def in_batches_by_size(
    documents: AsyncIterable[Item], size_of: Callable[[Item], int], count: int, size: int
) -> AsyncIterator[list[Item]]:
    """`documents` in lists of `count` at most, shorter where their sizes add up to `size`."""
    batch: list[Item] = []
    total = 0
    async for document in documents:
        batch.append(document)
        total += size_of(document)
        if len(batch) == count or total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def keep_newest(
    query: Document, field: str, values: Iterable[str], most: int
) -> Iterator[UpdateMany]:
    """The writes that add values to an array, which keeps the newest `most` without repetitions.

    Other people's pages decide how many there are, and a document has 16 MB at most.
    """
    for value in values:
        added = {"$each": [value], "$slice": -most}
        yield UpdateMany(query | {field: {"$ne": value}}, {"$push": {field: added}})


async def all_of(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of concurrent works; where one fails, the others end before it is raised."""
    done = await asyncio.gather(*works, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return [result for result in done if not isinstance(result, BaseException)]


async def insert_new(collection: AsyncCollection[Document], documents: list[Document]) -> int:
    """Insert those documents whose `_id` is not there yet; how many were."""
    if not documents:
        return 0
    try:
        await collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        problems = error.details["writeErrors"]
        if any(problem["code"] != DUPLICATE_KEY for problem in problems):
            raise
        return len(documents) - len(problems)
    return len(documents)


@contextmanager
def storage_errors(advice: str = "") -> Iterator[None]:
    """Raise StorageError for what the driver raises; advice: what to do then."""
    try:
        yield
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {in_short(error)}{advice and f' ({advice})'}") from None
