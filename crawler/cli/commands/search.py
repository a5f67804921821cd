"""`scrapy search`: find posts by words, without near-duplicates."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, NotRequired

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, print_json, require_posts, usage_error
from crawler.cli.options import add_limit, as_time, category, time_or_age, valid_utf8
from crawler.utils.shapes import copied
from crawler.utils.terminal import SafeConsole, complain, printable
from crawler.utils.text import count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from crawler.search import Passage, Query, Term
    from crawler.storage.client import Database, Document

DEFAULT_LIMIT = 20
COLUMNS_IN_JSON = 200
NO_POSTS = "no posts since then. Try an earlier --since, or run scrapy crawl NAME"
PASSAGE_LINES = 2
INDENT = 2
# Columns at the end of a line that may stay empty because the next word is too long for them.
WRAP_COLUMNS = 5
MIN_WIDTH = 20
MARKED = "bold red"
BATCH = 1000
MAX_TITLE = 300


class FoundSource(TypedDict):
    """A page or feed post with the item."""

    id: str
    """Id of the post."""
    spider: str
    """Name of the spider."""
    url: str | None
    """URL of the page; null for a post without a link."""
    feed: str | None
    """URL of the feed; null for a page."""


class FoundCopy(TypedDict):
    """A near-duplicate of a found post."""

    id: str
    """Id of the post."""
    spider: str
    """Name of the spider."""
    url: str | None
    """URL of the page; null for a post without a link."""
    feed: str | None
    """URL of the feed; null for a page."""
    title: str | None
    """Title."""
    published: datetime | None
    """Date of publication; null if unknown or implausible."""
    first_seen: datetime
    """Time of the first visit that saw the post."""
    date: datetime
    """Date of publication, else time of the first visit."""
    similarity: float | None
    """Estimated Jaccard similarity to the original."""
    duplicate_of: str
    """Id of the original."""


class FoundPost(TypedDict):
    """A post."""

    id: str
    """Id of the post."""
    spider: str
    """Name of the spider."""
    url: str | None
    """URL of the page; null for a post without a link."""
    feed: str | None
    """URL of the feed; null for a page."""
    categories: list[str]
    """Categories."""
    title: str
    """Title, at most 300 characters; empty if the post has none."""
    date: datetime
    """Date of publication, else time of the first visit."""
    published: datetime | None
    """Date of publication; null if unknown or implausible."""
    first_seen: datetime
    """Time of the first visit that saw the post, or another source of its item."""
    score: float
    """Relevance; 0 in a list of the newest posts."""
    cluster: str | None
    """Id of the cluster of near-duplicates; null without near-duplicates."""
    item: str | None
    """Key of the page that the post is a source of; null if it has no page of its own."""
    snippet: str
    """Passage of the text with the words."""
    marks: list[tuple[int, int]]
    """Start and end of each hit in `snippet`."""
    sources: list[FoundSource]
    """All sources of the item."""
    copies: int
    """Number of hidden near-duplicates."""
    hidden: NotRequired[list[FoundCopy]]
    """With `--all`: the near-duplicates, most similar first."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Found posts, best first. has_more: whether more posts match."""

    posts: list[FoundPost]
    has_more: bool


class Command(FreshetCommand):
    """List posts with some words, best match first, or the newest posts."""

    arguments = ("[WORD…]",)
    summary = "Find posts by words, or list the newest posts (--since), without near-duplicates"
    example = 'scrapy search "virtual world" game --since 30d'
    documents: ClassVar = {
        "scrapy search WORD --json": list[FoundPost],
    }

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
            help="only posts since T, a day or time (UTC) or an age such as 7d",
        )  # fmt: skip
        add_limit(parser, "posts", DEFAULT_LIMIT)
        parser.add_argument(
            "--all", action="store_true", help="show the near-duplicates of each post too"
        )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Search; the error for a word such as `-word` mentions `--without`."""
        if unknown := next((word for word in args if word.startswith("-")), None):
            message = f"unknown option {unknown}. --without WORD leaves out posts with a word"
            raise usage_error(message)
        super().run(args, opts)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the posts; like grep, exit with code 1 if there are none."""
        from crawler.search import Query

        if not args and opts.since is None:
            raise usage_error("WORD is missing. --since 7d lists the newest posts")
        query = Query.of(args, opts.without, every=not opts.any)
        console = SafeConsole()
        columns = COLUMNS_IN_JSON if opts.json else passage_columns(console)
        result = asyncio.run(self._search(query, opts, columns, newest=not args))
        rows = result.posts
        if opts.json:
            print_json(rows)
        else:
            show_posts(console, rows, query.terms)
        if not rows:
            complain(self.name, no_matches(query) if args else NO_POSTS)
            self.exitcode = 1
        elif result.has_more and not opts.json:
            console.print(f"first {count(len(rows), 'post')} shown. --limit N shows more")

    async def _search(
        self, query: Query, opts: argparse.Namespace, columns: int, *, newest: bool
    ) -> SearchResult:
        """Return the posts.

        newest: list the newest posts, because no words were given. A query with words may still
                have no terms, if its words have no letters or digits; it finds nothing.
        """
        from crawler.storage import feeds, search
        from crawler.storage.store import opened

        config = self.config
        source: Document = {} if opts.spider is None else {"spider": opts.spider}
        if opts.category:
            source |= feeds.within(opts.category)
        async with opened(config) as db:
            since = as_time(opts.since, config.clock.now())
            items = (
                search.newest(db, query, source, since)
                if newest and since is not None
                else search.hits(db, query, source, since)
            )
            result = await found_posts(
                db, items, query, opts.limit, columns=columns, with_copies=opts.all
            )
            if opts.spider is not None and not result.posts:
                await require_posts(db, opts.spider)
            return result


def passage_columns(console: Console) -> int:
    """Return the columns available for a passage, summed over its lines."""
    return PASSAGE_LINES * (_width(console) - WRAP_COLUMNS)


def _width(console: Console) -> int:
    return max(MIN_WIDTH, console.width) - INDENT


def show_posts(console: Console, rows: Iterable[FoundPost], terms: Sequence[Term]) -> None:
    """Print title, date, copies, URL and a passage of each post."""
    from crawler.search import Passage, marked

    for row in rows:
        title = marked(row["title"], terms)
        console.print(_styled(title, "bold") if title.text else "(no title)", soft_wrap=True)
        n = row["copies"]
        copies = f"+{count(n, 'copy')}" if n else ""
        place = "  ".join(filter(None, (f"{row['date']:%Y-%m-%d}", copies, _url(row))))
        console.print(place, style="cyan", soft_wrap=True)
        if len(row["sources"]) > 1:
            sources = ", ".join(
                source["spider"] + (f" ({source['feed']})" if source["feed"] else "")
                for source in row["sources"]
            )
            console.print(printable(f"sources: {sources}"), style="dim", soft_wrap=True)
        # The text of an item may be only the currency of its price.
        if any(map(str.isalnum, row["snippet"])):
            passage = Passage(row["snippet"], tuple(row["marks"]))
            for line in _styled(passage).wrap(console, _width(console)):
                line.rstrip()
                line.pad_left(INDENT)
                console.print(line, soft_wrap=True)
        for copy in row.get("hidden", ()):
            similarity = copy["similarity"]
            alike = "" if similarity is None else f"{similarity:.0%} alike"
            parts = (" " * INDENT + "copy", alike, f"{copy['date']:%Y-%m-%d}", _url(copy))
            console.print("  ".join(filter(None, parts)), style="dim", soft_wrap=True)
        console.print()


def _styled(passage: Passage, style: str = "") -> Text:
    from rich.text import Text

    text = Text(passage.text, style=style)
    for start, stop in passage.marks:
        text.stylize(MARKED, start, stop)
    return text


def _url(post: FoundPost | FoundCopy) -> str:
    """Return the post's URL, or its feed's URL if the post has no link."""
    return printable(post["url"] or post["feed"] or post["id"])


def no_matches(query: Query) -> str:
    """Return a message for a query without matching posts, with a hint on what to change."""
    if not query.terms:
        return "the query has no letters or digits to search for"
    if query.is_one_character:
        return (
            "no posts found. A single character matches only as a separate word. "
            "Add the next character"
        )
    if query.every and len(query.terms) > 1:
        return "no posts found with all of the words. --any finds posts with at least one of them"
    return "no posts found"


async def found_posts(
    db: Database,
    items: AsyncGenerator[Document],
    query: Query,
    limit: int,
    *,
    columns: int,
    with_copies: bool = False,
) -> SearchResult:
    """Return the first posts of a search.

    items:       of `crawler.storage.search.hits` or `newest`
    columns:     width of the snippets
    with_copies: return near-duplicates, not only their number
    """
    from crawler.storage import search

    posts: list[FoundPost] = []
    # Only the sources of each item, without the full texts, to save memory.
    stored: list[Document] = []
    has_more = False
    async with aclosing(items) as matching:
        async for item in matching:
            if has_more := len(posts) == limit:
                break
            posts.append(_found_post(item, query, columns))
            stored.append({"sources": item["sources"]})
    for begin in range(0, len(posts), BATCH):
        part = slice(begin, begin + BATCH)
        if with_copies:
            hidden = await search.hidden(db, stored[part])
            for post, copies in zip(posts[part], hidden, strict=True):
                post["hidden"] = [
                    {
                        **copied(FoundCopy, copy),
                        "id": copy["_id"],
                        "title": None if copy.get("title") is None else str(copy["title"]),
                    }
                    for copy in copies
                ]
                post["copies"] = len(copies)
        else:
            for post, n in zip(posts[part], await search.counted(db, stored[part]), strict=True):
                post["copies"] = n
    return SearchResult(posts, has_more)


def _found_post(item: Document, query: Query, columns: int) -> FoundPost:
    """Return an item without its copies."""
    from crawler.search import passage
    from crawler.storage import search

    title, cluster = item.get("title"), item.get("cluster")
    texts = [text for text in search.texts_of(item) if text != title] or [""]
    hit = passage(texts, query.terms, columns)
    return {
        **copied(FoundPost, item),
        "id": item["_id"],
        "title": "" if title is None else str(title)[:MAX_TITLE],
        "cluster": None if cluster is None else str(cluster),
        "snippet": hit.text,
        "marks": [(start, stop) for start, stop in hit.marks],
        "sources": [
            {**copied(FoundSource, source), "id": source["_id"]} for source in item["sources"]
        ],
        "copies": 0,
    }
