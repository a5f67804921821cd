"""`scrapy dead`: what killed one worker after the other, to be looked at, tried again or left."""

from __future__ import annotations

import argparse
import asyncio

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crawler.cli.base import print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import runs
from crawler.storage.client import Document
from crawler.storage.store import opened
from crawler.utils.terminal import print_line, shortened, stdout
from crawler.utils.text import count
from crawler.utils.time import Clock
from crawler.utils.urls import canonical, is_http


def list_options(parser: argparse.ArgumentParser) -> None:
    """Whose."""
    parser.add_argument("--spider", metavar="NAME", help="of this spider alone (all)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which."""
    parser.add_argument("urls", metavar="URL", nargs="*", help="these")
    parser.add_argument("--all", action="store_true", help="all of them")
    list_options(parser)


def show(config: Config, opts: argparse.Namespace) -> int:
    """Print what is buried, the newest first."""
    rows = asyncio.run(_listed(config, opts.spider))
    if opts.json:
        print_json(rows)
    elif not rows:
        print_line("nothing is dead")
    else:
        table = Table("URL", "spider", "since (UTC)", "workers lost", box=SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.no_wrap = True
        for row in rows:
            since = f"{row['at']:%Y-%m-%d %H:%M}"
            table.add_row(shortened(row["url"]), row["spider"], since, str(row["leases"]))
        stdout().print(table)
    return 0


def retry(config: Config, opts: argparse.Namespace) -> int:
    """Let them be visited again, in the next pass."""
    keys = asyncio.run(_change(config, opts, drops=False))
    return _say(opts, keys, "due again")


def drop(config: Config, opts: argparse.Namespace) -> int:
    """Take them off the list; they are never visited again."""
    keys = asyncio.run(_change(config, opts, drops=True))
    return _say(opts, keys, "dropped; never visited again")


def _say(opts: argparse.Namespace, keys: list[str], what: str) -> int:
    if opts.json:
        print_json({"targets": keys})
    else:
        print_line(f"{count(len(keys), 'target')} {what}")
    return 0


async def _listed(config: Config, spider: str | None) -> list[Document]:
    async with opened(config) as db:
        return await runs.dead_letters(db, spider)


async def _change(config: Config, opts: argparse.Namespace, *, drops: bool) -> list[str]:
    if bool(opts.urls) == opts.all:
        raise ConfigError("name the URLs, or say --all")
    urls = [canonical(url) if is_http(url) else url for url in opts.urls]
    async with opened(config) as db:
        keys = await runs.dead_letter_keys(db, opts.spider, None if opts.all else urls)
        if not keys:
            raise ConfigError("nothing of that is dead (scrapy dead list shows what is)")
        if drops:
            await runs.drop_dead_letters(db, keys)
        else:
            await runs.retry_dead_letters(db, keys, Clock(config.clock_offset_hours).now())
        return keys
