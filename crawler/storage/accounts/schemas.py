"""Validators and indexes of the collections of accounts."""

from __future__ import annotations

from enum import StrEnum

from pymongo import ASCENDING, DESCENDING, IndexModel

from crawler.storage.client import Document
from crawler.storage.field_schemas import (
    count,
    document,
    maybe_time,
    number,
    one_of,
    shown,
    text,
    texts,
    time,
    typed,
    validator,
)

# Audit entries are deleted after this time.
AUDIT_SECONDS = 400 * 24 * 3600
# The server deletes a document when the time in the field has passed.
AT_ITS_TIME = 0
# Maximum number of entries in the document of a reader, which has about 150 kB at most.
MAX_SITES, MAX_RANGES, MAX_PAGES, MAX_MUTES = 1000, 100, 2000, 50


class Role(StrEnum):
    """The rights of a user. VIEWER: read; EDITOR: also change settings and start crawls."""

    VIEWER = "viewer"
    EDITOR = "editor"


class Scope(StrEnum):
    """The rights of an API token, within the role of its user."""

    READ = "read"
    WRITE = "write"


def _rows(max_items: int, description: str, fields: Document) -> Document:
    """Return the schema of an array of at most `max_items` documents with these fields."""
    rows = document(list(fields), description, fields)
    return typed("array", description) | {"items": rows, "maxItems": max_items}


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
            "label": text("purpose of the token, as described by its creator"),
            "scopes": texts("what the token may do: `read`, `write`"),
            "created_at": time("time when the token was added"),
            "used_at": maybe_time("time of a recent request, exact to the hour; null before any"),
            "expires_at": time("end of the token; absent: no end. The document is deleted then"),
        },
    ),
    "readers": validator(
        ["revision", "sites", "ranges", "pages", "mutes"],
        "how far each user of the web app has read the changes",
        {
            "_id": shown("string", "name of the user; `local` without sign-in"),
            "revision": count("number of changes to this document"),
            "read_until": maybe_time("all earlier changes are read; null or absent: none"),
            "sites": _rows(
                MAX_SITES,
                "sites of which all changes up to a time are read",
                {"site": text("name of the site"), "until": time("the time")},
            ),
            "ranges": _rows(
                MAX_RANGES,
                "times in which all changes are read",
                {"since": time("start, included"), "until": time("end, included")},
            ),
            "pages": _rows(
                MAX_PAGES,
                "pages of which all changes up to a time are read",
                {
                    "page": typed("long", "hash of spider and URL, 64 bits"),
                    "until": time("the time"),
                },
            ),
            "mutes": texts("regular expressions of URLs whose changes are hidden")
            | {"maxItems": MAX_MUTES},
            "feed": document(
                ["token", "created_at"],
                "Atom feed of the user's changes; absent: none",
                {
                    "token": text("SHA-256 of the secret in the feed's URL"),
                    "created_at": time("time when the URL was created"),
                },
            ),
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
    "readers": [
        IndexModel(
            [("feed.token", ASCENDING)],
            unique=True,
            partialFilterExpression={"feed.token": {"$exists": True}},
        )
    ],
    "audit": [
        _expires("at", AUDIT_SECONDS),
        IndexModel([("at", DESCENDING), ("_id", DESCENDING)]),
    ],
}
