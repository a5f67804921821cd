"""Channels of notifications are made, tested, edited and removed in the web app alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from crawler.notify.stored_channels import key_file
from crawler.web.options import WebOptions
from tests.integration.harness import Db
from tests.integration.notify.test_sending import MailServer, running
from tests.integration.notify.webhooks import Hooks, serving, status
from tests.integration.web.browser import Browser, browsers_of

MAIL = {
    "service": "mail", "name": "mail", "security": "none", "sender": "freshet@example.com",
    "to": "a@example.org, b@example.org", "port": "", "user": "", "password": "", "digest": "",
    "quiet_hours": "", "timezone": "UTC",
}  # fmt: skip


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with serving() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "notify.toml"


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with running(MailServer()) as server:
        yield server


@pytest.fixture
def local(stored: tuple[Db, str], file: Path, hooks: Hooks, mail: MailServer) -> Iterator[Browser]:
    hosts = f"{hooks.place},127.0.0.1:{mail.port}"
    with browsers_of(stored[1], WebOptions(), notify_file=file, private_hosts=hosts) as make:
        yield make(address="127.0.0.1")


def send(browser: Browser, path: str, **form: Any) -> Any:
    token = browser.token("/notifications/channels/new?service=mail")
    return browser.post(f"/notifications{path}", {"csrf": token} | form)


def test_without_channels_the_page_says_what_to_do(local: Browser) -> None:
    page = local.get("/notifications").text
    assert "No channels yet" in page
    assert 'href="/notifications/channels/new"' in page
    chooser = local.get("/notifications/channels/new").text
    for service in ("Mail", "Webhook", "Slack", "Telegram", "ntfy"):
        assert f">{service}</a>" in chooser
        assert local.get(f"/notifications/channels/new?service={service.lower()}").is_success
    assert local.get("/notifications/channels/new?service=x").status_code == 404


def test_webhook_shows_its_secret_once(local: Browser, database: Db, hooks: Hooks) -> None:
    url = f"http://{hooks.place}/t0ken-of-the-team"
    made = send(local, "/channels", service="webhook", name="team", url=url)
    (secret,) = re.findall(r">(whsec_[^<]+)<", made.text)
    sent = send(local, "/test", channel="team")
    assert "accepted the test message" in local.get(sent.headers["location"]).text
    ((path, headers, body),) = hooks.received
    assert path == "/t0ken-of-the-team"
    assert Webhook(secret).verify(body, {key.lower(): value for key, value in headers.items()})
    for shown in ("/notifications", "/notifications/channel?name=team",
                  "/notifications/channels/edit?name=team", "/api/v1/notifications"):  # fmt: skip
        text = local.get(shown).text
        assert "t0ken" not in text, shown
        assert "whsec_" not in text, shown
    stored = json.dumps(database.notification_channels.find_one(), default=str)
    assert "whsec_" not in stored
    assert "t0ken" not in stored
    # An edit without a URL keeps the URL and the secret.
    edited = send(local, "/channels", service="webhook", name="team", edits="0", digest="day")
    assert edited.status_code == 303
    assert "digest every day" in local.get("/notifications/channel?name=team").text
    send(local, "/test", channel="team")
    assert len(hooks.received) == 2
    assert hooks.received[1][0] == path


def test_answer_of_the_other_side_is_shown(local: Browser, hooks: Hooks) -> None:
    hooks.answers = [status(404, b"no such hook")]
    send(local, "/channels", service="webhook", name="team", url=f"http://{hooks.place}/x")
    answer = send(local, "/test", channel="team")
    assert answer.status_code == 422
    assert "Not delivered: HTTP 404: no such hook" in answer.text


def test_mail_is_sent(local: Browser, mail: MailServer) -> None:
    form = MAIL | {"host": "127.0.0.1", "port": str(mail.port)}
    made = send(local, "/channels", **form)
    assert made.status_code == 303, made.text
    assert "Send a test message to see whether it works" in local.get(made.headers["location"]).text
    send(local, "/test", channel="mail")
    (email,) = mail.emails
    assert b"Subject: " in email
    shown = local.get("/notifications/channels/edit?name=mail").text
    assert "a@example.org, b@example.org" in shown


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"to": "nobody"}, "is not an email address"),
        ({"host": "two words"}, "must match the pattern"),
        ({"name": "a b"}, "use letters, digits, dots"),
        ({"user": "anna"}, "user name and password belong together"),
        ({"quiet_hours": "late"}, "invalid hours"),
        ({"timezone": "Mars"}, "Mars"),
        ({"port": "x"}, "port"),
        ({"security": "none", "user": "a", "password": "b", "host": "mail.example"}, "unencrypted"),
        ({"service": "telegram", "first": "a b"}, "letters, digits"),
    ],
)
def test_problems_are_at_their_fields(
    local: Browser, database: Db, change: dict[str, str], problem: str
) -> None:
    answer = send(local, "/channels", **{**MAIL, "host": "mail.example", **change})
    assert answer.status_code == 422
    assert problem in re.sub(r"<[^>]+>", "", answer.text)
    assert database.notification_channels.count_documents({}) == 0


def test_names_are_unique_and_edits_are_not_lost(local: Browser, file: Path, hooks: Hooks) -> None:
    url = f"http://{hooks.place}/x"
    send(local, "/channels", service="webhook", name="team", url=url)
    again = send(local, "/channels", service="webhook", name="team", url=url)
    assert "there is a channel named" in again.text
    other = send(local, "/channels", service="webhook", name="team", edits="7", url=url)
    assert "someone has changed or removed this channel" in other.text
    file.write_text(
        '[channels.ops]\nsmtp = {host = "mail.example", from = "a@b.example", to = "c@d.example"}\n'
    )
    taken = send(local, "/channels", service="webhook", name="ops", url=url)
    assert "notify.toml has a channel with this name" in taken.text
    page = local.get("/notifications").text
    assert "in notify.toml" in page
    assert ">team</bdi>" in page


def test_channel_without_its_key_says_so(local: Browser, file: Path, hooks: Hooks) -> None:
    send(local, "/channels", service="webhook", name="team", url=f"http://{hooks.place}/x")
    key_file(file).unlink()
    page = local.get("/notifications").text
    assert "its secrets cannot be read on this machine. Copy notify.key" in page
    kept = send(local, "/channels", service="webhook", name="team", edits="0")
    assert kept.status_code == 422
    again = send(
        local, "/channels", service="webhook", name="team", edits="0", url=f"http://{hooks.place}/y"
    )
    assert "whsec_" in again.text, "a new secret, as the old one is lost"
    send(local, "/test", channel="team")
    assert hooks.received[0][0] == "/y"


def test_programs_make_channels(local: Browser, database: Db, hooks: Hooks) -> None:
    headers = {"X-CSRF-Token": local.token("/notifications/channels/new?service=mail")}
    path, body = "/api/v1/notifications/channels/team", {"service": "webhook"}
    body["url"] = f"http://{hooks.place}/x"
    made = local.request("PUT", path, json=body, headers=headers)
    assert made.status_code == 200, made.text
    assert made.json()["secret"].startswith("whsec_")
    again = local.request("PUT", path, json={"service": "webhook"}, headers=headers)
    assert again.json() == {"name": "team", "secret": None}
    wrong = local.request("PUT", path, json={"service": "smoke"}, headers=headers)
    assert wrong.status_code == 422
    assert local.request("DELETE", path, headers=headers).status_code == 204
    assert database.notification_channels.count_documents({}) == 0
    assert local.request("DELETE", path, headers=headers).status_code == 404
