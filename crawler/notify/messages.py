"""Render events of pages as messages, with templates of the operator in Jinja's sandbox.

An event is made of one document of the outbox, or of several about the same page.

The text of a page, however hostile, cannot keep a delivery busy: a message has at most MAX_EVENTS
events with MAX_FIELDS fields of MAX_VALUE_CHARACTERS characters, and a rendered text is cut off.
How often a template goes over these data is up to the operator, who alone can write templates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, Self
from urllib.parse import quote

from jinja2 import DictLoader, StrictUndefined, Template, TemplateError, pass_context
from jinja2.exceptions import TemplateNotFound, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from crawler.errors import ConfigError
from crawler.storage.client import Document
from crawler.storage.outbox import Bundle, Grouping
from crawler.utils.edits import edits
from crawler.utils.text import count, is_price, price, without_surrogates
from crawler.utils.time import iso
from crawler.utils.urls import target_id

# Characters of a rendered text; the rest is cut off.
MAX_TEXT_CHARACTERS = 50_000
MAX_TITLE_CHARACTERS = 200
# Maximum number of events that a message lists; the others are only counted.
MAX_EVENTS = 50
MAX_FIELDS, MAX_SHOWN_POSTS, MAX_EDITS = 20, 20, 20
MAX_VALUE_CHARACTERS = 500
# Webhook receivers and mail servers compare ids, so an id has no characters that need quoting.
MESSAGE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
DIGEST = "digest"
CUT = "\n(cut off here: a message has at most {:,} characters)"
# An invisible character after these signs ends the mention.
_MENTION = re.compile(r"(?<!\w)@(?=\w)|<(?:[!#]|@[!&]?)(?=\w)")
_MARKUP = re.compile(r"[\\`*_~|\[\]<>#]")
_LINK = re.compile(r"(https?://[^\s<>\[\]()`]+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")

SUBJECT = (
    "{% if count == 1 %}{{ event.site }}: {{ event.event }}: {{ event.title or event.url }}"
    "{% else %}{{ count }} events: {{ sites|join(', ')|truncate(100) }}{% endif %}"
)
SINGLE = """\
{{ event.event|capitalize }}: {{ event.title or event.url }}
{{ event.url }}
{% if event.reason %}{{ event.reason }}
{% endif %}{% for change in event.changes %}{% if loop.first %}
{% endif %}{{ change.name }}: \
{% if change.before is not none %}{{ change.before }} → {% endif %}\
{% if change.after is not none %}{{ change.after }}{% else %}(removed){% endif %}
{% endfor %}{% if event.more_changes %}and {{ event.more_changes }} more
{% endif %}
{{ event.site }}, {{ event.at|local }}
{% if event.link %}{{ event.link }}
{% endif %}"""
MANY = """\
{% for event in events %}{{ event.at|local }} {{ event.site }}: {{ event.event }}: \
{{ event.title or event.url }}
  {{ event.url }}
{% for change in event.changes %}  {{ change.name }}: \
{% if change.before is not none %}{{ change.before|truncate(80) }} → {% endif %}\
{% if change.after is not none %}{{ change.after|truncate(80) }}{% else %}(removed){% endif %}
{% endfor %}{% if event.more_changes %}  and {{ event.more_changes }} more
{% endif %}{% if event.reason %}  {{ event.reason }}
{% endif %}{% endfor %}{% if more %}and {{ more }} more
{% endif %}"""


class Values(StrEnum):
    """How the values of pages are escaped in a message. The text of a template is left as it is."""

    PLAIN = "plain"
    HTML = "html"
    CHAT = "chat"
    MARKDOWN = "markdown"


def without_mentions(text: str) -> str:
    """Return a text that calls no member of a chat: `@everyone`, `<!channel>`, `<@U123>`."""
    return _MENTION.sub("\\g<0>\u200b", text)


def without_markdown(text: str) -> str:
    """Return a text for chats that render Markdown, which show it as it is, without mentions."""
    parts = _LINK.split(text)
    # Links stay links: they alternate with the other text.
    escaped = [part if at % 2 else _MARKUP.sub(r"\\\g<0>", part) for at, part in enumerate(parts)]
    return without_mentions("".join(escaped))


@dataclass(frozen=True, slots=True)
class Change:
    """A place where a field changed, as text. before, after: None if there was nothing.

    Long texts begin shortly before what changed, so that a shorter text shows it, too.
    """

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class EventView:
    """An event as templates and webhooks see it.

    event:      its name, such as `changed`
    at:         time of the visit
    changes:    the places that changed, at most MAX_EDITS
    more_changes: number of further places
    values:     the values of the page as texts, by field, at most MAX_FIELDS
    reason:     condition or error that caused the event; empty: none
    link:       URL of the page or site in the web app; None without FRESHET_WEB_URL
    """

    event: str
    site: str
    url: str
    title: str
    at: datetime
    categories: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    values: Mapping[str, str] | None = None
    reason: str = ""
    link: str | None = None
    more_changes: int = 0

    def with_contents(
        self, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
    ) -> Self:
        """Return the event with the changes between two contents, and the values of the later one.

        before, after: contents of the page; None: there is none
        """
        found, more = edits(before, after, MAX_EDITS, MAX_VALUE_CHARACTERS)
        new = after or {}
        present = ((name, _text(value)) for name, value in islice(new.items(), MAX_FIELDS))
        values = {name: text for name, text in present if text is not None}
        changes = tuple(Change(*edit) for edit in found)
        return replace(self, changes=changes, more_changes=more, values=values)

    def as_data(self) -> dict[str, Any]:
        """Return the event for JSON; times in ISO format, in UTC."""
        data = asdict(self) | {"at": iso(self.at), "values": dict(self.values or {})}
        return data | {"categories": list(self.categories), "changes": list(data["changes"])}


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a channel can send.

    id:   the same for every attempt, so that receivers can drop repetitions
    type: name of the event, or `digest` for several events
    html: the same as `text` in HTML; None: the message is only plain text
    data: the events, for webhooks
    at:   time of the latest event
    chat: title and text for chats, in which no value of a page mentions members
    markdown: the same for chats that render Markdown, in which values of pages have none
    """

    id: str
    type: str
    title: str
    text: str
    html: str | None
    data: Mapping[str, Any]
    at: datetime
    chat: tuple[str, str] = ("", "")
    markdown: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        """Raise ValueError for an id that a header cannot carry, and for a time without zone."""
        if not MESSAGE_ID.fullmatch(self.id):
            raise ValueError(f"invalid message id: {self.id[:130]!r}")
        if self.at.tzinfo is None:
            raise ValueError("the time of a message needs a time zone")


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of a channel; None: the default. html: None: no HTML."""

    text: str | None = None
    subject: str | None = None
    html: str | None = None


DEFAULTS = Templates()


def message_of(
    message_id: str, events: Sequence[EventView], *,
    templates: Templates = DEFAULTS, more: int = 0, zone: tzinfo = UTC,
) -> Message:  # fmt: skip
    """Return a message about one event, or a digest of several.

    A template that fails is replaced by the default, and the message shows the error, because an
    error in a template must not lose a notification.

    events: at least one, in the order of their times; those beyond MAX_EVENTS are only counted
    more:   number of further events, which were not read
    zone:   time zone for the filter `local`
    """
    if not events:
        raise ValueError("a message needs an event")
    more += max(0, len(events) - MAX_EVENTS)
    shown = events[:MAX_EVENTS]
    is_digest = len(shown) + more > 1
    errors: list[str] = []

    def render(template: str | None, default: str, values: Values) -> str:
        if template is not None:
            try:
                return rendered(template, shown, more=more, zone=zone, values=values)
            except ConfigError as error:
                errors.append(str(error))
        return rendered(default, shown, more=more, zone=zone, values=values)

    text_default = MANY if is_digest else SINGLE
    html = render(templates.html, "", Values.HTML) or None if templates.html else None
    plain, chat, markdown = (
        (one_line(render(templates.subject, SUBJECT, values)),
         render(templates.text, text_default, values))
        for values in (Values.PLAIN, Values.CHAT, Values.MARKDOWN)
    )  # fmt: skip
    note = f"\n(The default text was used, because of an error: {errors[0]})\n" if errors else ""
    (title, text), chat, markdown = ((head, body + note) for head, body in (plain, chat, markdown))
    data = {"events": [event.as_data() for event in shown], "more": more}
    kind = DIGEST if is_digest else events[0].event
    at = max(each.at for each in events)
    return Message(message_id, kind, title, text, html, data, at, chat, markdown)


def message_in(
    bundle: Bundle, grouping: Grouping, *, templates: Templates = DEFAULTS,
    zone: tzinfo = UTC, web_url: str | None = None,
) -> Message:  # fmt: skip
    """Return the message that a channel sends for a bundle.

    grouping: with PAGE, several events of a page are shown as one, from the first to the last
    web_url:  URL of the web app, for links; None: no links
    """
    is_joined = grouping is Grouping.PAGE and not bundle.more
    events = [joined(bundle.messages)] if is_joined else list(map(view_of, bundle.messages))
    if web_url is not None:
        events = [replace(event, link=link_to(web_url, event.site, event.url)) for event in events]
    return message_of(bundle.id, events, templates=templates, more=bundle.more, zone=zone)


def link_to(web_url: str, site: str, url: str) -> str:
    """Return the URL of a page in the web app; of its site if `url` is empty."""
    if not url:
        return f"{web_url}/sites/{quote(site, safe='')}"
    return f"{web_url}/targets/{target_id(f'{site} {url}')}"


def view_of(document: Document) -> EventView:
    """Return the event of a document of the outbox as templates see it."""
    data = document["data"]
    posts = data.get("posts", ())
    matching = data.get("posts_matching", 0)
    reasons = [data.get("text"), data.get("reason")]
    if failures := data.get("failures"):
        reasons.append(f"{count(failures, 'failed visit')} in a row")
    if matching:
        reasons.append(count(matching, "post"))
    view = EventView(
        event=document["event"],
        site=document["spider"],
        url=document["target"],
        title=data.get("title") or ("" if document["target"] else document["spider"]),
        at=document["at"],
        categories=tuple(data.get("categories", ())),
        reason="; ".join(filter(None, reasons)),
    ).with_contents(data.get("before"), data.get("after"))
    if "edits" in data:
        # From the whole contents, of which the document has only the beginning.
        changes = tuple(Change(**edit) for edit in data["edits"])
        view = replace(view, changes=changes, more_changes=data["more_edits"])
    if not posts:
        return view
    shown = (" ".join(filter(None, (post["title"], post["url"]))) for post in posts)
    return replace(view, changes=tuple(Change("post", None, text) for text in shown))


def joined(documents: Sequence[Document]) -> EventView:
    """Return one event for several of a page: the last one, with all changes since the first.

    It has the posts of all events of a feed, and the texts of all alarms.

    documents: in order; they lack some fields of pages with more than MAX_FIELDS
    """
    if len(documents) == 1:
        return view_of(documents[0])
    events = [document["data"] for document in documents]
    data = dict(events[-1])
    if texts := dict.fromkeys(event["text"] for event in events if event.get("text")):
        data["text"] = "; ".join(texts)
    if found := [event for event in events if "posts" in event]:
        listed = [post for event in found for post in event["posts"]]
        # An edited post is listed once, with its last title.
        posts = list({post["url"] or post["title"]: post for post in listed}.values())
        repeated = len(listed) - len(posts)
        data["posts_matching"] = sum(event["posts_matching"] for event in found) - repeated
        data["posts"] = posts[:MAX_SHOWN_POSTS]
        return view_of(documents[-1] | {"data": data})
    first, last = events[0], events[-1]
    before, after = first.get("before"), last.get("after")
    stored = [
        {**(event.get("before") or {}), **(event.get("after") or {})} for event in (first, last)
    ]
    if max(map(len, stored)) == MAX_FIELDS:
        # Each document may lack fields that the other one has: compare those in both.
        shared = stored[0].keys() & stored[1].keys()
        before = before and {name: value for name, value in before.items() if name in shared}
        after = after and {name: value for name, value in after.items() if name in shared}
    data |= {"before": before, "after": after}
    data |= _joined_edits(events, before, after)
    return view_of(documents[-1] | {"data": data})


def _joined_edits(
    events: Sequence[Document], before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> Document:
    """Return the edits from the first of some events of a page to the last.

    before, after: contents before the first and after the last event. Of texts that are cut there,
                   the edits of all events are shown.
    """
    cut = {n for content in (before, after) for n, v in (content or {}).items() if _is_cut(v)}
    old, new = (
        None if content is None else {n: v for n, v in content.items() if n not in cut}
        for content in (before, after)
    )
    found, more = edits(old, new, MAX_EDITS, MAX_VALUE_CHARACTERS)
    of_cut = [edit for event in events for edit in event.get("edits", ()) if edit["name"] in cut]
    listed = [*(edit._asdict() for edit in found), *of_cut]
    more += sum(event.get("more_edits", 0) for event in events) if cut else 0
    return {"edits": listed[:MAX_EDITS], "more_edits": more + max(0, len(listed) - MAX_EDITS)}


def _is_cut(value: Any) -> bool:
    return isinstance(value, str) and len(value) > MAX_VALUE_CHARACTERS


def rendered(
    template: str, events: Sequence[EventView], *,
    more: int = 0, zone: tzinfo = UTC, values: Values | None = None,
) -> str:  # fmt: skip
    """Render a template; raises ConfigError with its line.

    Templates see `event` (the first one), `events`, `more` (number of events that are not in
    `events`), `count` (number of all events) and `sites` (their names). A text of more than
    MAX_TEXT_CHARACTERS characters is cut off.

    values: how values are escaped; None: not
    """
    compiled = _compiled(template, values or Values.PLAIN)
    sites = list(dict.fromkeys(event.site for event in events))
    template_context = {
        "event": events[0], "events": list(events), "more": more, "count": len(events) + more,
        "sites": sites, _ZONE: zone,
    }  # fmt: skip
    parts, room = [], MAX_TEXT_CHARACTERS
    try:
        for part in compiled.generate(template_context):
            parts.append(part[:room])
            room -= len(part)
            if room < 0:
                parts.append(CUT.format(MAX_TEXT_CHARACTERS))
                break
    except TemplateNotFound as error:
        raise ConfigError(f"template: {_line(error)}cannot include {error.name!r}") from error
    except _FAILURES as error:
        cause = one_line(str(error).replace(f"{__name__}.", ""))
        raise ConfigError(f"template: {_line(error)}{cause}") from error
    # A page may contain surrogates, which neither JSON in UTF-8 nor an email can contain.
    return without_surrogates("".join(parts))


def check_template(template: str, *, is_html: bool = False) -> None:
    """Raise ConfigError with the line if a template is invalid or uses an unknown name.

    Names of fields are not checked: each site has its own.
    """
    # Values of every type of field are texts, so other errors depend on a page's values.
    example = EventView(
        "changed", "example", "https://example.com/", "Title", datetime(2026, 1, 1, tzinfo=UTC),
        ("category",), (Change("price", "10", "9"),), _AnyField(price="9"), "reason",
        "https://example.org/targets/1",
    )  # fmt: skip
    try:
        values = Values.HTML if is_html else Values.PLAIN
        rendered(template, [example, example], more=1, values=values)
    except ConfigError as error:
        if error.__cause__ is None or isinstance(error.__cause__, TemplateError):
            raise


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, cut to a title's length."""
    shown = " ".join(_CONTROL.sub(" ", text).split())
    return f"{shown[: MAX_TITLE_CHARACTERS - 1]}…" if len(shown) > MAX_TITLE_CHARACTERS else shown


class _AnyField(dict[str, str]):
    """Has a value for every field."""

    def __missing__(self, name: str) -> str:
        return ""


def _text(value: Any) -> str | None:
    """Return a value of a page as a short text; None if there is none."""
    if value is None:
        return None
    if is_price(value):
        value = price(value)
    elif isinstance(value, list | tuple):
        value = ", ".join(str(part) for part in value[:MAX_FIELDS])
    elif isinstance(value, datetime):
        value = iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    # Slice first: the text of a page may have megabytes.
    text = value[: MAX_VALUE_CHARACTERS + 1] if isinstance(value, str) else str(value)
    cut = len(text) > MAX_VALUE_CHARACTERS
    return f"{text[: MAX_VALUE_CHARACTERS - 1]}…" if cut else text


# Errors of a template's expressions, such as a comparison of a text with a number.
_FAILURES = (
    TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
# Name of the time zone in the context.
_ZONE = "_zone"
_NAMES = frozenset({"event", "events", "more", "count", "sites"})


@pass_context
def _local(context: Context, at: datetime, form: str = "%Y-%m-%d %H:%M %Z") -> str:
    zone: tzinfo = context[_ZONE]
    return at.astimezone(zone).strftime(form)


@lru_cache(maxsize=len(Values))
def _environment(values: Values) -> ImmutableSandboxedEnvironment:
    escape = {Values.CHAT: without_mentions, Values.MARKDOWN: without_markdown}.get(values)
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        autoescape=values is Values.HTML,
        keep_trailing_newline=True,
        finalize=lambda value: escape(value) if escape and isinstance(value, str) else value,
        loader=DictLoader({}),
        cache_size=0,
    )
    environment.filters["local"] = _local
    # Without range(), loops only go over the data.
    environment.globals.clear()
    return environment


@lru_cache(maxsize=256)
def _compiled(template: str, values: Values) -> Template:
    """Compile a template; raises ConfigError."""
    environment = _environment(values)
    try:
        if unknown := find_undeclared_variables(environment.parse(template)) - _NAMES:
            listed = ", ".join(sorted(_NAMES))
            raise ConfigError(f"template: unknown name: {min(unknown)!r}. Available: {listed}")
        return environment.from_string(template)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"template: line {error.lineno}: {one_line(str(error.message))}"
        ) from None
    except RecursionError:
        raise ConfigError("template: nested too deeply") from None


def _line(error: BaseException) -> str:
    """Return the place of an error in its template, such as `line 3: `."""
    step, line = error.__traceback__, 0
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return f"line {line}: " if line else ""
