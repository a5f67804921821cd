"""`scrapy feeds push`: hub confirmations, deliveries, and requests from other senders."""

from __future__ import annotations

import contextlib
import socket
import time
from datetime import timedelta
from http.client import HTTPConnection
from urllib.parse import quote, urlencode

import pytest

from crawler.storage.websub import MAX_DELIVERIES
from crawler.web.server import USUAL
from tests.integration.harness import Db, Freshet, Row
from tests.integration.pushing import (
    DAY,
    FEED,
    OPEN,
    Hub,
    Push,
    ask,
    next_visit,
    push_of,
    signed,
    state,
)


def test_only_requested_subscriptions_are_confirmed(active: tuple[Push, Row], database: Db) -> None:
    push, subscription = active
    place = f"{push.callback}/{subscription['token']}"

    def verified(**query: str) -> tuple[int, str]:
        names = {f"hub.{name}": value for name, value in query.items()}
        return ask(f"{place}?{urlencode(names)}")

    assert verified(mode="subscribe", topic=FEED, challenge="x" * 99) == (200, "x" * 99)
    for status, _ in (
        verified(mode="subscribe", topic=FEED + "2", challenge="x"),
        verified(mode="subscribe", topic=FEED),
        verified(mode="unsubscribe", topic=FEED, challenge="x"),
        verified(mode="publish", topic=FEED, challenge="x"),
        verified(mode="denied", topic=FEED + "2", reason="x"),
        verified(mode="subscribe", challenge="x"),
        verified(mode="subscribe", topic=FEED, challenge="x" * 3000),
        ask(f"{place}?hub.mode=subscribe&hub.topic={quote(FEED)}&hub.topic=x&hub.challenge=y"),
        ask(f"{place}?hub.mode=subscribe&hub.topic=%ff&hub.challenge=y"),
        ask(place),
        ask(f"{push.callback}/{'A' * 48}?hub.mode=subscribe&hub.topic={FEED}&hub.challenge=x"),
    ):
        assert status == 404
    assert state(database) == "active"


def test_challenge_is_sent_as_plain_text(active: tuple[Push, Row]) -> None:
    push, subscription = active
    query = urlencode({"hub.mode": "subscribe", "hub.topic": FEED, "hub.challenge": "<b>"})
    with OPEN.open(f"{push.callback}/{subscription['token']}?{query}", timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["sha1", "sha256", "sha384", "sha512"])
def test_accepts_each_standard_signature_method(
    active: tuple[Push, Row], database: Db, hub: Hub, method: str
) -> None:
    assert hub.publish("<rss/>", method)[-1] == 202
    assert database.pushes.count_documents({}) == 1


def test_unsigned_deliveries_are_accepted_but_discarded(
    active: tuple[Push, Row], database: Db, hub: Hub
) -> None:
    push, subscription = active
    place = f"{push.callback}/{subscription['token']}"
    assert hub.publish("<rss/>", "")[-1] == 202
    assert hub.publish("<rss/>", "sha256", signature="0" * 64)[-1] == 202
    assert hub.publish("<rss/>", "sha256", signature="")[-1] == 202
    headers = signed(subscription, b"<rss/>") | {"X-Hub-Signature": "md5=" + "0" * 32}
    assert ask(place, b"<rss/>", headers)[0] == 202
    assert database.pushes.count_documents({}) == 0
    after = push_of(database)
    assert (after["ignored"], after["deliveries"], after["delivered_at"]) == (4, 0, None)


def test_the_same_document_is_stored_once(active: tuple[Push, Row], database: Db, hub: Hub) -> None:
    hub.publish("<rss>a</rss>"), hub.publish("<rss>a</rss>")
    assert database.pushes.count_documents({}) == 1
    database.pushes.delete_many({})  # A crawl deletes deliveries after it has processed them.
    hub.publish("<rss>a</rss>")
    assert database.pushes.count_documents({}) == 0, "a repeated delivery was stored"
    hub.publish("<rss>b</rss>"), hub.publish("<rss>a</rss>")
    assert [row["body"] for row in database.pushes.find().sort("at")] == [
        b"<rss>b</rss>", b"<rss>a</rss>",
    ]  # fmt: skip


def test_excess_deliveries_keep_the_newest_and_make_feed_due(
    active: tuple[Push, Row], database: Db, hub: Hub
) -> None:
    for n in range(MAX_DELIVERIES):
        hub.publish(f"<rss>{n}</rss>")
    assert next_visit(database) > DAY
    hub.publish("<rss>new</rss>")
    bodies = [row["body"] for row in database.pushes.find().sort("at")]
    assert len(bodies) == MAX_DELIVERIES
    assert (bodies[0], bodies[-1]) == (b"<rss>1</rss>", b"<rss>new</rss>")
    assert next_visit(database) < timedelta(0)


def test_oversized_delivery_is_refused_and_makes_feed_due(
    active: tuple[Push, Row], database: Db
) -> None:
    push, subscription = active
    place, body = f"{push.callback}/{subscription['token']}", b"x" * (1024 * 1024)
    assert ask(place, body, signed(subscription, body))[0] == 202
    assert next_visit(database) > DAY
    assert ask(place, body + b"x", signed(subscription, body + b"x"))[0] == 413
    assert next_visit(database) < timedelta(0)
    assert database.pushes.count_documents({}) == 1


def test_empty_delivery_makes_the_feed_due(active: tuple[Push, Row], database: Db) -> None:
    push, subscription = active
    assert (
        ask(f"{push.callback}/{subscription['token']}", b" \n", signed(subscription, b" \n"))[0]
        == 202
    )
    assert database.pushes.count_documents({}) == 0
    assert next_visit(database) < timedelta(0)


def test_form_encoded_delivery_is_stored(active: tuple[Push, Row], database: Db) -> None:
    push, subscription = active
    body = b"hub.mode=x&a=1"
    headers = signed(subscription, body) | {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask(f"{push.callback}/{subscription['token']}", body, headers)[0] == 202
    assert [row["body"] for row in database.pushes.find()] == [body]


def test_unknown_tokens_and_removed_feeds_are_refused(
    active: tuple[Push, Row], database: Db
) -> None:
    push, subscription = active
    place, body = f"{push.callback}/{subscription['token']}", b"<rss/>"
    assert ask(f"{push.callback}/{'A' * 48}", body, signed(subscription, body))[0] == 404
    assert ask(push.callback, body)[0] == 404
    assert ask(place, method="PUT", body=b"")[0] == 405
    assert ask(place, method="HEAD")[0] == 405
    database.targets.update_many({}, {"$set": {"gone": True}})
    assert ask(place, body, signed(subscription, body))[0] == 410
    database.feeds.delete_many({}), database.targets.delete_many({})
    assert ask(place, body, signed(subscription, body))[0] == 410
    query = urlencode({"hub.mode": "subscribe", "hub.topic": FEED, "hub.challenge": "x"})
    assert ask(f"{place}?{query}")[0] == 404
    assert database.pushes.count_documents({}) == 0


def test_chunked_bodies_are_bounded(active: tuple[Push, Row], database: Db) -> None:
    push, subscription = active
    for chunks, status in ((16, 202), (17, 413)):
        connection = HTTPConnection("127.0.0.1", push.port, timeout=10)
        body = [b"x" * 65_536] * chunks
        headers = signed(subscription, b"".join(body))
        path = f"/push/{subscription['token']}"
        connection.request("POST", path, iter(body), headers, encode_chunked=True)
        assert connection.getresponse().status == status
        connection.close()


def test_slow_request_times_out(freshet: Freshet, database: Db, hub: Hub) -> None:
    with (
        Push(freshet, FRESHET_RESPONSE_SECONDS=1) as push,
        socket.create_connection(("127.0.0.1", push.port), timeout=10) as slow,
    ):
        slow.sendall(b"POST /push/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n")
        began = time.monotonic()
        with contextlib.suppress(OSError):  # The limit applies no matter how often a byte arrives.
            while time.monotonic() < began + 10:
                slow.sendall(b"x")
                time.sleep(0.2)
        assert 0.9 < time.monotonic() - began < 5


def test_path_before_the_token_is_ignored(active: tuple[Push, Row], database: Db) -> None:
    push, subscription = active
    place = f"http://127.0.0.1:{push.port}/somewhere/else/{subscription['token']}"
    assert ask(place, b"<rss/>", signed(subscription, b"<rss/>"))[0] == 202
    assert database.pushes.count_documents({}) == 1


def test_slow_requests_do_not_block_a_hub(active: tuple[Push, Row], database: Db, hub: Hub) -> None:
    """Slow requests on all connections are closed, even if they send a byte now and then."""
    push, _ = active
    with contextlib.ExitStack() as stack:
        slow_clients = [
            stack.enter_context(
                socket.create_connection(
                    ("127.0.0.1", push.port), timeout=10, source_address=(source, 0)
                )
            )
            for _ in range(USUAL.per_address)
            for source in ("127.0.0.2", "127.0.0.3")
        ]
        assert len(slow_clients) == USUAL.connections
        for slow_client in slow_clients:
            slow_client.sendall(b"POST /push/x HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        for body in ("<rss>one</rss>", "<rss>two</rss>"):
            assert hub.publish(body) == [202]
            for slow_client in slow_clients:
                with contextlib.suppress(OSError):
                    slow_client.sendall(b"x")
    assert database.pushes.count_documents({}) == 2


def test_connections_per_address_are_limited(active: tuple[Push, Row]) -> None:
    """A new request closes the oldest incomplete request of the same address only."""
    push, _ = active
    with contextlib.ExitStack() as stack:

        def begun(source: str) -> socket.socket:
            place = ("127.0.0.1", push.port)
            connection = socket.create_connection(place, timeout=10, source_address=(source, 0))
            stack.enter_context(connection).sendall(b"GET /push/x HTTP/1.1\r\n")
            return connection

        other = begun("127.0.0.2")
        own = [begun("127.0.0.3") for _ in range(USUAL.per_address + 1)]
        with contextlib.suppress(ConnectionResetError):
            assert own[0].recv(100) == b"", "the oldest request is still open"
        for connection in (other, own[1], own[-1]):
            connection.sendall(b"Host: a\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 404")
