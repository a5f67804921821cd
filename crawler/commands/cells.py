"""`scrapy cells`: the cell base: what each cell is, how old, and how often it was refreshed."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from datetime import datetime
from statistics import fmean
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.utils.terminal import shortened, stdout
from crawler.utils.text import HOUR, count, period, span
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Document

NAMES = ("name", "spider", "group", "period_seconds", "execution_seconds", "requested",
         "refreshed", "refreshed_at", "changed_at", "error")  # fmt: skip
SHOWN_CHARACTERS = 60
DAY_SECONDS = 86_400.0


class Command(FreshetCommand):
    """The cells, and their refresh ratios by group."""

    arguments = ("[SPIDER]",)
    example = "scrapy cells market --json"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "List cells: period, age, refresh ratio, trouble; ratios by group"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Which cells."""
        super().add_options(parser)
        parser.add_argument("--errors", action="store_true", help="only those with trouble")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print them."""
        found = asyncio.run(_found(self.config, args[0] if args else None))
        if opts.errors:
            found["cells"] = [one for one in found["cells"] if one["error"]]
        if opts.json:
            print_json(found)
        else:
            _show(found)


async def _found(config: Config, spider: str | None) -> Document:
    from crawler.storage import cells
    from crawler.storage.store import opened

    async with opened(config) as db:
        rows = [one for one in await cells.read(db) if spider in (None, one["spider"])]
    now = Clock(config.clock_offset_hours).now()
    return summed_up(rows, now)


def summed_up(rows: list[Document], now: datetime) -> Document:
    """Cells with ages and ratios, and the means of each group.

    load:     seconds of refreshing that periods ask for, by second
    expected: the ratio that the paper's policy books for a group, one refresh at a time
    """
    import numpy as np

    from schedules.dispatch.dispatch import expected_ratio, load_of

    shown = [{name: one.get(name) for name in NAMES} | _derived(one, now) for one in rows]
    timed = [one for one in shown if one["period_seconds"] and one["execution_seconds"]]
    period = np.array([one["period_seconds"] for one in timed], np.float64)
    cost = np.array([one["execution_seconds"] for one in timed], np.float64)
    if timed:
        expected = expected_ratio(period, cost, DAY_SECONDS)
        for one, share in zip(timed, expected.tolist(), strict=True):
            one["expected"] = round(share, 4)
    return {
        "load": round(load_of(period, cost), 4) if timed else 0.0,
        "groups": dict(_groups(shown)),
        "cells": shown,
    }


def _derived(one: Document, now: datetime) -> Document:
    at, asked = one["refreshed_at"], one["requested"]
    return {
        "age_seconds": None if at is None else round((now - at).total_seconds(), 1),
        "ratio": round(one["refreshed"] / asked, 4) if asked else None,
        "expected": None,
        "content": one["content"],
    }


def _groups(rows: list[Document]) -> Iterator[tuple[str, Document]]:
    """Of each group: how many, and mean ratios."""
    for name in dict.fromkeys(one["group"] for one in rows):
        some = [one for one in rows if one["group"] == name]
        yield (
            name or "planned",
            {
                "cells": len(some),
                "ratio": _mean([one["ratio"] for one in some]),
                "expected": _mean([one["expected"] for one in some]),
                "errors": sum(one["error"] is not None for one in some),
            },
        )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None


def _show(found: Document) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = stdout()
    if not found["cells"]:
        console.print("no cells (scrapy crawl cells -a file=cells.toml)")
        return
    columns = ("cell", "group", "every", "takes", "age", "ratio", "trouble")
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in table.columns[1:-1]:
        column.no_wrap = True
    for one in found["cells"]:
        name, *figures, trouble = map(_text, _row(one))
        table.add_row(shortened(name), *figures, shortened(trouble))
    console.print(table)
    groups = Table("group", "cells", "ratio", "expected", "errors", box=SIMPLE_HEAD)
    for name, one in found["groups"].items():
        groups.add_row(name, *map(_text, one.values()))
    console.print(groups)
    console.print(f"{count(len(found['cells']), 'cell')}, load {found['load']:.3g}")


def _row(one: Document) -> tuple[Any, ...]:
    takes = one["execution_seconds"]
    return (
        f"{one['spider']}/{one['name']}",
        one["group"] or "planned",
        one["period_seconds"] and period(one["period_seconds"] / HOUR),
        None if takes is None else f"{takes:.3f} s",
        None if one["age_seconds"] is None else span(one["age_seconds"]),
        one["ratio"],
        shorten(one["error"] or "", SHOWN_CHARACTERS),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
