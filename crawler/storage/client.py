"""The database on the server of MONGO_URI, or else the embedded one: opening, version, clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import pymongo
from pymongo import AsyncMongoClient, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError, ServerSelectionTimeoutError
from pymongo.uri_parser import parse_uri

from crawler.config import Config
from crawler.errors import ClockError, ConfigError, StorageError, Unreachable
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.outages import in_short, why_unavailable
from crawler.utils.process import end_tasks
from crawler.utils.terminal import without_secrets
from crawler.utils.text import span
from crawler.utils.time import SERVER_TIME, steady_seconds

Document = dict[str, Any]
Database = AsyncDatabase[Document]

logger = logging.getLogger(__name__)
# For writes that may be lost, or that a later journaled write confirms: the journal is ordered.
UNJOURNALED = WriteConcern(w=1, j=False)
MONGO_URI_HINT = "Check MONGO_URI, or unset it to use the embedded server"
CLOCK_SAMPLES = 3
# Interval of reading the server's clock. Two good clocks drift apart by about a millisecond in it.
CLOCK_SECONDS = 30.0
# Larger differences are logged as a wrong clock.
SKEW_SECONDS = 5.0
# MongoDB reports whole milliseconds.
CLOCK_RESOLUTION_SECONDS = 0.001
# The version of the stored data. Every command checks it, and `schema` is slow to import.
VERSION = 3
# The document of `meta` with the version, during a copy with the source, and while restored
# collections replace the current ones with their names.
META: Document = {"_id": "schema"}


def server_uri(config: Config) -> str:
    """Return a URI with a database name; start the embedded server if needed (blocking)."""
    if config.mongo_uri is None:
        return EmbeddedServer.of(config).start()
    return with_database(config.mongo_uri, config.database, "MONGO_URI")


def with_database(uri: str, database: str, name: str) -> str:
    """Return a URI that names a database: its own, or else the given one."""
    try:
        parsed = parse_uri(uri)
    except (InvalidURI, ConfigurationError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if parsed["database"]:
        return uri
    head, mark, options = uri.partition("?")
    return f"{head.rstrip('/')}/{database}{mark}{options}"


def open_client(uri: str, config: Config) -> AsyncMongoClient[Document]:
    """Return a client that connects lazily and writes to the journal of a majority."""
    # Scrapy sets the root logger to DEBUG, at which the driver logs every command.
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
    """Raise Unreachable unless the server answers within the client's timeout."""
    try:
        await client.admin.command("ping")
    except ServerSelectionTimeoutError:
        seconds = client.options.server_selection_timeout
        raise Unreachable(
            f"MongoDB at {without_password(uri)}: no response within {seconds:g} s. {hint}"
        ) from None
    except PyMongoError as error:
        reason = " ".join(str(error).split(", full error")[0].split())
        raise Unreachable(f"MongoDB at {without_password(uri)}: {reason}") from None


def without_password(uri: str) -> str:
    """Return the URI without user, passwords and other secrets, for messages."""
    scheme, mark, address = uri.partition("://")
    return without_secrets(scheme + mark + address.rpartition("@")[2])


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a server's clock.

    hello:         the server's answer, which includes the time
    ahead_seconds: this machine's clock minus the server's
    moved_seconds: correction of Freshet's time since the previous reading
    round_trips:   seconds of each request
    """

    hello: Document
    ahead_seconds: float
    moved_seconds: float
    round_trips: list[float]

    def refuse_beyond(self, config: Config) -> None:
        """Raise ClockError if the clocks differ by more than the settings allow."""
        seconds = abs(self.ahead_seconds)
        if seconds > config.max_clock_skew_seconds:
            raise ClockError(
                f"this machine's clock is {skew_text(self.ahead_seconds)} MongoDB's. Set the clock "
                "(timedatectl set-ntp true), or raise FRESHET_MAX_CLOCK_SKEW_SECONDS"
            )


async def read_clock(client: AsyncMongoClient[Document], samples: int = CLOCK_SAMPLES) -> Reading:
    """Read the server's clock and follow it in this process; uses the fastest of the answers."""
    taken: list[tuple[float, float, float, Document]] = []
    for _ in range(samples):
        wall, began = time.time(), steady_seconds()
        hello = await client.admin.command("hello", codec_options=client.codec_options)
        taken.append((steady_seconds() - began, began, wall, hello))
    seconds, began, wall, hello = min(taken, key=itemgetter(0))
    # The server read its clock halfway through the request, plus or minus that half.
    server, half = hello["localTime"].astimezone(UTC), seconds / 2
    ahead = (datetime.fromtimestamp(wall, UTC) - server).total_seconds() + half
    moved = SERVER_TIME.follow(server, began + half, half + CLOCK_RESOLUTION_SECONDS)
    return Reading(hello, ahead, moved, [sample[0] for sample in taken])


async def follow_clock(client: AsyncMongoClient[Document]) -> None:
    """Read the server's clock at intervals, until cancelled."""
    while True:
        await asyncio.sleep(CLOCK_SECONDS)
        try:
            moved = (await read_clock(client)).moved_seconds
        except PyMongoError as error:
            logger.debug("MongoDB's clock not read: %s", error)
            continue
        if abs(moved) > SKEW_SECONDS:
            logger.warning("MongoDB's clock is now %s the time of this run", skew_text(moved))


def skew_text(ahead_seconds: float) -> str:
    """Return a text such as "3.2 h ahead of"; ahead_seconds: negative for "behind"."""
    seconds = abs(ahead_seconds)
    return f"{span(seconds)} {'ahead of' if ahead_seconds > 0 else 'behind'}"


async def is_current(db: Database) -> bool:
    """Return whether a database has this version, and no copy or restore is unfinished."""
    return await db.meta.find_one(META) == META | {"version": VERSION}


@dataclass(frozen=True, slots=True)
class Store:
    """An open database, whose clock this process follows.

    clock: reading from when the database was opened
    """

    client: AsyncMongoClient[Document]
    db: Database
    config: Config
    clock: Reading
    _following: asyncio.Task[None]

    @classmethod
    async def open(cls, config: Config, *, prepares: bool = True) -> Store:
        """Connect to the database and migrate it; raise StorageError or ConfigError.

        prepares: False leaves a database as it is that is new or has another version

        Raises ClockError if its clock differs too much from this machine's.
        """
        uri = await asyncio.to_thread(server_uri, config)
        client = open_client(uri, config)
        try:
            await check_reachable(client, uri)
            clock = await read_clock(client)
            clock.refuse_beyond(config)
            db = client.get_default_database()
            if prepares and not await is_current(db):
                from crawler.storage.schema import prepare

                await prepare(db)
        except PyMongoError as error:
            await client.close()
            raise StorageError(f"MongoDB: {why_unavailable(error) or in_short(error)}") from None
        except BaseException:
            await client.close()
            raise
        return cls(client, db, config, clock, asyncio.create_task(follow_clock(client)))

    async def revive(self) -> None:
        """Restart the embedded server if it is in use and has ended.

        Raises ServerError if it cannot be started, or runs and does not answer.
        """
        if self.config.mongo_uri is None:
            await asyncio.to_thread(EmbeddedServer.of(self.config).revive)

    async def problem(self, seconds: float) -> str | None:
        """Return why the database cannot be used now, in one line; None if it answers in time."""
        try:
            with pymongo.timeout(seconds):
                await self.client.admin.command("ping")
        except PyMongoError as error:
            return f"MongoDB: {in_short(error)}"
        return None

    async def close(self) -> None:
        """Close the connections; the embedded server keeps running."""
        await end_tasks(self._following)
        await self.client.close()


@asynccontextmanager
async def opened(config: Config, *, prepares: bool = True) -> AsyncIterator[Database]:
    """Open the database during a block. prepares: as in `Store.open`."""
    store = await Store.open(config, prepares=prepares)
    try:
        yield store.db
    finally:
        await store.close()
