"""Marked events become messages once, and each channel gets its messages in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from crawler.config import Config
from crawler.notify.deliverer import Delivered, Deliverer
from crawler.notify.expansion import expand
from crawler.storage import outbox
from crawler.storage.client import Database
from crawler.storage.leases import Lease
from crawler.storage.outages import MongoRetry
from crawler.storage.store import opened
from tests.integration.harness import Db
from tests.integration.notify.outlets import NOW, PAGE, Outlet, expand_all, rule_set, visit

pytestmark = pytest.mark.mongo
LATER = NOW + timedelta(hours=1)


def in_database(uri: str, work: Callable[[Database], Awaitable[Any]]) -> Any:
    """Return the result of `work` on the test's database."""

    async def run() -> Any:
        async with opened(Config.load(mongo_uri=uri)) as db:
            return await work(db)

    return asyncio.run(run())


async def deliver(db: Database, *outlets: Outlet, after: float = 0) -> list[Delivered]:
    """Deliver what is due `after` seconds later."""
    config = Config.load(mongo_uri="mongodb://unused")
    now = LATER + timedelta(seconds=after)
    return await Deliverer(db, config, MongoRetry(0), lambda: now).deliver(outlets)


def test_an_event_becomes_one_message_for_each_channel(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(450)])
    assert in_database(uri, lambda db: expand_all(db, rule_set("mail", "phone"))) == 900
    assert database.visits.count_documents({"notify": True}) == 0
    assert database.visits.count_documents({}) == 450
    assert database.outbox.count_documents({"channel": "mail", "state": "waiting"}) == 450


def test_a_crash_before_the_marks_are_removed_repeats_no_message(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    assert in_database(uri, lambda db: expand_all(db, rule_set("phone"))) == 1
    database.visits.update_many({}, {"$set": {"notify": True}})
    assert in_database(uri, lambda db: expand_all(db, rule_set("phone"))) == 0
    assert database.outbox.count_documents({}) == 1


def test_several_processes_expand_concurrently(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(100)])

    async def race(db: Database) -> int:
        done = await asyncio.gather(*(expand(db, rule_set("phone"), NOW) for _ in range(5)))
        return sum(each.messages for each in done)

    assert in_database(uri, race) == 100
    assert database.outbox.count_documents({}) == 100


def test_conditions_see_the_page_before_and_after(stored: tuple[Db, str]) -> None:
    database, uri = stored
    for page, price in ((1, 9.0), (2, 9.9)):
        for content_hash, amount, hours in (("a", 10.0, -2), ("b", price, 0)):
            at = NOW + timedelta(hours=hours)
            content = {"title": f"Page {page}", "price": {"amount": amount, "currency": "€"}}
            key = f"shop {PAGE}{page} {content_hash}"
            database.versions.insert_one(
                {"_id": key, "spider": "shop", "target": f"{PAGE}{page}", "at": at,
                 "content_hash": content_hash, "content": content}
            )  # fmt: skip
        old = visit(page, -120, content_hash="a")
        del old["notify"]
        database.visits.insert_many([old, visit(page, 0, content_hash="b")])
    rules = rule_set("phone", when=["price falls by 5 %"])
    assert in_database(uri, lambda db: expand_all(db, rules)) == 1
    message = database.outbox.find_one({})
    assert message is not None
    assert (message["target"], message["data"]["title"]) == (f"{PAGE}1", "Page 1")
    assert message["data"]["before"]["price"]["amount"] == 10.0
    assert message["data"]["after"]["price"]["amount"] == 9.0


def test_an_alarm_is_an_event(stored: tuple[Db, str]) -> None:
    database, uri = stored
    alarm = {"_id": "shop  silent", "spider": "shop", "target": "", "event": "silent", "at": NOW,
             "since": NOW, "expected_at": NOW, "chance": 0.01, "text": "no change for 9 days",
             "notify": True}  # fmt: skip
    database.alarms.insert_one(alarm)  # type: ignore[arg-type]
    assert in_database(uri, lambda db: expand_all(db, rule_set("phone", events="silent"))) == 1
    message = database.outbox.find_one({})
    assert message is not None
    assert message["data"]["text"] == "no change for 9 days"
    assert database.alarms.count_documents({"notify": True}) == 0


def test_a_refused_message_delays_later_ones_of_its_target_only(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, minute) for minute in range(3) for page in (1, 2)])
    phone = Outlet("phone", pauses=(60.0,) * 9, refused_targets=frozenset({f"{PAGE}1"}))

    async def run(db: Database) -> None:
        await expand_all(db, rule_set("phone"))
        await deliver(db, phone)
        assert phone.order(f"{PAGE}1") == []
        phone.refused_targets = frozenset()
        await deliver(db, phone, after=30)
        assert phone.order(f"{PAGE}1") == []
        await deliver(db, phone, after=61)

    in_database(uri, run)
    in_order = [NOW + timedelta(minutes=minute) for minute in range(3)]
    assert phone.order(f"{PAGE}1") == phone.order(f"{PAGE}2") == in_order
    assert set(phone.ids.values()) == {1}


def test_a_broken_channel_holds_up_no_other_and_is_tried_again(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(50)])
    broken, works = Outlet("broken", refusals=10**6, pauses=(60.0, 60.0)), Outlet("works")

    async def run(db: Database) -> list[list[Delivered]]:
        await expand_all(db, rule_set("broken", "works"))
        return [await deliver(db, broken, works, after=each) for each in (0, 61, 122, 183)]

    first, *_ = in_database(uri, run)
    assert [(each.delivered, each.is_paused) for each in first] == [(0, True), (50, False)]
    dead = in_database(uri, outbox.dead_letters)
    assert {letter["reason"] for letter in dead} == {"status 503"}
    assert {letter["attempts"] for letter in dead} == {3}
    broken.refusals = 0

    async def retry(db: Database) -> None:
        assert await outbox.retry(db, LATER, channel="broken") == len(dead)
        await deliver(db, broken, after=300)

    in_database(uri, retry)
    assert len(broken.ids) == 50
    assert in_database(uri, outbox.dead_letters) == []
    assert [state["waiting"] for state in in_database(uri, outbox.channel_states)] == [0, 0]


def test_one_process_at_a_time_delivers_a_channel(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    phone = Outlet("phone")

    async def run(db: Database) -> list[bool]:
        await expand_all(db, rule_set("phone"))
        other = Lease(db, f"{outbox.LEASE}phone", 30, MongoRetry(0))
        await other.take("busy")
        busy = [(await deliver(db, phone))[0].is_busy]
        await other.release()
        return [*busy, (await deliver(db, phone))[0].is_busy]

    assert in_database(uri, run) == [True, False]
    assert len(phone.accepted) == 1


def test_a_result_that_comes_late_changes_nothing(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))

    async def run(db: Database) -> None:
        await expand_all(db, rule_set("phone"))
        (late,) = await outbox.due(db, "phone", LATER)
        await deliver(db, Outlet("phone"))
        await outbox.record_failure(db, late, "timed out", None, LATER)

    in_database(uri, run)
    assert [row["state"] for row in database.outbox.find()] == ["delivered"]


def test_the_oldest_messages_beyond_the_limit_become_dead_letters(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, uri = stored
    monkeypatch.setattr(outbox, "MAX_WAITING", 10)
    database.visits.insert_many([visit(page, page) for page in range(15)])
    in_database(uri, lambda db: expand_all(db, rule_set("phone")))
    dead = in_database(uri, outbox.dead_letters)
    assert {letter["target"] for letter in dead} == {f"{PAGE}{page}" for page in range(5)}
    assert all("waiting for the channel" in letter["reason"] for letter in dead)


def test_old_messages_are_deleted(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(1, 0), visit(2, 0)])
    phone = Outlet("phone", pauses=(), refused_targets=frozenset({f"{PAGE}2"}))

    async def run(db: Database) -> list[int]:
        await expand_all(db, rule_set("phone"))
        await deliver(db, phone)
        times = (outbox.KEPT / 2, outbox.KEPT * 2, outbox.DEAD_KEPT * 2)
        return [await outbox.drop_old(db, LATER + time) for time in times]

    assert in_database(uri, run) == [0, 1, 1]
