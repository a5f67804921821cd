"""Marked events become messages once, and each channel gets its messages in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler.config import Config
from crawler.extract.notification_rules import rules_in
from crawler.notify.rounds import ChannelReport, Deliverer, Failure, deliver_due, preview
from crawler.notify.rules import RuleSet, confirm, expand
from crawler.storage import change_events, notification_rules, outbox
from crawler.storage.client import Database, Document, MongoRetry
from crawler.storage.leases import Lease
from crawler.storage.outbox import Bundle, Grouping
from crawler.storage.store import opened
from tests.integration.harness import Db, Freshet
from tests.integration.inside import run
from tests.integration.notify.outlets import NOW, PAGE, Outlet, expand_all, rule_set, visit

LATER = NOW + timedelta(hours=1)


def in_database(uri: str, work: Callable[[Database], Awaitable[Any]]) -> Any:
    """Return the result of `work` on the test's database."""

    async def run() -> Any:
        async with opened(Config.load(mongo_uri=uri)) as db:
            return await work(db)

    return asyncio.run(run())


async def deliver(db: Database, *outlets: Outlet, after: float = 0) -> list[ChannelReport]:
    """Deliver the messages that are due `after` seconds later."""
    config = Config.load(mongo_uri="mongodb://unused")
    now = LATER + timedelta(seconds=after)
    deliverer = Deliverer(db, config, MongoRetry(0), lambda: now)
    deliverer.begin(outlets)
    results: list[ChannelReport] = []
    while deliverer.is_running:
        results += await deliverer.ended(None)
    order = [outlet.name for outlet in outlets]
    return sorted(results, key=lambda result: order.index(result["channel"]))


def test_event_becomes_one_message_per_channel(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(450)])
    assert in_database(uri, lambda db: expand_all(db, rule_set("mail", "phone"))) == 900
    assert database.visits.count_documents({"notify": True}) == 0
    assert database.visits.count_documents({}) == 450
    assert database.outbox.count_documents({"channel": "mail", "state": "waiting"}) == 450


def test_crash_before_unmarking_repeats_no_message(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    assert in_database(uri, lambda db: expand_all(db, rule_set("phone"))) == 1
    database.visits.update_many({}, {"$set": {"notify": True}})
    assert in_database(uri, lambda db: expand_all(db, rule_set("phone"))) == 0
    assert database.outbox.count_documents({}) == 1


def test_receivers_that_have_a_message_are_stored_for_the_next_attempt(
    stored: tuple[Db, str],
) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    seen: list[tuple[str, ...]] = []

    class Team(Outlet):
        async def send(self, bundle: Bundle) -> Failure | None:
            seen.append(bundle.accepted)
            return Failure("two failed", accepted=("one",)) if len(seen) == 1 else None

    async def work(db: Database) -> None:
        await expand_all(db, rule_set("phone"))
        team = Team("phone", pauses=(1.0,))
        for seconds in (0, 2):
            await deliver(db, team, after=seconds)

    in_database(uri, work)
    assert seen == [(), ("one",)]
    (message,) = database.outbox.find()
    assert (message["state"], "accepted" in message) == ("delivered", False)


def test_receivers_that_have_a_retried_message_get_the_messages_after_it(
    stored: tuple[Db, str],
) -> None:
    database, uri = stored
    seen: list[tuple[int, tuple[str, ...]]] = []

    class Team(Outlet):
        async def send(self, bundle: Bundle) -> Failure | None:
            seen.append((bundle.size, bundle.accepted))
            return Failure("two failed", accepted=("one",)) if len(seen) == 1 else None

    async def work(db: Database) -> None:
        team = Team("phone", pauses=(), grouping=Grouping.DIGEST)
        await db.visits.insert_many([visit(1, 0), visit(2, 1)])
        await expand_all(db, rule_set("phone"))
        await deliver(db, team)
        assert await outbox.retry(db, LATER) == 2
        await db.visits.insert_one(visit(3, 2))
        await expand_all(db, rule_set("phone"))
        await deliver(db, team)

    in_database(uri, work)
    assert seen == [(2, ()), (2, ("one",)), (1, ())]
    assert database.outbox.count_documents({"state": "delivered"}) == 3


def test_several_processes_expand_concurrently(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(100)])

    async def race(db: Database) -> int:
        done = await asyncio.gather(*(expand(db, rule_set("phone"), NOW) for _ in range(5)))
        return sum(each.messages for each in done)

    assert in_database(uri, race) == 100
    assert database.outbox.count_documents({}) == 100


def test_conditions_compare_previous_and_new_content(stored: tuple[Db, str]) -> None:
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


def test_events_are_read_with_previous_and_new_content(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, uri = stored
    monkeypatch.setattr(change_events, "MAX_BYTES", 3000)
    rows = []
    for number in range(40):
        # Two sites with the same two URLs. Every seventh content is not stored, and every eleventh
        # exceeds MAX_BYTES.
        site, content_hash = f"site{number % 4 // 2}", f"{number:02}"
        row = visit(number % 2, number, spider=site, content_hash=content_hash)
        rows.append(row)
        if number % 7:
            content = {"text": f"{number}" + "x" * (5000 if number % 11 == 0 else number * 10)}
            key = f"{site} {row['target']} {content_hash}"
            database.versions.insert_one(
                {"_id": key, "spider": site, "target": row["target"], "at": row["at"],
                 "content_hash": content_hash, "content": content}
            )  # fmt: skip
    database.visits.insert_many(rows)
    # Newest first, as in a preview, with an alarm in the middle.
    events = [*rows[:20:-1], {"_id": "shop  silent", "spider": "shop", "target": ""}, *rows[20::-1]]

    async def read(db: Database) -> list[Any]:
        return [found async for found in change_events.with_contents(db, events)]

    def content_of(number: int) -> Document | None:
        row = rows[number] if number >= 0 else {"spider": "", "target": "", "content_hash": ""}
        key = f"{row['spider']} {row['target']} {row['content_hash']}"
        version = database.versions.find_one({"_id": key})
        return None if version is None else version["content"]

    found = in_database(uri, read)
    assert [row for row, _, _ in found] == events
    for row, before, after in found:
        number = rows.index(row) if "outcome" in row else None
        expected = (None, None) if number is None else (content_of(number - 4), content_of(number))
        assert (before, after) == expected


@pytest.mark.parametrize("events", [2, 100])
def test_preview_runs_few_commands(stored: tuple[Db, str], events: int) -> None:
    database, uri = stored
    database.visits.insert_many(
        [visit(page, page, event=True, news=True) for page in range(events)]
    )
    database.command("profile", 2)
    rules, config = rule_set("phone"), Config.load(mongo_uri=uri)
    shown = in_database(uri, lambda db: preview(db, config, rules, events, None, NOW))
    database.command("profile", 0)
    reads = {"ns": {"$nin": [f"{database.name}.system.profile", f"{database.name}.meta"]}}
    assert len(shown) == events
    # Events, alarms, categories, previous visits, content sizes, contents.
    assert database.system.profile.count_documents(reads | {"op": {"$ne": "getmore"}}) <= 6


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


def test_refused_message_delays_only_its_target(stored: tuple[Db, str]) -> None:
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


def test_broken_channel_delays_no_other_and_is_retried(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(50)])
    broken, works = Outlet("broken", refusals=10**6, pauses=(60.0, 60.0)), Outlet("works")

    async def run(db: Database) -> list[list[ChannelReport]]:
        await expand_all(db, rule_set("broken", "works"))
        return [await deliver(db, broken, works, after=each) for each in (0, 61, 122, 183)]

    first, *_ = in_database(uri, run)
    assert [(each["delivered"], each["unavailable"]) for each in first] == [(0, True), (50, False)]
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
    assert database.outbox.count_documents({"state": {"$ne": "delivered"}}) == 0


def test_no_message_is_sent_before_the_time_that_the_receiver_requests(
    stored: tuple[Db, str],
) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(30)])
    limited = Outlet("limited", refusals=1, pauses=(60.0,) * 9, retry_after=timedelta(hours=1))

    async def run(db: Database) -> list[tuple[int, bool, int]]:
        await expand_all(db, rule_set("limited"))
        done = []
        for seconds in (0, 61, 3599, 3601):
            (each,) = await deliver(db, limited, after=seconds)
            done.append((each["delivered"], each["unavailable"], len(limited.attempted)))
        return done

    # The first messages are sent concurrently.
    assert in_database(uri, run) == [(7, True, 8), (0, False, 8), (0, False, 8), (23, False, 31)]


def test_slow_channel_does_not_delay_other_channels(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(3)])
    slow, works = Outlet("slow", seconds=1.0), Outlet("works")

    async def run(db: Database) -> None:
        config = Config.load(mongo_uri="mongodb://unused")
        deliverer = Deliverer(db, config, MongoRetry(0), lambda: LATER)
        rules = rule_set("slow", "works")
        await expand_all(db, rules)
        deliverer.begin([slow, works])
        while len(works.accepted) < 3:
            await deliverer.ended(0.01)
        database.visits.insert_one(visit(9, 9))
        await expand_all(db, rules)
        deliverer.begin([slow, works])
        while len(works.accepted) < 4:
            await deliverer.ended(0.01)
            deliverer.begin([slow, works])
        assert slow.accepted == []
        await deliverer.stop()
        assert not deliverer.is_running

    in_database(uri, run)
    assert len(works.ids) == 4


def test_channel_state_counts_messages(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(3)])
    phone = Outlet("phone", pauses=(3600.0,) * 9, refused_targets=frozenset({f"{PAGE}1"}))

    async def run(db: Database) -> Any:
        await expand_all(db, rule_set("phone"))
        await deliver(db, phone)
        return await outbox.state_of(db, "phone")

    state = in_database(uri, run)
    assert (state["waiting"], state["retrying"], state["delivered"]) == (1, 1, 2)
    # The channel works: it has accepted other messages since.
    assert (state["broken"], state["reason"]) == (False, "status 400")
    assert state["last_delivered"] == LATER
    database.outbox.delete_many({"state": "delivered"})
    assert in_database(uri, lambda db: outbox.state_of(db, "phone"))["broken"] is True
    assert in_database(uri, lambda db: outbox.state_of(db, "none")) == outbox.empty_state("none")


def test_undefined_channel_keeps_a_bounded_outbox(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, uri = stored
    monkeypatch.setattr(outbox, "MAX_WAITING", 10)
    monkeypatch.setattr(outbox, "MAX_DEAD", 5)
    for begin in (0, 15, 30):
        database.visits.insert_many([visit(page, page) for page in range(begin, begin + 15)])
        in_database(uri, lambda db: expand_all(db, rule_set("phone")))
    kept = Counter(row["state"] for row in database.outbox.find())
    assert kept == {"waiting": 10, "dead": 5}
    targets = {row["target"] for row in database.outbox.find({"state": "dead"})}
    assert targets == {f"{PAGE}{page}" for page in range(30, 35)}


def test_delivered_message_drops_its_content(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))

    async def run(db: Database) -> None:
        await expand_all(db, rule_set("phone"))
        assert "data" in database.outbox.find_one({})
        await deliver(db, Outlet("phone"))

    in_database(uri, run)
    assert "data" not in database.outbox.find_one({})


def test_invalid_channel_does_not_block_others(stored: tuple[Db, str], tmp_path: Path) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    file = tmp_path / "notify.toml"
    file.write_text(
        '[channels.works]\napprise = "json://127.0.0.1:9"\n'
        '[channels.broken]\napprise = "slack://${NOT_SET}"\n'
        '[[rules]]\nname = "all"\nchannels = ["works", "broken"]\n',
        encoding="utf-8",
    )

    async def run(db: Database) -> list[str]:
        config = Config.load(mongo_uri="mongodb://unused", notify_file=file)
        _, problems = await deliver_due(db, config, MongoRetry(0), lambda: LATER)
        return problems

    (problem,) = in_database(uri, run)
    assert "channel 'broken': apprise.0: environment variable NOT_SET is not set" in problem
    found = {row["channel"]: row["attempts"] for row in database.outbox.find()}
    assert found == {"works": 1, "broken": 0}


def test_rules_file_overrides_web_app_rules(stored: tuple[Db, str], tmp_path: Path) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    file = tmp_path / "notify.toml"
    file.write_text('[[rules]]\nname = "a"\nchannels = "phone"\n', encoding="utf-8")

    async def run(db: Database) -> RuleSet:
        for name in ("a", "b"):
            (rule,) = rules_in([{"name": name, "channels": ["mail"]}], "a test")
            await notification_rules.add(db, rule, "anna", NOW)
        rules = await RuleSet.read(db, file)
        await expand_all(db, rules)
        return rules

    rules = in_database(uri, run)
    assert (list(rules.by_key), rules.stored) == (["a", "b"], {"b"})
    assert "rule 'a' of the web app is ignored" in rules.problems(["shop"])[0]
    sent = {(row["rule"], row["channel"]) for row in database.outbox.find()}
    assert sent == {("a", "phone"), ("b", "mail")}


def test_channel_is_delivered_by_one_process_at_a_time(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    phone = Outlet("phone")

    async def run(db: Database) -> list[bool]:
        await expand_all(db, rule_set("phone"))
        other = Lease(db, f"{outbox.LEASE}phone", 30, MongoRetry(0))
        await other.take("busy")
        busy = [(await deliver(db, phone))[0]["busy"]]
        await other.release()
        return [*busy, (await deliver(db, phone))[0]["busy"]]

    assert in_database(uri, run) == [True, False]
    assert len(phone.accepted) == 1


def test_late_result_is_ignored(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))

    async def run(db: Database) -> None:
        await expand_all(db, rule_set("phone"))
        (late,) = await outbox.due(db, "phone", LATER)
        await deliver(db, Outlet("phone"))
        await outbox.record_failure(db, late, "timed out", None, LATER)

    in_database(uri, run)
    assert [row["state"] for row in database.outbox.find()] == ["delivered"]


def test_oldest_messages_over_the_limit_are_dead_lettered(
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


def states(database: Db) -> list[str]:
    """Return the states of all messages, in the order of their events."""
    return [row["state"] for row in database.outbox.find().sort("at")]


def test_failed_digest_is_retried_unchanged(
    stored: tuple[Db, str],
) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(3)])
    mail = Outlet("mail", refusals=1, pauses=(60.0,) * 9, grouping=Grouping.DIGEST)
    rules = rule_set("mail", limits={"digest": "hour"})

    async def run(db: Database) -> None:
        await expand_all(db, rules)
        # An hourly digest is due at the end of the hour.
        assert await outbox.due(db, "mail", LATER - timedelta(minutes=1), Grouping.DIGEST) == []
        await deliver(db, mail)
        database.visits.insert_one(visit(9, 9))
        await expand_all(db, rules)
        await deliver(db, mail, after=30)
        assert len(mail.attempted) == 1
        await deliver(db, mail, after=61)

    in_database(uri, run)
    # The retried digest does not include the later event.
    assert [size for _, size in mail.bundles] == [3, 1]
    assert mail.attempted == [mail.bundles[0][0], *(key for key, _ in mail.bundles)]
    assert states(database) == ["delivered"] * 4


def test_digest_lists_some_messages_and_counts_the_rest(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, uri = stored
    monkeypatch.setattr(outbox, "MAX_READ", 2)
    monkeypatch.setattr(outbox, "MAX_DIGEST", 5)
    database.visits.insert_many([visit(page, page) for page in range(7)])
    mail = Outlet("mail", grouping=Grouping.DIGEST)

    async def run(db: Database) -> None:
        await expand_all(db, rule_set("mail"))
        await deliver(db, mail)

    in_database(uri, run)
    assert [size for _, size in mail.bundles] == [5, 2]
    assert len(mail.accepted) == 4
    assert states(database) == ["delivered"] * 7


def test_debounced_events_of_a_page_are_bundled(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(1, 0), visit(1, 1), visit(2, 2)])
    phone = Outlet("phone", grouping=Grouping.PAGE)
    rules = rule_set("phone", limits={"debounce_minutes": 60})

    async def run(db: Database) -> None:
        await expand_all(db, rules)
        await deliver(db, phone, after=-1)
        assert phone.attempted == []
        database.visits.insert_one(visit(1, 30))
        await expand(db, rules, NOW + timedelta(minutes=30))
        await deliver(db, phone)

    in_database(uri, run)
    assert sorted(size for _, size in phone.bundles) == [1, 3]
    assert phone.order(f"{PAGE}1") == [NOW + timedelta(minutes=each) for each in (0, 1, 30)]


def test_events_of_a_run_are_one_message_of_each_rule(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(60)])
    phone = Outlet("phone", grouping=Grouping.RULE, refusals=1, pauses=(3600.0,))
    rules = rule_set("phone", limits={"together": True})

    async def run(db: Database) -> None:
        await expand_all(db, rules)
        await deliver(db, phone)
        assert len(phone.attempted) == 1
        database.visits.insert_one(visit(1, 70))
        await expand_all(db, rules)
        # What came after the refused message waits for it.
        await deliver(db, phone, after=60)
        assert len(phone.attempted) == 1
        await deliver(db, phone, after=3700)

    in_database(uri, run)
    assert [size for _, size in phone.bundles] == [60, 1]
    assert phone.attempted[0] == phone.attempted[1], "the same id for every attempt"


def test_channel_limits_messages_per_hour(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_many([visit(page, page) for page in range(5)])
    phone = Outlet("phone", max_per_hour=2)

    async def run(db: Database) -> list[int]:
        await expand_all(db, rule_set("phone"))
        times = (0, 1800, 3601, 7203)
        return [(await deliver(db, phone, after=each))[0]["delivered"] for each in times]

    assert in_database(uri, run) == [2, 0, 2, 1]
    in_order = [f"{PAGE}{page}" for page in range(5)]
    assert [message["target"] for message in phone.accepted] == in_order


def test_quiet_hours_postpone_messages(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0))
    phone = Outlet("phone", opens_at=LATER + timedelta(hours=8))

    async def run(db: Database) -> None:
        await expand_all(db, rule_set("phone"))
        (quiet,) = await deliver(db, phone)
        assert (quiet["delivered"], quiet["closed_until"]) == (0, phone.opens_at)
        row = database.outbox.find_one({})
        assert row is not None
        assert (row["due"], row["attempts"]) == (phone.opens_at, 0)
        await deliver(db, phone, after=8 * 3600)

    in_database(uri, run)
    assert len(phone.accepted) == 1


@pytest.mark.parametrize(
    ("later", "state"),
    [
        ({"outcome": "unchanged", "content_hash": "b"}, "waiting"),
        ({"outcome": "changed", "content_hash": "c"}, "dropped"),
        ({"outcome": "gone", "content_hash": "b"}, "dropped"),
        ({"outcome": "error", "content_hash": "b"}, "unconfirmed"),
        (None, "unconfirmed"),
    ],
)
def test_next_visit_confirms_or_drops_a_message(
    stored: tuple[Db, str], later: dict[str, Any] | None, state: str
) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0, content_hash="b"))
    rules = rule_set("phone", limits={"confirm": True})
    target = {
        "_id": f"shop {PAGE}1", "spider": "shop", "url": f"{PAGE}1",
        "visited_at": NOW + timedelta(minutes=10 if later else 0),
        "next_visit": LATER,
    }  # fmt: skip
    database.targets.insert_one(target, bypass_document_validation=True)

    async def run(db: Database) -> None:
        await expand_all(db, rules)
        assert states(database) == ["unconfirmed"]
        if later is not None:
            row = visit(1, 10, **later)
            del row["notify"]
            database.visits.insert_one(row)
        await confirm(db, rules.channels, LATER)

    in_database(uri, run)
    assert states(database) == [state]


def test_message_is_sent_if_the_page_has_no_next_visit(stored: tuple[Db, str]) -> None:
    database, uri = stored
    database.visits.insert_one(visit(1, 0, content_hash="b"))
    rules = rule_set("phone", limits={"confirm": True})

    async def run(db: Database) -> None:
        await expand_all(db, rules)
        await confirm(db, rules.channels, LATER)

    in_database(uri, run)
    assert states(database) == ["waiting"]


def message(number: int, spider: str, state: str) -> dict[str, Any]:
    """Return a message about a page of a spider."""
    began = {"delivered": "delivered_at", "dead": "dead_at", "dropped": "dropped_at"}
    times = {began[state]: NOW} if state in began else {}
    return {
        "_id": f"msg_{spider}{number}{state}", "channel": "team", "rule": f"{spider}/all",
        "event": "changed", "spider": spider, "target": f"https://{spider}.example/", "at": NOW,
        "due": NOW, "state": state, "attempts": int(state != "waiting"),
    } | times  # fmt: skip


@pytest.mark.parametrize("name", ["shop", "https://shop.example/"])
def test_forgotten_pages_leave_the_times_of_deliveries(
    freshet: Freshet, stored: tuple[Db, str], name: str
) -> None:
    database, uri = stored
    in_database(uri, no_work)
    numbers = {"delivered": 120, "waiting": 64, "dead": 2, "unconfirmed": 1, "dropped": 1}
    database.outbox.insert_many(
        message(number, "shop", state) for state, n in numbers.items() for number in range(n)
    )
    database.outbox.insert_one(message(1, "blog", "waiting"))
    database.targets.insert_one(
        {"_id": "shop https://shop.example/", "spider": "shop", "url": "https://shop.example/",
         "kind": "item", "next_visit": NOW, "first_seen": NOW}
    )  # fmt: skip
    assert "68 undelivered notifications" in run(freshet, "forget", name, "--dry-run").out
    done = run(freshet, "forget", name, "--yes")
    assert "68 undelivered notifications" in done.out, done.err
    assert [row["spider"] for row in database.outbox.find({"state": {"$ne": "delivered"}})] == [
        "blog"
    ]
    assert "shop" not in str(list(database.outbox.find({}, {"_id": 0})))
    state = in_database(uri, lambda db: outbox.state_of(db, "team"))
    assert (state["delivered"], state["last_delivered"]) == (120, NOW)
    shown = in_database(uri, lambda db: outbox.messages(db, "team", outbox.State.DELIVERED, 10))
    assert shown == ([], None)


async def no_work(db: Database) -> None:
    """Only open the database."""
