"""Builds pages: compares the sources with the record of the last build, and writes due pages.

`build` does so once, for the command. `kept_current` keeps dashboards up to date in the web app: it
checks cells and templates every second, and rebuilds what has changed.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import nh3
from jinja2 import (
    ChainableUndefined,
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PrefixLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
)
from markupsafe import Markup
from pydantic import AfterValidator, BaseModel, ValidationError

from crawler.errors import ConfigError, FreshetError, StorageError
from crawler.storage.cells import read as read_cells
from crawler.utils.process import end_tasks
from crawler.utils.terminal import complain
from crawler.utils.text import HOUR, count, is_price, period, price, span
from crawler.web.dashboards.sources import (
    BUILT_IN,
    STATES,
    Folders,
    Sources,
    Stamp,
    find,
    is_there,
    remove,
    stamp,
    write,
)
from crawler.web.dependencies import WebDatabase

NEVER = "not read yet"
# The name under which a template's use of all cells is recorded.
ALL = "*"
# A cell is stale if it was not read for this many of its periods.
STALE_PERIODS = 2
# The values of a cell whose change makes a page due: key, hash, stale, error, period.
Fact = list[Any]
# By the name that a template used, the facts of all cells of that name.
CellFacts = dict[str, list[Fact]]


class NotRead(ChainableUndefined):
    """The content of a cell that was not read yet: prints as `not read yet` instead of failing.

    Jinja treats it as undefined: the filter `default` replaces it, a loop over it is empty.
    """

    def __str__(self) -> str:
        return NEVER


class Money(dict[str, Any]):
    """An amount of money with its currency; prints as `12.50 EUR`."""

    def __str__(self) -> str:
        return price(self)


def with_money(value: Any) -> Any:
    """Convert the amounts of money in a cell's value to Money, at any depth."""
    if isinstance(value, dict):
        kind = Money if is_price(value) else dict
        return kind((str(name), with_money(part)) for name, part in value.items())
    if isinstance(value, list):
        return [with_money(part) for part in value]
    return value


def as_text(value: Any) -> str:
    """Format a value in one line: times in UTC, None as a dash."""
    if isinstance(value, datetime):
        return in_utc(value)
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    return "–" if value is None else str(value)  # noqa: RUF001 - a dash is meant


def in_utc(moment: datetime) -> str:
    """Format a time to the second: `2026-05-01 12:00:00 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def age(seconds: float | None) -> str:
    """Format an age: `3 min ago`; None as `never`."""
    if seconds is None:
        return "never"
    return "just now" if seconds < 5 else f"{span(seconds)} ago"


def address(value: Any) -> str:
    """Return a value for `href`: an http or https URL unchanged, anything else as `#`."""
    text = str(value).strip()
    return text if text.lower().startswith(("http://", "https://")) else "#"


class NoSuchCell(LookupError):
    """The name in a template matches no cell, or several."""


class Cell:
    """The state of a cell at one time.

    age_seconds: seconds since the last successful read; None before the first
    """

    def __init__(self, document: Mapping[str, Any], now: datetime) -> None:
        self.key: str = document["_id"]
        self.spider: str = document["spider"]
        self.name: str = document["name"]
        self.group: str | None = document.get("group")
        self.period_seconds: float | None = document.get("period_seconds")
        self.refreshed_at: datetime | None = document.get("refreshed_at")
        self.changed_at: datetime | None = document.get("changed_at")
        self.error: str | None = document.get("error")
        self.hash: str | None = document.get("content_hash")
        self.content: dict[str, Any] | None = document.get("content")
        seen = self.refreshed_at
        self.age_seconds = None if seen is None else max((now - seen).total_seconds(), 0.0)

    @property
    def stale(self) -> bool:
        """Return whether the last read failed or is too long ago, or there was none."""
        return self.reason is not None

    @property
    def reason(self) -> str | None:
        """Return why the cell is stale, in one line; None if it is not."""
        if self.error is not None:
            return f"last read failed: {' '.join(self.error.split())}"
        if self.age_seconds is None:
            return NEVER
        every = self.period_seconds
        if every and self.age_seconds > STALE_PERIODS * every:
            return f"last read {age(self.age_seconds)}, period {period(every / HOUR)}"
        return None

    @property
    def fact(self) -> Fact:
        """Return the values whose change makes the pages that show the cell due."""
        return [self.key, self.hash, self.stale, self.error, self.period_seconds]

    @property
    def kind(self) -> str:
        """Return the kind of content: `value`, `html`, `rows` or `fields`; `nothing` if unread."""
        if self.content is None:
            return "nothing"
        names = self.content.keys()
        if names == {"columns", "rows"}:
            return "rows"
        return next((part for part in ("value", "html") if names == {part}), "fields")

    @property
    def value(self) -> Any:
        """Return the value: a text, number, amount of money, time, list of texts or None."""
        return self._part("value")

    @property
    def html(self) -> Any:
        """Return the HTML extracted from a page, sanitized: without scripts, styles and frames."""
        content = self._part("html")
        return Markup(nh3.clean(content)) if isinstance(content, str) else content

    @property
    def columns(self) -> Any:
        """Return the column names of a query's result."""
        return self._part("columns", "rows")

    @property
    def rows(self) -> Any:
        """Return the rows of a query's result, each with its values by column."""
        return self._part("rows")

    @property
    def fields(self) -> Any:
        """Return the values by name."""
        if self.kind == "fields":
            return with_money(self.content)
        return self._part("fields")

    def _part(self, part: str, kind: str = "") -> Any:
        if self.content is None:
            return NotRead()
        if self.kind != (kind or part):
            hint = f"cell {self.spider}/{self.name} has {self.kind}, not {part}"
            return StrictUndefined(hint=hint)
        return with_money(self.content[part])


class Cells:
    """All cells at one time. documents: rows of the cell store, with or without content."""

    def __init__(self, documents: Iterable[Mapping[str, Any]], now: datetime) -> None:
        self.now = now
        self.all = [Cell(document, now) for document in documents]
        self._by_name: dict[str, list[Cell]] = {ALL: self.all}
        for cell in self.all:
            for name in (cell.name, f"{cell.spider}/{cell.name}"):
                self._by_name.setdefault(name, []).append(cell)

    def facts(self, name: str) -> list[Fact]:
        """Return the facts of all cells named `NAME` or `SPIDER/NAME`; `*` means all cells."""
        return [cell.fact for cell in self._by_name.get(name, ())]

    def named(self, name: str) -> Cell:
        """Return the cell with a name; raises NoSuchCell if none or several have it."""
        cells = self._by_name.get(name, []) if name != ALL else []
        if not cells:
            raise NoSuchCell(f"cell not found: {name!r}")
        if len(cells) > 1:
            which = " or ".join(f"{cell.spider}/{cell.name}" for cell in cells)
            raise NoSuchCell(f"several spiders have a cell {name!r}. Use {which}")
        return cells[0]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered page, or the problem: template, line and cause in one line."""

    cells: CellFacts
    text: str = ""
    problem: str | None = None


@dataclass
class Lookup:
    """The functions that a template calls to read cells; records which cells it reads."""

    cells: Cells
    read_cells: CellFacts = field(default_factory=dict)
    used: dict[str, Cell] = field(default_factory=dict)

    def cell(self, name: str) -> Cell:
        """Return the cell with a name; raises NoSuchCell."""
        self.read_cells[name] = self.cells.facts(name)
        cell = self.cells.named(name)
        self.used[cell.key] = cell
        return cell

    def all(self) -> list[Cell]:
        """Return all cells."""
        self.read_cells[ALL] = self.cells.facts(ALL)
        self.used |= {cell.key: cell for cell in self.cells.all}
        return self.cells.all

    def shown(self) -> dict[str, Any]:
        """Return the cells read so far and, if the template read all cells, their `count`."""
        count = len(self.cells.all) if ALL in self.read_cells else None
        return {"cells": list(self.used.values()), "count": count}


def render(path: str, template: str, folder: Path | None, cells: Cells) -> Rendered:
    """Render one page; `path` is its path within the output folder.

    Each page has its own environment, because imported templates are cached with the cells that
    they read.
    """
    lookup = Lookup(cells)
    try:
        page = _environment(path, folder, lookup).get_template(template)
        return Rendered(lookup.read_cells, page.render())
    except Exception as error:  # noqa: BLE001 - an expression in a template may raise anything
        place = str((folder or BUILT_IN) / template)
        if isinstance(error, TemplateSyntaxError) and error.filename:
            place = f"{error.filename}, line {error.lineno}"
        else:
            for frame, line in traceback.walk_tb(error.__traceback__):
                name = frame.f_code.co_filename
                if Path(name).is_relative_to(folder or BUILT_IN):
                    place = f"{name}, line {line}"
        return Rendered(lookup.read_cells, problem=f"{place}: {_cause(error)}")


def _environment(path: str, folder: Path | None, lookup: Lookup) -> Environment:
    loaders: list[Any] = [PrefixLoader({"freshet": FileSystemLoader(BUILT_IN)})]
    if folder:
        loaders.append(FileSystemLoader(folder))
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: "" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def show(it: str | Cell) -> Markup:
        cell = it if isinstance(it, Cell) else lookup.cell(it)
        return Markup(environment.get_template("freshet/cell.html").render(it=cell))

    environment.filters |= {"age": age, "as_text": as_text, "utc": in_utc, "address": address}
    environment.globals |= {
        "cell": lookup.cell, "cells": lookup.all, "show": show, "shown": lookup.shown,
        "built_at": lookup.cells.now, "root": "../" * path.count("/"),
    }  # fmt: skip
    return environment


def _cause(error: Exception) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, TemplateNotFound):
        return f"template not found: {message!r}"
    if isinstance(error, TemplateSyntaxError):
        return " ".join((error.message or "syntax error").split())
    if isinstance(error, TemplateError | NoSuchCell):
        return message
    return f"{type(error).__name__}: {message}"


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
async def kept_current(database: WebDatabase, folders: Folders) -> AsyncIterator[None]:
    """Rebuild dashboards inside the context, as soon as their cells or templates change.

    Problems are printed on stderr. A build in progress is completed at the end.
    """
    updates = Updates(database, folders)
    work = asyncio.create_task(updates.work())
    try:
        yield
    finally:
        await updates.end(work)


class Updates:
    """Builds the dashboards of a folder whenever they are due."""

    def __init__(self, database: WebDatabase, folders: Folders) -> None:
        self.folders = folders
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
        templates, out = self.folders.templates, self.folders.out
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
        stored, out = await self._read(content=True), self.folders.out
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
