"""`scrapy targets list`: targets by kind, category, outcome and state, or one per line."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from crawler.cli.base import no_targets, print_json
from crawler.cli.types import positive_int, url_part
from crawler.config import Config
from crawler.utils.terminal import print_line, printable, stdout
from crawler.utils.text import count, megabytes
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.target_queries import TargetCounts, TargetState

# The values of `crawler.storage.target_queries.State`.
STATES_LISTED = {
    "errors": "whose last visit failed",
    "due": "that are due",
    "gone": "that are gone",
    "muted": "that are muted",
}
STATES = ("targets", "due", "unlisted", "gone", "dead_links", "aliases", "errors")
DEFAULT_LIMIT = 50


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the name of a spider, and options that list targets instead of counting them."""
    parser.add_argument("spider", metavar="NAME", nargs="?", help="spider (default: all spiders)")
    parser.add_argument("--urls", action="store_true", help="list targets instead of counting them")
    states = parser.add_mutually_exclusive_group()
    for state, description in STATES_LISTED.items():
        states.add_argument(
            f"--{state}", dest="state", action="store_const", const=state,
            help=f"list targets {description}",
        )  # fmt: skip
    parser.add_argument(
        "--match", metavar="PART", type=url_part,
        help="list targets whose URL contains PART; * matches any characters",
    )  # fmt: skip
    parser.add_argument(
        "--limit", metavar="N", type=positive_int, default=DEFAULT_LIMIT,
        help=f"maximum number of targets to list (default: {DEFAULT_LIMIT})",
    )  # fmt: skip
    parser.add_argument(
        "--skip", metavar="N", type=positive_int, default=0,
        help="number of targets to skip at the beginning of the list (default: 0)",
    )  # fmt: skip


def run(config: Config, opts: argparse.Namespace) -> None:
    """Print the counts, or the list."""
    if opts.urls or opts.state or opts.match:
        rows, total = asyncio.run(_list(config, opts))
        if opts.json:
            print_json(rows)
        else:
            _show_list(rows, total, opts)
        return
    counts = asyncio.run(_count(config, opts.spider))
    if opts.json:
        print_json(counts)
    else:
        _show_counts(counts)


async def _count(config: Config, spider: str | None) -> TargetCounts:
    from crawler.storage import target_queries, targets
    from crawler.storage.store import opened

    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        counts = await target_queries.summary(db, spider, now)
        if spider and not counts["targets"]:
            raise no_targets(spider, await targets.spiders(db))
        return counts


async def _list(config: Config, opts: argparse.Namespace) -> tuple[list[TargetState], int]:
    """Return the targets to print, and the number of all matching targets."""
    from crawler.storage import target_queries, targets
    from crawler.storage.store import opened

    state = None if opts.state is None else target_queries.State(opts.state)
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        spiders = await targets.spiders(db)
        if opts.spider is not None and opts.spider not in spiders:
            raise no_targets(opts.spider, spiders)
        query, order = target_queries.chosen(opts.spider, state, opts.match, now, spiders)
        rows = await target_queries.listed(db, query, order, opts.skip, opts.limit)
        return rows, await target_queries.count(db, query)


def _show_list(rows: list[TargetState], total: int, opts: argparse.Namespace) -> None:
    for row in rows:
        # `URL  item of shop, error 3 times in a row: status 500, next visit 2026-01-31 10:00`
        parts = [f"{row['kind']} of {row['spider']}", _state(row)]
        is_visited = row["dead_lettered_at"] is None and row["muted_at"] is None
        if is_visited and not row["alias_of"]:
            parts.append(f"next visit {row['next_visit']:%Y-%m-%d %H:%M}")
        print_line(f"{printable(row['url'])}  {printable(', '.join(parts))}")
    if rows:
        summary = f"{len(rows):,} of {count(total, 'target')}, times in UTC"
        if (more := total - opts.skip - len(rows)) > 0:
            summary += f". {more:,} more with --limit N or --skip {opts.skip + len(rows)}"
    else:
        summary = f"no targets {STATES_LISTED[opts.state]}" if opts.state else "no targets"
        if opts.match:
            summary += f" {'and' if opts.state else 'that'} match {opts.match!r}"
        summary += f" after the first {opts.skip:,}" if opts.skip and total else ""
    print_line(summary)


def _show_counts(counts: TargetCounts) -> None:
    from rich.columns import Columns
    from rich.table import Table

    console = stdout()
    numbers: dict[str, Any] = {**counts}
    states = [f"{numbers[name]:,} {name.replace('_', ' ')}" for name in STATES if numbers[name]]
    states += [f"{megabytes(counts['kept_bytes'])} of versions"] if states else []
    console.print(", ".join(states) or "no targets")
    tables = []
    for title in ("kinds", "outcomes", "categories", "spiders"):
        if not numbers[title]:
            continue
        table = Table(title, "targets")
        table.columns[1].justify = "right"
        for name, n in numbers[title].items():
            table.add_row(name, f"{n:,}")
        tables.append(table)
    console.print(Columns(tables))


def _state(row: TargetState) -> str:
    """Return the outcome of the target's last visit, or why it is not visited."""
    if row["alias_of"]:
        return f"alias of {row['alias_of']}"
    if row["dead_lettered_at"] is not None:
        return "dead-lettered (scrapy deadletters list)"
    if row["muted_at"] is not None:
        return "muted"
    if row["visited_at"] is None:
        return "never visited"
    outcome = str(row["outcome"])
    if (errors := row["consecutive_errors"]) > 1:
        outcome += f" {errors} times in a row"
    if row["reason"]:
        outcome += f": {row['reason']}"
    return f"{outcome} at {row['visited_at']:%Y-%m-%d %H:%M}"
