"""`scrapy feeds`: import, add, export, list and remove feeds, and receive pushed updates."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, BinaryIO, ClassVar, NamedTuple, cast

from rich.text import Text
from typing_extensions import TypedDict

from crawler.cli.base import (
    MIN_FIGURES_COLUMNS,
    Action,
    ActionsCommand,
    confirm,
    print_json,
    table,
    with_database,
)
from crawler.cli.options import add_limit, add_yes, category
from crawler.config import Config
from crawler.errors import Busy, ConfigError
from crawler.utils.files import atomic_replace, file_errors
from crawler.utils.terminal import (
    as_json,
    complain,
    print_line,
    shortened,
    stdout,
    visible,
    without_secrets,
    working,
)
from crawler.utils.text import amount, count, documents, listed, span
from crawler.utils.time import NEVER

if TYPE_CHECKING:
    from crawler.feeds.subscriptions import Refused
    from crawler.reports.feeds import AddedFeed, FeedState, RemovalReport
    from crawler.storage.client import Database

NAME = "feeds"
SHOWN_REFUSALS = 20
# The file name of standard input and of standard output.
STANDARD = "-"
# A longer list from standard input goes to a temporary file.
IN_MEMORY_MB = 16
OPML, URLS = "opml", "urls"
DEFAULT_LIMIT = 1000
# A terminal with at least this many columns shows the URL in its own column.
MIN_WIDE_COLUMNS = 110
STATE_CHARACTERS = 80


class ExportedFeed(TypedDict):
    """A feed."""

    url: str
    """URL of the feed."""
    title: str | None
    """Title."""
    site: str | None
    """URL of the site."""
    categories: list[str]
    """Categories."""


class ExportReport(TypedDict):
    """A file of feeds."""

    feeds: int
    """Number of feeds."""
    file: str
    """The file."""


class Command(ActionsCommand):
    """Import, add, export, list and remove feeds, and receive pushed updates."""

    summary = "Import, add, export, list or remove feeds; receive updates from WebSub hubs"
    example = "scrapy feeds import subscriptions.opml"
    documents: ClassVar = {
        "scrapy feeds import FILE --json": "crawler.reports.feeds.ImportReport",
        "scrapy feeds add URL --json": "crawler.reports.feeds.AddReport",
        "scrapy feeds export --json": list[ExportedFeed],
        "scrapy feeds export FILE --json": ExportReport,
        "scrapy feeds list --json": "list[crawler.reports.feeds.FeedState]",
        "scrapy feeds remove URL --yes --json": "crawler.reports.feeds.RemovalReport",
        "scrapy feeds push --callback URL --for 3600 --json": (
            "crawler.web.websub.service.PushReport"
        ),
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the actions."""
        from crawler.web.options import add_push_options

        return {
            "import": Action(
                "Add the feeds of an OPML file or of a list of URLs",
                "scrapy feeds import subscriptions.opml", run_import, import_options,
            ),
            "add": Action(
                "Add a feed, or the feed that a web page links to",
                "scrapy feeds add https://blog.example/ --category News/Local",
                run_add, adding_options,
            ),
            "export": Action(
                "Write all feeds as OPML, which import can read",
                "scrapy feeds export feeds.opml", run_export, export_options,
            ),
            "list": Action(
                "List feeds: posts a week, feed size in posts, visits, missed posts, errors",
                "scrapy feeds list --errors", run_list, list_options,
            ),
            "remove": Action(
                "Remove feeds with their posts, versions and visits",
                "scrapy feeds remove https://blog.example/feed --yes",
                run_remove, remove_options,
            ),
            "push": Action(
                "Subscribe to WebSub hubs and receive their updates",
                "scrapy feeds push --callback https://public.example/push",
                run_push, add_push_options,
            ),
        }  # fmt: skip


def spider_option(parser: argparse.ArgumentParser) -> None:
    """Add the `--spider` option."""
    from crawler.reports.feeds import COMMAND

    parser.add_argument(
        "--spider", metavar="NAME", default=COMMAND,
        help=f"spider that collects the feeds (default: {COMMAND})",
    )  # fmt: skip


def import_options(parser: argparse.ArgumentParser) -> None:
    """Add the file and `--spider`."""
    parser.add_argument(
        "file", metavar="FILE|-", help="OPML file, or text file with one URL per line; - is stdin"
    )
    spider_option(parser)


def run_import(config: Config, opts: argparse.Namespace) -> int:
    """Read the whole list, then store its feeds; return 1 if it has none."""
    from crawler.feeds.subscriptions import read_list
    from crawler.reports.feeds import import_report
    from crawler.storage import feeds

    with working(config.progress, "reading the list"), _seekable_file(opts.file) as (file, name):
        feed_list = read_list(file, name, config)
    now = config.clock.now()
    with working(config.progress, f"storing {count(len(feed_list.feeds), 'feed')}"):
        stored = with_database(config, lambda db: feeds.add(db, opts.spider, feed_list.feeds, now))
    report = import_report(feed_list, stored)
    if opts.json:
        print_json(report)
    else:
        parts = [
            f"{count(stored.added, 'feed')} added, {stored.known:,} already known",
            count(report["categories"], "category"),
        ]
        if feed_list.refused:
            parts.append(f"{len(feed_list.refused):,} rejected")
        print_line(", ".join(parts))
        for problem in feed_list.problems:
            print_line(f"note: {problem}")
        _print_refusals(feed_list.refused)
    return 0 if feed_list.feeds else 1


@contextmanager
def _seekable_file(name: str) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file, or a copy of it if it is a pipe, so that it can be read twice.

    Yields the file and its name for messages. Raises ConfigError.
    """
    from crawler.feeds.subscriptions import BYTES_IN_MB, MAX_MB

    shown = "standard input" if name == STANDARD else name
    try:
        with sys.stdin.buffer if name == STANDARD else Path(name).open("rb") as file:
            if file.seekable():
                yield file, shown
                return
            with tempfile.SpooledTemporaryFile(IN_MEMORY_MB * BYTES_IN_MB) as copy:
                left = MAX_MB * BYTES_IN_MB
                while chunk := file.read(BYTES_IN_MB):
                    left -= len(chunk)
                    if left < 0:
                        raise ConfigError(
                            f"{shown}: larger than {MAX_MB} MB. Split it into smaller lists"
                        )
                    copy.write(chunk)
                yield cast(BinaryIO, copy), shown
    except OSError as error:
        raise ConfigError(f"{shown}: {error.strerror or error}") from None


def _print_refusals(refused: Sequence[Refused]) -> None:
    """Print a line on stderr for each of the first rejected feeds, and the number of others."""
    for refusal in refused[:SHOWN_REFUSALS]:
        where = f"{refusal.where}: " if refusal.where else ""
        complain(NAME, f"{where}{refusal.url or '(empty)'}: {refusal.reason}")
    if (more := len(refused) - SHOWN_REFUSALS) > 0:
        complain(NAME, f"and {more:,} more (--json shows all)")


class NewFeed(NamedTuple):
    """A feed to add. given: the URL that the user typed; title, form: of the feed document."""

    given: str
    url: str
    title: str | None = None
    form: str | None = None


def adding_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, the feed's category and title, and options for finding feeds."""
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="feed, or web page that links to its feed"
    )
    parser.add_argument(
        "--category", metavar="NAME", action="append", type=category, default=[],
        help="category to put the feed in, such as News/Local (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--title", metavar="TEXT", help="title to store for the feed")
    parser.add_argument(
        "--all", action="store_true",
        help="add all feeds that a page links to (default: only the first)",
    )  # fmt: skip
    parser.add_argument(
        "--no-fetch", action="store_true",
        help="add the URLs without fetching them to check that they are feeds",
    )  # fmt: skip
    spider_option(parser)


def run_add(config: Config, opts: argparse.Namespace) -> int:
    """Find the feeds at the URLs and add them; return 1 if one of the URLs has no feed."""
    from crawler.feeds.subscriptions import TITLE_CHARACTERS, Refused, feed_url, tidy
    from crawler.reports.feeds import AddReport, refused_feed

    if opts.title is not None and (len(opts.urls) > 1 or opts.all):
        raise ConfigError("--title is for a single feed. Give one URL, without --all")
    valid: dict[str, NewFeed] = {}
    refused = []
    for given in opts.urls:
        try:
            url = feed_url(given, config)
        except ValueError as error:
            refused.append(Refused("", without_secrets(given), str(error)))
        else:
            valid.setdefault(url, NewFeed(given, url))
    feeds = list(valid.values())
    if feeds and not opts.no_fetch:
        with working(config.progress, "looking for feeds"):
            feeds, without_feeds = _discover_feeds(config, opts, feeds)
        refused += without_feeds
    rows = with_database(config, lambda db: _store_feeds(db, config, opts, feeds)) if feeds else []
    if opts.json:
        added = sum(row["added"] for row in rows)
        print_json(
            AddReport(
                added=added,
                known=len(rows) - added,
                feeds=rows,
                refused=[*map(refused_feed, refused)],
            )
        )
    else:
        for row in rows:
            title = tidy(row["title"] or "", TITLE_CHARACTERS)
            state = "added" if row["added"] else "known"
            print_line("  ".join(filter(None, (state, row["url"], title))))
        _print_refusals(refused)
    return 1 if refused else 0


def _discover_feeds(
    config: Config, opts: argparse.Namespace, pages: list[NewFeed]
) -> tuple[list[NewFeed], list[Refused]]:
    """Fetch the URLs; return their feeds, and the URLs that have none."""
    from crawler.feeds.discovery import discover
    from crawler.feeds.subscriptions import Refused, feed_url

    now = config.clock.now()
    urls = [page.url for page in pages]
    probed = discover(opts.settings, urls, now, config.read_seconds, every=opts.all)
    feeds: dict[str, NewFeed] = {}
    refused = [Refused("", probe.url, probe.reason) for probe in probed if probe.reason]
    for page, probe in zip(pages, probed, strict=True):
        for feed in probe.feeds:
            try:
                url = feed_url(feed.url, config)
            except ValueError as error:
                refused.append(Refused("", without_secrets(feed.url), str(error)))
            else:
                document = feed.document
                feeds.setdefault(url, NewFeed(page.given, url, document.title, document.format))
    return list(feeds.values()), refused


async def _store_feeds(
    db: Database, config: Config, opts: argparse.Namespace, new_feeds: list[NewFeed]
) -> list[AddedFeed]:
    """Store feeds one by one, and return a row for each, which includes whether it was added."""
    from crawler.feeds.subscriptions import TITLE_CHARACTERS, Subscription, tidy
    from crawler.storage import feeds

    title = tidy(opts.title or "", TITLE_CHARACTERS) or None
    categories = tuple(dict.fromkeys(opts.category))
    rows: list[AddedFeed] = []
    now = config.clock.now()
    for feed in new_feeds:
        subscription = Subscription(feed.url, title, None, categories)
        done = await feeds.add(db, opts.spider, [subscription], now, singly=True)
        rows.append(
            {
                "url": feed.url,
                "title": title or feed.title,
                "format": feed.form,
                "given": feed.given,
                "added": bool(done.added),
            }
        )
    return rows


def export_options(parser: argparse.ArgumentParser) -> None:
    """Add the file, its format and `--spider`."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default=STANDARD,
        help="file to write (default: standard output)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=(OPML, URLS), default=OPML,
        help=f"OPML 2.0, or one URL per line (default: {OPML})",
    )  # fmt: skip
    spider_option(parser)


def run_export(config: Config, opts: argparse.Namespace) -> None:
    """Write all feeds except aliases."""
    from crawler.feeds.subscriptions import opml_lines
    from crawler.storage import feeds

    stored = with_database(config, lambda db: feeds.exported(db, opts.spider))
    if opts.json and opts.file == STANDARD:
        rows: list[ExportedFeed] = [
            {"url": f.url, "title": f.title, "site": f.site, "categories": list(f.categories)}
            for f in stored
        ]
        print_json(rows)
        return
    if opts.format == URLS:
        lines: Iterable[str] = (f"{feed.url}\n" for feed in stored)
    else:
        now = config.clock.now()
        lines = opml_lines(stored, f"Feeds of {opts.spider}", now)
    if opts.file == STANDARD:
        sys.stdout.writelines(map(visible, lines))
        return
    path = Path(opts.file)
    with (
        file_errors(str(path)),
        atomic_replace(path) as draft,
        draft.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(lines)
    if opts.json:
        print_json(ExportReport(feeds=len(stored), file=opts.file))
    else:
        print_line(f"{count(len(stored), 'feed')} written to {opts.file}")


def remove_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, `--yes`, `--dry-run` and `--spider`."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="feed to remove, or its alias")
    add_yes(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, without removing it"
    )
    spider_option(parser)


def run_remove(config: Config, opts: argparse.Namespace) -> None:
    """Remove feeds and their data, after asking for confirmation."""
    from crawler.reports.feeds import remove_feeds

    now = config.clock.now()

    def remove(*, delete: bool) -> RemovalReport:
        return with_database(
            config, lambda db: remove_feeds(db, config, opts.spider, opts.urls, now, delete=delete)
        )

    report = remove(delete=False)
    if not opts.dry_run:
        confirm(documents(report["removed"]), opts, of=listed(report["urls"]))
        report = remove(delete=True)
    if opts.json:
        print_json(report)
    else:
        verb = "would remove" if opts.dry_run else "removed"
        print_line(f"{verb} {listed(report['urls'])}: {documents(report['removed'])}")


def run_push(config: Config, opts: argparse.Namespace) -> None:
    """Receive pushed updates from hubs until SIGTERM, SIGINT or the end of `--for`.

    Events are logged on stderr; a summary is printed on stdout at the end. If another process
    already does this for the same database, the command prints a message and exits with code 0.
    Raises FreshetError.
    """
    from crawler.web.options import push_options_of

    options = push_options_of(opts)
    # FastAPI and Twisted are slow to import. Invalid options are reported before.
    from crawler.web.websub.service import run

    try:
        done = run(config, options)
    except Busy as busy:
        print_line(f"scrapy feeds push: {busy}", error=True)
        return
    if opts.json:
        print_json(done)
        return
    counts, states = (
        ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in amounts.items())
        for amounts in (done["counts"], done["subscriptions"])
    )
    print_line(f"{counts or 'no events'}; {count(round(done['seconds']), 'second')}")
    print_line(f"subscriptions: {states or 'none'}")


def list_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, and options that select feeds and limit their number."""
    parser.add_argument(
        "urls", metavar="URL", nargs="*", help="feeds or aliases to list (default: all)"
    )
    parser.add_argument("--errors", action="store_true", help="list only feeds with errors")
    parser.add_argument(
        "--category", metavar="NAME", type=category,
        help="list only feeds in this category and its subcategories",
    )  # fmt: skip
    add_limit(parser, "rows in the table", DEFAULT_LIMIT, "; --json lists all")
    spider_option(parser)


def run_list(config: Config, opts: argparse.Namespace) -> None:
    """Print the feeds as a table, or as JSON."""
    from crawler.reports.feeds import feed_states, owned
    from crawler.storage import feeds

    async def print_all(db: Database) -> None:
        if opts.urls:
            query = feeds.of_urls(opts.spider, await owned(db, config, opts.spider, opts.urls))
        else:
            query = feeds.all_of(opts.spider)
        if opts.category:
            query |= feeds.within(opts.category)
        rows = (
            row async for row in feed_states(db, query) if row["needs_attention"] or not opts.errors
        )
        if not opts.json:
            await _print_table(rows, opts, config.clock.now())
            return
        # Printed row by row, because the list may not fit into memory.
        print("[", end="")
        separator = "\n"
        async for row in rows:
            print(separator + as_json(row), end="")
            separator = ",\n"
        print_line("\n]")

    with_database(config, print_all)


async def _print_table(
    rows: AsyncIterator[FeedState], opts: argparse.Namespace, now: datetime
) -> None:
    from crawler.feeds.subscriptions import TITLE_CHARACTERS, tidy

    console = stdout()
    is_wide = console.width >= MIN_WIDE_COLUMNS
    has_figures = console.width >= MIN_FIGURES_COLUMNS
    names = ("feed", "URL") if is_wide else ("feed",)
    numbers = ("a week", "size", "fetched", "next", "missed") if has_figures else ("next",)
    feeds = table(*names, *numbers, "state", right=numbers)
    is_cut = False
    async for row in rows:
        if is_cut := feeds.row_count == opts.limit:
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
        feeds.add_row(
            *map(shortened, [title, row["url"]] if is_wide else [title or row["url"]]),
            *(figures if has_figures else (next_visit,)),
            # Not cut off on a narrow terminal: it says what to do.
            Text(visible(shorten(row["state"], width=STATE_CHARACTERS, placeholder="…"))),
        )
    shown = count(feeds.row_count, "feed")
    if feeds.row_count:
        console.print(feeds)
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
