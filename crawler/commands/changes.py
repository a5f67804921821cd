"""`scrapy changes`: what changed, what is new and what is gone, the newest first."""

from __future__ import annotations

import argparse
import asyncio
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, print_json
from crawler.cli.types import moment, number, url_part, when
from crawler.errors import ConfigError
from crawler.utils.terminal import printable, stdout
from crawler.utils.text import count, listed
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Database, Document

DEFAULT_LIMIT = 50
# Characters of a summary.
MAX_SUMMARY = 160
# Longer values are not shown in a summary.
MAX_VALUE = 40
MAX_FIELDS = 5
BACK = "back"
NOTHING = "no changes found"


class Command(FreshetCommand):
    """The newest events of the change log."""

    arguments = ("[NAME]",)
    example = "scrapy changes books --since 1d"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "List what changed, what is new and what is gone, newest first"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add what to list."""
        super().add_options(parser)
        parser.add_argument(
            "--since", metavar="T", type=when,
            help="from then on: a day or time (UTC), or a span such as 1d",
        )  # fmt: skip
        parser.add_argument(
            "--until", metavar="T", type=when, help="before then: a day or time (UTC), or a span"
        )
        parser.add_argument(
            "--match", metavar="PART", type=url_part,
            help="only URLs with this part; * stands for any characters",
        )  # fmt: skip
        parser.add_argument(
            "--limit", metavar="N", type=number, default=DEFAULT_LIMIT,
            help=f"list at most N changes (default: {DEFAULT_LIMIT})",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the changes, and how many more there are."""
        spiders, rows, total, is_cut = asyncio.run(self._read(args[0] if args else None, opts))
        if opts.json:
            print_json(rows)
            return
        from crawler.storage.visits import MAX_EVENTS

        console = stdout(soft_wrap=True)
        for row in rows:
            url = printable(row["url"])
            console.print(f"{row['at']:%Y-%m-%d %H:%M}  {row['outcome']:<7}  {url}")
            if row["summary"]:
                console.print(f"    {row['summary']}", style="dim")
        where = listed(spiders)
        if not rows:
            console.print(
                f"{NOTHING} in {where}; an earlier --since or scrapy crawl NAME may find some"
            )
            return
        also = ""
        if more := total - len(rows):
            last = f"{rows[-1]['at']:%Y-%m-%dT%H:%M}"
            also = f"; {more:,} more: --limit N, or --until {last}"
        console.print(f"{count(len(rows), 'change')} in {where}, times in UTC{also}")
        if is_cut:
            console.print(
                f"only the newest {MAX_EVENTS:,} were searched: --until goes further back"
            )

    async def _read(
        self, spider: str | None, opts: argparse.Namespace
    ) -> tuple[list[str], list[Document], int, bool]:
        """Spiders, changes, how many there are in all, and whether older ones were not searched."""
        from crawler.storage import targets, visits
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db:
            now = Clock(config.clock_offset_hours).now()
            span = moment(opts.since, now), moment(opts.until, now)
            spiders = await targets.spiders(db)
            if not spiders:
                raise ConfigError("no site has targets yet. Run scrapy crawl NAME first")
            if spider is not None:
                if spider not in spiders:
                    raise ConfigError(
                        f"site not found: {spider!r}. Sites with targets: {', '.join(spiders)}"
                    )
                spiders = [spider]
            rows, total, is_cut = await visits.latest(db, spiders, span, opts.match, opts.limit)
            return spiders, [await _change(db, row) for row in rows], total, is_cut


async def _change(db: Database, row: Document) -> Document:
    """A change as JSON has it."""
    from crawler.items import Outcome
    from crawler.storage import visits

    outcome = row["outcome"]
    if outcome == Outcome.GONE:
        summary = row.get("reason") or f"status {row['status']}"
    elif "posts_new" in row:
        nouns = (("posts_new", "new post"), ("posts_edited", "edited post"))
        parts = ", ".join(count(row[key], noun) for key, noun in nouns if row.get(key))
        titles = "; ".join(await visits.titles(db, row))
        summary = _short(": ".join(filter(None, (parts, titles))))
    elif outcome in (Outcome.NEW, Outcome.CHANGED):
        summary = summary_of(*await visits.contents(db, row), row["diff_size"])
    else:
        outcome, summary = BACK, "the page was gone before"
    return {
        "at": row["at"],
        "outcome": outcome,
        "spider": row["spider"],
        "url": row["target"],
        "summary": summary,
        "diff_size": row["diff_size"],
    }


def summary_of(before: Document | None, after: Document | None, diff_size: int = 0) -> str:
    """Return what changed between two contents, or what a new page holds, in one line.

    diff_size: characters that differ, for what is too long to be shown
    """
    if after is None:
        return f"{count(diff_size, 'character')} differ" if diff_size else ""
    if before is None:
        return _short(next(filter(None, map(_text, after.values())), ""))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    parts = [_field(name, before.get(name), after.get(name)) for name in names[:MAX_FIELDS]]
    summary = "; ".join(parts)
    if (more := len(names) - MAX_FIELDS) > 0:
        summary += f"; and {count(more, 'more field')}"
    if diff_size and any(part.endswith(" edited") for part in parts):
        summary += f" ({count(diff_size, 'character')} differ)"
    return _short(summary)


def _field(name: str, before: Any, after: Any) -> str:
    """How one field changed."""
    if isinstance(before, list) and isinstance(after, list):
        were, are = set(map(str, before)), set(map(str, after))
        added, removed = len(are - were), len(were - are)
        counts = [f"+{added:,}"] * bool(added) + [f"-{removed:,}"] * bool(removed)
        return f"{name}: {' '.join(counts) or 'in another order'}"
    old, new = _text(before), _text(after)
    if not new:
        return f"{name}: no longer there"
    if len(new) > MAX_VALUE or len(old) > MAX_VALUE:
        return f"{name} edited" if old else f"{name}: new"
    return f"{name}: {old} -> {new}" if old else f"{name}: {new}"


def _text(value: Any) -> str:
    """A value in one line; of a list, how many values it has."""
    if value is None:
        return ""
    if isinstance(value, list):
        return count(len(value), "value") if value else ""
    if isinstance(value, dict):
        return " ".join(filter(None, map(_text, value.values())))
    return " ".join(str(value).split())


def _short(text: str) -> str:
    return shorten(printable(text), MAX_SUMMARY, placeholder=" …")
