"""The search index: originals of `posts` by the words of title, text and `words`, best first.

All sources of an item are in it; a search unites them, so that each item is one hit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from pymongo import DESCENDING, TEXT, IndexModel
from pymongo.errors import OperationFailure

from crawler.errors import StorageError
from crawler.extract.plain_text import as_texts
from crawler.search import Query, field_texts, search_words
from crawler.storage.client import Database, Document
from crawler.storage.retry import in_batches

WEIGHT_OF_TITLE = 10
NO_INDEX = 27
# Their texts are read; one may have a million characters.
BATCH = 25
# Rows without texts, of which one query asks whose they are.
ROWS = 1000
FIELDS = (
    "spider", "url", "feed", "categories", "title", "text", "fields", "markup", "page.fields",
    "page.markup", "published", "first_seen", "cluster", "item",
)  # fmt: skip
OF_COPIES = (
    "spider", "url", "feed", "title", "published", "first_seen", "similarity", "duplicate_of",
)  # fmt: skip
OF_SOURCES = ("spider", "url", "feed", "item", "cluster", "published", "first_seen")
# A post without a plausible date is as old as our knowledge of it.
DATE: Document = {"$ifNull": ["$published", "$first_seen"]}
BEST_FIRST = {"score": DESCENDING, "date": DESCENDING, "_id": 1}


def index_model() -> IndexModel:
    """The text index. Posts are in many languages, so words are neither stemmed nor left out.

    A document may choose its language by a field, but no post has one of that name.
    """
    return IndexModel(
        [("title", TEXT), ("text", TEXT), ("words", TEXT)],
        name="search",
        weights={"title": WEIGHT_OF_TITLE},
        default_language="none",
        language_override="search_language",
        partialFilterExpression={"original": True},
    )


def words_of(post: Document) -> str | None:
    """The `words` of a post's document; None where the index needs none."""
    return search_words(post.get("title"), post.get("text"), _fields_of(post))


def _fields_of(post: Document) -> list[Mapping[str, Any]]:
    """The fields of a post, and of the page of a feed's post, with text in place of HTML."""
    parts = (post, post.get("page") or {})
    return [as_texts(part.get("fields") or {}, part.get("markup") or ()) for part in parts]


def with_words(update: Document, post: Document) -> Document:
    """An update that leaves a post as `post` is, and its `words` right."""
    words = words_of(post)
    name, value = ("$set", words) if words else ("$unset", "")
    return update | {name: update.get(name, {}) | {"words": value}}


def since(moment: datetime) -> Document:
    """A condition: posts of that time and later."""
    unknown: Document = {"published": None, "first_seen": {"$gte": moment}}
    return {"$or": [{"published": {"$gte": moment}}, unknown]}


async def hits(
    db: Database, query: Query, whose: Document, moment: datetime | None = None
) -> AsyncGenerator[Document]:
    """Items that match, each with its `score`, `date` and `sources`: best first, then newest.

    whose:  condition on posts; an item is found if one of its sources meets it, or a copy of them
    moment: only items of that time and later

    An item is shown as the source with most text among those that match, one that meets `whose`
    before others. The server sorts all that may match without their texts, which are read as far
    as asked for.
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
    async with aclosing(_united(db, look_ups, query, whose, moment)) as items:
        async for item in items:
            yield item


async def newest(
    db: Database, query: Query, whose: Document, moment: datetime
) -> AsyncGenerator[Document]:
    """As `hits` for a query without words: items of `moment` and later, the newest first."""
    fields: Document = {"score": {"$literal": 0.0}, "date": DATE, "item": 1, "cluster": 1}
    look_up: list[Document] = [{"$match": {"original": True} | since(moment)}, {"$project": fields}]
    async with aclosing(_united(db, [look_up], query, whose, moment)) as items:
        async for item in items:
            yield item


async def _united(
    db: Database,
    look_ups: Sequence[list[Document]],
    query: Query,
    whose: Document,
    moment: datetime | None,
) -> AsyncGenerator[Document]:
    """The items of posts that look-ups find."""
    try:
        cursor = await db.posts.aggregate(_stages(look_ups), allowDiskUse=True)
    except OperationFailure as error:
        if error.code != NO_INDEX:
            raise
        raise StorageError(
            "posts have no search index (db.meta.deleteOne({_id: 'schema'}) in mongosh, and the "
            "next command makes it)"
        ) from None
    async with cursor:
        while rows := await cursor.to_list(ROWS if whose else BATCH):
            for batch in in_batches(await _meeting(db, rows, whose) if whose else rows, BATCH):
                for item in await _items(db, batch, query, whose):
                    if moment is None or item["date"] >= moment:
                        yield item


def _stages(look_ups: Sequence[list[Document]]) -> list[Document]:
    """A post that several look-ups find is worth the sum, an item what its best source is."""
    first, *more = look_ups
    united = [{"$unionWith": {"coll": "posts", "pipeline": stages}} for stages in more]
    kept = {name: {"$first": f"${name}"} for name in ("date", "item", "cluster")}
    worth = {"_id": "$_id", "score": {"$sum": "$score"}} | kept
    item: Document = {
        "_id": {"$ifNull": ["$item", "$_id"]},
        "score": {"$max": "$score"},
        "date": {"$min": "$date"},
        "item": {"$first": "$item"},
        "posts": {"$push": "$_id"},
        "clusters": {"$push": "$cluster"},
    }
    stages = [*first, *united, *([{"$group": worth}] if united else [])]
    return [*stages, {"$group": item}, {"$sort": BEST_FIRST}]


async def _meeting(db: Database, rows: Sequence[Document], whose: Document) -> list[Document]:
    """Those of these rows of which a source meets a condition, or a post of their clusters."""
    members = {
        "_id": [id_ for row in rows for id_ in row["posts"]],
        "item": [row["item"] for row in rows if row.get("item")],
        "cluster": [cluster for row in rows for cluster in row["clusters"]],
    }
    meeting: dict[str, set[Any]] = {name: set() for name in members}
    for name, values in members.items():
        query = {"$and": [{name: {"$in": values}}, whose]}
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


async def _items(
    db: Database, rows: Sequence[Document], query: Query, whose: Document
) -> list[Document]:
    """The items of some rows, in their order, as far as a source of each still matches."""
    originals: Document = {"original": True}
    originals["_id"] = {"$in": [id_ for row in rows for id_ in row["posts"]]}
    posts = {post["_id"]: post async for post in db.posts.find(originals, FIELDS)}
    items = [row["item"] for row in rows if row.get("item")]
    sources: dict[str, list[Document]] = {}
    async for post in db.posts.find({"item": {"$in": items}}, OF_SOURCES).sort("_id"):
        sources.setdefault(post["item"], []).append(post)
    several = [post["_id"] for of_item in sources.values() if len(of_item) > 1 for post in of_item]
    meant = (
        set(await db.posts.distinct("_id", {"$and": [{"_id": {"$in": several}}, whose]}))
        if whose and several
        else set()
    )
    shown = []
    for row in rows:
        matching: dict[tuple[bool, int, bool, str], Document] = {}
        for post in (posts[id_] for id_ in row["posts"] if id_ in posts):
            if query.matches(texts := texts_of(post)):
                # The most text, then a page before a feed's post; never the same for two posts.
                rank = sum(map(len, texts)), "feed" not in post, post["_id"]
                matching[post["_id"] in meant, *rank] = post
        if matching:
            best = matching[max(matching)]
            of_item = sources.get(row.get("item") or "", [best])
            dates = [source["published"] for source in of_item if source.get("published")]
            seen = min(source["first_seen"] for source in of_item)
            published = min(dates, default=None)
            shown.append(
                best
                | {"published": published, "first_seen": seen, "date": published or seen}
                | {"score": row["score"], "sources": of_item}
            )
    return shown


def texts_of(post: Document) -> list[str]:
    """Title, text, and what else the index knows of a post."""
    main = (post.get("title"), post.get("text"))
    more = [text for text in field_texts(_fields_of(post)) if text not in main]
    return [*(text for text in main if isinstance(text, str)), *more]


async def counted(db: Database, items: Sequence[Document]) -> list[int]:
    """How many posts each of these items hides."""
    rows = await db.posts.aggregate(
        [{"$match": _copies_of(items)}, {"$group": {"_id": "$duplicate_of", "n": {"$sum": 1}}}]
    )
    counts = {row["_id"]: row["n"] async for row in rows}
    return [sum(counts.get(source["_id"], 0) for source in item["sources"]) for item in items]


async def hidden(db: Database, items: Sequence[Document]) -> list[list[Document]]:
    """The posts that each of these items hides: the most similar first, then the oldest."""
    copies: dict[str, list[Document]] = {}
    stages: list[Document] = [
        {"$match": _copies_of(items)},
        {"$project": dict.fromkeys(OF_COPIES, 1) | {"date": DATE}},
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
    """A query for copies; by their clusters, of which there is an index."""
    sources = [source for item in items for source in item["sources"]]
    clusters = {post["cluster"] for post in sources if post.get("cluster") is not None}
    ids = [post["_id"] for post in sources]
    return {"cluster": {"$in": list(clusters)}, "duplicate_of": {"$in": ids}}


async def spiders(db: Database) -> list[str]:
    """Names of all spiders that have posts."""
    names: list[str] = await db.posts.distinct("spider")
    return sorted(names)
