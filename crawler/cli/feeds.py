"""The actions of `scrapy feeds` but the list: import, add, export, remove and push."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, cast

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings

from crawler.cli.base import confirm, print_json, with_database
from crawler.cli.types import category
from crawler.config import Config
from crawler.errors import Busy, ConfigError
from crawler.extract.response import decoded
from crawler.feeds import opml
from crawler.feeds.discovery import candidates
from crawler.feeds.opml import BYTES_IN_MB, MAX_MB, read_list
from crawler.feeds.parser import read
from crawler.feeds.subscriptions import (
    TITLE_CHARACTERS,
    Refused,
    Subscription,
    feed_url,
    tidy,
)
from crawler.items import FeedDocument, NoFeed
from crawler.ops.progress import working
from crawler.storage import feeds as subscriptions
from crawler.storage.client import Database, Document
from crawler.storage.dedup.index import as_stored
from crawler.storage.store import opened
from crawler.storage.target_queries import names_of, nearest
from crawler.utils.files import atomic_replace
from crawler.utils.sandbox import LARGE_BYTES, TimeLimitExceeded, time_limit
from crawler.utils.terminal import complain, print_line, visible, without_secrets
from crawler.utils.text import count, listed
from crawler.utils.time import Clock
from crawler.utils.urls import host_of

COMMAND = "feeds"
SHOWN_REFUSALS = 20
# A file's name for standard input and for standard output.
STANDARD = "-"
# A list from standard input goes to a temporary file beyond this.
IN_MEMORY_BYTES = 16 * BYTES_IN_MB
OPML, URLS = "opml", "urls"


def spider_option(parser: argparse.ArgumentParser) -> None:
    """Add whose feeds are meant."""
    parser.add_argument(
        "--spider", metavar="NAME", default=COMMAND, help="whose feeds (default: feeds)"
    )


async def owned(db: Database, config: Config, spider: str, urls: Iterable[str]) -> list[str]:
    """URLs of the feeds that these are, aliases included; ConfigError names one that is unknown."""
    feeds: dict[str, None] = {}
    for url in urls:
        stored = await subscriptions.feeds_named(db, spider, names_of(url, config))
        if not stored:
            near = await nearest(db, url, ("targets",))
            mean = f"Did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"feed not found: {url}. {mean}scrapy feeds list shows the feeds of {spider}"
            )
        feeds |= dict.fromkeys(stored)
    return list(feeds)


def import_options(parser: argparse.ArgumentParser) -> None:
    """Add the file."""
    parser.add_argument("file", metavar="FILE|-", help="OPML, or a URL a line; -: standard input")
    spider_option(parser)


def run_import(config: Config, opts: argparse.Namespace) -> int:
    """Read all of the list, then store its feeds; 1 if it has none."""
    with working(config, "reading the list"), _opened(opts.file) as (file, name):
        feed_list = read_list(file, name, config)
    now = Clock(config.clock_offset_hours).now()
    with working(config, f"storing {count(len(feed_list.feeds), 'feed')}"):
        stored = with_database(
            config, lambda db: subscriptions.add(db, opts.spider, feed_list.feeds, now)
        )
    categories = len({name for feed in feed_list.feeds for name in feed.categories})
    if opts.json:
        print_json(
            {
                "added": stored.added,
                "known": stored.known,
                "categories": categories,
                "refused": [asdict(refused) for refused in feed_list.refused],
                "problems": list(feed_list.problems),
            }
        )
    else:
        parts = [
            f"{count(stored.added, 'feed')} added, {stored.known:,} known",
            f"{categories:,} categor{'y' if categories == 1 else 'ies'}",
        ]
        if feed_list.refused:
            parts.append(f"{len(feed_list.refused):,} refused")
        print_line(", ".join(parts))
        for problem in feed_list.problems:
            print_line(f"note: {problem}")
        _complain_of(feed_list.refused)
    return 0 if feed_list.feeds else 1


@contextmanager
def _opened(name: str) -> Iterator[tuple[BinaryIO, str]]:
    """The file, so that it can be read twice, and what to call it."""
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
                        raise ConfigError(f"{shown}: larger than {MAX_MB} MB; import it in parts")
                    copy.write(chunk)
                yield cast(BinaryIO, copy), shown
    except OSError as error:
        raise ConfigError(f"{shown}: {error.strerror or error}") from None


def _complain_of(refused: Sequence[Refused]) -> None:
    """A line on stderr for each refusal, but for very many."""
    for refusal in refused[:SHOWN_REFUSALS]:
        where = f"{refusal.where}: " if refusal.where else ""
        complain(COMMAND, f"{where}{refusal.url or '(empty)'}: {refusal.reason}")
    if (more := len(refused) - SHOWN_REFUSALS) > 0:
        complain(COMMAND, f"and {more:,} more (--json shows them all)")


@dataclass(frozen=True, slots=True)
class Named:
    """A feed to add. given: by the user; title, form: of its document."""

    given: str
    url: str
    title: str | None = None
    form: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add which feeds, and what they are called."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="a feed, or a page that names one")
    parser.add_argument(
        "--category", metavar="NAME", action="append", type=category, default=[],
        help="put it there, such as News/Local; may be repeated",
    )  # fmt: skip
    parser.add_argument("--title", help="call it so")
    parser.add_argument("--all", action="store_true", help="all feeds that a page names")
    parser.add_argument("--no-fetch", action="store_true", help="add the URLs as they are")
    spider_option(parser)


def run_add(config: Config, opts: argparse.Namespace) -> int:
    """Find the feeds, add them; 1 if a URL gave none."""
    if opts.title is not None and (len(opts.urls) > 1 or opts.all):
        raise ConfigError("--title names one feed; give one URL, without --all")
    valid: dict[str, Named] = {}
    refused = []
    for given in opts.urls:
        try:
            url = feed_url(given, config)
        except ValueError as error:
            refused.append(Refused("", without_secrets(given), str(error)))
        else:
            valid.setdefault(url, Named(given, url))
    feeds = list(valid.values())
    if feeds and not opts.no_fetch:
        with working(config, "looking"):
            feeds, without_feeds = _discovered(config, opts, feeds)
        refused += without_feeds
    rows = asyncio.run(_store(config, opts, feeds)) if feeds else []
    if opts.json:
        added = sum(row["added"] for row in rows)
        print_json(
            {
                "added": added,
                "known": len(rows) - added,
                "feeds": rows,
                "refused": [asdict(refusal) for refusal in refused],
            }
        )
    else:
        for row in rows:
            title = tidy(row["title"] or "", TITLE_CHARACTERS)
            state = "added" if row["added"] else "known"
            print_line("  ".join(filter(None, (state, row["url"], title))))
        _complain_of(refused)
    return 1 if refused else 0


def _discovered(
    config: Config, opts: argparse.Namespace, given: list[Named]
) -> tuple[list[Named], list[Refused]]:
    """The feeds that the web has at these URLs."""
    # Slow to import: not for --help.
    from crawler.cli.feeds import discover

    now = Clock(config.clock_offset_hours).now()
    urls = [page.url for page in given]
    probed = discover(opts.settings, urls, now, config.read_seconds, every=opts.all)
    feeds: dict[str, Named] = {}
    refused = [Refused("", page.url, page.reason) for page in probed if page.reason]
    for page, probe in zip(given, probed, strict=True):
        for feed in probe.feeds:
            try:
                url = feed_url(feed.url, config)
            except ValueError as error:
                refused.append(Refused("", without_secrets(feed.url), str(error)))
            else:
                document = feed.document
                feeds.setdefault(url, Named(page.given, url, document.title, document.format))
    return list(feeds.values()), refused


async def _store(config: Config, opts: argparse.Namespace, feeds: list[Named]) -> list[Document]:
    """Add them one by one, as each of them is printed."""
    title = tidy(opts.title or "", TITLE_CHARACTERS) or None
    categories = tuple(dict.fromkeys(opts.category))
    rows = []
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        for feed in feeds:
            subscription = Subscription(feed.url, title, None, categories)
            done = await subscriptions.add(db, opts.spider, [subscription], now, singly=True)
            rows.append(
                {"url": feed.url, "title": title or feed.title, "format": feed.form}
                | {"asked": feed.given, "added": bool(done.added)}
            )
    return rows


def export_options(parser: argparse.ArgumentParser) -> None:
    """Add the file and its format."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default=STANDARD, help="without it: standard output"
    )
    parser.add_argument(
        "--format", choices=(OPML, URLS), default=OPML, help="OPML 2.0, or a URL a line"
    )
    spider_option(parser)


def run_export(config: Config, opts: argparse.Namespace) -> None:
    """Write all feeds but aliases."""
    feeds = with_database(config, lambda db: subscriptions.exported(db, opts.spider))
    if opts.json and opts.file == STANDARD:
        print_json(
            [
                {"url": f.url, "title": f.title, "site": f.site, "categories": list(f.categories)}
                for f in feeds
            ]
        )
        return
    if opts.format == URLS:
        lines: Iterable[str] = (f"{feed.url}\n" for feed in feeds)
    else:
        now = Clock(config.clock_offset_hours).now()
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
        print_json({"feeds": len(feeds), "file": opts.file})
    else:
        print_line(f"{count(len(feeds), 'feed')} in {opts.file}")


def remove_options(parser: argparse.ArgumentParser) -> None:
    """Add which feeds, and whether to ask."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="of the feed, or an alias of it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only count what would go")
    spider_option(parser)


def run_remove(config: Config, opts: argparse.Namespace) -> None:
    """Count, ask, remove."""
    urls, counts = asyncio.run(_remove(config, opts, really=False))
    if not opts.dry_run:
        confirm(_in_words(counts), opts, of=listed(urls))
        urls, counts = asyncio.run(_remove(config, opts, really=True))
    if opts.json:
        print_json({"dry_run": opts.dry_run, "urls": urls} | counts)
    else:
        verb = "would remove" if opts.dry_run else "removed"
        print_line(f"{verb} {listed(urls)}: {_in_words(counts)}")


async def _remove(
    config: Config, opts: argparse.Namespace, *, really: bool
) -> tuple[list[str], Document]:
    async with opened(config) as db, as_stored(db, config) as registry:
        now = Clock(config.clock_offset_hours).now()
        urls = await owned(db, config, opts.spider, opts.urls)
        counts = await subscriptions.remove(db, registry, opts.spider, urls, now, really=really)
        return urls, counts


def _in_words(counts: dict[str, int]) -> str:
    return ", ".join(count(n, name.removesuffix("s")) for name, n in counts.items() if n)


def run_push(config: Config, opts: argparse.Namespace) -> None:
    """Subscribe to hubs and take what they deliver, until SIGTERM, SIGINT or the end of `--for`.

    Events are logged on stderr; a summary goes to stdout at the end. While another process serves
    the same database, this one only prints so. Raises FreshetError.
    """
    from crawler.web.websub.options import order_of

    order = order_of(opts)
    # Twisted's web parts are slow to import: not before the options are right.
    from crawler.web.websub.service import run

    try:
        done = run(config, order)
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
    print_line(f"{counts or 'nothing happened'}; {count(round(done['seconds']), 'second')}")
    print_line(f"subscriptions: {states or 'none'}")


# Links of one page that are tried as feeds.
MAX_TRIED = 10
PERMANENT_REDIRECTS = frozenset({301, 308})
CONCURRENT_URLS = 8
# Characters of an error.
MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed on the web. url: after permanent redirects."""

    url: str
    document: FeedDocument


@dataclass(slots=True)
class Probe:
    """A URL and its feeds, or the reason why it has none."""

    url: str
    feeds: list[Feed] = field(default_factory=list)
    reason: str = ""


class NotFound(Exception):
    """There is no feed at a URL; `str()` says why."""


def discover(
    settings: Settings, urls: Sequence[str], now: datetime, read_seconds: float, *, every: bool
) -> list[Probe]:
    """Fetch the URLs and what they name; their feeds, in the order of the URLs.

    read_seconds: of processor time for reading one document
    every:        all feeds that a page names; else the first
    """
    probes = [Probe(url) for url in urls]
    process = AsyncCrawlerProcess(settings)
    process.crawl(FeedProbe, probes=probes, now=now, read_seconds=read_seconds, every=every)
    process.start()
    for probe in probes:
        probe.reason = probe.reason or ("" if probe.feeds else "not fetched: interrupted")
    return probes


class FeedProbe(Spider):
    """Fetches the URLs of probes and fills in their feeds."""

    name = "feeds-add"
    # Somebody waits for the result, and a host gets one request at a time.
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
        # The guard of private networks lets start URLs pass, and not the links of their pages.
        self.start_urls = [probe.url for probe in probes]
        # Of requests that wait for one robots.txt, Scrapy 2.19 lets the third and later ones pass.
        self.host_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.slots = asyncio.Semaphore(CONCURRENT_URLS)

    async def start(self) -> AsyncIterator[Request]:
        """Do all the work; Scrapy itself gets no request."""
        await asyncio.gather(*map(self._probe, self.probes))
        # Scrapy would notice only at its next look, five seconds apart, that nothing is left.
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
        # Feeds are named at its head, and a large page may take hours to read.
        head = response.replace(body=response.body[:LARGE_BYTES])
        try:
            with time_limit(self.read_seconds):
                named = candidates(decoded(head))
        except TimeLimitExceeded as error:
            raise NotFound(str(error)) from None
        for urls in (named.declared, named.guessed):
            if feeds := await self._feeds_among(urls):
                return feeds
        if tried := len(named.declared) + len(named.guessed):
            raise NotFound(
                f"{problem}; {count(tried, 'link')} may be a feed's, none can be read as one"
            )
        raise NotFound(f"{problem}, and links to no feed")

    async def _feeds_among(self, urls: Sequence[str]) -> list[Feed]:
        """The first of these that is a feed, or all that are."""
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
                reason = "robots.txt forbids to fetch it (--no-fetch adds it as it is)"
            else:
                reason = " ".join(str(error).split()) or type(error).__name__
            raise NotFound(reason[:MAX_REASON].rstrip(".")) from None
        if not 200 <= response.status < 300:
            raise NotFound(f"status {response.status}")
        return response

    def _read(self, url: str, response: Response) -> Feed:
        """The feed of a response; by its new URL where every redirect was permanent."""
        kind = (response.headers.get("Content-Type") or b"").decode("latin-1") or None
        try:
            with time_limit(self.read_seconds):
                document = read(response.body, response.url, kind, self.now)
        except TimeLimitExceeded as error:
            raise NotFound(str(error)) from None
        reasons = response.meta.get("redirect_reasons", [])
        return Feed(response.url if PERMANENT_REDIRECTS.issuperset(reasons) else url, document)
