"""An open database of the current version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pymongo
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from crawler.config import Config
from crawler.errors import StorageError, Unreachable
from crawler.storage import client
from crawler.storage.client import (
    META,
    ClockReading,
    Database,
    Document,
    check_reachable,
    follow_clock,
    in_short,
    open_client,
    read_clock,
    server_uri,
    why_unavailable,
)
from crawler.storage.embedded import EmbeddedServer
from crawler.utils.process import end_tasks


async def is_current(db: Database) -> bool:
    """Return whether a database has this version, and no copy or restore is unfinished."""
    return await db.meta.find_one(META) == META | {"version": client.VERSION}


@dataclass(frozen=True, slots=True)
class Store:
    """An open database, whose clock this process follows.

    clock: reading from when the database was opened
    """

    client: AsyncMongoClient[Document]
    db: Database
    config: Config
    clock: ClockReading
    _following: asyncio.Task[None]

    @classmethod
    async def open(cls, config: Config, *, prepares: bool = True) -> Store:
        """Connect to the database and migrate it; raise StorageError or ConfigError.

        prepares: False leaves the database unchanged even if it is new or has another version

        Raises ClockError if the server's clock differs too much from this machine's.
        """
        uri = await asyncio.to_thread(server_uri, config)
        client = open_client(uri, config)
        try:
            try:
                await check_reachable(client, uri)
            except Unreachable as error:
                # On a full disk, the server starts, and ends at its first write.
                full = None if config.mongo_uri else EmbeddedServer.of(config).full_disk()
                raise Unreachable(full or str(error)) from None
            clock = await read_clock(client)
            clock.refuse_beyond(config)
            db = client.get_default_database()
            if prepares and not await is_current(db):
                from crawler.storage.schema import prepare  # for new databases; slow to import

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
