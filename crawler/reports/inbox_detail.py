"""One entry of the inbox in detail: the net difference of a page, word by word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from bson import ObjectId
from typing_extensions import TypedDict

from crawler.reports.differences import WORD_PAIRS, parts_of, text_of
from crawler.reports.inbox_entries import Entry, entry_of
from crawler.reports.net_changes import contents_of, net_changes
from crawler.storage import change_events
from crawler.storage.accounts.readers import Reader
from crawler.storage.client import Database, Document
from crawler.utils.diff import Matcher

MAX_FIELDS = 50
# Outcomes of events; any other means that a page that was gone is back.
OUTCOMES = ("new", "changed", "gone")
# Characters of a new page's field.
MAX_CHARACTERS = 2000


class Part(TypedDict):
    """A part of a changed field."""

    kind: Literal["same", "removed", "added", "omitted"]
    """`same`, `removed` or `added` text, or what is `omitted` here, in words."""
    text: str
    """The text."""


class FieldChange(TypedDict):
    """A field that differs."""

    name: str
    """Name of the field."""
    parts: list[Part]
    """Its text before and after, in parts."""


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
        alone = await net_changes(db, reader, rows, row["at"], joins_visits=False)
        net = alone.changes[event]
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
        {"name": name, "parts": _parts(before, after, name, matcher)} for name in names[:MAX_FIELDS]
    ]


def _parts(before: Document, after: Document, name: str, matcher: Matcher) -> list[Part]:
    if not before:
        text = text_of(after.get(name))
        parts: Sequence[tuple[str, str]] = [("added", text[:MAX_CHARACTERS])]
        if len(text) > MAX_CHARACTERS:
            parts = [*parts, ("omitted", f"{len(text) - MAX_CHARACTERS:,} characters")]
    else:
        parts = parts_of(before.get(name), after.get(name), matcher)
    return [{"kind": kind, "text": text} for kind, text in parts]  # type: ignore[typeddict-item]
