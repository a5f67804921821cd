"""`users` of the web app: names, roles and password hashes. `audit`: who changed what and when.

The audit list has the writes through the web app, its API and `scrapy web`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from pymongo.errors import DuplicateKeyError
from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.storage.accounts import credentials, readers
from crawler.storage.accounts.schemas import Role
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key, Rows, read_page

NAME = re.compile(r"[a-z0-9][a-z0-9_.@+-]{0,63}", re.ASCII)
# Names under which the audit list has changes that no user made.
RESERVED = frozenset({"local", "command line"})
_keeping_an_editor = asyncio.Lock()
MAX_CHARACTERS = 500
NEWEST_FIRST = (("at", -1), ("_id", -1))


class UserRow(TypedDict):
    """A user of the web app."""

    name: str
    """Name that the user signs in with."""
    role: Role
    """Role of the user."""
    created_at: datetime
    """Time when the user was added."""
    password_at: datetime
    """Time when the password was last set."""


@dataclass(frozen=True, slots=True)
class StoredUser:
    """A user. password_at: when the password was set."""

    name: str
    role: Role
    password_hash: str
    created_at: datetime
    password_at: datetime

    @classmethod
    def of(cls, document: Document) -> Self:
        """Return the user that a document describes."""
        return cls(
            name=document["_id"],
            role=Role(document["role"]),
            password_hash=document["password_hash"],
            created_at=document["created_at"],
            password_at=document["password_at"],
        )

    @property
    def row(self) -> UserRow:
        """Return the user without the hash of the password."""
        return {
            "name": self.name,
            "role": self.role,
            "created_at": self.created_at,
            "password_at": self.password_at,
        }


def name_of(text: str) -> str:
    """Return the stored form of a user name; raises ConfigError if it is invalid."""
    name = text.strip().lower()
    if not NAME.fullmatch(name) or name in RESERVED:
        raise ConfigError(
            f"invalid user name: {text[:80]!r}. Use up to 64 letters, digits and _ . @ + -, such "
            "as anna"
        )
    return name


async def any_exists(db: Database) -> bool:
    """Return whether there is a user."""
    return await db.users.find_one({}, {"_id": 1}) is not None


async def find(db: Database, name: str) -> StoredUser | None:
    """Return the user of a name in its stored form; None if there is none."""
    row = await db.users.find_one({"_id": name})
    return StoredUser.of(row) if row else None


async def everyone(db: Database) -> list[StoredUser]:
    """Return all users by name."""
    return [StoredUser.of(row) async for row in db.users.find().sort("_id")]


async def add(db: Database, name: str, role: Role, password_hash: str, now: datetime) -> None:
    """Add a user; raises ConfigError if the name is taken."""
    row = {
        "_id": name, "role": str(role), "password_hash": password_hash, "created_at": now,
        "password_at": now,
    }  # fmt: skip
    try:
        await db.users.insert_one(row)
    except DuplicateKeyError:
        raise taken(name) from None


async def set_password(db: Database, name: str, password_hash: str, now: datetime) -> None:
    """Set a user's password and end the user's sessions; raises ConfigError for an unknown user."""
    update = {"$set": {"password_hash": password_hash, "password_at": now}}
    if not (await db.users.update_one({"_id": name}, update)).matched_count:
        raise await unknown(db, name)
    await credentials.end_sessions(db, name)


async def set_role(db: Database, name: str, role: Role) -> None:
    """Set a user's role and end the user's sessions; raises ConfigError for an unknown user."""
    if not (await db.users.update_one({"_id": name}, {"$set": {"role": str(role)}})).matched_count:
        raise await unknown(db, name)
    await credentials.end_sessions(db, name)


async def remove(db: Database, name: str) -> None:
    """Remove a user and all data of the user; raises ConfigError for an unknown user."""
    if not (await db.users.delete_one({"_id": name})).deleted_count:
        raise await unknown(db, name)
    await credentials.end_sessions(db, name)
    await credentials.revoke_tokens(db, name)
    await readers.forget(db, name)
    await db.reading.delete_many({"reader": name})


@asynccontextmanager
async def keeping_an_editor(db: Database, name: str) -> AsyncIterator[None]:
    """Block other changes of users while an editor loses the role or is removed.

    Raises ConfigError if there is no other editor, because nobody could manage users in the app
    anymore. Changes by other processes are not blocked.
    """
    async with _keeping_an_editor:
        others = {"_id": {"$ne": name}, "role": str(Role.EDITOR)}
        if await db.users.find_one(others, {"_id": 1}) is None:
            raise ConfigError(f"{name} is the only editor. Make another user an editor first")
        yield


def taken(name: str) -> ConfigError:
    """Return the error for a user that exists already."""
    return ConfigError(
        f"user exists: {name!r}. To set another password: scrapy web user passwd {name}"
    )


async def unknown(db: Database, name: str) -> ConfigError:
    """Return the error for a user that does not exist."""
    names = ", ".join([user.name for user in await everyone(db)])
    return ConfigError(f"user not found: {name!r}. Users: {names or 'none'}")


async def record(
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


async def audit_entries(
    db: Database, limit: int, after: Key | None = None, user: str | None = None
) -> Rows:
    """Return a page of audit entries, newest first; of all users if `user` is None."""
    query: Document = {} if user is None else {"user": user}
    return await read_page(db.audit, query, NEWEST_FIRST, limit, after)
