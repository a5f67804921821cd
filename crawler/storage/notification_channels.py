"""`notification_channels`: channels of notifications that users make in the web app."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pymongo.errors import DuplicateKeyError

from crawler.errors import ConfigError
from crawler.storage.client import Database, Document


@dataclass(frozen=True, slots=True)
class Edit:
    """Who writes a channel, and when.

    edits: number of edits that the stored channel must have; None: it is a new channel
    """

    by: str
    at: datetime
    edits: int | None = None


async def read(db: Database, limit: int) -> list[Document]:
    """Return the channels by name: their service, keys and encrypted secrets."""
    return await db.notification_channels.find({}).sort("_id").limit(limit).to_list(None)


async def names(db: Database) -> list[str]:
    """Return the names of all channels."""
    return [row["_id"] async for row in db.notification_channels.find({}, {"_id": 1})]


async def find(db: Database, name: str) -> Document | None:
    """Return a channel; None if there is no such channel."""
    return await db.notification_channels.find_one({"_id": name})


async def put(db: Database, name: str, row: Document, edit: Edit, limit: int) -> None:
    """Store a new or an edited channel; raises ConfigError, also if there are `limit` channels."""
    fields = row | {"by": edit.by, "at": edit.at}
    if edit.edits is None:
        if await db.notification_channels.count_documents({}, limit=limit) == limit:
            raise ConfigError(f"there are {limit} channels already. Remove one first")
        try:
            await db.notification_channels.insert_one({"_id": name, "edits": 0} | fields)
        except DuplicateKeyError:
            raise ConfigError(f"name: there is a channel named {name!r} already") from None
        return
    query = {"_id": name, "edits": edit.edits}
    update: Document = {"$set": fields, "$inc": {"edits": 1}}
    if not (await db.notification_channels.update_one(query, update)).matched_count:
        raise ConfigError("someone has changed or removed this channel. Open it again")


async def remove(db: Database, name: str) -> bool:
    """Remove a channel; return whether there was one."""
    return bool((await db.notification_channels.delete_one({"_id": name})).deleted_count)
