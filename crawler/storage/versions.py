"""`versions`: each distinct content of a target once, kept so that any two can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from crawler.items import Fetched, Target, Visit
from crawler.storage import fences
from crawler.storage.client import Database, Document

# A sitemap may have 50,000 entries; a document has to stay below 16 MB.
MOST_LINKS = 20_000


async def store(db: Database, rows: Sequence[Document]) -> None:
    """Insert versions that are new; safe to repeat.

    A version that an earlier attempt at the same visit left becomes this attempt's: the log has
    only this one.
    """
    if not rows:
        return
    try:
        await db.versions.insert_many(rows, ordered=False)
    except BulkWriteError as error:
        problems = error.details["writeErrors"]
        if any(not fences.is_refusal(problem) for problem in problems):
            raise
        known = [rows[problem["index"]] for problem in problems]
        await db.versions.bulk_write([_replacement(row) for row in known], ordered=False)


def _replacement(row: Document) -> UpdateOne:
    attempts = {"fence": {"$gte": fences.first(row["fence"]), "$lte": row["fence"]}}
    return UpdateOne({"_id": row["_id"]} | attempts, {"$set": row})


def row_of(visit: Visit) -> Document:
    """The version that a visit brought."""
    fetched, target = visit.fetched, visit.fetched.target
    return {
        "_id": _key(target.spider, target.url, fetched.content_hash),
        "spider": target.spider,
        "target": target.url,
        "content_hash": fetched.content_hash,
        "visit": visit.id,
        "fence": target.fence,
        "at": fetched.at,
        "size": fetched.size,
        "content": content_of(fetched),
    }


def content_of(fetched: Fetched) -> Document:
    """What a version holds: fields and main text of an item, the wanted URLs of a list page."""
    if fetched.content is not None:
        return fetched.content
    return {"links": [link.url for link in (fetched.links or ())[:MOST_LINKS]]}


async def content(db: Database, target: Target) -> Document | None:
    """The content that a target had at its last visit; None if it was pruned."""
    key = _key(target.spider, target.url, target.content_hash)
    found = await db.versions.find_one({"_id": key}, {"content": 1})
    return found["content"] if found else None


async def of_target(db: Database, spider: str, url: str) -> list[Document]:
    """All versions of a target, oldest first."""
    return await db.versions.find({"target": url, "spider": spider}).sort("at").to_list(None)


def as_lines(content: Document) -> list[str]:
    """A content as lines of text, for sizes of differences and for showing them."""
    lines: list[str] = []
    for name, value in content.items():
        lines += _field_lines(name, value)
    return lines


def _field_lines(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [line for key, v in value.items() for line in _field_lines(f"{name}.{key}", v)]
    if isinstance(value, list):
        return [f"{name}: {entry}" for entry in value]
    parts = str(value).splitlines() or [""]
    return [f"{name}: {parts[0]}", *parts[1:]]


def _key(spider: str, url: str, content_hash: str | None) -> str:
    return f"{spider} {url} {content_hash}"
