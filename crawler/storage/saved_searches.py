"""`saved_searches`: searches that users of the web app keep by name, some with an Atom feed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from bson import ObjectId
from pymongo import ASCENDING

from crawler.errors import ConfigError
from crawler.storage.client import Database, Document
from crawler.storage.users import ID_BYTES, digest

# Maximum number of searches of a user.
MAX_SAVED = 50
MAX_NAME_CHARACTERS = 100
# What a search keeps: its words and filters, without dates.
PARTS = ("q", "site", "category", "kind")


@dataclass(frozen=True, slots=True)
class SavedSearch:
    """A search of a user.

    query:      words and filters as in the URL of the page, without empty ones
    feed_since: time when the URL of its feed was created; None: no feed
    """

    id: str
    user: str
    name: str
    query: dict[str, str]
    feed_since: datetime | None

    @classmethod
    def of(cls, row: Document) -> Self:
        """Return the search that a document describes."""
        query = {part: row[part] for part in PARTS if row.get(part)}
        since = row["feed"]["created_at"] if "feed" in row else None
        return cls(str(row["_id"]), row["user"], row["name"], query, since)


async def of_user(db: Database, user: str) -> list[SavedSearch]:
    """Return the searches of a user, by name."""
    cursor = db.saved_searches.find({"user": user}).sort("name", ASCENDING).limit(MAX_SAVED)
    return [SavedSearch.of(row) async for row in cursor]


async def save(db: Database, user: str, name: str, query: dict[str, str], now: datetime) -> None:
    """Keep a search, in place of one with the same name; raises ConfigError if there are too many.

    A feed of the search stays.
    """
    known: Document = {"user": user, "name": name}
    if await db.saved_searches.find_one(known, {"_id": 1}) is None:
        count = await db.saved_searches.count_documents({"user": user}, limit=MAX_SAVED)
        if count >= MAX_SAVED:
            raise ConfigError(f"you have {MAX_SAVED} saved searches. Remove one first")
    values = {part: query.get(part, "") for part in PARTS}
    update = {"$set": values, "$setOnInsert": {"created_at": now}}
    await db.saved_searches.update_one(known, update, upsert=True)


async def remove(db: Database, user: str, search: ObjectId) -> bool:
    """Remove a search and its feed; return whether it existed."""
    return bool((await db.saved_searches.delete_one(_own(user, search))).deleted_count)


async def make_feed(db: Database, user: str, search: ObjectId, now: datetime) -> str | None:
    """Create the feed of a search in place of any older one, and return its secret.

    The secret is not stored. Returns None if there is no such search.
    """
    secret = secrets.token_urlsafe(ID_BYTES)
    feed = {"token": digest(secret), "created_at": now}
    update = {"$set": {"feed": feed}}
    done = await db.saved_searches.update_one(_own(user, search), update)
    return secret if done.matched_count else None


async def end_feed(db: Database, user: str, search: ObjectId) -> bool:
    """End the feed of a search; return whether the search exists."""
    done = await db.saved_searches.update_one(_own(user, search), {"$unset": {"feed": ""}})
    return bool(done.matched_count)


async def of_feed(db: Database, secret: str) -> SavedSearch | None:
    """Return the search of a feed; None if the secret was replaced or never existed."""
    row = await db.saved_searches.find_one({"feed.token": digest(secret)})
    return SavedSearch.of(row) if row else None


def _own(user: str, search: ObjectId) -> Document:
    return {"_id": search, "user": user}
