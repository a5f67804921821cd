"""Searches of the web app: the same matches as `search.hits`, in pages of bounded work.

The index returns the posts with a word without any order by time, so the matches of a word can only
be ranked after all of them were read. Words that are in few posts are looked up there, and the
matches ranked. If each word is in more posts (see `_counts`), or if there are no words, the posts
are read from the newest one, as an index by date has them: matches are dense enough there. The
server leaves out most other posts with regular expressions, and `Query.matches` decides.

A page of the second kind reads the posts of some STEPS, and may have fewer matches than requested.
The key after which the next page begins is the date of the last post and how many posts of this
date were read: the index does not have `_id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Literal

from pymongo import ASCENDING, DESCENDING

from crawler.errors import ConfigError
from crawler.search import Needed, Query
from crawler.storage.client import Database, Document, aggregated
from crawler.storage.feeds import within
from crawler.storage.paging import Key, later
from crawler.storage.posts import count_copies
from crawler.storage.search import (
    BATCH,
    BEST_FIRST,
    COPY_FIELDS,
    DATE,
    OF_ITEM,
    items_of,
    read_items,
    texts_of,
)

Kind = Literal["", "item", "post", "version"]
SearchOrder = Literal["best", "newest"]
# Posts that have the rarest word of a query and are ranked; all posts with any of its words if they
# are scored by all of them; and posts of a rare word, with which other words need no count.
MAX_RANKED, MAX_SCORED, RARE = 5000, 8000, 1000
# Words of a query of which the posts are counted up to RARE, and up to MAX_RANKED.
TESTED_AS_RARE, MAX_TESTED = 8, 3
# Posts that a page reads from the newest one, in these steps: most pages need only the first one.
STEPS = (250, 750, 1500, 1500)
# Without words, no texts are compared.
LIST_STEPS = (250, 750, 3000, 6000)
# Matches that the first page counts, and characters of texts that a page compares with the query.
MAX_COUNTED, MAX_CHARACTERS = 100, 5_000_000
# Posts of the same date that a page skips, because pages before have them.
MAX_SKIPPED = 1_000_000
MAX_COPIES = 200
# Sources of the items of a part of a page.
MAX_SOURCES = 1000
# Of a condition: a text that is not ASCII.
NOT_ASCII: Document = {"$regex": r"[^\x00-\x7f]"}
TEXTS = ("title", "text", "words")
# Begin the keys of both orders.
BEST, BY_DATE, NEWEST = "b", "d", "n"
BEST_ORDER = tuple(BEST_FIRST.items())
DATE_ORDER = BEST_ORDER[1:]
LENGTHS = {BEST: 4, BY_DATE: 3, NEWEST: 4}


@dataclass(frozen=True, slots=True)
class Filters:
    """Selected posts; the default selects all.

    site:     name of the spider of a source or copy
    category: this category and those below it
    kind:     `item` of a site, `post` of a feed, or earlier `version` of both
    since:    posts of this time and later
    until:    posts before this time
    """

    site: str = ""
    category: str = ""
    kind: Kind = ""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def are_set(self) -> bool:
        """Return whether any filter is set."""
        return self != Filters()

    @property
    def condition(self) -> Document:
        """Return the condition on a source or copy, without the times."""
        condition: Document = {"spider": self.site} if self.site else {}
        if self.category:
            condition |= within(self.category)
        if self.kind:
            condition["feed"] = {"$exists": self.kind == "post"}
        return condition

    @property
    def times(self) -> Document:
        """Return the condition on the date of a post; empty: none."""
        span = self.span
        return (
            {"$or": [{"published": span}, {"published": None, "first_seen": span}]} if span else {}
        )

    @property
    def span(self) -> Document:
        """Return the condition on a date; empty: none."""
        span: Document = {"$gte": self.since} if self.since else {}
        return span | ({"$lt": self.until} if self.until else {})


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page of a search.

    items:  as `search.hits` yields them
    order:  whether the best matches come first, or the newest
    next:   key after which the next page begins; None: no more matches
    count:  number of all matches; None: not counted
    read:   number of posts read, if that ended the page; else 0
    common: whether the order is `newest` because each word is in too many posts
    """

    items: list[Document]
    order: SearchOrder
    next: Key | None = None
    count: int | None = None
    read: int = 0
    common: bool = False


async def find(
    db: Database,
    query: Query,
    filters: Filters,
    limit: int,
    after: Key | None = None,
    order: SearchOrder = "best",
) -> FoundPage:
    """Return a page of a search; without words, of the newest posts.

    Raises ConfigError for the key of another list.
    """
    if after is not None and len(after) != LENGTHS.get(str(after[0])):
        raise ConfigError("cursor: not a cursor of this search. Begin with the first page")
    if not query.terms:
        return await _newest(db, query, filters, limit, after)
    if after is not None and after[0] == NEWEST:
        return await _newest(db, query, filters, limit, after, common=True)
    counts = await _counts(db, query)
    rarest = min(counts, key=lambda token: counts[token])
    if counts[rarest] > MAX_RANKED:
        return await _newest(db, query, filters, limit, None, common=True)
    # A look-up of several words reads the posts of each of them.
    limit_of_counts = RARE if counts[rarest] <= RARE else MAX_RANKED
    is_counted = len(counts) == len(query.tokens) and max(counts.values()) <= limit_of_counts
    is_scored = is_counted and sum(counts.values()) <= MAX_SCORED
    look_up = query.look_ups[0] if is_scored else rarest
    return await _looked_up(db, query, look_up, filters, limit, after, order)


async def _counts(db: Database, query: Query) -> dict[str, int]:
    """Return the numbers of posts with some words, at most one more than RARE or MAX_RANKED."""
    for limit, tested in ((RARE, TESTED_AS_RARE), (MAX_RANKED, MAX_TESTED)):
        tokens = query.tokens[:tested]
        counts = await asyncio.gather(*(_count(db, token, limit) for token in tokens))
        if min(counts) <= limit:
            break
    return dict(zip(tokens, counts, strict=True))


async def _count(db: Database, token: str, limit: int) -> int:
    matching: Document = {"original": True, "$text": {"$search": token}}
    stages: list[Document] = [{"$match": matching}, {"$limit": limit + 1}, {"$count": "n"}]
    return sum([row["n"] for row in await aggregated(db.posts, stages)])


async def _looked_up(
    db: Database,
    query: Query,
    look_up: str,
    filters: Filters,
    limit: int,
    after: Key | None,
    order: SearchOrder,
) -> FoundPage:
    """Return the best or the newest matches, which all have the words of a lookup."""
    mark, by = (BEST, BEST_ORDER) if order == "best" else (BY_DATE, DATE_ORDER)
    if after is not None and after[0] != mark:
        raise ConfigError("cursor: not a cursor of this search. Begin with the first page")
    found: Document = {"original": True, "$text": {"$search": look_up}} | filters.times
    # The server looks for all words of a query that it gets itself.
    tests = [] if look_up == query.look_ups[0] else needed(query)
    if condition := filters.condition:
        # Posts without copies must meet it themselves.
        tests.append({"$match": {"$or": [condition, {"cluster": {"$exists": True}}]}})
    fields: Document = {"score": {"$meta": "textScore"}, "date": DATE, "item": 1, "cluster": 1}
    stages: list[Document] = [
        {"$match": found}, *tests, {"$project": fields}, {"$group": OF_ITEM},
        *([{"$match": later(by, after[1:])}] if after else []), {"$sort": dict(by)},
    ]  # fmt: skip
    page: list[Document] = []
    counted, more = 0, False
    room = MAX_CHARACTERS
    async with aclosing(read_items(db, stages, query, condition)) as items:
        async for item in items:
            counted += 1
            room -= sum(map(len, texts_of(item)))
            if counted > (limit if after else max(limit, MAX_COUNTED)):
                more = True
                break
            if counted <= limit:
                page.append(item)
            if room < 0:
                more = True
                break
    has_next = counted > len(page) or more
    row = page[-1]["row"] if page else {}
    key = (mark, *(row[name] for name, _ in by)) if has_next else None
    return FoundPage(page, order, key, None if after or more else counted)


def needed(query: Query) -> list[Document]:
    """Return a stage that leaves out posts that cannot match, before their texts are sent."""
    words = query.needed
    excluded: list[Document] = [
        {name: {"$regex": pattern, "$options": "i"}}
        for pattern in query.excluding
        for name in ("title", "text")
    ]
    without: list[Document] = [{"$match": {"$nor": excluded}}] if excluded else []
    if not words:
        return without
    # Most texts in many languages are ASCII, and the patterns with accents are slow.
    has_accents: Document = {"$or": [{name: NOT_ASCII} for name in TEXTS]}
    forms: list[Document] = [
        {"$and": [_with(each, each.plain) for each in words]},
        {"$and": [has_accents, *(_with(each, each.accented or each.plain) for each in words)]},
    ]
    return [{"$match": {"$or": forms}}, *without]


def _with(word: Needed, pattern: str) -> Document:
    either: list[Document] = [{name: {"$regex": pattern, "$options": "i"}} for name in TEXTS]
    if word.words:
        either.append({"words": {"$regex": word.words}})
    return {"$or": either}


@dataclass(slots=True)
class Position:
    """A place in the posts by date: all later ones, and some of this date, were read.

    dated, undated: number of posts of this date that were read, by whether they state it
    """

    date: datetime | None = None
    dated: int = 0
    undated: int = 0

    @classmethod
    def of(cls, key: Key | None) -> Position:
        """Return the place of a key; raises ConfigError for the key of another list."""
        if key is None:
            return cls()
        _, date, *skipped = key
        is_valid = all(type(n) is int and 0 <= n <= MAX_SKIPPED for n in skipped)
        if not isinstance(date, datetime) or not is_valid:
            raise ConfigError("cursor: not a cursor of this search. Begin with the first page")
        return cls(date, *skipped)

    def pass_by(self, row: Document) -> None:
        """Move behind a row."""
        if row["date"] != self.date:
            self.date, self.dated, self.undated = row["date"], 0, 0
        if row.get("published") is None:
            self.undated += 1
        else:
            self.dated += 1

    @property
    def key(self) -> Key | None:
        """Return the key of the place."""
        return (NEWEST, self.date, self.dated, self.undated) if self.date else None


@dataclass(slots=True)
class _Reading:
    """Posts read from the newest one."""

    db: Database
    filters: Filters
    at: Position
    ended: bool = False

    async def read(self, count: int) -> list[Document]:
        """Return the next posts, the newest first: half as many as requested or more."""
        size = count // 2 + 1
        parts = await asyncio.gather(
            self._of_index("published", size, self.at.dated),
            self._of_index("first_seen", size, self.at.undated),
        )
        rows = sorted(chain(*parts), key=lambda row: row["date"], reverse=True)
        # Posts of the other part that were not read may come before those after this date.
        read_until = [part[-1]["date"] for part in parts if len(part) == size]
        self.ended = not read_until
        if read_until:
            border = max(read_until)
            rows = [row for row in rows if row["date"] > border] + [
                row for part in parts for row in part if row["date"] == border
            ]
        return rows

    async def _of_index(self, name: str, count: int, skipped: int) -> list[Document]:
        """Return posts by a date. name: `first_seen`: posts that state no date."""
        is_dated = name == "published"
        if self.filters.kind == "item" and is_dated:
            # Only posts of feeds state a date.
            return []
        span = self.filters.span
        if self.at.date is not None:
            span = {key: value for key, value in span.items() if key != "$lt"}
            span["$lte"] = self.at.date
        query: Document = {"original": True}
        if self.filters.site:
            query["spider"] = self.filters.site
        if is_dated:
            query["published"] = span or {"$type": "date"}
        else:
            query |= {"published": None} | ({"first_seen": span} if span else {})
        names = ["published", "first_seen"]
        index = ["spider", *names] if self.filters.site else names
        # Otherwise, the server tries several indexes.
        hint = [(each, ASCENDING) for each in index]
        order = [(each, DESCENDING) for each in names]
        fields = (*names, "item")
        cursor = self.db.posts.find(query, fields, hint=hint).sort(order).skip(skipped)
        return [row | {"date": row[name]} for row in await cursor.limit(count).to_list(None)]


async def _newest(
    db: Database,
    query: Query,
    filters: Filters,
    limit: int,
    after: Key | None,
    *,
    common: bool = False,
) -> FoundPage:
    """Return the newest matches. common: because the words are in many posts."""
    if after is not None and after[0] != NEWEST:
        raise ConfigError("cursor: not a cursor of this search. Begin with the first page")
    reading = _Reading(db, filters, Position.of(after))
    # The site and the times are those of the index.
    rest = Filters(category=filters.category, kind=filters.kind).condition
    tests = [*needed(query), *([{"$match": rest}] if rest else [])]
    page: list[Document] = []
    left: list[int] = []
    room, n_read = MAX_CHARACTERS, 0
    for count in STEPS if query.terms else LIST_STEPS:
        rows = await reading.read(count)
        matching = await _passing(db, [row["_id"] for row in rows], tests)
        left = [number for number, row in enumerate(rows) if row["_id"] in matching]
        end = len(rows)
        while left and len(page) < limit and room > 0:
            size = min(limit - len(page), BATCH)
            part, left = left[:size], left[size:]
            some = [rows[number] for number in part]
            found = await _as_items(db, some, query, tests, filters)
            page += found
            room -= sum(len(text) for item in found for text in texts_of(item))
            end = part[-1] + 1 if left else len(rows)
        for row in rows[:end]:
            reading.at.pass_by(row)
        n_read += end
        if len(page) == limit or room <= 0 or reading.ended:
            break
    is_last = reading.ended and not left
    whole = len(page) if is_last and after is None else None
    is_cut = not is_last and len(page) < limit
    key = None if is_last else reading.at.key
    return FoundPage(page, "newest", key, whole, n_read if is_cut else 0, common)


async def _passing(db: Database, ids: list[str], tests: list[Document]) -> set[str]:
    """Return those of some posts that pass tests."""
    if not tests or not ids:
        return set(ids)
    stages = [{"$match": {"_id": {"$in": ids}}}, *tests, {"$project": {"_id": 1}}]
    return {row["_id"] for row in await aggregated(db.posts, stages)}


async def _as_items(
    db: Database, rows: list[Document], query: Query, tests: list[Document], filters: Filters
) -> list[Document]:
    """Return the items of posts, without those that are listed at a newer source of the item."""
    sources: dict[str, list[Document]] = {}
    items = [row["item"] for row in rows if row.get("item")]
    site: Document = {"spider": filters.site} if filters.site else {}
    stages: list[Document] = [
        {"$match": {"item": {"$in": items}, "original": True} | site | filters.times}, *tests,
        {"$project": {"item": 1, "date": DATE}}, {"$limit": MAX_SOURCES},
    ]  # fmt: skip
    for source in await aggregated(db.posts, stages) if items else ():
        sources.setdefault(source["item"], []).append(source)
    listed = []
    for row in rows:
        own = sources.get(row.get("item", ""), [row])
        if max((source["date"], source["_id"]) for source in own) <= (row["date"], row["_id"]):
            ids = list(dict.fromkeys([row["_id"], *(source["_id"] for source in own)]))
            listed.append({"score": 0.0, "item": row.get("item"), "posts": ids})
    return await items_of(db, listed, query, {})


async def copies_of(
    db: Database, items: Sequence[Document]
) -> tuple[dict[str, list[Document]], dict[str, int]]:
    """Return some near-duplicates of each item's sources, and the number of all, by original."""
    originals = [source["_id"] for item in items for source in item["sources"]]
    cursor = db.posts.find({"duplicate_of": {"$in": originals}}, COPY_FIELDS).limit(MAX_COPIES)
    found: dict[str, list[Document]] = {}
    async for row in cursor:
        found.setdefault(row["duplicate_of"], []).append(row)
    return found, await count_copies(db, originals)


async def is_empty(db: Database) -> bool:
    """Return whether there are no posts at all."""
    return await db.posts.find_one({}, {"_id": 1}) is None


async def stored_targets(db: Database, ids: Sequence[str]) -> set[str]:
    """Return those of some keys that are targets."""
    cursor = db.targets.find({"_id": {"$in": list(ids)}}, {"_id": 1})
    return {row["_id"] async for row in cursor}
