"""Forms of the channels of notifications: mail, webhooks, and chat services.

Secrets are never sent back to the browser: an empty field keeps the stored one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field, field_validator
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.notify.channels import PORTS
from crawler.notify.stored_channels import Kind, chat_url, new_secret, store, unsealed
from crawler.storage import notification_channels
from crawler.storage.client import Document
from crawler.storage.notification_channels import Edit
from crawler.storage.store import Store
from crawler.web.auth import EditorDep
from crawler.web.dependencies import NowDep, StoreDep
from crawler.web.pages import Form, not_found, page, redirect

router = APIRouter(prefix="/notifications/channels")
api = APIRouter(prefix="/notifications/channels", tags=["notifications"])


@dataclass(frozen=True, slots=True)
class Service:
    """A service that messages can go to.

    kind:   kind of the channel
    first, second: labels of the values that a chat service needs; empty: not needed
    hint:   where to get them
    hidden: which of them are secrets
    """

    title: str
    kind: Kind
    first: str = ""
    second: str = ""
    hint: str = ""
    hidden: tuple[str, ...] = ()


SERVICES = {
    "mail": Service("Mail", "mail"),
    "webhook": Service("Webhook", "webhook"),
    "slack": Service(
        "Slack", "chat", "Webhook URL",
        hint="In Slack: Apps, Incoming WebHooks, Add to Slack, then copy the webhook URL.",
        hidden=("first",),
    ),
    "discord": Service(
        "Discord", "chat", "Webhook URL",
        hint="In Discord: Edit Channel, Integrations, Webhooks, New Webhook, Copy Webhook URL.",
        hidden=("first",),
    ),
    "telegram": Service(
        "Telegram", "chat", "Bot token", "Chat id",
        hint="In Telegram: @BotFather makes a bot and gives its token. Write to the bot, or add it "
        "to a group; @RawDataBot tells the id of the chat.",
        hidden=("first",),
    ),
    "ntfy": Service(
        "ntfy", "chat", "Server", "Topic",
        hint="The server is https://ntfy.sh unless you run your own. Anyone who knows the topic "
        "can read along, so choose a long one.",
        hidden=("second",),
    ),
    "pushover": Service(
        "Pushover", "chat", "User key", "API token",
        hint="On pushover.net: the user key is on the first page; Create an Application gives the "
        "token.",
        hidden=("first", "second"),
    ),
    "mattermost": Service(
        "Mattermost", "chat", "Webhook URL",
        hint="In Mattermost: Integrations, Incoming Webhooks, Add, then copy the URL.",
        hidden=("first",),
    ),
    "gotify": Service(
        "Gotify", "chat", "Server", "Token",
        hint="In Gotify: Apps, Create Application, then copy its token.",
        hidden=("second",),
    ),
}  # fmt: skip
SECURITY = {
    "tls": "TLS (port 465)", "starttls": "STARTTLS (port 587)", "none": "none (port 25)",
}  # fmt: skip
EACH = "each"
WHEN = {
    "": "at once, all changes of a run in one message", EACH: "at once, a message for each change",
    "hour": "once an hour", "day": "once a day", "week": "once a week",
}  # fmt: skip
# Fields of the form by the keys of channels that they set.
FIELDS = {"from": "sender", "webhook": "url", "apprise": "first"}
MAIL = ("host", "user", "sender", "to")
ServiceQuery = Annotated[str, Query(max_length=40, description="key of a service")]
Name = Annotated[str, Query(max_length=64, description="name of a channel")]


class ChannelFields(BaseModel):
    """A channel to store. Empty secrets keep the stored ones."""

    service: str = Field(description=f"one of {', '.join(SERVICES)}")
    host: str = Field("", max_length=300, description="mail: name of the server")
    port: int | None = Field(None, description="mail: port; null: the usual one")
    security: str = Field("tls", description="mail: `tls`, `starttls` or `none`")
    user: str = Field("", max_length=300, description="mail: user name; empty: no sign-in")
    password: str = Field("", max_length=300, description="mail: password")
    sender: str = Field("", max_length=300, description="mail: address of the sender")
    to: str = Field("", max_length=5000, description="mail: recipients, separated by commas")
    url: str = Field("", max_length=2000, description="webhook: its URL")
    first: str = Field("", max_length=2000, description="chat: the first value that it needs")
    second: str = Field("", max_length=1000, description="chat: the second value that it needs")
    digest: str = Field(
        "", description=f"when messages are sent: {', '.join(f'`{w}`' for w in WHEN)}"
    )
    quiet_hours: str = Field("", max_length=40, description="such as `22:00-07:00`; empty: none")
    timezone: str = Field("UTC", max_length=100, description="IANA time zone of these hours")

    @field_validator("port", mode="before")
    @classmethod
    def _absent(cls, value: object) -> object:
        return None if value == "" else value


class Stored(BaseModel):
    """A stored channel."""

    name: str
    secret: str | None = Field(
        description="secret that signs the messages of a new webhook; shown only now"
    )


@router.get("/new", name="channels.new")
async def new(request: Request, service: ServiceQuery = "") -> Response:
    """Show the services to choose from, or the form of a new channel."""
    if service and service not in SERVICES:
        raise not_found(f"Service {service!r}")
    form = Form.of({"name": service, "security": "tls", "timezone": "UTC", "service": service})
    return _form_page(request, form, service)


@router.get("/edit", name="channels.edit")
async def edit(request: Request, _: EditorDep, store: StoreDep, name: Name) -> Response:
    """Show the form of a stored channel, without its secrets."""
    row = await _row(store, name)
    keys, shown = row["keys"], row["keys"].get("smtp", {})
    at_once = "" if keys.get("together") else EACH
    form = Form.of(
        {
            "name": name, "edits": row["edits"], "digest": keys.get("digest") or at_once,
            "quiet_hours": keys.get("quiet_hours") or "", "timezone": keys.get("timezone", "UTC"),
            "host": shown.get("host", ""), "port": shown.get("port") or "",
            "security": shown.get("security", "tls"), "user": shown.get("user") or "",
            "sender": shown.get("from", ""), "to": ", ".join(shown.get("to", ())),
        }
    )  # fmt: skip
    return _form_page(request, form, row["service"])


async def _row(store: Store, name: str) -> Document:
    row = await notification_channels.find(store.db, name)
    if row is None:
        raise not_found(f"Channel {name!r} of the web app")
    return row


def _form_page(request: Request, form: Form, service: str, status: int = 200) -> Response:
    return page(
        request, "notifications/channel_form.html", status=status, form=form, key=service,
        service=SERVICES.get(service), services=SERVICES, security=SECURITY, when=WHEN,
        is_new=not form["edits"],
    )  # fmt: skip


@router.post("", name="channels.save")
async def save(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Store a new or an edited channel; show the secret of a new webhook."""
    form = await Form.read(request)
    given = form.parse(ChannelFields)
    if given is None or given.service not in SERVICES:
        return _form_page(request, form, form["service"], 422)
    edits = int(form["edits"]) if form["edits"].isdecimal() else None
    by = Edit(user.name, now, edits)
    try:
        secret = await _store(store, form["name"].strip(), given, by)
    except ConfigError as error:
        key, colon, text = str(error).partition(": ")
        key = FIELDS.get(key.rpartition(".")[2], key.rpartition(".")[2])
        is_of_field = bool(colon) and key in {"name", *ChannelFields.model_fields}
        form.reject(key if is_of_field else "", text if is_of_field else str(error))
        return _form_page(request, form, given.service, 422)
    request.state.audit = f"channel {form['name']}"
    if secret is not None:
        return page(request, "notifications/channel_secret.html", name=form["name"], secret=secret)
    return redirect(
        request, "notifications.channel", {"name": form["name"].strip(), "done": "saved"}
    )


@router.post("/remove", name="channels.remove")
async def remove(request: Request, user: EditorDep, store: StoreDep) -> Response:
    """Remove a stored channel."""
    await remove_api(request, user, store, (await Form.read(request))["name"])
    return redirect(request, "notifications.index")


@api.put("/{name}", name="channels.api_save")
async def save_api(
    request: Request, given: ChannelFields, user: EditorDep, store: StoreDep, now: NowDep, name: str
) -> Stored:
    """Store a channel of the web app: a new one, or in place of the one with this name."""
    row = await notification_channels.find(store.db, name)
    by = Edit(user.name, now, None if row is None else row["edits"])
    try:
        secret = await _store(store, name, given, by)
    except ConfigError as error:
        raise HTTPException(422, str(error)) from None
    request.state.audit = f"channel {name}"
    return Stored(name=name, secret=secret)


@api.delete("/{name}", name="channels.api_remove", status_code=204)
async def remove_api(request: Request, _: EditorDep, store: StoreDep, name: str) -> None:
    """Remove a channel of the web app. Its messages wait until there is one with its name."""
    if not await notification_channels.remove(store.db, name):
        raise not_found(f"Channel {name[:64]!r} of the web app")
    request.state.audit = f"channel {name}"


async def _store(kept: Store, name: str, given: ChannelFields, by: Edit) -> str | None:
    """Store a channel; return the secret of a new webhook. Raises ConfigError."""
    service, file = SERVICES.get(given.service), kept.config.notify_file
    if service is None:
        raise ConfigError(f"service: {given.service[:40]!r} is not one of the services")
    before: dict[str, Any] = {}
    if by.edits is not None and (row := await notification_channels.find(kept.db, name)):
        if row["service"] != given.service:
            raise ConfigError("service: it cannot be changed. Add another channel")
        # Without their key, the secrets have to be entered again.
        with suppress(ConfigError):
            before = unsealed(file, row["sealed"])
    keys: dict[str, Any] = {"timezone": given.timezone or "UTC"}
    if given.digest not in ("", EACH):
        keys["digest"] = given.digest
    keys["together"] = given.digest == ""
    if given.quiet_hours:
        keys["quiet_hours"] = given.quiet_hours
    if service.kind == "mail":
        keys["smtp"] = _smtp(given)
    hidden = _hidden(service, given, before)
    await store(kept.db, file, name, given.service, keys, hidden, by)
    return hidden.get("secret") if not before else None


def _hidden(service: Service, given: ChannelFields, before: dict[str, Any]) -> dict[str, Any]:
    """Return the keys with secrets; `before` has those of an edited channel."""
    if service.kind == "mail":
        password = given.password or before.get("password")
        if bool(given.user) != bool(password):
            raise ConfigError("password: user name and password belong together")
        return {"password": password} if given.user else {}
    if service.kind == "webhook":
        secret = before.get("secret") or new_secret()
        return {"webhook": given.url or before.get("webhook", ""), "secret": secret}
    if before and not (given.first or given.second):
        return before
    return {"apprise": [chat_url(given.service, given.first, given.second)]}


def _smtp(given: ChannelFields) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "host": given.host.strip(),
        "security": given.security,
        "from": given.sender.strip(),
        "to": [each.strip() for each in given.to.replace("\n", ",").split(",") if each.strip()],
    }
    if given.port is not None and given.port != PORTS.get(given.security):
        keys["port"] = given.port
    if given.user.strip():
        keys["user"] = given.user.strip()
    return keys
