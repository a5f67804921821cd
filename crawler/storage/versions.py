"""`versions` of one target: the list without contents, single contents, and values over time."""

from __future__ import annotations

from bson import ObjectId
from pymongo import DESCENDING

from crawler.items import Outcome
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key, Rows, read_page
from crawler.storage.visits import page_of_target, time_of

# Newest versions and changes to read for the values of fields over time.
MAX_POINTS = 500
# Longer texts are not values to draw.
MAX_VALUE_CHARACTERS = 40
# The values of prices and numbers, and texts that may be one.
DRAWN_TYPES = ("int", "long", "double", "decimal")
BY_TIME = [("at", DESCENDING)]
WITHOUT_CONTENT = {"content_hash": 1, "at": 1, "size": 1, "visit": 1}


async def read_versions(
    db: Database, spider: str, url: str, limit: int, after: Key | None = None
) -> Rows:
    """Read a page of the versions of a target without their contents, newest first."""
    query: Document = {"target": url, "spider": spider}
    if (before := time_of(after)) is not None:
        query["at"] = {"$lt": before}
    return await read_page(db.versions, query, BY_TIME, limit, fields=WITHOUT_CONTENT)


async def newest_two(db: Database, spider: str, url: str) -> list[str]:
    """Return the content hashes of the last two versions, the older one first."""
    query: Document = {"target": url, "spider": spider}
    cursor = db.versions.find(query, {"content_hash": 1}).sort(BY_TIME).limit(2)
    return [row["content_hash"] async for row in cursor][::-1]


async def hashes_around(db: Database, spider: str, url: str, visit: str) -> tuple[str, str] | None:
    """Return the content hashes before and after a visit; None if one of them is unknown.

    visit: id of the visit
    """
    query: Document = {"target": url, "spider": spider}
    if not ObjectId.is_valid(visit):
        return None
    row = await db.visits.find_one({"_id": ObjectId(visit)} | query)
    if row is None or not row.get("content_hash"):
        return None
    earlier: Document = {"at": {"$lt": row["at"]}, "content_hash": {"$type": "string"}}
    before = await db.visits.find_one(query | earlier, {"content_hash": 1}, sort=BY_TIME)
    return (before["content_hash"], row["content_hash"]) if before else None


async def read_version(db: Database, spider: str, url: str, content_hash: str) -> Document | None:
    """Return a version with its content; None if it was never stored, or pruned."""
    return await db.versions.find_one({"_id": f"{spider} {url} {content_hash}"})


async def short_values(db: Database, spider: str, url: str) -> list[Document]:
    """Return the numbers and short texts of the newest versions, newest first.

    Rows of `content_hash`, `at`, and `values`: pairs of `k` (field) and `v`. A price is a document
    with `amount` and `currency`.
    """
    kind = {"$type": "$$this.v"}
    length = {"$cond": [{"$eq": [kind, "string"]}, {"$strLenBytes": "$$this.v"}, 0]}
    is_text = {"$and": [{"$eq": [kind, "string"]}, {"$lte": [length, MAX_VALUE_CHARACTERS]}]}
    is_object = {"$eq": [kind, "object"]}
    # $bsonSize fails for values of other types.
    size = {"$bsonSize": {"$cond": [is_object, "$$this.v", {"$literal": {}}]}}
    is_price = {"$and": [is_object, {"$lte": [size, 200]}]}
    is_drawn = {"$or": [{"$in": [kind, list(DRAWN_TYPES)]}, is_text, is_price]}
    values = {
        "$filter": {"input": {"$objectToArray": {"$ifNull": ["$content", {}]}}, "cond": is_drawn}
    }
    stages: list[Document] = [
        {"$match": {"target": url, "spider": spider}},
        {"$sort": {"at": DESCENDING}},
        {"$limit": MAX_POINTS},
        {"$project": {"_id": 0, "content_hash": 1, "at": 1, "values": values}},
    ]
    return await (await db.versions.aggregate(stages)).to_list(None)


async def content_changes(db: Database, spider: str, url: str) -> list[Document]:
    """Return the newest visits that found another content, among the last MAX_SEARCHED."""
    found = [str(Outcome.NEW), str(Outcome.CHANGED)]
    return (await page_of_target(db, spider, url, found, MAX_POINTS, None)).rows
