"""The unread posts of feeds, newest first, and the marks of those that a user has read.

Posts that Freshet first saw more than MAX_DAYS ago count as read. If a user reads more posts one by
one than a reader can mark, all posts until the middle one of them become read.

A near-duplicate of a post in the same view is folded: only the original is shown. Pages scan posts
by the time when Freshet first saw them, so that stated dates cannot hide or repeat a post. Stated
dates order the posts of one visit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from crawler.storage import feeds as subscriptions
from crawler.storage import readers
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key, read_page
from crawler.storage.posts import count_copies
from crawler.storage.readers import Reader
from crawler.storage.users import posts_reader

MAX_DAYS = 60
# Maximum number of posts that a page scans for posts to show, and posts in a batch.
SCANNED, BATCH = 4000, 250
# Maximum number of posts among which unread posts are counted.
COUNTED = 2000
# Feeds of a folder that one page shows; each has its own range in the index.
MAX_FEEDS = 2000
MAX_COPIES = 200
EXCERPT = 300
# A visit may find many posts, the first visit of a feed all of them: the newest come first.
NEWEST_FIRST = (("first_seen", -1), ("published", -1), ("_id", -1))
FEED_POSTS: Document = {"guid": {"$exists": True}}
FIELDS = (
    "spider", "feed", "title", "url", "published", "first_seen", "changed_at", "duplicate_of",
    "cluster",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """The posts of some feeds, which a page shows. feeds: their `_id`s; None: all feeds."""

    feeds: frozenset[str] | None = None

    def has(self, post: Document) -> bool:
        """Return whether a post is in the view."""
        return "feed" in post and (self.feeds is None or feed_of(post) in self.feeds)

    @property
    def query(self) -> Document:
        """Return a query for the posts of the view."""
        if self.feeds is None:
            return {}
        pairs = [key.partition(" ")[::2] for key in self.feeds]
        return {
            "spider": {"$in": sorted({spider for spider, _ in pairs})},
            "feed": {"$in": sorted({url for _, url in pairs})},
        }


@dataclass(frozen=True, slots=True)
class River:
    """A part of the posts, newest first. last: key after which to continue; None: at the end.

    posts:  documents with FIELDS and `excerpt`
    copies: near-duplicates by the `_id` of their original
    counts: number of copies by the `_id` of the original
    """

    posts: list[Document]
    last: Key | None
    copies: dict[str, list[Document]]
    counts: dict[str, int]


def feed_of(post: Document) -> str:
    """Return the `_id` of a post's feed in `targets` and `feeds`."""
    return f"{post['spider']} {post['feed']}"


def has_read(reader: Reader, post: Document) -> bool:
    """Return whether a post is read."""
    return reader.has_read(feed_of(post), post["_id"], post["first_seen"])


async def reader_of(db: Database, user: str, now: datetime) -> Reader:
    """Return the posts that a user has read."""
    return _at(await readers.load(db, posts_reader(user)), now)


def _at(reader: Reader, now: datetime) -> Reader:
    return reader.read_all(now - timedelta(days=MAX_DAYS))


async def feeds_within(db: Database, folder: str) -> frozenset[str]:
    """Return the `_id`s of the feeds in a folder and the folders below it, at most MAX_FEEDS."""
    query = {"kind": subscriptions.FEED} | subscriptions.within(folder)
    cursor = db.targets.find(query, {"_id": 1}).limit(MAX_FEEDS)
    return frozenset([row["_id"] async for row in cursor])


async def river(
    db: Database,
    view: View,
    reader: Reader | None,
    limit: int,
    after: Key | None = None,
) -> River:
    """Return posts of a view, newest first, without folded copies.

    reader: leave out what this reader has read; None: return all posts

    A page may have fewer posts than `limit` even if more follow: it scans at most SCANNED posts.
    """
    query = FEED_POSTS | view.query
    if reader is not None:
        times = [reader.until_of(key) for key in view.feeds or ("",)]
        query |= {"first_seen": {"$gt": min(at for at in times if at is not None)}}
    visible: list[Document] = []
    last = after
    for _ in range(SCANNED // BATCH):
        page = await read_page(db.posts, query, NEWEST_FIRST, BATCH, last, dict.fromkeys(FIELDS, 1))
        # The query also finds the posts of a feed with the same URL that another spider reads.
        kept = [
            post
            for post in page.rows
            if view.has(post) and (reader is None or not has_read(reader, post))
        ]
        of = {post["_id"]: post["duplicate_of"] for post in kept if "duplicate_of" in post}
        originals = {"_id": {"$in": list(set(of.values()))}}
        cursor = db.posts.find(originals, {"spider": 1, "feed": 1})
        inside = {post["_id"] async for post in cursor if view.has(post)} if of else set()
        visible += [post for post in kept if of.get(post["_id"]) not in inside]
        last = page.last
        if len(visible) > limit:
            visible = visible[:limit]
            last = tuple(visible[-1].get(name) for name, _ in NEWEST_FIRST)
        if last is None or len(visible) == limit:
            break
    ids = [post["_id"] for post in visible]
    is_text = {"$eq": [{"$type": "$text"}, "string"]}
    excerpt = {"$cond": [is_text, {"$substrCP": ["$text", 0, EXCERPT]}, ""]}
    cursor = db.posts.find({"_id": {"$in": ids}}, {"excerpt": excerpt})
    excerpts = {row["_id"]: row["excerpt"] async for row in cursor}
    for post in visible:
        post["excerpt"] = excerpts.get(post["_id"], "")
    copies: dict[str, list[Document]] = {}
    async for row in db.posts.find({"duplicate_of": {"$in": ids}}, dict.fromkeys(FIELDS, 1)).limit(
        MAX_COPIES
    ):
        copies.setdefault(row["duplicate_of"], []).append(row)
    return River(visible, last, copies, await count_copies(db, ids))


async def unread_counts(db: Database, reader: Reader) -> dict[str, int]:
    """Count unread posts by feed, among the newest COUNTED, without near-duplicates."""
    query = FEED_POSTS | {"first_seen": {"$gt": reader.read_until}}
    fields = {"spider": 1, "feed": 1, "first_seen": 1, "duplicate_of": 1}
    numbers: dict[str, int] = {}
    cursor = db.posts.find(query, fields).sort(list(NEWEST_FIRST)).limit(COUNTED)
    async for post in cursor:
        if "duplicate_of" not in post and not has_read(reader, post):
            key = feed_of(post)
            numbers[key] = numbers.get(key, 0) + 1
    return numbers


async def titles(db: Database, keys: Collection[str]) -> dict[str, str]:
    """Return the title of each feed, or its URL if it has none, by `_id`."""
    cursor = db.targets.find({"_id": {"$in": list(keys)}}, {"url": 1, "title": 1})
    named = {row["_id"]: (row.get("title"), row["url"]) async for row in cursor}
    monitors = db.feeds.find({"_id": {"$in": list(keys)}}, {"title": 1})
    own = {row["_id"]: row.get("title") async for row in monitors}
    return {key: title or own.get(key) or url for key, (title, url) in named.items()}


async def post_of(db: Database, key: str) -> Document | None:
    """Return a post; None if it is not stored."""
    return await db.posts.find_one({"_id": key}, {"words": 0, "link": 0})


async def copies_of(db: Database, key: str, limit: int) -> list[Document]:
    """Return copies of a post."""
    cursor = db.posts.find({"duplicate_of": key}, dict.fromkeys(FIELDS, 1))
    return await cursor.limit(limit).to_list(None)


async def versions_of(db: Database, post: Document, limit: int) -> list[Document]:
    """Return the newest versions of a post with their contents, newest first."""
    target = post["_id"].removeprefix(f"{post['spider']} ")
    query = {"target": target, "spider": post["spider"]}
    return await db.versions.find(query).sort("at", -1).limit(limit).to_list(None)


async def mark_read(db: Database, user: str, post: Document, now: datetime) -> None:
    """Record that a user has read a post."""
    item = feed_of(post), post["_id"], post["first_seen"]
    await readers.update(
        db, posts_reader(user), lambda reader: _at(reader, now).with_room().read_items([item])
    )


async def mark_unread(db: Database, user: str, post: Document, now: datetime) -> bool:
    """Record that a user has not read a post; return False if its time makes it count as read."""
    after = await readers.update(
        db,
        posts_reader(user),
        lambda reader: _at(reader, now).unread_item(feed_of(post), post["_id"]),
    )
    return not has_read(after, post)


async def mark_all_read(db: Database, user: str, view: View, until: datetime) -> None:
    """Record that a user has read all posts of a view that were first seen until a time.

    The mark can be undone until the user makes another one.
    """
    before: list[Reader] = []

    def mark(reader: Reader) -> Reader:
        before.append(reader)
        return reader.read_all(until, view.feeds)

    after = await readers.update(db, posts_reader(user), mark)
    await readers.keep_undo(db, before[-1], after)


async def undo(db: Database, user: str) -> bool:
    """Undo the last mark of all posts; return False if another mark was made since."""
    return await readers.undo(db, posts_reader(user))
