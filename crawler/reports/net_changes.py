"""Net changes of pages: the unread events of each page, joined, and their difference.

The net changes that people are told of in one line are folded: those with the same edit, or nearly
the same, and those of many pages of a category on one day that are new, or whose price fell or
rose.

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
from typing import Literal

import numpy as np
import numpy.typing as npt

from crawler.dedup.text import normal_text
from crawler.extract.item_names import name_of
from crawler.extract.item_values import ValueChange, change_of, values_of
from crawler.items import Outcome
from crawler.storage import change_events
from crawler.storage.change_events import NEVER_SEEN, PageState
from crawler.storage.client import Database, Document
from crawler.storage.readers import Reader
from crawler.utils.edits import shown
from crawler.utils.text import MAX_CHARACTERS, seen_text

ChangeKind = Literal["new", "changed", "gone", "back"]
# How people are told of a change: a change of content is a lower or a higher price, or an edit.
Told = Literal["new", "lower", "higher", "edited", "back", "gone"]
FoldKey = tuple[object, ...]
# Only these fields of older events are kept, because a window has up to 50 events of each page.
# Minimum number of pages that are told of together although their edits differ.
MIN_TOGETHER = 4
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
class WordChange:
    """The words that a net change removed and added: the identity of an edit.

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


def word_change(before: Document, after: Document) -> WordChange:
    """Return the words that one of two contents has more often than the other."""
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
    return WordChange(
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


def value_changes(
    before: Document | None, after: Document | None, kind: ChangeKind
) -> list[ValueChange]:
    """Return the short values that differ, prices first; see `NetChange.values`.

    before, after: None: not stored
    """
    old = {value["name"]: value for value in values_of(before or {})} if kind != "new" else {}
    new = {value["name"]: value for value in values_of(after or {})} if kind != "gone" else {}
    if kind in ("changed", "back") and (before is None or after is None):
        return []
    found = []
    for name in {**new, **old}:
        was, now = old.get(name), new.get(name)
        change = change_of(name, was, now)
        # A value that became long, or was, is told of as a text.
        is_whole = all(
            value is not None or not (content or {}).get(name)
            for value, content in ((was, before), (now, after))
        )
        if change["before"] != change["after"] and (is_whole or kind in ("new", "gone")):
            found.append(change)
    return sorted(found, key=lambda change: not change["is_price"])


def similar_edits(changes: Sequence[WordChange | None]) -> list[int]:
    """Return for each edit the index of the first one that is nearly the same.

    An edit without a similar one, and None, gets its own index.
    """
    first = list(range(len(changes)))
    owners: dict[tuple[str, ...], list[int]] = {}
    sketches = np.empty((len(changes), VALUES), np.uint32)
    for index, each in enumerate(changes):
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
    name:   name of the item
    values: short values that differ; of a new page all, and of a page that is gone the last ones
    """

    events: list[Document]
    before: PageState = NEVER_SEEN
    kind: ChangeKind = "changed"
    words: WordChange | None = None
    fields: tuple[str, ...] = ()
    categories: list[str] = field(default_factory=list)
    name: str = ""
    values: list[ValueChange] = field(default_factory=list)

    @property
    def price(self) -> ValueChange | None:
        """Return the price that changed; None without one."""
        return next(
            (value for value in self.values if value["is_price"] and value["direction"]), None
        )

    @property
    def told(self) -> Told:
        """Return how people are told of the change."""
        if self.kind != "changed":
            return self.kind
        price = self.price
        return "edited" if price is None else price["direction"] or "edited"

    @property
    def together(self) -> FoldKey | None:
        """Return a key that is equal for changes that are told together, if they are many."""
        told = self.told
        if told not in ("new", "lower", "higher"):
            return None
        names = self.price["name"] if self.price and told != "new" else ""
        category = self.categories[0] if self.categories else ""
        return self.event["spider"], category, told, names, f"{self.event['at']:%Y-%m-%d}"

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
        if self.kind == "changed" and self.words and self.words.digest:
            return site, self.words.digest
        return site, self.event["target"]

    @property
    def is_single(self) -> bool:
        """Return whether the change cannot be folded with those of other pages."""
        return bool(self.fold_key[-1] == self.event["target"])

    @property
    def size(self) -> int:
        """Return the characters that the change removed and added."""
        if self.words is not None:
            return self.words.size
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
            net.name = name_of(after or before, net.event["target"])
            last = after or before if net.kind == "gone" else before
            net.values = value_changes(last, after, net.kind)
            if before is not None and after is not None and net.kind != "gone":
                net.words = word_change(before, after)
                net.fields = net.words.fields

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
