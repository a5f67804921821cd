"""`sessions`: signed-in browsers, by the hash of the random id in their cookie."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from crawler.storage.client import UNJOURNALED, Database

ID_BYTES = 32
# A session ends after the first without a request, and after the second in any case.
IDLE = timedelta(days=7)
LONGEST = timedelta(days=30)
# Interval at which the use of a session or token is stored.
USE = timedelta(hours=1)


def digest(secret: str) -> str:
    """Return the form in which a session id or token is stored; it has 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def begin(db: Database, user: str, now: datetime) -> str:
    """Begin a session and return its id, which is not stored."""
    session = secrets.token_urlsafe(ID_BYTES)
    await db.sessions.insert_one(
        {"_id": digest(session), "user": user, "created_at": now, "used_at": now,
         "expires_at": now + IDLE}
    )  # fmt: skip
    return session


async def user_of(db: Database, session: str, now: datetime) -> str | None:
    """Return the user of a session; None if it has ended or never began."""
    key = digest(session)
    row = await db.sessions.find_one({"_id": key, "expires_at": {"$gt": now}})
    if row is None:
        return None
    if now >= row["used_at"] + USE:
        ends = min(now + IDLE, row["created_at"] + LONGEST)
        used = {"$set": {"used_at": now, "expires_at": ends}}
        # Losing this in a crash shortens the session by at most an hour.
        await db.sessions.with_options(write_concern=UNJOURNALED).update_one({"_id": key}, used)
    return str(row["user"])


async def end(db: Database, session: str) -> None:
    """End a session."""
    await db.sessions.delete_one({"_id": digest(session)})


async def end_all(db: Database, user: str, but: str | None = None) -> None:
    """End all sessions of a user, except the one with the id `but`."""
    query: dict[str, object] = {"user": user}
    if but is not None:
        query["_id"] = {"$ne": digest(but)}
    await db.sessions.delete_many(query)
