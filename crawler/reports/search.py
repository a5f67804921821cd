"""Report of `scrapy search`: the posts that a query finds, each with a passage."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import NotRequired

from typing_extensions import TypedDict

from crawler.search import Query, passage
from crawler.storage import search
from crawler.storage.client import Database, Document

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
                        "id": copy["_id"],
                        "spider": copy["spider"],
                        "url": copy.get("url"),
                        "feed": copy.get("feed"),
                        "title": None if copy.get("title") is None else str(copy["title"]),
                        "published": copy.get("published"),
                        "first_seen": copy["first_seen"],
                        "date": copy["date"],
                        "similarity": copy.get("similarity"),
                        "duplicate_of": copy["duplicate_of"],
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
    title, cluster = item.get("title"), item.get("cluster")
    texts = [text for text in search.texts_of(item) if text != title] or [""]
    hit = passage(texts, query.terms, columns)
    return {
        "id": item["_id"],
        "spider": item["spider"],
        "url": item.get("url"),
        "feed": item.get("feed"),
        "categories": item.get("categories") or [],
        "title": "" if title is None else str(title)[:MAX_TITLE],
        "date": item["date"],
        "published": item.get("published"),
        "first_seen": item["first_seen"],
        "score": item["score"],
        "cluster": None if cluster is None else str(cluster),
        "item": item.get("item"),
        "snippet": hit.text,
        "marks": [(start, stop) for start, stop in hit.marks],
        "sources": [
            {
                "id": source["_id"],
                "spider": source["spider"],
                "url": source.get("url"),
                "feed": source.get("feed"),
            }
            for source in item["sources"]
        ],
        "copies": 0,
    }
