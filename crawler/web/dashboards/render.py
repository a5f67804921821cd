"""Renders pages of cells: what templates see of the cells, and the states that scripts poll."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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

from crawler.utils.text import HOUR, is_price, period, price, span
from crawler.web.dashboards.sources import BUILT_IN

NEVER = "not read yet"
# A cell is stale if it was not read for this many of its periods.
STALE_PERIODS = 2


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
        self._by_name: dict[str, list[Cell]] = {}
        for cell in self.all:
            for name in (cell.name, f"{cell.spider}/{cell.name}"):
                self._by_name.setdefault(name, []).append(cell)

    def named(self, name: str) -> Cell:
        """Return the cell with a name; raises NoSuchCell if none or several have it."""
        cells = self._by_name.get(name, [])
        if not cells:
            raise NoSuchCell(f"cell not found: {name!r}")
        if len(cells) > 1:
            which = " or ".join(f"{cell.spider}/{cell.name}" for cell in cells)
            raise NoSuchCell(f"several spiders have a cell {name!r}. Use {which}")
        return cells[0]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered page, or the problem: template, line and cause in one line."""

    text: str = ""
    problem: str | None = None


@dataclass
class Lookup:
    """The functions that a template calls to read cells; records which cells it reads."""

    cells: Cells
    used: dict[str, Cell] = field(default_factory=dict)
    has_read_all: bool = False

    def cell(self, name: str) -> Cell:
        """Return the cell with a name; raises NoSuchCell."""
        cell = self.cells.named(name)
        self.used[cell.key] = cell
        return cell

    def all(self) -> list[Cell]:
        """Return all cells."""
        self.has_read_all = True
        self.used |= {cell.key: cell for cell in self.cells.all}
        return self.cells.all

    def shown(self) -> dict[str, Any]:
        """Return the cells read so far and, if the template read all cells, their `count`."""
        count = len(self.cells.all) if self.has_read_all else None
        return {"cells": list(self.used.values()), "count": count}


def render(path: str, template: str, folder: Path | None, cells: Cells) -> Rendered:
    """Render one page; `path` is its path below that of all dashboards.

    Each page has its own environment, because imported templates are cached with the cells that
    they read.
    """
    lookup = Lookup(cells)
    try:
        page = _environment(path, folder, lookup).get_template(template)
        return Rendered(page.render())
    except Exception as error:  # noqa: BLE001 - an expression in a template may raise anything
        root, place = folder or BUILT_IN, template
        if isinstance(error, TemplateSyntaxError) and error.filename:
            place = f"{_within(root, error.filename)}, line {error.lineno}"
        else:
            for frame, line in traceback.walk_tb(error.__traceback__):
                if Path(frame.f_code.co_filename).is_relative_to(root):
                    place = f"{_within(root, frame.f_code.co_filename)}, line {line}"
        return Rendered(problem=f"{place}: {_cause(error)}")


def _within(root: Path, name: str) -> str:
    """Return a path within the folder of templates, as readers need not know where that is."""
    path = Path(name)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


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
        "rendered_at": lookup.cells.now, "root": "../" * path.count("/"),
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
