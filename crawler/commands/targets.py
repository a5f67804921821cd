"""`scrapy targets`: what is watched, counted by kind, category and outcome, or listed."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, number, part, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import as_json, print_line, printable, stdout
from crawler.utils.text import count, megabytes
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from rich.table import Table

    from crawler.storage.client import Document

# As `crawler.storage.target_queries.State` has them.
STATES_LISTED = {
    "errors": "whose last visit failed",
    "due": "that are due",
    "gone": "that are gone",
}
STATES = ("targets", "due", "unlisted", "gone", "dead_links", "aliases", "errors")


USUAL_LIMIT = 50


class Command(FreshetCommand):
    """Counts or a list of targets."""

    arguments = ("[NAME]",)
    example = "scrapy targets books --json"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Count or list what is watched: by kind, category, outcome, errors, due"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What to list."""
        super().add_options(parser)
        parser.add_argument("--urls", action="store_true", help="list targets instead")
        states = parser.add_mutually_exclusive_group()
        for state, what in STATES_LISTED.items():
            states.add_argument(
                f"--{state}", dest="state", action="store_const", const=state,
                help=f"list targets {what}",
            )  # fmt: skip
        parser.add_argument(
            "--match", metavar="PART", type=part,
            help="list targets with this part in their URLs; * stands for any characters",
        )  # fmt: skip
        parser.add_argument(
            "--limit", metavar="N", type=number, default=USUAL_LIMIT,
            help=f"list at most N targets (default: {USUAL_LIMIT})",
        )  # fmt: skip
        parser.add_argument(
            "--skip", metavar="N", type=number, default=0, help="list the targets after the first N"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the counts, or the targets."""
        if opts.urls or opts.state or opts.match:
            found = asyncio.run(_listed(self.config, args[0] if args else None, opts))
            _show_listed(found, opts)
            return
        counts = asyncio.run(_counts(self.config, args[0] if args else None))
        if opts.json:
            print_json(counts)
        else:
            _show(counts)


async def _counts(config: Config, spider: str | None) -> dict[str, Any]:
    from crawler.storage import target_queries, targets
    from crawler.storage.store import opened

    async with opened(config) as db:
        counts = await target_queries.summary(db, spider, Clock(config.clock_offset_hours).now())
        if spider and not counts["targets"]:
            known = ", ".join(await targets.spiders(db)) or "none; run scrapy crawl first"
            raise ConfigError(f"no targets of {spider!r}; spiders with targets: {known}")
        return counts


async def _listed(config: Config, spider: str | None, opts: argparse.Namespace) -> Document:
    from crawler.storage import target_queries as lookup
    from crawler.storage import targets
    from crawler.storage.store import opened

    state = None if opts.state is None else lookup.State(opts.state)
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        known = await targets.spiders(db)
        if spider is not None and spider not in known:
            names = ", ".join(known) or "none; run scrapy crawl first"
            raise ConfigError(f"no targets of {spider!r}; spiders with targets: {names}")
        query, order = lookup.chosen(spider, state, opts.match, now, known)
        rows = await lookup.listed(db, query, order, opts.skip, opts.limit)
        total = await lookup.count(db, query)
    return {"targets": rows, "total": total}


def _show_listed(found: Document, opts: argparse.Namespace) -> None:
    """A line for each target; how many more there are goes to stderr where stdout is JSON."""
    rows, total = found["targets"], found["total"]
    for row in rows:
        print_line(as_json(_plain(row)) if opts.json else _line(row))
    more = total - opts.skip - len(rows)
    if not rows:
        which = STATES_LISTED[opts.state] if opts.state else "such targets"
        said = f"no targets {which}" if opts.state else "no such targets"
        said += " with that part in their URLs" if opts.match else ""
        said += f" behind the first {opts.skip:,}" if opts.skip and total else ""
    else:
        said = f"{len(rows):,} of {count(total, 'target')}, times in UTC"
        if more > 0:
            said += f"; {more:,} more: --limit N, or --skip {opts.skip + len(rows)}"
    print_line(said, error=opts.json)


def _plain(row: Document) -> Document:
    last = row.pop("last_visit", None) or {}
    shown = {name: value for name, value in row.items() if name != "_id"}
    return shown | {"reason": last.get("reason"), "status": last.get("status")}


def _line(row: Document) -> str:
    """`URL  item of shop, error 3 times in a row: status 500, next visit 2026-01-31 10:00`."""
    parts = [f"{row['kind']} of {row['spider']}", _state(row)]
    if "dead" not in row and not row.get("alias_of"):
        parts.append(f"next visit {row['next_visit']:%Y-%m-%d %H:%M}")
    return f"{printable(row['url'])}  {printable(', '.join(parts))}"


def _state(row: Document) -> str:
    """What the last visit found."""
    if alias := row.get("alias_of"):
        return f"the same page as {alias}"
    if "dead" in row:
        return "dead-lettered (scrapy dead list)"
    if row.get("visited_at") is None:
        return "never visited"
    outcome = str(row.get("outcome"))
    reason = (row.get("last_visit") or {}).get("reason")
    if (errors := row.get("consecutive_errors", 0)) > 1:
        outcome += f" {errors} times in a row"
    told = f"{outcome}: {reason}" if reason else outcome
    return f"{told} at {row['visited_at']:%Y-%m-%d %H:%M}"


def _show(counts: dict[str, Any]) -> None:
    from rich.columns import Columns

    states = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in STATES if counts[name]]
    console = stdout()
    states += [f"{megabytes(counts['kept_bytes'])} of versions"] if states else []
    console.print(", ".join(states) or "no targets")
    parts = ("kinds", "outcomes", "categories", "spiders")
    console.print(Columns([_table(part, counts[part]) for part in parts if counts[part]]))


def _table(title: str, rows: dict[str, int]) -> Table:
    from rich.table import Table

    table = Table(title, "targets")
    table.columns[1].justify = "right"
    for name, n in rows.items():
        table.add_row(name, f"{n:,}")
    return table
