"""Render events of pages as messages, with templates of the operator in Jinja's sandbox.

The text of a page, however hostile, cannot keep a delivery busy: a message has at most MAX_EVENTS
events with MAX_FIELDS fields of MAX_VALUE_CHARACTERS characters, and a rendered text is cut off.
How often a template goes over these data is up to the operator, who alone can write templates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Any

from jinja2 import DictLoader, StrictUndefined, Template, TemplateError, pass_context
from jinja2.exceptions import TemplateNotFound, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from crawler.errors import ConfigError
from crawler.extract.item_values import text_change
from crawler.notify.event_views import EventView, joined, link_to, view_of
from crawler.notify.mail_table import mail_table
from crawler.storage.outbox import Bundle, Grouping
from crawler.utils.text import one_line, without_surrogates

# Characters of a rendered text; the rest is cut off.
MAX_TEXT_CHARACTERS = 50_000
MAX_TITLE_CHARACTERS = 200
# Maximum number of events that a message lists; the others are only counted.
MAX_EVENTS = 50
# Webhook receivers and mail servers compare ids, so an id has no characters that need quoting.
MESSAGE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
DIGEST = "digest"
CUT = "\n(cut off here: a message has at most {:,} characters)"
# An invisible character after these signs ends the mention.
_MENTION = re.compile(r"(?<!\w)@(?=\w)|<(?:[!#]|@[!&]?)(?=\w)")
_MARKUP = re.compile(r"[\\`*_~|\[\]<>#]")
_LINK = re.compile(r"(https?://[^\s<>\[\]()`]+)")

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
class Message:
    """A message that a channel can send.

    id:   the same for every attempt, so that receivers can drop repetitions
    type: name of the event, or `digest` for several events
    html: HTML part of an email; None: the message is only plain text
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
    """The templates of a channel; None: the default.

    html:      empty: no HTML
    has_table: whether the default of the HTML is a table, as for emails; else there is none
    """

    text: str | None = None
    subject: str | None = None
    html: str | None = None
    has_table: bool = False


DEFAULTS = Templates()


def message_of(
    message_id: str, events: Sequence[EventView], *,
    templates: Templates = DEFAULTS, more: int = 0, zone: tzinfo = UTC, web_url: str | None = None,
) -> Message:  # fmt: skip
    """Return a message about one event, or a digest of several.

    A template that fails is replaced by the default, and the message shows the error, because an
    error in a template must not lose a notification.

    events: at least one, in the order of their times; those beyond MAX_EVENTS are only counted
    more:   number of further events, which were not read
    zone:   time zone for the filter `local`
    web_url: URL of the web app; None: no link to all changes
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
    html = render(templates.html, "", Values.HTML) if templates.html else ""
    plain, chat, markdown = (
        (one_line(render(templates.subject, SUBJECT, values), MAX_TITLE_CHARACTERS),
         render(templates.text, text_default, values))
        for values in (Values.PLAIN, Values.CHAT, Values.MARKDOWN)
    )  # fmt: skip
    note = f"\n(The default text was used, because of an error: {errors[0]})\n" if errors else ""
    (title, text), chat, markdown = ((head, body + note) for head, body in (plain, chat, markdown))
    if templates.has_table and not html:
        html = mail_table(shown, title, zone, more=more, web_url=web_url, note=note.strip())
    data = {"events": [event.as_data() for event in shown], "more": more}
    kind = DIGEST if is_digest else events[0].event
    at = max(each.at for each in events)
    return Message(message_id, kind, title, text, html or None, data, at, chat, markdown)


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
    return message_of(
        bundle.id, events, templates=templates, more=bundle.more, zone=zone, web_url=web_url
    )


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
        cause = one_line(str(error).replace(f"{EventView.__module__}.", ""), MAX_TITLE_CHARACTERS)
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
        ("category",), (text_change("price", "10", "9"),), _AnyField(price="9"), "reason",
        "https://example.org/targets/1",
    )  # fmt: skip
    try:
        values = Values.HTML if is_html else Values.PLAIN
        rendered(template, [example, example], more=1, values=values)
    except ConfigError as error:
        if error.__cause__ is None or isinstance(error.__cause__, TemplateError):
            raise


class _AnyField(dict[str, str]):
    """Has a value for every field."""

    def __missing__(self, name: str) -> str:
        return ""


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
            f"template: line {error.lineno}: {one_line(str(error.message), MAX_TITLE_CHARACTERS)}"
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
