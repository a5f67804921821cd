"""`scrapy targets`: the targets, counted by kind, category and outcome, or listed."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, no_targets, print_json
from crawler.cli.types import number, url_part
from crawler.utils.terminal import as_json, print_line, printable, stdout
from crawler.utils.text import count, megabytes
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Document

# As `crawler.storage.target_queries.State` has them.
STATES_LISTED = {
    "errors": "whose last visit failed",
    "due": "that are due",
    "gone": "that are gone",
}
STATES = ("targets", "due", "unlisted", "gone", "dead_links", "aliases", "errors")
DEFAULT_LIMIT = 50


class Command(FreshetCommand):
    """Counts or a list of targets."""

    arguments = ("[NAME]",)
    example = "scrapy targets books --json"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Count or list what is watched: by kind, category, outcome, errors, due"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add what to list."""
        super().add_options(parser)
        parser.add_argument("--urls", action="store_true", help="list targets instead")
        states = parser.add_mutually_exclusive_group()
        for state, what in STATES_LISTED.items():
            states.add_argument(
                f"--{state}", dest="state", action="store_const", const=state,
                help=f"list targets {what}",
            )  # fmt: skip
        parser.add_argument(
            "--match", metavar="PART", type=url_part,
            help="list targets with this part in their URLs; * stands for any characters",
        )  # fmt: skip
        parser.add_argument(
            "--limit", metavar="N", type=number, default=DEFAULT_LIMIT,
            help=f"list at most N targets (default: {DEFAULT_LIMIT})",
        )  # fmt: skip
        parser.add_argument(
            "--skip", metavar="N", type=number, default=0, help="list the targets after the first N"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the counts, or the targets."""
        spider = args[0] if args else None
        if opts.urls or opts.state or opts.match:
            rows, total = asyncio.run(self._list(spider, opts))
            self._show_list(rows, total, opts)
            return
        counts = asyncio.run(self._count(spider))
        if opts.json:
            print_json(counts)
        else:
            self._show_counts(counts)

    async def _count(self, spider: str | None) -> dict[str, Any]:
        from crawler.storage import target_queries, targets
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db:
            now = Clock(config.clock_offset_hours).now()
            counts = await target_queries.summary(db, spider, now)
            if spider and not counts["targets"]:
                raise no_targets(spider, await targets.spiders(db))
            return counts

    async def _list(
        self, spider: str | None, opts: argparse.Namespace
    ) -> tuple[list[Document], int]:
        """The targets to print, and how many there are in all."""
        from crawler.storage import target_queries, targets
        from crawler.storage.store import opened

        config = self.config
        state = None if opts.state is None else target_queries.State(opts.state)
        async with opened(config) as db:
            now = Clock(config.clock_offset_hours).now()
            spiders = await targets.spiders(db)
            if spider is not None and spider not in spiders:
                raise no_targets(spider, spiders)
            query, order = target_queries.chosen(spider, state, opts.match, now, spiders)
            rows = await target_queries.listed(db, query, order, opts.skip, opts.limit)
            return rows, await target_queries.count(db, query)

    def _show_list(self, rows: list[Document], total: int, opts: argparse.Namespace) -> None:
        """A line for each target; the summary goes to stderr where stdout is JSON."""
        for row in rows:
            if opts.json:
                last = row.pop("last_visit", None) or {}
                target = {name: value for name, value in row.items() if name != "_id"}
                visit = {"reason": last.get("reason"), "status": last.get("status")}
                print_line(as_json(target | visit))
                continue
            # `URL  item of shop, error 3 times in a row: status 500, next visit 2026-01-31 10:00`
            parts = [f"{row['kind']} of {row['spider']}", _state(row)]
            if "dead" not in row and not row.get("alias_of"):
                parts.append(f"next visit {row['next_visit']:%Y-%m-%d %H:%M}")
            print_line(f"{printable(row['url'])}  {printable(', '.join(parts))}")
        if rows:
            summary = f"{len(rows):,} of {count(total, 'target')}, times in UTC"
            if (more := total - opts.skip - len(rows)) > 0:
                summary += f"; {more:,} more: --limit N, or --skip {opts.skip + len(rows)}"
        else:
            summary = f"no targets {STATES_LISTED[opts.state]}" if opts.state else "no such targets"
            summary += " with that part in their URLs" if opts.match else ""
            summary += f" behind the first {opts.skip:,}" if opts.skip and total else ""
        print_line(summary, error=opts.json)

    def _show_counts(self, counts: dict[str, Any]) -> None:
        from rich.columns import Columns
        from rich.table import Table

        states = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in STATES if counts[name]]
        console = stdout()
        states += [f"{megabytes(counts['kept_bytes'])} of versions"] if states else []
        console.print(", ".join(states) or "no targets")
        tables = []
        for title in ("kinds", "outcomes", "categories", "spiders"):
            if not counts[title]:
                continue
            table = Table(title, "targets")
            table.columns[1].justify = "right"
            for name, n in counts[title].items():
                table.add_row(name, f"{n:,}")
            tables.append(table)
        console.print(Columns(tables))


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
    if reason:
        outcome += f": {reason}"
    return f"{outcome} at {row['visited_at']:%Y-%m-%d %H:%M}"
