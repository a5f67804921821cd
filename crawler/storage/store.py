"""Opening the database: reach it, bring it to this version, close it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pymongo
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from crawler.config import Config
from crawler.storage.client import Database, Document, check_reachable, open_client, server_uri
from crawler.storage.patience import in_short
from crawler.storage.schema import prepare


@dataclass(frozen=True, slots=True)
class Store:
    """An open database."""

    client: AsyncMongoClient[Document]
    db: Database
    config: Config

    @classmethod
    async def open(cls, config: Config) -> Store:
        """Reach and prepare the database; raises StorageError or ConfigError."""
        uri = await asyncio.to_thread(server_uri, config)
        client = open_client(uri, config)
        try:
            await check_reachable(client, uri)
            db = client.get_default_database()
            await prepare(db)
        except BaseException:
            await client.close()
            raise
        return cls(client, db, config)

    async def revive(self) -> None:
        """Start the embedded server again if it is the one in use and died."""
        if self.config.mongo_uri is None:
            await asyncio.to_thread(server_uri, self.config)

    async def trouble(self, seconds: float) -> str | None:
        """Why the database cannot be used now, in one line; None if it answers in that time."""
        try:
            with pymongo.timeout(seconds):
                await self.client.admin.command("ping")
        except PyMongoError as error:
            return f"MongoDB: {in_short(error)}"
        return None

    async def close(self) -> None:
        """Close the connections; the embedded server goes on for others."""
        await self.client.close()


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[Database]:
    """The database, for the length of a command."""
    store = await Store.open(config)
    try:
        yield store.db
    finally:
        await store.close()
