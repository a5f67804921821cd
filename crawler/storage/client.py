"""The connection to MongoDB: opening, version, clock, retries in outages, writes in batches.

The server is the one in MONGO_URI, or else the embedded one. It is unavailable if it cannot be
reached, does not answer in time, is shutting down, or cannot write because its disk is full. Such
errors are never caused by a page.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import (
    AsyncGenerator,
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
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, ClassVar, TypeVar, cast

from pymongo import AsyncMongoClient, DeleteOne, ReplaceOne, UpdateMany, UpdateOne, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.uri_parser import parse_uri

from crawler.config import Config
from crawler.errors import ClockError, ConfigError, StorageError, Unreachable
from crawler.storage.embedded import EmbeddedServer, low_disk_message
from crawler.utils.terminal import without_secrets
from crawler.utils.text import span
from crawler.utils.time import SERVER_TIME, steady_seconds

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
FILE_ERRORS = frozenset({1, 8, 39, 16814, 16821})
FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large|open/extend")
DISK_FULL = "its disk is full. Free some space; writes are retried until then"
DUPLICATE_KEY = 11000
# Unauthorized and AuthenticationFailed: the server's texts quote the whole command, or end there.
DENIED = {
    13: "not authorized. Add a user with the role readWrite to the URI: "
    "mongodb://USER:PASSWORD@HOST/DATABASE?authSource=admin",
    18: "authentication failed. Check user and password in the URI, and authSource, the database "
    "in which the user was created (often ?authSource=admin)",
}

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Item = TypeVar("Item")
Document = dict[str, Any]
Database = AsyncDatabase[Document]
# For writes that may be lost, or that a later journaled write confirms: the journal is ordered.
UNJOURNALED = WriteConcern(w=1, j=False)
CLOCK_SAMPLES = 3
# Interval between readings of the server's clock, in which two good clocks drift apart by about a
# millisecond.
CLOCK_SECONDS = 30.0
# Larger differences are logged as a wrong clock.
SKEW_SECONDS = 5.0
# MongoDB reports whole milliseconds.
CLOCK_RESOLUTION_SECONDS = 0.001
# The version of the stored data. Every command checks it, and `schema` is slow to import.
VERSION = 5
# The document of `meta` with the version. While restored collections replace the current ones, it
# also has their names.
META: Document = {"_id": "schema"}


def server_uri(config: Config) -> str:
    """Return a URI with a database name; start the embedded server if needed (blocking)."""
    if config.mongo_uri is None:
        return EmbeddedServer.of(config).start()
    return with_database(config.mongo_uri, config.database)


def with_database(uri: str, database: str) -> str:
    """Return MONGO_URI with the name of a database: its own, or else the given one."""
    try:
        parsed = parse_uri(uri)
    except (InvalidURI, ConfigurationError, ValueError) as error:
        raise ConfigError(f"MONGO_URI: {error}") from None
    if parsed["database"]:
        return uri
    head, mark, options = uri.partition("?")
    return f"{head.rstrip('/')}/{database}{mark}{options}"


def open_client(uri: str, config: Config) -> AsyncMongoClient[Document]:
    """Return a client that connects lazily and writes to the journal of a majority."""
    # Scrapy sets the root logger to DEBUG, at which the driver logs every command.
    logging.getLogger("pymongo").setLevel(logging.INFO)
    return AsyncMongoClient(
        uri,
        tz_aware=True,
        w="majority",
        journal=True,
        appname="freshet",
        serverSelectionTimeoutMS=int(config.mongo_timeout_seconds * 1000),
    )


async def check_reachable(client: AsyncMongoClient[Document], uri: str) -> None:
    """Raise Unreachable unless the server answers within the client's timeout."""
    try:
        await client.admin.command("ping")
    except ServerSelectionTimeoutError:
        seconds = client.options.server_selection_timeout
        raise Unreachable(
            f"MongoDB at {without_password(uri)}: no response within {seconds:g} s. Check "
            "MONGO_URI, or unset it to use the embedded server"
        ) from None
    except PyMongoError as error:
        raise Unreachable(f"MongoDB at {without_password(uri)}: {in_short(error)}") from None


def without_password(uri: str) -> str:
    """Return the URI without user, passwords and other secrets, for messages."""
    scheme, mark, address = uri.partition("://")
    return without_secrets(scheme + mark + address.rpartition("@")[2])


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The result of reading a server's clock.

    hello:         the server's answer, which includes the time
    ahead_seconds: this machine's clock minus the server's
    moved_seconds: correction of Freshet's time since the previous reading
    round_trips:   seconds of each request
    """

    hello: Document
    ahead_seconds: float
    moved_seconds: float
    round_trips: list[float]

    def refuse_beyond(self, config: Config) -> None:
        """Raise ClockError if the clocks differ by more than the settings allow."""
        seconds = abs(self.ahead_seconds)
        if seconds > config.max_clock_skew_seconds:
            raise ClockError(
                f"this machine's clock is {skew_text(self.ahead_seconds)} MongoDB's. Set the clock "
                "(timedatectl set-ntp true), or raise FRESHET_MAX_CLOCK_SKEW_SECONDS"
            )


async def read_clock(
    client: AsyncMongoClient[Document], samples: int = CLOCK_SAMPLES
) -> ClockReading:
    """Read the server's clock and follow it in this process; uses the fastest of the answers."""
    taken: list[tuple[float, float, float, Document]] = []
    for _ in range(samples):
        wall, began = time.time(), steady_seconds()
        hello = await client.admin.command("hello", codec_options=client.codec_options)
        taken.append((steady_seconds() - began, began, wall, hello))
    seconds, began, wall, hello = min(taken, key=itemgetter(0))
    # The server read its clock halfway through the request, plus or minus that half.
    server, half = hello["localTime"].astimezone(UTC), seconds / 2
    ahead = (datetime.fromtimestamp(wall, UTC) - server).total_seconds() + half
    moved = SERVER_TIME.follow(server, began + half, half + CLOCK_RESOLUTION_SECONDS)
    return ClockReading(hello, ahead, moved, [sample[0] for sample in taken])


async def follow_clock(client: AsyncMongoClient[Document]) -> None:
    """Read the server's clock at intervals, until cancelled."""
    while True:
        await asyncio.sleep(CLOCK_SECONDS)
        try:
            moved = (await read_clock(client)).moved_seconds
        except PyMongoError as error:
            logger.debug("MongoDB's clock not read: %s", error)
            continue
        if abs(moved) > SKEW_SECONDS:
            logger.warning("MongoDB's clock is now %s the time of this run", skew_text(moved))


def skew_text(ahead_seconds: float) -> str:
    """Return a text such as "3.2 h ahead of"; ahead_seconds: negative for "behind"."""
    seconds = abs(ahead_seconds)
    return f"{span(seconds)} {'ahead of' if ahead_seconds > 0 else 'behind'}"


async def disk_of(db: Database) -> tuple[int, int] | tuple[None, None]:
    """Return the free and the total bytes of the server's disk; None if it does not report them."""
    try:
        stats = await db.command("dbStats")
    except OperationFailure:
        return None, None
    # The server reports no disk for an empty database.
    if not stats.get("fsTotalSize"):
        return None, None
    return int(stats["fsTotalSize"] - stats["fsUsedSize"]), int(stats["fsTotalSize"])


async def low_disk(db: Database, config: Config) -> str | None:
    """Return the error message for a disk with too little space; None if it has enough.

    Returns None if the server does not report its disk. Raises StorageError without an answer.
    """
    if config.mongo_uri is None:
        folder = EmbeddedServer.of(config).folder
        free: int | None = (await asyncio.to_thread(shutil.disk_usage, folder)).free
        where = f"data folder {folder}"
    else:
        with storage_errors():
            free, _ = await disk_of(db)
        where = f"disk of MongoDB at {without_password(config.mongo_uri)}"
    return None if free is None else low_disk_message(where, free, config.min_free_mb)


@dataclass(slots=True)
class Outage:
    """Track whether a server is unavailable, and since when.

    logger:   of the module that retries
    name:     of the server, with which log messages begin
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

    def seconds(self, now: float) -> float:
        """Return how long the outage has lasted at `now`; 0 without an outage."""
        return 0.0 if self._began is None else now - self._began

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
    is_hurried: whether the grace period of this process is over
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    max_pause_seconds: ClassVar[float]

    def __init__(self, seconds: float, outage: Outage) -> None:
        self.seconds = seconds
        self.outage = outage
        self.is_hurried = False

    def hurry(self) -> None:
        """Stop waiting for an unavailable server."""
        self.seconds, self.is_hurried = 0.0, True

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

    errors = (PyMongoError,)
    max_pause_seconds = 5.0

    def __init__(self, seconds: float, revive: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(seconds, Outage(logger, "MongoDB"))
        self._revive = revive
        self.counts: Counter[str] = Counter()

    async def _failed(self, error: Exception, began: float) -> None:
        reason = why_unavailable(error)
        if reason is None:
            raise error
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
        with storage_errors():
            return await self.ask(call)


def why_unavailable(error: Exception) -> str | None:
    """Return why the server is temporarily unavailable, in one line; None for other errors."""
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
        if code == OUT_OF_DISK_SPACE or (code in FILE_ERRORS and FULL.search(text)):
            return DISK_FULL
    if error.timeout or any(code in UNAVAILABLE for code, _ in answers):
        return in_short(error)
    return None


def in_short(error: PyMongoError) -> str:
    """Return the first part of a driver's message, in one line; for a refusal, what to do."""
    if isinstance(error, OperationFailure) and error.code in DENIED:
        return DENIED[error.code]
    text = str(error).split(" (configured")[0].split(", full error")[0]
    return " ".join(text.split())[:200]


def in_batches(values: Sequence[Result], size: int) -> Iterator[list[Result]]:
    """Yield `values` in lists of at most `size`: a query of 50,000 URLs is too large."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


async def in_async_batches(
    documents: AsyncIterable[Item],
    count: int,
    size_of: Callable[[Item], int] = lambda _: 0,
    size: int = 1,
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
    query: Document, field: str, values: Iterable[str], limit: int
) -> Iterator[UpdateMany]:
    """Yield writes that add values to an array, which keeps the newest `limit` distinct ones.

    Pages control the number of values, and a document is limited to 16 MB.
    """
    for value in values:
        added = {"$each": [value], "$slice": -limit}
        yield UpdateMany(query | {field: {"$ne": value}}, {"$push": {field: added}})


async def all_of(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """Return the results of concurrent calls; after an error, wait for the others and raise it."""
    done = await asyncio.gather(*works, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return [result for result in done if not isinstance(result, BaseException)]


async def write_all(
    collection: AsyncCollection[Document],
    writes: Sequence[UpdateOne | UpdateMany | ReplaceOne[Document] | DeleteOne],
) -> int:
    """Apply writes in any order, if there are any; return the number of inserted documents."""
    if not writes:
        return 0
    return (await collection.bulk_write(writes, ordered=False)).upserted_count


async def aggregated(
    collection: AsyncCollection[Document], stages: Sequence[Document], **options: Any
) -> list[Document]:
    """Return all results of an aggregation."""
    return await (await collection.aggregate(stages, **options)).to_list(None)


async def raw_batches(
    collection: AsyncCollection[Document], stages: Sequence[Document], **options: Any
) -> AsyncGenerator[bytes]:
    """Yield the batches of an aggregation as the server sends them, without empty ones."""
    cursor = await collection.aggregate_raw_batches(list(stages), **options)
    async with cursor:
        # The server prepares the next batch while one is read.
        next_batch = asyncio.ensure_future(anext(cursor, None))
        while (batch := await next_batch) is not None:
            next_batch = asyncio.ensure_future(anext(cursor, None))
            # Sends the request before decoding blocks the event loop.
            await asyncio.sleep(0)
            if batch:
                yield cast(bytes, batch)


async def count_by(
    collection: AsyncCollection[Document], field: str, query: Document, **options: Any
) -> dict[Any, int]:
    """Count the documents of a query by the values of a field. options: of the aggregation."""
    stages: list[Document] = [
        {"$match": query}, {"$group": {"_id": f"${field}", "n": {"$sum": 1}}},
    ]  # fmt: skip
    return {row["_id"]: row["n"] async for row in await collection.aggregate(stages, **options)}


async def delete_or_count(
    collection: AsyncCollection[Document], query: Document, *, delete: bool
) -> int:
    """Delete the documents of a query, or only count them; return their number."""
    if delete:
        return (await collection.delete_many(query)).deleted_count
    return await collection.count_documents(query)


async def insert_new(collection: AsyncCollection[Document], documents: list[Document]) -> int:
    """Insert the documents whose `_id` is new; return their number."""
    if not documents:
        return 0
    try:
        await collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        return len(documents) - len(duplicate_keys(error))
    return len(documents)


def duplicate_keys(error: BulkWriteError) -> set[int]:
    """Return the positions of writes that a unique index refused; raise any other error."""
    problems = error.details["writeErrors"]
    if any(problem["code"] != DUPLICATE_KEY for problem in problems):
        raise error
    return {problem["index"] for problem in problems}


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
