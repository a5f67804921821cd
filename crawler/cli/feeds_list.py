"""`scrapy feeds list`: how each feed is doing."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from crawler.cli.base import number
from crawler.cli.feeds import category, owned, spider_option
from crawler.config import Config
from crawler.feeds.subscriptions import TITLE_CHARACTERS, tidy
from crawler.storage import feeds as subscriptions
from crawler.storage.client import Database, Document
from crawler.storage.store import opened
from crawler.utils.terminal import as_json, print_line, shortened, stdout
from crawler.utils.text import amount, count, is_known, span
from crawler.utils.time import Clock

WEEK = timedelta(weeks=1)
# Of fewer, the rate is known only to a factor of more than ten.
ENOUGH_POSTS = 3
OF_PUSH = ("hub", "topic", "state", "lease_until", "asked_at", "delivered_at", "deliveries")


def row_of(target: Document, monitor: Document) -> Document:
    """A row of the list.

    rate_per_week: posts, as the plan has it, else as the past has it; None while not known
    window_full:   posts have been seen to leave the document, so it holds no more than `window`
    trouble:       whether somebody should look at it
    """
    state, trouble = _state(target, monitor)
    push = monitor.get("push") or {}
    return {
        "url": target["url"],
        "title": target.get("title") or monitor.get("title"),
        "site": monitor.get("site"),
        "format": monitor.get("format"),
        "categories": target.get("categories", []),
        "rate_per_week": _rate(target),
        "window": monitor.get("window"),
        "window_full": bool(monitor.get("full")),
        "posts": monitor.get("posts", 0),
        "missed": monitor.get("missed", 0.0),
        "lapses": monitor.get("lapses", 0),
        "last_visit": target.get("visited_at"),
        "next_visit": target.get("next_visit"),
        "outcome": target.get("outcome"),
        "error": _error(target, monitor),
        "problems": monitor.get("problems", []),
        "consecutive_errors": target.get("consecutive_errors", 0),
        "push": {name: push.get(name) for name in OF_PUSH} if push else None,
        "plan": target.get("plan"),
        "gone": bool(target.get("gone")),
        "alias_of": target.get("alias_of"),
        "state": state,
        "trouble": trouble,
    }


def _state(target: Document, monitor: Document) -> tuple[str, bool]:
    """How a feed is doing in a few words, and whether that is trouble."""
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
    """Why the last visit failed; None if it did not."""
    if not (target.get("consecutive_errors") or target.get("consecutive_gone")):
        return None
    last = target.get("last_visit") or {}
    said = monitor.get("error") or last.get("reason") or target.get("outcome")
    return str(said or "error")


def _rate(target: Document) -> float | None:
    plan, past = target.get("plan") or {}, target.get("history") or {}
    if (rate := plan.get("rate_per_week")) is not None:
        return float(rate) if is_known(plan.get("rate_low"), plan.get("rate_high")) else None
    if "since" not in past or target["changes"] < ENOUGH_POSTS:
        return None
    weeks: float = max(past["until"] - past["since"], WEEK) / WEEK
    posts: int = target["changes"]
    return round(posts / weeks, 3)


USUAL_LIMIT = 1000
# From so many columns on, the URL stands beside the title.
WIDE = 110
STATE_CHARACTERS = 80


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which feeds, and how many."""
    parser.add_argument("urls", metavar="URL", nargs="*", help="only these")
    parser.add_argument("--errors", action="store_true", help="only those with trouble")
    parser.add_argument(
        "--category", metavar="NAME", type=category, help="only those in it or below it"
    )
    parser.add_argument(
        "--limit", metavar="N", type=number, default=USUAL_LIMIT,
        help="rows of the table at most (default: 1000); --json shows all",
    )  # fmt: skip
    spider_option(parser)


def run(config: Config, opts: argparse.Namespace) -> int:
    """Print a table, or all there is as JSON."""
    asyncio.run(_list(config, opts))
    return 0


async def _list(config: Config, opts: argparse.Namespace) -> None:
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        rows = _rows(db, await _query(db, config, opts), now, errors=opts.errors)
        if opts.json:
            await _print_json(rows)
        else:
            await _print_table(rows, opts, now)


async def _query(db: Database, config: Config, opts: argparse.Namespace) -> Document:
    if opts.urls:
        urls = await owned(db, config, opts.spider, opts.urls)
        query = subscriptions.of_urls(opts.spider, urls)
    else:
        query = subscriptions.all_of(opts.spider)
    return query | (subscriptions.within(opts.category) if opts.category else {})


async def _rows(
    db: Database, query: Document, now: datetime, *, errors: bool
) -> AsyncIterator[Document]:
    async for target, monitor in subscriptions.listed(db, query):
        row = row_of(target, monitor)
        if row["trouble"] or not errors:
            yield row


async def _print_json(rows: AsyncIterator[Document]) -> None:
    """A list, row by row: it may be a long one."""
    print("[", end="")
    before = "\n"
    async for row in rows:
        print(before + as_json(row), end="")
        before = ",\n"
    print_line("\n]")


async def _print_table(
    rows: AsyncIterator[Document], opts: argparse.Namespace, now: datetime
) -> None:
    console = stdout()
    table = _empty(wide := console.width >= WIDE)
    async for row in rows:
        if table.row_count == opts.limit:
            break
        table.add_row(*_cells(row, now, wide=wide))
        more = False
    else:
        more = True
    if not table.row_count:
        console.print(_nothing(opts), soft_wrap=True)
        return
    console.print(table)
    shown = count(table.row_count, "feed")
    console.print(shown if more else f"the first {shown}; --limit N shows more, --json all")


def _nothing(opts: argparse.Namespace) -> str:
    if opts.errors or opts.category:
        return "no such feeds"
    return "no feeds; scrapy feeds import FILE or scrapy feeds add URL brings some"


def _empty(wide: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("feed")
    if wide:
        table.add_column("URL")
    for name in ("a week", "S", "fetched", "next", "missed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state")
    return table


def _cells(row: Document, now: datetime, *, wide: bool) -> list[str | Text]:
    rate, window, missed = row["rate_per_week"], row["window"], row["missed"]
    title = tidy(row["title"] or "", TITLE_CHARACTERS)
    return [
        *map(shortened, [title, row["url"]] if wide else [title or row["url"]]),
        amount(rate) if rate is not None else "not known" if row["last_visit"] else "",
        "" if window is None else f"{window}{'' if row['window_full'] else '+'}",
        _ago(now - row["last_visit"]) if row["last_visit"] else "",
        _ahead(row["next_visit"] - now) if row["next_visit"] else "",
        amount(round(missed)) if missed else "",
        shortened(shorten(row["state"], width=STATE_CHARACTERS, placeholder="…")),
    ]


def _ago(past: timedelta) -> str:
    return f"{span(max(past, timedelta()).total_seconds())} ago"


def _ahead(rest: timedelta) -> str:
    return f"in {span(rest.total_seconds())}" if rest > timedelta() else "due"
