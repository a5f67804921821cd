"""Channel configuration, and the times at which a channel may send."""

from __future__ import annotations

import base64
import tomllib
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from crawler.errors import ConfigError
from crawler.notify.channels import (
    Channel,
    digest_due,
    next_attempt,
    open_from,
    valid_channels,
    without_secrets,
)
from tests.unit.channels import channels_in

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
TOML = """
[channels.shop-team]
webhook = "https://hooks.example.com/freshet"
secret = "${HOOK_SECRET}"
quiet_hours = "22:00-07:00"
timezone = "Europe/Berlin"

[channels.mail]
digest = "day"
[channels.mail.smtp]
host = "mail.example.com"
user = "freshet"
password = "${MAIL_PASSWORD}"
from = "Freshet <freshet@example.com>"
to = "me@example.com"

[channels.chat]
apprise = "slack://${CHAT_TOKEN}/channel"
"""


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.setenv("MAIL_PASSWORD", "pass word")
    monkeypatch.setenv("CHAT_TOKEN", "a/b")


def channel(**keys: Any) -> Channel:
    return Channel.model_validate({"apprise": "json://localhost"} | keys)


def error_of(**table: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        channels_in({"channels": {"team": table}}, "notify.toml")
    message = str(raised.value)
    assert "\n" not in message
    return message


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_channels_are_read_from_tables() -> None:
    channels = channels_in(tomllib.loads(TOML), "notify.toml")
    assert {name: each.kind for name, each in channels.items()} == {
        "shop-team": "webhook", "mail": "smtp", "chat": "apprise",
    }  # fmt: skip
    assert channels["shop-team"].secret == SECRET
    assert channels["mail"].smtp is not None
    assert channels["mail"].smtp.password == "pass word"
    assert channels["mail"].smtp.to == ("me@example.com",)
    assert channels["chat"].apprise == ("slack://a%2Fb/channel",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("POST https://hooks.example.com/T0/abcdefgh failed", "POST *** failed"),
        ("no /T0/abcdefgh here", "no /T0/*** here"),
        ("cut at abcdefg", "cut at ***"),
        ("abc", "abc"),
        (f"signed by {SECRET}", "signed by ***"),
    ],
)
def test_secrets_are_replaced_in_reasons(text: str, expected: str) -> None:
    hook = Channel.model_validate(
        {"webhook": "https://hooks.example.com/T0/abcdefgh", "secret": "${HOOK_SECRET}"}
    )
    assert without_secrets(hook, text) == expected


def test_smtp_and_apprise_secrets_are_replaced() -> None:
    channels = channels_in(tomllib.loads(TOML), "notify.toml")
    assert without_secrets(channels["mail"], "535 pass word is wrong") == "535 *** is wrong"
    token = channel(apprise="slack://T1AB2C3D4/x")
    assert without_secrets(token, "no T1AB2C3D4") == "no ***"


def test_invalid_channel_does_not_disable_others() -> None:
    tables = tomllib.loads(TOML)
    tables["channels"]["chat"]["digest"] = "year"
    channels, problems = valid_channels(tables, "notify.toml")
    assert list(channels) == ["shop-team", "mail"]
    assert "channel 'chat': digest: " in problems["chat"]


def test_missing_channels_table_is_empty() -> None:
    assert channels_in({"rules": []}, "notify.toml") == {}


def test_repr_hides_secrets() -> None:
    shown = repr(channels_in(tomllib.loads(TOML), "notify.toml"))
    assert not any(secret in shown for secret in (SECRET, "pass word", "a%2Fb"))


@pytest.mark.parametrize(
    ("keys", "key", "cause"),
    [
        ({}, "", "needs exactly one of webhook, smtp and apprise"),
        ({"apprise": "json://a", "smtp": {"host": "h", "from": "a@b.c", "to": "a@b.c"}}, "",
         "needs exactly one"),
        ({"webhok": "https://a.example"}, "webhok", "unknown key"),
        ({"webhook": "https://a.example"}, "", "webhook and secret belong together"),
        ({"webhook": "https://a.example", "secret": SECRET}, "secret", "keep secrets"),
        ({"webhook": "https://a.example", "secret": "${CHAT_TOKEN}"}, "secret", "24 to 64 bytes"),
        ({"webhook": "https://a.example", "secret": "${NOT_SET}"}, "secret",
         "environment variable NOT_SET is not set"),
        ({"webhook": "https://me:pw@a.example/", "secret": "${HOOK_SECRET}"}, "webhook",
         "passwords and tokens in the environment"),
        ({"webhook": "https://me@a.example/", "secret": "${HOOK_SECRET}"}, "webhook",
         "without user name"),
        ({"webhook": "https://a.example:0/", "secret": "${HOOK_SECRET}"}, "webhook",
         "http or https"),
        ({"webhook": "ftp://a.example/", "secret": "${HOOK_SECRET}"}, "webhook", "http or https"),
        ({"apprise": "slack://T1JJ3T3L2A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"}, "apprise.0",
         "passwords and tokens in the environment"),
        ({"apprise": ["json://a", "nonsense"]}, "apprise.1", "not a URL"),
        ({"apprise": "json://a", "quiet_hours": "22-7"}, "quiet_hours", "'22:00-07:00'"),
        ({"apprise": "json://a", "quiet_hours": "07:00-07:00"}, "quiet_hours", "invalid hours"),
        ({"apprise": "json://a", "timezone": "Mars"}, "timezone", "unknown time zone"),
        ({"apprise": "json://a", "digest": "month"}, "digest", "'hour', 'day' or 'week'"),
        ({"apprise": "json://a", "template": "a\n{{ event.prise }}"}, "template", "line 2: "),
        ({"apprise": "json://a", "subject": "{% if %}"}, "subject", "line 1: "),
        ({"apprise": "json://a", "html": "<p>"}, "", "only emails have an HTML part"),
    ],
)  # fmt: skip
def test_an_error_names_file_channel_and_key(keys: dict[str, Any], key: str, cause: str) -> None:
    message = error_of(**keys)
    assert message.startswith(f"notify.toml: channel 'team': {key}")
    assert cause in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ({"password": "literal", "user": "me"}, "smtp.password: keep secrets in the environment"),
        ({"user": "me"}, "user and password belong together"),
        (
            {"tls": True},
            "smtp.tls: unknown key. Available: host, port, security, user, password, from, to",
        ),
        ({"password": "${MAIL_PASSWORD}", "user": "me", "security": "none"}, "sent unencrypted"),
        ({"from": "nobody"}, "smtp.from: 'nobody' is not an email address"),
        ({"from": "a@b.c\nBcc: d@e.f"}, "is not an email address"),
        ({"from": "a@b.c,d@e.f"}, "is not an email address"),
        ({"from": "A <a@b.c>, D <d@e.f>"}, "is not an email address"),
        ({"from": "a@b.c d@e.f"}, "is not an email address"),
        ({"from": "a@b.c; d@e.f"}, "is not an email address"),
        ({"from": "team: a@b.c;"}, "is not an email address"),
        ({"from": "a@b.c,"}, "is not an email address"),
        ({"from": "<a@b.c"}, "is not an email address"),
        ({"to": ["a@b.c,d@e.f"]}, "smtp.to.0: 'a@b.c,d@e.f' is not an email address"),
        ({"to": []}, "smtp.to: "),
        ({"to": ["a@b.c", "a b@c"]}, "smtp.to.1: 'a b@c' is not an email address"),
    ],
)
def test_invalid_smtp_settings_are_rejected(keys: dict[str, Any], cause: str) -> None:
    smtp = {"host": "mail.example.com", "from": "a@b.c", "to": "a@b.c"} | keys
    assert cause in error_of(smtp=smtp)


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ({"channels": [1]}, "channels: not a table"),
        ({"channels": {"a b": {}}}, "invalid channel name: 'a b'"),
        ({"channels": {"a": 3}}, "channel 'a': "),
        ({"channels": {f"c{n}": {} for n in range(51)}}, "more than 50 channels"),
    ],
)
def test_invalid_channel_tables_are_rejected(keys: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        channels_in(keys, "notify.toml")


def test_retry_delays_grow_from_a_minute_to_six_hours() -> None:
    waits = []
    for attempts in range(1, 12):
        due = next_attempt(channel(), attempts, NOON, NOON, Random(1))
        assert due is not None
        waits.append((due - NOON) / timedelta(minutes=1))
    assert 0.75 <= waits[0] <= 1
    assert waits[:9] == sorted(waits[:9])
    assert 270 <= waits[-1] <= 360


def test_no_attempt_after_retry_hours() -> None:
    once = channel(retry_hours=0)
    assert next_attempt(once, 1, NOON, NOON, Random(1)) is None
    late = NOON + timedelta(hours=71)
    assert next_attempt(channel(), 20, NOON, late, Random(1)) is None


@pytest.mark.parametrize(
    ("zone", "moment", "expected"),
    [
        # Before, at the start, after midnight, at the end.
        ("UTC", "2026-05-01T21:59:59Z", "2026-05-01T21:59:59Z"),
        ("UTC", "2026-05-01T22:00:00Z", "2026-05-02T07:00:00Z"),
        ("UTC", "2026-05-02T03:04:05Z", "2026-05-02T07:00:00Z"),
        ("UTC", "2026-05-02T07:00:00Z", "2026-05-02T07:00:00Z"),
        ("Asia/Kolkata", "2026-05-01T16:30:00Z", "2026-05-02T01:30:00Z"),
        # The night at the start of summer time lasts eight hours, the night at its end ten.
        ("Europe/Berlin", "2026-03-28T21:00:00Z", "2026-03-29T05:00:00Z"),
        ("Europe/Berlin", "2026-10-24T20:00:00Z", "2026-10-25T06:00:00Z"),
    ],
)
def test_quiet_hours_over_midnight(zone: str, moment: str, expected: str) -> None:
    night = channel(quiet_hours="22:00-07:00", timezone=zone)
    assert open_from(night, at(moment)) == at(expected)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        # In spring there is no 02:30: the clock is set from 02:00 to 03:00.
        ("2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z"),
        # In fall, 02:30 occurs twice, and quiet hours continue until the second one.
        ("2026-10-25T00:10:00Z", "2026-10-25T00:30:00Z"),
        ("2026-10-25T01:10:00Z", "2026-10-25T01:30:00Z"),
    ],
)
def test_quiet_hours_end_at_a_clock_change(moment: str, expected: str) -> None:
    night = channel(quiet_hours="01:00-02:30", timezone="Europe/Berlin")
    assert open_from(night, at(moment)) == at(expected)


def test_quiet_hours_within_a_day() -> None:
    nap = channel(quiet_hours="12:00 - 14:00")
    assert open_from(nap, NOON) == at("2026-05-01T14:00:00Z")
    assert open_from(nap, at("2026-05-01T23:00:00Z")) == at("2026-05-01T23:00:00Z")


@pytest.mark.parametrize(
    ("keys", "moment", "expected"),
    [
        ({"digest": "hour"}, "2026-05-01T12:00:00Z", "2026-05-01T13:00:00Z"),
        ({"digest": "hour", "timezone": "Asia/Kolkata"}, "2026-05-01T12:10:07.5Z",
         "2026-05-01T12:30:00Z"),
        ({"digest": "day"}, "2026-05-01T07:59:00Z", "2026-05-01T08:00:00Z"),
        ({"digest": "day"}, "2026-05-01T08:00:00Z", "2026-05-02T08:00:00Z"),
        # The day on which summer time begins has 23 hours.
        ({"digest": "day", "timezone": "Europe/Berlin"}, "2026-03-28T07:00:00Z",
         "2026-03-29T06:00:00Z"),
        ({"digest": "day", "digest_at": "02:30", "timezone": "Europe/Berlin"},
         "2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z"),
        # 1 May 2026 is a Friday.
        ({"digest": "week"}, "2026-05-01T12:00:00Z", "2026-05-04T08:00:00Z"),
        ({"digest": "week"}, "2026-05-04T08:00:00Z", "2026-05-11T08:00:00Z"),
        ({"digest": "day", "digest_at": "06:00", "quiet_hours": "22:00-07:00"},
         "2026-05-01T12:00:00Z", "2026-05-02T07:00:00Z"),
        ({}, "2026-05-01T12:00:00Z", "2026-05-01T12:00:00Z"),
    ],
)  # fmt: skip
def test_digest_schedule(keys: dict[str, Any], moment: str, expected: str) -> None:
    assert digest_due(channel(**keys), at(moment)) == at(expected)
