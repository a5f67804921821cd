"""`scrapy targets`: what is watched, by kind, category and outcome."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from crawler.clock import Clock
from crawler.command import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError

STATES = ("targets", "due", "unlisted", "gone", "dead_links", "aliases", "errors")


class Command(FreshetCommand):
    """Counts of targets."""

    arguments = ("[NAME]",)
    example = "scrapy targets books --json"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Count what is watched, by kind, category, outcome and due"

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the counts."""
        counts = asyncio.run(_counts(self.config, args[0] if args else None))
        if opts.json:
            print_json(counts)
        else:
            _show(counts)


async def _counts(config: Config, spider: str | None) -> dict[str, Any]:
    from crawler.storage import targets
    from crawler.storage.store import opened

    async with opened(config) as db:
        counts = await targets.summary(db, spider, Clock(config.clock_offset_hours).now())
        if spider and not counts["targets"]:
            known = ", ".join(await targets.spiders(db)) or "none; run scrapy crawl first"
            raise ConfigError(f"no targets of {spider!r}; spiders with targets: {known}")
        return counts


def _show(counts: dict[str, Any]) -> None:
    states = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in STATES if counts[name]]
    console = Console(highlight=False)
    console.print(", ".join(states) or "no targets")
    parts = ("kinds", "outcomes", "categories", "spiders")
    console.print(Columns([_table(part, counts[part]) for part in parts if counts[part]]))


def _table(title: str, rows: dict[str, int]) -> Table:
    table = Table(title, "targets")
    table.columns[1].justify = "right"
    for name, n in rows.items():
        table.add_row(name, f"{n:,}")
    return table
