"""`dead`: what killed one worker after the other, and is not tried again until asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from crawler.storage.client import Database, Document
from crawler.utils.time import NEVER


@dataclass(frozen=True, slots=True)
class Dead:
    """One entry of a queue that was given up.

    key:    of the target, or of a request that a spider made
    leases: how often it was leased, in vain
    worker: who gave it up
    """

    key: str
    spider: str
    url: str
    at: datetime
    leases: int
    worker: str


async def bury(db: Database, one: Dead) -> None:
    """Note an entry; its target is not visited any more. Safe to repeat."""
    row = asdict(one)
    row["_id"] = row.pop("key")
    await db.dead.replace_one({"_id": one.key}, row, upsert=True)
    state: Document = {"dead": one.at, "next_visit": NEVER}
    # Who had it last may be alive after all.
    await db.targets.update_one({"_id": one.key}, {"$set": state, "$inc": {"fence": 1}})


async def listed(db: Database, spider: str | None = None) -> list[Document]:
    """What is buried, of all spiders if None, the newest first."""
    query: Document = {} if spider is None else {"spider": spider}
    return await db.dead.find(query).sort([("at", -1), ("_id", 1)]).to_list(None)


async def find(db: Database, spider: str | None, urls: Sequence[str] | None) -> list[str]:
    """Keys of what is buried of a spider (of all if None) under these URLs (all if None)."""
    query: Document = {} if spider is None else {"spider": spider}
    if urls is not None:
        query["url"] = {"$in": list(urls)}
    return [row["_id"] async for row in db.dead.find(query, {"_id": 1})]


async def retry(db: Database, keys: Sequence[str], now: datetime) -> None:
    """Their targets are due again."""
    query: Document = {"_id": {"$in": list(keys)}, "dead": {"$exists": True}}
    back: Document = {"$unset": {"dead": ""}, "$set": {"next_visit": now}}
    await db.targets.update_many(query, back)
    await db.dead.delete_many({"_id": {"$in": list(keys)}})


async def drop(db: Database, keys: Sequence[str]) -> None:
    """Take them off the list; their targets stay unvisited, wherever they are linked."""
    await db.dead.delete_many({"_id": {"$in": list(keys)}})


async def by_spider(db: Database) -> dict[str, int]:
    """How many are buried of each spider."""
    stages: list[Document] = [{"$group": {"_id": "$spider", "n": {"$sum": 1}}}]
    cursor = await db.dead.aggregate(stages)
    return {row["_id"]: row["n"] async for row in cursor}
