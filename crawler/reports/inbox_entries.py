"""Entries of the inbox, as they are listed and in detail.

An entry is the net change of a page, or the same edit of many pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bson import ObjectId
from typing_extensions import TypedDict

from crawler.reports.changes import posts_summary, summary_of
from crawler.reports.history import DiffBuilder, Segment
from crawler.reports.net_changes import (
    ChangeKind,
    Contents,
    NetChange,
    contents_of,
    net_changes,
    text_of,
)
from crawler.storage import change_events, visits
from crawler.storage.client import Database, Document
from crawler.storage.readers import Reader
from crawler.utils.diff import Matcher
from crawler.utils.urls import common_start

# Characters.
MAX_TITLE, MAX_WORDS = 200, 600
# Pages of an entry that are listed.
MAX_LISTED = 20
SAME_CONTENT = "the same content as before"
# Characters of a field that are compared word by word for display, in about 50 ms.
MAX_COMPARED = 100_000
# Pairs of words that the comparison of a page may compare.
WORD_PAIRS = 50_000_000
# Characters of unchanged text around an edit, and of all parts of a field.
CONTEXT, MAX_SHOWN = 120, 20_000


class ChangedPage(TypedDict):
    """A page of an entry."""

    event: str
    """Id of the newest visit that found a change."""
    url: str
    """URL of the page, or `cell:NAME`."""
    at: datetime
    """Time of that visit."""


class Entry(TypedDict):
    """A net change of a page since the reader last looked, or the same edit of many pages."""

    id: str
    """Id of the newest visit that found the change."""
    at: datetime
    """Time of that visit."""
    kind: ChangeKind
    """`new`, `changed`, `gone`, or `back` after it was gone."""
    site: str
    """Name of the site."""
    url: str
    """URL of the page, or `cell:NAME`; of several pages, the one that changed last."""
    title: str
    """Title of the page; empty if it has none."""
    summary: str
    """What changed, in one line; empty if it is not known."""
    fields: list[str]
    """Names of the fields that differ; empty if the contents are not stored."""
    removed: str
    """Words that were removed; long texts are cut."""
    added: str
    """Words that were added; long texts are cut."""
    size: int
    """Characters of the words that were removed and added."""
    visits: int
    """Number of unread visits that found changes of the page, at most 50."""
    categories: list[str]
    """Categories of the page."""
    page_count: int
    """Number of pages with this edit or nearly the same one, at most 1,000."""
    common_url: str
    """The beginning that the URLs of all these pages share; of one page, its URL."""
    pages: list[ChangedPage]
    """Pages with this edit, the last changed first, at most 20."""
    events: list[str]
    """For each page with this edit, the id of the newest visit that found a change."""


async def entry_of(db: Database, group: Sequence[NetChange], contents: Contents) -> Entry:
    """Return the entry of changes with the same edit, the newest first.

    contents: contents before and after the newest change
    """
    net = group[0]
    event = net.event
    after = contents[1] or {}
    difference = net.difference
    return {
        "id": str(event["_id"]),
        "at": event["at"],
        "kind": net.kind,
        "site": event["spider"],
        "url": event["target"],
        "title": str(after.get("title") or "")[:MAX_TITLE],
        "summary": await _summary(db, net, contents),
        "fields": list(difference.fields) if difference else [],
        "removed": difference.removed[:MAX_WORDS] if difference else "",
        "added": difference.added[:MAX_WORDS] if difference else "",
        "size": net.size,
        "visits": len(net.events),
        "categories": net.categories,
        "page_count": len(group),
        "common_url": common_start([each.event["target"] for each in group]),
        "pages": [changed_page(each) for each in group[:MAX_LISTED]],
        "events": [str(each.event["_id"]) for each in group],
    }


def changed_page(net: NetChange) -> ChangedPage:
    """Return a page as it is listed in entries."""
    return {"event": str(net.event["_id"]), "url": net.event["target"], "at": net.event["at"]}


async def _summary(db: Database, net: NetChange, contents: Contents) -> str:
    event = net.event
    if net.kind == "gone":
        return str(event.get("reason") or f"status {event.get('status')}")
    if any("posts_new" in row for row in net.events):
        titles = await visits.titles(db, event)
        new, edited = (
            sum(row.get(name) or 0 for row in net.events) for name in ("posts_new", "posts_edited")
        )
        return posts_summary(new, edited, titles)
    before, after = contents
    if net.kind == "new":
        return summary_of(None, after, net.size)
    if net.is_same:
        return SAME_CONTENT
    if before is None:
        # Without the earlier content, the later one would look like a new page.
        return summary_of(None, None, net.size)
    return summary_of(before, after, net.size)


MAX_FIELDS = 50
# Outcomes of events; any other means that a page that was gone is back.
OUTCOMES = ("new", "changed", "gone")


class FieldChange(TypedDict):
    """A field that differs."""

    name: str
    """Name of the field."""
    parts: list[Segment]
    """Its text before and after, in parts."""
    truncated: bool
    """Whether a part of the difference was left out because it is too long."""


class VisitSeen(TypedDict):
    """A visit that found a change."""

    at: datetime
    """Time of the visit."""
    outcome: str
    """Result of the visit."""


class PageChange(TypedDict):
    """The net change of a page since the reader last looked."""

    entry: Entry
    """The change as the inbox lists it."""
    fields: list[FieldChange]
    """Fields that differ, at most 50; empty if the contents are not stored."""
    is_stored: bool
    """Whether the contents before and after are stored."""
    visits: list[VisitSeen]
    """Visits that found changes, newest first."""


async def page_change(db: Database, reader: Reader, event: ObjectId) -> PageChange | None:
    """Return the change of a page up to an event; None if there is no such event.

    If the reader has read the event, it is compared with the visit before it.
    """
    rows = await change_events.by_ids(db, [event])
    if not rows:
        return None
    (row,) = rows
    is_read = reader.has_read(row["spider"], row["target"], row["at"])
    joined = await net_changes(db, reader, rows, row["at"], joins_visits=not is_read)
    net = joined.changes.get(event)
    if net is None:
        unjoined = await net_changes(db, reader, rows, row["at"], joins_visits=False)
        net = unjoined.changes[event]
    (contents,) = await contents_of(db, [net])
    before, after = contents
    first, second = before or {}, after or {}
    if net.kind == "gone":
        first, second = {}, {}
    fields = await asyncio.to_thread(_field_changes, first, second)
    return {
        "entry": await entry_of(db, [net], contents),
        "fields": fields,
        "is_stored": after is not None and (before is not None or net.kind == "new"),
        "visits": [
            {
                "at": each["at"],
                "outcome": each["outcome"] if each["outcome"] in OUTCOMES else "back",
            }
            for each in net.events
        ],
    }


def _field_changes(before: Document, after: Document) -> list[FieldChange]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    matcher = Matcher(WORD_PAIRS)
    return [
        field_change(name, before.get(name), after.get(name), matcher)
        for name in names[:MAX_FIELDS]
    ]


def field_change(name: str, before: Any, after: Any, matcher: Matcher) -> FieldChange:
    """Return the change of a field, compared by word."""
    old, new = text_of(before), text_of(after)
    builder = DiffBuilder(matcher, MAX_SHOWN, CONTEXT)
    parts = list(builder.words(old[:MAX_COMPARED], new[:MAX_COMPARED]))
    truncated = builder.is_full or max(len(old), len(new)) > MAX_COMPARED
    return {"name": name, "parts": parts, "truncated": truncated}
