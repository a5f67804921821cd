"""What the actions of `scrapy feeds` share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds.subscriptions import Refused, category_of
from crawler.finding import names_of, nearest
from crawler.storage import subscriptions
from crawler.storage.client import Database
from crawler.utils.terminal import complain

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
