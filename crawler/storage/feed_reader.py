"""`reading`: which posts of feeds each reader has read, and the unread posts, newest first.

The state is bounded. For each reader and feed it has a time, until which all posts are read, and
the ids of at most MAX_READ later posts that are read. The entry for all feeds has only a time.
Posts that Freshet first saw more than MAX_DAYS ago count as read.

A near-duplicate of a post in the same view is folded: only the original is shown. Pages scan posts
by the time when Freshet first saw them, so that stated dates cannot hide or repeat a post. Stated
dates order the posts of one visit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pymongo import UpdateOne

from crawler.storage import feeds as subscriptions
from crawler.storage.client import Database, Document, write_all
from crawler.storage.paging import Key, read_page
from crawler.storage.posts import count_copies

MAX_DAYS = 60
MAX_READ = 300
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
ALL_FEEDS = ""
FIELDS = (
    "spider", "feed", "title", "url", "published", "first_seen", "changed_at", "duplicate_of",
    "cluster",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FeedReading:
    """The read posts of a feed. until: all posts first seen by then; read: ids of later ones."""

    until: datetime
    read: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reading:
    """The posts a reader has read. until: in all feeds; feeds: of each feed, by its `_id`."""

    reader: str
    until: datetime
    feeds: Mapping[str, FeedReading] = field(default_factory=dict)

    def has_read(self, post: Document) -> bool:
        """Return whether a post is read."""
        if post["first_seen"] <= self.until:
            return True
        of_feed = self.feeds.get(feed_of(post))
        return of_feed is not None and (
            post["first_seen"] <= of_feed.until or post["_id"] in of_feed.read
        )

    def until_of(self, view: View) -> datetime:
        """Return the time until which the reader has read all posts of a view."""
        if view.feeds is None:
            return self.until
        nothing = FeedReading(self.until)
        times = [self.feeds.get(key, nothing).until for key in view.feeds]
        return max(self.until, min(times, default=self.until))


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


async def reading_of(db: Database, reader: str, now: datetime) -> Reading:
    """Return the posts that a reader has read."""
    until, feeds = now - timedelta(days=MAX_DAYS), {}
    async for row in db.reading.find({"reader": reader}):
        if row["feed"] == ALL_FEEDS:
            until = max(until, row["until"])
        else:
            feeds[row["feed"]] = FeedReading(row["until"], frozenset(row["read"]))
    return Reading(reader, until, feeds)


async def feeds_within(db: Database, folder: str) -> frozenset[str]:
    """Return the `_id`s of the feeds in a folder and the folders below it, at most MAX_FEEDS."""
    query = {"kind": subscriptions.FEED} | subscriptions.within(folder)
    cursor = db.targets.find(query, {"_id": 1}).limit(MAX_FEEDS)
    return frozenset([row["_id"] async for row in cursor])


async def river(
    db: Database,
    view: View,
    reading: Reading | None,
    limit: int,
    after: Key | None = None,
) -> River:
    """Return posts of a view, newest first, without folded copies.

    reading: leave out what this reader has read; None: return all posts

    A page may have fewer posts than `limit` even if more follow: it scans at most SCANNED posts.
    """
    query = FEED_POSTS | view.query
    if reading is not None:
        query |= {"first_seen": {"$gt": reading.until_of(view)}}
    visible: list[Document] = []
    last = after
    for _ in range(SCANNED // BATCH):
        page = await read_page(db.posts, query, NEWEST_FIRST, BATCH, last, dict.fromkeys(FIELDS, 1))
        # The query also finds the posts of a feed with the same URL that another spider reads.
        kept = [
            post
            for post in page.rows
            if view.has(post) and (reading is None or not reading.has_read(post))
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


async def unread_counts(db: Database, reading: Reading) -> dict[str, int]:
    """Count unread posts by feed, among the newest COUNTED, without near-duplicates."""
    query = FEED_POSTS | {"first_seen": {"$gt": reading.until}}
    fields = {"spider": 1, "feed": 1, "first_seen": 1, "duplicate_of": 1}
    numbers: dict[str, int] = {}
    cursor = db.posts.find(query, fields).sort(list(NEWEST_FIRST)).limit(COUNTED)
    async for post in cursor:
        if "duplicate_of" not in post and not reading.has_read(post):
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


async def mark_read(db: Database, reading: Reading, post: Document) -> None:
    """Record that a reader has read a post.

    If MAX_READ posts of the feed are recorded, all posts until the middle one of them become read.
    """
    if reading.has_read(post):
        return
    key = feed_of(post)
    state = reading.feeds.get(key, FeedReading(reading.until))
    until, read = max(state.until, reading.until), {*state.read, post["_id"]}
    removed = set[str]()
    if len(read) > MAX_READ:
        cursor = db.posts.find({"_id": {"$in": list(read)}}, {"first_seen": 1})
        times = {row["_id"]: row["first_seen"] async for row in cursor}
        until = max(until, sorted(times.values())[len(times) // 2]) if times else until
        removed = read - {id_ for id_, at in times.items() if at > until}
    await write_all(db.reading, [_update(reading, key, until, {post["_id"]}, removed)])


async def mark_unread(db: Database, reading: Reading, post: Document) -> bool:
    """Record that a reader has not read a post; return False if its time makes it count as read."""
    state = reading.feeds.get(feed_of(post))
    if state is None or post["_id"] not in state.read:
        return not reading.has_read(post)
    update = _update(reading, feed_of(post), state.until, removed={post["_id"]})
    await write_all(db.reading, [update])
    return bool(post["first_seen"] > max(state.until, reading.until))


async def mark_all_read(db: Database, reading: Reading, view: View, until: datetime) -> None:
    """Record that a reader has read all posts of a view that were first seen until a time."""
    if view.feeds is None:
        until = max(until, reading.until)
        await write_all(db.reading, [_update(reading, ALL_FEEDS, until)])
        done: Iterable[str] = (key for key, state in reading.feeds.items() if state.until <= until)
        # The entry for all feeds replaces entries without ids of later posts.
        await db.reading.delete_many(
            {"reader": reading.reader, "feed": {"$in": list(done)}, "read": []}
        )
        return
    updates = []
    for key in view.feeds:
        state = reading.feeds.get(key, FeedReading(reading.until))
        removed = set(state.read)
        if removed:
            query = {"_id": {"$in": list(removed)}, "first_seen": {"$gt": until}}
            removed -= set(await db.posts.distinct("_id", query))
        updates.append(_update(reading, key, max(until, state.until), removed=removed))
    await write_all(db.reading, updates)


def _update(
    reading: Reading,
    feed: str,
    until: datetime,
    added: Collection[str] = (),
    removed: Collection[str] = (),
) -> UpdateOne:
    """Return the update of the read posts of a feed; it keeps what concurrent requests added."""
    read: Document = {"$setUnion": [{"$ifNull": ["$read", []]}, {"$literal": list(added)}]}
    row: Document = {
        "reader": {"$literal": reading.reader},
        "feed": {"$literal": feed},
        "until": {"$max": ["$until", until]},
        "read": {"$setDifference": [read, {"$literal": list(removed)}]},
    }
    return UpdateOne({"_id": f"{reading.reader} {feed}"}, [{"$set": row}], upsert=True)
