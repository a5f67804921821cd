"""Connections: a given MongoDB by its URI, else the embedded server."""

from __future__ import annotations

import logging
from typing import Any

from pymongo import AsyncMongoClient, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError, ServerSelectionTimeoutError
from pymongo.uri_parser import parse_uri

from crawler.config import Config
from crawler.errors import ConfigError, Unreachable
from crawler.storage.embedded import EmbeddedServer
from crawler.utils.terminal import without_secrets

Document = dict[str, Any]
Database = AsyncDatabase[Document]
# For what is worth nothing, and for what a later write vouches for: a journal keeps the order.
UNHURRIED = WriteConcern(w=1, j=False)


def server_uri(config: Config) -> str:
    """URI with a database name; starts the embedded server where MONGO_URI is unset (blocking)."""
    if config.mongo_uri is None:
        return EmbeddedServer.of(config).start()
    return with_database(config.mongo_uri, config.database, "MONGO_URI")


def with_database(uri: str, database: str, name: str) -> str:
    """A URI that names a database, its own or this. Raises ConfigError, which says `name`."""
    try:
        parsed = parse_uri(uri)
    except (InvalidURI, ConfigurationError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if parsed["database"]:
        return uri
    head, mark, options = uri.partition("?")
    return f"{head.rstrip('/')}/{database}{mark}{options}"


def open_client(uri: str, config: Config) -> AsyncMongoClient[Document]:
    """A client whose writes return once a majority has them in its journal; connects lazily."""
    # Scrapy has the root logger take everything: the driver would write a record for each step.
    logging.getLogger("pymongo").setLevel(logging.INFO)
    return AsyncMongoClient(
        uri,
        tz_aware=True,
        w="majority",
        journal=True,
        appname="freshet",
        serverSelectionTimeoutMS=int(config.mongo_timeout_seconds * 1000),
    )


NAMED = "MONGO_URI names it; without MONGO_URI an embedded server is used"


async def check_reachable(client: AsyncMongoClient[Document], uri: str, named: str = NAMED) -> None:
    """Raise Unreachable unless the server answers within the client's time. named: where from."""
    try:
        await client.admin.command("ping")
    except ServerSelectionTimeoutError:
        seconds = client.options.server_selection_timeout
        raise Unreachable(
            f"MongoDB at {without_password(uri)}: no answer in {seconds:g} s (does it run? {named})"
        ) from None
    except PyMongoError as error:
        reason = " ".join(str(error).split(", full error")[0].split())
        raise Unreachable(f"MongoDB at {without_password(uri)}: {reason}") from None


def without_password(uri: str) -> str:
    """The URI as it may be shown: user, passwords and other secrets left out."""
    scheme, mark, rest = uri.partition("://")
    return without_secrets(scheme + mark + rest.rpartition("@")[2])
