"""Notifications: channels with their messages, dead letters, rules, and previews of rules.

Rules select events, and name channels. Both can be written here or in files on the machine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.extract.notification_rules import Rule
from crawler.items import Event
from crawler.notify.rounds import PreviewedMessage, SendReport, send_test
from crawler.reports import notifications as report
from crawler.reports.notifications import (
    ChannelAlert,
    ChannelReport,
    Defined,
    NotificationsReport,
    RuleReport,
)
from crawler.storage import notification_rules, outbox, targets
from crawler.storage.outbox import OutboxMessage, State
from crawler.storage.store import Store
from crawler.utils.text import count
from crawler.web import rule_sentences
from crawler.web.auth import EditorDep
from crawler.web.dependencies import NowDep, Pagination, PaginationDep, StoreDep, cursor_of
from crawler.web.pages import (
    Form,
    not_found,
    page,
    redirect,
)

router = APIRouter(prefix="/notifications")
api = APIRouter(prefix="/notifications", tags=["notifications"])
MAX_LAST, USUAL_LAST = 50, 20
# Messages of a preview that are shown.
MAX_SHOWN = 50
MAX_IDS = 1000
LINES = ("sites", "categories", "urls", "when")
# Message on a channel's page after a write, by the value of `done`.
DONE = {
    "retried": "The messages will be sent again with the next delivery.",
    "discarded": "The dead letters are deleted.",
    "sent": "The channel accepted the test message.",
    "saved": "Saved. Send a test message to see whether it works.",
}
ChannelName = Annotated[str, Query(max_length=64, description="name of a channel")]
RuleKey = Annotated[
    str, Query(max_length=600, description="name of a rule, or SITE/NAME; empty: of no stored rule")
]
Last = Annotated[
    int, Query(ge=1, le=MAX_LAST, description="number of past events to apply the rule to")
]
ShownState = Annotated[State, Query(description="state of the messages")]


class Messages(BaseModel):
    """A part of the messages of a channel, the newest events first."""

    messages: list[OutboxMessage]
    next: str | None = Field(description="cursor of the next page; null at the end")


class Alerts(BaseModel):
    """Channels that need attention."""

    alerts: list[ChannelAlert]


class Rules(BaseModel):
    """All rules."""

    rules: list[RuleReport]


class Preview(BaseModel):
    """The messages that past events would cause; none was sent."""

    messages: list[PreviewedMessage]


class Letters(BaseModel):
    """Dead letters of a channel."""

    channel: str = Field(max_length=64, description="name of the channel")
    ids: list[Annotated[str, Field(max_length=64)]] = Field(
        [], max_length=MAX_IDS, description="ids of messages; empty: all dead letters"
    )


class Changed(BaseModel):
    """Result of a write."""

    messages: int = Field(description="number of messages that were changed or deleted")


class EditedRule(BaseModel):
    """A rule to store."""

    keys: dict[str, Any] = Field(description="keys of the rule, without `name`")


# Pages


@router.get("", name="notifications.index")
async def index(request: Request, store: StoreDep) -> Response:
    """Show channels and rules."""
    return await _index(request, store, Form.of({"what": "falls", "percent": "5"}))


async def _index(request: Request, store: Store, form: Form, status: int = 200) -> Response:
    """Show channels and rules. form: the sentence of a new rule."""
    shown = await report.notifications(store.db, store.config.notify_file)
    names = [each["name"] for each in shown["channels"] if not each["problem"]]
    return page(
        request, "notifications/index.html", status=status, shown=shown, form=form,
        what=rule_sentences.WHAT, channels=names, sites=await targets.spiders(store.db),
        last=MAX_LAST, file=store.config.notify_file.name,
    )  # fmt: skip


@router.get("/channel", name="notifications.channel")
async def channel_page(
    request: Request, store: StoreDep, pagination: PaginationDep, name: ChannelName,
    state: ShownState = State.DEAD, done: Literal["retried", "discarded", "sent", "saved", ""] = "",
) -> Response:  # fmt: skip
    """Show a channel with its messages of one state."""
    return await _channel_page(request, store, pagination, name, state, notice=DONE.get(done, ""))


async def _channel_page(
    request: Request, store: Store, pagination: Pagination, name: str, state: State,
    *, notice: str = "", problem: str = "",
) -> Response:  # fmt: skip
    found = await _channel(store, name)
    rows, last = await outbox.messages(store.db, name, state, pagination.limit, pagination.after)
    return page(
        request, "notifications/channel.html", status=422 if problem else 200, channel=found,
        messages=rows, next=cursor_of(last), pagination=pagination, state=state, states=list(State),
        notice=notice, problem=problem,
    )  # fmt: skip


@router.post("/test", name="notifications.test")
async def send_test_message(
    request: Request, _: EditorDep, store: StoreDep, now: NowDep
) -> Response:
    """Send a test message to a channel."""
    name = (await Form.read(request))["channel"]
    await _channel(store, name)
    try:
        sent = await send_test_api(request, _, store, now, name)
        problem = "" if sent["delivered"] else f"Not delivered: {sent['reason']}"
    except ConfigError as error:
        problem = str(error)
    if problem:
        first = Pagination(20)
        return await _channel_page(request, store, first, name, State.DEAD, problem=problem)
    return _to_channel(request, name, "sent")


@router.post("/retry", name="notifications.retry")
async def retry(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Send one dead letter of a channel again, or all of them."""
    letters = _letters(await Form.read(request))
    await retry_api(request, letters, user, store, now)
    return _to_channel(request, letters.channel, "retried")


@router.post("/discard", name="notifications.discard")
async def discard(request: Request, user: EditorDep, store: StoreDep) -> Response:
    """Delete one dead letter of a channel, or all of them."""
    letters = _letters(await Form.read(request))
    await discard_api(request, letters, user, store)
    return redirect(
        request, "notifications.channel", {"name": letters.channel, "done": "discarded"}
    )


@router.get("/rule", name="notifications.rule")
async def rule_page(request: Request, store: StoreDep, key: RuleKey = "") -> Response:
    """Show the form of a rule that is stored here, or of a new one."""
    form = Form.of({"failures": 3})
    form.lists["events"] = ["changed"]
    if key:
        found = await notification_rules.find(store.db, key)
        if found is None:
            raise not_found(f"Rule {key[:100]!r}")
        rule, edits = found
        keys = rule.model_dump(mode="json")
        form = Form.of({"name": rule.name, "failures": rule.failures, "edits": edits})
        form.values |= {name: "\n".join(keys[name]) for name in LINES}
        form.lists |= {name: list(keys[name]) for name in ("events", "channels")}
    return await _rule_page(request, store, form, key)


@router.get("/preview", name="notifications.preview")
async def preview_page(
    request: Request, store: StoreDep, now: NowDep, key: RuleKey = "", last: Last = USUAL_LAST
) -> Response:
    """Show the messages that past events would cause: of a stored rule, or of the form's values."""
    problem, messages = "", list[PreviewedMessage]()
    try:
        form = _form_in_query(request)
        rule = key or (rule_sentences.rule_of(form.values) if form["what"] else _rule_of(form))
        messages = await report.preview_rule(store.db, store.config, rule, last, now)
    except ConfigError as error:
        problem = str(error)
    except ValidationError as error:
        problem = rule_sentences.problems_of(error)
    return page(
        request, "notifications/preview.html", status=422 if problem else 200, fragment="messages",
        messages=messages[:MAX_SHOWN], number=len(messages), last=last, problem=problem, key=key,
    )  # fmt: skip


@router.post("/rule", name="notifications.save")
async def save(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Store a new rule, or the edit of one."""
    form = await Form.read(request)
    key = form["key"]
    form.values["name"] = key or form["name"].strip()
    try:
        rule = _rule_of(form)
        edits = form["edits"] if form["edits"].isdecimal() and len(form["edits"]) < 10 else ""
        if key:
            await notification_rules.replace(
                store.db, rule, int(edits) if edits else None, user.name, now
            )
        else:
            await rule_sentences.add(store, rule, user.name, now)
    except ValidationError as error:
        form.reject_values(error)
    except ConfigError as error:
        form.reject("" if key else "name", error)
    if not form.is_valid:
        return await _rule_page(request, store, form, key, 422)
    request.state.audit = f"{rule.name}: {', '.join(rule.events)} to {', '.join(rule.channels)}"
    return redirect(request, "notifications.index")


@router.post("/sentence", name="notifications.say")
async def say(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Store a new rule that is a sentence."""
    form = await Form.read(request)
    try:
        rule = await rule_sentences.said(store, form.values)
        await rule_sentences.add(store, rule, user.name, now)
    except ConfigError as error:
        form.reject("", str(error).partition(": ")[2] or error)
        return await _index(request, store, form, 422)
    request.state.audit = f"{rule.name}: {', '.join(rule.events)} to {', '.join(rule.channels)}"
    return redirect(request, "notifications.index")


@router.post("/rule/remove", name="notifications.remove")
async def remove(request: Request, user: EditorDep, store: StoreDep) -> Response:
    """Remove a rule that is stored here."""
    await remove_api(request, user, store, (await Form.read(request))["key"])
    return redirect(request, "notifications.index")


async def _rule_page(
    request: Request, store: Store, form: Form, key: str, status: int = 200
) -> Response:
    defined = await Defined.read(store.db, store.config.notify_file)
    chosen = form.lists.get("channels", [])
    names = sorted({*defined.channels, *defined.broken, *chosen[:20]})
    return page(
        request, "notifications/rule.html", status=status, form=form, key=key,
        events=list(Event), channels=names, last=USUAL_LAST, file=store.config.notify_file.name,
    )  # fmt: skip


async def _channel(store: Store, name: str) -> ChannelReport:
    """Return a channel; raises HTTPException (404) if it is not defined and has no messages."""
    defined = await Defined.read(store.db, store.config.notify_file)
    is_defined = name in defined.channels or name in defined.broken
    if not is_defined and name not in await outbox.channel_names(store.db):
        raise not_found(f"Channel {name[:64]!r}")
    return await report.channel_report(store.db, defined, name)


def _to_channel(request: Request, name: str, done: str) -> Response:
    return redirect(request, "notifications.channel", {"name": name, "done": done})


def _letters(form: Form) -> Letters:
    try:
        return Letters(channel=form["channel"], ids=[form["id"]] if form["id"] else [])
    except ValidationError:
        raise ConfigError("message not found. Reload the page") from None


def _form_in_query(request: Request) -> Form:
    form = Form.of_items(request.query_params.multi_items())
    # The rule does not need a name or a channel yet.
    form.values["name"] = form["name"].strip() or "new"
    form.lists.setdefault("channels", ["none"])
    return form


def _rule_of(form: Form) -> Rule:
    """Return the rule in a form; raises ValidationError."""
    keys: dict[str, Any] = {
        name: [line.strip() for line in form[name].splitlines() if line.strip()] for name in LINES
    }
    keys |= {name: form.lists.get(name, []) for name in ("events", "channels")}
    keys |= {"name": form["name"]}
    if form["failures"].strip():
        keys["failures"] = form["failures"].strip()
    return Rule.model_validate(keys)


# The JSON API


@api.get("", name="notifications.api")
async def notifications_api(store: StoreDep) -> NotificationsReport:
    """Return channels with the state of their messages, and all rules."""
    return await report.notifications(store.db, store.config.notify_file)


@api.get("/alerts", name="notifications.api_alerts")
async def alerts_api(store: StoreDep) -> Alerts:
    """Return the channels with dead letters, and those to which nothing can be delivered."""
    return Alerts(alerts=await report.alerts(store.db, store.config.notify_file))


@api.get("/messages", name="notifications.api_messages")
async def messages_api(
    store: StoreDep, pagination: PaginationDep, channel: ChannelName, state: ShownState = State.DEAD
) -> Messages:
    """Return messages of a channel, the newest events first."""
    rows, last = await outbox.messages(store.db, channel, state, pagination.limit, pagination.after)
    return Messages(messages=rows, next=cursor_of(last))


@api.get("/preview", name="notifications.api_preview")
async def preview_api(
    store: StoreDep, now: NowDep,
    key: Annotated[str, Query(min_length=1, max_length=600, description="name, or SITE/NAME")],
    last: Last = USUAL_LAST,
) -> Preview:  # fmt: skip
    """Return the messages that a rule would cause for past events, newest first."""
    return Preview(messages=await report.preview_rule(store.db, store.config, key, last, now))


@api.post("/test", name="notifications.api_test")
async def send_test_api(
    request: Request, _: EditorDep, store: StoreDep, now: NowDep, channel: ChannelName
) -> SendReport:
    """Send a test message to a channel."""
    sent = await send_test(store.db, store.config, channel, now)
    request.state.audit = f"{channel}: {'delivered' if sent['delivered'] else sent['reason']}"
    return sent


@api.post("/retry", name="notifications.api_retry")
async def retry_api(
    request: Request, letters: Letters, _: EditorDep, store: StoreDep, now: NowDep
) -> Changed:
    """Send dead letters of a channel again, with the next delivery."""
    n = await outbox.retry(store.db, now, letters.ids or None, letters.channel)
    request.state.audit = f"{letters.channel}: {count(n, 'message')}"
    return Changed(messages=n)


@api.post("/discard", name="notifications.api_discard")
async def discard_api(request: Request, letters: Letters, _: EditorDep, store: StoreDep) -> Changed:
    """Delete dead letters of a channel."""
    n = await outbox.discard(store.db, letters.ids or None, letters.channel)
    request.state.audit = f"{letters.channel}: {count(n, 'message')}"
    return Changed(messages=n)


@api.get("/rules", name="notifications.api_rules")
async def rules_api(store: StoreDep) -> Rules:
    """Return all rules, in the order in which they are applied."""
    shown = await report.notifications(store.db, store.config.notify_file)
    return Rules(rules=shown["rules"])


@api.put("/rules/{name}", name="notifications.api_save")
async def save_api(
    request: Request, edited: EditedRule, user: EditorDep, store: StoreDep, now: NowDep, name: str
) -> RuleReport:
    """Store a rule of the web app: a new one, or in place of the one with this name."""
    try:
        rule = Rule.model_validate(edited.keys | {"name": name})
    except ValidationError as error:
        raise HTTPException(422, rule_sentences.problems_of(error)) from None
    if await notification_rules.find(store.db, name) is None:
        await rule_sentences.add(store, rule, user.name, now)
    else:
        await notification_rules.replace(store.db, rule, None, user.name, now)
    request.state.audit = f"{name}: {', '.join(rule.events)} to {', '.join(rule.channels)}"
    return {"key": name, "source": "web app", "rule": rule.model_dump(mode="json")}


@api.delete("/rules/{name}", name="notifications.api_remove")
async def remove_api(request: Request, _: EditorDep, store: StoreDep, name: str) -> RuleReport:
    """Remove a rule of the web app, and return it. Messages that it caused are still delivered."""
    rule = await notification_rules.remove(store.db, name)
    if rule is None:
        raise not_found(f"Rule {name[:100]!r}")
    request.state.audit = name
    return {"key": name, "source": "web app", "rule": rule.model_dump(mode="json")}
