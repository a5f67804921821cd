"""Events of pages as templates, webhooks and the tables of emails see them.

An event is made of one document of the outbox, or of several about the same page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Self
from urllib.parse import quote

from crawler.extract.item_values import ValueChange, change_of, text_change, values_of
from crawler.storage.client import Document
from crawler.utils.edits import Edit, edits
from crawler.utils.text import count, is_price, price
from crawler.utils.time import iso
from crawler.utils.urls import target_id

MAX_FIELDS, MAX_SHOWN_POSTS, MAX_EDITS = 20, 20, 20
MAX_VALUE_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class EventView:
    """An event as templates and webhooks see it.

    event:      its name, such as `changed`
    at:         time of the visit
    changes:    the places that changed, at most MAX_EDITS; long texts begin shortly before what
                changed, so that a shorter text shows it, too
    more_changes: number of further places
    values:     the values of the page as texts, by field, at most MAX_FIELDS
    reason:     condition or error that caused the event; empty: none
    link:       URL of the page or site in the web app; None without FRESHET_WEB_URL
    rule:       name of the rule; empty for a test
    """

    event: str
    site: str
    url: str
    title: str
    at: datetime
    categories: tuple[str, ...] = ()
    changes: tuple[ValueChange, ...] = ()
    values: Mapping[str, str] | None = None
    reason: str = ""
    link: str | None = None
    more_changes: int = 0
    rule: str = ""

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
        changes = _changes_in(found, before, after)
        return replace(self, changes=changes, more_changes=more, values=values)

    def as_data(self) -> dict[str, Any]:
        """Return the event for JSON; times in ISO format, in UTC."""
        data = asdict(self) | {"at": iso(self.at), "values": dict(self.values or {})}
        return data | {"categories": list(self.categories), "changes": list(data["changes"])}


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
        rule=document.get("rule", ""),
    ).with_contents(data.get("before"), data.get("after"))
    if "edits" in data:
        # From the whole contents, of which the document has only the beginning.
        found = [Edit(**edit) for edit in data["edits"]]
        changes = _changes_in(found, data.get("before"), data.get("after"))
        view = replace(view, changes=changes, more_changes=data["more_edits"])
    if not posts:
        return view
    shown = (" ".join(filter(None, (post["title"], post["url"]))) for post in posts)
    return replace(view, changes=tuple(text_change("post", None, text) for text in shown))


def _changes_in(
    found: Sequence[Edit], before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[ValueChange, ...]:
    """Return edits between two contents as changes, with the numbers of whole values."""
    old, new = (
        {value["name"]: value for value in values_of(content or {})} for content in (before, after)
    )
    changes = []
    for edit in found:
        change = change_of(edit.name, old.get(edit.name), new.get(edit.name))
        is_whole = (change["before"], change["after"]) == (edit.before, edit.after)
        changes.append(change if is_whole else text_change(*edit))
    return tuple(changes)


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
