"""Plans are activated atomically, survive killed processes, and keep concurrent visits."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase

from crawler.dedup.schemes import scheme_of
from crawler.errors import StorageError
from crawler.extract.list_wrappers import load_any
from crawler.items import Fetched, Kind, Outcome, Visit
from crawler.storage import plans, pruning
from crawler.storage.client import Database
from crawler.storage.dedup.signatures import Registry
from crawler.storage.schema import prepare
from crawler.storage.targets import from_document, new_document, updates_of
from tests.integration.forked import Process, python
from tests.integration.harness import Db, Freshet, Pages, Row
from tests.integration.replanning import (
    LONGEST,
    READ_AT,
    SOON,
    SPIDER,
    document,
    key,
    part_of,
    plans_of,
)

LATER = READ_AT + timedelta(days=3)
MANY = 20_000
MINUTE = timedelta(minutes=1)


def run(uri: str, call: Callable[[Database], Awaitable[Any]]) -> Any:
    """Run a coroutine on the database and return its result."""

    async def connect_and_call() -> Any:
        client: AsyncMongoClient[Row]
        async with AsyncMongoClient(uri, tz_aware=True) as client:
            return await call(client.get_default_database())

    return asyncio.run(connect_and_call())


async def forget(db: Database, *, delete: bool) -> dict[str, int]:
    registry = Registry.of(db, scheme_of("characters", 0.7))
    return await pruning.forget_spider(db, registry, SPIDER, LATER, delete=delete)


def put_targets(db: Db, uri: str, n: int, **state: object) -> None:
    """Insert targets that follow the plan "old" into a prepared database."""
    run(uri, prepare)
    usual = {
        "visited_at": READ_AT - timedelta(days=1),
        "next_visit": LATER,
        "requested": 4,
        "refreshed": 4,
        "plan": part_of(3) | {"id": "old", "note": "only the old plan has one"},
    }
    rows = []
    for i in range(n):
        url = key(i).partition(" ")[2]
        row = new_document(SPIDER, url, Kind.ITEM, LATER, READ_AT)
        rows.append(row | usual | state)
    db.targets.insert_many(rows)
    db.plans.insert_one(
        {"_id": "old", "at": READ_AT - timedelta(days=7), "spiders": [SPIDER], "state": "active"}
    )


def updated_plans(n: int) -> Iterator[list[plans.TargetPlan]]:
    yield plans_of(range(n))


def active_schedules(db: Db) -> Counter[tuple[str, datetime]]:
    """Count targets by plan and next visit."""
    planned = db.targets.find({"plan": {"$exists": True}})
    return Counter((row["plan"]["id"], row["next_visit"]) for row in planned)


def staged(db: Db) -> list[str]:
    return [name for name in db.list_collection_names() if name.startswith("staged")]


@contextmanager
def replanning(uri: str, targets: int, pause_seconds: float) -> Iterator[Process]:
    """Run a replan in a subprocess."""
    args = [uri, str(targets), str(pause_seconds)]
    process = python("tests.integration.replanning", args, os.environ)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.002)


def test_latest_plan_is_the_activated_one(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 5000)

    count = run(uri, lambda db: plans.activate(db, document(), updated_plans(3000), LONGEST))

    assert count == 3000
    assert active_schedules(db) == {("new", SOON): 3000, ("old", LATER): 2000}
    assert db.targets.find_one({"_id": key(7)})["plan"] == part_of(7) | {"id": "new"}
    latest = run(uri, lambda db: plans.latest(db, SPIDER, LATER))
    assert (latest["_id"], latest["state"], latest["updated"]) == ("new", "active", 3000)
    assert run(uri, lambda db: plans.latest(db, "nosuch", LATER)) is None
    assert staged(db) == []


def test_plan_from_the_future_is_ignored(stored: tuple[Db, str]) -> None:
    """Ignore a plan that was made while the clock was wrong."""
    db, uri = stored
    put_targets(db, uri, 3)
    run(uri, lambda db: plans.activate(db, document(), updated_plans(3), LONGEST))
    before = READ_AT - MINUTE
    assert run(uri, lambda db: plans.latest(db, SPIDER, before))["_id"] == "old"
    assert run(uri, lambda db: plans.latest(db, SPIDER, READ_AT))["_id"] == "new"


def test_plan_without_changes_is_stored(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 3)
    assert run(uri, lambda db: plans.activate(db, document(), [], LONGEST)) == 0
    assert run(uri, lambda db: plans.latest(db, SPIDER, LATER))["_id"] == "new"
    assert active_schedules(db) == {("old", LATER): 3}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, SOON),
        ({"next_visit": READ_AT - MINUTE}, SOON),
        ({"visited_at": READ_AT + MINUTE}, LATER),
        ({"visited_at": READ_AT + MINUTE, "next_visit": READ_AT + MINUTE}, READ_AT + MINUTE),
        ({"visited_at": None, "next_visit": READ_AT - MINUTE}, READ_AT - MINUTE),
        ({"consecutive_errors": 2}, LATER),
        ({"consecutive_gone": 1}, LATER),
        ({"hinted": True, "next_visit": READ_AT - MINUTE}, READ_AT - MINUTE),
    ],
    ids=["at rest", "due", "visited since", "visited and due", "new", "failing", "gone", "hinted"],
)
def test_newer_next_visit_is_kept(
    stored: tuple[Db, str], state: dict[str, object], expected: datetime
) -> None:
    db, uri = stored
    put_targets(db, uri, 3, **state)
    run(uri, lambda db: plans.activate(db, document(), updated_plans(3), LONGEST))
    assert active_schedules(db) == {("new", expected): 3}
    assert all("note" not in row["plan"] for row in db.targets.find())


def test_next_visit_is_within_the_longest_interval(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 3)
    run(uri, lambda db: plans.activate(db, document(), updated_plans(3), timedelta(hours=5)))
    assert active_schedules(db) == {("new", READ_AT + timedelta(hours=5)): 3}


def test_plan_does_not_recreate_removed_targets(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 3)
    run(uri, lambda db: plans.activate(db, document(), updated_plans(5), LONGEST))
    assert db.targets.count_documents({}) == 3


def test_kill_during_staging_keeps_the_old_plan(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 3000)
    with replanning(uri, 3000, pause_seconds=0.2) as process:
        wait_until(lambda: staged(db) and db.staged_new.count_documents({}) >= 2)
        process.kill()
        process.wait()

    assert active_schedules(db) == {("old", LATER): 3000}
    assert run(uri, lambda db: plans.finish(db, READ_AT)) == 0
    assert run(uri, lambda db: plans.latest(db, SPIDER, LATER))["_id"] == "old"

    assert run(uri, lambda db: plans.recover(db, READ_AT, [SPIDER])) == 1
    assert active_schedules(db) == {("old", LATER): 3000}
    assert db.plans.find_one({"_id": "new"})["state"] == "discarded"
    assert run(uri, lambda db: plans.latest(db, SPIDER, LATER))["_id"] == "old"
    assert staged(db) == []


@pytest.mark.soak
def test_plan_is_finished_after_kill_during_activation(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, MANY)
    kill_while_activating(db, uri)
    visited = READ_AT + timedelta(hours=5)
    db.targets.update_one({"_id": key(MANY - 1)}, {"$set": {"visited_at": visited}})

    assert run(uri, lambda db: plans.latest(db, SPIDER, LATER))["_id"] == "new"
    assert run(uri, lambda db: plans.finish(db, visited, ["another"])) == 0
    assert run(uri, lambda db: plans.finish(db, visited, [SPIDER])) == 1
    assert active_schedules(db) == {("new", SOON): MANY - 1, ("new", LATER): 1}
    assert db.plans.find_one({"_id": "new"})["state"] == "active"
    assert staged(db) == []
    assert run(uri, lambda db: plans.finish(db, visited)) == 0


def kill_while_activating(db: Db, uri: str) -> None:
    """Kill a replan after the first targets have its plan, but not the last ones."""
    with replanning(uri, MANY, pause_seconds=0) as process:
        wait_until(lambda: db.targets.count_documents({"plan.id": "new"}, limit=1))
        process.kill()
        process.wait()
    assert set(active_schedules(db)) == {("new", SOON), ("old", LATER)}


@pytest.mark.soak
def test_next_crawl_finishes_an_interrupted_activation(
    stored: tuple[Db, str], freshet: Freshet, pages: Pages
) -> None:
    db, uri = stored
    pages.list("list.html", [])
    wrapper = freshet.wrapper(
        SPIDER, start_urls=[f"{pages.url}/list.html"], item_pages="/item", fields={"title": "h1"},
        allowed_domains=["127.0.0.1", "shop.example"],
    )  # fmt: skip
    # Targets read with another site definition would all be due.
    put_targets(db, uri, MANY, selector_digest=load_any(wrapper).selector_digest(Kind.ITEM))
    kill_while_activating(db, uri)
    offset_hours = (READ_AT - datetime.now(READ_AT.tzinfo)) / timedelta(hours=1)
    freshet.crawl(wrapper, hours=offset_hours)
    assert active_schedules(db)[("new", SOON)] == MANY
    assert db.plans.find_one({"_id": "new"})["state"] == "active"


@pytest.mark.soak
def test_two_processes_can_finish_a_plan_concurrently(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, MANY)
    kill_while_activating(db, uri)

    async def finish_twice(db: Database) -> None:
        await asyncio.gather(plans.finish(db, READ_AT), plans.finish(db, READ_AT))

    run(uri, finish_twice)
    assert active_schedules(db) == {("new", SOON): MANY}
    assert db.plans.find_one({"_id": "new"})["state"] == "active"
    assert staged(db) == []


def test_staged_rows_left_by_a_crash_are_deleted(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 3)
    db.staged_old.insert_one({"_id": key(0)})
    db.staged_forgotten.insert_one({"_id": key(0)})
    db.plans.insert_one({"_id": "mine", "at": READ_AT, "spiders": ["blog"], "state": "staging"})
    db.staged_mine.insert_one({"_id": "blog http://blog.example/"})
    run(uri, lambda db: plans.activate(db, document(), updated_plans(3), LONGEST))
    assert staged(db) == ["staged_mine"]
    assert active_schedules(db) == {("new", SOON): 3}


def test_recovery_keeps_what_a_replan_of_other_sites_begins_to_stage(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, uri = stored
    list_names = AsyncDatabase.list_collection_names

    async def begin_and_list(adb: Database, **options: Any) -> list[str]:
        db.plans.insert_one({"_id": "mine", "at": READ_AT, "spiders": ["blog"], "state": "staging"})
        db.staged_mine.insert_one({"_id": "blog http://blog.example/"})
        return await list_names(adb, **options)

    monkeypatch.setattr(AsyncDatabase, "list_collection_names", begin_and_list)
    run(uri, lambda adb: plans.recover(adb, READ_AT, [SPIDER]))
    assert staged(db) == ["staged_mine"]


@pytest.mark.soak
def test_replan_finishes_the_interrupted_one(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, MANY)
    kill_while_activating(db, uri)
    newer = document() | {"_id": "newer", "at": READ_AT + MINUTE}
    run(uri, lambda db: plans.activate(db, newer, updated_plans(10), LONGEST))
    assert active_schedules(db) == {("newer", SOON): 10, ("new", SOON): MANY - 10}
    assert {row["state"] for row in db.plans.find()} == {"active"}


def test_overtaken_replan_changes_nothing(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 10)

    async def activate_and_discard(adb: Database) -> None:
        def slow() -> Iterator[list[plans.TargetPlan]]:
            yield from updated_plans(10)
            db.plans.update_one({"_id": "new"}, {"$set": {"state": "discarded"}})

        with pytest.raises(StorageError, match="another replan"):
            await plans.activate(adb, document(), slow(), LONGEST)

    run(uri, activate_and_discard)
    assert active_schedules(db) == {("old", LATER): 10}
    assert staged(db) == []


def test_failed_plan_keeps_the_old_plan(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_targets(db, uri, 10)

    def broken() -> Iterator[list[plans.TargetPlan]]:
        yield from updated_plans(5)
        raise ValueError("no such policy")

    with pytest.raises(ValueError, match="no such policy"):
        run(uri, lambda db: plans.activate(db, document(), broken(), LONGEST))
    assert active_schedules(db) == {("old", LATER): 10}
    assert db.plans.find_one({"_id": "new"})["state"] == "discarded"
    assert staged(db) == []
    assert run(uri, lambda db: plans.latest(db, SPIDER, LATER))["_id"] == "old"


def test_forgetting_a_spider_removes_only_its_plans(
    stored: tuple[Db, str],
) -> None:
    db, uri = stored
    put_targets(db, uri, 1)
    db.plans.insert_one(
        {"_id": "both", "at": READ_AT, "spiders": [SPIDER, "blog"], "state": "active"}
    )
    counts = run(uri, lambda db: forget(db, delete=False))
    assert counts["plans"] == 1
    assert db.plans.count_documents({}) == 2
    run(uri, lambda db: forget(db, delete=True))
    (left,) = db.plans.find()
    assert (left["_id"], left["spiders"]) == ("both", ["blog"])
    assert db.targets.count_documents({}) == 0


def test_adaptive_visit_keeps_a_concurrently_activated_plan(
    stored: tuple[Db, str],
) -> None:
    db, uri = stored
    put_targets(db, uri, 2)
    db.targets.update_many({}, {"$set": {"plan.every_hours": 9.0, "plan.policy": "adaptive"}})
    before = [from_document(row) for row in db.targets.find().sort("_id")]
    run(uri, lambda db: plans.activate(db, document(), updated_plans(1), LONGEST))

    seen = [
        Visit(Fetched(target, SOON, "s"), Outcome.UNCHANGED, LATER, every_hours=4.0)
        for target in before
    ]
    db.targets.bulk_write(list(updates_of(seen)))

    first, second = db.targets.find().sort("_id")
    assert first["plan"] == part_of(0) | {"id": "new"}
    assert (second["plan"]["every_hours"], second["plan"]["visits_per_week"]) == (4, 42)


@pytest.mark.soak
def test_visits_during_activation_are_kept(stored: tuple[Db, str]) -> None:
    db, uri = stored
    due = READ_AT - MINUTE
    put_targets(db, uri, MANY, next_visit=due)

    async def visit_all(adb: Database) -> int:
        """Visit every seventh target as fast as the server allows."""
        for i in range(0, MANY, 7):
            at = READ_AT + timedelta(seconds=i + 1)
            state = {"visited_at": at, "next_visit": at + timedelta(days=9)}
            await adb.targets.update_one({"_id": key(i)}, {"$set": state})
        return -(-MANY // 7)

    async def both(adb: Database) -> tuple[int, int]:
        activation = plans.activate(adb, document(), updated_plans(MANY), LONGEST)
        return await asyncio.gather(activation, visit_all(adb))

    _, visited = run(uri, both)
    assert db.targets.count_documents({"plan.id": "new"}) == MANY
    assert db.targets.count_documents({"next_visit": SOON}) == MANY - visited
    assert db.targets.count_documents({"next_visit": {"$gt": SOON}}) == visited
