"""`scrapy duplicates`: the clusters of near-duplicates, or one of them with its copies."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from bson import ObjectId
from bson.errors import InvalidId
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crawler.command import print_json
from crawler.config import Config
from crawler.duplication.common import copies, place_of, positive, title_of
from crawler.errors import ConfigError
from crawler.storage import search
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import reading
from crawler.storage.duplicates.opening import HINT
from crawler.storage.duplicates.reading import Overview
from crawler.storage.store import opened
from crawler.utils.terminal import printable, shortened, stdout
from crawler.utils.text import count

USUAL_LIMIT = 20
USUAL_COPIES = 200


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which clusters, and how much of them."""
    parser.add_argument("--cluster", metavar="ID", help="this one, with its copies and history")
    parser.add_argument("--spider", metavar="NAME", help="only clusters with a post of it")
    parser.add_argument(
        "--limit", metavar="N", type=positive,
        help=f"clusters at most (default: {USUAL_LIMIT}), or copies of one (default: "
        f"{USUAL_COPIES}); --json shows all",
    )  # fmt: skip


def run(config: Config, opts: argparse.Namespace) -> int:
    """Print them."""
    console = stdout()
    if opts.cluster is not None:
        found = asyncio.run(_cluster(config, opts))
        print_json(found) if opts.json else _show_cluster(console, found)
        return 0
    overview = asyncio.run(_overview(config, opts))
    if opts.json:
        print_json(_plain(overview))
    else:
        _show(console, overview)
    return 0


def _limit(opts: argparse.Namespace, usual: int) -> int | None:
    if opts.limit is not None:
        return int(opts.limit)
    return None if opts.json else usual


async def _overview(config: Config, opts: argparse.Namespace) -> Overview:
    async with opened(config) as db:
        if opts.spider is not None:
            await _check_spider(db, opts.spider)
        return await reading.overview(db, opts.spider, _limit(opts, USUAL_LIMIT))


async def _check_spider(db: Database, spider: str) -> None:
    known = await search.spiders(db)
    if spider not in known:
        named = ", ".join(known) or "none; run scrapy crawl first"
        raise ConfigError(f"no posts of {spider!r}; spiders with posts: {named}")


async def _cluster(config: Config, opts: argparse.Namespace) -> Document:
    async with opened(config) as db:
        try:
            found = await reading.cluster_of(db, ObjectId(opts.cluster), _limit(opts, USUAL_COPIES))
        except InvalidId:
            found = None
    if found is None:
        raise ConfigError(f"no cluster {opts.cluster} (scrapy duplicates lists them)")
    return found


def _plain(found: Overview) -> Document:
    return {
        "posts": found.posts,
        "clusters": found.clusters,
        "copies": found.copies,
        "rebuilding": found.rebuilding,
        "shown": found.shown,
    }


def _show(console: Console, found: Overview) -> None:
    for row in found.shown:
        _show_original(console, row)
        console.print(f"cluster {row['cluster']}", style="dim")
        console.print()
    compared = f"{count(found.posts, 'post')} compared"
    total = f"{count(found.clusters, 'cluster')} with {copies(found.copies)}"
    console.print(f"{compared}: {total}", soft_wrap=True)
    if (shown := len(found.shown)) < found.clusters:
        said = f"the {shown:,} largest; --limit N shows more, --json all"
        console.print(said if shown else "--json shows all", soft_wrap=True)
    if found.rebuilding:
        console.print(f"being rebuilt, or that was cut short: {HINT}", soft_wrap=True)


def _show_original(console: Console, row: Document) -> None:
    post = row["original"]
    console.print(title_of(post) or "(no title)", style="bold", soft_wrap=True)
    told = (f"{post['created']:%Y-%m-%d}", f"+{copies(row['copies'])}", place_of(post))
    console.print("  ".join(told), style="cyan", soft_wrap=True)


def _show_cluster(console: Console, found: Document) -> None:
    _show_original(console, found)
    console.print(_copies(found["members"]))
    if (shown := len(found["members"])) < found["copies"]:
        said = f"the {shown:,} oldest; --limit N shows more, --json all"
        console.print(said, soft_wrap=True)
    for source in found["sources"]:
        console.print(f"the same item: {place_of(source)} of {source['spider']}", soft_wrap=True)
    for change in found["changes"]:
        console.print(_change(change), soft_wrap=True)


def _copies(members: Sequence[Document]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("alike", justify="right", no_wrap=True)
    table.add_column("created (UTC)", no_wrap=True)
    table.add_column("copy")
    for post in members:
        alike = "" if post["similarity"] is None else f"{post['similarity']:.0%}"
        told = "\n".join(filter(None, (title_of(post), place_of(post))))
        table.add_row(alike, f"{post['created']:%Y-%m-%d %H:%M}", shortened(told))
    return table


def _change(change: Document) -> str:
    was, now = printable(change["was"]), printable(change["post"])
    return f"{change['at']:%Y-%m-%d %H:%M}  {change['why']}: {now} instead of {was}"
