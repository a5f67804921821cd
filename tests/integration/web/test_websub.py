"""`scrapy feeds push`: subscriptions are requested from hubs and confirmed by them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crawler.storage.client import VERSION
from tests.integration.harness import Db, Freshet
from tests.integration.pushing import (
    CALLBACK,
    DAY,
    FEED,
    HOUR,
    Hub,
    Push,
    answers,
    ask,
    free_port,
    push_of,
    put,
    signed,
    state,
    until_state,
    wait_for,
)

pytestmark = pytest.mark.soak


def test_hub_confirms_the_subscription_and_delivers(
    freshet: Freshet, database: Db, hub: Hub
) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet, "--lease-days", 5) as push:
        subscription = until_state(database, "active")
        assert hub.publish("<rss>one</rss>") == [202]
    (row,) = database.pushes.find()
    assert (row["spider"], row["url"], row["body"]) == ("feeds", FEED, b"<rss>one</rss>")
    assert row["content_type"] == "application/rss+xml; charset=utf-8"
    assert subscription["lease_until"] - subscription["leased_at"] == 5 * DAY
    assert 3 * DAY <= subscription["next_request_at"] - subscription["leased_at"] <= 10 / 3 * DAY
    after = push_of(database)
    assert (after["deliveries"], after["attempts"]) == (1, 0)
    assert row["at"] <= after["delivered_at"] <= datetime.now(UTC)
    assert push.counts == {"requested": 1, "confirmed": 1, "stored": 1}
    assert push.done["subscriptions"] == {"active": 1}, "the subscription ended with the server"
    (subscribed,) = [
        request for request in hub.subscriptions() if request["callback"].startswith(push.callback)
    ]
    assert subscribed["callback"] == f"{push.callback}/{subscription['token']}"
    assert (subscribed["topic"], subscribed["lease_seconds"]) == (FEED, "432000")
    assert len(subscription["secret"]) < 200


def test_hub_can_confirm_before_it_responds(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/eager")
    with Push(freshet):
        until_state(database, "active")


def test_a_redirect_to_another_hub_is_followed(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/moved")
    with Push(freshet):
        assert until_state(database, "active")["hub"] == f"{hub.url}/moved"


def test_feeds_found_while_running_are_subscribed(freshet: Freshet, database: Db, hub: Hub) -> None:
    with Push(freshet):
        put(database, f"{hub.url}/hub")
        until_state(database, "active")


def test_restart_keeps_the_subscription(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet) as push:
        before = until_state(database, "active")
    with Push(freshet, port=push.port):
        assert hub.publish("<rss>two</rss>")[-1] == 202
    assert hub.asked("/hub") == 1
    assert push_of(database)["token"] == before["token"]


def test_a_lease_is_renewed_with_the_same_secrets(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet) as push:
        before = until_state(database, "active")
    with Push(freshet, port=push.port, hours=24 * 7):
        wait_for(lambda: push_of(database)["leased_at"] > before["leased_at"])
    after = push_of(database)
    assert after["leased_at"] - before["leased_at"] > 7 * DAY - HOUR
    assert (after["token"], after["secret"]) == (before["token"], before["secret"])
    assert hub.asked("/hub") == 2


def test_expired_lease_is_requested_again(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet):
        until_state(database, "active")
    database.feeds.update_one({}, {"$set": {"hubs": [f"{hub.url}/silent"]}})
    with Push(freshet, hours=24 * 11):
        after = until_state(database, "requested")
    assert (after["hub"], after["attempts"]) == (f"{hub.url}/silent", 1)
    assert after["lease_until"] is None


def test_new_callback_is_sent_to_the_hub(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet):
        before = until_state(database, "active")
    with Push(freshet) as moved:
        wait_for(lambda: push_of(database)["callback"] == moved.callback)
        until_state(database, "active")
        wait_for(lambda: len(hub.subscriptions()) == 2)
        assert hub.publish("<rss/>")[-1] == 202
    assert push_of(database)["callback"] != before["callback"]


def test_new_hub_gets_new_secrets(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet) as push:
        before = until_state(database, "active")
        database.feeds.update_one({}, {"$set": {"hubs": [f"{hub.url}/eager"]}})
        wait_for(lambda: push_of(database)["hub"].endswith("/eager"))
        after = until_state(database, "active")
        assert {before["token"], before["secret"]}.isdisjoint({after["token"], after["secret"]})
        assert ask(f"{push.callback}/{before['token']}", b"<rss/>")[0] == 410


def test_refusing_hub_is_not_retried_for_a_week(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/refuse")
    with Push(freshet) as push:
        subscription = until_state(database, "refused")
        time.sleep(2.5)
    assert subscription["reason"] == "400 said the hub"
    assert subscription["next_request_at"] - subscription["requested_at"] > 6 * DAY
    assert push.counts == {"requested": 1, "refused": 1}
    assert hub.asked("/refuse") == 1


def test_later_denial_is_recorded(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/deny")
    with Push(freshet):
        assert until_state(database, "refused")["reason"] == "not for you"


def test_next_hub_is_tried_after_a_refusal(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/refuse", f"{hub.url}/hub")
    with Push(freshet):
        until_state(database, "refused")
    with Push(freshet, hours=1):
        assert until_state(database, "active")["hub"] == f"{hub.url}/hub"


def test_failing_hub_is_retried_with_backoff(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/fail")
    pauses, hours = [], 0.0
    for attempt in (1, 2, 3):
        with Push(freshet, hours=hours):
            wait_for(lambda n=attempt: push_of(database).get("attempts") == n)
            wait_for(lambda: "reason" in push_of(database))
        subscription = push_of(database)
        pauses.append(
            (subscription["next_request_at"] - subscription["requested_at"]) / timedelta(minutes=1)
        )
        hours = (subscription["next_request_at"] - datetime.now(UTC)) / HOUR + 0.01
    assert subscription["reason"] == "500 said the hub"
    assert subscription["state"] == "requested"
    for pause, minutes in zip(pauses, (10, 20, 40), strict=True):
        assert 0.9 * minutes <= pause <= 1.1 * minutes


def test_retry_after_of_a_hub_applies_to_all_its_feeds(
    freshet: Freshet, database: Db, hub: Hub
) -> None:
    for n in range(10):
        put(database, f"{hub.url}/busy", url=f"{FEED}{n}")
    with Push(freshet):
        wait_for(lambda: database.hosts.find_one({"_id": "127.0.0.1"}))
        time.sleep(2.5)
    (hold,) = database.hosts.find()
    assert hold["hold_until"] > datetime.now(UTC) + 50 * timedelta(minutes=1)
    assert hub.asked("/busy") <= 2, "only requests in flight may reach the hub"


def test_unreachable_hub_is_reported(freshet: Freshet, database: Db) -> None:
    place = f"127.0.0.1:{free_port()}"
    put(database, f"http://{place}/hub")
    with Push(freshet, FRESHET_PRIVATE_HOSTS=place) as push:
        wait_for(lambda: "reason" in push_of(database))
    assert "refused" in push_of(database)["reason"]
    assert push.counts == {"requested": 1, "failed": 1}


@pytest.mark.parametrize(
    ("url", "listed", "requests"),
    [
        ("http://93.184.216.34/feed", "", 0),
        (FEED, "", 0),
        ("{hub}/feed", "", 1),
        (FEED, "{hub}", 1),
    ],
    ids=["a public feed", "a private feed at another port", "at the same port", "a listed hub"],
)
def test_feeds_cannot_send_requests_to_private_networks(
    freshet: Freshet, database: Db, hub: Hub, url: str, listed: str, requests: int
) -> None:
    url = url.format(hub=hub.url)
    put(database, f"{hub.url}/hub", url=url)
    place = hub.url.removeprefix("http://")
    with Push(freshet, FRESHET_PRIVATE_HOSTS=listed.format(hub=place)):
        subscription = until_state(database, "active" if requests else "refused", url)
    if not requests:
        assert subscription["reason"].startswith(f"{place} is not on the public Internet")
        assert "FRESHET_PRIVATE_HOSTS" in subscription["reason"]
    assert hub.asked("/hub") == requests


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http://user:pw@127.0.0.1/", "http://[x/", ""])
def test_invalid_hub_url_is_reported(freshet: Freshet, database: Db, url: str) -> None:
    put(database, url)
    with Push(freshet):
        subscription = until_state(database, "refused")
    assert subscription["reason"] == "not a valid http or https URL, or it has a password"


def test_unsubscribe_option_ends_all_subscriptions(
    freshet: Freshet, database: Db, hub: Hub
) -> None:
    put(database, f"{hub.url}/hub")
    put(database, f"{hub.url}/eager", url=FEED + "2")
    with Push(freshet, "--unsubscribe") as push:
        until_state(database, "active")
        until_state(database, "active", FEED + "2")
    assert push.done["unsubscribed"] == 2
    assert push.done["subscriptions"] == {"ended": 2}
    own_requests = [
        request for request in hub.subscriptions() if request["callback"].startswith(push.callback)
    ]
    assert [request["active"] for request in own_requests] == [False, False]
    with Push(freshet):
        until_state(database, "active")


def test_second_process_exits_with_a_message(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    with Push(freshet):
        # Simulate another machine, which has its own data folder.
        words = ("feeds", "push", "--callback", CALLBACK, "--port", free_port())
        done = freshet(*words, FRESHET_DATA_DIR=tmp_path / "other")
    assert (done.code, done.out) == (0, "")
    assert "another scrapy feeds push is running on " in done.complaint


def test_for_option_ends_the_server(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    words = ("--callback", CALLBACK, "--port", free_port(), "--for", "2")
    done = freshet("feeds", "push", *words)
    assert done.code == 0, done.err
    assert re.fullmatch(r"1 requested; [2-6] seconds\nsubscriptions: 1 requested\n", done.out)


def test_port_in_use_and_invalid_options_are_one_line_errors(freshet: Freshet, hub: Hub) -> None:
    port = hub.url.rpartition(":")[2]
    done = freshet("feeds", "push", "--callback", CALLBACK, "--port", port)
    assert done.code == 1
    assert f"--bind 127.0.0.1 --port {port}: Address already in use" in done.complaint
    done = freshet("feeds", "push")
    assert done.code == 1
    assert "--callback is required" in done.complaint


def test_many_feeds_of_one_hub_are_subscribed(freshet: Freshet, database: Db, hub: Hub) -> None:
    for n in range(300):
        put(database, f"{hub.url}/hub", url=f"{FEED}{n}")
    with Push(freshet) as push:
        wait_for(lambda: database.feeds.count_documents({"push.state": "active"}) == 300)
    assert push.counts == {"requested": 300, "confirmed": 300}
    assert database.meta.find_one({"_id": "schema"}) == {"_id": "schema", "version": VERSION}


def test_accepted_deliveries_survive_a_kill(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    push = Push(freshet)
    wait_for(lambda: answers(push.callback))
    subscription = until_state(database, "active")
    stored = 0
    for n in range(10):
        body = f"<rss>{n}</rss>".encode()
        stored += (
            ask(f"{push.callback}/{subscription['token']}", body, signed(subscription, body))[0]
            == 202
        )
    push.process.kill()
    push.process.communicate()
    assert database.pushes.count_documents({}) == stored == 10
    with Push(freshet):
        assert state(database) == "active" or until_state(database, "active")
