"""Entries of the inbox: net changes as the web app, its API and the Atom feed show them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from bson import ObjectId
from typing_extensions import TypedDict

from crawler.extract.item_values import ValueChange, text_change
from crawler.reports.changes import posts_summary, summary_of
from crawler.reports.history import compared
from crawler.reports.net_changes import (
    ChangeKind,
    Contents,
    NetChange,
    Told,
    contents_of,
    net_changes,
)
from crawler.storage import change_events, feed_reader, visits
from crawler.storage.client import Database
from crawler.storage.readers import Reader
from crawler.utils.edits import FieldDiff, edits
from crawler.utils.sandbox import ProcessPool
from crawler.utils.urls import common_start

MAX_EDIT_CHARACTERS = 300
# Short values that an entry shows, those that it shows of each of several pages, and places of
# longer texts.
MAX_VALUES, MAX_VALUES_OF_PAGE, MAX_PLACES = 6, 3, 3
# Characters of a value that an entry shows of a new item.
MAX_BRIEF = 40
# Pages of an entry that are listed.
MAX_LISTED = 20
CONFIRMATIONS = " confirmations"
SAME_CONTENT = "the same content as before"


class ChangedPage(TypedDict):
    """A page of an entry."""

    event: str
    """Id of the newest visit that found a change."""
    url: str
    """URL of the page, or `cell:NAME`."""
    at: datetime
    """Time of that visit."""
    name: str
    """Name of the item, or what its URL says of it."""
    edits: list[ValueChange]
    """Short values that differ, at most three."""


class Entry(TypedDict):
    """A net change of a page since the reader last looked, or the same edit of many pages."""

    id: str
    """Id of the newest visit that found the change."""
    at: datetime
    """Time of that visit."""
    kind: ChangeKind
    """`new`, `changed`, `gone`, or `back` after it was gone."""
    told: Told
    """The same, but a change is `lower` or `higher` if a price fell or rose, else `edited`."""
    site: str
    """Name of the site."""
    url: str
    """URL of the page, or `cell:NAME`; of several pages, the one that changed last."""
    name: str
    """Name of the item, or what its URL says of it."""
    summary: str
    """What changed, in one line; empty if it is not known."""
    fields: list[str]
    """Names of the fields that differ; empty if the contents are not stored."""
    edits: list[ValueChange]
    """Short values that differ, prices first, then places of longer texts, with whole words and
    some unchanged ones around them; of a new page its values, of a page that is gone the last
    ones."""
    more_edits: int
    """Number of further places."""
    size: int
    """Characters of the words that were removed and added."""
    visits: int
    """Number of unread visits that found changes of the page, at most 50."""
    categories: list[str]
    """Categories of the page."""
    page_count: int
    """Number of pages of the entry, at most 1,000: those with this edit or nearly the same one, or
    pages of a category that are new, or whose price fell or rose, on the same day."""
    is_same_edit: bool
    """Whether all these pages have the same edit, or nearly the same one."""
    ratios: tuple[float, float] | None
    """Of several pages whose price fell or rose: the smallest and the largest change."""
    common_url: str
    """The beginning that the URLs of all these pages share; of one page, its URL."""
    pages: list[ChangedPage]
    """The pages, at most 20: those whose price changed most first, else the last changed first."""
    events: list[str]
    """For each page, the id of the newest visit that found a change."""


async def entry_of(db: Database, group: Sequence[NetChange], contents: Contents) -> Entry:
    """Return the entry of changes that are told together, the newest first.

    contents: contents before and after the newest change
    """
    net = group[0]
    event = net.event
    found, more = await asyncio.to_thread(_edits_of, net, contents)
    is_same_edit = len({each.fold_key for each in group}) == 1 or net.together is None
    ratios = [each.price["ratio"] for each in group if each.price is not None]
    prices = [ratio for ratio in ratios if ratio is not None]
    is_priced = not is_same_edit and net.told in ("lower", "higher") and bool(prices)
    prices.sort(key=abs)
    listed = sorted(group, key=_price_change, reverse=True) if is_priced else group
    is_feed = any("posts_new" in row for row in net.events)
    return {
        "id": str(event["_id"]),
        "at": event["at"],
        "kind": net.kind,
        "told": net.told,
        "site": event["spider"],
        "url": event["target"],
        "name": await _feed_name(db, net) if is_feed else net.name,
        "summary": await _summary(db, net, contents),
        "fields": list(net.fields) if net.words or net.kind == "new" else [],
        "edits": found,
        "more_edits": more,
        "size": net.size,
        "visits": len(net.events),
        "categories": net.categories,
        "page_count": len(group),
        "is_same_edit": is_same_edit,
        "ratios": (prices[0], prices[-1]) if is_priced else None,
        "common_url": common_start([each.event["target"] for each in group]),
        "pages": [changed_page(each) for each in listed[:MAX_LISTED]],
        "events": [str(each.event["_id"]) for each in group],
    }


def _price_change(net: NetChange) -> float:
    return abs(net.price["ratio"] or 0.0) if net.price is not None else 0.0


def _edits_of(net: NetChange, contents: Contents) -> tuple[list[ValueChange], int]:
    """Return the edits of a change, and the number of further ones."""
    values = net.values
    if net.kind == "new":
        # Longer values are read on the page of the item.
        values = [value for value in values if len(value["after"] or "") <= MAX_BRIEF] or values
    found = values[:MAX_VALUES]
    more = len(net.values) - len(found)
    if net.words is not None:
        shown = {value["name"] for value in net.values}
        before, after = (
            {name: value for name, value in (content or {}).items() if name not in shown}
            for content in contents
        )
        places, further = edits(before, after, MAX_PLACES, MAX_EDIT_CHARACTERS)
        more += further
        found = [*found, *(text_change(*place) for place in places)]
    return found, more


def changed_page(net: NetChange) -> ChangedPage:
    """Return a page as it is listed in entries."""
    return {
        "event": str(net.event["_id"]),
        "url": net.event["target"],
        "at": net.event["at"],
        "name": net.name,
        "edits": net.values[:MAX_VALUES_OF_PAGE],
    }


async def _feed_name(db: Database, net: NetChange) -> str:
    """Return the title of a feed."""
    key = f"{net.event['spider']} {net.event['target']}"
    return (await feed_reader.titles(db, [key])).get(key) or net.name


async def _summary(db: Database, net: NetChange, contents: Contents) -> str:
    event = net.event
    if net.kind == "gone":
        # How often it was confirmed is for operators, who see the reason of the visit.
        reasons = str(event.get("reason") or "").split("; ")
        told = "; ".join(each for each in reasons if not each.endswith(CONFIRMATIONS))
        return told or f"status {event.get('status')}"
    if any("posts_new" in row for row in net.events):
        titles = await visits.titles(db, event)
        new, edited = (
            sum(row.get(name) or 0 for row in net.events) for name in ("posts_new", "posts_edited")
        )
        return posts_summary(new, edited, titles)
    if net.is_same and net.kind != "new":
        return SAME_CONTENT
    return summary_of(*contents, net.size, is_new=net.kind == "new")


# Outcomes of events; any other means that a page that was gone is back.
OUTCOMES = ("new", "changed", "gone")


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
    fields: list[FieldDiff]
    """Fields that differ; empty if the contents are not stored."""
    truncated: bool
    """Whether a part of the difference was left out because it is too long."""
    is_stored: bool
    """Whether the contents before and after are stored."""
    before_hash: str | None
    """Digest of the version before the change; null if it is not stored."""
    after_hash: str | None
    """Digest of the version after the change; null if it is not stored."""
    visits: list[VisitSeen]
    """Visits that found changes, newest first."""


async def page_change(
    db: Database, reader: Reader, event: ObjectId, sandbox: ProcessPool
) -> PageChange | None:
    """Return the change of a page up to an event; None if there is no such event.

    If the reader has read the event, it is compared with the visit before it. Raises ConfigError
    if the comparison exceeds the limits of the sandbox.
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
    pair = [{}, {}] if net.kind == "gone" else [before or {}, after or {}]
    (difference,) = await compared(pair, sandbox)
    return {
        "entry": await entry_of(db, [net], contents),
        "fields": [field for field in difference["fields"] if field["kind"] != "same"],
        "truncated": difference["truncated"],
        "is_stored": after is not None and (before is not None or net.kind == "new"),
        "before_hash": None if before is None else net.before.content_hash,
        "after_hash": None if after is None else net.event.get("content_hash"),
        "visits": [
            {
                "at": each["at"],
                "outcome": each["outcome"] if each["outcome"] in OUTCOMES else "back",
            }
            for each in net.events
        ],
    }
