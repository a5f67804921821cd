"""Recovery from interrupted visits: fence them off, and remove what they stored.

Versions and posts are stored before the target that acknowledges their visit. If a process ends in
between, or is too late, the log, versions and targets must show only the other fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from crawler.dedup.posts import id_of
from crawler.items import Kind, Visit
from crawler.storage import targets
from crawler.storage.client import Database, Document
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.signatures import Registry
from crawler.storage.posts import of_feed
from crawler.utils.time import EPOCH

BATCH = 1000
DAY = timedelta(days=1)


async def take_over(db: Database, keys: Sequence[str]) -> None:
    """Prevent the processes that had these targets from storing their visits.

    These processes may have stored parts of the visits, so the next visits store all content again.
    """
    query: Document = {"_id": {"$in": list(keys)}}
    update: Document = {"$inc": {"fence": 1}, "$set": {"again": True}}
    await db.targets.update_many(query, update)
    # A feed's next visit writes only changed posts, so all posts get the new fence here.
    feeds = db.targets.find(query | {"kind": str(Kind.FEED)}, ("spider", "url", "fence"))
    async for feed in feeds:
        raised: Document = {"$max": {"fence": feed["fence"]}}
        posts = of_feed(feed["spider"], feed["url"])
        await db.posts.update_many(posts, raised)
        cursor = db.posts.find(posts, ("_id",)).batch_size(BATCH)
        while rows := await cursor.to_list(BATCH):
            ids = [id_of(row["_id"]) for row in rows]
            await db.signatures.update_many({"_id": {"$in": ids}}, raised)


async def drop(db: Database, batch: Sequence[Visit]) -> None:
    """Remove the versions of unacknowledged visits; the next visits store their content again."""
    keys = [visit.fetched.target.key for visit in batch]
    done = set(await db.targets.distinct("visit", {"_id": {"$in": keys}}))
    batch = [visit for visit in batch if visit.id not in done]
    names = []
    for visit in batch:
        target, collected = visit.fetched.target, visit.collected
        posts = collected.posts if collected is not None else ()
        names += [target.url, *(key.removeprefix(f"{target.spider} ") for key, _ in posts)]
    ids = [visit.id for visit in batch]
    await db.versions.delete_many({"target": {"$in": names}, "visit": {"$in": ids}})
    await targets.store_again(db, [visit.fetched.target.key for visit in batch])


async def undo(
    db: Database, registry: Registry | None, spider: str, since: datetime, now: datetime
) -> None:
    """Remove versions and posts that visits since a time stored, if the log lacks their visits.

    since: the log was repaired since this time, and no visit is in progress

    Older posts keep their content until the next visit of their page or feed, which stores all
    content again.
    """
    of_visits: Document = {"spider": spider, "visit": {"$exists": True}}
    query = of_visits | {"at": {"$gte": since}}
    cursor = db.versions.find(query, ("visit", "target")).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        rows = await without_visit(db, rows)
        await targets.store_again(db, [f"{spider} {row['target']}" for row in rows])
        ids = [row["_id"] for row in rows]
        visits = [row["visit"] for row in rows]
        await db.versions.delete_many({"_id": {"$in": ids}, "visit": {"$in": visits}})
    query = of_visits | {"changed_at": {"$gte": since}}
    fields = ("visit", "feed", "first_seen", "changed_at")
    cursor = db.posts.find(query, fields).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        rows = await without_visit(db, rows)
        feeds = {f"{spider} {row['feed']}" for row in rows if "feed" in row}
        pages = {row["_id"] for row in rows if "feed" not in row}
        await targets.store_again(db, [*feeds, *pages])
        seen: Document = {"_id": {"$in": list(pages)}, "content_hash": {"$type": "string"}}
        visited = set(await db.targets.distinct("_id", seen)) if pages else set()
        new = [
            row["_id"]
            for row in rows
            if (
                row["first_seen"] == row["changed_at"]
                if "feed" in row
                else row["_id"] not in visited
            )
        ]
        if new:
            gone: Document = {"_id": {"$in": new}}
            if registry is not None:
                await release_posts(db, registry, gone, now)
            await db.posts.delete_many(gone)


async def without_visit(db: Database, rows: Sequence[Document]) -> list[Document]:
    """Return the documents whose visit is not in the log."""
    visits = {row["visit"] for row in rows if "visit" in row}
    if not visits:
        return []
    logged = set(await db.visits.distinct("_id", {"_id": {"$in": list(visits)}}))
    return [row for row in rows if row.get("visit") in visits - logged]


async def logged_since(db: Database, spider: str) -> datetime:
    """Return the time since which the log has all visits; earlier ones are aggregated."""
    last = await db.days.find_one({"spider": spider}, {"day": 1}, sort=[("day", -1)])
    return last["day"] + DAY if last else EPOCH
