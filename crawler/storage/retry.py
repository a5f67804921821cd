"""Patience with a server that is unavailable: ask again, with growing pauses, for a time.

Unavailable is a server that cannot be reached, does not answer in time, is shutting down, or cannot
write because its disk is full. All of these are the server's, never a page's.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from pymongo import UpdateMany
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, ConnectionFailure, OperationFailure, PyMongoError

from crawler.errors import StorageError, Unreachable
from crawler.storage.client import Document

# Between two lines about an outage that goes on.
SAY_SECONDS = 60.0
# Longer than between two attempts of a call: without a failure for so long, no call retries.
QUIET_SECONDS = 15.0


@dataclass(slots=True)
class Outage:
    """Whether a server is unavailable, and since when.

    logger: of the module that retries
    name:   of the server, as a line begins with it
    count:  outages so far
    """

    logger: logging.Logger
    name: str
    count: int = 0
    _began: float | None = None
    _said: float = 0.0
    _failed: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it lasts."""
        return self._began is not None

    def lasts(self, now: float, reason: str, max_seconds: float) -> None:
        """Note an attempt that failed at `now`, in seconds of a clock that never goes back.

        reason: in one line; max_seconds: how long attempts go on
        """
        self._failed = now
        if self._began is None:
            self.count += 1
            self._began = self._said = now
            self.logger.warning(
                "%s unavailable, retrying for up to %.0f s: %s", self.name, max_seconds, reason
            )
        elif now >= self._said + SAY_SECONDS:
            self._said = now
            self.logger.warning(
                "%s still unavailable after %.0f s, retrying: %s",
                self.name, now - self._began, reason,
            )  # fmt: skip

    def succeeds(self, now: float, *, has_failed: bool) -> bool:
        """Note that a call succeeded at `now`; whether that ended an outage.

        has_failed: whether an attempt of this call failed before. The success of another call says
        little: a server without room for writes can be read.
        """
        if self._began is None or not (has_failed or now > self._failed + QUIET_SECONDS):
            return False
        self.logger.warning("%s available again after %.0f s", self.name, now - self._began)
        self._began = None
        return True


logger = logging.getLogger(__name__)
Result = TypeVar("Result")
# Claims may be in Redis: its client says by itself where the server is.
MONGODB, REDIS = "MongoDB", "Redis"
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
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


@dataclass(slots=True)
class Patience:
    """How long to bear with a server, and how to bring it back.

    seconds: after this long without success the call fails
    revive:  starts the embedded server again; does nothing for a server by URI
    counts:  `retries` so far
    outage:  what the log says of it
    """

    seconds: float
    revive: Callable[[], Awaitable[None]]
    counts: Counter[str] = field(default_factory=Counter)
    outage: Outage = field(default_factory=lambda: Outage(logger, MONGODB))

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
            except (PyMongoError, Unreachable) as error:
                if (reason := why_unavailable(error)) is None:
                    raise
                name = REDIS if isinstance(error, Unreachable) else MONGODB
            else:
                self.outage.succeeds(now(), has_failed=has_failed)
                return result
            has_failed = True
            self.outage.name = name
            reason = await self._why_dead() or reason
            if now() > began + self.seconds:
                raise Unreachable(f"{name} unavailable for {now() - began:.0f} s: {reason}")
            self.outage.lasts(now(), reason, self.seconds)
            self.counts["retries"] += 1
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)

    async def _why_dead(self) -> str:
        """Why the embedded server cannot be brought back now; empty if it runs, or nobody waits."""
        if not self.seconds:
            return ""
        try:
            await self.revive()
        except StorageError as error:
            return str(error)
        return ""

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
    answers = list(_answers(error))
    if any(_is_full(code, text) for code, text in answers):
        return DISK_FULL
    if error.timeout or any(code in UNAVAILABLE for code, _ in answers):
        return in_short(error)
    return None


def _answers(error: PyMongoError) -> Iterator[tuple[int | None, str]]:
    """Code and text of all that a server said of a command, or of the single writes of a bulk."""
    if isinstance(error, BulkWriteError):
        for kind in ("writeErrors", "writeConcernErrors"):
            for problem in error.details.get(kind, ()):
                yield problem.get("code"), str(problem.get("errmsg", ""))
    elif isinstance(error, OperationFailure):
        yield error.code, str((error.details or {}).get("errmsg", error))


def _is_full(code: int | None, text: str) -> bool:
    return code == OUT_OF_DISK_SPACE or (code in OF_FILES and FULL.search(text) is not None)


def in_short(error: PyMongoError) -> str:
    """The first part of a driver's message, in one line."""
    return " ".join(str(error).split(" (configured")[0].split())[:200]


Value = TypeVar("Value")
DUPLICATE_KEY = 11000


def in_batches(values: Sequence[Value], size: int) -> Iterator[list[Value]]:
    """`values` in lists of `size` at most: a query of 50,000 URLs would be too large."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


def keep_newest(
    query: Document, field: str, values: Iterable[str], most: int
) -> Iterator[UpdateMany]:
    """The writes that add values to an array, which keeps the newest `most` without repetitions.

    Other people's pages decide how many there are, and a document has 16 MB at most.
    """
    for value in values:
        added = {"$each": [value], "$slice": -most}
        yield UpdateMany(query | {field: {"$ne": value}}, {"$push": {field: added}})


async def all_of(works: Iterable[Awaitable[Value]]) -> list[Value]:
    """The results of works that go on at once; where one fails the others end before it is told."""
    done = await asyncio.gather(*works, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]


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
def told(advice: str = "") -> Iterator[None]:
    """Raise StorageError for what the driver raises; advice: what to do then."""
    try:
        yield
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {in_short(error)}{advice and f' ({advice})'}") from None
