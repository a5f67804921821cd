"""Leases held for the duration of a block, by this process or as if by another machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pymongo

from crawler.config import Config
from crawler.storage.client import MongoRetry
from crawler.storage.leases import Lease
from crawler.storage.store import opened
from tests.integration.harness import Row

HOUR_SECONDS = 3600


@contextmanager
def holding(uri: str, name: str, *, elsewhere: bool = False, shared: str = "",
            seconds: float = HOUR_SECONDS) -> Iterator[None]:  # fmt: skip
    """Hold a lease of a database like any process; elsewhere: as if on another machine."""
    asyncio.run(_take(uri, name, shared, seconds))
    client: pymongo.MongoClient[Row]
    with pymongo.MongoClient(uri) as client:
        leases = client.get_default_database().leases
        if elsewhere:
            other = {"host": "far", "pid": 7, "place": "far"}
            holder = {f"holders.0.{key}": value for key, value in other.items()}
            leases.update_one({"_id": name}, {"$set": holder})
        try:
            yield
        finally:
            leases.delete_one({"_id": name})


async def _take(uri: str, name: str, shared: str, seconds: float) -> None:
    async with opened(Config.load(mongo_uri=uri)) as db:
        await Lease(db, name, seconds, MongoRetry(0, _nothing)).take("busy", shared)


async def _nothing() -> None:
    """Do nothing: the test runs the server itself."""
