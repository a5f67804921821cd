"""Windows of inboxes that were read a moment ago, so that their other pages need not compare again.

A window depends on what its reader has read, on the filters, and on the events up to a time. The
first window of a list is used for a later time, too. Before a window is used again, its events are
counted, because the time of a visit is that of the response, and it is stored a moment later.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime

from crawler.reports.net_changes import NetChange
from crawler.storage import change_events
from crawler.storage.client import Database
from crawler.storage.paging import Key

MAX_AGE_SECONDS = 60.0
# Estimated memory of all windows; most take 1 to 4 MB.
MAX_BYTES = 12_000_000
CHANGE_BYTES, EVENT_BYTES = 3000, 300
# Events to count. Windows with more are read again.
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
    spider: that all its events have; None: any
    count:  number of events in that time, at most MAX_COUNTED
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
        """Return the estimated memory."""
        nets = [net for group in self.groups for net in group]
        texts = [net.difference for net in nets if net.difference is not None]
        return (
            CHANGE_BYTES * len(nets)
            + EVENT_BYTES * sum(len(net.events) for net in nets)
            + sum(len(each.removed) + len(each.added) for each in texts)
        )


class Windows:
    """The latest windows of all readers, up to MAX_BYTES."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Window, int]] = OrderedDict()

    async def get(self, db: Database, key: Hashable, until: datetime) -> Window | None:
        """Return a window that shows what reading it now would show; None if there is none."""
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
        while sum(n for _, n in self._kept.values()) > MAX_BYTES:
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
