"""Reports of the feed reader: unread posts, folders with their numbers, and single posts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.reports.duplicates import DiffRow, diff_rows
from crawler.reports.feeds import FeedState, state_of
from crawler.storage import feed_reader as storage
from crawler.storage import feeds as subscriptions
from crawler.storage.client import Database, Document
from crawler.storage.feed_reader import Reading, View
from crawler.storage.paging import Key
from crawler.storage.posts import as_lines

MAX_VERSIONS = 10
MAX_COPIES = 20
# Copies of one post in a list of posts.
MAX_SHOWN_COPIES = 5
# Maximum number of feeds to search for a page of feeds that need attention.
MAX_SEARCHED = 500
# Characters of a version that are compared.
MAX_TEXT = 100_000


class PostCopy(TypedDict):
    """A near-duplicate that is folded under its original."""

    id: str
    """Id of the post."""
    feed: str | None
    """Id of the feed; null for a page of a site."""
    source: str
    """Title of the feed, or name of the spider."""
    title: str | None
    """Title."""
    url: str | None
    """URL of the page."""


class ReaderPost(TypedDict):
    """A post in a list."""

    id: str
    """Id of the post."""
    feed: str
    """Id of the feed."""
    source: str
    """Title of the feed."""
    title: str | None
    """Title."""
    url: str | None
    """URL of the page."""
    excerpt: str
    """Beginning of the text."""
    published: datetime | None
    """Stated date of publication."""
    first_seen: datetime
    """Time of the first visit that saw the post."""
    read: bool
    """Whether the reader has read the post."""
    duplicate_of: str | None
    """Id of the original, if the post is a near-duplicate of a post outside of the list."""
    copies: int
    """Number of near-duplicates."""
    some_copies: list[PostCopy]
    """Some of the near-duplicates."""


class Folder(TypedDict):
    """A folder of feeds."""

    name: str
    """Path, such as `News/Local`."""
    feeds: int
    """Number of feeds in the folder, without the folders below it."""


class UnreadFeed(TypedDict):
    """A feed with unread posts."""

    id: str
    """Id of the feed."""
    title: str
    """Title of the feed."""
    unread: int
    """Number of unread posts, among the newest 2,000 of all feeds and without near-duplicates."""


class PostVersion(TypedDict):
    """A version of a post."""

    at: datetime
    """Time when this version was first seen."""
    diff: list[DiffRow]
    """Differences to the version before; empty for the oldest one that is shown."""


class FullPost(TypedDict):
    """A post with its text, near-duplicates and versions."""

    id: str
    """Id of the post."""
    spider: str
    """Name of the spider."""
    feed: str | None
    """Id of the feed; null for a page of a site."""
    source: str
    """Title of the feed, or name of the spider."""
    title: str | None
    """Title."""
    url: str | None
    """URL of the page."""
    text: str | None
    """Main text."""
    published: datetime | None
    """Stated date of publication."""
    first_seen: datetime
    """Time of the first visit that saw the post."""
    changed_at: datetime | None
    """Time of the visit that found the current content."""
    read: bool
    """Whether the reader has read the post; true for pages of a site."""
    cluster: str | None
    """Id of the cluster of near-duplicates."""
    duplicate_of: str | None
    """Id of the original."""
    copies: list[PostCopy]
    """Near-duplicates of the post, at most 20."""
    versions: list[PostVersion]
    """Newest versions, at most 10."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """The feeds that a reader views: a feed, a folder, or all feeds.

    title: name of the feed or folder; empty for all feeds
    """

    title: str
    view: View
    feed: str = ""
    folder: str = ""


async def shelf_of(db: Database, feed: str, folder: str) -> Shelf | None:
    """Return a feed or a folder, or all feeds if both are empty; None if it does not exist."""
    if feed:
        names = await storage.titles(db, [feed])
        return Shelf(names[feed], View(frozenset([feed])), feed=feed) if names else None
    if folder:
        feeds = await storage.feeds_within(db, folder)
        return Shelf(folder, View(feeds), folder=folder) if feeds else None
    return Shelf("", View())


async def river(
    db: Database,
    shelf: Shelf,
    reading: Reading,
    limit: int,
    after: Key | None,
    *,
    every: bool,
) -> tuple[list[ReaderPost], Key | None]:
    """Return posts, newest first, and the key after which to continue; None at the end.

    every: also return posts that the reader has read
    """
    part = await storage.river(db, shelf.view, None if every else reading, limit, after)
    shown_copies = {key: rows[:MAX_SHOWN_COPIES] for key, rows in part.copies.items()}
    every_post = [*part.posts, *(row for rows in shown_copies.values() for row in rows)]
    names = await storage.titles(db, {storage.feed_of(p) for p in every_post if "feed" in p})
    posts: list[ReaderPost] = [
        {
            "id": post["_id"],
            "feed": storage.feed_of(post),
            "source": names.get(storage.feed_of(post)) or str(post["feed"]),
            "title": post.get("title"),
            "url": post["url"],
            "excerpt": post["excerpt"],
            "published": post.get("published"),
            "first_seen": post["first_seen"],
            "read": reading.has_read(post),
            "duplicate_of": post.get("duplicate_of"),
            "copies": part.counts.get(post["_id"], 0),
            "some_copies": [_copy(row, names) for row in shown_copies.get(post["_id"], ())],
        }
        for post in part.posts
    ]
    return posts, part.last


def _copy(post: Document, names: dict[str, str]) -> PostCopy:
    feed = storage.feed_of(post) if "feed" in post else None
    return {
        "id": post["_id"],
        "feed": feed,
        "source": names.get(feed) or str(post["feed"]) if feed else str(post["spider"]),
        "title": post.get("title"),
        "url": post["url"],
    }


async def unread_feeds(db: Database, reading: Reading) -> list[UnreadFeed]:
    """Return the feeds with unread posts, by title."""
    counts = await storage.unread_counts(db, reading)
    names = await storage.titles(db, counts)
    rows: list[UnreadFeed] = [
        {"id": key, "title": names.get(key, key), "unread": n} for key, n in counts.items()
    ]
    return sorted(rows, key=lambda row: row["title"].casefold())


async def folders(db: Database) -> list[Folder]:
    """Return the folders of feeds, by name."""
    return [{"name": name, "feeds": n} for name, n in await subscriptions.folders(db)]


async def full_post(db: Database, reading: Reading, key: str) -> FullPost | None:
    """Return a post with its text, near-duplicates and versions; None if it is not stored."""
    post = await storage.post_of(db, key)
    if post is None:
        return None
    copies = await storage.copies_of(db, key, MAX_COPIES)
    keys = {storage.feed_of(each) for each in (post, *copies) if "feed" in each}
    names = await storage.titles(db, keys)
    versions = await storage.versions_of(db, post, MAX_VERSIONS)
    as_copy = _copy(post, names)

    def compared() -> list[PostVersion]:
        """Compare each version with the one before it, which follows it in the list."""
        texts = ["\n".join(as_lines(row["content"]))[:MAX_TEXT] for row in versions]
        return [
            {
                "at": row["at"],
                "diff": diff_rows(texts[at + 1], texts[at]) if at + 1 < len(texts) else [],
            }
            for at, row in enumerate(versions)
        ]

    return {
        "id": key,
        "spider": post["spider"],
        "feed": as_copy["feed"],
        "source": as_copy["source"],
        "title": as_copy["title"],
        "url": as_copy["url"],
        "text": post.get("text"),
        "published": post.get("published"),
        "first_seen": post["first_seen"],
        "changed_at": post.get("changed_at"),
        "read": "feed" not in post or reading.has_read(post),
        "cluster": str(post["cluster"]) if "cluster" in post else None,
        "duplicate_of": post.get("duplicate_of"),
        "copies": [_copy(row, names) for row in copies],
        "versions": await asyncio.to_thread(compared),
    }


async def feeds_page(
    db: Database, folder: str, limit: int, after: Key | None, *, attention: bool
) -> tuple[list[FeedState], Key | None]:
    """Return the state of feeds by URL, and the key after which to continue.

    attention: only feeds that are gone, fail, or have errors in their document
    """
    query: Document = {"kind": subscriptions.FEED}
    if folder:
        query |= subscriptions.within(folder)
    states: list[FeedState] = []
    rows, last = await subscriptions.page_of(db, query, MAX_SEARCHED if attention else limit, after)
    for target, monitor in rows:
        state = state_of(target, monitor)
        if attention and not state["needs_attention"]:
            continue
        states.append(state)
        if len(states) == limit and target is not rows[-1][0]:
            return states, (target["_id"],)
    return states, last


async def feed_state(db: Database, key: str) -> FeedState | None:
    """Return the state of a feed; None if it is not stored."""
    query = {"_id": key, "kind": subscriptions.FEED}
    async for target, monitor in subscriptions.listed(db, query):
        return state_of(target, monitor)
    return None


async def feed_to_read(db: Database, post: str) -> Document:
    """Return a post of a feed; raises ConfigError for any other id."""
    document = await storage.post_of(db, post)
    if document is None or "feed" not in document:
        raise ConfigError("post not found. It may have been removed with its feed")
    return document
