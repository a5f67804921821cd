"""`audit`: who changed what and when through the web app, its API and `scrapy web`."""

from __future__ import annotations

from datetime import datetime

from crawler.storage.client import Database, Document
from crawler.storage.paging import Key, Rows, read_page

MAX_CHARACTERS = 500
NEWEST_FIRST = (("at", -1), ("_id", -1))


async def add(
    db: Database,
    now: datetime,
    user: str,
    action: str,
    *,
    detail: str = "",
    address: str = "",
    status: int | None = None,
) -> None:
    """Add an entry; longer texts are cut at MAX_CHARACTERS."""
    row: Document = {"at": now, "user": user, "action": action[:MAX_CHARACTERS]}
    if detail:
        row["detail"] = detail[:MAX_CHARACTERS]
    if address:
        row["address"] = address
    if status is not None:
        row["status"] = status
    await db.audit.insert_one(row)


async def entries(
    db: Database, limit: int, after: Key | None = None, user: str | None = None
) -> Rows:
    """Return a page of entries, newest first; of all users if `user` is None."""
    query: Document = {} if user is None else {"user": user}
    return await read_page(db.audit, query, NEWEST_FIRST, limit, after)
