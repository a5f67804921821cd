"""`scrapy cells`: period, age, refresh ratio and errors of each cell, and averages by group."""

from __future__ import annotations

import argparse
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, JsonTypes, print_json, with_database
from crawler.utils.terminal import shortened, stdout
from crawler.utils.text import HOUR, amount, count, period, span

if TYPE_CHECKING:
    from crawler.reports.cells import CellsReport

ERROR_CHARACTERS = 60


class Command(FreshetCommand):
    """List cells, and refresh ratios by group."""

    arguments = ("[SPIDER]",)
    summary = "List cells with period, age, refresh ratio and error; show ratios by group"
    example = "scrapy cells market --json"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the `--errors` option."""
        super().add_options(parser)
        parser.add_argument("--errors", action="store_true", help="list only cells with errors")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the cells."""
        # Slow to import, and --help does not need it.
        from crawler.reports.cells import cells_report
        from crawler.storage import cells

        config = self.config
        rows = with_database(config, cells.read)
        now = config.clock.now()
        report = cells_report(rows, now, args[0] if args else None, only_errors=opts.errors)
        if opts.json:
            print_json(report)
        else:
            self._show(report)

    def json_types(self) -> JsonTypes:
        """Return the type of the report."""
        from crawler.reports.cells import CellsReport

        return {"scrapy cells --json": CellsReport}

    def _show(self, report: CellsReport) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        console = stdout()
        if not report["cells"]:
            console.print("no cells. Run scrapy crawl cells -a file=cells.toml first")
            return
        columns = ("cell", "group", "every", "takes", "age", "ratio", "error")
        table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in table.columns[1:-1]:
            column.no_wrap = True
        for cell in report["cells"]:
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
        for name, figures in report["groups"].items():
            groups.add_row(name, *map(_text, figures.values()))
        console.print(groups)
        console.print(f"{count(len(report['cells']), 'cell')}, load {amount(report['load'])}")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
