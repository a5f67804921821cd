"""`scrapy search`: the posts that have some words, near-duplicates left out."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from crawler.cli.base import FreshetCommand, moment, number, print_json, when
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import SafeConsole, complain
from crawler.utils.text import count
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.search import Query
    from crawler.storage.client import Database, Document

USUAL_LIMIT = 20
BATCH = 1000
LONGEST_TITLE = 300
COLUMNS_IN_JSON = 200
NO_POSTS = "no posts since then: an earlier --since, or scrapy crawl NAME, may find some"


class Command(FreshetCommand):
    """Posts with some words, best first."""

    arguments = ("[WORD…]",)
    example = 'scrapy search "virtual world" game --since 30d'

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Find posts by words, or the newest ones (--since), without near-duplicates"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What else a post has to be, and how many are shown."""
        from crawler.cli.feeds import category

        super().add_options(parser)
        parser.add_argument(
            "--any", action="store_true", help="one of the words is enough (default: all occur)"
        )
        parser.add_argument(
            "--without", metavar="WORD", action="append", default=[],
            help="leave out posts with this word or phrase; may be repeated",
        )  # fmt: skip
        parser.add_argument(
            "--spider",
            metavar="NAME",
            type=_text,
            help="only posts that this spider has, as a source or as a near-duplicate",
        )
        parser.add_argument(
            "--category",
            metavar="NAME",
            type=category,
            help="only posts in this category or below it, of one of their sources or copies",
        )
        parser.add_argument(
            "--since", metavar="T", type=when,
            help="only posts from then on: a day or time (UTC), or a span such as 7d",
        )  # fmt: skip
        parser.add_argument(
            "--limit", metavar="N", type=number, default=USUAL_LIMIT,
            help=f"posts at most (default: {USUAL_LIMIT})",
        )  # fmt: skip
        parser.add_argument(
            "--all", action="store_true", help="show the near-duplicates of each post too"
        )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """As ever, but who leaves words out as elsewhere is told how it is done here."""
        if unknown := next((word for word in args if word.startswith("-")), None):
            said = f"unknown option {unknown} (--without WORD leaves posts out)"
            raise UsageError(said, print_help=False)
        super().run(args, opts)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print what is found; as of grep, the exit code is 1 if that is nothing."""
        from crawler.cli.search_output import nothing, plain, room, show_posts
        from crawler.search import Query

        if not args and opts.since is None:
            raise UsageError(
                "WORD is missing (--since 7d lists the newest posts)", print_help=False
            )
        query = Query.of(args, opts.without, every=not opts.any)
        console = SafeConsole()
        columns = COLUMNS_IN_JSON if opts.json else room(console)
        rows, more = asyncio.run(_search(self.config, query, bool(args), opts, columns))
        if opts.json:
            print_json([plain(row) for row in rows])
        else:
            show_posts(console, rows, query.terms)
        if not rows:
            complain(self.name, nothing(query) if args else NO_POSTS)
            self.exitcode = 1
        elif more and not opts.json:
            console.print(f"the first {count(len(rows), 'post')}; --limit N shows more")


def _text(given: str) -> str:
    """What a terminal sent in another encoding is no text for MongoDB."""
    return given.encode("utf-8", "replace").decode()


def _whose(opts: argparse.Namespace) -> Document:
    from crawler.storage import feeds as subscriptions

    found: Document = {}
    if opts.spider is not None:
        found["spider"] = opts.spider
    if opts.category:
        found |= subscriptions.within(opts.category)
    return found


async def _search(
    config: Config, query: Query, words: bool, opts: argparse.Namespace, columns: int
) -> tuple[list[Document], bool]:
    """What is found, and whether there is more than was asked for."""
    from crawler.storage import search
    from crawler.storage.retry import in_batches
    from crawler.storage.store import opened

    rows: list[Document] = []
    more = False
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        since = None if opts.since is None else moment(opts.since, now)
        # Words without a letter find nothing; no words at all ask for the newest.
        items = (
            search.hits(db, query, _whose(opts), since)
            if words or since is None
            else search.newest(db, query, _whose(opts), since)
        )
        async with aclosing(items) as found:
            async for post in found:
                if more := len(rows) == opts.limit:
                    break
                rows.append(_row(post, query, columns))
        if opts.spider is not None and not rows:
            await _check_spider(db, opts.spider)
        for some in in_batches(rows, BATCH):
            await _add_copies(db, some, shown=opts.all)
    return rows, more


async def _check_spider(db: Database, spider: str) -> None:
    from crawler.storage import search

    known = await search.spiders(db)
    if spider not in known:
        named = ", ".join(known) or "none; run scrapy crawl first"
        raise ConfigError(f"no posts of {spider!r}; spiders with posts: {named}")


def _row(post: Document, query: Query, columns: int) -> Document:
    """A post as it is shown. Its texts go: there may be many posts."""
    from crawler.search import passage
    from crawler.storage import search

    title = post.get("title")
    texts = [text for text in search.texts_of(post) if text != title] or [""]
    return {name: post.get(name) for name in ("_id", "spider", "url", "feed", "categories")} | {
        "title": "" if title is None else str(title)[:LONGEST_TITLE],
        "date": post["date"],
        "published": post.get("published"),
        "first_seen": post["first_seen"],
        "score": post["score"],
        "cluster": post.get("cluster"),
        "item": post.get("item"),
        "sources": post["sources"],
        "passage": passage(texts, query.terms, columns),
        "copies": 0,
    }


async def _add_copies(db: Database, rows: list[Document], *, shown: bool) -> None:
    from crawler.storage import search

    if shown:
        for row, hidden in zip(rows, await search.hidden(db, rows), strict=True):
            row["hidden"] = hidden
            row["copies"] = len(hidden)
    else:
        for row, copies in zip(rows, await search.counted(db, rows), strict=True):
            row["copies"] = copies
