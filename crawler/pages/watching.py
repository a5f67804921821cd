"""Looks at the cell base and the templates every second; builds what changed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from crawler.errors import FreshetError, StorageError
from crawler.pages import sources
from crawler.pages.building import WRITTEN, Done, build, decide, states, write_states
from crawler.pages.cells import Cells
from crawler.pages.options import Places
from crawler.pages.record import Record
from crawler.storage import cells
from crawler.storage.patience import Patience
from crawler.storage.store import Store
from crawler.utils import tasks
from crawler.utils.terminal import complain
from crawler.utils.time import Clock

COMMAND = "pages"
LOOK_SECONDS = 1.0


class Watching:
    """The pages of a folder, kept up to date.

    written: pages written so far, one twice counts twice    pages: what became of each at last
    """

    def __init__(self, store: Store, order: Places) -> None:
        self.order = order
        self.written = 0
        self.pages: dict[str, str] = {}
        self._store = store
        self._clock = Clock(store.config.clock_offset_hours)
        # One call each time; that a server is away is borne here.
        self._once = Patience(-1, store.revive)
        self._stamp = sources.stamp(order.templates)
        self._sources = sources.find(order.templates)
        self._record = Record()
        self._states = b""
        self._problems: dict[str, str] = {}
        self._trouble = False
        self._building = asyncio.Lock()

    async def build(self, *, retry: bool = True) -> None:
        """Build what is due; raises FreshetError."""
        found = await self._read(content=True)
        async with self._building:
            done = await asyncio.to_thread(build, found, self._sources, self.order.out, retry=retry)
        self._record = Record.read(self.order.out)
        self._states = states(found)
        self._tell(done)

    async def work(self) -> None:
        """Look again and again; a trouble is told once and borne."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self._look_for_templates()
                await self._look()
            except StorageError as error:
                self._bear(f"{error}; pages stay as they are until it is back")
                with suppress(FreshetError):
                    await self._store.revive()
            except FreshetError as error:
                self._bear(str(error))
            else:
                self._go_on()

    async def end(self, work: asyncio.Task[None]) -> None:
        """Stop looking; a build that has begun is ended first."""
        async with self._building:
            work.cancel()
        await tasks.end(work)

    def _look_for_templates(self) -> None:
        seen = sources.stamp(self.order.templates)
        if seen != self._stamp:
            self._sources = sources.find(self.order.templates)
            self._stamp = seen

    async def _look(self) -> None:
        """Contents are read only where a state says that there is something to build."""
        found = await self._read(content=False)
        work = (found, self._sources, self._record, self.order.out)
        plan = await asyncio.to_thread(decide, *work, retry=False)
        if not plan.empty or self._record.templates != self._sources.digest:
            await self.build(retry=False)
        elif (now := states(found)) != self._states:
            await asyncio.to_thread(write_states, self.order.out, now)
            self._states = now

    async def _read(self, *, content: bool) -> Cells:
        db = self._store.db
        found = await self._once.read(lambda: cells.read(db, content=content))
        return Cells(found, self._clock.now())

    def _tell(self, done: Done) -> None:
        """Count what was done; a page's problem is told when it is another one."""
        self.pages = done.pages
        self.written += list(done.pages.values()).count(WRITTEN)
        for path, problem in done.problems.items():
            if self._problems.get(path) != problem:
                complain(COMMAND, problem)
        failing = {path: line for path, line in self._problems.items() if path in self._failed()}
        self._problems = failing | done.problems

    def _failed(self) -> set[str]:
        return {path for path, built in self._record.pages.items() if built.failed}

    def _bear(self, said: str) -> None:
        if not self._trouble:
            complain(COMMAND, said)
        self._trouble = True

    def _go_on(self) -> None:
        if self._trouble:
            complain(COMMAND, "it goes on")
        self._trouble = False
