"""Connections: a given MongoDB by its URI, else the embedded server."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from pymongo import AsyncMongoClient, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError, ServerSelectionTimeoutError
from pymongo.uri_parser import parse_uri

from crawler.config import Config
from crawler.errors import ClockError, ConfigError, Unreachable
from crawler.storage.embedded import EmbeddedServer
from crawler.utils.terminal import without_secrets
from crawler.utils.text import span
from crawler.utils.time import SERVER_TIME, steady_seconds

Document = dict[str, Any]
Database = AsyncDatabase[Document]
# For writes that may be lost, and for those that a later write confirms: a journal keeps the order.
UNHURRIED = WriteConcern(w=1, j=False)
MONGO_URI_HINT = "MONGO_URI names it; without MONGO_URI an embedded server is used"
CLOCK_SAMPLES = 3
# MongoDB reports whole milliseconds.
CLOCK_RESOLUTION_SECONDS = 0.001


def server_uri(config: Config) -> str:
    """URI with a database name; starts the embedded server where MONGO_URI is unset (blocking)."""
    if config.mongo_uri is None:
        return EmbeddedServer.of(config).start()
    return with_database(config.mongo_uri, config.database, "MONGO_URI")


def with_database(uri: str, database: str, name: str) -> str:
    """A URI that names a database, its own or this. name: of the setting, for the ConfigError."""
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
    # Scrapy sets the root logger to DEBUG: the driver would write a record for each step.
    logging.getLogger("pymongo").setLevel(logging.INFO)
    return AsyncMongoClient(
        uri,
        tz_aware=True,
        w="majority",
        journal=True,
        appname="freshet",
        serverSelectionTimeoutMS=int(config.mongo_timeout_seconds * 1000),
    )


async def check_reachable(
    client: AsyncMongoClient[Document], uri: str, hint: str = MONGO_URI_HINT
) -> None:
    """Raise Unreachable unless the server answers within the client's time. hint: who names it."""
    try:
        await client.admin.command("ping")
    except ServerSelectionTimeoutError:
        seconds = client.options.server_selection_timeout
        raise Unreachable(
            f"MongoDB at {without_password(uri)}: no answer in {seconds:g} s (does it run? {hint})"
        ) from None
    except PyMongoError as error:
        reason = " ".join(str(error).split(", full error")[0].split())
        raise Unreachable(f"MongoDB at {without_password(uri)}: {reason}") from None


def without_password(uri: str) -> str:
    """The URI as it may be shown: user, passwords and other secrets left out."""
    scheme, mark, address = uri.partition("://")
    return without_secrets(scheme + mark + address.rpartition("@")[2])


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's clock as it was read.

    hello:         the server's answer, which holds the time
    ahead_seconds: this machine's clock less the server's
    moved_seconds: by which Freshet's time was off since the reading before
    round_trips:   seconds of each request
    """

    hello: Document
    ahead_seconds: float
    moved_seconds: float
    round_trips: list[float]

    def refuse_beyond(self, config: Config) -> None:
        """Raise ClockError where the two clocks are further apart than the settings allow."""
        seconds = abs(self.ahead_seconds)
        if seconds > config.max_clock_skew_seconds:
            raise ClockError(
                f"this machine's clock is {skew_text(self.ahead_seconds)} MongoDB's. Set the clock "
                "(timedatectl set-ntp true), or raise FRESHET_MAX_CLOCK_SKEW_SECONDS"
            )


async def read_clock(client: AsyncMongoClient[Document], samples: int = CLOCK_SAMPLES) -> Reading:
    """Read the server's clock, and have this process follow it; the fastest answer counts."""
    taken: list[tuple[float, float, float, Document]] = []
    for _ in range(samples):
        wall, began = time.time(), steady_seconds()
        hello = await client.admin.command("hello", codec_options=client.codec_options)
        taken.append((steady_seconds() - began, began, wall, hello))
    seconds, began, wall, hello = min(taken, key=itemgetter(0))
    # The server read its clock halfway through the request, give or take that half.
    server, half = hello["localTime"].astimezone(UTC), seconds / 2
    ahead = (datetime.fromtimestamp(wall, UTC) - server).total_seconds() + half
    moved = SERVER_TIME.follow(server, began + half, half + CLOCK_RESOLUTION_SECONDS)
    return Reading(hello, ahead, moved, [sample[0] for sample in taken])


def skew_text(ahead_seconds: float) -> str:
    """Return such as "3.2 h ahead of"; ahead_seconds: negative for "behind"."""
    seconds = abs(ahead_seconds)
    return f"{span(seconds)} {'ahead of' if ahead_seconds > 0 else 'behind'}"
