"""One item: its current values and what they were, its changes, and its versions to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from typing_extensions import TypedDict

from crawler.extract.item_names import name_of
from crawler.extract.item_values import Value, ValueChange, change_of, values_of
from crawler.items import Outcome
from crawler.reports.history import Version
from crawler.reports.items import ItemValue, content_of
from crawler.reports.target import Series
from crawler.storage import items, posts, visits
from crawler.storage.client import Database, Document
from crawler.utils.edits import shown

# Changes that the page of an item shows; older ones are in its visits.
MAX_CHANGES = 30
# Visits that found the page gone, of which only the first in a row is a change.
MAX_GONE = 20
# Characters of a version that its page shows, and links of a list page.
MAX_READ, MAX_LINKS = 100_000, 1000
# A longer text of a version is a paragraph.
LINE_CHARACTERS = 120
ChangeKind = Literal["new", "changed", "gone"]


class CurrentValue(ItemValue):
    """A current value of an item; its change is the last one."""

    since: datetime | None
    """Time of the visit that found the value; null if the value is older than the known changes."""


class ItemChange(TypedDict):
    """What a visit found."""

    at: datetime
    """Time of the visit."""
    kind: ChangeKind
    """`new`: first seen, `changed`, or `gone`: the page is gone."""
    visit: str
    """Id of the visit."""
    content_hash: str | None
    """Hash of the content that it found; null if the page was gone, or if it was pruned."""
    fields: list[ValueChange]
    """Changed values that fit on a line. Empty if only long texts changed or nothing is stored."""


@dataclass(frozen=True, slots=True)
class ItemHistory:
    """An item as its page begins.

    values:  current values
    changes: newest first, at most MAX_CHANGES
    is_cut:  whether there are older changes
    """

    name: str
    values: list[CurrentValue]
    changes: list[ItemChange]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Extremes:
    """The lowest and the highest value of a field. unit: currency, or none."""

    name: str
    lowest: float
    highest: float
    unit: str | None
    since: datetime


async def item_history(db: Database, target: Document) -> ItemHistory:
    """Return the current values of a stored item, and what changed."""
    spider, url = target["spider"], target["url"]
    found = await visits.page_of_target(
        db, spider, url, [Outcome.NEW, Outcome.CHANGED], MAX_CHANGES + 1, None
    )
    gone = await visits.page_of_target(db, spider, url, [Outcome.GONE], MAX_GONE, None)
    rows = [*found.rows, *(row for row in gone.rows if row.get("event"))]
    rows.sort(key=lambda row: row["at"], reverse=True)
    contents = await items.short_contents(
        db, spider, url, [row["content_hash"] for row in found.rows if row.get("content_hash")]
    )
    current = await _current(db, target)
    changes = _changes(rows, contents)
    return ItemHistory(
        name_of(current, url),
        [_current_value(value, changes) for value in values_of(current or {})],
        changes[:MAX_CHANGES],
        len(changes) > MAX_CHANGES,
    )


async def _current(db: Database, target: Document) -> Document | None:
    """Return the short values of an item; None if no content is stored."""
    for row in await items.of_ids(db, [target["_id"]]):
        return content_of(row)
    # The page of a feed's post has no item of its own.
    content_hash = target.get("content_hash")
    if content_hash is None:
        return None
    found = await items.short_contents(db, target["spider"], target["url"], [content_hash])
    return found.get(content_hash)


def _changes(rows: Sequence[Document], contents: Mapping[str, Document]) -> list[ItemChange]:
    """Return the changes that visits found. rows: newest first, also of gone pages."""
    changes: list[ItemChange] = []
    for place, row in enumerate(rows):
        content = contents.get(row.get("content_hash") or "")
        earlier = next(
            (each for each in rows[place + 1 :] if each["outcome"] != Outcome.GONE), None
        )
        before = contents.get(earlier.get("content_hash") or "") if earlier else None
        kind: ChangeKind = "changed"
        if row["outcome"] == Outcome.GONE:
            kind, content = "gone", None
        elif row["outcome"] == Outcome.NEW:
            kind = "new"
        is_compared = kind == "changed" and content is not None and before is not None
        changes.append(
            {
                "at": row["at"],
                "kind": kind,
                "visit": str(row["_id"]),
                "content_hash": row.get("content_hash") if content is not None else None,
                "fields": field_changes(before or {}, content or {}) if is_compared else [],
            }
        )
    return changes


def field_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[ValueChange]:
    """Return the values that differ between two contents, of those that fit on a line."""
    old, new = _lines_of(before), _lines_of(after)
    changes = (change_of(name, old.get(name), new.get(name)) for name in {**new, **old})
    return [change for change in changes if change["before"] != change["after"]]


def _lines_of(content: Mapping[str, Any]) -> dict[str, Value]:
    """Return all values of a content that fit on a line, also its name."""
    return {
        name: {**each, "name": name}
        for name, value in content.items()
        for each in values_of({"": value})
    }


def _current_value(value: Value, changes: Sequence[ItemChange]) -> CurrentValue:
    for each in changes:
        for field in each["fields"]:
            if field["name"] == value["name"]:
                return {**value, "change": field, "since": each["at"]}
        if each["kind"] == "new":
            return {**value, "change": None, "since": each["at"]}
    return {**value, "change": None, "since": None}


def extremes(series: Sequence[Series]) -> Extremes | None:
    """Return the lowest and the highest value of the first field whose numbers changed."""
    for each in series:
        values = [point["value"] for point in each["points"]]
        return Extremes(
            each["name"], min(values), max(values), each["unit"], each["points"][0]["at"]
        )
    return None


@dataclass(frozen=True, slots=True)
class ReadField:
    """A field of a version to read. is_long: a text of several lines."""

    name: str
    text: str
    is_long: bool


@dataclass(frozen=True, slots=True)
class ReadVersion:
    """A version to read.

    fields:         short ones first, the main text last
    left_out:       characters that there was no room for
    earlier, later: hashes of the versions before and after; None: there is none
    """

    content_hash: str
    at: datetime
    name: str
    fields: list[ReadField]
    links: list[str]
    n_links: int
    left_out: int
    earlier: str | None
    later: str | None


async def read_version(db: Database, target: Document, content_hash: str) -> ReadVersion | None:
    """Return a version of a target to read; None if it is not stored."""
    spider, url = target["spider"], target["url"]
    stored = await posts.read_version(db, spider, url, content_hash)
    if stored is None:
        return None
    content: Document = stored.get("content") or {}
    links = content.get("links") if target["kind"] == "list" else None
    texts = {
        name: shown(value)
        for name, value in content.items()
        if not (links is not None and name == "links") and value not in (None, "", [])
    }
    fields = [
        ReadField(name, text, len(text) > LINE_CHARACTERS or "\n" in text)
        for name, text in texts.items()
    ]
    fields.sort(key=lambda field: (field.name == posts.MAIN_TEXT, field.is_long))
    room, kept = MAX_READ, []
    for field in fields:
        kept.append(replace(field, text=field.text[:room]))
        room -= len(kept[-1].text)
    left_out = sum(map(len, texts.values())) - sum(len(field.text) for field in kept)
    earlier, later = await posts.neighbors_of(db, spider, url, stored["at"])
    shown_links = [str(link) for link in (links or ())[:MAX_LINKS]]
    return ReadVersion(
        content_hash, stored["at"], name_of(content, url), kept, shown_links, len(links or ()),
        left_out, earlier, later,
    )  # fmt: skip


async def version_with_content(db: Database, target: Document, content_hash: str) -> Version | None:
    """Return a version of a target with its whole content; None if it is not stored."""
    stored = await posts.read_version(db, target["spider"], target["url"], content_hash)
    if stored is None:
        return None
    visit = stored.get("visit")
    return {
        "content_hash": stored["content_hash"],
        "at": stored["at"],
        "visit": None if visit is None else str(visit),
        "size": stored["size"],
        "content": stored.get("content") or {},
    }
