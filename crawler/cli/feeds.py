"""Actions of `scrapy feeds`: import, add, export, remove and push. `feeds_list` has the list."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, cast

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings
from typing_extensions import TypedDict

from crawler.cli.base import confirm, print_json, with_database
from crawler.cli.types import category
from crawler.config import Config
from crawler.errors import FORBIDDEN, Busy, ConfigError
from crawler.extract.response import decoded
from crawler.feeds import opml
from crawler.feeds.discovery import candidates
from crawler.feeds.opml import BYTES_IN_MB, MAX_MB, read_list
from crawler.feeds.parser import read
from crawler.feeds.subscriptions import TITLE_CHARACTERS, Refused, Subscription, feed_url, tidy
from crawler.items import FeedDocument, NoFeed
from crawler.reports.feeds import (
    COMMAND,
    AddedFeed,
    AddReport,
    RemovalReport,
    import_report,
    refused_feed,
    remove_feeds,
)
from crawler.storage import feeds as subscriptions
from crawler.storage.client import opened
from crawler.utils.files import atomic_replace
from crawler.utils.sandbox import LARGE_BYTES, TimeLimitExceeded, time_limit
from crawler.utils.terminal import complain, print_line, visible, without_secrets, working
from crawler.utils.text import count, documents, listed
from crawler.utils.urls import host_of

SHOWN_REFUSALS = 20
# The file name of standard input and of standard output.
STANDARD = "-"
# A longer list from standard input goes to a temporary file.
IN_MEMORY_BYTES = 16 * BYTES_IN_MB
OPML, URLS = "opml", "urls"
# Maximum number of links of one page that are tried as feeds.
MAX_TRIED = 10
PERMANENT_REDIRECTS = frozenset({301, 308})
CONCURRENT_URLS = 8
# Characters of an error message.
MAX_REASON = 300


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


def spider_option(parser: argparse.ArgumentParser) -> None:
    """Add the `--spider` option."""
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
    with working(config.progress, "reading the list"), _seekable_file(opts.file) as (file, name):
        feed_list = read_list(file, name, config)
    now = config.clock.now()
    with working(config.progress, f"storing {count(len(feed_list.feeds), 'feed')}"):
        stored = with_database(
            config, lambda db: subscriptions.add(db, opts.spider, feed_list.feeds, now)
        )
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
    shown = "standard input" if name == STANDARD else name
    try:
        with sys.stdin.buffer if name == STANDARD else Path(name).open("rb") as file:
            if file.seekable():
                yield file, shown
                return
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as copy:
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
        complain(COMMAND, f"{where}{refusal.url or '(empty)'}: {refusal.reason}")
    if (more := len(refused) - SHOWN_REFUSALS) > 0:
        complain(COMMAND, f"and {more:,} more (--json shows all)")


@dataclass(frozen=True, slots=True)
class NewFeed:
    """A feed to add. given: the URL that the user typed; title, form: of the feed document."""

    given: str
    url: str
    title: str | None = None
    form: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
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
    rows = asyncio.run(_store_feeds(config, opts, feeds)) if feeds else []
    if opts.json:
        added = sum(row["added"] for row in rows)
        report: AddReport = {
            "added": added,
            "known": len(rows) - added,
            "feeds": rows,
            "refused": [*map(refused_feed, refused)],
        }
        print_json(report)
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
    config: Config, opts: argparse.Namespace, feeds: list[NewFeed]
) -> list[AddedFeed]:
    """Store feeds one by one, and return a row for each, which includes whether it was added."""
    title = tidy(opts.title or "", TITLE_CHARACTERS) or None
    categories = tuple(dict.fromkeys(opts.category))
    rows: list[AddedFeed] = []
    async with opened(config) as db:
        now = config.clock.now()
        for feed in feeds:
            subscription = Subscription(feed.url, title, None, categories)
            done = await subscriptions.add(db, opts.spider, [subscription], now, singly=True)
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
    feeds = with_database(config, lambda db: subscriptions.exported(db, opts.spider))
    if opts.json and opts.file == STANDARD:
        rows: list[ExportedFeed] = [
            {"url": f.url, "title": f.title, "site": f.site, "categories": list(f.categories)}
            for f in feeds
        ]
        print_json(rows)
        return
    if opts.format == URLS:
        lines: Iterable[str] = (f"{feed.url}\n" for feed in feeds)
    else:
        now = config.clock.now()
        lines = opml.written(feeds, f"Feeds of {opts.spider}", now)
    if opts.file == STANDARD:
        sys.stdout.writelines(map(visible, lines))
        return
    path = Path(opts.file)
    try:
        with atomic_replace(path) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if opts.json:
        report: ExportReport = {"feeds": len(feeds), "file": opts.file}
        print_json(report)
    else:
        print_line(f"{count(len(feeds), 'feed')} written to {opts.file}")


def remove_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, `--yes`, `--dry-run` and `--spider`."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="feed to remove, or its alias")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, without removing it"
    )
    spider_option(parser)


def run_remove(config: Config, opts: argparse.Namespace) -> None:
    """Remove feeds and their data, after asking for confirmation."""
    urls, counts = asyncio.run(_remove(config, opts, delete=False))
    if not opts.dry_run:
        confirm(documents(counts), opts, of=listed(urls))
        urls, counts = asyncio.run(_remove(config, opts, delete=True))
    if opts.json:
        report: RemovalReport = {"dry_run": opts.dry_run, "urls": urls, "removed": counts}
        print_json(report)
    else:
        verb = "would remove" if opts.dry_run else "removed"
        print_line(f"{verb} {listed(urls)}: {documents(counts)}")


async def _remove(
    config: Config, opts: argparse.Namespace, *, delete: bool
) -> tuple[list[str], dict[str, int]]:
    async with opened(config) as db:
        now = config.clock.now()
        report = await remove_feeds(db, config, opts.spider, opts.urls, now, delete=delete)
        return report["urls"], report["removed"]


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


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed that was fetched. url: after permanent redirects."""

    url: str
    document: FeedDocument


@dataclass(slots=True)
class Probe:
    """A URL to check, with its feeds, or with the reason why it has none."""

    url: str
    feeds: list[Feed] = field(default_factory=list)
    reason: str = ""


class NotFound(Exception):
    """Raised if a URL has no feed. Its message is the reason."""


def discover(
    settings: Settings, urls: Sequence[str], now: datetime, read_seconds: float, *, every: bool
) -> list[Probe]:
    """Fetch the URLs and the feeds that these pages link to; return the results in their order.

    read_seconds: maximum CPU time for parsing one document
    every:        return all feeds that a page links to, not only the first
    """
    probes = [Probe(url) for url in urls]
    process = AsyncCrawlerProcess(settings)
    process.crawl(FeedProbe, probes=probes, now=now, read_seconds=read_seconds, every=every)
    process.start()
    for probe in probes:
        probe.reason = probe.reason or ("" if probe.feeds else "not fetched: interrupted")
    return probes


class FeedProbe(Spider):
    """Spider that fetches the URLs of probes and fills in their feeds."""

    name = "feeds-add"
    # The user is waiting for the result, and each host gets only one request at a time anyway.
    custom_settings = {  # noqa: RUF012 - as Scrapy declares it
        "RETRY_ENABLED": False,
        "AUTOTHROTTLE_ENABLED": False,
    }

    def __init__(
        self, probes: list[Probe], now: datetime, read_seconds: float, *, every: bool
    ) -> None:
        super().__init__()
        self.probes, self.now, self.every = probes, now, every
        self.read_seconds = read_seconds
        # Private addresses are allowed for start URLs, but not for the links on their pages.
        self.start_urls = [probe.url for probe in probes]
        # If several requests wait for one robots.txt, Scrapy 2.19 sends the third and later ones
        # without checking it, so each host gets one request at a time.
        self.host_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.slots = asyncio.Semaphore(CONCURRENT_URLS)

    async def start(self) -> AsyncIterator[Request]:
        """Check all probes and close the spider, without yielding a request."""
        await asyncio.gather(*map(self._probe, self.probes))
        # On its own, Scrapy checks only every five seconds whether a spider is idle.
        engine = self.crawler.engine
        assert engine is not None
        self._closing = asyncio.ensure_future(engine.close_spider_async(reason="finished"))
        requests: tuple[Request, ...] = ()
        for request in requests:
            yield request

    async def _probe(self, probe: Probe) -> None:
        async with self.host_locks[host_of(probe.url)], self.slots:
            try:
                probe.feeds = await self._feeds(probe.url)
            except NotFound as error:
                probe.reason = str(error)

    async def _feeds(self, url: str) -> list[Feed]:
        response = await self._fetched(url)
        try:
            return [self._read(url, response)]
        except NoFeed as error:
            problem = str(error)
        if not isinstance(response, HtmlResponse):
            raise NotFound(problem)
        # Only the beginning of a page is searched: feeds are declared in the head, and a huge page
        # may take hours to parse.
        head = response.replace(body=response.body[:LARGE_BYTES])
        try:
            with time_limit(self.read_seconds):
                links = candidates(decoded(head))
        except TimeLimitExceeded as error:
            raise NotFound(str(error)) from None
        for urls in (links.declared, links.guessed):
            if feeds := await self._feeds_among(urls):
                return feeds
        if n := len(links.declared) + len(links.guessed):
            raise NotFound(f"{problem}, with {count(n, 'possible feed link')} but no feed")
        raise NotFound(f"{problem}, and does not link to a feed")

    async def _feeds_among(self, urls: Sequence[str]) -> list[Feed]:
        """Return the first feed among the URLs or, with `every`, all of them."""
        feeds: list[Feed] = []
        for url in urls if self.every else urls[:MAX_TRIED]:
            try:
                feeds.append(self._read(url, await self._fetched(url)))
            except (NotFound, NoFeed):
                continue
            if not self.every:
                break
        return feeds

    async def _fetched(self, url: str) -> Response:
        engine = self.crawler.engine
        assert engine is not None
        try:
            response = await engine.download_async(Request(url, dont_filter=True))
        except Exception as error:  # noqa: BLE001 - whatever a server does is the URL's problem
            if isinstance(error, IgnoreRequest) and "robots.txt" in str(error):
                is_read = str(error) == FORBIDDEN
                reason = "disallows fetching it" if is_read else "cannot be read now"
                reason = f"robots.txt {reason}. --no-fetch adds it without a check"
            else:
                reason = " ".join(str(error).split()) or type(error).__name__
            raise NotFound(reason[:MAX_REASON].rstrip(".")) from None
        if not 200 <= response.status < 300:
            raise NotFound(f"status {response.status}")
        return response

    def _read(self, url: str, response: Response) -> Feed:
        """Return the feed of a response, with its new URL if all redirects were permanent."""
        kind = (response.headers.get("Content-Type") or b"").decode("latin-1") or None
        try:
            with time_limit(self.read_seconds):
                document = read(response.body, response.url, kind, self.now)
        except TimeLimitExceeded as error:
            raise NotFound(str(error)) from None
        reasons = response.meta.get("redirect_reasons", [])
        return Feed(response.url if PERMANENT_REDIRECTS.issuperset(reasons) else url, document)
