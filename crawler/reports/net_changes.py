"""Net changes of pages: the unread events of each page, joined, and their difference.

An entry of the inbox is the net change of a page, or the same edit of many pages.

Contents are read and compared in batches, and only their differences are kept. They are untrusted,
so all steps take linear time. The words that an edit added and removed are its identity: an exact
digest finds identical edits, and sketches (MinHash) find edits that differ in a few words, such as
the name of the page in the same announcement.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from bson import ObjectId
from typing_extensions import TypedDict

from crawler.dedup.text import normal_text
from crawler.items import Outcome
from crawler.reports.changes import posts_summary, summary_of
from crawler.reports.history import DiffBuilder, Segment
from crawler.storage import change_events, visits
from crawler.storage.change_events import NEVER_SEEN, PageState
from crawler.storage.client import Database, Document
from crawler.storage.readers import Reader
from crawler.utils.diff import Matcher
from crawler.utils.edits import Edit, edits, shown
from crawler.utils.text import MAX_CHARACTERS, differs, seen_text
from crawler.utils.urls import common_start

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
        old, new = (seen_text(shown(content.get(name))) for content in (before, after))
        if old == new:
            continue
        old, new = old[:MAX_CHARACTERS], new[:MAX_CHARACTERS]
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


# Characters.
MAX_TITLE, MAX_EDIT_CHARACTERS = 200, 300
# Places of a page that an entry shows.
MAX_EDITS = 3
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


class EntryEdit(TypedDict):
    """A place where a page differs."""

    name: str
    """Name of the field."""
    before: str | None
    """Text before, with whole words, some unchanged ones around them, and cut if it is long; null
    if there was nothing."""
    after: str | None
    """The same after the change."""


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
    edits: list[EntryEdit]
    """Places that differ, at most three; empty if the contents are not stored."""
    more_edits: int
    """Number of further places."""
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
    places: list[Edit] = []
    more = 0
    if difference is not None:
        places, more = await asyncio.to_thread(edits, *contents, MAX_EDITS, MAX_EDIT_CHARACTERS)
    elif net.kind == "new":
        # Its values besides the title and texts, which the entry has no room for.
        values = {n: v for n, v in after.items() if n not in ("title", "main_text", "links")}
        places, more = edits(None, values, MAX_EDITS, MAX_EDIT_CHARACTERS)
    return {
        "id": str(event["_id"]),
        "at": event["at"],
        "kind": net.kind,
        "site": event["spider"],
        "url": event["target"],
        "title": str(after.get("title") or "")[:MAX_TITLE],
        "summary": await _summary(db, net, contents),
        "fields": list(net.fields) if difference or net.kind == "new" else [],
        "edits": [{"name": e.name, "before": e.before, "after": e.after} for e in places],
        "more_edits": more,
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
    if net.is_same and net.kind != "new":
        return SAME_CONTENT
    return summary_of(*contents, net.size, is_new=net.kind == "new")


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
    names = [name for name in {**before, **after} if differs(before.get(name), after.get(name))]
    matcher = Matcher(WORD_PAIRS)
    return [
        field_change(name, before.get(name), after.get(name), matcher)
        for name in names[:MAX_FIELDS]
    ]


def field_change(name: str, before: Any, after: Any, matcher: Matcher) -> FieldChange:
    """Return the change of a field, compared by word."""
    old, new = shown(before), shown(after)
    builder = DiffBuilder(matcher, MAX_SHOWN, CONTEXT)
    parts = list(builder.words(old[:MAX_COMPARED], new[:MAX_COMPARED]))
    truncated = builder.is_full or max(len(old), len(new)) > MAX_COMPARED
    return {"name": name, "parts": parts, "truncated": truncated}
