"""The HTML part of emails: a table of what changed, one for each rule.

Clients of emails know little CSS and drop style sheets, so all styles are attributes. Texts have
the color of the client, which changes the background in dark mode; a chip has both colors. Values
of pages are escaped and cut, as Gmail shows only the first 100 KB of an email.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment, StrictUndefined, Template

from crawler.extract.item_values import ValueChange, difference_of
from crawler.items import Event
from crawler.notify.event_views import EventView
from crawler.utils.text import count, day, listed, one_line, without_surrogates
from crawler.utils.time import time_in

# Rows of all tables, and of one event; further ones are counted.
MAX_ROWS, MAX_ROWS_OF_EVENT = 40, 5
MAX_NAME, MAX_FIELD, MAX_VALUE, MAX_TEXT, MAX_URL = 120, 40, 100, 300, 500
# Values of an item that is new, gone or back.
MAX_VALUES = 3
TEXT = "main_text"
# Fields that say nothing next to the name of the item.
UNTOLD = ("title", TEXT)
# Events of a whole item: its values are told in one row.
WHOLE = (Event.NEW, Event.GONE, Event.BACK)
CELL = "padding: 4px 8px 6px 0; vertical-align: top"
CHIP = "font-size: 13px; font-weight: 600; white-space: nowrap"
BACK = f"{CHIP}; padding: 0 5px; border-radius: 5px"
# As in the web app, only a price is good or bad news.
CHIPS = {
    "lower": f"{BACK}; color: #0b5d2b; background: #dff3e4",
    "higher": f"{BACK}; color: #93191c; background: #fbe3e3",
    "": CHIP,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    before, after: None: there is none
    tone:          `lower` or `higher` for a price
    is_wide:       whether `what` takes the place of all values
    """

    what: str
    before: str | None = None
    after: str | None = None
    difference: str = ""
    tone: str = ""
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """The rows of an event.

    link: URL of the item in the web app, else of its page; empty: none
    page: URL of its page, if `link` is another one
    """

    name: str
    site: str
    at: str
    link: str
    page: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Table:
    """The events of a rule. rule: its name; empty: none. summary: how many, and where."""

    rule: str
    summary: str
    entries: list[Item]


def mail_table(
    events: Sequence[EventView], title: str, zone: tzinfo, *,
    more: int = 0, web_url: str | None = None, note: str = "",
) -> str:  # fmt: skip
    """Return events as a document in HTML.

    more:    number of further events
    web_url: URL of the web app; None: no link to all changes
    note:    error to show; empty: none
    """
    room, left_out = MAX_ROWS, more
    of_rules: dict[str, list[EventView]] = {}
    for event in events:
        of_rules.setdefault(event.rule, []).append(event)
    tables = []
    for rule, of_rule in of_rules.items():
        items: list[Item] = []
        for event in of_rule:
            item = _item(event, zone)
            if len(item.rows) > room:
                room = 0
                break
            room -= len(item.rows)
            items.append(item)
        left_out += len(of_rule) - len(items)
        if items:
            sites = list(dict.fromkeys(one_line(event.site, MAX_NAME) for event in of_rule))
            n_events = len(of_rule) + (more if len(of_rules) == 1 else 0)
            summary = f"{count(n_events, 'event')}: {listed(sites)}"
            tables.append(Table(one_line(rule, MAX_NAME), summary, items))
    text = _template().render(
        tables=tables, note=note, title=one_line(title, MAX_TEXT), cell=CELL, chips=CHIPS,
        more=f"and {count(left_out, 'more event')}" if left_out else "",
        changes=f"{web_url}/changes" if web_url else "",
    )  # fmt: skip
    return without_surrogates(text)


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    path = Path(__file__).with_name("templates") / "mail.html"
    return environment.from_string(path.read_text(encoding="utf-8"))


def _item(event: EventView, zone: tzinfo) -> Item:
    at = event.at.astimezone(zone)
    page = event.url if _is_linked(event.url) else ""
    link = event.link if event.link and _is_linked(event.link) else page
    return Item(
        one_line(event.title or event.url or event.site, MAX_NAME), one_line(event.site, MAX_NAME),
        f"{day(at)}, {at:%H:%M}", link, page if page != link else "", list(_rows(event)),
    )  # fmt: skip


def _is_linked(url: str) -> bool:
    return len(url) <= MAX_URL and url.startswith(("https://", "http://"))


def _rows(event: EventView) -> Iterator[Row]:
    """Yield the rows of an event: prices first."""
    changes = sorted(event.changes, key=lambda each: not each["is_price"])
    if event.event in WHOLE:
        yield Row(
            event.event,
            _values(changes, "before") if event.event == Event.GONE else None,
            _values(changes, "after"),
        )
        return
    if not changes:
        told = ": ".join(filter(None, (event.event, event.reason)))
        yield Row(one_line(told, MAX_TEXT), is_wide=True)
        return
    for change in changes[:MAX_ROWS_OF_EVENT]:
        name = "text" if change["name"] == TEXT else change["name"].replace("_", " ")
        yield Row(
            one_line(name, MAX_FIELD), _cut(change["before"]), _cut(change["after"]),
            difference_of(change), (change["direction"] or "") if change["is_price"] else "",
        )  # fmt: skip
    further = max(0, len(changes) - MAX_ROWS_OF_EVENT) + event.more_changes
    if further:
        yield Row(f"and {count(further, 'more change')}", is_wide=True)


def _values(changes: Sequence[ValueChange], side: Literal["before", "after"]) -> str | None:
    """Return the first short values before or after changes in one line; None: there are none."""
    shown = []
    for change in changes:
        text = change[side]
        if text and change["name"] not in UNTOLD and len(text) <= MAX_VALUE:
            name = "" if change["is_price"] else f"{change['name'].replace('_', ' ')} "
            shown.append(one_line(f"{name}{_dated(text)}", MAX_VALUE))
    return " · ".join(shown[:MAX_VALUES]) or None


def _cut(text: str | None) -> str | None:
    return None if text is None else one_line(_dated(text), MAX_VALUE)


def _dated(text: str) -> str:
    """Return a value as people read it: an ISO date as `20 Nov 2026`, others as is."""
    at = time_in(text)
    if isinstance(at, datetime):
        at = at.astimezone(UTC)
        return f"{day(at)}, {at:%H:%M} UTC"
    return text if at is None else day(at)
