"""Leases shared by several workers."""

from __future__ import annotations

import asyncio
from typing import Any

from crawler.config import Config
from crawler.storage.client import Database, MongoRetry
from crawler.storage.leases import Lease
from crawler.storage.store import opened
from tests.integration.harness import Db, Row

NAME, REDIS = "crawl shop", "a Redis"


async def holders_of(db: Database) -> list[Row]:
    lease: Any = await db.leases.find_one({"_id": NAME})
    return list(lease["holders"])


async def renew_first(uri: str, *, first_is_removed: bool) -> tuple[list[Row], list[Row], bool]:
    """Renew the first of three holders; return the holders before and after, and success."""
    async with opened(Config.load(mongo_uri=uri)) as db:
        leases = [Lease(db, NAME, 60.0, MongoRetry(0)) for _ in range(3)]
        for lease in leases:
            await lease.take("busy", REDIS)
        before = await holders_of(db)
        if first_is_removed:
            await db.leases.update_one({"_id": NAME}, {"$pop": {"holders": -1}})
        leases[0]._sure_until = 0.0
        holds = await leases[0].still_holds()
        after = await holders_of(db)
        for lease in leases:
            await lease.release()
        assert await holders_of(db) == []
        return before, after, holds


def test_a_renewal_changes_only_the_time_of_its_holder(stored: tuple[Db, str]) -> None:
    before, after, holds = asyncio.run(renew_first(stored[1], first_is_removed=False))
    assert holds
    assert after[1:] == before[1:]
    assert after[0].pop("until") > before[0].pop("until")
    assert after[0] == before[0]


def test_renewal_adds_a_removed_holder_again(stored: tuple[Db, str]) -> None:
    before, after, holds = asyncio.run(renew_first(stored[1], first_is_removed=True))
    assert holds
    assert [row["id"] for row in after] == [before[n]["id"] for n in (1, 2, 0)]
