"""Deletion of the oldest versions, visits, runs and plans (prune), of URLs and of sites (forget).

Change rates are estimated from `history` of targets, which has the newest 512 changes, so that
plans do not depend on how long visits are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.items import Kind
from crawler.storage import alarms, feeds, outbox, readers, runs, sampling_phases
from crawler.storage.client import (
    Database,
    Document,
    aggregated,
    delete_or_count,
    in_async_batches,
)
from crawler.storage.dedup import boilerplate
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.signatures import Registry
from crawler.storage.posts import (
    SizeLimits,
    VersionDeletion,
    current_versions,
    recount_bytes,
)
from crawler.storage.targets import URL_COLLECTIONS, with_url
from crawler.utils.time import start_of_day
from crawler.utils.urls import item_key

DAY = timedelta(days=1)
# Maximum number of targets whose versions are deleted together, and of these versions.
BATCH, MAX_IDS = 500, 50_000
# Fields of visits that `days` aggregates.
SUMMED = ("changed", "get_size", "update_size", "diff_size")
SPIDER_COLLECTIONS = (*URL_COLLECTIONS, "listings", "runs", "feeds", "pushes", "cells", "rereads")


@dataclass(frozen=True, slots=True)
class Ages:
    """The data to keep. versions: number per target, 0: all; others: maximum age, None: any."""

    versions: int
    visits: timedelta | None
    aggregates: timedelta | None
    runs: timedelta | None
    plans: timedelta | None

    @classmethod
    def of(cls, config: Config) -> Ages:
        """Return the limits in the settings."""
        return cls(
            config.keep_versions,
            *(
                timedelta(days=days) if days else None
                for days in (
                    config.keep_visits_days, config.keep_aggregates_days, config.keep_runs_days,
                    config.keep_plans_days,
                )
            ),
        )  # fmt: skip


class PrunedSpider(TypedDict):
    """Deleted data of a spider."""

    versions: int
    """Number of deleted versions."""
    visits: int
    """Number of visits that daily aggregates replaced."""
    aggregates: int
    """Number of deleted daily aggregates."""
    runs: int
    """Number of deleted runs."""
    kept_bytes: int
    """Uncompressed bytes of the versions that are left."""


class PrunedShared(TypedDict):
    """Deleted data that does not belong to one spider."""

    plans: int
    """Number of deleted plans."""
    alarms: int
    """Number of deleted alarms that ended."""
    messages: int
    """Number of deleted messages of notifications."""
    hosts: int
    """Number of deleted pauses of hosts that are over."""


class PruneReport(TypedDict):
    """Deleted data."""

    dry_run: bool
    """Whether nothing was deleted."""
    spiders: dict[str, PrunedSpider]
    """Deleted data by spider."""
    shared: PrunedShared
    """Deleted data that does not belong to one spider."""


async def prune_spider(
    db: Database, spider: str, ages: Ages, config: Config, now: datetime, *, delete: bool
) -> PrunedSpider:
    """Delete old data of a spider. delete: False to only count."""
    deletion = VersionDeletion(db, delete=delete)
    if ages.versions:
        await prune_versions(db, deletion, spider, ages.versions)
    limits = SizeLimits(db, spider, config)
    await limits.bound_targets(deletion)
    kept_bytes = await limits.bound_site(deletion)
    result: PrunedSpider = {
        "versions": deletion.count, "visits": 0, "aggregates": 0, "runs": 0,
        "kept_bytes": kept_bytes,
    }  # fmt: skip
    if ages.visits is not None:
        before = now - ages.visits
        # The results of a sampling phase are counted from its visits.
        if (phase := await sampling_phases.current(db, spider)) is not None:
            before = min(before, phase.at)
        result["visits"] = await roll_up_visits(db, spider, before, delete=delete)
    if ages.aggregates is not None:
        before = now - ages.aggregates
        result["aggregates"] = await drop_aggregates(db, spider, before, delete=delete)
    if ages.runs is not None:
        result["runs"] = await drop_runs(db, spider, now - ages.runs, delete=delete)
    return result


async def prune_shared(db: Database, ages: Ages, now: datetime, *, delete: bool) -> PrunedShared:
    """Delete old data that does not belong to one spider. delete: False to only count."""
    old_plans = 0 if ages.plans is None else await drop_plans(db, now - ages.plans, delete=delete)
    return {
        "plans": old_plans,
        "alarms": await delete_or_count(db.alarms, alarms.old(now), delete=delete),
        "messages": await delete_or_count(db.outbox, outbox.old(now), delete=delete),
        "hosts": await delete_or_count(db.hosts, {"hold_until": {"$lt": now}}, delete=delete),
    }


async def prune_versions(db: Database, deletion: VersionDeletion, spider: str, keep: int) -> None:
    """Delete all but `keep` >= 1 versions of each target and post.

    The newest versions stay, and always the current one.
    """
    pipeline: list[Document] = [
        {"$match": {"spider": spider}},
        {"$sort": {"target": 1, "at": -1}},
        {"$group": {"_id": "$target", "n": {"$sum": 1}, "ids": {"$push": "$_id"}}},
        {"$match": {"n": {"$gt": keep}}},
    ]
    groups = await db.versions.aggregate(pipeline, allowDiskUse=True, batchSize=BATCH)
    async for batch in in_async_batches(groups, BATCH, lambda group: int(group["n"]), MAX_IDS):
        names = [group["_id"] for group in batch]
        current = await current_versions(db, {f"{spider} {name}" for name in names})
        old: list[str] = []
        for group in batch:
            # The sort is stable: the current version is first, the others stay in their order.
            newest = sorted(group["ids"], key=lambda key: key not in current)
            old += newest[keep:]
        await deletion.add(old)
        if deletion.deletes:
            await recount_bytes(db, spider, names)


async def roll_up_visits(db: Database, spider: str, before: datetime, *, delete: bool) -> int:
    """Aggregate visits before a time into one row per target and day; return their number.

    Only whole days are aggregated. A day's row is stored before its visits are deleted, and is not
    overwritten, so a crash in between loses nothing.
    """
    query: Document = {"spider": spider, "at": {"$lt": start_of_day(before)}}
    if not delete:
        return await db.visits.count_documents(query)
    removed = 0
    sums: Document = {name: {"$sum": f"${name}"} for name in SUMMED}
    while first := await db.visits.find_one(query, sort=[("at", 1)]):
        day = start_of_day(first["at"])
        in_day: Document = {"spider": spider, "at": {"$gte": day, "$lt": day + DAY}}
        pipeline: list[Document] = [
            {"$match": in_day},
            {
                "$group": {"_id": {"target": "$target", "outcome": "$outcome"}, "n": {"$sum": 1}}
                | sums
            },
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
        await aggregated(db.visits, pipeline, allowDiskUse=True)
        removed += (await db.visits.delete_many(in_day)).deleted_count
    return removed


async def oldest_visit(db: Database) -> datetime | None:
    """Return the time of the oldest visit of all spiders; None without visits."""
    oldest = None
    for spider in await runs.spiders(db):
        row = await db.visits.find_one({"spider": spider}, {"at": 1}, sort=[("at", 1)])
        if row is not None and (oldest is None or row["at"] < oldest):
            oldest = row["at"]
    return oldest


async def drop_aggregates(db: Database, spider: str, before: datetime, *, delete: bool) -> int:
    """Delete daily aggregates before a time; return their number.

    Those of the newest day stay: they show until when visits are aggregated.
    """
    newest = await db.days.find_one({"spider": spider}, {"day": 1}, sort=[("day", -1)])
    if newest is None:
        return 0
    query: Document = {"spider": spider, "day": {"$lt": min(before, newest["day"])}}
    return await delete_or_count(db.days, query, delete=delete)


async def drop_runs(db: Database, spider: str, before: datetime, *, delete: bool) -> int:
    """Delete runs that ended before a time, except the last run; return their number."""
    last = await db.runs.find_one({"spider": spider}, sort=[("started", -1)])
    query: Document = {"spider": spider, "finished": {"$lt": before}}
    if last is not None:
        query["_id"] = {"$ne": last["_id"]}
    return await delete_or_count(db.runs, query, delete=delete)


async def drop_plans(db: Database, before: datetime, *, delete: bool) -> int:
    """Delete plans made before a time that are no longer needed; return their number.

    Keeps plans that targets have, the newest plan of each group of spiders, sampling phases that
    have not ended, and the last phase of each spider.
    """
    query: Document = {
        "at": {"$lt": before},
        "$or": [
            {"samples": {"$exists": False}, "state": {"$in": ["active", "discarded"]}},
            {"samples": {"$exists": True}, "ended": {"$lt": before}},
        ],
    }
    old = set(await db.plans.distinct("_id", query))
    if not old:
        return 0
    of: Document = {name: f"${name}" for name in ("kind", "spiders", "samples")}
    of["has_ended"] = {"$gt": ["$ended", None]}
    newest: list[Document] = [
        {"$match": {"state": "active"}},
        {"$sort": {"at": -1}},
        {"$group": {"_id": of, "newest": {"$first": "$_id"}}},
    ]
    used: list[Document] = [
        {"$match": {"plan.id": {"$type": "objectId"}}},
        {"$group": {"_id": {"id": "$plan.id", "former": "$plan.former.id"}}},
    ]
    old -= {row["newest"] async for row in await db.plans.aggregate(newest)}
    async for row in await db.targets.aggregate(used):
        old -= {*row["_id"].values()}
    return await delete_or_count(db.plans, {"_id": {"$in": list(old)}}, delete=delete)


async def forget_url(
    db: Database, registry: Registry, url: str, now: datetime, *, delete: bool
) -> dict[str, int]:
    """Remove a URL and its aliases for all spiders; return counts by collection.

    Also removes the feeds' posts of the page: all sources of its item, with their versions.
    """
    fields = {"spider": 1, "url": 1, "kind": 1, "final_url": 1}
    rows = await db.targets.find(await with_url(db, [url]), fields).to_list(None)
    counts: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == Kind.FEED:
            # Removing a feed removes its posts and pages.
            spider, urls = row["spider"], [row["url"]]
            counts += Counter(await feeds.remove(db, registry, spider, urls, now, delete=delete))
    pages = [row for row in rows if row["kind"] != Kind.FEED]
    owners = sorted({row["url"] for row in pages})
    queries: dict[str, Document] = {
        name: {field: {"$in": owners}} for name, field in URL_COLLECTIONS.items()
    }
    items = [item_key(row.get("final_url") or row["url"]) for row in pages]
    by_key: Document = {"_id": {"$in": [row["_id"] for row in pages]}}
    queries["posts"] = {"$or": [by_key, {"item": {"$in": [item for item in items if item]}}]}
    of_feeds = queries["posts"] | {"feed": {"$exists": True}}
    posts = await db.posts.find(of_feeds, {"spider": 1}).to_list(None)
    of_posts = [
        {"spider": post["spider"], "target": post["_id"].removeprefix(f"{post['spider']} ")}
        for post in posts
    ]
    queries["versions"] = {"$or": [queries["versions"], *of_posts]}
    if delete:
        await release_posts(db, registry, queries["posts"], now)
    cells = [row["_id"] for row in rows if row["kind"] == Kind.CELL]
    queries["cells"] = {"_id": {"$in": cells}}
    queries["listings"] = {
        # The indexes begin with the spider.
        "spider": {"$in": sorted({row["spider"] for row in rows})},
        "$or": [{"item": {"$in": owners}}, {"list": {"$in": owners}}],
    }
    of_pages = {
        name: await outbox.remove_from(db, name, query, delete=delete)
        for name, query in queries.items()
    }
    for spider in {row["spider"] for row in rows} if delete else ():
        if await db.posts.find_one({"spider": spider}, {"_id": 1}) is None:
            await boilerplate.forget(db, spider)
    names_in_order = dict.fromkeys((*of_pages, *counts))
    return {name: of_pages.get(name, 0) + counts[name] for name in names_in_order}


async def forget_spider(
    db: Database, registry: Registry, spider: str, now: datetime, *, delete: bool
) -> dict[str, int]:
    """Remove all data of a spider; return counts by collection.

    Plans that include other spiders are kept for those spiders.
    """
    queries: dict[str, Document] = {name: {"spider": spider} for name in SPIDER_COLLECTIONS}
    queries["plans"] = {"$or": [{"spiders": [spider]}, {"samples": spider}]}
    queries["sites"] = {"_id": spider}
    if delete:
        await release_posts(db, registry, queries["posts"], now)
    counts = {
        name: await outbox.remove_from(db, name, query, delete=delete)
        for name, query in queries.items()
    }
    if delete:
        await boilerplate.forget(db, spider)
        await db.plans.update_many({"spiders": spider}, {"$pull": {"spiders": spider}})
        await readers.forget(db, spider)
    return counts
