"""Channels of the web app: URLs of chat services, and encrypted secrets."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crawler.errors import ConfigError
from crawler.notify.event_views import EventView
from crawler.notify.messages import message_of
from crawler.notify.senders import DeliveryFailed, send
from crawler.notify.stored_channels import chat_url, checked, key_file, new_secret, sealed, unsealed

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("service", "first", "second", "url"),
    [
        ("slack", "https://hooks.slack.com/services/T1/B2/x3", "", None),
        ("discord", " https://discord.com/api/webhooks/12/to-ken ", "",
         "https://discord.com/api/webhooks/12/to-ken"),
        ("telegram", "123:AA-b_c", "-100200", "tgram://123:AA-b_c/-100200"),
        ("pushover", "user1", "token2", "pover://user1@token2"),
        ("ntfy", "", "my-topic", "ntfys://ntfy.sh/my-topic"),
        ("ntfy", "http://ntfy.example:8080", "t", "ntfy://ntfy.example:8080/t"),
        ("gotify", "push.example", "AbC", "gotifys://push.example/AbC"),
        ("mattermost", "https://chat.example/hooks/abc", "", "mmosts://chat.example/abc"),
    ],
)  # fmt: skip
def test_url_of_a_chat_service(service: str, first: str, second: str, url: str | None) -> None:
    assert chat_url(service, first, second) == (url or first)
    assert checked({"apprise": [url or first]}).apprise == (url or first,)


@pytest.mark.parametrize(
    ("service", "first", "second", "problem"),
    [
        ("slack", "https://hooks.slack.com.evil.example/services/x", "", "first: not a webhook"),
        ("discord", "file:///etc/passwd", "", "first: not a webhook"),
        ("telegram", "", "1", "first: letters"),
        ("telegram", "1:a", "a/../b", "second: letters"),
        ("pushover", "user", "to ken", "second: letters"),
        ("ntfy", "https://user@host", "t", "first: not the address"),
        ("ntfy", "https://host/path", "t", "first: the address of the server has no path"),
        ("gotify", "exec://host", "t", "first: not the address"),
        ("mattermost", "https://chat.example/", "", "first: not a webhook"),
        ("mattermost", "https://[", "", "first: not the address"),
        ("syslog", "a", "b", "service: 'syslog' is not one of the services"),
    ],
)
def test_other_values_are_refused(service: str, first: str, second: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        chat_url(service, first, second)


def test_variables_of_the_machine_are_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_PASSWORD", "geheim")
    channel = checked({"apprise": ["ntfys://ntfy.sh/${MONGO_PASSWORD}"]})
    assert channel.apprise == ("ntfys://ntfy.sh/${MONGO_PASSWORD}",)


def test_secrets_can_only_be_read_with_the_key(tmp_path: Path) -> None:
    file = tmp_path / "notify.toml"
    token = sealed(file, {"password": "hunter22"})
    assert b"hunter22" not in token
    assert unsealed(file, token) == {"password": "hunter22"}
    key = key_file(file)
    assert (key.name, key.stat().st_mode & 0o777) == ("notify.key", 0o600)
    assert sealed(file, {}) != sealed(file, {}), "the key is made once, tokens differ"
    for content in (b"", b"other", key.read_bytes()[::-1]):
        key.write_bytes(content)
        with pytest.raises(ConfigError, match=r"cannot be read on this machine\. Copy notify\.key"):
            unsealed(file, token)
    key.write_bytes(b"not a key")
    with pytest.raises(ConfigError, match=r"notify\.key: not a key"):
        sealed(file, {})


@pytest.mark.parametrize(
    "keys",
    [
        {"smtp": {"host": "localhost", "security": "none", "port": 2525, "from": "a@b.example",
                  "to": ["c@d.example"]}},
        {"apprise": ["ntfy://127.0.0.1:8080/topic"]},
        {"apprise": ["mmosts://localhost/abcdef"]},
        {"webhook": "http://127.0.0.1:9/hook", "secret": new_secret()},
    ],
)  # fmt: skip
def test_private_networks_are_refused(keys: dict[str, object]) -> None:
    event = EventView("changed", "shop", "https://shop.example/", "Lamp", NOON)
    with pytest.raises(DeliveryFailed, match="not on the public Internet"):
        asyncio.run(send(checked(keys), message_of("m1", [event]), 5))
