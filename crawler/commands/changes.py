"""`scrapy changes`: list changed, new and removed pages, newest first."""

from __future__ import annotations

import argparse
import asyncio
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, print_json
from crawler.cli.types import as_time, positive_int, time_or_age, url_part
from crawler.errors import ConfigError
from crawler.utils.terminal import printable, stdout
from crawler.utils.text import count, listed
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Database, Document

DEFAULT_LIMIT = 50
# Characters.
MAX_SUMMARY = 160
# Characters. Of longer values, a summary has only the names of their fields.
MAX_VALUE = 40
MAX_FIELDS = 5
BACK = "back"


class Command(FreshetCommand):
    """List the newest entries of the change log."""

    arguments = ("[NAME]",)
    example = "scrapy changes books --since 1d"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "List changed, new and removed pages, newest first"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options that select changes and limit their number."""
        super().add_options(parser)
        parser.add_argument(
            "--since", metavar="T", type=time_or_age,
            help="only changes since a day or time (UTC), or since a time ago such as 1d",
        )  # fmt: skip
        parser.add_argument(
            "--until", metavar="T", type=time_or_age,
            help="only changes before a day or time (UTC), or before a time ago such as 1d",
        )  # fmt: skip
        parser.add_argument(
            "--match", metavar="PART", type=url_part,
            help="only URLs that contain PART; * matches any characters",
        )  # fmt: skip
        parser.add_argument(
            "--limit", metavar="N", type=positive_int, default=DEFAULT_LIMIT,
            help=f"maximum number of changes (default: {DEFAULT_LIMIT})",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the changes, and the number of changes that are not shown."""
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
        names = listed(spiders)
        if not rows:
            console.print(
                f"no changes found in {names}. Try an earlier --since, or run scrapy crawl NAME"
            )
            return
        more = ""
        if left_out := total - len(rows):
            last = f"{rows[-1]['at']:%Y-%m-%dT%H:%M}"
            more = f". {left_out:,} more with --limit N or --until {last}"
        console.print(f"{count(len(rows), 'change')} in {names}, times in UTC{more}")
        if is_cut:
            console.print(
                f"only the newest {MAX_EVENTS:,} changes were searched. --until T searches older "
                "ones"
            )

    async def _read(
        self, spider: str | None, opts: argparse.Namespace
    ) -> tuple[list[str], list[Document], int, bool]:
        """Return spiders, changes, the number of all changes, and whether the search was cut."""
        from crawler.storage import targets, visits
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db:
            now = Clock(config.clock_offset_hours).now()
            span = as_time(opts.since, now), as_time(opts.until, now)
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
            return spiders, [await _change_json(db, row) for row in rows], total, is_cut


async def _change_json(db: Database, row: Document) -> Document:
    """Return a change as `--json` prints it. row: its visit."""
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
        outcome, summary = BACK, "the page was gone before this visit"
    return {
        "at": row["at"],
        "outcome": outcome,
        "spider": row["spider"],
        "url": row["target"],
        "summary": summary,
        "diff_size": row["diff_size"],
    }


def summary_of(before: Document | None, after: Document | None, diff_size: int = 0) -> str:
    """Summarize the changes between two contents, or the content of a new page, in one line.

    diff_size: characters that differ, shown instead of long values
    """
    if after is None:
        return f"{count(diff_size, 'character')} differ" if diff_size else ""
    if before is None:
        return _short(next(filter(None, map(_text, after.values())), ""))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    parts = [_field_change(name, before.get(name), after.get(name)) for name in names[:MAX_FIELDS]]
    summary = "; ".join(parts)
    if (more := len(names) - MAX_FIELDS) > 0:
        summary += f"; and {count(more, 'more field')}"
    if diff_size and any(part.endswith(" edited") for part in parts):
        summary += f" ({count(diff_size, 'character')} differ)"
    return _short(summary)


def _field_change(name: str, before: Any, after: Any) -> str:
    """Summarize the change of one field."""
    if isinstance(before, list) and isinstance(after, list):
        were, are = set(map(str, before)), set(map(str, after))
        added, removed = len(are - were), len(were - are)
        counts = [f"+{added:,}"] * bool(added) + [f"-{removed:,}"] * bool(removed)
        return f"{name}: {' '.join(counts) or 'reordered'}"
    old, new = _text(before), _text(after)
    if not new:
        return f"{name}: removed"
    if len(new) > MAX_VALUE or len(old) > MAX_VALUE:
        return f"{name} edited" if old else f"{name}: new"
    return f"{name}: {old} -> {new}" if old else f"{name}: {new}"


def _text(value: Any) -> str:
    """Return a value in one line; for a list, its number of values."""
    if value is None:
        return ""
    if isinstance(value, list):
        return count(len(value), "value") if value else ""
    if isinstance(value, dict):
        return " ".join(filter(None, map(_text, value.values())))
    return " ".join(str(value).split())


def _short(text: str) -> str:
    return shorten(printable(text), MAX_SUMMARY, placeholder=" …")
