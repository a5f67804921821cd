"""What leaves the database: old versions and visits by prune, whole targets by forget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from crawler.items import Kind
from crawler.storage import keeping, subscriptions
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import boilerplate
from crawler.storage.duplicates.leaving import release_posts
from crawler.storage.duplicates.registry import Registry
from crawler.utils.urls import item_key

OF_A_URL = {
    "targets": "url",
    "visits": "target",
    "versions": "target",
    "posts": "url",
    "days": "target",
}
OF_A_SPIDER = (*OF_A_URL, "listings", "runs", "feeds", "pushes", "cells", "dead")
SUMMED = ("changed", "get_size", "update_size", "diff_size")


async def forget_url(
    db: Database, registry: Registry, url: str, now: datetime, *, really: bool
) -> dict[str, int]:
    """Remove a URL in all spiders, aliases included; counts by collection.

    What feeds have of the page goes too: all sources of its item, with their versions.
    """
    named: Document = {"$or": [{"url": url}, {"aliases": url}]}
    fields = {"spider": 1, "url": 1, "kind": 1, "final_url": 1}
    found = await db.targets.find(named, fields).to_list(None)
    counts: Counter[str] = Counter()
    for feed in found:
        if feed["kind"] == Kind.FEED:
            counts += await _forget_feed(db, registry, feed, now, really=really)
    pages = [row for row in found if row["kind"] != Kind.FEED]
    owners = sorted({row["url"] for row in pages})
    queries: dict[str, Document] = {
        name: {field: {"$in": owners}} for name, field in OF_A_URL.items()
    }
    queries["posts"] = _posts_of(pages)
    of_feeds = queries["posts"] | {"feed": {"$exists": True}}
    posts = await db.posts.find(of_feeds, {"spider": 1}).to_list(None)
    names = [
        {"spider": post["spider"], "target": post["_id"].removeprefix(f"{post['spider']} ")}
        for post in posts
    ]
    queries["versions"] = {"$or": [queries["versions"], *names]}
    if really:
        await release_posts(db, registry, queries["posts"], now)
    cells = [row["_id"] for row in found if row["kind"] == Kind.CELL]
    queries["cells"] = {"_id": {"$in": cells}}
    queries["listings"] = {"$or": [{"item": {"$in": owners}}, {"list": {"$in": owners}}]}
    rest = await _remove(db, queries, really=really)
    for spider in {row["spider"] for row in found} if really else ():
        if await db.posts.find_one({"spider": spider}, {"_id": 1}) is None:
            await boilerplate.forget(db, spider)
    return {name: rest.get(name, 0) + counts[name] for name in dict.fromkeys((*rest, *counts))}


def _posts_of(pages: Iterable[Document]) -> Document:
    """A query for the posts of pages, and for all other sources of their items."""
    rows = list(pages)
    items = [item_key(row.get("final_url") or row["url"]) for row in rows]
    own: Document = {"_id": {"$in": [row["_id"] for row in rows]}}
    return {"$or": [own, {"item": {"$in": [item for item in items if item]}}]}


async def _forget_feed(
    db: Database, registry: Registry, feed: Document, now: datetime, *, really: bool
) -> Counter[str]:
    """All that a feed has brought goes with it."""
    urls = [feed["url"]]
    removed = await subscriptions.remove(db, registry, feed["spider"], urls, now, really=really)
    return Counter(removed)


async def forget_spider(
    db: Database, registry: Registry, spider: str, now: datetime, *, really: bool
) -> dict[str, int]:
    """Remove everything of a spider; counts by collection.

    A plan of several spiders stays for the others.
    """
    queries: dict[str, Document] = {name: {"spider": spider} for name in OF_A_SPIDER}
    queries["plans"] = {"$or": [{"spiders": [spider]}, {"learns": spider}]}
    queries["sites"] = {"_id": spider}
    if really:
        await release_posts(db, registry, queries["posts"], now)
    counts = await _remove(db, queries, really=really)
    if really:
        await boilerplate.forget(db, spider)
        await db.plans.update_many({"spiders": spider}, {"$pull": {"spiders": spider}})
    return counts


async def _remove(db: Database, queries: dict[str, Document], *, really: bool) -> dict[str, int]:
    counts = {}
    for name, query in queries.items():
        if really:
            counts[name] = (await db[name].delete_many(query)).deleted_count
        else:
            counts[name] = await db[name].count_documents(query)
    return counts


async def prune_versions(db: Database, spider: str, keep: int, *, really: bool) -> int:
    """Keep `keep` >= 1 versions of each target, the present one and the newest; how many go."""
    pipeline: list[Document] = [
        {"$match": {"spider": spider}},
        {"$sort": {"target": 1, "at": -1}},
        {"$group": {"_id": "$target", "n": {"$sum": 1}, "ids": {"$push": "$_id"}}},
        {"$match": {"n": {"$gt": keep}}},
    ]
    removed = 0
    cursor = await db.versions.aggregate(pipeline, allowDiskUse=True, batchSize=500)
    async for group in cursor:
        removed += await _prune_target(db, spider, group, keep, really=really)
    return removed


async def _prune_target(
    db: Database, spider: str, group: Document, keep: int, *, really: bool
) -> int:
    target = await db.targets.find_one(
        {"_id": f"{spider} {group['_id']}"}, {"content_hash": 1, "url": 1}
    )
    present = f"{spider} {group['_id']} {target['content_hash']}" if target else None
    newest_first = sorted(group["ids"], key=lambda key: key != present)
    old = newest_first[keep:]
    if really:
        await db.versions.delete_many({"_id": {"$in": old}})
        await keeping.recount(db, spider, group["_id"])
    return len(old)


async def roll_up_visits(db: Database, spider: str, before: datetime, *, really: bool) -> int:
    """Visits before a time become one row per target and day in `days`; how many went.

    Whole days only, and a day's sums stand before its visits go: a crash in between costs nothing,
    as a day that is summed already is not summed again.
    """
    midnight = before.replace(hour=0, minute=0, second=0, microsecond=0)
    query: Document = {"spider": spider, "at": {"$lt": midnight}}
    if not really:
        return await db.visits.count_documents(query)
    removed = 0
    while first := await db.visits.find_one(query, sort=[("at", 1)]):
        removed += await _roll_up_day(db, spider, first["at"])
    return removed


async def drop_runs(db: Database, spider: str, before: datetime, *, really: bool) -> int:
    """Passes that ended before a time go, but for the last; how many."""
    last = await db.runs.find_one({"spider": spider}, sort=[("started", -1)])
    query: Document = {"spider": spider, "finished": {"$lt": before}}
    if last is not None:
        query["_id"] = {"$ne": last["_id"]}
    if not really:
        return await db.runs.count_documents(query)
    return (await db.runs.delete_many(query)).deleted_count


async def _roll_up_day(db: Database, spider: str, moment: datetime) -> int:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    in_day: Document = {"spider": spider, "at": {"$gte": day, "$lt": day + timedelta(days=1)}}
    await (await db.visits.aggregate(_day_sums(spider, day, in_day))).to_list(None)
    return (await db.visits.delete_many(in_day)).deleted_count


def _day_sums(spider: str, day: datetime, in_day: Document) -> list[Document]:
    sums: Document = {name: {"$sum": f"${name}"} for name in SUMMED}
    return [
        {"$match": in_day},
        {"$group": {"_id": {"target": "$target", "outcome": "$outcome"}, "n": {"$sum": 1}} | sums},
        {
            "$group": {
                "_id": "$_id.target",
                "visits": {"$sum": "$n"},
                "outcomes": {"$push": {"k": "$_id.outcome", "v": "$n"}},
            }
            | sums
        },
        {
            "$set": {
                "_id": {"$concat": [spider, " ", "$_id", f" {day:%Y-%m-%d}"]},
                "spider": {"$literal": spider},
                "target": "$_id",
                "day": {"$literal": day},
                "outcomes": {"$arrayToObject": "$outcomes"},
            }
        },
        {"$merge": {"into": "days", "on": "_id", "whenMatched": "keepExisting"}},
    ]
