"""The requests that a run may still make, counted while it is running."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from crawler.extract.site_definition import Wrapper
from crawler.frontier.run_limits import Allowance
from crawler.storage import leases
from crawler.storage.client import Database, MongoRetry
from crawler.storage.leases import Lease
from crawler.utils.time import Clock
from tests.integration.harness import Db
from tests.integration.known_pages import on

WRAPPER = Wrapper(name="x", start_urls=["http://x.test/"], item_pages="/item")


async def never() -> None:
    """Do nothing: the server never needs to be restarted."""


def test_visit_counted_twice_briefly_does_not_end_run(
    stored: tuple[Db, str],
) -> None:
    """Count a visit as stored and as in flight: a cap of two requests a day seems to be used up."""
    clock = Clock()

    async def story(db: Database) -> list[bool]:
        allowance = Allowance(db, MongoRetry(1, never), WRAPPER, clock)
        allowance.follow({"daily_cap": 2, "spiders": ["x"]})
        visit = {"spider": "x", "at": clock.now()}
        await db.visits.insert_one(visit, bypass_document_validation=True)
        return [await allowance.take(in_flight) for in_flight in (1, 1, 0, 1)]

    assert on(stored[1], story) == [False, False, True, False]


def test_extra_visits_add_no_cap_to_plan_without_caps(stored: tuple[Db, str]) -> None:
    async def story(db: Database) -> list[int | None]:
        allowance = Allowance(db, MongoRetry(1, never), WRAPPER, Clock())
        rooms = []
        for plan in ({}, {"daily_cap": 2}, {"hourly_cap": 2}):
            allowance.follow({"spiders": ["x"]} | plan, extra_per_day=48)
            rooms.append(await allowance.room(1))
        return rooms

    assert on(stored[1], story) == [None, 49, 3]


def test_spiders_of_one_plan_share_remaining_requests(stored: tuple[Db, str]) -> None:
    async def story(db: Database) -> list[int]:
        allowed = []
        for spiders in (["x"], ["x", "y"]):
            allowance = Allowance(db, MongoRetry(1, never), WRAPPER, Clock())
            allowance.follow({"daily_cap": 8, "spiders": spiders})
            # Another spider makes the other requests meanwhile.
            allowed.append(await allowance.some(2, 0))
            allowed.append(await allowance.take(8))
        return allowed

    assert on(stored[1], story) == [2, True, 2, False]


class SetClock(Clock):
    """A clock that shows the time to which a test sets it."""

    time = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


def test_visits_of_other_runs_are_counted_again_after_a_minute(stored: tuple[Db, str]) -> None:
    async def story(db: Database) -> list[bool]:
        SetClock.time = begin = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)
        allowance = Allowance(db, MongoRetry(1, never), WRAPPER, SetClock())
        allowance.follow({"daily_cap": 9, "spiders": ["x"]})
        taken = [await allowance.take(0)]
        others = [{"spider": "x", "at": begin} for _ in range(9)]
        await db.visits.insert_many(others, bypass_document_validation=True)
        for seconds in (59, 60):
            SetClock.time = begin + timedelta(seconds=seconds)
            taken.append(await allowance.take(1))
        return taken

    assert on(stored[1], story) == [True, True, False]


NAMES = ["a", "b", "c", "d", "e", "f"]


async def requests_of_a_run(db: Database, name: str, cap: int) -> int:
    """Make all requests that a cap allows, storing their visits late; return their number."""
    patience, clock = MongoRetry(1, never), Clock()
    lease = Lease(db, f"crawl {name}", 30.0, patience)
    await lease.take("busy")
    wrapper = WRAPPER.model_copy(update={"name": name})
    allowance = Allowance(db, patience, wrapper, clock, lease)
    allowance.follow({"daily_cap": cap, "spiders": NAMES})
    made = in_flight = 0
    while await allowance.take(in_flight):
        made, in_flight = made + 1, in_flight + 1
        await asyncio.sleep(random.uniform(0, 0.002))
        if random.random() < 0.3:
            visits = [{"spider": name, "at": clock.now()} for _ in range(in_flight)]
            await db.visits.insert_many(visits, bypass_document_validation=True)
            in_flight = 0
    visits = [{"spider": name, "at": clock.now()} for _ in range(in_flight)]
    if visits:
        await db.visits.insert_many(visits, bypass_document_validation=True)
    await lease.release()
    return made


@pytest.mark.parametrize("cap", [1, 5, 60, 200])
def test_concurrent_runs_of_one_plan_do_not_exceed_its_cap(
    stored: tuple[Db, str], cap: int
) -> None:
    async def story(db: Database) -> tuple[int, int]:
        together = await asyncio.gather(*(requests_of_a_run(db, name, cap) for name in NAMES))
        return sum(together), await requests_of_a_run(db, "a", cap)

    together, later = on(stored[1], story)
    # A run that starts later makes the requests that the others reserved without making them.
    assert together + later == cap
    assert cap < 60 or together > 0.8 * cap


def test_only_running_crawls_reserve_requests(stored: tuple[Db, str]) -> None:
    async def story(db: Database) -> list[int]:
        lease = Lease(db, "crawl a", 30.0, MongoRetry(1, never))
        counts = []
        await lease.take("busy")
        await lease.reserve(7)
        counts.append(await leases.reserved(db, ["a", "b"]))
        await lease.release()
        counts.append(await leases.reserved(db, ["a", "b"]))
        await Lease(db, "crawl a", 30.0, MongoRetry(1, never)).take("busy")
        return [*counts, await leases.reserved(db, ["a", "b"])]

    assert on(stored[1], story) == [7, 0, 0]
