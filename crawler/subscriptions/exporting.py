"""`scrapy feeds export`: all feeds as OPML, or as a plain list."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from crawler.command import print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds import opml
from crawler.feeds.subscriptions import Subscription
from crawler.storage import subscriptions
from crawler.storage.store import opened
from crawler.subscriptions.common import spider_option
from crawler.utils.files import atomic_replace
from crawler.utils.terminal import print_line, visible
from crawler.utils.text import count
from crawler.utils.time import Clock

STDOUT = "-"
OPML, URLS = "opml", "urls"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to, and how."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default=STDOUT, help="without it: standard output"
    )
    parser.add_argument(
        "--format", choices=(OPML, URLS), default=OPML, help="OPML 2.0, or a URL a line"
    )
    spider_option(parser)


def run(config: Config, opts: argparse.Namespace) -> int:
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
