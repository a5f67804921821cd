"""Opening the database: reach it, bring it to this version, close it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pymongo
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from crawler.config import Config
from crawler.errors import StorageError
from crawler.storage.client import (
    Database,
    Document,
    Reading,
    check_reachable,
    open_client,
    read_clock,
    server_uri,
    skew_text,
)
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.retry import in_short, why_unavailable
from crawler.storage.schema import prepare
from crawler.utils import tasks

logger = logging.getLogger(__name__)
# Between two readings of the server's clock: two good clocks part by a millisecond meanwhile.
CLOCK_SECONDS = 30.0
# From here on a clock is wrong, and not just not yet right.
SKEW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Store:
    """An open database, whose clock this process follows.

    clock: as it was read when the database was opened
    """

    client: AsyncMongoClient[Document]
    db: Database
    config: Config
    clock: Reading
    _following: asyncio.Task[None]

    @classmethod
    async def open(cls, config: Config) -> Store:
        """Reach and prepare the database; raises StorageError or ConfigError.

        ClockError is raised where its clock is too far from this machine's.
        """
        uri = await asyncio.to_thread(server_uri, config)
        client = open_client(uri, config)
        try:
            await check_reachable(client, uri)
            clock = await read_clock(client)
            clock.refuse_beyond(config)
            db = client.get_default_database()
            await prepare(db)
        except PyMongoError as error:
            await client.close()
            raise StorageError(f"MongoDB: {why_unavailable(error) or in_short(error)}") from None
        except BaseException:
            await client.close()
            raise
        return cls(client, db, config, clock, asyncio.create_task(_follow_clock(client)))

    async def revive(self) -> None:
        """Start the embedded server again if it is the one in use and died.

        Raises ServerError if it cannot be started now, or lives and does not answer.
        """
        if self.config.mongo_uri is None:
            await asyncio.to_thread(EmbeddedServer.of(self.config).revive)

    async def problem(self, seconds: float) -> str | None:
        """Why the database cannot be used now, in one line; None if it answers in that time."""
        try:
            with pymongo.timeout(seconds):
                await self.client.admin.command("ping")
        except PyMongoError as error:
            return f"MongoDB: {in_short(error)}"
        return None

    async def close(self) -> None:
        """Close the connections; the embedded server goes on for others."""
        await tasks.end(self._following)
        await self.client.close()


async def _follow_clock(client: AsyncMongoClient[Document]) -> None:
    """Read the server's clock at intervals, until this is cancelled."""
    while True:
        await asyncio.sleep(CLOCK_SECONDS)
        try:
            moved = (await read_clock(client)).moved_seconds
        except PyMongoError as error:
            logger.debug("MongoDB's clock was not read: %s", in_short(error))
            continue
        if abs(moved) > SKEW_SECONDS:
            logger.warning("MongoDB's clock is now %s the time of this run", skew_text(moved))


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[Database]:
    """The database, for the length of a command."""
    store = await Store.open(config)
    try:
        yield store.db
    finally:
        await store.close()
