"""`scrapy web --public-url`: the app subscribes to hubs and receives their deliveries."""

from __future__ import annotations

import signal
from datetime import timedelta

import httpx
import pytest

from crawler.web.options import SubscriptionOptions, WebOptions
from tests.integration.harness import Db, Freshet, Process
from tests.integration.inside import run
from tests.integration.pushing import (
    PATIENCE_SECONDS,
    Hub,
    ask,
    free_port,
    push_of,
    put,
    signed,
    until_state,
    wait_for,
)
from tests.integration.web.browser import browsers_of, put_user
from tests.integration.web.served import READY

PUSH = SubscriptionOptions("https://public.example/websub", timedelta(days=10), 60)
OPTIONS = WebOptions(host="0.0.0.0", push=PUSH)


def started(freshet: Freshet, *words: object, **env: object) -> tuple[Process, str]:
    """Start an app and wait until it serves; return the process and its earlier stderr output."""
    process, written = freshet.start(*words, **env), ""
    stderr = process.stderr
    assert stderr
    while READY not in (line := stderr.readline()):
        assert line, "the process ended before it served"
        written += line
    return process, written


def test_app_subscribes_and_stores_deliveries(freshet: Freshet, database: Db, hub: Hub) -> None:
    put_user(database, "anna")
    put(database, f"{hub.url}/hub")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ("web", "--port", port, "--no-service", "--public-url", url, "--push-check-seconds", 1)
    process, _ = started(freshet, *words, FRESHET_RESPONSE_MB=3)
    until_state(database, "active")
    assert push_of(database)["callback"] == f"{url}/websub"
    assert hub.publish("<rss>one</rss>") == [202]
    push, body = push_of(database), b"<rss>two</rss>"
    place = f"{url}/websub/{push['token']}"
    assert ask(place, body, signed(push, body))[0] == 202
    assert [row["body"] for row in database.pushes.find().sort("at")] == [b"<rss>one</rss>", body]
    assert ask(place, b"x" * 3_000_000)[0] == 202, "deliveries are limited like forms"
    assert ask(place, b"x" * 3_200_000)[0] == 413
    assert ask(f"{url}/websub/{'A' * 48}", b"x")[0] == 404
    assert ask(place, method="HEAD")[0] == 405
    # All other pages require sign-in.
    assert httpx.get(f"{url}/").status_code == 303
    assert database.audit.count_documents({}) == 0, "deliveries are in the audit log"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (0, "")
    assert database.leases.find_one({"_id": "feeds push"})["holders"] == []


def test_second_app_does_not_request_subscriptions(
    freshet: Freshet, database: Db, hub: Hub
) -> None:
    put_user(database, "anna")
    words = (
        "web",
        "--no-service",
        "--port",
        0,
        "--public-url",
        "https://public.example",
        "--push-check-seconds",
        1,
    )
    (first, written), (second, later) = started(freshet, *words), started(freshet, *words)
    wait_for(lambda: (database.leases.find_one({"_id": "feeds push"}) or {}).get("holders"))
    put(database, f"{hub.url}/silent")
    until_state(database, "requested")
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
    errors = [
        text + process.communicate(timeout=PATIENCE_SECONDS)[1]
        for text, process in ((written, first), (later, second))
    ]
    assert (first.returncode, second.returncode) == (0, 0)
    paused = [err for err in errors if "Requesting subscriptions paused, retrying: another" in err]
    assert len(paused) == 1
    assert hub.asked("/silent") == 1


def test_a_public_app_without_users_is_refused(freshet: Freshet) -> None:
    done = freshet("web", "--port", 0, "--public-url", "https://public.example")
    assert (done.code, done.complaint) == (
        1,
        "scrapy web: --public-url: anyone who knows the URL could change everything. "
        "Run scrapy web user add NAME --role editor first",
    )


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("--public-url", "public.example"), "--public-url: 'public.example' is not an http"),
        (("--public-url", "https://a.example/?x"), "--public-url"),
        (("--public-url", "https://a.example", "--push-lease-days", "99"), "--push-lease-days"),
        (
            ("--public-url", "https://a.example", "--push-check-seconds", "x"),
            "--push-check-seconds",
        ),
    ],
)
def test_invalid_options_are_one_line_errors(
    freshet: Freshet, words: tuple[str, ...], begins: str
) -> None:
    done = run(freshet, "web", "--port", 0, *words)
    assert done.code == 1
    assert done.complaint.startswith(f"scrapy web: {begins}")


def test_callback_exists_only_with_push(stored: tuple[Db, str]) -> None:
    put_user(stored[0], "anna")
    path = f"/websub/{'A' * 48}"
    with browsers_of(stored[1], WebOptions(host="0.0.0.0")) as make:
        assert make().request("POST", path, content=b"x").status_code == 404
    with browsers_of(stored[1], OPTIONS) as make:
        assert make().get("/").status_code == 303
