"""Channels of notifications: their keys, and when they may send.

A channel is a webhook, a mail server, or a URL for Apprise. It is a table `[channels.NAME]` of
`notify.toml`, whose secrets are environment variables (`${VARIABLE}`), or is made in the web app,
whose secrets are stored encrypted (`crawler.notify.stored_channels`). Secrets are replaced in all
messages about failures (`without_secrets`).
"""

from __future__ import annotations

import base64
import binascii
import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from email.headerregistry import HeaderRegistry
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic import Field as Key

from crawler.config import VARIABLE, expanded, expanded_url, shows_secret
from crawler.errors import ConfigError, first_problem
from crawler.extract.keys import TimeZone

if TYPE_CHECKING:
    from crawler.notify.messages import Templates

MAX_CHANNELS = 50
MAX_URL_CHARACTERS = 2000
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
# Waiting times between attempts: each is at least 1.5 times the one before, up to the longest.
FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=6)
JITTER = 0.25
MAX_DOUBLINGS = 16
MINUTE, HOUR, DAY, WEEK_DAYS = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), 7
PORTS = {"tls": 465, "starttls": 587, "none": 25}
SECRET_BYTES = range(24, 65)
HIDDEN, MIN_SECRET_CHARACTERS = "***", 6
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
# A key or a UUID in a URL: services put their tokens into host, path or user name.
_TOKEN = re.compile(
    r"(?=[A-Za-z_]*\d)(?=[\d_]*[A-Za-z])[A-Za-z0-9_]{20,200}"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    re.I,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _is_stored(info: ValidationInfo) -> bool:
    """Return whether the keys come from the database: then they have no variables."""
    return bool(info.context)


def _secret(value: str, info: ValidationInfo) -> str:
    if _is_stored(info):
        return value
    if not VARIABLE.search(value):
        raise ValueError("keep secrets in the environment: '${VARIABLE}'")
    return expanded(value)


def _service_url(value: str, info: ValidationInfo) -> str:
    """Expand a URL. Raises ValueError if it has no scheme, or shows a password or token."""
    if len(value) > MAX_URL_CHARACTERS:
        raise ValueError(f"longer than {MAX_URL_CHARACTERS:,} characters")
    if _is_stored(info):
        return _checked_url(value)
    if shows_secret(value) or _TOKEN.search(VARIABLE.sub("", value)):
        raise ValueError(
            "keep passwords and tokens in the environment: use ${VARIABLE} for each, or for the "
            "whole URL"
        )
    return _checked_url(expanded_url(value))


def _checked_url(value: str) -> str:
    url = value.strip()
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url) or _CONTROL.search(url):
        raise ValueError("not a URL. Examples: https://example.com/hook, slack://${SLACK_TOKENS}")
    return url


def _webhook_url(value: str, info: ValidationInfo) -> str:
    url = _service_url(value, info)
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and parts.port != 0 and "@" not in parts.netloc
        (parts.hostname or "").encode("idna")
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError("not an absolute http or https URL without user name and password")
    return url


def _signing_secret(value: str, info: ValidationInfo) -> str:
    secret = _secret(value, info)
    try:
        data = base64.b64decode(secret.removeprefix("whsec_") + "==", validate=False)
    except binascii.Error:
        data = b""
    if not secret.startswith("whsec_") or len(data) not in SECRET_BYTES:
        raise ValueError(
            "not 'whsec_' and 24 to 64 bytes in Base64. Create one: "
            'echo "whsec_$(openssl rand -base64 32)"'
        )
    return secret


def _address(value: str) -> str:
    """Return an email address, with or without a name. Raises ValueError for others."""
    try:
        if _CONTROL.search(value):
            raise ValueError
        header: Any = HeaderRegistry()("sender", value)
        (address,) = header.addresses
        (group,) = header.groups
        is_list = value.rstrip().endswith(",") or group.display_name is not None
        if header.defects or is_list or not (address.username and address.domain):
            raise ValueError
    except (ValueError, IndexError, LookupError):
        raise ValueError(f"{value[:100]!r} is not an email address") from None
    return value


def _quiet(value: str) -> str:
    start, dash, end = value.replace(" ", "").partition("-")
    times = _HOURS.fullmatch(start), _HOURS.fullmatch(end)
    if not (dash and all(times)) or start == end:
        raise ValueError(f"invalid hours: {value[:40]!r}. Example: '22:00-07:00'")
    return f"{start}-{end}"


def _time_of_day(value: str) -> str:
    if not _HOURS.fullmatch(value):
        raise ValueError(f"invalid time: {value[:40]!r}. Example: '08:00'")
    return value


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


EmailAddress = Annotated[str, AfterValidator(_address)]


class Smtp(BaseModel):
    """A mail server, the sender and the recipients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Key(
        pattern=r"^[A-Za-z0-9._:-]{1,253}$", description="name or address of the mail server"
    )
    port: int | None = Key(
        None, ge=1, le=65535, description="port; unset: 465, for `starttls` 587, for `none` 25"
    )
    security: Literal["tls", "starttls", "none"] = Key(
        "tls", description="encryption: `tls`, `starttls`, `none`"
    )
    user: str | None = Key(None, min_length=1, description="user name; unset: no sign-in")
    password: Annotated[str, AfterValidator(_secret)] | None = Key(
        None, repr=False, description="password, as `${VARIABLE}`"
    )
    sender: EmailAddress = Key(alias="from", description="address of the sender")
    to: Annotated[tuple[EmailAddress, ...], BeforeValidator(_as_tuple)] = Key(
        min_length=1, max_length=50, description="addresses of the recipients"
    )

    @model_validator(mode="after")
    def _check_password(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        is_local = self.host in ("localhost", "127.0.0.1", "::1")
        if self.password and self.security == "none" and not is_local:
            raise ValueError("the password would be sent unencrypted. Use tls or starttls")
        return self


class Channel(BaseModel):
    """A channel: exactly one of webhook, smtp and apprise, its limits and its templates."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    webhook: Annotated[str, AfterValidator(_webhook_url)] | None = Key(
        None, repr=False, description="URL that receives messages as Standard Webhooks"
    )
    secret: Annotated[str, AfterValidator(_signing_secret)] | None = Key(
        None,
        repr=False,
        description="secret that signs webhooks, `whsec_…`, as `${VARIABLE}`; needed for `webhook`",
    )
    smtp: Smtp | None = Key(None, description="mail server, sender and recipients")
    apprise: Annotated[
        tuple[Annotated[str, AfterValidator(_service_url)], ...], BeforeValidator(_as_tuple)
    ] = Key(
        (),
        max_length=20,
        repr=False,
        description="URLs for Apprise, such as `slack://…`; tokens as `${VARIABLE}`",
    )

    max_per_hour: int = Key(60, ge=1, le=3600, description="maximum number of messages an hour")
    quiet_hours: Annotated[str, AfterValidator(_quiet)] | None = Key(
        None, description="hours without messages, such as `22:00-07:00`; unset: none"
    )
    timezone: TimeZone = Key(
        "UTC", description="IANA time zone of quiet hours, digests and times in messages"
    )
    digest: Literal["hour", "day", "week"] | None = Key(
        None,
        description="collect events and send one message every `hour`, `day` or `week` (on "
        "Mondays); unset: one message for each event",
    )
    together: bool = Key(
        False,
        description="send the events of a rule that are due at the same time, such as those of a "
        "run, as one message",
    )
    digest_at: Annotated[str, AfterValidator(_time_of_day)] = Key(
        "08:00", description="time of day of a digest every `day` or `week`"
    )
    debounce_minutes: float = Key(
        0.0,
        ge=0,
        le=7 * 24 * 60,
        description="minutes to wait for further events of a page, which join the message",
    )
    confirm: bool = Key(
        False, description="send only if the next visit of the page finds the same state"
    )
    retry_hours: float = Key(
        72.0,
        ge=0,
        le=30 * 24,
        description="hours after the first attempt in which a failed message is tried again",
    )
    template: str | None = Key(None, description="template of the text; unset: the default")
    subject: str | None = Key(None, description="template of the title; unset: the default")
    html: str | None = Key(
        None,
        description="template of the HTML part of emails, empty for none; unset: a table, or none "
        "with `template`",
    )

    @field_validator("template", "subject", "html")
    @classmethod
    def _check_template(cls, value: str | None, info: Any) -> str | None:
        from crawler.notify.messages import check_template

        if value is not None:
            try:
                check_template(value, is_html=info.field_name == "html")
            except ConfigError as error:
                raise ValueError(str(error).removeprefix("template: ")) from None
        return value

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        given = [self.webhook is not None, self.smtp is not None, bool(self.apprise)]
        if sum(given) != 1:
            raise ValueError("needs exactly one of webhook, smtp and apprise")
        if (self.webhook is None) != (self.secret is None):
            raise ValueError("webhook and secret belong together. Example: secret = '${SECRET}'")
        if self.html is not None and self.smtp is None:
            raise ValueError("html: only emails have an HTML part")
        return self

    @property
    def kind(self) -> Literal["webhook", "smtp", "apprise"]:
        """Return the kind of receiver."""
        if self.webhook is not None:
            return "webhook"
        return "smtp" if self.smtp is not None else "apprise"

    @cached_property
    def zone(self) -> ZoneInfo:
        """Return the channel's time zone."""
        return ZoneInfo(self.timezone)

    @property
    def templates(self) -> Templates:
        """Return the templates of the channel's messages."""
        from crawler.notify.messages import Templates

        is_default = self.template is None and self.html != ""
        has_table = self.smtp is not None and (is_default or bool(self.html))
        return Templates(self.template, self.subject, self.html, has_table)


class StoredChannel(Channel):
    """A channel that was made in the web app: it may not reach into private networks."""


def valid_channels(
    keys: Mapping[str, Any], source: str
) -> tuple[dict[str, Channel], dict[str, str]]:
    """Return the valid channels of `notify.toml`, and the problem of each other one, by name.

    source: name of the file. Raises ConfigError if the tables are not channels at all.
    """
    tables = keys.get("channels", {})
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{source}: channels: not a table. Write [channels.NAME]")
    if len(tables) > MAX_CHANNELS:
        raise ConfigError(f"{source}: more than {MAX_CHANNELS} channels")
    channels, problems = {}, {}
    for name, table in tables.items():
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{source}: invalid channel name: {name[:70]!r}. "
                "Use letters, digits, dots, hyphens and underscores"
            )
        try:
            channels[name] = Channel.model_validate(table)
        except ValidationError as error:
            key, cause = problem_of(error)
            place = f"{key}: " if key else ""
            problems[name] = f"{source}: channel {name!r}: {place}{cause}"
    return channels, problems


def problem_of(error: ValidationError) -> tuple[str, str]:
    """Return the key of the first problem of a channel, or '', and the problem."""
    tables = {"smtp": [each.alias or key for key, each in Smtp.model_fields.items()]}
    return first_problem(error, Channel.model_fields, tables)


def without_secrets(channel: Channel, text: str) -> str:
    """Replace possible secrets from a channel's keys in a text with `***`.

    A service may repeat the URL of a request in its answer, or a library in an error.
    """
    secrets = {channel.secret, channel.smtp.password if channel.smtp is not None else None}
    for url in filter(None, (channel.webhook, *channel.apprise)):
        # Everything but scheme and host: services have tokens in user names, paths and queries.
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[0]
        words = [*re.split(r"[/?&#=;:]", f"{place}/{parts.path}?{parts.query}#{parts.fragment}")]
        if parts.scheme.lower() not in ("http", "https"):
            # For most services of Apprise, the host is a token as well.
            words.append(parts.netloc.rpartition("@")[2].partition(":")[0])
        secrets |= {url, *words, *map(unquote, words)}
    # Short words, such as `hook`, are not secrets, and occur in other texts.
    found = [each for each in secrets if each and len(each) >= MIN_SECRET_CHARACTERS]
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    # The text may have been cut within a secret.
    begins = (secret[:n] for secret in found for n in range(MIN_SECRET_CHARACTERS, len(secret)))
    longest = max((each for each in begins if text.endswith(each)), key=len, default="")
    return text.removesuffix(longest) + HIDDEN if longest else text


def next_attempt(
    channel: Channel, attempts: int, first_at: datetime, now: datetime, rng: random.Random
) -> datetime | None:
    """Return the time of the next attempt after a failed one; None: there is no further one. Pure.

    Waiting times double from a minute to six hours, less up to a quarter at random. The quiet hours
    of the channel are not considered.

    attempts: number of attempts so far, at least 1
    first_at: time of the first attempt
    """
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(max(attempts, 1) - 1, MAX_DOUBLINGS))
    at = now + wait * (1 - JITTER * rng.random())
    return at if at <= first_at + timedelta(hours=channel.retry_hours) else None


def open_from(channel: Channel, at: datetime) -> datetime:
    """Return the first time from `at` on that is not in the channel's quiet hours. Pure.

    Quiet hours follow the local time in the channel's time zone, even on days when the clocks
    change.
    """
    if channel.quiet_hours is None:
        return at
    start, end = map(_clock, channel.quiet_hours.split("-"))

    def is_quiet(moment: datetime) -> bool:
        local = moment.astimezone(channel.zone).time()
        return start <= local < end if start < end else local >= start or local < end

    moment = at
    while is_quiet(moment):
        moment = moment.replace(second=0, microsecond=0) + MINUTE
    return moment


def digest_due(channel: Channel, at: datetime) -> datetime:
    """Return the time of the digest with the events at `at`, outside of quiet hours. Pure.

    The time is later than `at`, by at most an hour, a day or a week and the quiet hours. Without a
    digest, it is the first time outside of quiet hours.
    """
    if channel.digest is None:
        return open_from(channel, at)
    local = at.astimezone(channel.zone)
    if channel.digest == "hour":
        since = timedelta(
            minutes=local.minute, seconds=local.second, microseconds=local.microsecond
        )
        return open_from(channel, at - since + HOUR)
    date = local.date()
    if channel.digest == "week":
        date -= DAY * date.weekday()
    step = DAY * (WEEK_DAYS if channel.digest == "week" else 1)
    due = at
    while due <= at:
        wall = datetime.combine(date, _clock(channel.digest_at), channel.zone)
        due = wall.astimezone(UTC)
        date += step
    return open_from(channel, due)


def first_due(channel: Channel, now: datetime) -> datetime:
    """Return the time of the first attempt for a message that is created now. Pure."""
    return digest_due(channel, now + timedelta(minutes=channel.debounce_minutes))


def _clock(text: str) -> time:
    return time.fromisoformat(text)
