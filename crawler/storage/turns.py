"""Whose turn it is: work that one of several machines does at a time, noted in `meta`."""

from __future__ import annotations

from datetime import datetime, timedelta

from pymongo.errors import DuplicateKeyError

from crawler.storage.client import Database, Document


async def taken(db: Database, work: str, now: datetime, apart: timedelta) -> bool:
    """Whether this machine may begin a work: nobody has for so long."""
    query: Document = {"_id": f"turn {work}", "at": {"$lte": now - apart}}
    try:
        await db.meta.update_one(query, {"$set": {"at": now}}, upsert=True)
    except DuplicateKeyError:
        return False
    return True
