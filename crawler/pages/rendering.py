"""Templates become pages; what they ask for is noted."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import (
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

from crawler.pages.cells import ALL, Asked, Cell, Cells, NoSuchCell
from crawler.pages.sources import BUILT_IN
from crawler.pages.values import address, age, as_text, in_utc


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page, or what is wrong with it: template, line and cause in one line."""

    asked: Asked
    text: str = ""
    problem: str | None = None


@dataclass
class Lookup:
    """Gives a template its cells, and notes which."""

    cells: Cells
    asked: Asked = field(default_factory=dict)
    used: dict[str, Cell] = field(default_factory=dict)

    def cell(self, name: str) -> Cell:
        """The cell of a name; raises NoSuchCell."""
        self.asked[name] = self.cells.facts(name)
        found = self.cells.named(name)
        self.used[found.key] = found
        return found

    def all(self) -> list[Cell]:
        """All cells."""
        self.asked[ALL] = self.cells.facts(ALL)
        self.used |= {cell.key: cell for cell in self.cells.all}
        return self.cells.all

    def shown(self) -> dict[str, Any]:
        """The cells that were asked for so far; `count` of all cells, if all were."""
        count = len(self.cells.all) if ALL in self.asked else None
        return {"cells": list(self.used.values()), "count": count}


def render(path: str, template: str, folder: Path | None, cells: Cells) -> Rendered:
    """Make one page; `path` is where it will be in the output folder.

    Each page has an environment of its own: what one imports is run for that one.
    """
    lookup = Lookup(cells)
    try:
        made = _environment(path, folder, lookup).get_template(template)
        return Rendered(lookup.asked, made.render())
    except Exception as error:  # noqa: BLE001 - an expression in a template may raise anything
        return Rendered(lookup.asked, problem=_problem(error, folder or BUILT_IN, template))


def _environment(path: str, folder: Path | None, lookup: Lookup) -> Environment:
    loaders: list[Any] = [PrefixLoader({"freshet": FileSystemLoader(BUILT_IN)})]
    if folder:
        loaders.append(FileSystemLoader(folder))
    made = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: "" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def show(it: str | Cell) -> Markup:
        found = it if isinstance(it, Cell) else lookup.cell(it)
        return Markup(made.get_template("freshet/cell.html").render(it=found))

    made.filters |= {"age": age, "as_text": as_text, "utc": in_utc, "address": address}
    made.globals |= {"cell": lookup.cell, "cells": lookup.all, "show": show}
    made.globals |= {"shown": lookup.shown, "built_at": lookup.cells.now}
    made.globals["root"] = "../" * path.count("/")
    return made


def _problem(error: Exception, folder: Path, template: str) -> str:
    if isinstance(error, TemplateSyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {_cause(error)}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if Path(frame.f_code.co_filename).is_relative_to(folder):
            return f"{frame.f_code.co_filename}, line {line}: {_cause(error)}"
    return f"{folder / template}: {_cause(error)}"


def _cause(error: Exception) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, TemplateNotFound):
        return f"there is no template {said!r}"
    if isinstance(error, TemplateSyntaxError):
        return " ".join((error.message or "wrong syntax").split())
    if isinstance(error, TemplateError | NoSuchCell):
        return said
    return f"{type(error).__name__}: {said}"
