"""`scrapy cells`: period, age, refresh ratio and errors of each cell, and averages by group."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import datetime
from statistics import fmean
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, print_json, table, with_database
from crawler.utils.shapes import copied
from crawler.utils.terminal import shortened, stdout
from crawler.utils.text import HOUR, amount, count, period, span

if TYPE_CHECKING:
    from crawler.storage.client import Document

ERROR_CHARACTERS = 60
DAY_SECONDS = 86_400.0
PLANNED = "planned"


class CellState(TypedDict):
    """A cell."""

    name: str
    """Name of the cell."""
    spider: str
    """Name of the spider."""
    group: str | None
    """Class by period: `dynamic`, `semi-dynamic` or `static`; null: planned."""
    period_seconds: float | None
    """Period, or mean time between planned visits, in seconds."""
    execution_seconds: float | None
    """Recent mean duration of a refresh in seconds."""
    requested: int
    """Number of elapsed periods, refreshed or not."""
    refreshed: int
    """Number of refreshes."""
    refreshed_at: datetime | None
    """Last successful refresh."""
    changed_at: datetime | None
    """Time of the refresh that found the current content."""
    error: str | None
    """Cause of the last failure; null after a success."""
    age_seconds: float | None
    """Seconds since the last successful refresh."""
    ratio: float | None
    """Refresh ratio: `refreshed` as a share of `requested`; null before the first period."""
    expected: float | None
    """Refresh ratio that the paper's policy predicts for one refresh at a time."""
    content: dict[str, Any] | None
    """`value` or `html` of a selector, fields by name, or `columns` and `rows` of a query."""


class CellGroup(TypedDict):
    """Averages of a group of cells."""

    cells: int
    """Number of cells."""
    ratio: float | None
    """Mean refresh ratio."""
    expected: float | None
    """Mean of the refresh ratios that the paper's policy predicts."""
    errors: int
    """Number of cells whose last refresh failed."""


class CellsReport(TypedDict):
    """Cells, and averages by group."""

    load: float
    """Seconds of refreshing per second that the periods require; above 1 is overload."""
    groups: dict[str, CellGroup]
    """Averages by group; `planned`: cells without a fixed period."""
    cells: list[CellState]
    """Cells by spider and name."""


class Command(FreshetCommand):
    """List cells, and refresh ratios by group."""

    arguments = ("[SPIDER]",)
    summary = "List cells with period, age, refresh ratio and error; show ratios by group"
    example = "scrapy cells market --json"
    documents: ClassVar = {
        "scrapy cells --json": CellsReport,
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the `--errors` option."""
        super().add_options(parser)
        parser.add_argument("--errors", action="store_true", help="list only cells with errors")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the cells."""
        from crawler.storage import cells

        config = self.config
        rows = with_database(config, cells.read)
        now = config.clock.now()
        report = cells_report(rows, now, args[0] if args else None, only_errors=opts.errors)
        if opts.json:
            print_json(report)
        else:
            self._show(report)

    def _show(self, report: CellsReport) -> None:
        console = stdout()
        if not report["cells"]:
            console.print("no cells. Run scrapy crawl cells -a file=cells.toml first")
            return
        columns = ("cell", "group", "every", "takes", "age", "ratio", "error")
        cells = table(*columns, whole=columns[1:-1])
        for cell in report["cells"]:
            takes, age = cell["execution_seconds"], cell["age_seconds"]
            cells.add_row(
                shortened(f"{cell['spider']}/{cell['name']}"),
                cell["group"] or PLANNED,
                _text(cell["period_seconds"] and period(cell["period_seconds"] / HOUR)),
                "" if takes is None else f"{takes:.3f} s",
                "" if age is None else span(age),
                _text(cell["ratio"]),
                shortened(shorten(cell["error"] or "", ERROR_CHARACTERS)),
            )
        console.print(cells)
        groups = table("group", "cells", "ratio", "expected", "errors")
        for name, figures in report["groups"].items():
            groups.add_row(name, *map(_text, figures.values()))
        console.print(groups)
        console.print(f"{count(len(report['cells']), 'cell')}, load {amount(report['load'])}")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def cells_report(
    rows: Iterable[Document],
    now: datetime,
    spider: str | None = None,
    *,
    only_errors: bool = False,
) -> CellsReport:
    """Return the cells with their ages and ratios, and the averages of each group.

    rows:        of `crawler.storage.cells.read`
    spider:      only the cells of this spider
    only_errors: list only cells with errors; averages are still those of all cells
    """
    import numpy as np

    from schedules.dispatch import expected_ratio, load_of

    cells: list[CellState] = [
        {
            **copied(CellState, row),
            "age_seconds": None if at is None else round((now - at).total_seconds(), 1),
            "ratio": round(row["refreshed"] / row["requested"], 4) if row["requested"] else None,
        }
        for row in rows
        for at in [row["refreshed_at"]]
        if spider in (None, row["spider"])
    ]
    # What is expected of a cell depends on the other cells.
    timed = [cell for cell in cells if cell["period_seconds"] and cell["execution_seconds"]]
    periods = np.array([cell["period_seconds"] for cell in timed], np.float64)
    costs = np.array([cell["execution_seconds"] for cell in timed], np.float64)
    if timed:
        expected = expected_ratio(periods, costs, DAY_SECONDS)
        for cell, ratio in zip(timed, expected.tolist(), strict=True):
            cell["expected"] = round(ratio, 4)
    groups: dict[str, CellGroup] = {}
    for name in dict.fromkeys(cell["group"] for cell in cells):
        members = [cell for cell in cells if cell["group"] == name]
        groups[name or PLANNED] = {
            "cells": len(members),
            "ratio": _mean([cell["ratio"] for cell in members]),
            "expected": _mean([cell["expected"] for cell in members]),
            "errors": sum(cell["error"] is not None for cell in members),
        }
    return {
        "load": round(load_of(periods, costs), 4) if timed else 0.0,
        "groups": groups,
        "cells": [cell for cell in cells if cell["error"] or not only_errors],
    }


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(fmean(numbers), 4) if numbers else None
