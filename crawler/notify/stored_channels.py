"""Channels that are made in the web app: their keys are stored, their secrets encrypted.

The key of the encryption is a file beside `notify.toml`, which the web app creates with the first
channel, so that neither the database nor its backups show a secret. Each machine that delivers
needs the file.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from cryptography.fernet import Fernet, InvalidToken
from pydantic import ValidationError

from crawler.errors import ConfigError
from crawler.extract.notification_rules import read_keys
from crawler.notify.channels import (
    MAX_CHANNELS,
    NAME,
    Channel,
    StoredChannel,
    problem_of,
    valid_channels,
)
from crawler.storage import notification_channels
from crawler.storage.client import Database, Document

Kind = Literal["mail", "webhook", "chat"]
SECRET_BYTES = 32
MAX_FIELD_CHARACTERS = 1000
# Services with a fixed host, and the pattern of the webhook URLs that they give out.
HOOKS = {
    "slack": re.compile(r"https://hooks\.slack(?:-gov)?\.com/(?:services|triggers)/\S+"),
    "discord": re.compile(r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/\d+/\S+"),
}
_TOKEN = re.compile(r"[A-Za-z0-9_.:@+=-]{1,300}")


def key_file(file: Path) -> Path:
    """Return the file with the key for the channels beside a `notify.toml`."""
    return file.with_suffix(".key")


def sealed(file: Path, values: Mapping[str, Any]) -> bytes:
    """Return values encrypted; creates the key. Raises ConfigError if it cannot be written."""
    place = key_file(file)
    try:
        if not place.exists():
            # A link, so that a crash leaves no empty file, and a second process no second key.
            descriptor, name = tempfile.mkstemp(prefix=f".{place.name}-", dir=place.parent)
            with os.fdopen(descriptor, "wb") as made:
                made.write(Fernet.generate_key())
            with suppress(FileExistsError):
                os.link(name, place)
            Path(name).unlink()
        return Fernet(place.read_bytes()).encrypt(json.dumps(values).encode())
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{place}: not a key. Restore the file from a backup") from None


def unsealed(file: Path, token: bytes) -> dict[str, Any]:
    """Return encrypted values; raises ConfigError if this machine does not have their key."""
    try:
        values: dict[str, Any] = json.loads(Fernet(key_file(file).read_bytes()).decrypt(token))
    except (OSError, ValueError, InvalidToken):
        raise ConfigError(
            f"its secrets cannot be read on this machine. Copy {key_file(file).name} from the "
            "machine of the web app, or enter the secrets again"
        ) from None
    return values


def new_secret() -> str:
    """Return a new secret that signs webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def checked(keys: Mapping[str, Any]) -> StoredChannel:
    """Return the channel with these keys, secrets included.

    Raises ConfigError, whose text begins with the key of the problem.
    """
    try:
        return StoredChannel.model_validate(keys, context={"stored": True})
    except ValidationError as error:
        key, cause = problem_of(error)
        raise ConfigError(f"{key}: {cause}") from None


def chat_url(service: str, first: str, second: str) -> str:
    """Return Apprise's URL for a chat service and the one or two values that it needs.

    Raises ConfigError, whose text begins with `first` or `second`.
    """
    build = _BUILDERS.get(service)
    if build is None:
        raise ConfigError(f"service: {service[:40]!r} is not one of the services")
    return build(service, first.strip(), second.strip())


def _hook(service: str, first: str, _: str) -> str:
    if HOOKS[service].fullmatch(first) is None:
        raise ConfigError(
            f"first: not a webhook URL of {service.title()}. Copy it from the settings of the "
            "channel there"
        )
    return first


def _mattermost(_: str, first: str, __: str) -> str:
    host, path, is_secure = _server(first)
    token = path.rpartition("/hooks/")[2]
    if "/hooks/" not in path or _TOKEN.fullmatch(token) is None:
        raise ConfigError("first: not a webhook URL. Example: https://chat.example.com/hooks/…")
    return f"mmost{'s' * is_secure}://{host}/{quote(token)}"


def _telegram(_: str, first: str, second: str) -> str:
    return f"tgram://{_token('first', first)}/{_token('second', second)}"


def _pushover(_: str, first: str, second: str) -> str:
    return f"pover://{_token('first', first)}@{_token('second', second)}"


def _self_hosted(service: str, first: str, second: str) -> str:
    host, path, is_secure = _server(first or "https://ntfy.sh")
    if path.strip("/"):
        raise ConfigError("first: the address of the server has no path")
    return f"{service}{'s' * is_secure}://{host}/{quote(_token('second', second))}"


_BUILDERS = {
    "slack": _hook, "discord": _hook, "mattermost": _mattermost, "telegram": _telegram,
    "pushover": _pushover, "ntfy": _self_hosted, "gotify": _self_hosted,
}  # fmt: skip


def _token(name: str, value: str) -> str:
    if _TOKEN.fullmatch(value) is None:
        raise ConfigError(f"{name}: letters, digits and a few signs, without spaces")
    return value


def _server(url: str) -> tuple[str, str, bool]:
    """Return host with port, path, and whether a URL is https; raises ConfigError."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        is_valid = parts.scheme in ("http", "https") and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        is_valid = False
    if not is_valid or not parts.hostname or re.search(r"[\s\x00-\x1f]", url):
        raise ConfigError("first: not the address of a server. Example: https://chat.example.com")
    return parts.netloc, parts.path, parts.scheme == "https"


async def store(
    db: Database, file: Path, name: str, service: str, channel: Mapping[str, Any],
    hidden: Mapping[str, Any], edit: notification_channels.Edit,
) -> None:  # fmt: skip
    """Store a channel; raises ConfigError if its keys are not valid or its name is taken.

    service: key of the form in which it was made
    channel: keys without secrets
    hidden:  keys with secrets, which are encrypted; of `smtp`, its `password`
    """
    if not NAME.fullmatch(name):
        raise ConfigError("name: use letters, digits, dots, hyphens and underscores")
    if name in (read_keys(file).get("channels") or {}):
        raise ConfigError("name: notify.toml has a channel with this name. Choose another one")
    checked(_joined(channel, hidden))
    token = sealed(file, hidden)
    row = {"service": service, "keys": dict(channel), "sealed": token}
    await notification_channels.put(db, name, row, edit, MAX_CHANNELS)


def _joined(channel: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    keys = {**channel, **{key: value for key, value in hidden.items() if key != "password"}}
    if "password" in hidden:
        keys["smtp"] = {**keys.get("smtp", {}), "password": hidden["password"]}
    return keys


def channel_of(file: Path, row: Document) -> StoredChannel:
    """Return a stored channel with its secrets; raises ConfigError."""
    return checked(_joined(row["keys"], unsealed(file, row["sealed"])))


async def all_channels(db: Database, file: Path) -> tuple[dict[str, Channel], dict[str, str]]:
    """Return the valid channels of `notify.toml` and of the web app, and the problem of each other.

    Raises ConfigError if the tables of `notify.toml` are not channels at all.
    """
    channels, problems = valid_channels(read_keys(file), str(file))
    for row in await notification_channels.read(db, MAX_CHANNELS):
        name = row["_id"]
        if name in channels or name in problems:
            # The file wins, as with rules.
            continue
        try:
            channels[name] = channel_of(file, row)
        except ConfigError as error:
            problems[name] = f"channel {name!r}: {error}"
    return channels, problems
