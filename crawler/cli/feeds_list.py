"""`scrapy feeds list`: the state of each feed."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crawler.cli.base import MIN_FIGURES_COLUMNS
from crawler.cli.feeds import spider_option
from crawler.cli.types import category, positive_int
from crawler.config import Config
from crawler.feeds.subscriptions import TITLE_CHARACTERS, tidy
from crawler.reports.feeds import FeedState, feed_states, owned
from crawler.storage import feeds as subscriptions
from crawler.storage.client import opened
from crawler.utils.terminal import as_json, print_line, shortened, stdout
from crawler.utils.text import amount, count, span
from crawler.utils.time import NEVER

DEFAULT_LIMIT = 1000
# A terminal with at least this many columns shows the URL in its own column.
MIN_WIDE_COLUMNS = 110
STATE_CHARACTERS = 80


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, and options that select feeds and limit their number."""
    parser.add_argument(
        "urls", metavar="URL", nargs="*", help="feeds or aliases to list (default: all)"
    )
    parser.add_argument("--errors", action="store_true", help="list only feeds with errors")
    parser.add_argument(
        "--category", metavar="NAME", type=category,
        help="list only feeds in this category and its subcategories",
    )  # fmt: skip
    parser.add_argument(
        "--limit", metavar="N", type=positive_int, default=DEFAULT_LIMIT,
        help=f"maximum number of rows in the table (default: {DEFAULT_LIMIT}); --json lists all",
    )  # fmt: skip
    spider_option(parser)


def run(config: Config, opts: argparse.Namespace) -> None:
    """Print the feeds as a table, or as JSON."""
    asyncio.run(_list(config, opts))


async def _list(config: Config, opts: argparse.Namespace) -> None:
    async with opened(config) as db:
        now = config.clock.now()
        if opts.urls:
            urls = await owned(db, config, opts.spider, opts.urls)
            query = subscriptions.of_urls(opts.spider, urls)
        else:
            query = subscriptions.all_of(opts.spider)
        if opts.category:
            query |= subscriptions.within(opts.category)
        rows = (
            row async for row in feed_states(db, query) if row["needs_attention"] or not opts.errors
        )
        if not opts.json:
            await _print_table(rows, opts, now)
            return
        # Printed row by row, because the list may not fit into memory.
        print("[", end="")
        separator = "\n"
        async for row in rows:
            print(separator + as_json(row), end="")
            separator = ",\n"
        print_line("\n]")


async def _print_table(
    rows: AsyncIterator[FeedState], opts: argparse.Namespace, now: datetime
) -> None:
    console = stdout()
    is_wide = console.width >= MIN_WIDE_COLUMNS
    has_figures = console.width >= MIN_FIGURES_COLUMNS
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("feed", "URL") if is_wide else ("feed",):
        table.add_column(name)
    for name in ("a week", "size", "fetched", "next", "missed") if has_figures else ("next",):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state")
    is_cut = False
    async for row in rows:
        if is_cut := table.row_count == opts.limit:
            break
        rate, size, missed = row["rate_per_week"], row["feed_size"], row["missed_posts"]
        title = tidy(row["title"] or "", TITLE_CHARACTERS)
        fetched = ""
        if row["last_visit"]:
            fetched = f"{span(max(now - row['last_visit'], timedelta()).total_seconds())} ago"
        wait = row["next_visit"] - now
        next_visit = f"in {span(wait.total_seconds())}" if wait > timedelta() else "due"
        next_visit = next_visit if row["next_visit"] < NEVER else "none"
        figures = (
            amount(rate) if rate is not None else "not known" if row["last_visit"] else "",
            "" if size is None else f"{size}{'' if row['full'] else '+'}",
            fetched,
            next_visit,
            amount(round(missed)) if missed else "",
        )
        table.add_row(
            *map(shortened, [title, row["url"]] if is_wide else [title or row["url"]]),
            *(figures if has_figures else (next_visit,)),
            shortened(shorten(row["state"], width=STATE_CHARACTERS, placeholder="…")),
        )
    shown = count(table.row_count, "feed")
    if table.row_count:
        console.print(table)
        if is_cut:
            shown = f"first {shown} shown. --limit N shows more, --json shows all"
        console.print(shown)
    elif opts.errors or opts.category:
        console.print("no matching feeds", soft_wrap=True)
    else:
        console.print(
            "no feeds yet. Add some with scrapy feeds import FILE or scrapy feeds add URL",
            soft_wrap=True,
        )
