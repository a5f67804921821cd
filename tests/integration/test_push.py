"""`scrapy feeds push`: hubs are asked, confirm, deliver; what they deliver is stored once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import re
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crawler.config import Config
from crawler.storage import pushes, websub
from crawler.storage.client import Database
from crawler.storage.pushes import MOST_KEPT, Kept
from crawler.storage.schema import VERSION
from crawler.storage.store import opened
from tests.integration.harness import Db, Freshet, Row
from tests.site.running import RunningServer

CALLBACK = "https://public.example/push"
FEED = "http://127.0.0.1:9/feed"
PATIENCE_SECONDS = 20.0
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
OPEN = build_opener(ProxyHandler({}))


class Hub(RunningServer):
    """A hub on this machine; each path below `url` is one with other manners."""

    def __init__(self) -> None:
        super().__init__("tests.site.hub", [])

    def publish(self, body: str, method: str = "sha256", **more: str) -> list[int]:
        """Deliver to whoever wants FEED; what the callbacks answered."""
        # We have confirmed before the hub has our answer.
        wait_for(self.subscriptions)
        asked = {"topic": FEED, "body": body, "method": method} | more
        _, text = ask(f"{self.url}/-/publish", json.dumps(asked).encode())
        replies: list[int] = json.loads(text)
        return replies

    def subscriptions(self) -> list[Row]:
        found: list[Row] = json.loads(ask(f"{self.url}/-/subscriptions")[1])
        return found

    def asked(self, path: str) -> int:
        return sum(request["path"] == path for request in self.requests())


class Push:
    """`scrapy feeds push` at work, listening at a port of its own."""

    def __init__(
        self, freshet: Freshet, *words: object, port: int = 0, hours: float = 0, **env: object
    ) -> None:
        self.port = port or free_port()
        self.callback = f"http://127.0.0.1:{self.port}/push"
        words = ("--callback", self.callback, "--port", self.port, "--look-seconds", 1, *words)
        self.process = freshet.start("feeds", "push", "--json", *words, hours=hours, **env)
        self.err = ""
        self.done: Row = {}

    def __enter__(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or answers(self.callback))
        assert self.process.poll() is None, self.process.communicate()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        out, self.err = self.process.communicate(timeout=PATIENCE_SECONDS)
        if exception[0] is None:
            assert self.process.returncode == 0, self.err
            assert "Traceback" not in self.err, self.err
            self.done = json.loads(out)

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.done["counts"]
        return counts


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def ask(
    url: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str = ""
) -> tuple[int, str]:
    """Status and text of a request's answer."""
    request = Request(url, body, headers or {}, method=method or None)
    try:
        with OPEN.open(request, timeout=10) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def answers(url: str) -> bool:
    try:
        return ask(url)[0] == 404
    except OSError:
        return False


def wait_for(condition: Callable[[], Any]) -> None:
    """Return once it holds; fails when it takes too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def put(db: Db, *hubs: str, url: str = FEED, **more: Any) -> None:
    """A feed whose document names hubs, as a crawl leaves it."""
    now = datetime.now(UTC)
    names = {"_id": f"feeds {url}", "spider": "feeds", "url": url}
    db.feeds.insert_one(names | {"hubs": list(hubs), "topic": url} | more)
    db.targets.insert_one(
        names | {"kind": "feed", "first_seen": now, "next_visit": now + 3 * DAY, "requested": 1}
    )


def push_of(db: Db, url: str = FEED) -> Row:
    found = db.feeds.find_one({"url": url}) or {}
    push: Row = found.get("push") or {}
    return push


def state(db: Db, url: str = FEED) -> str | None:
    return push_of(db, url).get("state")


def until_state(db: Db, wanted: str, url: str = FEED) -> Row:
    wait_for(lambda: state(db, url) == wanted)
    return push_of(db, url)


def signed(push: Row, body: bytes, method: str = "sha1") -> dict[str, str]:
    digest = hmac.new(push["secret"].encode(), body, getattr(hashlib, method)).hexdigest()
    return {"X-Hub-Signature": f"{method}={digest}", "Content-Type": "application/atom+xml"}


def next_visit(db: Db) -> timedelta:
    found = db.targets.find_one({"url": FEED})
    assert found is not None
    left: timedelta = found["next_visit"] - datetime.now(UTC)
    return left


@pytest.fixture(scope="module")
def served() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture
def hub(served: Hub) -> Hub:
    ask(f"{served.url}/-/forget")
    served.clear_log()
    return served


@pytest.fixture
def active(freshet: Freshet, database: Db, hub: Hub) -> Iterator[tuple[Push, Row]]:
    """A server with one feed, whose hub has confirmed."""
    put(database, f"{hub.url}/hub")
    with Push(freshet, FRESHET_RESPONSE_MB=1) as push:
        yield push, until_state(database, "active")


def test_a_hub_is_asked_confirms_and_delivers(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet, "--lease-days", 5) as push:
        known = until_state(database, "active")
        assert hub.publish("<rss>one</rss>") == [202]
    (row,) = database.pushes.find()
    assert (row["spider"], row["url"], row["body"]) == ("feeds", FEED, b"<rss>one</rss>")
    assert row["content_type"] == "application/rss+xml; charset=utf-8"
    assert known["lease_until"] - known["leased_at"] == 5 * DAY
    assert 3 * DAY <= known["next_ask"] - known["leased_at"] <= 10 / 3 * DAY
    after = push_of(database)
    assert (after["deliveries"], after["attempts"]) == (1, 0)
    assert row["at"] <= after["delivered_at"] <= datetime.now(UTC)
    assert push.counts == {"asked": 1, "confirmed": 1, "stored": 1}
    assert push.done["subscriptions"] == {"active": 1}, "a lease lives on without the server"
    (subscribed,) = [
        one for one in hub.subscriptions() if one["callback"].startswith(push.callback)
    ]
    assert subscribed["callback"] == f"{push.callback}/{known['token']}"
    assert (subscribed["topic"], subscribed["lease_seconds"]) == (FEED, "432000")
    assert len(known["secret"]) < 200


def test_a_hub_may_confirm_before_it_answers(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/eager")
    with Push(freshet):
        until_state(database, "active")


def test_a_redirect_to_another_hub_is_followed(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/moved")
    with Push(freshet):
        assert until_state(database, "active")["hub"] == f"{hub.url}/moved"


def test_feeds_found_while_it_runs_are_asked_for(freshet: Freshet, database: Db, hub: Hub) -> None:
    with Push(freshet):
        put(database, f"{hub.url}/hub")
        until_state(database, "active")


def test_a_restart_goes_on_without_asking(freshet: Freshet, database: Db, hub: Hub) -> None:
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


def test_a_lease_that_ran_out_is_asked_for_anew(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet):
        until_state(database, "active")
    database.feeds.update_one({}, {"$set": {"hubs": [f"{hub.url}/silent"]}})
    with Push(freshet, hours=24 * 11):
        after = until_state(database, "asked")
    assert (after["hub"], after["attempts"]) == (f"{hub.url}/silent", 1)
    assert after["lease_until"] is None


def test_a_new_address_of_ours_is_told_to_the_hub(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet):
        before = until_state(database, "active")
    with Push(freshet) as moved:
        wait_for(lambda: push_of(database)["callback"] == moved.callback)
        until_state(database, "active")
        wait_for(lambda: len(hub.subscriptions()) == 2)
        assert hub.publish("<rss/>")[-1] == 202
    assert push_of(database)["callback"] != before["callback"]


def test_another_hub_gets_other_secrets(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    with Push(freshet) as push:
        before = until_state(database, "active")
        database.feeds.update_one({}, {"$set": {"hubs": [f"{hub.url}/eager"]}})
        wait_for(lambda: push_of(database)["hub"].endswith("/eager"))
        after = until_state(database, "active")
        assert {before["token"], before["secret"]}.isdisjoint({after["token"], after["secret"]})
        assert ask(f"{push.callback}/{before['token']}", b"<rss/>")[0] == 410


def test_a_refusing_hub_is_left_alone_for_a_week(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/refuse")
    with Push(freshet) as push:
        known = until_state(database, "refused")
        time.sleep(2.5)
    assert known["reason"] == "400 said the hub"
    assert known["next_ask"] - known["asked_at"] > 6 * DAY
    assert push.counts == {"asked": 1, "refused": 1}
    assert hub.asked("/refuse") == 1


def test_a_denial_later_on_counts_too(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/deny")
    with Push(freshet):
        assert until_state(database, "refused")["reason"] == "not for you"


def test_the_next_hub_is_asked_where_the_first_refuses(
    freshet: Freshet, database: Db, hub: Hub
) -> None:
    put(database, f"{hub.url}/refuse", f"{hub.url}/hub")
    with Push(freshet):
        until_state(database, "refused")
    with Push(freshet, hours=1):
        assert until_state(database, "active")["hub"] == f"{hub.url}/hub"


def test_a_failing_hub_is_asked_ever_more_rarely(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/fail")
    pauses, hours = [], 0.0
    for attempt in (1, 2, 3):
        with Push(freshet, hours=hours):
            wait_for(lambda n=attempt: push_of(database).get("attempts") == n)
            wait_for(lambda: "reason" in push_of(database))
        known = push_of(database)
        pauses.append((known["next_ask"] - known["asked_at"]) / timedelta(minutes=1))
        hours = (known["next_ask"] - datetime.now(UTC)) / HOUR + 0.01
    assert known["reason"] == "500 said the hub"
    assert known["state"] == "asked"
    for pause, minutes in zip(pauses, (10, 20, 40), strict=True):
        assert 0.9 * minutes <= pause <= 1.1 * minutes


def test_a_busy_hub_names_its_time_for_all_its_feeds(
    freshet: Freshet, database: Db, hub: Hub
) -> None:
    for n in range(10):
        put(database, f"{hub.url}/busy", url=f"{FEED}{n}")
    with Push(freshet):
        wait_for(lambda: database.hosts.find_one({"_id": "127.0.0.1"}))
        time.sleep(2.5)
    (hold,) = database.hosts.find()
    assert hold["hold_until"] > datetime.now(UTC) + 50 * timedelta(minutes=1)
    assert hub.asked("/busy") <= 2, "those at work, and no other"


def test_a_hub_that_is_away_is_one_line(freshet: Freshet, database: Db) -> None:
    put(database, f"http://127.0.0.1:{free_port()}/hub")
    with Push(freshet) as push:
        wait_for(lambda: "reason" in push_of(database))
    assert "refused" in push_of(database)["reason"]
    assert push.counts == {"asked": 1, "failed": 1}


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://93.184.216.34/feed", "in a private network"), (FEED, None)],
    ids=["a public feed", "a private feed"],
)
def test_a_public_feed_sends_nobody_into_a_private_network(
    freshet: Freshet, database: Db, hub: Hub, url: str, reason: str | None
) -> None:
    put(database, f"{hub.url}/hub", url=url)
    with Push(freshet):
        known = until_state(database, "refused" if reason else "active", url)
    assert reason is None or reason in known["reason"]
    assert hub.asked("/hub") == (0 if reason else 1)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http://user:pw@127.0.0.1/", "http://[x/", ""])
def test_a_hub_that_cannot_be_asked_is_told(freshet: Freshet, database: Db, url: str) -> None:
    put(database, url)
    with Push(freshet):
        known = until_state(database, "refused")
    assert known["reason"] == "no http or https URL without a password"


def test_only_what_was_asked_for_is_confirmed(active: tuple[Push, Row], database: Db) -> None:
    push, known = active
    place = f"{push.callback}/{known['token']}"

    def told(**query: str) -> tuple[int, str]:
        names = {f"hub.{name}": value for name, value in query.items()}
        return ask(f"{place}?{urlencode(names)}")

    assert told(mode="subscribe", topic=FEED, challenge="x" * 99) == (200, "x" * 99)
    for status, _ in (
        told(mode="subscribe", topic=FEED + "2", challenge="x"),
        told(mode="subscribe", topic=FEED),
        told(mode="unsubscribe", topic=FEED, challenge="x"),
        told(mode="publish", topic=FEED, challenge="x"),
        told(mode="denied", topic=FEED + "2", reason="x"),
        told(mode="subscribe", challenge="x"),
        told(mode="subscribe", topic=FEED, challenge="x" * 3000),
        ask(f"{place}?hub.mode=subscribe&hub.topic={quote(FEED)}&hub.topic=x&hub.challenge=y"),
        ask(f"{place}?hub.mode=subscribe&hub.topic=%ff&hub.challenge=y"),
        ask(place),
        ask(f"{push.callback}/{'A' * 48}?hub.mode=subscribe&hub.topic={FEED}&hub.challenge=x"),
    ):
        assert status == 404
    assert state(database) == "active"


def test_a_challenge_cannot_become_a_page(active: tuple[Push, Row]) -> None:
    push, known = active
    query = urlencode({"hub.mode": "subscribe", "hub.topic": FEED, "hub.challenge": "<b>"})
    with OPEN.open(f"{push.callback}/{known['token']}?{query}", timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["sha1", "sha256", "sha384", "sha512"])
def test_each_method_of_the_standard_counts(
    active: tuple[Push, Row], database: Db, hub: Hub, method: str
) -> None:
    assert hub.publish("<rss/>", method)[-1] == 202
    assert database.pushes.count_documents({}) == 1


def test_what_is_not_signed_is_thanked_for_and_thrown_away(
    active: tuple[Push, Row], database: Db, hub: Hub
) -> None:
    push, known = active
    place = f"{push.callback}/{known['token']}"
    assert hub.publish("<rss/>", "")[-1] == 202
    assert hub.publish("<rss/>", "sha256", signature="0" * 64)[-1] == 202
    assert hub.publish("<rss/>", "sha256", signature="")[-1] == 202
    headers = signed(known, b"<rss/>") | {"X-Hub-Signature": "md5=" + "0" * 32}
    assert ask(place, b"<rss/>", headers)[0] == 202
    assert database.pushes.count_documents({}) == 0
    after = push_of(database)
    assert (after["ignored"], after["deliveries"], after["delivered_at"]) == (4, 0, None)


def test_the_same_document_is_stored_once(active: tuple[Push, Row], database: Db, hub: Hub) -> None:
    hub.publish("<rss>a</rss>"), hub.publish("<rss>a</rss>")
    assert database.pushes.count_documents({}) == 1
    database.pushes.delete_many({})  # As a crawl does when it is done with them.
    hub.publish("<rss>a</rss>")
    assert database.pushes.count_documents({}) == 0, "it came late once more"
    hub.publish("<rss>b</rss>"), hub.publish("<rss>a</rss>")
    assert [row["body"] for row in database.pushes.find().sort("at")] == [
        b"<rss>b</rss>", b"<rss>a</rss>",
    ]  # fmt: skip


def test_of_many_the_newest_are_kept_and_the_feed_is_due(
    active: tuple[Push, Row], database: Db, hub: Hub
) -> None:
    for n in range(MOST_KEPT):
        hub.publish(f"<rss>{n}</rss>")
    assert next_visit(database) > DAY
    hub.publish("<rss>new</rss>")
    bodies = [row["body"] for row in database.pushes.find().sort("at")]
    assert len(bodies) == MOST_KEPT
    assert (bodies[0], bodies[-1]) == (b"<rss>1</rss>", b"<rss>new</rss>")
    assert next_visit(database) < timedelta(0)


def test_what_is_too_long_is_refused_and_the_feed_is_due(
    active: tuple[Push, Row], database: Db
) -> None:
    push, known = active
    place, body = f"{push.callback}/{known['token']}", b"x" * (1024 * 1024)
    assert ask(place, body, signed(known, body))[0] == 202
    assert next_visit(database) > DAY
    assert ask(place, body + b"x", signed(known, body + b"x"))[0] == 413
    assert next_visit(database) < timedelta(0)
    assert database.pushes.count_documents({}) == 1


def test_a_ping_without_a_document_makes_the_feed_due(
    active: tuple[Push, Row], database: Db
) -> None:
    push, known = active
    assert ask(f"{push.callback}/{known['token']}", b" \n", signed(known, b" \n"))[0] == 202
    assert database.pushes.count_documents({}) == 0
    assert next_visit(database) < timedelta(0)


def test_forms_are_documents_like_others(active: tuple[Push, Row], database: Db) -> None:
    push, known = active
    body = b"hub.mode=x&a=1"
    headers = signed(known, body) | {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask(f"{push.callback}/{known['token']}", body, headers)[0] == 202
    assert [row["body"] for row in database.pushes.find()] == [body]


def test_unknown_tokens_and_removed_feeds(active: tuple[Push, Row], database: Db) -> None:
    push, known = active
    place, body = f"{push.callback}/{known['token']}", b"<rss/>"
    assert ask(f"{push.callback}/{'A' * 48}", body, signed(known, body))[0] == 404
    assert ask(push.callback, body)[0] == 404
    assert ask(place, method="PUT", body=b"")[0] == 405
    assert ask(place, method="HEAD")[0] == 405
    database.targets.update_many({}, {"$set": {"gone": True}})
    assert ask(place, body, signed(known, body))[0] == 410
    database.feeds.delete_many({}), database.targets.delete_many({})
    assert ask(place, body, signed(known, body))[0] == 410
    query = urlencode({"hub.mode": "subscribe", "hub.topic": FEED, "hub.challenge": "x"})
    assert ask(f"{place}?{query}")[0] == 404
    assert database.pushes.count_documents({}) == 0


def test_bodies_in_chunks_are_bounded_as_well(active: tuple[Push, Row], database: Db) -> None:
    push, known = active
    for chunks, status in ((16, 202), (17, 413)):
        connection = HTTPConnection("127.0.0.1", push.port, timeout=10)
        body = [b"x" * 65_536] * chunks
        headers = signed(known, b"".join(body))
        path = f"/push/{known['token']}"
        connection.request("POST", path, iter(body), headers, encode_chunked=True)
        assert connection.getresponse().status == status
        connection.close()


def test_a_request_has_to_come_in_in_time(freshet: Freshet, database: Db, hub: Hub) -> None:
    with (
        Push(freshet, FRESHET_RESPONSE_SECONDS=1) as push,
        socket.create_connection(("127.0.0.1", push.port), timeout=10) as slow,
    ):
        slow.sendall(b"POST /push/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n")
        began = time.monotonic()
        with contextlib.suppress(OSError):  # However often a byte comes.
            while time.monotonic() < began + 10:
                slow.sendall(b"x")
                time.sleep(0.2)
        assert 0.9 < time.monotonic() - began < 5


def test_the_path_before_the_token_is_the_proxy_s_business(
    active: tuple[Push, Row], database: Db
) -> None:
    push, known = active
    place = f"http://127.0.0.1:{push.port}/somewhere/else/{known['token']}"
    assert ask(place, b"<rss/>", signed(known, b"<rss/>"))[0] == 202
    assert database.pushes.count_documents({}) == 1


def test_all_is_given_up_where_that_is_asked_for(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    put(database, f"{hub.url}/eager", url=FEED + "2")
    with Push(freshet, "--unsubscribe") as push:
        until_state(database, "active")
        until_state(database, "active", FEED + "2")
    assert push.done["unsubscribed"] == 2
    assert push.done["subscriptions"] == {"ended": 2}
    mine = [one for one in hub.subscriptions() if one["callback"].startswith(push.callback)]
    assert [one["active"] for one in mine] == [False, False]
    with Push(freshet):
        until_state(database, "active")


def test_a_second_one_says_so_and_ends_well(freshet: Freshet, database: Db) -> None:
    with Push(freshet):
        done = freshet("feeds", "push", "--callback", CALLBACK, "--port", free_port())
    assert (done.code, done.out) == (0, "")
    assert done.complaint == "scrapy feeds push: another one is at work, nothing to do"


def test_it_ends_by_itself(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    words = ("--callback", CALLBACK, "--port", free_port(), "--for", "2")
    done = freshet("feeds", "push", *words)
    assert done.code == 0, done.err
    assert re.fullmatch(r"1 asked; [2-6] seconds\nsubscriptions: 1 asked\n", done.out)


def test_a_taken_port_and_wrong_options_are_one_line(freshet: Freshet, hub: Hub) -> None:
    port = hub.url.rpartition(":")[2]
    done = freshet("feeds", "push", "--callback", CALLBACK, "--port", port)
    assert done.code == 1
    assert f"--bind 127.0.0.1 --port {port}: Address already in use" in done.complaint
    done = freshet("feeds", "push")
    assert done.code == 1
    assert "--callback is missing" in done.complaint


def test_many_feeds_of_a_hub(freshet: Freshet, database: Db, hub: Hub) -> None:
    for n in range(300):
        put(database, f"{hub.url}/hub", url=f"{FEED}{n}")
    with Push(freshet) as push:
        wait_for(lambda: database.feeds.count_documents({"push.state": "active"}) == 300)
    assert push.counts == {"asked": 300, "confirmed": 300}
    assert database.meta.find_one({"_id": "schema"}) == {"_id": "schema", "version": VERSION}


def test_what_is_accepted_survives_a_kill(freshet: Freshet, database: Db, hub: Hub) -> None:
    put(database, f"{hub.url}/hub")
    push = Push(freshet)
    wait_for(lambda: answers(push.callback))
    known = until_state(database, "active")
    stored = 0
    for n in range(10):
        body = f"<rss>{n}</rss>".encode()
        stored += ask(f"{push.callback}/{known['token']}", body, signed(known, body))[0] == 202
    push.process.kill()
    push.process.communicate()
    assert database.pushes.count_documents({}) == stored == 10
    with Push(freshet):
        assert state(database) == "active" or until_state(database, "active")


@pytest.mark.parametrize("trusted", [True, False])
def test_a_hub_s_certificate_has_to_be_good(
    freshet: Freshet, database: Db, tmp_path: Path, trusted: bool
) -> None:
    files = certificate(tmp_path)
    with secure_hub(*files) as port:
        put(database, f"https://localhost:{port}/hub")
        with Push(freshet, SSL_CERT_FILE=files[0] if trusted else "/dev/null") as push:
            if not trusted:
                wait_for(lambda: "reason" in push_of(database))
                assert "certificate verify failed" in push_of(database)["reason"]
            wait_for(lambda: "attempts" in push_of(database))
    assert push.counts == {"asked": 1} | ({} if trusted else {"failed": 1})


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that has signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return files


class Accepting(BaseHTTPRequestHandler):
    """Answers 202 to everything."""

    def do_POST(self) -> None:
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def secure_hub(cert: Path, key: Path) -> Iterator[int]:
    """The port of a server that speaks TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Accepting)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_there_is_an_end_to_what_is_kept_of_all_feeds(stored: tuple[Db, str]) -> None:
    async def run(db: Database) -> list[Kept]:
        found = await db.feeds.find_one({"url": FEED})
        assert found is not None
        feed, now = websub.Feed.of(found), datetime.now(UTC)
        bodies = (b"a" * 5000, b"b" * 5000, b"c" * 5000)
        return [await pushes.store(db, feed, "", body, now, 9000) for body in bodies]

    db, uri = stored
    put(db, push={"token": "t", "state": "active"})
    assert asyncio.run(in_database(uri, run)) == [Kept.STORED, Kept.POLLED, Kept.POLLED]
    assert next_visit(db) < timedelta(0)
    assert db.pushes.count_documents({}) == 1


def test_a_crawl_takes_the_oldest_and_deletes_what_is_done(stored: tuple[Db, str]) -> None:
    async def run(db: Database) -> list[list[bytes]]:
        feed = websub.Feed("feeds u", "feeds", "u", (), "u", {"token": "t"})
        for n in range(5):
            body, at = f"{n}".encode(), datetime(2026, 1, 1 + n, tzinfo=UTC)
            await pushes.store(db, feed, "text/xml", body, at, 10**9)
        first = await pushes.take(db, "feeds", 2)
        assert await pushes.done(db, [push.id for push in first]) == 2
        second = await pushes.take(db, "feeds", 2)
        third = await pushes.take(db, "feeds", 100)
        assert await pushes.take(db, "others", 100) == []
        return [[push.body for push in taken] for taken in (first, second, third)]

    taken = asyncio.run(in_database(stored[1], run))
    assert taken == [[b"0", b"1"], [b"2", b"3"], [b"2", b"3", b"4"]]


def test_little_is_taken_at_once_where_documents_are_large(stored: tuple[Db, str]) -> None:
    async def run(db: Database) -> int:
        feed = websub.Feed("feeds u", "feeds", "u", (), "u", {"token": "t"})
        for n in range(5):
            await pushes.store(db, feed, "", bytes([n]) * 14_000_000, datetime.now(UTC), 10**9)
        return len(await pushes.take(db, "feeds", 100))

    assert asyncio.run(in_database(stored[1], run)) == 3


def test_doubt_takes_a_proof_back(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put(db, push={"token": "t", "state": "active", "delivered_at": datetime.now(UTC)})
    asyncio.run(in_database(uri, lambda db: websub.doubt(db, [f"feeds {FEED}"])))
    assert push_of(db)["delivered_at"] is None


def test_a_feed_that_was_asked_meanwhile_is_not_asked_again(stored: tuple[Db, str]) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)

    async def run(db: Database) -> list[bool]:
        new = websub.Ask("http://hub", FEED, CALLBACK, "token", "secret")
        found = await db.feeds.find_one({"url": FEED})
        assert found is not None
        feed = websub.Feed.of(found)
        times = (first, first, first + HOUR)
        return [await websub.asked(db, feed, new, now, now + DAY) for now in times]

    db, uri = stored
    put(db, "http://hub")
    assert asyncio.run(in_database(uri, run)) == [True, True, False]
    assert push_of(db)["asked_at"] == first


async def in_database(uri: str, work: Callable[[Database], Awaitable[Any]]) -> Any:
    """What `work` gives on the prepared database."""
    async with opened(Config.load(mongo_uri=uri)) as db:
        return await work(db)
