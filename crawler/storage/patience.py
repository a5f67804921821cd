"""Patience with a server that is unavailable: ask again, with growing pauses, for a time.

Unavailable is a server that cannot be reached, does not answer in time, is shutting down, or cannot
write because its disk is full. All of these are the server's, never a page's.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from pymongo.errors import BulkWriteError, ConnectionFailure, OperationFailure, PyMongoError

from crawler.errors import StorageError, Unreachable
from crawler.outages import Outage

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
