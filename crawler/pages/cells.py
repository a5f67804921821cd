"""Cells as templates see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import nh3
from jinja2 import StrictUndefined
from markupsafe import Markup

from crawler.pages.values import NEVER, NotRead, age, dressed
from crawler.utils.text import HOUR, period

# What a page was built with: key, hash, stale, error, period of a cell.
Fact = list[Any]
# By the name that a template asked for, every cell of that name; `*` are all cells.
Asked = dict[str, list[Fact]]
ALL = "*"
# A cell that was not read for so many of its periods is stale.
STALE_PERIODS = 2


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
        wanted = self.period_seconds
        if wanted and self.age_seconds > STALE_PERIODS * wanted:
            return f"read {age(self.age_seconds)}, wanted every {period(wanted / HOUR)}"
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
        return next((one for one in ("value", "html") if names == {one}), "fields")

    @property
    def value(self) -> Any:
        """A text, number, amount of money, time or list of texts; may be None."""
        return self._part("value")

    @property
    def html(self) -> Any:
        """Markup of the page it was taken from, without all that could run or load in it."""
        found = self._part("html")
        return Markup(nh3.clean(found)) if isinstance(found, str) else found

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
        found = self._by_name.get(name, []) if name != ALL else []
        if not found:
            raise NoSuchCell(f"there is no cell {name!r}")
        if len(found) > 1:
            which = " or ".join(f"{cell.spider}/{cell.name}" for cell in found)
            raise NoSuchCell(f"cell {name!r} is in several spiders; say {which}")
        return found[0]
