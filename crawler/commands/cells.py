"""`scrapy cells`: period, age, refresh ratio and errors of each cell, and averages by group."""

from __future__ import annotations

import argparse
from datetime import datetime
from statistics import fmean
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, print_json, with_database
from crawler.utils.terminal import shortened, stdout
from crawler.utils.text import HOUR, count, period, span
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Document

STORED_FIELDS = ("name", "spider", "group", "period_seconds", "execution_seconds", "requested",
                 "refreshed", "refreshed_at", "changed_at", "error")  # fmt: skip
ERROR_CHARACTERS = 60
DAY_SECONDS = 86_400.0


class Command(FreshetCommand):
    """List cells, and refresh ratios by group."""

    arguments = ("[SPIDER]",)
    example = "scrapy cells market --json"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "List cells with period, age, refresh ratio and error; show ratios by group"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the `--errors` option."""
        super().add_options(parser)
        parser.add_argument("--errors", action="store_true", help="list only cells with errors")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the cells."""
        from crawler.storage import cells

        config = self.config
        rows = with_database(config, cells.read)
        if args:
            rows = [row for row in rows if row["spider"] == args[0]]
        summary = summed_up(rows, Clock(config.clock_offset_hours).now())
        if opts.errors:
            summary["cells"] = [cell for cell in summary["cells"] if cell["error"]]
        if opts.json:
            print_json(summary)
        else:
            self._show(summary)

    def _show(self, summary: Document) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        console = stdout()
        if not summary["cells"]:
            console.print("no cells. Run scrapy crawl cells -a file=cells.toml first")
            return
        columns = ("cell", "group", "every", "takes", "age", "ratio", "error")
        table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in table.columns[1:-1]:
            column.no_wrap = True
        for cell in summary["cells"]:
            takes, age = cell["execution_seconds"], cell["age_seconds"]
            table.add_row(
                shortened(f"{cell['spider']}/{cell['name']}"),
                cell["group"] or "planned",
                _text(cell["period_seconds"] and period(cell["period_seconds"] / HOUR)),
                "" if takes is None else f"{takes:.3f} s",
                "" if age is None else span(age),
                _text(cell["ratio"]),
                shortened(shorten(cell["error"] or "", ERROR_CHARACTERS)),
            )
        console.print(table)
        groups = Table("group", "cells", "ratio", "expected", "errors", box=SIMPLE_HEAD)
        for name, figures in summary["groups"].items():
            groups.add_row(name, *map(_text, figures.values()))
        console.print(groups)
        console.print(f"{count(len(summary['cells']), 'cell')}, load {summary['load']:.3g}")


def summed_up(rows: list[Document], now: datetime) -> Document:
    """Return the cells with their ages and ratios, and the averages of each group.

    load:     seconds of refreshing per second that the periods require; above 1 is overload
    expected: the refresh ratio of a group that the paper's policy predicts for one refresh at a
              time
    """
    import numpy as np

    from schedules.dispatch.dispatch import expected_ratio, load_of

    cells: list[Document] = []
    for row in rows:
        at, requested = row["refreshed_at"], row["requested"]
        cells.append(
            {name: row.get(name) for name in STORED_FIELDS}
            | {
                "age_seconds": None if at is None else round((now - at).total_seconds(), 1),
                "ratio": round(row["refreshed"] / requested, 4) if requested else None,
                "expected": None,
                "content": row["content"],
            }
        )
    timed = [cell for cell in cells if cell["period_seconds"] and cell["execution_seconds"]]
    periods = np.array([cell["period_seconds"] for cell in timed], np.float64)
    costs = np.array([cell["execution_seconds"] for cell in timed], np.float64)
    if timed:
        expected = expected_ratio(periods, costs, DAY_SECONDS)
        for cell, ratio in zip(timed, expected.tolist(), strict=True):
            cell["expected"] = round(ratio, 4)
    groups = {}
    for name in dict.fromkeys(cell["group"] for cell in cells):
        members = [cell for cell in cells if cell["group"] == name]
        groups[name or "planned"] = {
            "cells": len(members),
            "ratio": _mean([cell["ratio"] for cell in members]),
            "expected": _mean([cell["expected"] for cell in members]),
            "errors": sum(cell["error"] is not None for cell in members),
        }
    load = round(load_of(periods, costs), 4) if timed else 0.0
    return {"load": load, "groups": groups, "cells": cells}


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(fmean(numbers), 4) if numbers else None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
