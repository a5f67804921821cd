"""Net changes of pages: the unread events of each page, joined, and their difference.

Contents are read and compared in batches, and only their differences are kept. They are untrusted,
so all steps take linear time. The words that an edit added and removed are its identity: an exact
digest finds identical edits, and sketches (MinHash) find edits that differ in a few words, such as
the name of the page in the same announcement.

`Windows` caches the windows of inboxes that were read a moment ago, so that the other pages of a
window need no new comparison. A window depends on the changes that its reader has read, on the
filters, and on the events up to a time. The first window of a list is used for a later time, too.
Before a window is used again, its events are counted: the time of a visit is that of the response,
and the visit is stored a moment later.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crawler.dedup.posts import normal_text
from crawler.items import Outcome
from crawler.storage import change_events
from crawler.storage.change_events import NEVER_SEEN, PageState
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key
from crawler.storage.readers import Reader
from crawler.utils.text import MAX_CHARACTERS

ChangeKind = Literal["new", "changed", "gone", "back"]
FoldKey = tuple[object, ...]
# Only these fields of older events are kept, because a window has up to 50 events of each page.
OLDER_FIELDS = ("outcome", "diff_size", "posts_new", "posts_edited")
# Contents before and after a change; None if not stored.
Contents = tuple[Document | None, Document | None]
# Characters of the added and of the removed words that a difference keeps.
MAX_KEPT = 4000
# Edits with fewer words resemble too many others: they fold only if they are identical.
MIN_WORDS = 20
MIN_SIMILARITY = 0.8
# Words of a shingle, hashes of a sketch, and their seed: the same edits fold in each process.
WIDTH, VALUES, SEED = 5, 128, 1


@dataclass(frozen=True, slots=True)
class Difference:
    """A net difference between two contents.

    fields:  names of the fields that differ
    removed: words only in the earlier content, in their order; cut at MAX_KEPT characters
    added:   words only in the later content
    n_words: number of removed and added words
    size:    characters of the removed and added words
    digest:  equal for identical edits; None if only the order of words changed
    """

    fields: tuple[str, ...]
    removed: str
    added: str
    n_words: int
    size: int
    digest: bytes | None


def difference_of(before: Document, after: Document) -> Difference:
    """Return the net difference between two contents."""
    fields: list[str] = []
    removed: list[str] = []
    added: list[str] = []
    edits: list[tuple[str, list[str], list[str]]] = []
    for name in {**before, **after}:
        old, new = text_of(before.get(name)), text_of(after.get(name))
        if old == new:
            continue
        fields.append(name)
        was, now = Counter(old.splitlines()), Counter(new.splitlines())
        # Equal lines need not be split into words.
        old_words = [word for line in (was - now).elements() for word in line.split()]
        new_words = [word for line in (now - was).elements() for word in line.split()]
        less, more = _surplus(old_words, new_words), _surplus(new_words, old_words)
        removed += less
        added += more
        if less or more:
            edits.append((name, sorted(less), sorted(more)))
    digest = None
    if edits:
        packed = json.dumps(edits, ensure_ascii=True).encode()
        digest = hashlib.blake2b(packed, digest_size=16).digest()
    return Difference(
        fields=tuple(fields),
        removed=" ".join(removed)[:MAX_KEPT],
        added=" ".join(added)[:MAX_KEPT],
        n_words=len(removed) + len(added),
        size=sum(map(len, removed)) + sum(map(len, added)),
        digest=digest,
    )


def text_of(value: Any) -> str:
    """Return a stored value as text: lists by line, other values as they are printed."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(map(text_of, value))[:MAX_CHARACTERS]
    if isinstance(value, dict):
        return "\n".join(f"{name}: {text_of(each)}" for name, each in value.items())[
            :MAX_CHARACTERS
        ]
    return str(value)[:MAX_CHARACTERS]


def _surplus(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the words that `words` has more often than `others`, in their order."""
    left = Counter(words) - Counter(others)
    kept = []
    for word in words:
        if left[word] > 0:
            left[word] -= 1
            kept.append(word)
    return kept


def similar_edits(differences: Sequence[Difference | None]) -> list[int]:
    """Return for each difference the index of the first one that is nearly the same edit.

    A difference without a similar one, and None, gets its own index.
    """
    first = list(range(len(differences)))
    owners: dict[tuple[str, ...], list[int]] = {}
    sketches = np.empty((len(differences), VALUES), np.uint32)
    for index, each in enumerate(differences):
        if each is None or each.n_words < MIN_WORDS:
            continue
        sketch = _sketch(f"{each.removed}\n{each.added}")
        if sketch is None:
            continue
        earlier = owners.setdefault(each.fields, [])
        similar = (sketches[earlier] == sketch).mean(axis=1) >= MIN_SIMILARITY
        if similar.any():
            first[index] = earlier[int(similar.argmax())]
        else:
            sketches[index] = sketch
            earlier.append(index)
    return first


def _sketch(text: str) -> npt.NDArray[np.uint32] | None:
    """Return (VALUES,) minima of hashes of a text's shingles (MinHash); None if it is too short.

    The kernels of `crawler.dedup` are faster, but the web app would have to load their compiler.
    """
    words = normal_text(text).split()
    shingles = [" ".join(words[at : at + WIDTH]) for at in range(len(words) - WIDTH + 1)]
    if not shingles:
        return None
    hashes = np.array([zlib.crc32(shingle.encode("utf-8", "replace")) for shingle in shingles])
    # Multiply-shift hashing: the high half of a product with a random odd factor.
    mixed: npt.NDArray[np.uint64] = hashes.astype(np.uint64)[:, None] * _factors()
    return np.asarray((mixed >> np.uint64(32)).min(axis=0), np.uint32)


@cache
def _factors() -> npt.NDArray[np.uint64]:
    random = np.random.default_rng(SEED)
    return random.integers(0, 1 << 64, VALUES, dtype=np.uint64) | np.uint64(1)


@dataclass(slots=True)
class NetChange:
    """The net change of a page over some events, newest first.

    before: state of the page before the oldest event
    fields: names of the fields that differ, or of all fields if the earlier content is not stored
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
        """Return whether the content is the same as before the oldest event."""
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
    """Return the net changes for those events that are the newest of their pages.

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
            # The newest event, and the events after the newest one that has been read.
            older = takewhile(
                lambda event: not reader.has_read(event["spider"], event["target"], event["at"]),
                events[1:],
            )
            changes[row["_id"]] = NetChange([events[0], *older])
    return await _compare(db, changes)


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
        was_gone = any(row["outcome"] == Outcome.GONE for row in net.events)
        if net.event["outcome"] == Outcome.GONE:
            net.kind = "gone"
        elif net.events[-1]["outcome"] == Outcome.NEW:
            net.kind = "new"
        elif net.before.is_gone or (was_gone and net.is_same):
            net.kind = "back"
        else:
            net.kind = "changed"
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


MAX_AGE_SECONDS = 60.0
# Estimated memory of all windows; most take 1 to 4 MB.
MAX_BYTES = 12_000_000
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
