"""`scrapy feeds remove`: feeds and all that came of them."""

from __future__ import annotations

import argparse
import asyncio
import sys

from crawler.command import print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import subscriptions
from crawler.storage.client import Document
from crawler.storage.duplicates.opening import as_stored
from crawler.storage.store import opened
from crawler.subscriptions.common import owned, spider_option
from crawler.utils.terminal import print_line
from crawler.utils.text import count, listed
from crawler.utils.time import Clock


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which feeds, and whether it is meant."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="of the feed, or an alias of it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only count what would go")
    spider_option(parser)


def run(config: Config, opts: argparse.Namespace) -> int:
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
