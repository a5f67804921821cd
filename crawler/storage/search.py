"""The search index: originals of `posts` by the words of title, text and `words`, best first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from pymongo import DESCENDING, TEXT, IndexModel
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.errors import OperationFailure

from crawler.errors import StorageError
from crawler.plaintext import as_texts
from crawler.searching.query import Query
from crawler.searching.words import field_texts, search_words
from crawler.storage.client import Database, Document

WEIGHT_OF_TITLE = 10
NO_INDEX = 27
# Their texts are read; one may have a million characters.
BATCH = 25
FIELDS = (
    "spider", "url", "feed", "categories", "title", "text", "fields", "markup", "page.fields",
    "page.markup", "published", "first_seen", "cluster",
)  # fmt: skip
OF_COPIES = (
    "spider", "url", "feed", "title", "published", "first_seen", "similarity", "duplicate_of",
)  # fmt: skip
# A post without a believable date is as old as our knowledge of it.
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


async def hits(db: Database, query: Query, conditions: Document) -> AsyncGenerator[Document]:
    """Posts that match, each with its `score` and `date`: best first, then newest.

    The server sorts all that may match without their texts, which are read as far as asked for.
    """
    if not query.terms:
        return
    async with aclosing(_matching(db, query, _stages(query, conditions))) as found:
        async for post in found:
            yield post


async def newest(db: Database, query: Query, conditions: Document) -> AsyncGenerator[Document]:
    """As `hits` for a query without words: posts that meet the conditions, the newest first.

    conditions: with those of `since`, which an index answers
    """
    stages: list[Document] = [
        {"$match": {"original": True} | conditions},
        {"$project": {"score": {"$literal": 0.0}, "date": DATE}},
        {"$sort": {"date": DESCENDING, "_id": 1}},
    ]
    async with aclosing(_matching(db, query, stages)) as found:
        async for post in found:
            yield post


async def _matching(db: Database, query: Query, stages: list[Document]) -> AsyncGenerator[Document]:
    async with await _found(db, stages) as found:
        while rows := await found.to_list(BATCH):
            for post in await _posts(db, rows):
                if query.matches(texts_of(post)):
                    yield post


async def _found(db: Database, stages: list[Document]) -> AsyncCommandCursor[Document]:
    try:
        return await db.posts.aggregate(stages, allowDiskUse=True)
    except OperationFailure as error:
        if error.code != NO_INDEX:
            raise
        raise StorageError(
            "posts have no search index (db.meta.deleteOne({_id: 'schema'}) in mongosh, and the "
            "next command makes it)"
        ) from None


def _stages(query: Query, conditions: Document) -> list[Document]:
    """A post that several look-ups find is worth the sum."""
    first, *more = (_looked_up(text, conditions) for text in query.look_ups)
    united = [{"$unionWith": {"coll": "posts", "pipeline": stages}} for stages in more]
    worth = {"_id": "$_id", "score": {"$sum": "$score"}, "date": {"$first": "$date"}}
    return [*first, *united, *([{"$group": worth}] if united else []), {"$sort": BEST_FIRST}]


def _looked_up(text: str, conditions: Document) -> list[Document]:
    return [
        {"$match": {"original": True, "$text": {"$search": text}} | conditions},
        {"$project": {"score": {"$meta": "textScore"}, "date": DATE}},
    ]


async def _posts(db: Database, rows: Sequence[Document]) -> list[Document]:
    """The posts of some rows, in their order, as far as they still are originals."""
    query: Document = {"_id": {"$in": [row["_id"] for row in rows]}, "original": True}
    posts = {post["_id"]: post async for post in db.posts.find(query, FIELDS)}
    return [posts[row["_id"]] | row for row in rows if row["_id"] in posts]


def texts_of(post: Document) -> list[str]:
    """Title, text, and what else the index knows of a post."""
    known = (post.get("title"), post.get("text"))
    more = [text for text in field_texts(_fields_of(post)) if text not in known]
    return [*(text for text in known if isinstance(text, str)), *more]


async def counted(db: Database, originals: Sequence[Document]) -> dict[str, int]:
    """How many posts each of these hides, by `_id`; those that hide none are left out."""
    rows = await db.posts.aggregate(
        [{"$match": _of(originals)}, {"$group": {"_id": "$duplicate_of", "n": {"$sum": 1}}}]
    )
    return {row["_id"]: row["n"] async for row in rows}


async def hidden(db: Database, originals: Sequence[Document]) -> dict[str, list[Document]]:
    """The posts that each of these hides, by `_id`: the most similar first, then the oldest."""
    found: dict[str, list[Document]] = {}
    stages: list[Document] = [
        {"$match": _of(originals)},
        {"$project": dict.fromkeys(OF_COPIES, 1) | {"date": DATE}},
        {"$sort": {"similarity": DESCENDING, "date": 1, "_id": 1}},
    ]
    async for post in await db.posts.aggregate(stages, allowDiskUse=True):
        found.setdefault(post["duplicate_of"], []).append(post)
    return found


def _of(originals: Sequence[Document]) -> Document:
    """A query for copies; by their clusters, of which there is an index."""
    clusters = {post["cluster"] for post in originals if post.get("cluster") is not None}
    ids = [post["_id"] for post in originals]
    return {"cluster": {"$in": list(clusters)}, "duplicate_of": {"$in": ids}}


async def spiders(db: Database) -> list[str]:
    """Whose posts there are."""
    found: list[str] = await db.posts.distinct("spider")
    return sorted(found)
