"""Feeds as a list of subscriptions: put in, shown, exported, removed.

A feed's `_id` is `"SPIDER URL"`, so a range of `_id` holds a spider's feeds in the order of their
URLs, and everything of one feed's posts.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pymongo import UpdateOne

from crawler.feeds.subscriptions import Subscription
from crawler.items import Kind
from crawler.storage.bulk import in_batches, insert_new
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import boilerplate
from crawler.storage.duplicates.leaving import release_posts
from crawler.storage.duplicates.registry import Registry
from crawler.storage.targets import MAX_CATEGORIES, new_document
from schedules.history import CHANGE

BATCH = 1000
FEED = str(Kind.FEED)
NAMED = {"spider": 1, "url": 1, "title": 1, "categories": 1, "alias_of": 1, "gone": 1}
# Of a history the number of its records is enough.
SHOWN: Document = dict.fromkeys(
    (
        "url", "title", "categories", "visited_at", "next_visit", "outcome", "refreshed",
        "consecutive_errors", "consecutive_gone", "gone", "alias_of", "window", "plan",
        "history.since", "history.until", "last_visit.reason", "last_visit.outcome",
    ),
    1,
) | {"change_bytes": {"$binarySize": {"$ifNull": ["$history.changes", None]}}}  # fmt: skip


@dataclass(slots=True)
class Added:
    """How many feeds were new, and how many there already."""

    added: int = 0
    known: int = 0


def all_of(spider: str) -> Document:
    """A query for the feeds of a spider."""
    return {"_id": _below(spider), "kind": FEED}


def of_urls(spider: str, urls: Sequence[str]) -> Document:
    """A query for the feeds with exactly these canonical URLs."""
    return {"_id": {"$in": [f"{spider} {url}" for url in urls]}, "kind": FEED}


def within(category: str) -> Document:
    """A query for what is in a category, or in one below it."""
    return {"categories": {"$regex": f"^{re.escape(category)}(/|$)"}}


def _named(spider: str, urls: Sequence[str]) -> Document:
    """A query for the feeds that have one of these URLs, as their own or as an alias."""
    names = [
        {"_id": {"$in": [f"{spider} {url}" for url in urls]}},
        {"spider": spider, "aliases": {"$in": list(urls)}},
    ]
    return {"kind": FEED, "$or": names}


def _below(key: str) -> Document:
    """Keys that begin with `key` and a space."""
    return {"$gte": f"{key} ", "$lt": f"{key}!"}


async def add(
    db: Database, spider: str, feeds: Sequence[Subscription], now: datetime, *, singly: bool = False
) -> Added:
    """Put feeds in, due at once; those already there gain categories, and a title if they had none.

    singly: the user means these very feeds: a title counts, and one that is gone is due at once
    """
    total = Added()
    for some in in_batches(feeds, BATCH):
        known = await _known(db, spider, [feed.url for feed in some])
        new = [_new(spider, feed, now) for feed in some if feed.url not in known]
        added = await insert_new(db.targets, new)
        if added < len(new):  # somebody else put them in at the same time
            known = await _known(db, spider, [feed.url for feed in some])
        there = [(feed, known[feed.url]) for feed in some if feed.url in known]
        if more := [x for one in there if (x := _more(*one, now, singly=singly))]:
            await db.targets.bulk_write(more, ordered=False)
        total.added += added
        total.known += len(some) - added
    return total


async def _known(db: Database, spider: str, urls: list[str]) -> dict[str, Document]:
    """The feeds that are there, by each of these URLs that is theirs, aliases included."""
    found = await db.targets.find(_named(spider, urls), NAMED | {"aliases": 1}).to_list(None)
    owners = {alias: one for one in found for alias in one.get("aliases", ())}
    return owners | {one["url"]: one for one in found if "alias_of" not in one}


def _new(spider: str, feed: Subscription, now: datetime) -> Document:
    made = new_document(spider, feed.url, Kind.FEED, now, now, feed.categories)
    return made | {"title": feed.title}


def _more(feed: Subscription, known: Document, now: datetime, *, singly: bool) -> UpdateOne | None:
    """What a feed that is there gains; None if that is nothing."""
    update: Document = {}
    if missing := [name for name in feed.categories if name not in known.get("categories", ())]:
        update["$push"] = {"categories": {"$each": missing, "$slice": -MAX_CATEGORIES}}
    if feed.title and (singly or not known.get("title")):
        update["$set"] = {"title": feed.title}
    if singly and known.get("gone"):
        update["$min"] = {"next_visit": now}
    return UpdateOne({"_id": known["_id"]}, update) if update else None


async def exported(db: Database, spider: str) -> list[Subscription]:
    """All feeds but aliases, sorted by URL."""
    query = all_of(spider) | {"alias_of": {"$exists": False}}
    feeds = []
    async for target, monitor in _with_monitors(db, query, NAMED, {"title": 1, "site": 1}):
        title = target.get("title") or monitor.get("title")
        categories = tuple(target.get("categories", ()))
        feeds.append(Subscription(target["url"], title, monitor.get("site"), categories))
    return feeds


async def shown(db: Database, query: Document) -> AsyncIterator[tuple[Document, Document]]:
    """Targets and monitors of feeds, sorted by URL; memory does not grow with their number.

    A target has `changes` besides: how many posts its history holds.
    """
    async for target, monitor in _with_monitors(
        db, query, SHOWN, {"ids": 0, "push.secret": 0, "push.token": 0}
    ):
        target["changes"] = (target.pop("change_bytes", None) or 0) // CHANGE.itemsize
        yield target, monitor


async def _with_monitors(
    db: Database, query: Document, of_target: Document, of_monitor: Document
) -> AsyncIterator[tuple[Document, Document]]:
    cursor = db.targets.find(query, of_target).sort("_id").batch_size(BATCH)
    while targets := await cursor.to_list(BATCH):
        keys = [target["_id"] for target in targets]
        found = db.feeds.find({"_id": {"$in": keys}}, of_monitor)
        monitors = {monitor["_id"]: monitor async for monitor in found}
        for target in targets:
            yield target, monitors.get(target["_id"], {})


async def feeds_named(db: Database, spider: str, names: Sequence[str]) -> list[str]:
    """URLs of the feeds that have one of these canonical URLs, as their own or as an alias.

    A feed comes with all its aliases: what one of them knows is the same feed.
    """
    found = await db.targets.find(_named(spider, names), NAMED).to_list(None)
    owners = sorted({one.get("alias_of") or one["url"] for one in found})
    query = {"spider": spider, "kind": FEED, "alias_of": {"$in": owners}}
    aliases = await db.targets.distinct("url", query) if owners else []
    return sorted({*owners, *aliases})


async def remove(
    db: Database,
    registry: Registry,
    spider: str,
    urls: Sequence[str],
    now: datetime,
    *,
    really: bool,
) -> dict[str, int]:
    """Remove feeds and all that came of them; counts by collection. Repeat it after a crash."""
    counts: dict[str, int] = {}
    for url in urls:
        for collection, query in await _queries(db, spider, url):
            if really and collection == "posts":
                await release_posts(db, registry, query, now)
            if really:
                n = (await db[collection].delete_many(query)).deleted_count
            else:
                n = await db[collection].count_documents(query)
            counts[collection] = counts.get(collection, 0) + n
        if really:
            await boilerplate.forget(db, spider, url)
    return counts


async def _queries(db: Database, spider: str, url: str) -> list[tuple[str, Document]]:
    """What belongs to a feed, the target last: after a crash it can be removed again."""
    key = f"{spider} {url}"
    target = await db.targets.find_one({"_id": key}, {"aliases": 1}) or {}
    # Posts of a feed that was renamed are known by its old name.
    names = [url, *target.get("aliases", ())]
    of_posts: Document = {
        "spider": spider, "$or": [{"post": _below(f"{spider} {name}")} for name in names],
    }  # fmt: skip
    pages = [page["url"] async for page in db.targets.find(of_posts, {"url": 1})]
    of_pages: list[tuple[str, Document]] = [
        (collection, {"spider": spider, "target": {"$in": some}})
        for some in in_batches([url, *pages], BATCH)
        for collection in ("versions", "visits", "days")
    ]
    return [
        ("pushes", {"spider": spider, "url": url}),
        ("posts", {"spider": spider, "feed": url}),
        *(("versions", {"spider": spider, "target": _below(name)}) for name in names),
        *of_pages,
        ("feeds", {"_id": key}),
        ("targets", of_posts),
        ("targets", {"_id": key}),
    ]
