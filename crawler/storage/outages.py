"""Retries while a server is unavailable, and helpers for writes in batches.

A server is unavailable if it cannot be reached, does not answer in time, is shutting down, or
cannot write because its disk is full. Such errors are never caused by a page.
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
from typing import TYPE_CHECKING, ClassVar, TypeVar

from pymongo import UpdateMany
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, ConnectionFailure, OperationFailure, PyMongoError

from crawler.errors import StorageError, Unreachable

if TYPE_CHECKING:
    from crawler.storage.client import Document

# Calls to MongoDB may include claims in Redis, whose errors name the server's address.
MONGODB, REDIS = "MongoDB", "Redis"
# Pause before the second attempt of a call; doubles with each further attempt.
FIRST_PAUSE_SECONDS = 0.1
# Interval of log lines during an outage.
LOG_INTERVAL_SECONDS = 60.0
# Longer than any pause between attempts: without a failure for this time, no call is retrying.
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
# Error of a call whose connection the driver closed after a missed heartbeat.
CANCELLED = "operation cancelled"
# InternalError, UnknownError (WiredTiger's errors), FileStreamFailed and failed writes of
# temporary files: the text names the cause. Messages of other codes may quote a page.
OF_FILES = frozenset({1, 8, 39, 16814, 16821})
FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large|open/extend")
DISK_FULL = "its disk is full. Free some space; writes are retried until then"
DUPLICATE_KEY = 11000

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Item = TypeVar("Item")


@dataclass(slots=True)
class Outage:
    """Track whether a server is unavailable, and since when.

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
        """Return whether the outage is in progress."""
        return self._began is not None

    def lasts(self, now: float, reason: str, max_seconds: float) -> None:
        """Record a failed attempt at `now`, in seconds of a monotonic clock.

        reason: in one line; max_seconds: maximum time of all attempts
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
        """Record a successful call at `now`; return whether it ended an outage.

        has_failed: whether an attempt of this call failed before. The success of another call does
        not end an outage: a server with a full disk can still be read.
        """
        if self._began is None or not (has_failed or now > self._failed_at + QUIET_SECONDS):
            return False
        self.logger.warning("%s available again after %.0f s", self.name, now - self._began)
        self._began, self.ended_at = None, now
        return True


class Retrying(ABC):
    """Calls to a server, repeated with growing pauses while the server is unavailable.

    seconds: time without success after which the call fails
    outage:  current state of the server, as logged
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    max_pause_seconds: ClassVar[float]

    def __init__(self, seconds: float, outage: Outage) -> None:
        self.seconds = seconds
        self.outage = outage

    def hurry(self) -> None:
        """Stop waiting for an unavailable server."""
        self.seconds = 0.0

    async def ask(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `call`, which must be safe to repeat.

        Raises Unreachable if the server stays unavailable; other errors of the driver propagate.
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
        """Record a failed attempt of a call that began then; raise if it was the last."""


class MongoRetry(Retrying):
    """Retries of calls to MongoDB, which also restart the embedded server.

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
        # With 0 seconds the call fails before a started server could answer.
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
        """Call as `ask` does, and raise all other errors of the driver as StorageError."""
        try:
            return await self.ask(call)
        except PyMongoError as error:
            raise StorageError(f"MongoDB: {in_short(error)}") from None


def why_unavailable(error: Exception) -> str | None:
    """Return why the server is temporarily unavailable, in one line; None for other errors."""
    if isinstance(error, Unreachable):
        return str(error)
    if not isinstance(error, PyMongoError):
        return None
    if isinstance(error, ConnectionFailure):
        text = in_short(error)
        return "no response, the driver closed its connections" if text == CANCELLED else text
    # The errors of a command, or of the single writes of a bulk.
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
    """Return the first part of a driver's message, in one line."""
    return " ".join(str(error).split(" (configured")[0].split())[:200]


def in_batches(values: Sequence[Result], size: int) -> Iterator[list[Result]]:
    """Yield `values` in lists of at most `size`: a query of 50,000 URLs is too large."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


async def in_batches_by_size(
    documents: AsyncIterable[Item], size_of: Callable[[Item], int], count: int, size: int
) -> AsyncIterator[list[Item]]:
    """Yield `documents` in lists of at most `count`, or until their sizes reach `size`."""
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
    """Yield writes that add values to an array, which keeps the newest `most` distinct ones.

    Pages control the number of values, and a document is limited to 16 MB.
    """
    for value in values:
        added = {"$each": [value], "$slice": -most}
        yield UpdateMany(query | {field: {"$ne": value}}, {"$push": {field: added}})


async def all_of(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """Return the results of concurrent calls; after an error, wait for the others and raise it."""
    done = await asyncio.gather(*works, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return [result for result in done if not isinstance(result, BaseException)]


async def insert_new(collection: AsyncCollection[Document], documents: list[Document]) -> int:
    """Insert the documents whose `_id` is new; return their number."""
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
    """Raise StorageError for errors of the driver; advice: a hint for the user."""
    try:
        yield
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {in_short(error)}{advice and f' ({advice})'}") from None


@contextmanager
def raising_unreachable() -> Iterator[None]:
    """Raise Unreachable while the server is unavailable; other errors of the driver propagate."""
    try:
        yield
    except PyMongoError as error:
        reason = why_unavailable(error)
        if reason is None:
            raise
        raise Unreachable(f"MongoDB: {reason}") from None
