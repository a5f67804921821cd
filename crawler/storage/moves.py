"""Feeds that have moved for good: renamed once enough visits in a row were told so.

Each step may be done again: a crash between two leaves both names, and the next pass goes on.
"""

from __future__ import annotations

from pymongo.errors import DuplicateKeyError

from crawler.items import Kind
from crawler.storage.client import Database, Document
from crawler.storage.targets import MAX_ALIASES
from crawler.utils.urls import host_of

BATCH = 1000
FORGOTTEN = ("moved_to", "moves", "final_url")


async def rename_moved(db: Database, spider: str, confirmations: int) -> list[tuple[str, str]]:
    """Rename feeds that so many visits in a row found moved; pairs of old and new URL."""
    query: Document = {
        "spider": spider,
        "kind": str(Kind.FEED),
        "moves": {"$gte": confirmations},
        "alias_of": {"$exists": False},
    }
    found = await db.targets.find(query).limit(BATCH).to_list(None)
    return [(target["url"], await _rename(db, target)) for target in found]


async def _rename(db: Database, target: Document) -> str:
    spider, old, new = target["spider"], target["url"], target["moved_to"]
    names = {"_id": f"{spider} {new}", "url": new}
    await db.posts.update_many({"spider": spider, "feed": old}, {"$set": {"feed": new}})
    await db.visits.update_many({"spider": spider, "target": old}, {"$set": {"target": new}})
    await _copy(db, "feeds", target["_id"], names)
    others = [alias for alias in target.get("aliases", ()) if alias not in (old, new)]
    aliases = [*others, old][-MAX_ALIASES:]
    await _copy(db, "targets", target["_id"], names | {"host": host_of(new), "aliases": aliases})
    # Where that was watched before, its visits write posts that the other one's have written.
    higher: Document = {"$max": {"fence": target.get("fence", 0)}}
    await db.targets.update_one({"_id": names["_id"]}, higher)
    await db.targets.delete_one({"_id": target["_id"]})
    await db.feeds.delete_one({"_id": target["_id"]})
    return str(new)


async def _copy(db: Database, collection: str, key: str, names: Document) -> None:
    """A document under another name, unless that is there."""
    found = await db[collection].find_one({"_id": key})
    if found is None:
        return
    kept = {name: value for name, value in found.items() if name not in FORGOTTEN}
    try:
        await db[collection].insert_one(kept | names)
    except DuplicateKeyError:
        return
