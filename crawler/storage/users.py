"""`users` of the web app, their `sessions` and `api_tokens`, and `audit`: who changed what, when.

A browser signs in and keeps the random id of its session in a cookie. A program sends its token
with each request to the JSON API. Passwords, session ids and tokens are stored as hashes only, so
nobody can sign in with a copy of the database. The audit list has the writes through the web app,
its API and `scrapy web`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from pymongo.errors import DuplicateKeyError
from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.storage.client import UNJOURNALED, Database, Document
from crawler.storage.paging import Key, Rows, read_page
from crawler.utils.shapes import copied

NAME = re.compile(r"[a-z0-9][a-z0-9_.@+-]{0,63}", re.ASCII)
# Names under which the audit list has changes that no user made.
RESERVED = frozenset({"local", "command line"})
_keeping_an_editor = asyncio.Lock()
MAX_CHARACTERS = 500
NEWEST_FIRST = (("at", -1), ("_id", -1))
ID_BYTES = 32
# A session ends after IDLE without a request, and after LONGEST in any case.
IDLE = timedelta(days=7)
LONGEST = timedelta(days=30)
# Interval at which the use of a session or token is stored.
USE = timedelta(hours=1)
# Begins each token, so that scanners for leaked secrets can recognize it.
PREFIX = "freshet_"
ID_CHARACTERS = 12
MAX_LABEL_CHARACTERS = 100


class Role(StrEnum):
    """The rights of a user. VIEWER: read; EDITOR: also change settings and start crawls."""

    VIEWER = "viewer"
    EDITOR = "editor"


class Scope(StrEnum):
    """The rights of an API token, within the role of its user."""

    READ = "read"
    WRITE = "write"


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


async def is_only(db: Database) -> bool:
    """Return whether there is exactly one user."""
    return await db.users.count_documents({}, limit=2) == 1


def posts_reader(name: str) -> str:
    """Return the `_id` in `readers` of the posts that a user has read."""
    return f"{name} posts"


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
    await end_sessions(db, name)


async def set_role(db: Database, name: str, role: Role) -> None:
    """Set a user's role and end the user's sessions; raises ConfigError for an unknown user."""
    if not (await db.users.update_one({"_id": name}, {"$set": {"role": str(role)}})).matched_count:
        raise await unknown(db, name)
    await end_sessions(db, name)


async def remove(db: Database, name: str) -> None:
    """Remove a user and all data of the user; raises ConfigError for an unknown user."""
    if not (await db.users.delete_one({"_id": name})).deleted_count:
        raise await unknown(db, name)
    await end_sessions(db, name)
    await db.api_tokens.delete_many({"user": name})
    await db.readers.delete_many({"_id": {"$in": [name, posts_reader(name)]}})
    await db.saved_searches.delete_many({"user": name})


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


async def audit_entries(db: Database, limit: int, after: Key | None = None) -> Rows:
    """Return a page of audit entries, newest first."""
    return await read_page(db.audit, {}, NEWEST_FIRST, limit, after)


def digest(secret: str) -> str:
    """Return the form in which a session id or token is stored; it has 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def begin_session(db: Database, user: str, now: datetime) -> str:
    """Begin a session and return its id, which is not stored."""
    session = secrets.token_urlsafe(ID_BYTES)
    await db.sessions.insert_one(
        {"_id": digest(session), "user": user, "created_at": now, "used_at": now,
         "expires_at": now + IDLE}
    )  # fmt: skip
    return session


async def user_of_session(db: Database, session: str, now: datetime) -> str | None:
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


async def end_session(db: Database, session: str) -> None:
    """End a session."""
    await db.sessions.delete_one({"_id": digest(session)})


async def end_sessions(db: Database, user: str) -> None:
    """End all sessions of a user."""
    await db.sessions.delete_many({"user": user})


class TokenRow(TypedDict):
    """An API token without its secret."""

    id: str
    """Public part of the token, for `scrapy web token revoke`."""
    user: str
    """Name of the user that the token acts for."""
    label: str
    """Purpose of the token, as given when it was added."""
    scopes: list[Scope]
    """read, or read and write."""
    created_at: datetime
    """Time when the token was added."""
    used_at: datetime | None
    """Time of a recent use; null: never used."""
    expires_at: datetime | None
    """Time from which the token is invalid; null: never."""


def token_row(document: Document) -> TokenRow:
    """Return the token that a document describes, with the beginning of its hash as its id."""
    return {
        **copied(TokenRow, document),
        "id": document["_id"][:ID_CHARACTERS],
        "scopes": sorted(map(Scope, document["scopes"])),
    }


def token_in_words(token: TokenRow) -> str:
    """Return the id, the user and the label of a token, for the audit list."""
    return f"{token['id']} of {token['user']}" + (f", {token['label']}" if token["label"] else "")


async def add_token(
    db: Database,
    user: str,
    label: str,
    scopes: Iterable[Scope],
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[str, TokenRow]:
    """Add a token; return the secret, which is not stored, and the token."""
    secret = PREFIX + secrets.token_urlsafe(ID_BYTES)
    row: Document = {
        "_id": digest(secret), "user": user, "label": label[:MAX_LABEL_CHARACTERS],
        "scopes": sorted(map(str, scopes)), "created_at": now, "used_at": None,
    }  # fmt: skip
    if expires_at is not None:
        row["expires_at"] = expires_at
    await db.api_tokens.insert_one(row)
    return secret, token_row(row)


async def find_token(db: Database, secret: str, now: datetime) -> TokenRow | None:
    """Return the token of a secret; None if it was revoked, has expired or never existed."""
    row = await db.api_tokens.find_one({"_id": digest(secret)})
    if row is None or ("expires_at" in row and row["expires_at"] <= now):
        return None
    if row["used_at"] is None or now >= row["used_at"] + USE:
        used = {"$set": {"used_at": now}}
        lazy = db.api_tokens.with_options(write_concern=UNJOURNALED)
        await lazy.update_one({"_id": row["_id"]}, used)
    return token_row(row)


async def tokens_of(db: Database, user: str | None = None) -> list[TokenRow]:
    """Return the tokens of a user, of all users if None, oldest first."""
    query: Document = {} if user is None else {"user": user}
    return [token_row(row) async for row in db.api_tokens.find(query).sort([("created_at", 1)])]


async def revoke_token(db: Database, token_id: str, user: str | None = None) -> TokenRow:
    """Delete a token by its id; raises ConfigError if there is none, or another user has it."""
    tokens = [token for token in await tokens_of(db, user) if token["id"] == token_id]
    if not tokens:
        raise ConfigError(f"token not found: {token_id!r}. See scrapy web token list")
    # The id needs no escaping in a pattern, because it equals that of a stored token.
    token = tokens[0]
    await db.api_tokens.delete_one({"_id": {"$regex": f"^{token['id']}"}, "user": token["user"]})
    return token
