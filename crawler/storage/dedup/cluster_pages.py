"""Pages of clusters, the newest or the largest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crawler.storage.client import Database, Document
from crawler.storage.dedup.queries import ClusterRow, described
from crawler.storage.paging import Key, later, read_page

# A cluster whose copies have all left it keeps its document, and is not shown.
MAX_ROUNDS = 20
BY_NEWEST = (("_id", -1),)
BY_SIZE = (("copies", -1), ("_id", 1))
# Every post has a longer `_id`, so that the index of copies answers the query.
COPIES: Document = {"duplicate_of": {"$gt": ""}}


@dataclass(frozen=True, slots=True)
class ClusterPage:
    """A page of clusters. last: key after which the next page begins; None: no more rows."""

    rows: list[ClusterRow]
    last: Key | None


async def newest(db: Database, limit: int, after: Key | None = None) -> ClusterPage:
    """Return clusters with copies, the latest that was made first."""
    rows: list[Document] = []
    last = after
    for _ in range(MAX_ROUNDS):
        found = await read_page(db.clusters, {}, BY_NEWEST, limit, last, {"post": 1})
        copies = await _copies_of(db, (row["post"] for row in found.rows))
        rows += [
            {"_id": row["_id"], "copies": copies[row["post"]]}
            for row in found.rows
            if row["post"] in copies
        ]
        last = found.last
        if len(rows) > limit:
            rows = rows[:limit]
            last = (rows[-1]["_id"],)
        if last is None or len(rows) == limit:
            break
    return ClusterPage(await described(db, rows), last)


async def largest(db: Database, limit: int, after: Key | None = None) -> ClusterPage:
    """Return clusters by their number of copies, the largest first."""
    stages: list[Document] = [
        {"$match": COPIES},
        {"$group": {"_id": "$duplicate_of", "copies": {"$sum": 1}}},
        *([{"$match": later(BY_SIZE, after)}] if after is not None else ()),
        {"$sort": dict(BY_SIZE)},
        {"$limit": limit + 1},
    ]
    cursor = await db.posts.aggregate(stages, hint="duplicate_of_1")
    found = await cursor.to_list(None)
    rows = found[:limit]
    last = (rows[-1]["copies"], rows[-1]["_id"]) if len(found) > limit else None
    of_posts = db.posts.find(
        {"_id": {"$in": [row["_id"] for row in rows]}, "cluster": {"$exists": True}},
        {"cluster": 1},
    )
    clusters = {post["_id"]: post["cluster"] async for post in of_posts}
    named = [
        {"_id": clusters[row["_id"]], "copies": row["copies"]}
        for row in rows
        if row["_id"] in clusters
    ]
    return ClusterPage(await described(db, named), last)


async def _copies_of(db: Database, originals: Iterable[str]) -> dict[str, int]:
    """Return the numbers of copies by original, without originals that have none."""
    stages: list[Document] = [
        {"$match": {"duplicate_of": {"$in": list(originals)}}},
        {"$group": {"_id": "$duplicate_of", "copies": {"$sum": 1}}},
    ]
    return {row["_id"]: row["copies"] async for row in await db.posts.aggregate(stages)}
