"""`scrapy feeds import`: the feeds of an OPML file or of a list of URLs."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from crawler.command import print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds.opml import BYTES_IN_MB, LARGEST_MB, read_list
from crawler.feeds.subscriptions import FeedList
from crawler.storage import subscriptions
from crawler.storage.client import Document
from crawler.storage.store import opened
from crawler.storage.subscriptions import Added
from crawler.subscriptions.common import plain, say_refused, spider_option
from crawler.utils.terminal import print_line
from crawler.utils.text import count
from crawler.utils.time import Clock
from crawler.working import working

STDIN = "-"
IN_MEMORY_BYTES = 16 * BYTES_IN_MB


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which file."""
    parser.add_argument("file", metavar="FILE|-", help="OPML, or a URL a line; -: standard input")
    spider_option(parser)


def run(config: Config, opts: argparse.Namespace) -> int:
    """Read all of the list, then put its feeds in; 1 if there was nothing to take."""
    with working(config, "reading the list"), _opened(opts.file) as (file, name):
        found = read_list(file, name, config)
    with working(config, f"storing {count(len(found.feeds), 'feed')}"):
        added = asyncio.run(_store(config, opts.spider, found))
    done = _result(found, added)
    if opts.json:
        print_json(done)
    else:
        _show(done, found)
    return 0 if found.feeds else 1


async def _store(config: Config, spider: str, found: FeedList) -> Added:
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        return await subscriptions.add(db, spider, found.feeds, now)


def _result(found: FeedList, added: Added) -> Document:
    return {
        "added": added.added,
        "known": added.known,
        "categories": len({name for feed in found.feeds for name in feed.categories}),
        "refused": plain(found.refused),
        "problems": list(found.problems),
    }


def _show(done: Document, found: FeedList) -> None:
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
