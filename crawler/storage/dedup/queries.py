"""Read-only queries on near-duplicates: clusters, their posts, and stored signatures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bson import ObjectId
from typing_extensions import TypedDict

from crawler.dedup.posts import id_of
from crawler.dedup.sketch import Sketch
from crawler.storage import targets
from crawler.storage.client import Database, Document, in_batches
from crawler.storage.dedup import signatures
from crawler.storage.dedup.index import META, REBUILDING
from crawler.storage.dedup.labels import MeasuredPrecision, measured_precision
from crawler.storage.paging import Key, later, read_page
from crawler.storage.posts import count_copies, named
from crawler.utils.shapes import copied

BATCH = 1000
SHOWN = ("spider", "url", "feed", "title", "published", "first_seen")
MEMBERS: Document = {"cluster": {"$exists": True}}
# Maximum number of reads for one page of clusters with copies: a cluster whose copies have all left
# it keeps its document, and is not shown.
MAX_ROUNDS = 20
# Copies of a cluster whose sites are read for a list.
MAX_COPIES = 200
BY_NEWEST = (("_id", -1),)
BY_SIZE = (("copies", -1), ("_id", 1))
# Matches all copies, because no `_id` is empty, so that the index of copies answers the query.
COPIES: Document = {"duplicate_of": {"$gt": ""}}


class ShownPost(TypedDict):
    """A post of a cluster. Fields are null if the post is no longer stored."""

    id: str
    """Id of the post."""
    created: datetime
    """Date of publication, else time of the first visit that saw the post."""
    spider: str | None
    """Name of the spider."""
    url: str | None
    """URL of the page."""
    title: str | None
    """Title."""


class ClusterMember(TypedDict):
    """A post of a cluster. Fields are null if the post is no longer stored."""

    id: str
    """Id of the post."""
    created: datetime
    """Date of publication, else time of the first visit that saw the post."""
    spider: str | None
    """Name of the spider."""
    url: str | None
    """URL of the page."""
    title: str | None
    """Title."""
    similarity: float | None
    """Estimated Jaccard similarity to the original; null if the original is not stored."""


class ClusterRow(TypedDict):
    """A cluster of near-duplicates."""

    cluster: str
    """Id of the cluster."""
    copies: int
    """Number of copies."""
    original: ShownPost
    """The original."""


class ListedCluster(ClusterRow):
    """A cluster of near-duplicates in a list."""

    sites: list[str]
    """Names of the sites with a copy or the original, which comes first."""


class NewOriginal(TypedDict):
    """A change of a cluster's original."""

    at: datetime
    """Time of the change."""
    post: str
    """Id of the new original."""
    was: str
    """Id of the former original."""
    why: str
    """Reason for the change."""


class Cluster(TypedDict):
    """A cluster of near-duplicates with its posts and history."""

    cluster: str
    """Id of the cluster."""
    copies: int
    """Number of copies."""
    original: ShownPost
    """The original."""
    members: list[ClusterMember]
    """Copies, oldest first."""
    sources: list[ClusterMember]
    """Posts that are sources of the original's item, and therefore not copies."""
    changes: list[NewOriginal]
    """Changes of the original, oldest first."""


class Overview(TypedDict):
    """Numbers of compared posts, clusters and copies, and the largest clusters."""

    posts: int
    """Number of compared posts."""
    clusters: int
    """Number of clusters with copies."""
    copies: int
    """Number of copies."""
    rebuilding: bool
    """Whether a rebuild is running or was interrupted."""
    precision: MeasuredPrecision
    """How many flagged pairs people confirmed by labels."""
    shown: list[ClusterRow]
    """Clusters, largest first."""


async def overview(db: Database, spider: str | None = None, limit: int | None = None) -> Overview:
    """Return the clusters with copies, the largest first.

    spider: count only its posts, and clusters that have any of them
    limit:  maximum number of clusters (None: all)
    """
    meta = await db.meta.find_one(META) or {}
    of_spider = {} if spider is None else {"post": {"$regex": f"^{re.escape(spider)} "}}
    result: Overview = {
        "posts": await db.signatures.count_documents(of_spider),
        "clusters": 0,
        "copies": 0,
        "rebuilding": bool(meta.get(REBUILDING)),
        "precision": await measured_precision(db),
        "shown": [],
    }
    rows: list[Document] = []
    async for row in await db.signatures.aggregate(_cluster_sizes(spider), allowDiskUse=True):
        result["clusters"] += 1
        result["copies"] += row["copies"]
        if limit is None or len(rows) < limit:
            rows.append(row)
    for some in in_batches(rows, BATCH):
        result["shown"] += await described(db, some)
    return result


def _cluster_sizes(spider: str | None) -> list[Document]:
    """Return the stages that count the copies of clusters, the largest clusters first.

    Sources of the original's item are not copies of the original.
    spider: only clusters with a post of this spider
    """
    of_item: Document = {"_id": {"of": "$cluster", "item": "$item"}, "posts": {"$sum": 1}}
    counted: Document = {"_id": "$_id.of", "posts": {"$sum": "$posts"}}
    wanted: Document = {"posts": {"$gte": 2}}
    if spider is not None:
        first = {"$indexOfBytes": ["$post", {"$literal": f"{spider} "}]}
        of_item["its"] = {"$max": {"$eq": [first, 0]}}
        counted["its"] = {"$max": "$its"}
        wanted["its"] = True
    several = {"$and": [{"$gt": ["$_id.item", None]}, {"$gt": ["$posts", 1]}]}
    item = {"item": "$_id.item", "posts": "$posts"}
    counted["several"] = {"$push": {"$cond": [several, item, "$$REMOVE"]}}
    # An original's item is looked up only if two posts of the cluster have the same item.
    needed = {"$cond": [{"$eq": ["$several", []]}, None, "$_id"]}
    same = {"$in": ["$$one.item", "$original.item"]}
    of_original = {"$filter": {"input": "$several", "as": "one", "cond": same}}
    sources = {"$max": [1, {"$sum": "$of_original.posts"}]}
    return [
        {"$match": MEMBERS},
        {"$group": of_item},
        {"$group": counted},
        {"$match": wanted},
        {"$set": {"needed": needed}},
        _looked_up("clusters", "needed", "row"),
        _looked_up("signatures", "row.original", "original"),
        {"$set": {"of_original": of_original}},
        {"$project": {"copies": {"$subtract": ["$posts", sources]}}},
        {"$match": {"copies": {"$gte": 1}}},
        {"$sort": {"copies": -1, "_id": 1}},
    ]


def _looked_up(collection: str, field: str, name: str) -> Document:
    return {"$lookup": {"from": collection, "localField": field, "foreignField": "_id", "as": name}}


async def described(db: Database, rows: Sequence[Document]) -> list[ClusterRow]:
    """Return clusters with their originals and numbers of copies."""
    query = {"_id": {"$in": [row["_id"] for row in rows]}}
    clusters = {cluster["_id"]: cluster async for cluster in db.clusters.find(query)}
    posts = await _posts(db, [cluster["post"] for cluster in clusters.values()])
    return [
        {
            "cluster": str(row["_id"]),
            "copies": row["copies"],
            "original": _post(clusters[row["_id"]], posts),
        }
        for row in rows
        if row["_id"] in clusters
    ]


def _post(row: Document, posts: dict[str, Document]) -> ShownPost:
    """Return the shown fields of a post; row: its cluster or signature."""
    post = posts.get(row["post"], {})
    return {**copied(ShownPost, post), "id": row["post"], "created": row["created"]}


async def _posts(db: Database, keys: Iterable[str]) -> dict[str, Document]:
    cursor = db.posts.find({"_id": {"$in": list(keys)}}, SHOWN)
    return {post["_id"]: post async for post in cursor}


async def cluster_of(db: Database, id_: ObjectId, limit: int | None = None) -> Cluster | None:
    """Return a cluster with its copies, the oldest first, and its history; None if not found.

    `sources`: the posts that also have the original's item, and so are not copies
    """
    row = await db.clusters.find_one({"_id": id_})
    if row is None:
        return None
    own = (await signatures_of(db, [row["post"]])).get(row["post"])
    others: Document = {"cluster": id_, "_id": {"$ne": row["original"]}}
    item = own.get("item") if own else None
    query = others if item is None else others | {"item": {"$ne": item}}
    cursor = db.signatures.find(query, signatures.OWNER_FIELDS).sort([("created", 1), ("_id", 1)])
    copies = await cursor.allow_disk_use(True).limit(limit or 0).to_list(None)
    sources = db.signatures.find(others | {"item": item}).sort("_id") if item is not None else None
    (shown,) = await described(db, [{"_id": id_, "copies": 0}])
    return {
        "cluster": shown["cluster"],
        "copies": await db.signatures.count_documents(query),
        "original": shown["original"],
        "members": await _copies(db, copies, own),
        "sources": await _copies(db, await sources.to_list(None), own) if sources else [],
        "changes": [copied(NewOriginal, change) for change in row.get("changes", [])],
    }


async def _copies(
    db: Database, rows: Sequence[Document], original: Document | None
) -> list[ClusterMember]:
    sketch = Sketch.decode(original["sketch"]) if original else None
    copies: list[ClusterMember] = []
    for some in in_batches(rows, BATCH):
        posts = await _posts(db, [row["post"] for row in some])
        for row in some:
            similarity = Sketch.decode(row["sketch"]).similarity(sketch) if sketch else None
            copies.append({**_post(row, posts), "similarity": similarity})
    return copies


async def signatures_of(db: Database, keys: Iterable[str]) -> dict[str, Document]:
    """Return the stored signatures of posts by their `_id`s."""
    query = {"_id": {"$in": [id_of(key) for key in keys]}}
    return {row["post"]: row async for row in db.signatures.find(query)}


async def posts_named(
    db: Database, given: str, urls: Sequence[str], spider: str | None
) -> list[Document]:
    """Return posts by `_id`, or by URL: their own, that of their page, or an alias."""
    watched = await targets.of_url(db, list(urls), spider) if urls else []
    keys = {str(target.get("post") or target["_id"]) for target in watched}
    fields = {*signatures.POST_FIELDS, *SHOWN}
    return await named(db, [given, *urls], spider, [given, *keys], fields)


async def originals_of(db: Database, clusters: Iterable[ObjectId]) -> dict[ObjectId | None, str]:
    """Return the originals by cluster."""
    cursor = db.clusters.find({"_id": {"$in": list(clusters)}}, {"post": 1})
    return {row["_id"]: row["post"] async for row in cursor}


@dataclass(frozen=True, slots=True)
class ClusterPage:
    """A page of clusters. last: key after which the next page begins; None: no more rows."""

    rows: list[ListedCluster]
    last: Key | None


async def newest_clusters(db: Database, limit: int, after: Key | None = None) -> ClusterPage:
    """Return clusters with copies, the most recently created first."""
    rows: list[Document] = []
    last = after
    for _ in range(MAX_ROUNDS):
        found = await read_page(db.clusters, {}, BY_NEWEST, limit, last, {"post": 1})
        copies = await count_copies(db, [row["post"] for row in found.rows])
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
    return ClusterPage(await _listed(db, rows), last)


async def largest_clusters(db: Database, limit: int, after: Key | None = None) -> ClusterPage:
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
    return ClusterPage(await _listed(db, named), last)


async def _listed(db: Database, rows: Sequence[Document]) -> list[ListedCluster]:
    """Return clusters with the sites of their posts."""
    clusters = await described(db, rows)
    sites = await asyncio.gather(*(_sites(db, row["original"]) for row in clusters))
    return [{**row, "sites": of} for row, of in zip(clusters, sites, strict=True)]


async def _sites(db: Database, original: ShownPost) -> list[str]:
    """Return the sites of an original and of its copies; of many copies, only of some."""
    cursor = db.posts.find({"duplicate_of": original["id"]}, {"spider": 1}).limit(MAX_COPIES)
    copies = {post["spider"] async for post in cursor} - {original["spider"]}
    return [*filter(None, [original["spider"]]), *sorted(copies)]
