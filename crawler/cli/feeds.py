"""`scrapy feeds add`: a feed by its URL, or by the page that names it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from crawler.cli.base import print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds import opml
from crawler.feeds.opml import BYTES_IN_MB, LARGEST_MB, read_list
from crawler.feeds.subscriptions import (
    TITLE_CHARACTERS,
    FeedList,
    Refused,
    Subscription,
    category_of,
    feed_url,
    tidy,
)
from crawler.ops.progress import working
from crawler.storage import feeds as subscriptions
from crawler.storage.client import Database, Document
from crawler.storage.dedup.index import as_stored
from crawler.storage.feeds import Added
from crawler.storage.store import opened
from crawler.storage.target_queries import names_of, nearest
from crawler.utils.files import atomic_replace
from crawler.utils.terminal import complain, print_line, visible, without_secrets
from crawler.utils.text import count, listed
from crawler.utils.time import Clock

COMMAND = "feeds"
SHOWN_REFUSALS = 20


def spider_option(parser: argparse.ArgumentParser) -> None:
    """Whose feeds are meant."""
    parser.add_argument(
        "--spider", metavar="NAME", default=COMMAND, help="whose feeds (default: feeds)"
    )


def category(name: str) -> str:
    """A category in its normal form; for argparse."""
    if not (tidied := category_of(name)):
        raise argparse.ArgumentTypeError(f"{name!r} names no category")
    return tidied


async def owned(db: Database, config: Config, spider: str, urls: Iterable[str]) -> list[str]:
    """URLs of the feeds that these are, aliases included; ConfigError names one that is unknown."""
    found: dict[str, None] = {}
    for url in urls:
        known = await subscriptions.feeds_named(db, spider, names_of(url, config))
        if not known:
            near = await nearest(db, url, ("targets",))
            mean = f"Did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"feed not found: {url}. {mean}scrapy feeds list shows the feeds of {spider}"
            )
        found |= dict.fromkeys(known)
    return list(found)


def plain(refused: Iterable[Refused]) -> list[dict[str, Any]]:
    """Refusals as JSON has them."""
    return [asdict(one) for one in refused]


def say_refused(refused: tuple[Refused, ...]) -> None:
    """A line on stderr for each refusal, but for very many."""
    for one in refused[:SHOWN_REFUSALS]:
        where = f"{one.where}: " if one.where else ""
        complain(COMMAND, f"{where}{one.url or '(empty)'}: {one.reason}")
    if (more := len(refused) - SHOWN_REFUSALS) > 0:
        complain(COMMAND, f"and {more:,} more (--json shows them all)")


@dataclass(frozen=True, slots=True)
class Named:
    """A feed to add. asked: what the user gave; title, form: as its document says."""

    asked: str
    url: str
    title: str | None = None
    form: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which feeds, and what they are called."""
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
    named, refused = _valid(opts.urls, config)
    if not opts.no_fetch and named:
        with working(config, "looking"):
            named, missed = _found(config, opts, named)
        refused = (*refused, *missed)
    rows = asyncio.run(_store(config, opts, named)) if named else []
    if opts.json:
        print_json(_result(rows, refused))
    else:
        _show(rows)
        say_refused(refused)
    return 1 if refused else 0


def _valid(urls: Sequence[str], config: Config) -> tuple[list[Named], tuple[Refused, ...]]:
    named: dict[str, Named] = {}
    refused = []
    for url in urls:
        try:
            known = feed_url(url, config)
        except ValueError as error:
            refused.append(Refused("", without_secrets(url), str(error)))
        else:
            named.setdefault(known, Named(url, known))
    return list(named.values()), tuple(refused)


def _found(
    config: Config, opts: argparse.Namespace, asked: list[Named]
) -> tuple[list[Named], tuple[Refused, ...]]:
    """The feeds that the web has to these URLs."""
    # Slow to import: not for --help.
    from crawler.cli.feeds_probe import look

    now = Clock(config.clock_offset_hours).now()
    looked = look(
        opts.settings, [one.url for one in asked], now, config.read_seconds, every=opts.all
    )
    named: dict[str, Named] = {}
    refused = [Refused("", one.asked, one.reason) for one in looked if one.reason]
    for given, one in zip(asked, looked, strict=True):
        for found in one.feeds:
            document = found.document
            try:
                url = feed_url(found.url, config)
            except ValueError as error:
                refused.append(Refused("", without_secrets(found.url), str(error)))
            else:
                named.setdefault(url, Named(given.asked, url, document.title, document.format))
    return list(named.values()), tuple(refused)


async def _store(config: Config, opts: argparse.Namespace, named: list[Named]) -> list[Document]:
    """Add them, one by one; what is told of each."""
    title = tidy(opts.title or "", TITLE_CHARACTERS) or None
    rows = []
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        for one in named:
            feed = Subscription(one.url, title, None, tuple(dict.fromkeys(opts.category)))
            done = await subscriptions.add(db, opts.spider, [feed], now, singly=True)
            new = bool(done.added)
            rows.append(
                {"url": one.url, "title": title or one.title, "format": one.form}
                | {"asked": one.asked, "added": new}
            )
    return rows


def _result(rows: list[Document], refused: tuple[Refused, ...]) -> Document:
    added = sum(row["added"] for row in rows)
    return {
        "added": added,
        "known": len(rows) - added,
        "feeds": rows,
        "refused": plain(refused),
    }


def _show(rows: list[Document]) -> None:
    for row in rows:
        title = tidy(row["title"] or "", TITLE_CHARACTERS)
        print_line(
            "  ".join(filter(None, ("added" if row["added"] else "known", row["url"], title)))
        )


STDIN = "-"
IN_MEMORY_BYTES = 16 * BYTES_IN_MB


def import_options(parser: argparse.ArgumentParser) -> None:
    """Which file."""
    parser.add_argument("file", metavar="FILE|-", help="OPML, or a URL a line; -: standard input")
    spider_option(parser)


def run_import(config: Config, opts: argparse.Namespace) -> int:
    """Read all of the list, then put its feeds in; 1 if there was nothing to take."""
    with working(config, "reading the list"), _opened(opts.file) as (file, name):
        found = read_list(file, name, config)
    with working(config, f"storing {count(len(found.feeds), 'feed')}"):
        added = asyncio.run(_store_importing(config, opts.spider, found))
    done = _result_importing(found, added)
    if opts.json:
        print_json(done)
    else:
        _show_importing(done, found)
    return 0 if found.feeds else 1


async def _store_importing(config: Config, spider: str, found: FeedList) -> Added:
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        return await subscriptions.add(db, spider, found.feeds, now)


def _result_importing(found: FeedList, added: Added) -> Document:
    return {
        "added": added.added,
        "known": added.known,
        "categories": len({name for feed in found.feeds for name in feed.categories}),
        "refused": plain(found.refused),
        "problems": list(found.problems),
    }


def _show_importing(done: Document, found: FeedList) -> None:
    added = f"{count(done['added'], 'feed')} added"
    categories = f"{done['categories']:,} categor{'y' if done['categories'] == 1 else 'ies'}"
    refused = f", {len(found.refused):,} refused" if found.refused else ""
    print_line(f"{added}, {done['known']:,} known, {categories}{refused}")
    for problem in found.problems:
        print_line(f"note: {problem}")
    say_refused(found.refused)


@contextmanager
def _opened(name: str) -> Iterator[tuple[BinaryIO, str]]:
    """The file, so that it can be read twice, and what to call it."""
    shown = "standard input" if name == STDIN else name
    try:
        with sys.stdin.buffer if name == STDIN else Path(name).open("rb") as file:
            if file.seekable():
                yield file, shown
            else:
                with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as copy:
                    yield _copied(file, cast(BinaryIO, copy), shown), shown
    except OSError as error:
        raise ConfigError(f"{shown}: {error.strerror or error}") from None


def _copied(file: BinaryIO, copy: BinaryIO, name: str) -> BinaryIO:
    left = LARGEST_MB * BYTES_IN_MB
    while chunk := file.read(BYTES_IN_MB):
        left -= len(chunk)
        if left < 0:
            raise ConfigError(f"{name}: larger than {LARGEST_MB} MB; import it in parts")
        copy.write(chunk)
    return copy


STDOUT = "-"
OPML, URLS = "opml", "urls"


def export_options(parser: argparse.ArgumentParser) -> None:
    """Where to, and how."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default=STDOUT, help="without it: standard output"
    )
    parser.add_argument(
        "--format", choices=(OPML, URLS), default=OPML, help="OPML 2.0, or a URL a line"
    )
    spider_option(parser)


def run_export(config: Config, opts: argparse.Namespace) -> int:
    """Write all feeds but aliases."""
    feeds = asyncio.run(_read(config, opts.spider))
    if opts.json and opts.file == STDOUT:
        print_json([_plain(feed) for feed in feeds])
        return 0
    lines = _lines(config, opts, feeds)
    if opts.file == STDOUT:
        sys.stdout.writelines(map(visible, lines))
    else:
        _write(Path(opts.file), lines)
        done = {"feeds": len(feeds), "file": opts.file}
        print_json(done) if opts.json else print_line(f"{count(len(feeds), 'feed')} in {opts.file}")
    return 0


async def _read(config: Config, spider: str) -> list[Subscription]:
    async with opened(config) as db:
        return await subscriptions.exported(db, spider)


def _plain(feed: Subscription) -> dict[str, object]:
    return {
        "url": feed.url, "title": feed.title, "site": feed.site,
        "categories": list(feed.categories),
    }  # fmt: skip


def _lines(config: Config, opts: argparse.Namespace, feeds: list[Subscription]) -> Iterator[str]:
    if opts.format == URLS:
        return (f"{feed.url}\n" for feed in feeds)
    now = Clock(config.clock_offset_hours).now()
    return opml.written(feeds, f"Feeds of {opts.spider}", now)


def _write(path: Path, lines: Iterable[str]) -> None:
    """The whole file or nothing."""
    try:
        with atomic_replace(path) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def remove_options(parser: argparse.ArgumentParser) -> None:
    """Which feeds, and whether it is meant."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="of the feed, or an alias of it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only count what would go")
    spider_option(parser)


def run_remove(config: Config, opts: argparse.Namespace) -> int:
    """Count, ask, remove."""
    urls, counts = asyncio.run(_remove(config, opts, really=False))
    if not opts.dry_run:
        _ask(urls, counts, opts)
        urls, counts = asyncio.run(_remove(config, opts, really=True))
    if opts.json:
        print_json({"dry_run": opts.dry_run, "urls": urls} | counts)
    else:
        verb = "would remove" if opts.dry_run else "removed"
        print_line(f"{verb} {listed(urls)}: {_in_words(counts)}")
    return 0


def _ask(urls: list[str], counts: dict[str, int], opts: argparse.Namespace) -> None:
    if opts.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"would remove {_in_words(counts)}: say --yes to mean it")
    if input(f"Remove {_in_words(counts)} of {listed(urls)}? [y/N] ").strip().lower() != "y":
        raise ConfigError("nothing was removed")


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
