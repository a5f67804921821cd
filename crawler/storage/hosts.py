"""`hosts`: which host asked to be left alone until when (Retry-After), kept over runs."""

from __future__ import annotations

from datetime import datetime

from crawler.storage.client import Database


async def holds(db: Database, now: datetime) -> dict[str, datetime]:
    """Hosts that are to be left alone now, and until when."""
    cursor = db.hosts.find({"hold_until": {"$gt": now}})
    return {found["_id"]: found["hold_until"] async for found in cursor}


async def hold(db: Database, host: str, until: datetime) -> None:
    """Leave a host alone until `until`."""
    await db.hosts.update_one({"_id": host}, {"$max": {"hold_until": until}}, upsert=True)
