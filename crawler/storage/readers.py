"""`readers`: how far each user has read the changes, which pages are muted, and the secret feed.

A reader is one document of bounded size, however many changes there are: a time up to which all
changes are read, of all sites and of single sites, and exceptions after it. `Reader.read_all`
moves a time forward and drops the exceptions up to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
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

# Maximum number of entries in the document of a reader, which has about 150 kB at most.
MAX_SITES, MAX_RANGES, MAX_PAGES, MAX_MUTES = 1000, 100, 2000, 50
MAX_PATTERN_CHARACTERS = 500
# Two browsers of one reader may write concurrently.
TRIES = 10
Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Reader:
    """The changes that a user has read.

    read_until: all changes up to it are read; None: none
    sites:      the same for single sites
    ranges:     times, both included, in which all changes are read; sorted, without overlaps
    pages:      time up to which all changes of a page are read, by `page_number`
    mutes:      regular expressions of URLs whose changes are hidden
    feed_since: time when the URL of the feed was created; None: no feed
    """

    name: str
    read_until: datetime | None = None
    sites: dict[str, datetime] = field(default_factory=dict)
    ranges: tuple[Span, ...] = ()
    pages: dict[int, datetime] = field(default_factory=dict)
    mutes: tuple[str, ...] = ()
    feed_since: datetime | None = None
    revision: int = 0

    @classmethod
    def of(cls, row: Document) -> Self:
        """Return the reader that a document describes."""
        return cls(
            name=row["_id"],
            read_until=row.get("read_until"),
            sites={each["site"]: each["until"] for each in row["sites"]},
            ranges=tuple((each["since"], each["until"]) for each in row["ranges"]),
            pages={each["page"]: each["until"] for each in row["pages"]},
            mutes=tuple(row["mutes"]),
            feed_since=row["feed"]["created_at"] if "feed" in row else None,
            revision=row["revision"],
        )

    def has_read(self, spider: str, url: str, at: datetime) -> bool:
        """Return whether a change of a page is read. at: time of the visit that found it."""
        if self.read_until is not None and at <= self.read_until:
            return True
        of_site = self.sites.get(spider)
        if of_site is not None and at <= of_site:
            return True
        if self.range_at(at) is not None:
            return True
        of_page = self.pages.get(page_number(spider, url)) if self.pages else None
        return of_page is not None and at <= of_page

    def range_at(self, at: datetime) -> Span | None:
        """Return the range of read changes that includes a time; None without one."""
        return next((span for span in self.ranges if span[0] <= at <= span[1]), None)

    def read_pages(self, pages: Iterable[tuple[str, str, datetime]]) -> Self:
        """Mark pages as read, each (spider, URL, time) up to its time.

        Raises ConfigError if too many pages are marked one by one.
        """
        marked = dict(self.pages)
        for spider, url, until in pages:
            if not self.has_read(spider, url, until):
                number = page_number(spider, url)
                marked[number] = max(until, marked.get(number, until))
        if len(marked) > MAX_PAGES:
            raise ConfigError(
                f"more than {MAX_PAGES:,} pages would be marked one by one. Mark everything, or "
                "everything of a site, as read instead"
            )
        return replace(self, pages=marked)

    def read_range(self, since: datetime, until: datetime) -> Self:
        """Mark all changes between two times as read; raises ConfigError with too many ranges."""
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

    def read_all(self, until: datetime, site: str | None = None) -> Self:
        """Mark all changes up to a time as read, of one site if it is given."""
        if site is None:
            read_until = max(until, self.read_until or until)
            return replace(
                self,
                read_until=read_until,
                sites={name: at for name, at in self.sites.items() if at > read_until},
                ranges=tuple(span for span in self.ranges if span[1] > read_until),
                pages={page: at for page, at in self.pages.items() if at > read_until},
            )
        sites = self.sites | {site: max(until, self.sites.get(site, until))}
        if len(sites) > MAX_SITES:
            raise ConfigError(f"more than {MAX_SITES:,} sites are marked. Mark everything as read")
        return replace(self, sites=sites)

    def begin_at(self, since: datetime | None) -> Self:
        """Mark all later changes as unread and all earlier ones as read; None: all as unread."""
        return replace(self, read_until=since, sites={}, ranges=(), pages={})

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


def page_number(spider: str, url: str) -> int:
    """Return the number under which a page is marked."""
    return id_of(f"{spider} {url}")


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


async def _store(db: Database, before: Reader, after: Reader) -> bool:
    """Store a reader unless the stored one is newer than `before`; return whether it was stored."""
    values: Document = {
        "revision": after.revision,
        "read_until": after.read_until,
        "sites": [{"site": site, "until": until} for site, until in after.sites.items()],
        "ranges": [{"since": since, "until": until} for since, until in after.ranges],
        "pages": [{"page": Int64(page), "until": until} for page, until in after.pages.items()],
        "mutes": list(after.mutes),
    }
    if before.revision == 0:
        try:
            await db.readers.insert_one({"_id": before.name} | values)
        except DuplicateKeyError:
            return False
        return True
    query = {"_id": before.name, "revision": before.revision}
    return bool((await db.readers.update_one(query, {"$set": values})).matched_count)


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
