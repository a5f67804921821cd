"""The service beside the web app: crawls of what is due, replans, prunes and notifications.

It is `scrapy refresh run --standby` in a process of its own, so it does nothing while another
service runs, and takes over when that one ends. The app starts it again if it fails. It ends with
the app, even if the app is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from datetime import datetime

from typing_extensions import TypedDict

from crawler.config import PROJECT
from crawler.storage import leases
from crawler.storage.client import Database
from crawler.utils.process import end_tasks

COMMAND = ("refresh", "run", "--standby", "--attached")
# Time until the service starts again; doubles with each failure in a row.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 300.0
# A service that ran for this time has not failed at its start.
STABLE_SECONDS = 60.0
# Time for the requests in flight, in addition to FRESHET_GRACE_SECONDS.
REST_SECONDS = 15.0


class ServiceState(TypedDict):
    """Whether something crawls what is due."""

    running: bool
    """Whether a service runs, in this app or elsewhere."""
    since: datetime | None
    """Time since which it runs; null if none does."""
    host: str | None
    """Machine on which it runs."""
    process: int | None
    """Its process id."""
    failure: str | None
    """How the service of this app ended, if it is about to start again."""
    can_start: bool
    """Whether this app can start it: none runs, and the app has not started it."""


class AppService:
    """Runs the service beside an app.

    settings:      `-s NAME=VALUE` words, to pass on
    grace_seconds: time for its requests in flight when it is to end
    """

    def __init__(self, settings: Sequence[str], grace_seconds: float) -> None:
        self._words = [sys.executable, "-m", "scrapy", *COMMAND, *settings]
        self._grace_seconds = grace_seconds
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._failure = ""

    @property
    def is_started(self) -> bool:
        """Return whether this app runs the service."""
        return self._task is not None

    def start(self) -> None:
        """Start the service, unless it has been started."""
        if self._task is None:
            self._task = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """End the service, and wait for its last visits to be stored."""
        if self._task is None:
            return
        if (process := self._process) is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(self._grace_seconds + REST_SECONDS):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        await end_tasks(self._task)

    async def state(self, db: Database) -> ServiceState:
        """Return whether a service runs, here or elsewhere."""
        active = await leases.active(db, leases.SERVICE)
        holders = active.get(leases.SERVICE) or active.get(leases.STANDBY) or []
        first = min(holders, key=lambda holder: holder.since, default=None)
        return {
            "running": first is not None,
            "since": None if first is None else first.since,
            "host": None if first is None else first.host,
            "process": None if first is None else first.pid,
            "failure": None if first else self._failure or None,
            "can_start": first is None and self._task is None,
        }

    async def _supervise(self) -> None:
        """Run the service until cancelled; start it again when it ends."""
        pause, clock = FIRST_PAUSE_SECONDS, asyncio.get_running_loop().time
        while True:
            began = clock()
            self._failure = await self._run()
            pause = FIRST_PAUSE_SECONDS if clock() - began >= STABLE_SECONDS else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _run(self) -> str:
        """Run the service once, with its log on stderr; return how it ended."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._words, cwd=PROJECT, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            return f"it cannot be started: {error.strerror or error}"
        code = await self._process.wait()
        self._process = None
        return f"exit code {code}. The log of scrapy web has the reason"
