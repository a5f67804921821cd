"""The inbox of the web app: pages that changed since a reader last looked, newest first.

A page of the inbox begins at an event of the change log and reads a bounded number of events from
there. A web page is listed at its newest event, with its net difference over all unread events.
Entries with the same edit are folded into one, within a page of the inbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from typing_extensions import TypedDict

from crawler.items import Outcome
from crawler.reports.changes import posts_summary, summary_of
from crawler.reports.differences import Difference, difference_of, similar_edits
from crawler.storage import change_events, visits
from crawler.storage.accounts.readers import Reader
from crawler.storage.change_events import FIRST_ID, NEVER_SEEN, PageState
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key
from crawler.utils.regex import Pattern, compiled

# Events that one page of the inbox reads, and those whose pages it compares.
MAX_EVENTS, MAX_COMPARED = 2000, 300
# Time after which a page with filters reads no more events, of which it may show none.
MAX_SECONDS = 0.15
BATCH = 100
MAX_COUNTED = 10_000
# Characters.
MAX_TITLE, MAX_WORDS = 200, 600
# Pages of an entry that are listed.
MAX_LISTED = 20
ChangeKind = Literal["new", "changed", "gone", "back"]
KINDS: tuple[ChangeKind, ...] = ("new", "changed", "gone", "back")
SAME_CONTENT = "the same content as before"


FoldKey = tuple[object, ...]


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
    """Number of pages with this edit."""
    pages: list[ChangedPage]
    """Pages with this edit, the last changed first, at most 20."""
    events: list[str]
    """For each page with this edit, the id of the newest visit that found a change."""


# An id that stays the same, and the entry.
FeedEntry = tuple[str, Entry]


@dataclass(frozen=True, slots=True)
class Filters:
    """Selected changes; the default selects all.

    site:     name of the site
    category: category of the page
    field:    name of a field that differs
    kind:     net kind of the change
    match:    part of the URL, in any case
    min_size: minimum number of characters that were removed and added
    """

    site: str = ""
    category: str = ""
    field: str = ""
    kind: str = ""
    match: str = ""
    min_size: int = 0

    @property
    def are_set(self) -> bool:
        """Return whether any filter is set."""
        return self != Filters()


@dataclass(frozen=True, slots=True)
class InboxPage:
    """A page of the inbox.

    until:  events up to this time are considered, on all pages of the list
    start:  time of the newest event that the page has read; None: it has read none
    end:    time of the last one; None: the page has read all older ones
    last:   key after which the next page begins; None: no more events
    muted:  number of events that were hidden by patterns
    """

    entries: list[Entry]
    until: datetime
    start: datetime | None
    end: datetime | None
    last: Key | None
    muted: int


@dataclass(slots=True)
class _Net:
    """A page with its unread events, newest first.

    before:  page before the oldest of them
    content: contents before and after; None if not stored
    """

    events: list[Document]
    before: PageState = NEVER_SEEN
    kind: ChangeKind = "changed"
    contents: tuple[Document | None, Document | None] = (None, None)
    difference: Difference | None = None
    categories: list[str] = field(default_factory=list)

    @property
    def event(self) -> Document:
        """Return the newest event."""
        return self.events[0]

    @property
    def is_same(self) -> bool:
        """Return whether the content is that of before."""
        return bool(
            self.before.content_hash and self.before.content_hash == self.event.get("content_hash")
        )

    @property
    def fold_key(self) -> FoldKey:
        """Return a key that is equal for the same edit of different pages."""
        site = self.event["spider"]
        if self.kind == "gone":
            return site, "gone", self.event.get("reason"), self.event.get("status")
        if self.kind == "changed" and self.difference and self.difference.digest:
            return site, self.difference.digest
        return site, self.event["target"]


async def read_inbox(
    db: Database,
    reader: Reader,
    filters: Filters,
    limit: int,
    until: datetime,
    after: Key | None = None,
) -> InboxPage:
    """Return a page of the unread changes of a reader, newest first.

    until: as on the first page   after: key of the page before
    """
    scan = _Scan(db, reader, filters, limit, until)
    last = await scan.read(after)
    groups = await asyncio.to_thread(_fold_similar, list(scan.groups.values()))
    entries = [await entry_of(db, group) for group in groups]
    return InboxPage(entries, until, scan.start, last[0] if last else None, last, scan.muted)


async def read_feed(db: Database, reader: Reader, limit: int, until: datetime) -> list[FeedEntry]:
    """Return the newest changes, read or not, each visit on its own, without muted pages.

    The same edits of one day (UTC) are one entry, whose id stays the same as pages are added.
    """
    everything = Reader(reader.name, mutes=reader.mutes)
    scan = _Scan(db, everything, Filters(), limit, until, joins_visits=False)
    await scan.read(None)
    return [
        (_lasting_id(key, group), await entry_of(db, group)) for key, group in scan.groups.items()
    ]


def _lasting_id(key: FoldKey, group: Sequence[_Net]) -> str:
    """Return an id that stays the same if more pages get the same edit."""
    if is_single(group[0]):
        return str(group[0].event["_id"])
    return hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()


async def count_unread(db: Database, reader: Reader, site: str = "") -> int:
    """Return the number of events after the reader's time, at most MAX_COUNTED.

    Events that are read or muted one by one are included.
    """
    times = [at for at in (reader.read_until, reader.sites.get(site)) if at is not None]
    return await change_events.count(db, max(times, default=None), MAX_COUNTED, spider=site or None)


class _Scan:
    """Collects the entries of one page of the inbox.

    groups: changes with the same edit, the newest first, by fold key
    start:  time of the newest event that was read
    muted:  number of events that patterns hide
    """

    def __init__(
        self,
        db: Database,
        reader: Reader,
        filters: Filters,
        limit: int,
        until: datetime,
        *,
        joins_visits: bool = True,
    ) -> None:
        self._db = db
        self._reader = reader
        self._filters = filters
        self._limit = limit
        self._until = until
        self._joins_visits = joins_visits
        self._mutes = [compiled(pattern) for pattern in reader.mutes]
        self.groups: dict[FoldKey, list[_Net]] = {}
        self.start: datetime | None = None
        self.muted = 0

    async def read(self, after: Key | None) -> Key | None:
        """Read events until enough entries are found; return the key of the last one, or None."""
        reader, last = self._reader, after
        read = compared = 0
        began = time.monotonic()
        while read < MAX_EVENTS and compared < MAX_COMPARED:
            if read and self._filters.are_set and time.monotonic() - began > MAX_SECONDS:
                break
            rows = await change_events.newest(
                self._db, reader, self._until, BATCH, last, self._filters.site or None
            )
            skipped_to = next(
                (
                    (span[0], n)
                    for n, row in enumerate(rows.rows)
                    if (span := reader.range_at(row["at"]))
                ),
                None,
            )
            batch = rows.rows if skipped_to is None else rows.rows[: skipped_to[1]]
            if batch and self.start is None:
                self.start = batch[0]["at"]
            wanted = [row for row in batch if self._wants(row)]
            nets = await net_changes(
                self._db, reader, wanted, self._until, joins_visits=self._joins_visits
            )
            for row in batch:
                net = nets.get(row["_id"])
                if net is not None and self._selects(net) and not self._add(net):
                    return last
                last = row["at"], row["_id"]
            if skipped_to is not None:
                # The rest of the range is read: continue before it.
                last = skipped_to[0], FIRST_ID
            elif rows.last is None:
                return None
            read += len(batch) + 1
            compared += len(wanted)
        return last

    def _wants(self, row: Document) -> bool:
        """Return whether an event is unread and selected, as far as its row shows."""
        url: str = row["target"]
        if self._reader.has_read(row["spider"], url, row["at"]):
            return False
        if self._filters.match and self._filters.match.casefold() not in url.casefold():
            return False
        if matches(self._mutes, url):
            self.muted += 1
            return False
        return True

    def _selects(self, net: _Net) -> bool:
        filters = self._filters
        fields = net.difference.fields if net.difference else tuple(net.contents[1] or ())
        return (
            (not filters.kind or net.kind == filters.kind)
            and (not filters.category or filters.category in net.categories)
            and (not filters.field or filters.field in fields)
            and size_of(net) >= filters.min_size
        )

    def _add(self, net: _Net) -> bool:
        """Add a change to its entry; return False if it needs one more than the limit."""
        key = net.fold_key
        if not self._joins_visits:
            key = (*key, f"{net.event['at']:%Y-%m-%d}", is_single(net) and net.event["_id"])
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= self._limit:
                return False
            self.groups[key] = [net]
        else:
            group.append(net)
        return True


def matches(patterns: Sequence[Pattern], url: str) -> bool:
    """Return whether one of the patterns matches a URL."""
    return any(pattern.search(url) is not None for pattern in patterns)


def is_single(net: _Net) -> bool:
    """Return whether a change cannot be folded with those of other pages."""
    return bool(net.fold_key[-1] == net.event["target"])


def size_of(net: _Net) -> int:
    """Return the characters that a change removed and added."""
    if net.difference is not None:
        return net.difference.size
    return sum(row.get("diff_size") or 0 for row in net.events)


async def net_changes(
    db: Database,
    reader: Reader,
    rows: Sequence[Document],
    until: datetime,
    *,
    joins_visits: bool = True,
) -> dict[object, _Net]:
    """Return the net changes of the events that are the newest of their pages, by event.

    joins_visits: join the unread events of a page; else each event is a change
    """
    if not rows:
        return {}
    if not joins_visits:
        return await _compare(db, {row["_id"]: _Net([row]) for row in rows})
    ids = [row["_id"] for row in rows]
    of_pages = await change_events.of_pages(db, ids, reader.read_until, until)
    nets: dict[object, _Net] = {}
    for row in rows:
        events = of_pages.get(row["_id"], [])
        if events and events[0]["_id"] == row["_id"]:
            nets[row["_id"]] = _Net(_unread(reader, events))
    return await _compare(db, nets)


def _unread(reader: Reader, events: Sequence[Document]) -> list[Document]:
    """Return the events after the newest one that is read, at least the first."""
    unread = list(events[:1])
    for row in events[1:]:
        if reader.has_read(row["spider"], row["target"], row["at"]):
            break
        unread.append(row)
    return unread


async def _compare(db: Database, nets: dict[object, _Net]) -> dict[object, _Net]:
    """Add states, contents, differences and categories to changes."""
    states, categories = await asyncio.gather(
        change_events.before(db, [net.events[-1]["_id"] for net in nets.values()]),
        change_events.categories(db, [_key(net.event) for net in nets.values()]),
    )
    for net in nets.values():
        net.before = states.get(net.events[-1]["_id"], NEVER_SEEN)
        net.categories = [str(each) for each in categories.get(_key(net.event), ())]
        net.kind = _kind_of(net)
    wanted = dict.fromkeys(key for net in nets.values() for key in version_keys(net))
    stored = await change_events.contents(db, list(wanted))
    await asyncio.to_thread(_add_differences, list(nets.values()), stored)
    return nets


def _key(event: Document) -> str:
    return f"{event['spider']} {event['target']}"


def version_keys(net: _Net) -> list[str]:
    """Return the `_id`s of the versions before and after a change."""
    hashes = (net.before.content_hash, net.event.get("content_hash"))
    return [f"{_key(net.event)} {each}" for each in hashes if each]


def _add_differences(nets: Sequence[_Net], stored: dict[str, Document]) -> None:
    for net in nets:
        key = _key(net.event)
        before = stored.get(f"{key} {net.before.content_hash}")
        after = stored.get(f"{key} {net.event.get('content_hash')}")
        net.contents = before, after
        if before is not None and after is not None and net.kind != "gone":
            net.difference = difference_of(before, after)


def _kind_of(net: _Net) -> ChangeKind:
    if net.event["outcome"] == Outcome.GONE:
        return "gone"
    if net.events[-1]["outcome"] == Outcome.NEW:
        return "new"
    was_gone = any(row["outcome"] == Outcome.GONE for row in net.events)
    if net.before.is_gone or (was_gone and net.is_same):
        return "back"
    return "changed"


def _fold_similar(groups: list[list[_Net]]) -> list[list[_Net]]:
    """Join entries of one site whose edits are nearly the same."""
    firsts = [group[0].difference if group[0].kind == "changed" else None for group in groups]
    joined: dict[int, list[_Net]] = {}
    for number, owner in enumerate(similar_edits(firsts)):
        same_site = groups[owner][0].event["spider"] == groups[number][0].event["spider"]
        joined.setdefault(owner if same_site else number, []).extend(groups[number])
    return list(joined.values())


async def entry_of(db: Database, group: Sequence[_Net]) -> Entry:
    """Return the entry of changes with the same edit, the newest first."""
    net = group[0]
    event = net.event
    after = net.contents[1] or {}
    difference = net.difference
    return {
        "id": str(event["_id"]),
        "at": event["at"],
        "kind": net.kind,
        "site": event["spider"],
        "url": event["target"],
        "title": str(after.get("title") or "")[:MAX_TITLE],
        "summary": await _summary(db, net),
        "fields": list(difference.fields) if difference else [],
        "removed": difference.removed[:MAX_WORDS] if difference else "",
        "added": difference.added[:MAX_WORDS] if difference else "",
        "size": size_of(net),
        "visits": len(net.events),
        "categories": net.categories,
        "page_count": len(group),
        "pages": [
            {"event": str(each.event["_id"]), "url": each.event["target"], "at": each.event["at"]}
            for each in group[:MAX_LISTED]
        ],
        "events": [str(each.event["_id"]) for each in group],
    }


async def _summary(db: Database, net: _Net) -> str:
    event = net.event
    if net.kind == "gone":
        return str(event.get("reason") or f"status {event.get('status')}")
    if any("posts_new" in row for row in net.events):
        titles = await visits.titles(db, event)
        new, edited = (
            sum(row.get(name) or 0 for row in net.events) for name in ("posts_new", "posts_edited")
        )
        return posts_summary(new, edited, titles)
    before, after = net.contents
    if net.kind == "new":
        return summary_of(None, after, size_of(net))
    if net.is_same:
        return SAME_CONTENT
    if before is None:
        # Without the earlier content, the later one would look like a new page.
        return summary_of(None, None, size_of(net))
    return summary_of(before, after, size_of(net))
