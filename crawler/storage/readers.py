"""`readers`: what each user has read of a list: of the changes of pages, or of the posts of feeds.

A reader is one document of bounded size, however long the list is: a time up to which everything
is read, of all sources and of single sources (sites or feeds), and exceptions after it.
`Reader.read_all` moves a time forward and drops the exceptions up to it. The reader of changes also
has the user's mutes and the secret of the user's feed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from bson.int64 import Int64
from pymongo.errors import DuplicateKeyError

from crawler.dedup.posts import id_of
from crawler.errors import Busy, ConfigError
from crawler.storage.client import Database, Document
from crawler.storage.users import ID_BYTES, digest
from crawler.utils.regex import compiled

# Maximum number of entries in the document of a reader, which has less than a megabyte.
MAX_SOURCES, MAX_RANGES, MAX_ITEMS, MAX_MUTES = 5000, 100, 2000, 50
MAX_PATTERN_CHARACTERS = 500
# Two browsers of one reader may write concurrently.
TRIES = 10
Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Reader:
    """What a user has read of a list. Each entry has a source, an item (page or post) and a time.

    name:       name of the user; of the reader of posts `posts_reader`
    read_until: everything up to it is read; None: nothing
    sources:    the same for single sources
    ranges:     times, both included, in which everything is read; sorted, without overlaps
    items:      time up to which an item is read, by `item_number`
    mutes:      regular expressions of URLs whose changes are hidden
    feed_since: time when the URL of the feed was created; None: no feed
    can_undo:   whether the last change was a mark that can be undone
    """

    name: str
    read_until: datetime | None = None
    sources: dict[str, datetime] = field(default_factory=dict)
    ranges: tuple[Span, ...] = ()
    items: dict[int, datetime] = field(default_factory=dict)
    mutes: tuple[str, ...] = ()
    feed_since: datetime | None = None
    revision: int = 0
    can_undo: bool = False

    @classmethod
    def of(cls, row: Document) -> Self:
        """Return the reader that a document describes."""
        return cls(
            name=row["_id"],
            read_until=row.get("read_until"),
            sources={each["source"]: each["until"] for each in row["sources"]},
            ranges=tuple((each["since"], each["until"]) for each in row["ranges"]),
            items={each["item"]: each["until"] for each in row["items"]},
            mutes=tuple(row["mutes"]),
            feed_since=row["feed"]["created_at"] if "feed" in row else None,
            revision=row["revision"],
            can_undo="undo" in row and row["undo"]["revision"] == row["revision"],
        )

    def has_read(self, source: str, item: str, at: datetime) -> bool:
        """Return whether the user has read an item as it was at a time."""
        until = self.until_of(source)
        if (until is not None and at <= until) or self.range_at(at) is not None:
            return True
        of_item = self.items.get(item_number(source, item)) if self.items else None
        return of_item is not None and at <= of_item

    def until_of(self, source: str) -> datetime | None:
        """Return the time up to which everything of a source is read; None: nothing."""
        times = (self.read_until, self.sources.get(source))
        return max((at for at in times if at is not None), default=None)

    def range_at(self, at: datetime) -> Span | None:
        """Return the range of read entries that includes a time; None without one."""
        return next((span for span in self.ranges if span[0] <= at <= span[1]), None)

    def read_items(self, items: Iterable[tuple[str, str, datetime]]) -> Self:
        """Mark items as read, each (source, item, time) up to its time.

        Raises ConfigError if too many items are marked one by one.
        """
        marked = dict(self.items)
        for source, item, until in items:
            if not self.has_read(source, item, until):
                number = item_number(source, item)
                marked[number] = max(until, marked.get(number, until))
        if len(marked) > MAX_ITEMS:
            raise ConfigError(
                f"more than {MAX_ITEMS:,} pages would be marked one by one. Mark everything, or "
                "everything of a site, as read instead"
            )
        return replace(self, items=marked)

    def unread_item(self, source: str, item: str) -> Self:
        """Undo the mark of an item."""
        number = item_number(source, item)
        return replace(self, items={each: at for each, at in self.items.items() if each != number})

    def with_room(self) -> Self:
        """Mark everything up to the middle item as read if no further item can be marked."""
        times = sorted(self.items.values())
        return self.read_all(times[len(times) // 2]) if len(times) >= MAX_ITEMS else self

    def read_range(self, since: datetime, until: datetime) -> Self:
        """Mark everything between two times as read; raises ConfigError with too many ranges."""
        merged: list[Span] = []
        for start, end in sorted((*self.ranges, (since, until))):
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        if len(merged) > MAX_RANGES:
            raise ConfigError(
                f"more than {MAX_RANGES} parts of the list would be marked. Mark everything as "
                "read instead"
            )
        return replace(self, ranges=tuple(merged))

    def read_all(self, until: datetime, sources: Iterable[str] | None = None) -> Self:
        """Mark everything up to a time as read, of some sources if they are given."""
        if sources is None:
            read_until = max(until, self.read_until or until)
            return replace(
                self,
                read_until=read_until,
                sources={name: at for name, at in self.sources.items() if at > read_until},
                ranges=tuple(span for span in self.ranges if span[1] > read_until),
                items={number: at for number, at in self.items.items() if at > read_until},
            )
        marked = self.sources | {
            name: max(until, self.sources.get(name, until)) for name in sources
        }
        if len(marked) > MAX_SOURCES:
            raise ConfigError(
                f"more than {MAX_SOURCES:,} sites or feeds are marked. Mark everything as read"
            )
        return replace(self, sources=marked)

    def begin_at(self, since: datetime | None) -> Self:
        """Mark everything later as unread and everything earlier as read; None: all as unread."""
        return replace(self, read_until=since, sources={}, ranges=(), items={})

    def mute(self, pattern: str) -> Self:
        """Hide pages by a regular expression of their URLs; raises ValueError if it is invalid."""
        pattern = pattern.strip()
        if not pattern:
            raise ValueError("write a part of the URL, or a regular expression")
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError(f"longer than {MAX_PATTERN_CHARACTERS} characters")
        compiled(pattern)
        mutes = tuple(dict.fromkeys((*self.mutes, pattern)))
        if len(mutes) > MAX_MUTES:
            raise ValueError(
                f"more than {MAX_MUTES} patterns. Remove one, or combine several with |"
            )
        return replace(self, mutes=mutes)

    def unmute(self, pattern: str) -> Self:
        """Show the pages of a pattern again."""
        return replace(self, mutes=tuple(each for each in self.mutes if each != pattern))


def item_number(source: str, item: str) -> int:
    """Return the number under which an item is marked."""
    return id_of(f"{source} {item}")


async def load(db: Database, name: str) -> Reader:
    """Return a reader; an empty one if none is stored."""
    row = await db.readers.find_one({"_id": name})
    return Reader.of(row) if row else Reader(name)


Edit = Callable[[Reader], Reader]


async def update(db: Database, name: str, change: Edit) -> Reader:
    """Store a changed reader; `change` runs again if another request wrote in between."""
    for _ in range(TRIES):
        before = await load(db, name)
        after = replace(change(before), revision=before.revision + 1)
        if await _store(db, before, after):
            return after
    raise Busy("your read marks were changed by another request. Try again")


async def begin(db: Database, name: str, now: datetime, like: str | None = None) -> None:
    """Store the reader of a new user: everything is read, or what the reader `like` has read."""
    reader = await load(db, like) if like is not None else Reader(name, read_until=now)
    with suppress(DuplicateKeyError):
        await db.readers.insert_one({"_id": name} | document_of(replace(reader, revision=1)))


async def keep_undo(db: Database, before: Reader, after: Reader) -> None:
    """Store the marks before a change, so that `undo` can restore them until the next one."""
    undo = document_of(before) | {"revision": after.revision}
    query = {"_id": after.name, "revision": after.revision}
    await db.readers.update_one(query, {"$set": {"undo": undo}})


async def undo(db: Database, name: str) -> bool:
    """Restore the marks before the last change; return False if there is none to undo."""
    row = await db.readers.find_one({"_id": name})
    if row is None or not Reader.of(row).can_undo:
        return False
    before = row["undo"] | {"revision": row["revision"] + 1}
    update = {"$set": before, "$unset": {"undo": ""}}
    query = {"_id": name, "revision": row["revision"]}
    return bool((await db.readers.update_one(query, update)).matched_count)


def document_of(reader: Reader) -> Document:
    """Return the stored form of a reader, without its `_id` and feed."""
    return {
        "revision": reader.revision,
        "read_until": reader.read_until,
        "sources": [{"source": name, "until": until} for name, until in reader.sources.items()],
        "ranges": [{"since": since, "until": until} for since, until in reader.ranges],
        "items": [{"item": Int64(item), "until": until} for item, until in reader.items.items()],
        "mutes": list(reader.mutes),
    }


async def _store(db: Database, before: Reader, after: Reader) -> bool:
    """Store a reader unless the stored one is newer than `before`; return whether it was stored."""
    values = document_of(after)
    if before.revision == 0:
        try:
            await db.readers.insert_one({"_id": before.name} | values)
        except DuplicateKeyError:
            return False
        return True
    query = {"_id": before.name, "revision": before.revision}
    return bool((await db.readers.update_one(query, {"$set": values})).matched_count)


async def forget(db: Database, spider: str, feed_url: str | None = None) -> None:
    """Delete the times of a feed, or those of a site and of all its feeds."""
    of_site = {"$regex": rf"^{re.escape(spider)}(?: |$)"}
    source = of_site if feed_url is None else f"{spider} {feed_url}"
    update = {"$pull": {"sources": {"source": source}}, "$inc": {"revision": 1}}
    await db.readers.update_many({"sources.source": source}, update)


async def make_feed(db: Database, name: str, now: datetime) -> str:
    """Create a reader's feed in place of any older one; return its secret, which is not stored."""
    await update(db, name, lambda reader: reader)
    secret = secrets.token_urlsafe(ID_BYTES)
    feed = {"token": digest(secret), "created_at": now}
    await db.readers.update_one({"_id": name}, {"$set": {"feed": feed}})
    return secret


async def end_feed(db: Database, name: str) -> None:
    """End the feed of a reader."""
    await db.readers.update_one({"_id": name}, {"$unset": {"feed": ""}})


async def of_feed(db: Database, secret: str) -> Reader | None:
    """Return the reader of a feed; None if the secret was replaced or never existed."""
    row = await db.readers.find_one({"feed.token": digest(secret)})
    return Reader.of(row) if row else None
