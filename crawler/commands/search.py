"""`scrapy search`: find posts by words, without near-duplicates."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from crawler.cli.base import FreshetCommand, print_json
from crawler.cli.types import as_time, category, positive_int, time_or_age, valid_utf8
from crawler.errors import ConfigError
from crawler.utils.terminal import SafeConsole, complain
from crawler.utils.text import count
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.search import Query
    from crawler.storage.client import Document

DEFAULT_LIMIT = 20
BATCH = 1000
MAX_TITLE = 300
COLUMNS_IN_JSON = 200
NO_POSTS = "no posts since then. Try an earlier --since, or run scrapy crawl NAME"


class Command(FreshetCommand):
    """List posts with some words, best match first, or the newest posts."""

    arguments = ("[WORD…]",)
    example = 'scrapy search "virtual world" game --since 30d'

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Find posts by words, or list the newest posts (--since), without near-duplicates"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options that select posts and limit their number."""
        super().add_options(parser)
        parser.add_argument(
            "--any", action="store_true",
            help="find posts with at least one of the words (default: with all of them)",
        )  # fmt: skip
        parser.add_argument(
            "--without", metavar="WORD", action="append", default=[],
            help="leave out posts with this word or phrase (may be repeated)",
        )  # fmt: skip
        parser.add_argument(
            "--spider", metavar="NAME", type=valid_utf8,
            help="only posts of which this spider found a source or near-duplicate",
        )  # fmt: skip
        parser.add_argument(
            "--category", metavar="NAME", type=category,
            help="only posts of which a source or near-duplicate is in this category or one of its "
            "subcategories",
        )  # fmt: skip
        parser.add_argument(
            "--since", metavar="T", type=time_or_age,
            help="only posts since a day or time (UTC), or since a time ago such as 7d",
        )  # fmt: skip
        parser.add_argument(
            "--limit", metavar="N", type=positive_int, default=DEFAULT_LIMIT,
            help=f"maximum number of posts (default: {DEFAULT_LIMIT})",
        )  # fmt: skip
        parser.add_argument(
            "--all", action="store_true", help="show the near-duplicates of each post too"
        )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Search; the error for a word such as `-word` mentions `--without`."""
        if unknown := next((word for word in args if word.startswith("-")), None):
            message = f"unknown option {unknown}. --without WORD leaves out posts with a word"
            raise UsageError(message, print_help=False)
        super().run(args, opts)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the posts; like grep, exit with code 1 if there are none."""
        from crawler.cli.search_output import json_of, no_matches, passage_columns, show_posts
        from crawler.search import Query

        if not args and opts.since is None:
            raise UsageError("WORD is missing. --since 7d lists the newest posts", print_help=False)
        query = Query.of(args, opts.without, every=not opts.any)
        console = SafeConsole()
        columns = COLUMNS_IN_JSON if opts.json else passage_columns(console)
        rows, more = asyncio.run(self._search(query, opts, columns, newest=not args))
        if opts.json:
            print_json([json_of(row) for row in rows])
        else:
            show_posts(console, rows, query.terms)
        if not rows:
            complain(self.name, no_matches(query) if args else NO_POSTS)
            self.exitcode = 1
        elif more and not opts.json:
            console.print(f"first {count(len(rows), 'post')} shown. --limit N shows more")

    async def _search(
        self, query: Query, opts: argparse.Namespace, columns: int, *, newest: bool
    ) -> tuple[list[Document], bool]:
        """Return the posts, and whether there are more than `--limit`.

        newest: list the newest posts, because no words were given. A query may have no terms in
                spite of words, if they have no letters or digits; it finds nothing.
        """
        from crawler.storage import feeds, search
        from crawler.storage.outages import in_batches
        from crawler.storage.store import opened

        config = self.config
        source: Document = {} if opts.spider is None else {"spider": opts.spider}
        if opts.category:
            source |= feeds.within(opts.category)
        rows: list[Document] = []
        more = False
        async with opened(config) as db:
            since = as_time(opts.since, Clock(config.clock_offset_hours).now())
            items = (
                search.newest(db, query, source, since)
                if newest and since is not None
                else search.hits(db, query, source, since)
            )
            async with aclosing(items) as posts:
                async for post in posts:
                    if more := len(rows) == opts.limit:
                        break
                    rows.append(_search_result(post, query, columns))
            if opts.spider is not None and not rows:
                spiders = await search.spiders(db)
                if opts.spider not in spiders:
                    names = ", ".join(spiders) or "none. Run scrapy crawl first"
                    raise ConfigError(f"no posts of {opts.spider!r}. Spiders with posts: {names}")
            for batch in in_batches(rows, BATCH):
                if opts.all:
                    for row, copies in zip(batch, await search.hidden(db, batch), strict=True):
                        row["hidden"], row["copies"] = copies, len(copies)
                else:
                    for row, n in zip(batch, await search.counted(db, batch), strict=True):
                        row["copies"] = n
        return rows, more


def _search_result(post: Document, query: Query, columns: int) -> Document:
    """Return a post with a passage instead of its full text, to save memory.

    columns: width of the passage
    """
    from crawler.search import passage
    from crawler.storage import search

    title = post.get("title")
    texts = [text for text in search.texts_of(post) if text != title] or [""]
    return {name: post.get(name) for name in ("_id", "spider", "url", "feed", "categories")} | {
        "title": "" if title is None else str(title)[:MAX_TITLE],
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
