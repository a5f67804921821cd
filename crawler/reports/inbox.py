"""The inbox of the web app: pages with changes that a reader has not read, newest first.

The unread events are read in windows of bounded size, newest first. A web page is listed at its
newest event, with its net difference over all unread events. The entries of a window that are told
in one line are folded: those with the same edit, or nearly the same, the new pages of a category on
one day, and those whose price fell or rose. A page of the inbox is a part of a window: the other
pages of the window read it again, unless it is still in `Windows`.

`Windows` caches the windows that were read a moment ago. A window depends on the changes that its
reader has read, on the filters, and on the events up to a time. The first window of a list is used
for a later time, too. Before a window is used again, its events are counted: the time of a visit is
that of the response, and the visit is stored a moment later. So changes of the last SETTLING are
never marked as read by time, but page by page, and a change that is stored late stays unread.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain

from bson import ObjectId

from crawler.reports.entries import ChangedPage, Entry, changed_page, entry_of
from crawler.reports.net_changes import (
    MIN_TOGETHER,
    FoldKey,
    NetChange,
    Told,
    contents_of,
    net_changes,
    similar_edits,
)
from crawler.storage import change_events, readers
from crawler.storage.change_events import FIRST_ID
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key
from crawler.storage.readers import Reader, Span
from crawler.utils.regex import Pattern, compiled

# Limits of a window: events, compared pages, and bytes of compared contents.
MAX_EVENTS, MAX_COMPARED, MAX_BYTES = 5000, 500, 40_000_000
# Time after which a window ends if it has enough entries for a page, or if filters are set, because
# filters may exclude all events.
MAX_SECONDS, MIN_ENTRIES = 0.1, 50
BATCH = 100
MILLISECOND = timedelta(milliseconds=1)
TOLD: tuple[Told, ...] = ("new", "lower", "higher", "edited", "back", "gone")
# A permanent id, and the entry.
FeedEntry = tuple[str, Entry]


@dataclass(frozen=True, slots=True)
class Filters:
    """Selected changes; the default selects all.

    site:     name of the site
    category: category of the page
    field:    name of a field that differs
    kind:     how the change is told, or `changed` for any change of content
    match:    part of the name or the URL, in any case
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
class Position:
    """The place at which a page of the inbox begins.

    window: key (time, `_id`) of the last event before the window; None: none
    shown:  key of the last entry of the window that was shown; None: none
    """

    window: Key | None = None
    shown: Key | None = None


FIRST = Position()


@dataclass(frozen=True, slots=True)
class InboxPage:
    """A page of the inbox.

    until:  events up to this time are considered, on all pages of the list
    start:  time of the newest event of the window; None: there is none
    end:    all unread, selected events after this time and up to `start` are in `entries`, or in
            entries of earlier pages; None: no events are left
    next:   where the next page begins; None: no more events
    muted:  number of events of the window that were hidden by patterns
    counts: pages of the window by how they are told, whatever the filter by kind
    is_all: whether the window has all unread changes of the list
    """

    entries: list[Entry]
    until: datetime
    start: datetime | None
    end: datetime | None
    next: Position | None
    muted: int
    counts: Counter[Told]
    is_all: bool

    @property
    def pages(self) -> int:
        """Return the number of pages of the window, whatever the filter by kind."""
        return self.counts.total()


MAX_AGE_SECONDS = 60.0
# Estimated memory of all windows; most take 1 to 4 MB.
MAX_CACHED_BYTES = 12_000_000
CHANGE_BYTES, EVENT_BYTES = 3000, 300
# Maximum number of events to count. Windows with more events are always read again.
MAX_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """The entries of a part of an inbox.

    groups: changes with the same edit, or nearly the same, the newest first
    until:  events up to this time are considered
    start:  time of the newest event that was read; None: there is none
    last:   key of the last event; None: no more events
    muted:  number of events that patterns hide
    since:  time after which its events are counted; None: from the first one
    before: key of the event before the window; None: the window is the first of its list
    spider: spider of all its events; None: any
    count:  number of its events, at most MAX_COUNTED
    """

    groups: list[list[NetChange]]
    until: datetime
    start: datetime | None
    last: Key | None
    muted: int
    since: datetime | None
    before: Key | None
    spider: str | None
    count: int
    at: float = field(default_factory=time.monotonic)

    @property
    def n_bytes(self) -> int:
        """Return the estimated memory in bytes."""
        nets = [net for group in self.groups for net in group]
        texts = [net.words for net in nets if net.words is not None]
        return (
            CHANGE_BYTES * len(nets)
            + EVENT_BYTES * sum(len(net.events) for net in nets)
            + sum(len(each.removed) + len(each.added) for each in texts)
        )


class Windows:
    """The latest windows of all readers, up to MAX_CACHED_BYTES."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Window, int]] = OrderedDict()

    async def get(self, db: Database, key: Hashable, until: datetime) -> Window | None:
        """Return a cached window that is still valid; None if there is none."""
        window, _ = self._kept.get(key, (None, 0))
        if window is None or time.monotonic() - window.at > MAX_AGE_SECONDS:
            return None
        if window.until != until and (until < window.until or window.before is not None):
            return None
        n_events = await count_events(db, window.since, window.before, until, window.spider)
        if n_events != window.count or n_events == MAX_COUNTED:
            return None
        self._kept.move_to_end(key)
        return window

    def put(self, key: Hashable, window: Window) -> None:
        """Keep a window, and drop the least recently used ones beyond the limit."""
        self._kept.pop(key, None)
        self._kept[key] = window, window.n_bytes
        while sum(n for _, n in self._kept.values()) > MAX_CACHED_BYTES:
            self._kept.popitem(last=False)


async def count_events(
    db: Database,
    since: datetime | None,
    before: Key | None,
    until: datetime,
    spider: str | None,
) -> int:
    """Return the number of events of a window, at most MAX_COUNTED; see the fields of Window."""
    end = until if before is None else before[0]
    return await change_events.count(db, since, MAX_COUNTED, spider, end)


async def read_inbox(
    db: Database,
    reader: Reader,
    filters: Filters,
    limit: int,
    until: datetime,
    position: Position = FIRST,
    windows: Windows | None = None,
) -> InboxPage:
    """Return a page of the unread changes of a reader, newest first.

    until:   the same time as for the first page
    windows: cache of windows
    """
    window = await _window(db, reader, filters, until, position, windows)
    groups = [
        group
        for group in window.groups
        if position.shown is None or _key_of(group) < position.shown
    ]
    shown, hidden = groups[:limit], groups[limit:]
    last = window.last
    if hidden:
        following, end = Position(position.window, _key_of(shown[-1])), hidden[0][0].event["at"]
    else:
        following, end = Position(last), last[0] if last else None
    entries = await _entries_of(db, shown)
    is_last = not hidden and last is None
    whole = window
    if filters.kind:
        whole = await _window(db, reader, replace(filters, kind=""), until, position, windows)
    counts = Counter(net.told for group in whole.groups for net in group)
    is_all = whole.last is None and position.window is None
    following_or_none = None if is_last else following
    return InboxPage(
        entries, window.until, window.start, end, following_or_none, window.muted, counts, is_all
    )


async def _window(
    db: Database,
    reader: Reader,
    filters: Filters,
    until: datetime,
    position: Position,
    windows: Windows | None,
) -> Window:
    """Return the window of a page, from `windows` if possible."""
    windows = windows or Windows()
    key = reader.name, reader.revision, reader.read_until, filters, position.window
    if (window := await windows.get(db, key, until)) is not None:
        return window
    scan = _Scan(db, reader, filters, until)
    last = await scan.read(position.window)
    groups = await scan.folded()
    for net in (net for group in groups for net in group):
        net.shorten()
    since = reader.read_until if last is None else last[0] - MILLISECOND
    spider = filters.site or None
    count = await count_events(db, since, position.window, until, spider)
    window = Window(
        groups, until, scan.start, last, scan.muted, since, position.window, spider, count
    )
    windows.put(key, window)
    return window


def _key_of(group: Sequence[NetChange]) -> Key:
    return group[0].event["at"], group[0].event["_id"]


async def pages_of_entry(
    db: Database,
    reader: Reader,
    filters: Filters,
    until: datetime,
    position: Position,
    event: ObjectId,
    windows: Windows | None = None,
) -> list[ChangedPage]:
    """Return all pages with the edit of an event, the last changed first; empty if not found.

    until, position: of the page of the inbox that has the entry
    """
    window = await _window(db, reader, filters, until, position, windows)
    for group in window.groups:
        if any(net.event["_id"] == event for net in group):
            return [changed_page(net) for net in group]
    return []


async def read_feed(db: Database, reader: Reader, limit: int, until: datetime) -> list[FeedEntry]:
    """Return the newest changes, read or not, each visit on its own, without muted pages.

    The same edits of one day (UTC) are one entry, whose id stays the same as pages are added.
    """
    everything = Reader(reader.name, mutes=reader.mutes)
    scan = _Scan(db, everything, Filters(), until, max_entries=limit)
    await scan.read(None)
    entries = await _entries_of(db, list(scan.groups.values()))
    # The id of a group stays the same if more pages get the same edit.
    ids = [
        str(group[0].event["_id"])
        if group[0].is_single
        else hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()
        for key, group in scan.groups.items()
    ]
    return list(zip(ids, entries, strict=True))


async def count_unread(db: Database, reader: Reader, site: str = "") -> int:
    """Return the number of unread events that are not muted, of the newest MAX_COUNTED."""
    since = reader.until_of(site)
    if not (reader.sources or reader.ranges or reader.items or reader.mutes):
        return await change_events.count(db, since, MAX_COUNTED, spider=site or None)
    mutes = [compiled(pattern) for pattern in reader.mutes]
    unread = 0
    async for name, url, at in change_events.places(db, since, MAX_COUNTED, site or None):
        is_muted = any(pattern.search(url) for pattern in mutes)
        unread += not (is_muted or reader.has_read(name, url, at))
    return unread


class _Scan:
    """Collects the entries of a window.

    max_entries: maximum number of entries of a feed, which joins neither visits nor days; None: for
                 the inbox
    groups:      changes with the same edit, the newest first, by fold key
    start:       time of the newest event that was read
    muted:       number of events that patterns hide
    """

    def __init__(
        self,
        db: Database,
        reader: Reader,
        filters: Filters,
        until: datetime,
        *,
        max_entries: int | None = None,
    ) -> None:
        self._db = db
        self._reader = reader
        self._filters = filters
        self._until = until
        self._max_entries = max_entries
        self._mutes = [compiled(pattern) for pattern in reader.mutes]
        self.groups: dict[FoldKey, list[NetChange]] = {}
        self.start: datetime | None = None
        self.muted = 0

    async def read(self, after: Key | None) -> Key | None:
        """Read the window after an event; return the key of its last event, or None at the end."""
        reader, last = self._reader, after
        n_events = n_compared = n_bytes = 0
        began = time.monotonic()
        while n_events < MAX_EVENTS and n_compared <= MAX_COMPARED - BATCH and n_bytes < MAX_BYTES:
            # With filters, the window may end without entries.
            is_full = self._max_entries is None and len(self.groups) >= MIN_ENTRIES
            may_end = n_events and (self._filters.are_set or is_full)
            if may_end and time.monotonic() - began > MAX_SECONDS:
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
            wanted = [row for row in batch if self._is_candidate(row)]
            compared = await net_changes(
                self._db, reader, wanted, self._until, joins_visits=self._max_entries is None
            )
            for row in batch:
                net = compared.changes.get(row["_id"])
                if net is not None and self._selects(net) and not self._add(net):
                    return last
                last = row["at"], row["_id"]
            if skipped_to is not None:
                # The reader has read the rest of the range: continue before it.
                last = skipped_to[0], FIRST_ID
            elif rows.last is None:
                return None
            n_events += len(batch) + 1
            n_compared += len(wanted)
            n_bytes += compared.n_bytes
        return last

    async def folded(self) -> list[list[NetChange]]:
        """Return the changes with the same or nearly the same edit, the newest first."""
        groups = await asyncio.to_thread(_fold_similar, list(self.groups.values()))
        return _told_together(groups)

    def _is_candidate(self, row: Document) -> bool:
        """Return whether an event is unread and may be selected, judging by its row only."""
        url: str = row["target"]
        if self._reader.has_read(row["spider"], url, row["at"]):
            return False
        if matches(self._mutes, url):
            self.muted += 1
            return False
        return True

    def _selects(self, net: NetChange) -> bool:
        filters = self._filters
        return (
            (not filters.kind or filters.kind in (net.kind, net.told))
            and (not filters.match or self._matches_text(net))
            and (not filters.category or filters.category in net.categories)
            and (not filters.field or filters.field in net.fields)
            and net.size >= filters.min_size
        )

    def _matches_text(self, net: NetChange) -> bool:
        text = self._filters.match.casefold()
        return text in net.event["target"].casefold() or text in net.name.casefold()

    def _add(self, net: NetChange) -> bool:
        """Add a change to its entry; return False if that would exceed the maximum of entries."""
        key = net.fold_key
        if self._max_entries is not None:
            key = (*key, f"{net.event['at']:%Y-%m-%d}", net.is_single and net.event["_id"])
            if key not in self.groups and len(self.groups) >= self._max_entries:
                return False
        self.groups.setdefault(key, []).append(net)
        return True


def matches(patterns: Sequence[Pattern], url: str) -> bool:
    """Return whether one of the patterns matches a URL."""
    return any(pattern.search(url) is not None for pattern in patterns)


def _fold_similar(groups: list[list[NetChange]]) -> list[list[NetChange]]:
    """Join entries of one site whose edits are nearly the same, the newest change of each first."""
    firsts = [group[0].words if group[0].kind == "changed" else None for group in groups]
    joined: dict[int, list[NetChange]] = {}
    for number, owner in enumerate(similar_edits(firsts)):
        same_site = groups[owner][0].event["spider"] == groups[number][0].event["spider"]
        joined.setdefault(owner if same_site else number, []).extend(groups[number])
    return [sorted(group, key=_newest, reverse=True) for group in joined.values()]


def _newest(net: NetChange) -> Key:
    return net.event["at"], net.event["_id"]


def _told_together(groups: list[list[NetChange]]) -> list[list[NetChange]]:
    """Join the entries of many pages that are told in one line, the newest change of each first."""
    together: dict[FoldKey, list[list[NetChange]]] = {}
    for number, group in enumerate(groups):
        together.setdefault(group[0].together or (number,), []).append(group)
    told: list[list[NetChange]] = []
    for alike in together.values():
        if sum(map(len, alike)) >= MIN_TOGETHER:
            told.append(sorted(chain.from_iterable(alike), key=_newest, reverse=True))
        else:
            told += alike
    return sorted(told, key=_key_of, reverse=True)


async def _entries_of(db: Database, groups: Sequence[Sequence[NetChange]]) -> list[Entry]:
    contents = await contents_of(db, [group[0] for group in groups])
    return [await entry_of(db, group, pair) for group, pair in zip(groups, contents, strict=True)]


SETTLING = timedelta(minutes=1)
# Events that are marked page by page in one request.
MAX_MARKED = 1000
# Limits on advancing the reader's time in one request: steps, and events of a step.
STEPS, STEP = 4, 500
# Unread events of a step for which later events that have been read are searched.
MAX_LATER = 200


async def mark_events(
    db: Database, name: str, ids: Sequence[ObjectId], now: datetime, span: Span | None = None
) -> int:
    """Mark the pages of events as read up to these events; return the number of pages.

    span: first and last time of a range whose events are all among the given ones; the range is
          marked as a whole

    Raises ConfigError if too many pages would be marked one by one.
    """
    rows = await change_events.by_ids(db, ids[:MAX_MARKED])
    settled = now - SETTLING

    def mark(reader: Reader) -> Reader:
        if span is not None and span[0] <= min(span[1], settled):
            reader = reader.read_range(span[0], min(span[1], settled))
        return reader.read_items(_pages(rows))

    await _store(db, name, mark, now)
    return len({(row["spider"], row["target"]) for row in rows})


async def mark_all(
    db: Database, name: str, until: datetime, now: datetime, site: str | None = None
) -> None:
    """Mark all changes up to a time as read, of one site if it is given."""
    settled = min(until, now - SETTLING)
    recent = await change_events.newest(db, Reader(name, settled), until, MAX_MARKED, spider=site)

    def mark(reader: Reader) -> Reader:
        sites = None if site is None else [site]
        return reader.read_all(settled, sites).read_items(_pages(recent.rows))

    await _store(db, name, mark, now)


async def begin_at(db: Database, name: str, since: datetime | None, now: datetime) -> None:
    """Mark all changes after a time as unread and all others as read; None: all as unread.

    A time in the future would hide all changes until then, so it counts as `now`.
    """
    until = None if since is None else min(since, now)
    await readers.update(db, name, lambda reader: reader.begin_at(until))


def _pages(rows: Sequence[Document]) -> list[tuple[str, str, datetime]]:
    return [(row["spider"], row["target"], row["at"]) for row in rows]


async def _store(db: Database, name: str, mark: readers.Edit, now: datetime) -> None:
    """Store marks, and advance the reader's time past the changes that are all read."""
    before = await readers.load(db, name)
    reader = await readers.update(db, name, mark)
    if (until := await _all_read_until(db, reader, now - SETTLING)) is not None:
        reader = await readers.update(db, name, lambda reader: reader.read_all(until))
    await readers.keep_undo(db, before, reader)


async def _all_read_until(db: Database, reader: Reader, until: datetime) -> datetime | None:
    """Return a time up to which a reader has read all changes, or has muted them.

    Returns None if this time is not later than the reader's stored time.
    """
    mutes = [compiled(pattern) for pattern in reader.mutes]
    reached = reader.read_until
    for _ in range(STEPS):
        page = await change_events.oldest(db, reached, until, STEP)
        if not page.rows:
            break
        unread = [
            row for row in page.rows
            if not reader.has_read(row["spider"], row["target"], row["at"])
            and not matches(mutes, row["target"])
        ]  # fmt: skip
        if (first := await _first_unread(db, reader, unread, until)) is not None:
            # Other changes of the same time may be unread.
            return _if_later(first - MILLISECOND, reader.read_until)
        at = page.rows[-1]["at"]
        reached = at if page.last is None else at - MILLISECOND
        if (span := reader.range_at(at)) is not None:
            reached = min(span[1], until)
    return _if_later(reached, reader.read_until)


async def _first_unread(
    db: Database, reader: Reader, rows: Sequence[Document], until: datetime
) -> datetime | None:
    """Return the time of the first event whose page has no later event that has been read.

    The net difference at the later event included the earlier ones.
    """
    later = await change_events.of_pages(
        db, [row["_id"] for row in rows[:MAX_LATER]], reader.read_until, until
    )
    for row in rows:
        events = later.get(row["_id"], ())
        if not any(
            each["at"] > row["at"] and reader.has_read(each["spider"], each["target"], each["at"])
            for each in events
        ):
            at: datetime = row["at"]
            return at
    return None


def _if_later(at: datetime | None, than: datetime | None) -> datetime | None:
    return at if at is not None and (than is None or at > than) else None
