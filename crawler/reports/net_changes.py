"""Net changes of pages: the unread events of each page, joined, and their difference.

Contents are read and compared in batches and not kept: only differences are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from crawler.items import Outcome
from crawler.reports.differences import Difference, difference_of
from crawler.storage import change_events
from crawler.storage.accounts.readers import Reader
from crawler.storage.change_events import NEVER_SEEN, PageState
from crawler.storage.client import Database, Document

ChangeKind = Literal["new", "changed", "gone", "back"]
FoldKey = tuple[object, ...]
# A window has up to 50 events of each page.
OLDER_FIELDS = ("outcome", "diff_size", "posts_new", "posts_edited")
# Contents before and after a change; None if not stored.
Contents = tuple[Document | None, Document | None]


@dataclass(slots=True)
class NetChange:
    """The net change of a page over some events, newest first.

    before: page before the oldest of them
    fields: names of the fields that differ; of all fields if the earlier content is not stored
    """

    events: list[Document]
    before: PageState = NEVER_SEEN
    kind: ChangeKind = "changed"
    difference: Difference | None = None
    fields: tuple[str, ...] = ()
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

    @property
    def is_single(self) -> bool:
        """Return whether the change cannot be folded with those of other pages."""
        return bool(self.fold_key[-1] == self.event["target"])

    @property
    def size(self) -> int:
        """Return the characters that the change removed and added."""
        if self.difference is not None:
            return self.difference.size
        return sum(row.get("diff_size") or 0 for row in self.events)

    def shorten(self) -> None:
        """Drop fields of the older events that only the comparison and the details need."""
        self.events[1:] = [
            {name: row[name] for name in OLDER_FIELDS if name in row} for row in self.events[1:]
        ]


@dataclass(frozen=True, slots=True)
class Compared:
    """Net changes by the newest event of their page.

    n_bytes: uncompressed bytes of the contents that were read
    """

    changes: dict[object, NetChange]
    n_bytes: int = 0


async def net_changes(
    db: Database,
    reader: Reader,
    rows: Sequence[Document],
    until: datetime,
    *,
    joins_visits: bool = True,
) -> Compared:
    """Return the net changes of the events that are the newest of their pages.

    joins_visits: join the unread events of a page; else each event is a change
    """
    if not rows:
        return Compared({})
    if not joins_visits:
        return await _compare(db, {row["_id"]: NetChange([row]) for row in rows})
    ids = [row["_id"] for row in rows]
    of_pages = await change_events.of_pages(db, ids, reader.read_until, until)
    changes: dict[object, NetChange] = {}
    for row in rows:
        events = of_pages.get(row["_id"], [])
        if events and events[0]["_id"] == row["_id"]:
            changes[row["_id"]] = NetChange(_unread(reader, events))
    return await _compare(db, changes)


def _unread(reader: Reader, events: Sequence[Document]) -> list[Document]:
    """Return the events after the newest one that is read, at least the first."""
    unread = list(events[:1])
    for row in events[1:]:
        if reader.has_read(row["spider"], row["target"], row["at"]):
            break
        unread.append(row)
    return unread


async def _compare(db: Database, changes: dict[object, NetChange]) -> Compared:
    """Add states, differences and categories to changes."""
    nets = list(changes.values())
    states, categories = await asyncio.gather(
        change_events.before(db, [net.events[-1]["_id"] for net in nets]),
        change_events.categories(db, [_key(net.event) for net in nets]),
    )
    for net in nets:
        net.before = states.get(net.events[-1]["_id"], NEVER_SEEN)
        net.categories = [str(each) for each in categories.get(_key(net.event), ())]
        net.kind = _kind_of(net)
    contents, n_bytes = await _read_contents(db, nets)

    def add_differences() -> None:
        for net, (before, after) in zip(nets, contents, strict=True):
            net.fields = tuple(after or ())
            if before is not None and after is not None and net.kind != "gone":
                net.difference = difference_of(before, after)
                net.fields = net.difference.fields

    await asyncio.to_thread(add_differences)
    return Compared(changes, n_bytes)


async def contents_of(db: Database, nets: Sequence[NetChange]) -> list[Contents]:
    """Return the contents before and after each change, if they are stored and not too large."""
    return (await _read_contents(db, nets))[0]


async def _read_contents(db: Database, nets: Sequence[NetChange]) -> tuple[list[Contents], int]:
    """Return the contents of each change, and the uncompressed bytes that were read."""
    pairs = []
    for net in nets:
        key = _key(net.event)
        pairs.append((f"{key} {net.before.content_hash}", f"{key} {net.event.get('content_hash')}"))
    keys = dict.fromkeys(key for pair in pairs for key in pair)
    stored, n_bytes = await change_events.contents(db, list(keys))
    return [(stored.get(before), stored.get(after)) for before, after in pairs], n_bytes


def _key(event: Document) -> str:
    return f"{event['spider']} {event['target']}"


def _kind_of(net: NetChange) -> ChangeKind:
    if net.event["outcome"] == Outcome.GONE:
        return "gone"
    if net.events[-1]["outcome"] == Outcome.NEW:
        return "new"
    was_gone = any(row["outcome"] == Outcome.GONE for row in net.events)
    if net.before.is_gone or (was_gone and net.is_same):
        return "back"
    return "changed"
