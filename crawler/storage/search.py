"""The search index: original `posts` by words of title, text and `words`, best matches first.

The index has all sources of an item. A search joins them, so that each item is one hit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from pymongo import DESCENDING, TEXT, IndexModel
from pymongo.errors import OperationFailure

from crawler.errors import StorageError
from crawler.extract.plain_text import fields_of_post
from crawler.search import Query, field_texts
from crawler.storage.client import Database, Document, count_by, in_batches

WEIGHT_OF_TITLE = 10
NO_INDEX = 27
# Posts per batch with texts: one text may have a million characters.
BATCH = 25
# Rows per batch without texts.
ROWS = 1000
FIELDS = (
    "spider", "url", "feed", "categories", "title", "text", "fields", "markup", "page.fields",
    "page.markup", "published", "first_seen", "cluster", "item",
)  # fmt: skip
COPY_FIELDS = (
    "spider", "url", "feed", "title", "published", "first_seen", "similarity", "duplicate_of",
)  # fmt: skip
SOURCE_FIELDS = ("spider", "url", "feed", "item", "cluster", "published", "first_seen")
# Posts without a plausible date count from when they were first seen.
DATE: Document = {"$ifNull": ["$published", "$first_seen"]}
BEST_FIRST = {"score": DESCENDING, "date": DESCENDING, "_id": 1}

OF_ITEM: Document = {
    "_id": {"$ifNull": ["$item", "$_id"]},
    "score": {"$max": "$score"},
    "date": {"$min": "$date"},
    "item": {"$first": "$item"},
    "posts": {"$push": "$_id"},
    "clusters": {"$push": "$cluster"},
}


def index_model() -> IndexModel:
    """Return the text index, without stemming and stop words: posts are in many languages.

    A document may set its language in a field, so the index names one that no post has.
    """
    return IndexModel(
        [("title", TEXT), ("text", TEXT), ("words", TEXT)],
        name="search",
        weights={"title": WEIGHT_OF_TITLE},
        default_language="none",
        language_override="search_language",
        partialFilterExpression={"original": True},
    )


def since(moment: datetime) -> Document:
    """Return a condition for posts of this time and later."""
    unknown: Document = {"published": None, "first_seen": {"$gte": moment}}
    return {"$or": [{"published": {"$gte": moment}}, unknown]}


async def hits(
    db: Database, query: Query, condition: Document, moment: datetime | None = None
) -> AsyncGenerator[Document]:
    """Yield matching items with `score`, `date` and `sources`: best first, then newest.

    condition: on posts; an item matches if a source or a copy of a source meets it
    moment:    only items of this time and later

    An item is shown as its matching source with the longest text, preferably one that meets
    `condition`. The server sorts candidates without their texts, which are read as the caller
    iterates.
    """
    if not query.terms:
        return
    conditions = {} if moment is None else since(moment)
    fields: Document = {"score": {"$meta": "textScore"}, "date": DATE, "item": 1, "cluster": 1}
    look_ups: list[list[Document]] = [
        [
            {"$match": {"original": True, "$text": {"$search": text}} | conditions},
            {"$project": fields},
        ]
        for text in query.look_ups
    ]
    async with aclosing(_united(db, look_ups, query, condition, moment)) as items:
        async for item in items:
            yield item


async def newest(
    db: Database, query: Query, condition: Document, moment: datetime
) -> AsyncGenerator[Document]:
    """Yield items of `moment` and later, newest first, as `hits` does without words."""
    fields: Document = {"score": {"$literal": 0.0}, "date": DATE, "item": 1, "cluster": 1}
    look_up: list[Document] = [{"$match": {"original": True} | since(moment)}, {"$project": fields}]
    async with aclosing(_united(db, [look_up], query, condition, moment)) as items:
        async for item in items:
            yield item


async def _united(
    db: Database,
    look_ups: Sequence[list[Document]],
    query: Query,
    condition: Document,
    moment: datetime | None,
) -> AsyncGenerator[Document]:
    """Yield the items of the posts that lookups find, with the score of the best source."""
    # The score of a post is the sum of its scores in the lookups.
    first, *others = look_ups
    united = [{"$unionWith": {"coll": "posts", "pipeline": stages}} for stages in others]
    kept = {name: {"$first": f"${name}"} for name in ("date", "item", "cluster")}
    scored = {"_id": "$_id", "score": {"$sum": "$score"}} | kept
    stages: list[Document] = [*first, *united, *([{"$group": scored}] if united else [])]
    stages += [{"$group": OF_ITEM}, {"$sort": BEST_FIRST}]
    async with aclosing(read_items(db, stages, query, condition)) as items:
        async for item in items:
            if moment is None or item["date"] >= moment:
                yield item


async def read_items(
    db: Database, stages: list[Document], query: Query, condition: Document
) -> AsyncGenerator[Document]:
    """Yield the items of an aggregation over posts that groups them by OF_ITEM, in its order."""
    try:
        cursor = await db.posts.aggregate(stages, allowDiskUse=True)
    except OperationFailure as error:
        if error.code != NO_INDEX:
            raise
        raise StorageError(
            "posts have no search index. Run db.meta.deleteOne({_id: 'schema'}) in mongosh; the "
            "next command creates the index"
        ) from None
    async with cursor:
        while rows := await cursor.to_list(ROWS if condition else BATCH):
            for batch in in_batches(
                await _matching(db, rows, condition) if condition else rows, BATCH
            ):
                for item in await items_of(db, batch, query, condition):
                    yield item


async def _matching(db: Database, rows: Sequence[Document], condition: Document) -> list[Document]:
    """Return the rows with a source, or a copy of a source, that meets a condition."""
    members = {
        "_id": [id_ for row in rows for id_ in row["posts"]],
        "item": [row["item"] for row in rows if row.get("item")],
        "cluster": [cluster for row in rows for cluster in row["clusters"]],
    }
    meeting: dict[str, set[Any]] = {name: set() for name in members}
    for name, values in members.items():
        query = {"$and": [{name: {"$in": values}}, condition]}
        # Grouped by the server: a cluster may have any number of copies.
        async for row in await db.posts.aggregate(
            [{"$match": query}, {"$group": {"_id": f"${name}"}}]
        ):
            meeting[name].add(row["_id"])
    return [
        row
        for row in rows
        if not meeting["_id"].isdisjoint(row["posts"])
        or row.get("item") in meeting["item"]
        or not meeting["cluster"].isdisjoint(row["clusters"])
    ]


async def items_of(
    db: Database, rows: Sequence[Document], query: Query, condition: Document
) -> list[Document]:
    """Return the items of some rows, in order, if one of their sources still matches.

    row: with `score`, the `_id`s of `posts` that may match, and `item`; each item has its own
    """
    originals: Document = {"original": True}
    originals["_id"] = {"$in": [id_ for row in rows for id_ in row["posts"]]}
    posts = {post["_id"]: post async for post in db.posts.find(originals, FIELDS)}
    items = [row["item"] for row in rows if row.get("item")]
    sources: dict[str, list[Document]] = {}
    async for post in db.posts.find({"item": {"$in": items}}, SOURCE_FIELDS).sort("_id"):
        sources.setdefault(post["item"], []).append(post)
    several = [post["_id"] for of_item in sources.values() if len(of_item) > 1 for post in of_item]
    preferred = (
        set(await db.posts.distinct("_id", {"$and": [{"_id": {"$in": several}}, condition]}))
        if condition and several
        else set()
    )
    shown = []
    for row in rows:
        matching: dict[tuple[bool, int, bool, str], Document] = {}
        for post in (posts[id_] for id_ in row["posts"] if id_ in posts):
            if query.matches(texts := texts_of(post)):
                # Longest text first, then pages before feeds' posts; `_id` breaks ties.
                rank = sum(map(len, texts)), "feed" not in post, post["_id"]
                matching[post["_id"] in preferred, *rank] = post
        if matching:
            best = matching[max(matching)]
            of_item = sources.get(row.get("item") or "", [best])
            dates = [source["published"] for source in of_item if source.get("published")]
            seen = min(source["first_seen"] for source in of_item)
            published = min(dates, default=None)
            shown.append(
                best
                | {"published": published, "first_seen": seen, "date": published or seen}
                | {"score": row["score"], "sources": of_item, "row": row}
            )
    return shown


def texts_of(post: Document) -> list[str]:
    """Return title, text, and all other indexed texts of a post."""
    main = (post.get("title"), post.get("text"))
    others = [text for text in field_texts(fields_of_post(post)) if text not in main]
    return [*(text for text in main if isinstance(text, str)), *others]


async def counted(db: Database, items: Sequence[Document]) -> list[int]:
    """Return the number of hidden copies of each item."""
    counts = await count_by(db.posts, "duplicate_of", _copies_of(items))
    return [sum(counts.get(source["_id"], 0) for source in item["sources"]) for item in items]


async def hidden(db: Database, items: Sequence[Document]) -> list[list[Document]]:
    """Return the hidden copies of each item: most similar first, then oldest."""
    copies: dict[str, list[Document]] = {}
    stages: list[Document] = [
        {"$match": _copies_of(items)},
        {"$project": dict.fromkeys(COPY_FIELDS, 1) | {"date": DATE}},
    ]
    async for post in await db.posts.aggregate(stages):
        copies.setdefault(post["duplicate_of"], []).append(post)
    return [
        sorted(
            (post for source in item["sources"] for post in copies.get(source["_id"], ())),
            key=lambda post: (-post.get("similarity", 0.0), post["date"], post["_id"]),
        )
        for item in items
    ]


def _copies_of(items: Sequence[Document]) -> Document:
    """Return a query for the copies of items, by clusters, which are indexed."""
    sources = [source for item in items for source in item["sources"]]
    clusters = {post["cluster"] for post in sources if post.get("cluster") is not None}
    ids = [post["_id"] for post in sources]
    return {"cluster": {"$in": list(clusters)}, "duplicate_of": {"$in": ids}}


async def spiders(db: Database) -> list[str]:
    """Return the names of all spiders that have posts."""
    names: list[str] = await db.posts.distinct("spider")
    return sorted(names)
