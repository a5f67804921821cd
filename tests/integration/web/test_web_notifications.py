"""Notifications in the web app: channels, dead letters, rules, previews, and the board."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from crawler.config import Config
from crawler.storage.notification_rules import WantedEvents
from crawler.storage.store import opened
from crawler.web.options import WebOptions
from tests.integration.harness import Db
from tests.integration.notify.webhooks import Hooks, serving, status
from tests.integration.web.browser import OPEN, Browser, Browsers, browsers_of, put_user

NOW = datetime.now(UTC).replace(microsecond=0)
PAGE = "https://shop.example/lamp"
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
FILE = """
[channels.team]
webhook = "http://{}/${{TOKEN}}"
secret = "${{TEAM_SECRET}}"
quiet_hours = "22:00-07:00"

[channels.broken]
apprise = "slack://${{NOT_SET}}"

[[rules]]
name = "of-file"
events = "changed"
channels = "team"
"""
RULE = {
    "name": "cheap", "events": ["changed", "gone"], "sites": "shop", "categories": "", "urls": "",
    "when": "price falls by 5 %\n", "failures": "3", "channels": ["team"],
}  # fmt: skip


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with serving() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEAM_SECRET", SECRET)
    monkeypatch.setenv("TOKEN", "t0ken-of-the-team")
    path = tmp_path / "notify.toml"
    path.write_text(FILE.format(hooks.place), encoding="utf-8")
    return path


@pytest.fixture
def local(stored: tuple[Db, str], file: Path) -> Iterator[Browser]:
    with browsers_of(stored[1], WebOptions(), notify_file=file) as make:
        yield make(address="127.0.0.1")


def put_message(db: Db, number: int, state: str = "dead", **fields: Any) -> str:
    """Store a message to the channel `team`; return its id."""
    at = NOW - timedelta(minutes=number)
    ended = {"dead": "dead_at", "delivered": "delivered_at", "dropped": "dropped_at"}
    row = {
        "_id": f"msg_{number}", "channel": "team", "rule": "of-file", "event": "changed",
        "spider": "shop", "target": PAGE, "at": at, "data": {}, "state": state, "due": at,
        "attempts": 9,
    }  # fmt: skip
    db.outbox.insert_one(row | ({ended[state]: at} if state in ended else {}) | fields)
    return f"msg_{number}"


def put_change(db: Db) -> None:
    """Store a page whose price fell an hour ago."""
    hashes, prices = ("a", "b"), (10.0, 8.0)
    for hours_ago, content_hash, price in zip((2, 1), hashes, prices, strict=True):
        at = NOW - timedelta(hours=hours_ago)
        content = {"title": "Lamp <b>", "price": {"amount": price, "currency": "€"}}
        db.versions.insert_one(
            {"_id": f"shop {PAGE} {content_hash}", "spider": "shop", "target": PAGE, "at": at,
             "content_hash": content_hash, "content": content, "size": 90}
        )  # fmt: skip
        db.visits.insert_one(
            {"spider": "shop", "target": PAGE, "outcome": "changed", "at": at, "changed": 1,
             "event": True, "news": True, "content_hash": content_hash, "status": 200,
             "get_size": 1, "update_size": 0, "diff_size": 0}
        )  # fmt: skip


def send(browser: Browser, path: str, **fields: Any) -> Any:
    """Send a form of the notifications area."""
    return browser.post(
        f"/notifications{path}", {"csrf": browser.token("/notifications/rule")} | fields
    )


def test_channels_are_shown_with_their_state(local: Browser, stored: tuple[Db, str]) -> None:
    put_message(stored[0], 1)
    put_message(stored[0], 2, "waiting", reason="HTTP 503", first_at=NOW)
    shown = local.get("/notifications").text
    for text in ("127.0.0.1", "NOT_SET is not set", "HTTP 503", "fails", "of-file"):
        assert text in shown
    assert "t0ken" not in shown
    report = local.get("/api/v1/notifications").json()
    team = {each["name"]: each for each in report["channels"]}["team"]
    assert (team["kind"], team["receiver"]) == ("webhook", "127.0.0.1")
    numbers = {name: team["messages"][name] for name in ("waiting", "retrying", "dead", "broken")}
    assert numbers == {"waiting": 1, "retrying": 1, "dead": 1, "broken": True}
    page = local.get("/notifications/channel?name=team").text
    assert PAGE in page
    assert "at most 60 an hour; quiet 22:00-07:00 (UTC)" in page
    assert local.get("/notifications/channel?name=nobody").status_code == 404


def test_board_shows_dead_letters_and_broken_channels(
    local: Browser, stored: tuple[Db, str]
) -> None:
    put_message(stored[0], 1)
    board = local.get("/").text
    assert "1 dead letter" in board
    assert "NOT_SET is not set" in board
    alerts = local.get("/api/v1/notifications/alerts").json()["alerts"]
    assert [(each["channel"], each["dead"], each["broken"]) for each in alerts] == [
        ("broken", 0, True), ("team", 1, False),
    ]  # fmt: skip


def test_board_omits_working_channels(local: Browser, stored: tuple[Db, str], file: Path) -> None:
    file.write_text(file.read_text().replace("${NOT_SET}", "${TOKEN}"), encoding="utf-8")
    put_message(stored[0], 1, "waiting", attempts=0)
    put_message(stored[0], 2, "delivered")
    assert "Channel" not in local.get("/").text


def test_dead_letters_are_retried_and_discarded(local: Browser, stored: tuple[Db, str]) -> None:
    db = stored[0]
    keys = [put_message(db, number, reason="HTTP 404") for number in range(4)]
    assert send(local, "/retry", channel="team", id=keys[0]).status_code == 303
    assert send(local, "/discard", channel="team", id=keys[1]).status_code == 303
    # A letter of another channel is kept.
    send(local, "/discard", channel="other", id=keys[2])
    left = {row["_id"]: row["state"] for row in db.outbox.find()}
    assert left == {keys[0]: "waiting", keys[2]: "dead", keys[3]: "dead"}
    send(local, "/retry", channel="team")
    assert db.outbox.count_documents({"state": "waiting", "attempts": 0}) == 3
    put_message(db, 9)
    assert send(local, "/discard", channel="team").status_code == 303
    assert db.outbox.count_documents({"state": "dead"}) == 0
    actions = [(row["action"], row["detail"]) for row in db.audit.find().sort("at")]
    assert ("POST /notifications/retry", "team: 1 message") in actions


def test_messages_are_paginated(local: Browser, stored: tuple[Db, str]) -> None:
    for number in range(5):
        put_message(stored[0], number)
    first = local.get("/api/v1/notifications/messages?channel=team&limit=3").json()
    rest = local.get(
        f"/api/v1/notifications/messages?channel=team&limit=3&cursor={first['next']}"
    ).json()
    assert [row["id"] for row in first["messages"] + rest["messages"]] == [
        f"msg_{number}" for number in range(5)
    ]
    assert rest["next"] is None


def test_a_test_message_is_sent(local: Browser, hooks: Hooks, stored: tuple[Db, str]) -> None:
    done = send(local, "/test", channel="team")
    assert done.status_code == 303
    assert "accepted the test message" in local.get(done.headers["location"]).text
    assert hooks.received[0][0] == "/t0ken-of-the-team"
    # The receiver's response contains the path with the token.
    hooks.answers = [status(403, b"no access to /t0ken-of-the-team")]
    refused = send(local, "/test", channel="team")
    assert refused.status_code == 422
    assert "HTTP 403: no access to /***" in refused.text
    assert "NOT_SET is not set" in send(local, "/test", channel="broken").text
    assert "t0ken" not in str(list(stored[0].audit.find()))


def test_rules_are_added_edited_and_removed(local: Browser, stored: tuple[Db, str]) -> None:
    db = stored[0]
    assert send(local, "/rule", **RULE).status_code == 303
    keys = db.notification_rules.find_one({"_id": "cheap"})["keys"]
    assert (keys["when"], keys["channels"]) == (["price falls by 5 %"], ["team"])
    assert "price falls by 5 %" in local.get("/notifications").text
    form = local.get("/notifications/rule?key=cheap").text
    assert 'name="edits" value="0"' in form
    edited = {"key": "cheap", "edits": "0", "events": ["new"], "when": ""}
    assert send(local, "/rule", **RULE | edited).status_code == 303
    late = send(local, "/rule", **RULE | edited)
    assert late.status_code == 422
    assert "Someone has changed or removed this rule" in late.text
    assert db.notification_rules.find_one({"_id": "cheap"})["keys"]["events"] == ["new"]
    assert send(local, "/rule/remove", key="cheap").status_code == 303
    assert db.notification_rules.count_documents({}) == 0
    assert send(local, "/rule/remove", key="cheap").status_code == 404


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a b"}, "must match the pattern"),
        ({"name": "of-file"}, "has a rule with this name"),
        ({"events": []}, "needs at least 1"),
        ({"channels": []}, "needs at least 1"),
        ({"when": "price is low"}, "invalid condition"),
        ({"urls": "(?="}, ""),
        ({"urls": "a" * 1001}, "longer than 1,000 characters"),
        ({"sites": "a\n" * 101}, "has more than 100"),
        ({"failures": "many"}, "not a whole number"),
    ],
)
def test_an_invalid_rule_is_not_stored(
    local: Browser, stored: tuple[Db, str], fields: dict[str, Any], problem: str
) -> None:
    answer = send(local, "/rule", **RULE | fields)
    assert answer.status_code == 422
    assert problem in answer.text
    assert "price falls by 5 %" in answer.text or "when" in fields
    assert stored[0].notification_rules.count_documents({}) == 0


def test_a_rule_is_previewed_on_past_events(local: Browser, stored: tuple[Db, str]) -> None:
    put_change(stored[0])
    send(local, "/rule", **RULE)
    shown = local.get("/notifications/preview?key=cheap").text
    assert "1 message; none was sent" in shown
    assert "Lamp &lt;b&gt;" in shown
    assert "€10 → €8" in shown
    (message,) = local.get("/api/v1/notifications/preview?key=cheap").json()["messages"]
    assert (message["channel"], message["target"]) == ("team", PAGE)
    # Form values without a name and a channel.
    query = "events=changed&when=price%20falls%20by%2050%20%25"
    assert "none of the last 20 events" in local.get(f"/notifications/preview?{query}").text
    assert "1 message" in local.get("/notifications/preview?events=changed&when=price<9").text
    invalid = local.get("/notifications/preview?events=changed&when=price")
    assert invalid.status_code == 422
    assert "invalid condition" in invalid.text
    assert stored[0].outbox.count_documents({}) == 0


@pytest.mark.parametrize("root", ["", "/app"])
def test_messages_link_to_the_web_app(stored: tuple[Db, str], file: Path, root: str) -> None:
    db, uri = stored
    put_change(db)
    db.targets.insert_one(
        {"_id": f"shop {PAGE}", "spider": "shop", "url": PAGE, "kind": "item", "categories": [],
         "first_seen": NOW, "next_visit": NOW}
    )  # fmt: skip
    web_url = f"https://freshet.example{root}"
    with browsers_of(uri, WebOptions(), notify_file=file, web_url=f"{web_url}/") as make:
        browser = make(address="127.0.0.1")
        send(browser, "/rule", **RULE)
        (message,) = browser.get("/api/v1/notifications/preview?key=cheap").json()["messages"]
        link = message["text"].splitlines()[-1]
        assert link.startswith(f"{web_url}/targets/")
        assert PAGE in browser.get(link.removeprefix(web_url)).text


def test_the_api_stores_rules(local: Browser, stored: tuple[Db, str]) -> None:
    keys = {"events": ["gone"], "channels": ["team"]}
    made = local.request("PUT", "/api/v1/notifications/rules/gone", json={"keys": keys})
    assert (made.status_code, made.json()["source"]) == (200, "web app")
    again = {"events": ["gone", "back"], "channels": ["team"]}
    assert local.request("PUT", "/api/v1/notifications/rules/gone", json={"keys": again}).is_success
    rules = local.get("/api/v1/notifications/rules").json()["rules"]
    assert [(each["key"], each["source"]) for each in rules] == [
        ("of-file", "notify.toml"), ("gone", "web app"),
    ]  # fmt: skip
    taken = local.request("PUT", "/api/v1/notifications/rules/of-file", json={"keys": keys})
    assert taken.status_code == 422
    invalid = local.request("PUT", "/api/v1/notifications/rules/x", json={"keys": {"evnts": 1}})
    assert invalid.status_code == 422
    assert local.request("DELETE", "/api/v1/notifications/rules/gone").json()["key"] == "gone"
    assert stored[0].notification_rules.count_documents({}) == 0


def test_an_invalid_file_is_reported_and_rules_stay_editable(
    local: Browser, file: Path, stored: tuple[Db, str]
) -> None:
    send(local, "/rule", **RULE)
    put_message(stored[0], 1, "waiting", attempts=0)
    file.write_text("[channels", encoding="utf-8")
    shown = local.get("/notifications").text
    assert "not valid TOML" in shown
    assert "price falls by 5 %" in shown
    assert "not valid TOML" in local.get("/").text
    assert send(local, "/rule/remove", key="cheap").status_code == 303


def test_viewers_cannot_change_notifications(stored: tuple[Db, str], file: Path) -> None:
    db, uri = stored
    put_user(db, "anna")
    put_user(db, "vic", "viewer")  # type: ignore[arg-type]
    key = put_message(db, 1)
    with browsers_of(uri, OPEN, notify_file=file) as make:
        assert isinstance(make, Browsers)
        vic = make()
        vic.sign_in("vic")
        page = vic.get("/notifications/channel?name=team").text
        assert "Send again" not in page
        assert "Send a test message" not in page
        token = vic.token("/notifications")
        for path in ("/retry", "/discard", "/test", "/rule", "/rule/remove"):
            form = {"csrf": token, "channel": "team", "id": key, "key": "of-file"}
            assert vic.post(f"/notifications{path}", form).status_code == 403, path
        anna = make()
        anna.sign_in("anna")
        forged = anna.post("/notifications/discard", {"channel": "team"})
        assert forged.status_code == 403
    assert db.outbox.count_documents({"state": "dead"}) == 1


def test_crawls_mark_events_of_stored_rules(
    local: Browser, stored: tuple[Db, str], tmp_path: Path
) -> None:
    send(local, "/rule", **RULE)

    async def wanted(site: str) -> Any:
        async with opened(Config.load(mongo_uri=stored[1])) as db:
            return await WantedEvents(db, tmp_path / "none.toml", (), site).read()

    assert asyncio.run(wanted("other")) is None
    assert {str(event) for event in asyncio.run(wanted("shop")).events} == {"changed", "gone"}


def test_rule_is_a_sentence(local: Browser, database: Db) -> None:
    put_change(database)
    page = local.get("/notifications").text
    assert "What would it have sent?" in page
    words = {"what": "falls", "percent": "5", "site": "shop", "category": "", "channel": "team"}
    shown = local.get(f"/notifications/preview?{urlencode(words)}").text
    assert "1 message; none was sent." in shown
    shown = local.get(f"/notifications/preview?{urlencode(words | {'percent': '50'})}").text
    assert "No message" in shown
    for number, name in enumerate(("price-falls-shop", "price-falls-shop-2"), start=1):
        assert send(local, "/sentence", **words).status_code == 303
        stored = database.notification_rules.find_one({"_id": name})
        assert stored["keys"]["when"] == ["price falls by 5 %"]
        assert database.notification_rules.count_documents({}) == number
    send(local, "/sentence", **words | {"what": "broken", "site": ""})
    assert database.notification_rules.find_one({"_id": "broken"})["keys"]["sites"] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"what": "x"}, "choose what happens"),
        ({"channel": ""}, "choose who is told"),
        ({"percent": "much"}, "not a number, such as 5"),
    ],
)
def test_problem_of_a_sentence_is_shown(
    local: Browser, database: Db, change: dict[str, str], problem: str
) -> None:
    words = {"what": "falls", "percent": "5", "site": "", "category": "", "channel": "team"}
    answer = send(local, "/sentence", **words | change)
    assert answer.status_code == 422
    assert problem in answer.text
    assert database.notification_rules.count_documents({}) == 0
