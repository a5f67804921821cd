"""`scrapy feeds list`: the state of each feed."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crawler.cli.feeds import owned, spider_option
from crawler.cli.types import category, positive_int
from crawler.config import Config
from crawler.feeds.subscriptions import TITLE_CHARACTERS, tidy
from crawler.storage import feeds as subscriptions
from crawler.storage.client import Document
from crawler.storage.store import opened
from crawler.utils.terminal import as_json, print_line, shortened, stdout
from crawler.utils.text import amount, count, is_known, span
from crawler.utils.time import Clock

WEEK = timedelta(weeks=1)
# With fewer posts, the uncertainty of the rate is more than a factor of ten.
MIN_POSTS = 3
DEFAULT_LIMIT = 1000
# A terminal with at least this many columns shows the URL in its own column.
MIN_WIDE_COLUMNS = 110
STATE_CHARACTERS = 80
PUSH_FIELDS = ("hub", "topic", "state", "lease_until", "asked_at", "delivered_at", "deliveries")


def row_of(target: Document, monitor: Document) -> Document:
    """Return a feed's row of the list.

    rate_per_week: posts a week by the plan, else by the history; None while it is not known
    window:        posts in the feed document
    window_full:   posts have dropped out of the document, so it never holds more than `window`
    needs_attention: the feed has an error that needs attention
    """
    state, needs_attention = _state(target, monitor)
    push = monitor.get("push") or {}
    plan, history = target.get("plan") or {}, target.get("history") or {}
    rate: float | None = None
    if (planned := plan.get("rate_per_week")) is not None:
        if is_known(plan.get("rate_low"), plan.get("rate_high")):
            rate = float(planned)
    elif "since" in history and target["changes"] >= MIN_POSTS:
        weeks = max(history["until"] - history["since"], WEEK) / WEEK
        rate = round(target["changes"] / weeks, 3)
    return {
        "url": target["url"],
        "title": target.get("title") or monitor.get("title"),
        "site": monitor.get("site"),
        "format": monitor.get("format"),
        "categories": target.get("categories", []),
        "rate_per_week": rate,
        "feed_size": monitor.get("feed_size"),
        "window_full": bool(monitor.get("full")),
        "posts": monitor.get("posts", 0),
        "missed_posts": monitor.get("missed_posts", 0.0),
        "gaps": monitor.get("gaps", 0),
        "last_visit": target.get("visited_at"),
        "next_visit": target.get("next_visit"),
        "outcome": target.get("outcome"),
        "error": _error(target, monitor),
        "problems": monitor.get("problems", []),
        "consecutive_errors": target.get("consecutive_errors", 0),
        "push": {name: push.get(name) for name in PUSH_FIELDS} if push else None,
        "plan": target.get("plan"),
        "gone": bool(target.get("gone")),
        "alias_of": target.get("alias_of"),
        "state": state,
        "needs_attention": needs_attention,
    }


def _state(target: Document, monitor: Document) -> tuple[str, bool]:
    """Return a feed's state in a few words, and whether it needs attention."""
    if alias_of := target.get("alias_of"):
        return f"alias of {alias_of}", False
    if target.get("gone"):
        return "gone", True
    if not target.get("visited_at"):
        return "never fetched", False
    if error := _error(target, monitor):
        return error, True
    if problems := monitor.get("problems"):
        return count(len(problems), "problem"), True
    active = (monitor.get("push") or {}).get("state") == "active"
    return ("push active" if active else "ok"), False


def _error(target: Document, monitor: Document) -> str | None:
    """Return why the last visit failed; None if it succeeded."""
    if not (target.get("consecutive_errors") or target.get("consecutive_gone")):
        return None
    last = target.get("last_visit") or {}
    return str(monitor.get("error") or last.get("reason") or target.get("outcome") or "error")


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
        now = Clock(config.clock_offset_hours).now()
        if opts.urls:
            urls = await owned(db, config, opts.spider, opts.urls)
            query = subscriptions.of_urls(opts.spider, urls)
        else:
            query = subscriptions.all_of(opts.spider)
        if opts.category:
            query |= subscriptions.within(opts.category)
        rows = (
            row
            async for target, monitor in subscriptions.listed(db, query)
            if (row := row_of(target, monitor))["needs_attention"] or not opts.errors
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
    rows: AsyncIterator[Document], opts: argparse.Namespace, now: datetime
) -> None:
    console = stdout()
    is_wide = console.width >= MIN_WIDE_COLUMNS
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("feed", "URL") if is_wide else ("feed",):
        table.add_column(name)
    for name in ("a week", "size", "fetched", "next", "missed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state")
    is_cut = False
    async for row in rows:
        if is_cut := table.row_count == opts.limit:
            break
        rate, size, missed = row["rate_per_week"], row["feed_size"], row["missed_posts"]
        title = tidy(row["title"] or "", TITLE_CHARACTERS)
        fetched = next_visit = ""
        if row["last_visit"]:
            fetched = f"{span(max(now - row['last_visit'], timedelta()).total_seconds())} ago"
        if row["next_visit"]:
            wait = row["next_visit"] - now
            next_visit = f"in {span(wait.total_seconds())}" if wait > timedelta() else "due"
        table.add_row(
            *map(shortened, [title, row["url"]] if is_wide else [title or row["url"]]),
            amount(rate) if rate is not None else "not known" if row["last_visit"] else "",
            "" if size is None else f"{size}{'' if row['window_full'] else '+'}",
            fetched,
            next_visit,
            amount(round(missed)) if missed else "",
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
