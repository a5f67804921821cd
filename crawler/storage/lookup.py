"""Targets listed by state and by a part of their URLs, and URLs that lie near another one.

All of it goes by indexes: `_id` of a target is its spider's name, a blank and its URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

from pymongo import ASCENDING, DESCENDING

from crawler.storage.client import Database, Document
from crawler.storage.targets import ALIVE
from crawler.utils.urls import like

# A count goes no further.
MAX_COUNTED = 1_000_000
# URLs that are looked at in each place of an index.
MAX_NEIGHBORS = 200
FIELDS = (
    "spider", "url", "kind", "categories", "outcome", "visited_at", "next_visit", "changed_at",
    "consecutive_errors", "gone", "alias_of", "dead", "start", "last_visit.reason",
    "last_visit.status",
)  # fmt: skip


class State(StrEnum):
    """What listed targets have in common."""

    ERRORS = "errors"
    DUE = "due"
    GONE = "gone"


def chosen(
    spider: str | None,
    state: State | None,
    match: str | None,
    now: datetime,
    known: Sequence[str] = (),
) -> tuple[Document, list[tuple[str, int]]]:
    """Return the query for listed targets and their order, both as one index has them.

    known: names that have targets, for a query of all of them
    match: part of the URL, as `crawler.utils.urls.like` has it   now: targets are due up to then
    """
    query: Document = {} if spider is None else {"spider": spider}
    if state is None:
        key: Document = {} if spider is None else {"$gte": f"{spider} ", "$lt": f"{spider}!"}
        if match is not None:
            key |= {"$regex": f"^[^ ]+ {like(match)}", "$options": "i"}
        return ({"_id": key} if key else {}), [("_id", ASCENDING)]
    if match is not None:
        query["url"] = {"$regex": f"^{like(match)}", "$options": "i"}
    if state is State.DUE:
        query.setdefault("spider", {"$in": list(known)})
        return query | {"next_visit": {"$lte": now}} | ALIVE, [("next_visit", ASCENDING)]
    if state is State.ERRORS:
        by_errors = [(name, DESCENDING) for name in ("spider", "consecutive_errors", "url")]
        return query | {"consecutive_errors": {"$gt": 0}}, by_errors
    return query | {"gone": True}, [("spider", ASCENDING), ("url", ASCENDING)]


async def listed(
    db: Database, query: Document, order: list[tuple[str, int]], skip: int, limit: int
) -> list[Document]:
    """The targets of a query of `chosen`, without what a list does not show."""
    cursor = db.targets.find(query, FIELDS).sort(order).skip(skip).limit(limit)
    return await cursor.to_list(None)


async def count(db: Database, query: Document) -> int:
    """How many targets a query of `chosen` finds, MAX_COUNTED at most."""
    return await db.targets.count_documents(query, limit=MAX_COUNTED)


async def near(
    db: Database, collections: Iterable[str], urls: Sequence[str], around: Sequence[str]
) -> list[str]:
    """Known URLs: those of `urls`, and the neighbors in the index of each URL of `around`.

    collections: `targets`, `posts`; both have an index of `url`
    """
    found: dict[str, None] = {}
    for name in collections:
        queries: list[tuple[Document, int]] = [({"$in": list(urls)}, ASCENDING)]
        queries += [({"$gte": url}, ASCENDING) for url in around]
        queries += [({"$lt": url}, DESCENDING) for url in around]
        for condition, order in queries:
            rows = db[name].find({"url": condition}, {"_id": 0, "url": 1})
            async for row in rows.sort("url", order).limit(MAX_NEIGHBORS):
                found[row["url"]] = None
    return [url for url in found if url]
