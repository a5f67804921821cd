"""Builds pages: compares the sources with the record of the last build, and writes due pages.

`build` does so once, for the command. `kept_current` keeps dashboards up to date in the web app: it
checks cells and templates every second, and rebuilds what has changed.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ValidationError

from crawler.errors import ConfigError, FreshetError, StorageError
from crawler.storage.cells import read as read_cells
from crawler.utils.process import end_tasks
from crawler.utils.terminal import complain
from crawler.utils.text import count
from crawler.web.dashboards.render import CellFacts, Cells, Fact, render
from crawler.web.dashboards.sources import (
    STATES,
    Places,
    Sources,
    Stamp,
    find,
    is_there,
    remove,
    stamp,
    write,
)
from crawler.web.dependencies import WebDatabase

RECORD = ".freshet-pages.json"
WRITTEN, UNCHANGED, FAILED, REMOVED = "written", "unchanged", "failed", "removed"
Facts = Callable[[str], list[Fact]]
# Name of the command under which problems of updates are printed.
COMMAND = "web"
CHECK_SECONDS = 1.0


def _inside(path: str) -> str:
    if not path or path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
        raise ValueError("not a path within the output folder")
    return path


Inside = Annotated[str, AfterValidator(_inside)]


class Built(BaseModel):
    """The record of a page's last build.

    cells:   facts of the cells that the page read
    written: whether a build has written the file
    failed:  whether the last build failed, so that the file is from an earlier one
    """

    cells: CellFacts
    written: bool
    failed: bool = False


class Record(BaseModel):
    """The record of the last build.

    templates: digest of the sources
    files:     digests of the copied files
    """

    version: Literal[1] = 1
    templates: str = ""
    pages: dict[Inside, Built] = {}
    files: dict[Inside, str] = {}

    @classmethod
    def read(cls, out: Path) -> Record:
        """Read the record in a folder; an empty one if it is missing or invalid."""
        try:
            return cls.model_validate_json((out / RECORD).read_bytes())
        except (OSError, ValidationError):
            return cls()

    def keep(self, out: Path) -> None:
        """Write the record; raises OSError."""
        write(out / RECORD, self.model_dump_json(indent=1).encode())


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a build, by path within the output folder.

    render:  pages to render
    removed: pages to delete
    copy:    files to copy
    dropped: copied files to delete
    """

    render: list[str]
    removed: list[str]
    copy: list[str]
    dropped: list[str]

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.render or self.removed or self.copy or self.dropped)


def planned(
    record: Record, sources: Sources, facts: Facts, present: Set[str], *, retry: bool = True
) -> Plan:
    """Return the steps of a build: compare the sources and cells with the last build.

    facts:   returns the current facts of the cells with a name
    present: paths that exist in the output folder
    retry:   render failed pages again even if nothing has changed
    """
    is_new = record.templates != sources.digest
    wanted = sources.pages.keys() | sources.files.keys()

    def due(path: str) -> bool:
        built = record.pages.get(path)
        if is_new or built is None:
            return True
        if any(facts(name) != before for name, before in built.cells.items()):
            return True
        return retry if built.failed else path not in present

    return Plan(
        render=[path for path in sources.pages if due(path)],
        removed=sorted(path for path in record.pages if path not in wanted),
        copy=[
            path
            for path, file in sources.files.items()
            if record.files.get(path) != file.digest or path not in present
        ],
        dropped=sorted(path for path in record.files if path not in wanted),
    )


@dataclass
class Done:
    """The result of a build by page, and the problem of each failed page in one line."""

    pages: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = Counter(self.pages.values())
        states = [f"{counts[s]} {s}" for s in (WRITTEN, UNCHANGED, FAILED, REMOVED) if counts[s]]
        return f"{count(len(self.pages), 'page')}: {', '.join(states)}"


def decide(cells: Cells, sources: Sources, record: Record, out: Path, *, retry: bool) -> Plan:
    """Return the steps of a build, given the files that exist in the output folder."""
    present = {path for path in (*sources.pages, *sources.files) if is_there(out / path)}
    return planned(record, sources, cells.facts, present, retry=retry)


def build(cells: Cells, sources: Sources, out: Path, *, retry: bool = True) -> Done:
    """Update the output folder; raises ConfigError if the folder cannot be written.

    A page that fails is reported in the result, and its file is not changed.
    """
    record = Record.read(out)
    plan = decide(cells, sources, record, out, retry=retry)
    done = Done(dict.fromkeys(sources.pages, UNCHANGED))
    try:
        for path in plan.removed:
            if record.pages.pop(path).written:
                remove(out, path)
                done.pages[path] = REMOVED
        for path in plan.dropped:
            del record.files[path]
            remove(out, path)
        for path in plan.copy:
            file = sources.files[path]
            write(out / path, file.source.read_bytes())
            record.files[path] = file.digest
        for path in plan.render:
            _render(path, cells, sources, record, out, done)
        record.templates = sources.digest
        record.keep(out)
        # Written last: scripts reload a page when a state changes, so the page must be new by then.
        write(out / STATES, states(cells))
    except OSError as error:
        raise _unusable(out, error) from None
    return done


def write_states(out: Path, content: bytes) -> None:
    """Write the result of `states` to the output folder; raises ConfigError."""
    try:
        write(out / STATES, content)
    except OSError as error:
        raise _unusable(out, error) from None


def _unusable(out: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{error.filename or out}: {error.strerror or error}")


def states(cells: Cells) -> bytes:
    """Return the states of all cells as JSON, for the script of the pages."""
    by_key: Mapping[str, Any] = {
        cell.key: {
            "refreshed_at": cell.refreshed_at and cell.refreshed_at.astimezone(UTC).isoformat(),
            "hash": cell.hash,
            "stale": cell.stale,
        }
        for cell in cells.all
    }
    return json.dumps(by_key, ensure_ascii=False, indent=0).encode()


def _render(
    path: str, cells: Cells, sources: Sources, record: Record, out: Path, done: Done
) -> None:
    """Render a page and write it; record an error in `done`."""
    rendered = render(path, sources.pages[path], sources.folder, cells)
    problem, before = rendered.problem, record.pages.get(path)
    if problem is None:
        try:
            write(out / path, rendered.text.encode())
        except (OSError, UnicodeError) as error:
            problem = f"{out / path}: {getattr(error, 'strerror', None) or error}"
    if problem is not None:
        done.problems[path] = problem
    done.pages[path] = FAILED if problem else WRITTEN
    written = problem is None or (before is not None and before.written)
    record.pages[path] = Built(cells=rendered.cells, written=written, failed=bool(problem))


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
        self._clock = database.config.clock
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
        current = await asyncio.to_thread(stamp, templates)
        if current != self._stamp:
            self._sources = await asyncio.to_thread(find, templates)
            self._stamp = current
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
            stored = await read_cells(store.db, content=content)
        return Cells(stored, self._clock.now())

    def _warn(self, message: str) -> None:
        if not self._is_failing:
            complain(COMMAND, message)
        self._is_failing = True
