"""Search earlier versions: contents that items and posts had and no longer have, the newest first.

No index has the words of versions, so a page reads a limited number of them. Of each item or post,
a page lists the newest version that matches.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime

from pymongo import DESCENDING

from crawler.errors import ConfigError
from crawler.search import Query
from crawler.storage.client import Database, Document, in_batches
from crawler.storage.paging import Key
from crawler.storage.posts import MAIN_TEXT
from crawler.storage.search import BATCH, spiders, texts_of
from crawler.storage.search_pages import MAX_CHARACTERS, MAX_SKIPPED, Filters, FoundPage

# Begins the keys of these pages.
VERSIONS = "v"
# Versions of which a page reads the hashes, most of which are current, and in one query.
MAX_HASHES, HASHES = 10_000, 1000
# MongoDB merges the sorted versions of so many sites (internalQueryMaxScansToExplode), and sorts
# all versions of more.
MAX_SITES = 200
HASH_FIELDS = ("spider", "target", "content_hash", "at")
POST_FIELDS = ("url", "feed", "categories", "content_hash", "markup")


async def find_versions(
    db: Database, query: Query, filters: Filters, limit: int, after: Key | None = None
) -> FoundPage:
    """Return a page of the earlier versions that match, the newest first.

    items: as `search.hits` yields them, without sources; `date` is when the version was first seen,
           `version` its content hash, `post` the `_id` of the post, and `more` the number of older
           versions that also match, among those read for the page

    Raises ConfigError for the key of another list, and if there are too many sites to search.
    """
    before, skipped = _place_of(after)
    sites = [filters.site] if filters.site else await spiders(db)
    if len(sites) > MAX_SITES:
        raise ConfigError(
            f"site: earlier versions of at most {MAX_SITES} sites are searched at once, and there "
            f"are {len(sites):,}. Choose a site"
        )
    found: dict[str, Document] = {}
    room, n_read, is_last = MAX_CHARACTERS, 0, False
    while len(found) < limit and room > 0 and n_read < MAX_HASHES and not is_last:
        rows = await _hashes(db, sites, filters, before, skipped)
        end = len(rows)
        async with aclosing(_earlier(db, rows, filters)) as versions:
            async for number, item in versions:
                texts = texts_of(item)
                room -= sum(map(len, texts))
                if query.matches(texts):
                    newest = found.setdefault(item["post"], item)
                    newest["more"] += newest is not item
                if len(found) >= limit or room <= 0:
                    end = number + 1
                    break
        for row in rows[:end]:
            skipped = skipped + 1 if row["at"] == before else 1
            before = row["at"]
        n_read += end
        is_last = end == len(rows) < HASHES
    items = list(found.values())
    if is_last:
        return FoundPage(items, "newest", count=len(items) if after is None else None)
    key = VERSIONS, before, skipped
    return FoundPage(items, "newest", key, read=n_read if len(items) < limit else 0)


def _place_of(after: Key | None) -> tuple[datetime | None, int]:
    """Return the time of a key, and how many versions of that time the pages before have."""
    if after is None:
        return None, 0
    if len(after) == 3 and after[0] == VERSIONS:
        _, before, skipped = after
        if isinstance(before, datetime) and type(skipped) is int and 0 <= skipped <= MAX_SKIPPED:
            return before, skipped
    raise ConfigError("cursor: not a cursor of this search. Begin with the first page")


async def _hashes(
    db: Database, sites: list[str], filters: Filters, before: datetime | None, skipped: int
) -> list[Document]:
    """Return the next versions without their contents, the newest first."""
    span = filters.span
    if before is not None:
        span = {key: value for key, value in span.items() if key != "$lt"} | {"$lte": before}
    query: Document = {"spider": {"$in": sites}} | ({"at": span} if span else {})
    cursor = db.versions.find(query, HASH_FIELDS).sort("at", DESCENDING).skip(skipped)
    return await cursor.limit(HASHES).to_list(None)


async def _earlier(
    db: Database, rows: list[Document], filters: Filters
) -> AsyncGenerator[tuple[int, Document]]:
    """Yield the number and the content, as posts have it, of the versions that are not current.

    List pages have no posts, and are left out like pruned versions.
    """
    keys = {f"{row['spider']} {row['target']}" for row in rows}
    condition = Filters(category=filters.category).condition
    cursor = db.posts.find({"_id": {"$in": list(keys)}} | condition, POST_FIELDS)
    posts = {post["_id"]: post async for post in cursor}
    earlier = [
        (number, row, post)
        for number, row in enumerate(rows)
        if (post := posts.get(f"{row['spider']} {row['target']}")) is not None
        and post["content_hash"] != row["content_hash"]
    ]
    for part in in_batches(earlier, BATCH):
        ids = {"$in": [row["_id"] for _, row, _ in part]}
        read = db.versions.find({"_id": ids}, {"content": 1})
        contents = {row["_id"]: row["content"] async for row in read}
        for number, row, post in part:
            if row["_id"] in contents:
                yield number, _as_post(row, post, contents[row["_id"]])


def _as_post(row: Document, post: Document, content: Document) -> Document:
    fields = {name: value for name, value in content.items() if name != MAIN_TEXT}
    shown = {
        "spider": row["spider"], "title": content.get("title"), "text": content.get(MAIN_TEXT),
        "fields": fields, "published": None, "date": row["at"], "score": 0.0, "sources": [],
        "version": row["content_hash"], "post": post["_id"], "more": 0,
    }  # fmt: skip
    return post | {"_id": row["_id"]} | shown
