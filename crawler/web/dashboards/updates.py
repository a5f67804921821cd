"""Keeps dashboards up to date in the web app: checks cells and templates, rebuilds what changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from crawler.errors import FreshetError, StorageError
from crawler.storage import cells
from crawler.utils.process import end_tasks
from crawler.utils.terminal import complain
from crawler.utils.time import Clock
from crawler.web.dashboards import sources
from crawler.web.dashboards.build import Record, build, decide, states, write_states
from crawler.web.dashboards.render import Cells
from crawler.web.dashboards.sources import Places, Sources, Stamp
from crawler.web.database import WebDatabase

COMMAND = "web"
CHECK_SECONDS = 1.0


@asynccontextmanager
async def kept_current(database: WebDatabase, places: Places) -> AsyncIterator[None]:
    """Rebuild dashboards inside the context, as soon as their cells or templates change.

    Problems are printed on stderr. A build in progress is completed at the end.
    """
    updates = Updates(database, places)
    work = asyncio.create_task(updates.work())
    try:
        yield
    finally:
        await updates.end(work)


class Updates:
    """Builds the dashboards of a folder whenever they are due."""

    def __init__(self, database: WebDatabase, places: Places) -> None:
        self.places = places
        self._database = database
        self._clock = Clock(database.config.clock_offset_hours)
        self._stamp: Stamp | None = None
        self._sources: Sources
        self._record = Record()
        self._states = b""
        self._problems: dict[str, str] = {}
        self._has_built = False
        self._is_failing = False
        self._building = asyncio.Lock()

    async def work(self) -> None:
        """Check every second until cancelled; print the first of consecutive errors."""
        while True:
            try:
                await self._check()
            except StorageError as error:
                self._warn(f"{error}; updates of dashboards paused until MongoDB is available")
            except FreshetError as error:
                self._warn(str(error))
            else:
                if self._is_failing:
                    complain(COMMAND, "updates of dashboards resumed")
                self._is_failing = False
            await asyncio.sleep(CHECK_SECONDS)

    async def end(self, work: asyncio.Task[None]) -> None:
        """Stop checking, after the build in progress has ended."""
        async with self._building:
            work.cancel()
        await end_tasks(work)

    async def _check(self) -> None:
        """Build the pages that are due; reads the contents of cells only if a state has changed."""
        templates, out = self.places.templates, self.places.out
        stamp = await asyncio.to_thread(sources.stamp, templates)
        if stamp != self._stamp:
            self._sources = await asyncio.to_thread(sources.find, templates)
            self._stamp = stamp
        if not self._has_built:
            await self._build()
            return
        stored = await self._read(content=False)
        work = (stored, self._sources, self._record, out)
        plan = await asyncio.to_thread(decide, *work, retry=False)
        if not plan.empty or self._record.templates != self._sources.digest:
            await self._build()
        elif (now := states(stored)) != self._states:
            await asyncio.to_thread(write_states, out, now)
            self._states = now

    async def _build(self) -> None:
        """Build the pages that are due; the first build also retries pages that failed before."""
        stored, out = await self._read(content=True), self.places.out
        retry = not self._has_built
        async with self._building:
            done = await asyncio.to_thread(build, stored, self._sources, out, retry=retry)
        self._has_built = True
        self._record = Record.read(out)
        self._states = states(stored)
        # Print the problem of a page only once, unless it changes.
        for path, problem in done.problems.items():
            if self._problems.get(path) != problem:
                complain(COMMAND, problem)
        failed = {path for path, built in self._record.pages.items() if built.failed}
        failing = {path: line for path, line in self._problems.items() if path in failed}
        self._problems = failing | done.problems

    async def _read(self, *, content: bool) -> Cells:
        async with self._database.opened() as store:
            stored = await cells.read(store.db, content=content)
        return Cells(stored, self._clock.now())

    def _warn(self, message: str) -> None:
        if not self._is_failing:
            complain(COMMAND, message)
        self._is_failing = True
