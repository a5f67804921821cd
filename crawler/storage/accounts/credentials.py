"""Sessions of browsers (`sessions`) and tokens of programs (`api_tokens`), stored as hashes.

A browser signs in and keeps the random id of its session in a cookie. A program sends its token
with each request to the JSON API.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.storage.accounts.schemas import Scope
from crawler.storage.client import UNJOURNALED, Database, Document

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


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret.

    id: beginning of its hash
    """

    id: str
    user: str
    label: str
    scopes: frozenset[Scope]
    created_at: datetime
    used_at: datetime | None
    expires_at: datetime | None

    @classmethod
    def of(cls, document: Document) -> Self:
        """Return the token that a document describes."""
        return cls(
            id=document["_id"][:ID_CHARACTERS],
            user=document["user"],
            label=document["label"],
            scopes=frozenset(map(Scope, document["scopes"])),
            created_at=document["created_at"],
            used_at=document["used_at"],
            expires_at=document.get("expires_at"),
        )

    @property
    def row(self) -> TokenRow:
        """Return the token as commands print it."""
        return {
            "id": self.id,
            "user": self.user,
            "label": self.label,
            "scopes": sorted(self.scopes),
            "created_at": self.created_at,
            "used_at": self.used_at,
            "expires_at": self.expires_at,
        }

    @property
    def in_words(self) -> str:
        """Return the id, the user and the label, for the audit list."""
        return f"{self.id} of {self.user}" + (f", {self.label}" if self.label else "")


async def add_token(
    db: Database,
    user: str,
    label: str,
    scopes: Iterable[Scope],
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[str, Token]:
    """Add a token; return the secret, which is not stored, and the token."""
    secret = PREFIX + secrets.token_urlsafe(ID_BYTES)
    row: Document = {
        "_id": digest(secret), "user": user, "label": label[:MAX_LABEL_CHARACTERS],
        "scopes": sorted(map(str, scopes)), "created_at": now, "used_at": None,
    }  # fmt: skip
    if expires_at is not None:
        row["expires_at"] = expires_at
    await db.api_tokens.insert_one(row)
    return secret, Token.of(row)


async def find_token(db: Database, secret: str, now: datetime) -> Token | None:
    """Return the token of a secret; None if it was revoked, has expired or never existed."""
    row = await db.api_tokens.find_one({"_id": digest(secret)})
    if row is None or ("expires_at" in row and row["expires_at"] <= now):
        return None
    if row["used_at"] is None or now >= row["used_at"] + USE:
        used = {"$set": {"used_at": now}}
        lazy = db.api_tokens.with_options(write_concern=UNJOURNALED)
        await lazy.update_one({"_id": row["_id"]}, used)
    return Token.of(row)


async def tokens_of(db: Database, user: str | None = None) -> list[Token]:
    """Return the tokens of a user, of all users if None, oldest first."""
    query: Document = {} if user is None else {"user": user}
    return [Token.of(row) async for row in db.api_tokens.find(query).sort([("created_at", 1)])]


async def revoke_token(db: Database, token_id: str, user: str | None = None) -> Token:
    """Delete a token by its id; raises ConfigError if there is none, or another user has it."""
    tokens = [token for token in await tokens_of(db, user) if token.id == token_id]
    if not tokens:
        raise ConfigError(f"token not found: {token_id!r}. See scrapy web token list")
    # The id needs no escaping in a pattern, because it equals that of a stored token.
    await db.api_tokens.delete_one({"_id": {"$regex": f"^{tokens[0].id}"}, "user": tokens[0].user})
    return tokens[0]


async def revoke_tokens(db: Database, user: str) -> None:
    """Delete all tokens of a user."""
    await db.api_tokens.delete_many({"user": user})
