"""Rendering of one page: cells as templates see them, and the templates' environment."""

from __future__ import annotations

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

from crawler.utils.text import HOUR, period, span
from crawler.web.pages.sources import BUILT_IN

NEVER = "not read yet"
# Of a template: all cells.
ALL = "*"
# A cell that was not read for so many of its periods is stale.
STALE_PERIODS = 2
# What a page was built with: key, hash, stale, error, period of a cell.
Fact = list[Any]
# By the name that a template asked for, every cell of that name.
CellFacts = dict[str, list[Fact]]


class NotRead(ChainableUndefined):
    """What stands in for the content of a cell that has none yet: says so, and is no error.

    It is as good as undefined: `default` replaces it, a loop over it is empty.
    """

    def __str__(self) -> str:
        return NEVER


class Money(dict[str, Any]):
    """An amount with its currency; as text `12.50 EUR`."""

    def __str__(self) -> str:
        amount = self["amount"]
        shown = f"{amount:,.2f}" if isinstance(amount, float) else str(amount)
        return " ".join(filter(None, (shown, self["currency"])))


def dressed(value: Any) -> Any:
    """A value of a cell with its amounts of money as Money, at any depth."""
    if isinstance(value, dict):
        kind = Money if value.keys() == {"amount", "currency"} else dict
        return kind((str(name), dressed(part)) for name, part in value.items())
    if isinstance(value, list):
        return [dressed(part) for part in value]
    return value


def as_text(value: Any) -> str:
    """A value in one line; times in UTC, None as a dash."""
    if isinstance(value, datetime):
        return in_utc(value)
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    return "–" if value is None else str(value)  # noqa: RUF001 - a dash is meant


def in_utc(moment: datetime) -> str:
    """A time for readers, to the second: `2026-05-01 12:00:00 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def age(seconds: float | None) -> str:
    """How long ago something was: `3 min ago`; None is never."""
    if seconds is None:
        return "never"
    return "just now" if seconds < 5 else f"{span(seconds)} ago"


def address(value: Any) -> str:
    """A value for `href`: itself where it is an http or https URL, else `#`."""
    text = str(value).strip()
    return text if text.lower().startswith(("http://", "https://")) else "#"


class NoSuchCell(LookupError):
    """A template names a cell that is not there, or one of several."""


class Cell:
    """One cell at a moment.

    age_seconds: since it was last read, None before that
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
        """The last look failed, there was none, or it is too long ago."""
        return self.reason is not None

    @property
    def reason(self) -> str | None:
        """Why it is stale, in one line."""
        if self.error is not None:
            return f"last look failed: {' '.join(self.error.split())}"
        if self.age_seconds is None:
            return NEVER
        every = self.period_seconds
        if every and self.age_seconds > STALE_PERIODS * every:
            return f"read {age(self.age_seconds)}, wanted every {period(every / HOUR)}"
        return None

    @property
    def fact(self) -> Fact:
        """What makes a page that shows it be built again."""
        return [self.key, self.hash, self.stale, self.error, self.period_seconds]

    @property
    def kind(self) -> str:
        """Which of its parts it has: `value`, `html`, `rows` or `fields`; `nothing` before that."""
        if self.content is None:
            return "nothing"
        names = self.content.keys()
        if names == {"columns", "rows"}:
            return "rows"
        return next((part for part in ("value", "html") if names == {part}), "fields")

    @property
    def value(self) -> Any:
        """A text, number, amount of money, time or list of texts; may be None."""
        return self._part("value")

    @property
    def html(self) -> Any:
        """Markup of the page it was taken from, without all that could run or load in it."""
        content = self._part("html")
        return Markup(nh3.clean(content)) if isinstance(content, str) else content

    @property
    def columns(self) -> Any:
        """Names of the columns of a query's result."""
        return self._part("columns", "rows")

    @property
    def rows(self) -> Any:
        """A query's result: a list of values by column."""
        return self._part("rows")

    @property
    def fields(self) -> Any:
        """Values by name."""
        if self.kind == "fields":
            return dressed(self.content)
        return self._part("fields")

    def _part(self, part: str, kind: str = "") -> Any:
        if self.content is None:
            return NotRead()
        if self.kind != (kind or part):
            has = f"cell {self.spider}/{self.name} has {self.kind}, not {part}"
            return StrictUndefined(hint=has)
        return dressed(self.content[part])


class Cells:
    """All cells at a moment; `documents` as the cell base has them, with or without content."""

    def __init__(self, documents: Iterable[Mapping[str, Any]], now: datetime) -> None:
        self.now = now
        self.all = [Cell(document, now) for document in documents]
        self._by_name: dict[str, list[Cell]] = {ALL: self.all}
        for cell in self.all:
            for name in (cell.name, f"{cell.spider}/{cell.name}"):
                self._by_name.setdefault(name, []).append(cell)

    def facts(self, name: str) -> list[Fact]:
        """The facts of all cells that are called so, by `NAME`, by `SPIDER/NAME`, or `*`."""
        return [cell.fact for cell in self._by_name.get(name, ())]

    def named(self, name: str) -> Cell:
        """The one cell that is called so; raises NoSuchCell."""
        cells = self._by_name.get(name, []) if name != ALL else []
        if not cells:
            raise NoSuchCell(f"cell not found: {name!r}")
        if len(cells) > 1:
            which = " or ".join(f"{cell.spider}/{cell.name}" for cell in cells)
            raise NoSuchCell(f"cell {name!r} is in several spiders. Use {which}")
        return cells[0]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page, or what is wrong with it: template, line and cause in one line."""

    cells: CellFacts
    text: str = ""
    problem: str | None = None


@dataclass
class Lookup:
    """Gives a template its cells, and notes which."""

    cells: Cells
    read_cells: CellFacts = field(default_factory=dict)
    used: dict[str, Cell] = field(default_factory=dict)

    def cell(self, name: str) -> Cell:
        """The cell of a name; raises NoSuchCell."""
        self.read_cells[name] = self.cells.facts(name)
        cell = self.cells.named(name)
        self.used[cell.key] = cell
        return cell

    def all(self) -> list[Cell]:
        """All cells."""
        self.read_cells[ALL] = self.cells.facts(ALL)
        self.used |= {cell.key: cell for cell in self.cells.all}
        return self.cells.all

    def shown(self) -> dict[str, Any]:
        """The cells that were asked for so far; `count` of all cells, if all were."""
        count = len(self.cells.all) if ALL in self.read_cells else None
        return {"cells": list(self.used.values()), "count": count}


def render(path: str, template: str, folder: Path | None, cells: Cells) -> Rendered:
    """Render one page; `path` is where it will be in the output folder.

    Each page has an environment of its own: what one imports is run for that one.
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
        return " ".join((error.message or "wrong syntax").split())
    if isinstance(error, TemplateError | NoSuchCell):
        return message
    return f"{type(error).__name__}: {message}"
