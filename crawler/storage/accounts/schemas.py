"""Validators and indexes of the collections of accounts."""

from __future__ import annotations

from enum import StrEnum

from pymongo import ASCENDING, DESCENDING, IndexModel

from crawler.storage.client import Document
from crawler.storage.field_schemas import (
    maybe_time,
    number,
    one_of,
    shown,
    text,
    texts,
    time,
    validator,
)

# Audit entries are deleted after this time.
AUDIT_SECONDS = 400 * 24 * 3600
# The server deletes a document when the time in the field has passed.
AT_ITS_TIME = 0


class Role(StrEnum):
    """What a user may do. VIEWER: read; EDITOR: also change settings and start crawls."""

    VIEWER = "viewer"
    EDITOR = "editor"


class Scope(StrEnum):
    """What an API token may do, within the role of its user."""

    READ = "read"
    WRITE = "write"


ACCOUNT_VALIDATORS: dict[str, Document] = {
    "users": validator(
        ["role", "password_hash", "created_at", "password_at"],
        "users of the web app",
        {
            "_id": shown("string", "name of the user, in lower case"),
            "role": one_of(
                map(str, Role), "`viewer` reads; `editor` also changes settings and starts crawls"
            ),
            "password_hash": text("Argon2id hash of the password, with its salt and parameters"),
            "created_at": time("time when the user was added"),
            "password_at": time("time when the password was set"),
        },
    ),
    "sessions": validator(
        ["user", "created_at", "used_at", "expires_at"],
        "signed-in browsers of the web app",
        {
            "_id": shown("string", "SHA-256 of the session id in the cookie"),
            "user": text("name of the user"),
            "created_at": time("time of the sign-in"),
            "used_at": time("time of a recent request, exact to the hour"),
            "expires_at": time("end of the session; the document is deleted then"),
        },
    ),
    "api_tokens": validator(
        ["user", "label", "scopes", "created_at", "used_at"],
        "tokens with which programs use the JSON API",
        {
            "_id": shown("string", "SHA-256 of the token"),
            "user": text("name of the user that the token acts for"),
            "label": text("what the token is for, in the words of its creator"),
            "scopes": texts("what the token may do: `read`, `write`"),
            "created_at": time("time when the token was added"),
            "used_at": maybe_time("time of a recent request, exact to the hour; null before any"),
            "expires_at": time("end of the token; absent: no end. The document is deleted then"),
        },
    ),
    "audit": validator(
        ["at", "user", "action"],
        "changes made through the web app, its API and `scrapy web`; deleted after 400 days",
        {
            "_id": shown("objectId", "id of the entry"),
            "at": time("time of the change"),
            "user": text(
                "name of the user; `local` without sign-in, `command line` for `scrapy web`"
            ),
            "action": text("method and path of the request, or the command"),
            "detail": text("what was changed, in words; absent if the action says all"),
            "address": text("IP address of the client; absent for commands"),
            "status": number("HTTP status of the response; absent for commands"),
        },
    ),
}


def _expires(field: str, seconds: int) -> IndexModel:
    return IndexModel([(field, ASCENDING)], expireAfterSeconds=seconds)


ACCOUNT_INDEXES: dict[str, list[IndexModel]] = {
    "sessions": [_expires("expires_at", AT_ITS_TIME), IndexModel([("user", ASCENDING)])],
    "api_tokens": [_expires("expires_at", AT_ITS_TIME), IndexModel([("user", ASCENDING)])],
    "audit": [
        _expires("at", AUDIT_SECONDS),
        IndexModel([("at", DESCENDING), ("_id", DESCENDING)]),
    ],
}
