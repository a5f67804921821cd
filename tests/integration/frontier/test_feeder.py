"""The stream of due targets, read from a real database while visits are stored."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from scrapy import Spider
from scrapy.settings import BaseSettings

from crawler.config import Config
from crawler.frontier import frontiers
from crawler.frontier.frontiers import LocalFrontier, Settled, SharedFrontier
from crawler.frontier.leases import Worker
from crawler.frontier.lifecycle import Counts
from crawler.frontier.pushed_urls import PushedUrls
from crawler.frontier.redis_queue import LeasedQueue
from crawler.frontier.run import Run
from crawler.frontier.run_limits import HostLimits
from crawler.frontier.run_state import FailureLog, RunState
from crawler.items import Kind, Target
from crawler.storage import due
from crawler.storage.due import DuePosition
from crawler.storage.in_flight import InFlight
from crawler.storage.targets import new_document
from tests.integration.harness import Db, Row
from tests.integration.shared_run import LEASE_MS, SharedRun, opened_run

NOW = datetime(2026, 1, 5, tzinfo=UTC)
TARGETS = 1000
PATIENCE_SECONDS = 10


class Unbounded:
    """An allowance without caps that is always open."""

    async def room(self, in_flight: int) -> None:
        """Apply no cap."""

    def is_open(self) -> bool:
        return True

    async def some(self, most: int, in_flight: int) -> int:
        return most

    def give_back(self, count: int) -> None:
        """Count nothing."""


class FakeRun:
    """The part of a run that the feeder uses; a visit is stored after a short delay."""

    spider = "x"
    started = NOW
    may_end_early = is_timed = False
    limits = HostLimits()
    wrapper = SimpleNamespace(cells={})
    crawler = SimpleNamespace(settings=BaseSettings())

    def __init__(self, db: AsyncDatabase[Row], chance: random.Random) -> None:
        self.db, self.chance = db, chance
        self.config = Config.load(in_flight=50)
        self.in_flight = InFlight()
        self.allowance = Unbounded()
        self.state = RunState(FailureLog("x"), due_at_start=TARGETS)
        self.handed_out: Counter[str] = Counter()
        self.patience = self

    async def read(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    def closed_hosts(self) -> list[str]:
        return []

    async def visit(self, target: Target) -> None:
        self.handed_out[target.url] += 1
        await asyncio.sleep(self.chance.random() / 200)
        later = {"$set": {"next_visit": NOW + timedelta(days=1)}}
        await self.db.targets.update_one({"_id": target.key}, later)
        self.in_flight.release(target.key, finds=False)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as visits:
            async for target in LocalFrontier(cast(Run, self), dict).due(None):
                visits.create_task(self.visit(target))


@pytest.mark.parametrize("seed", range(3))
def test_each_target_is_handed_out_once(stored: tuple[Db, str], seed: int) -> None:
    db, uri = stored
    links = [f"http://a.test/{n}" for n in range(TARGETS)]
    db.targets.insert_many([new_document("x", url, Kind.ITEM, NOW, NOW) for url in links])
    handed_out = asyncio.run(_hand_out(uri, random.Random(seed)))
    assert {url for url, n in handed_out.items() if n > 1} == set()
    assert set(handed_out) == set(links)


async def _hand_out(uri: str, chance: random.Random) -> Counter[str]:
    async with AsyncMongoClient[Row](uri, tz_aware=True) as client:
        run = FakeRun(client.get_default_database(), chance)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await run.run()
        except TimeoutError:
            pytest.fail(f"the stream has stalled, {len(run.in_flight)} in flight")
        return run.handed_out


def test_target_visited_before_it_is_queued_again_does_not_count_for_the_limit(
    stored: tuple[Db, str], redis: str
) -> None:
    db, uri = stored
    times = [NOW - timedelta(days=n) for n in range(4)]
    documents = [
        new_document("x", f"http://x.test/{n}", Kind.ITEM, at, NOW) for n, at in enumerate(times)
    ]
    db.targets.insert_many(documents)
    with opened_run(redis) as shared:
        visited, counts = shared.ask(_shared_visits(shared, uri, 2))
    # The most overdue target was visited between the query and the message.
    assert visited == ["http://x.test/2", "http://x.test/1"]
    assert counts == {"visits": 2}


async def _shared_visits(shared: SharedRun, uri: str, limit: int) -> tuple[list[str], Counts]:
    """Return the URLs that a worker visits with this limit, and the counts of the run."""
    queue = LeasedQueue(shared.steady, Spider("x"), shared.key, "ann", LEASE_MS)
    feed, work, later = queue.feed, queue.work, {"$set": {"next_visit": NOW + timedelta(days=1)}}
    async with AsyncMongoClient[Row](uri, tz_aware=True) as client:
        db = client.get_default_database()

        async def feed_late(max_new: int, entries: Iterable[tuple[str, str]]) -> Any:
            if entries := list(entries):
                await db.targets.update_one({"_id": "x http://x.test/3"}, later)
            return await feed(max_new, entries)

        async def work_slowly(done: Sequence[tuple[str, Counts]], want: int) -> Any:
            # The feeder sees a spent limit before the worker's report arrives.
            await asyncio.sleep(0.5 if done else 0)
            return await work(done, want)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frontiers, "MAX_WAIT_SECONDS", 0.1)
            patch.setattr(queue, "feed", feed_late)
            patch.setattr(queue, "work", work_slowly)
            run = FakeRun(db, random.Random(1))
            frontier = SharedFrontier(cast(Run, run), dict)
            frontier._queue = queue
            frontier._pushed = PushedUrls(cast(Run, run), shared.steady)
            frontier._worker = worker = Worker(
                queue, shared.steady, LEASE_MS / 1000, 9, 3, dict, pytest.fail
            )
            await worker.join()
            await queue.open("run", 0)
            visited = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for target in frontier.due(limit):
                    visited.append(target.url)
                    await db.targets.update_one({"_id": target.key}, later)
                    frontier.settle(target, Settled.STORED, {"visits": 1})
            await worker.leave(patient=True)
            counts, *_ = await queue.sums()
            return visited, counts


def test_due_keys_are_read_in_parts_and_in_order(stored: tuple[Db, str]) -> None:
    db, uri = stored
    times = [NOW - timedelta(days=n % 3) for n in range(10)]
    documents = [
        new_document("x", f"http://a.test/{n}", Kind.ITEM, at, NOW) for n, at in enumerate(times)
    ]
    db.targets.insert_many([*documents, new_document("y", "http://a.test/", Kind.ITEM, NOW, NOW)])
    expected = sorted(documents, key=lambda row: (row["next_visit"], row["url"]))
    assert asyncio.run(_read_in_parts(uri, 4)) == [row["_id"] for row in expected]


@pytest.mark.parametrize(("limit", "is_first"), [(4, True), (3, False)])
def test_list_pages_come_first_if_no_other_target_is_due(
    stored: tuple[Db, str], limit: int, is_first: bool
) -> None:
    db, uri = stored
    kinds = {"a": Kind.ITEM, "b": Kind.ITEM, "list": Kind.LIST}
    db.targets.insert_many(
        [new_document("x", f"http://x.test/{name}", kind, NOW, NOW) for name, kind in kinds.items()]
    )
    expected = ["list", "a", "b"] if is_first else ["a", "b", "list"]
    assert asyncio.run(_read_both_ways(uri, limit)) == (expected, expected)


async def _read_both_ways(uri: str, limit: int) -> tuple[list[str], list[str]]:
    """Return the last parts of the URLs, in the order for one process and that for workers."""
    async with AsyncMongoClient[Row](uri, tz_aware=True) as client:
        db = client.get_default_database()
        read = [target.url for target in await due.most_overdue(db, "x", NOW, limit)]
        keys, _ = await due.ordered_keys(db, "x", NOW, limit)
        return [url.rpartition("/")[2] for url in read], [key.rpartition("/")[2] for key in keys]


async def _read_in_parts(uri: str, size: int) -> list[str]:
    async with AsyncMongoClient[Row](uri, tz_aware=True) as client:
        db, keys = client.get_default_database(), dict[str, None]()
        position: DuePosition | None = None
        while True:
            part, position = await due.ordered_keys(db, "x", NOW, size, [], position)
            keys |= dict.fromkeys(part)
            if position is None:
                return list(keys)
