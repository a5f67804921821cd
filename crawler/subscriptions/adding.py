"""`scrapy feeds add`: a feed by its URL, or by the page that names it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from crawler.command import print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds.subscriptions import TITLE_CHARACTERS, Refused, Subscription, feed_url, tidy
from crawler.storage import subscriptions
from crawler.storage.client import Document
from crawler.storage.store import opened
from crawler.subscriptions.common import category, plain, say_refused, spider_option
from crawler.utils.terminal import print_line, without_secrets
from crawler.utils.time import Clock
from crawler.working import working


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


def run(config: Config, opts: argparse.Namespace) -> int:
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
    from crawler.subscriptions.looking import look

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
