"""Deliveries are stored by `scrapy feeds push` and processed by crawls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from crawler.config import Config
from crawler.storage import websub
from crawler.storage import websub as pushes
from crawler.storage.client import Database
from crawler.storage.store import opened
from crawler.storage.websub import DeliveryResult
from tests.integration.harness import Db
from tests.integration.pushing import CALLBACK, DAY, FEED, HOUR, next_visit, push_of, put


def test_total_size_of_deliveries_is_bounded(stored: tuple[Db, str]) -> None:
    async def run(db: Database) -> list[DeliveryResult]:
        row = await db.feeds.find_one({"url": FEED})
        assert row is not None
        feed, now = websub.Feed.of(row), datetime.now(UTC)
        bodies = (b"a" * 5000, b"b" * 5000, b"c" * 5000)
        return [await pushes.store(db, feed, "", body, now, 9000) for body in bodies]

    db, uri = stored
    put(db, push={"token": "t", "state": "active"})
    assert asyncio.run(in_database(uri, run)) == [
        DeliveryResult.STORED,
        DeliveryResult.POLLED,
        DeliveryResult.POLLED,
    ]
    assert next_visit(db) < timedelta(0)
    assert db.pushes.count_documents({}) == 1


def test_oldest_deliveries_are_read_first_and_deleted(stored: tuple[Db, str]) -> None:
    async def run(db: Database) -> list[list[bytes]]:
        feed = websub.Feed("feeds u", "feeds", "u", (), "u", {"token": "t"})
        for n in range(5):
            body, at = f"{n}".encode(), datetime(2026, 1, 1 + n, tzinfo=UTC)
            await pushes.store(db, feed, "text/xml", body, at, 10**9)
        first = await pushes.oldest_deliveries(db, "feeds", 2)
        assert await pushes.delete_deliveries(db, [push.id for push in first]) == 2
        second = await pushes.oldest_deliveries(db, "feeds", 2)
        third = await pushes.oldest_deliveries(db, "feeds", 100)
        assert await pushes.oldest_deliveries(db, "others", 100) == []
        return [[push.body for push in taken] for taken in (first, second, third)]

    taken = asyncio.run(in_database(stored[1], run))
    assert taken == [[b"0", b"1"], [b"2", b"3"], [b"2", b"3", b"4"]]


def test_large_deliveries_are_read_in_small_batches(stored: tuple[Db, str]) -> None:
    async def run(db: Database) -> int:
        feed = websub.Feed("feeds u", "feeds", "u", (), "u", {"token": "t"})
        for n in range(5):
            await pushes.store(db, feed, "", bytes([n]) * 14_000_000, datetime.now(UTC), 10**9)
        return len(await pushes.oldest_deliveries(db, "feeds", 100))

    assert asyncio.run(in_database(stored[1], run)) == 3


def test_subscription_being_ended_is_not_confirmed(stored: tuple[Db, str]) -> None:
    db, uri = stored
    now = datetime(2026, 1, 1, tzinfo=UTC)
    put(db, push={"token": "t", "topic": FEED, "state": "active", "callback": CALLBACK})

    async def run(adb: Database) -> list[bool]:
        await websub.start_unsubscribe(adb, CALLBACK)
        return [
            await websub.confirm(adb, "t", FEED, now, DAY, HOUR),
            await websub.confirm_unsubscribe(adb, "t", FEED, now),
        ]

    assert asyncio.run(in_database(uri, run)) == [False, True]
    assert push_of(db)["state"] == "ended"


def test_require_proof_resets_delivered_at(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, push={"token": "t", "state": "active", "delivered_at": datetime.now(UTC)})
    asyncio.run(in_database(uri, lambda db: websub.require_proof(db, [f"feeds {FEED}"])))
    assert push_of(db)["delivered_at"] is None


def test_concurrently_requested_feed_is_not_requested_again(stored: tuple[Db, str]) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)

    async def run(db: Database) -> list[bool]:
        new = websub.HubRequest("http://hub", FEED, CALLBACK, "token", "secret")
        row = await db.feeds.find_one({"url": FEED})
        assert row is not None
        feed = websub.Feed.of(row)
        times = (first, first, first + HOUR)
        return [await websub.record_request(db, feed, new, now, now + DAY) for now in times]

    db, uri = stored
    put(db, "http://hub")
    assert asyncio.run(in_database(uri, run)) == [True, True, False]
    assert push_of(db)["requested_at"] == first


def test_expired_subscription_can_be_requested_again(stored: tuple[Db, str]) -> None:
    now = datetime(2026, 1, 10, tzinfo=UTC)

    async def run(db: Database) -> bool:
        await websub.expire_leases(db, now)
        assert push_of(stored[0])["state"] == "ended"
        row = await db.feeds.find_one({"url": FEED})
        assert row is not None
        again = websub.HubRequest("http://hub", FEED, CALLBACK, "t", "secret")
        assert await websub.record_request(db, websub.Feed.of(row), again, now, now + DAY)
        # The next check comes before the hub confirms.
        await websub.expire_leases(db, now + HOUR)
        return await websub.confirm(db, "t", FEED, now + HOUR, DAY, HOUR)

    db, uri = stored
    push = {
        "token": "t", "secret": "secret", "hub": "http://hub", "topic": FEED, "callback": CALLBACK,
        "state": "active", "requested_at": now - 10 * DAY, "leased_at": now - 10 * DAY,
        "lease_until": now - DAY,
    }  # fmt: skip
    put(db, "http://hub", push=push)
    assert asyncio.run(in_database(uri, run))
    assert push_of(db)["state"] == "active"


async def in_database(uri: str, work: Callable[[Database], Awaitable[Any]]) -> Any:
    """Run `work` on the prepared database and return its result."""
    async with opened(Config.load(mongo_uri=uri)) as db:
        return await work(db)
