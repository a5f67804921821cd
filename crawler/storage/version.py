"""The version of the stored data, and its document in the database.

Separate from `schema`, which is slow to import, because every command checks the version.
"""

from __future__ import annotations

from crawler.storage.client import Database, Document

VERSION = 3
# The document of `meta` with the version, during a copy with the source, and while restored
# collections replace the current ones with their names.
META: Document = {"_id": "schema"}


async def is_current(db: Database) -> bool:
    """Return whether a database has this version, and no copy or restore is unfinished."""
    return await db.meta.find_one(META) == META | {"version": VERSION}
