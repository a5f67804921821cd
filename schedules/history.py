"""Represent the history of a target: the observed period, and when changes were found.

A visit that finds a change shows only that the page changed since the previous visit. Visits
without a change need no record of their own: every part of the observed period outside the recorded
intervals is unchanged. Failed and blocked fetches are not observations, so an interval extends to
the next visit that saw the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Times in minutes since 1970 (UTC). `stated` is the change time that the page stated, 0 if none.
CHANGE = np.dtype([("after", "<u4"), ("by", "<u4"), ("stated", "<u4")])
# When a history is full, its oldest changes are dropped and the observed period starts later. 512
# records are five weeks of a page that changes between any two of 14 daily visits, and take 6 kB.
MAX_CHANGES = 512
# A change of fields: time in minutes since 1970 (UTC), and a bit for each field.
FIELD_CHANGE = np.dtype([("by", "<u4"), ("fields", "<u4")])
# Fields of a page whose changes are stored: one for each bit. 64 changes take 512 bytes.
MAX_FIELDS, MAX_FIELD_CHANGES = 32, 64
MAX_FIELD_NAME = 100
MINUTES = 60
DAY_HOURS = 24


def offsets(counts: Ints) -> Ints:
    """Return the (n + 1,) offsets of n rows from their (n,) lengths."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def places_of(rows: Ints, first: Ints) -> tuple[Ints, Ints]:
    """Return the offsets of some rows, and the (k,) indices of their entries.

    first: (n + 1,) offsets of all rows
    """
    count = first[rows + 1] - first[rows]
    own = offsets(count)
    return own, np.arange(own[-1]) + np.repeat(first[rows] - own[:-1], count)


class Times(NamedTuple):
    """Hold k times of n pages, in hours since 1970 (UTC).

    first: (n + 1,) offsets; page i has the times first[i] to first[i + 1]
    at:    (k,) times, in any order within a page
    """

    first: Ints
    at: Floats


class Change(NamedTuple):
    """A change between two observations, in minutes since 1970 (UTC)."""

    after: int
    by: int


@dataclass(frozen=True, slots=True)
class History:
    """Hold the history of one target, in whole minutes since 1970 (UTC).

    since:   start of the observed period, from which `changes` is complete
    until:   last observation
    changes: records of type CHANGE as bytes, in chronological order
    """

    since: int
    until: int
    changes: bytes = b""

    @classmethod
    def begin(cls, at: int) -> History:
        """Return the history of a target that was observed for the first time."""
        return cls(at, at)

    def seen(self, at: int, *, changed: bool, stated_minute: int = 0) -> History:
        """Return the history after one more observation.

        Changes found within one minute count as one. An observation before the last one is ignored.
        """
        if at > self.until:
            return self.extended(at, [(self.until, at, stated_minute)] if changed else [])
        if at < self.until or not changed or self.last_change == at:
            return self
        return self.from_before(at).extended(at, [(at - 1, at, stated_minute)])

    def restated(self, added: Sequence[Change], removed: Sequence[int]) -> History:
        """Return the history with other changes within its observed period.

        added:   changes that the observations show now
        removed: times of the observations that no longer show a change

        A change that was found at the time of a stored one is not added.
        """
        changes = np.frombuffer(self.changes, CHANGE)
        changes = changes[~np.isin(changes["by"], list(removed))]
        stored = set(changes["by"].tolist())
        records = [
            (min(change.after, change.by - 1), change.by, 0)
            for change in added
            if self.since < change.by <= self.until and change.by not in stored
        ]
        together = np.concatenate([changes, np.array(records, CHANGE)])
        together = together[np.argsort(together["by"], kind="stable")]
        return replace(self, changes=together.tobytes()).extended(self.until, [])

    def from_before(self, at: int) -> History:
        """Return the history with an observed period that starts before the minute `at`."""
        return replace(self, since=min(self.since, at - 1))

    @property
    def last_change(self) -> int | None:
        """Return the time of the observation that found the last change; None without changes."""
        last = np.frombuffer(self.changes[-CHANGE.itemsize :], CHANGE)
        return int(last["by"][0]) if len(last) else None

    def extended(self, until: int, records: Sequence[tuple[int, int, int]]) -> History:
        """Return the history extended to a later observation.

        records: (after, by, stated) of new changes, ordered by `by`
        """
        changes = self.changes + np.array(records, CHANGE).tobytes()
        surplus = len(changes) - MAX_CHANGES * CHANGE.itemsize
        if surplus <= 0:
            return History(self.since, until, changes)
        forgotten = np.frombuffer(changes[:surplus], CHANGE)
        return History(int(forgotten["by"][-1]), until, changes[surplus:])


@dataclass(frozen=True, slots=True)
class FieldHistory:
    """Hold the changes of the fields of a page.

    digest:  of the selectors that extracted the fields; values of others cannot be compared
    since:   time from which `changes` is complete, in minutes since 1970 (UTC)
    names:   at most MAX_FIELDS fields that changed; bit i of a change represents name i
    changes: records of type FIELD_CHANGE as bytes, in chronological order
    """

    digest: str
    since: int
    names: tuple[str, ...] = ()
    changes: bytes = b""

    def changed(self, at: int, names: Iterable[str]) -> FieldHistory:
        """Return the history with one more change of some fields, found at a time in minutes."""
        stored, fields = list(self.names), 0
        for name in names:
            if name not in stored and len(stored) < MAX_FIELDS and len(name) <= MAX_FIELD_NAME:
                stored.append(name)
            if name in stored:
                fields |= 1 << stored.index(name)
        changes = self.changes + np.array([(at, fields)], FIELD_CHANGE).tobytes()
        surplus = max(0, len(changes) - MAX_FIELD_CHANGES * FIELD_CHANGE.itemsize)
        forgotten = np.frombuffer(changes[:surplus], FIELD_CHANGE)
        since = int(forgotten["by"][-1]) if surplus else self.since
        return FieldHistory(self.digest, since, tuple(stored), changes[surplus:])


@dataclass(frozen=True, slots=True)
class FieldHistories:
    """Hold the field histories of m targets with c changes in total.

    row:    (m,) index of each target among all targets, ascending
    names:  tuples of field names that occur; name: (m,) index of each target's tuple
    since:  (m,) hours since 1970 (UTC)
    first:  (m + 1,) offsets; history i has the changes first[i] to first[i + 1]
    by:     (c,) minutes since 1970 (UTC)
    fields: (c,) a bit for each changed field
    """

    row: Ints
    names: tuple[tuple[str, ...], ...]
    name: Ints
    since: Floats
    first: Ints
    by: NDArray[np.uint32]
    fields: NDArray[np.uint32]

    @classmethod
    def none(cls) -> FieldHistories:
        """Return an empty collection of histories."""
        empty, no_changes = np.empty(0, np.int64), np.empty(0, np.uint32)
        first = np.zeros(1, np.int64)
        return cls(empty, (), empty, np.empty(0), first, no_changes, no_changes)

    def __len__(self) -> int:
        return len(self.row)

    def of(self, rows: Ints) -> FieldHistories:
        """Return some of the histories."""
        first, place = places_of(rows, self.first)
        return FieldHistories(
            self.row[rows], self.names, self.name[rows], self.since[rows], first,
            self.by[place], self.fields[place],
        )  # fmt: skip

    def of_targets(self, rows: Ints, targets: int) -> FieldHistories:
        """Return the histories of some of the targets, renumbered. rows: among all `targets`."""
        place = np.full(targets, -1, np.int64)
        place[rows] = np.arange(len(rows))
        own = place[self.row]
        kept = np.flatnonzero(own >= 0)
        some = self.of(kept[np.argsort(own[kept], kind="stable")])
        return replace(some, row=place[some.row])

    @classmethod
    def joined(cls, parts: Sequence[FieldHistories], targets: Sequence[int]) -> FieldHistories:
        """Return the histories of all parts. targets: number of targets of each part."""
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("since", "by", "fields")
        }
        before = np.cumsum([0, *targets])
        names_before = np.cumsum([0, *(len(part.names) for part in parts)])
        counts = np.concatenate([np.diff(part.first) for part in parts])
        return cls(
            row=np.concatenate([part.row + n for part, n in zip(parts, before, strict=False)]),
            names=tuple(name for part in parts for name in part.names),
            name=np.concatenate(
                [part.name + n for part, n in zip(parts, names_before, strict=False)]
            ),
            first=offsets(counts),
            **columns,
        )


class FieldPasts(NamedTuple):
    """Hold the histories of k single fields.

    row:       (k,) index of the target of each field
    name:      (k,) index of the names of its target in `FieldHistories.names`
    bit:       (k,) index of the field among these names
    histories: of the fields
    """

    row: Ints
    name: Ints
    bit: Ints
    histories: Histories


@dataclass(frozen=True, slots=True)
class Histories:
    """Hold the histories of n targets with c changes in total, in hours since 1970 (UTC).

    since, until: (n,) observed period; NaN if a target was never seen
    first:        (n + 1,) offsets; target i has the changes first[i] to first[i + 1]
    after, by:    (c,) each change happened in (after, by]
    """

    since: Floats
    until: Floats
    first: Ints
    after: Floats
    by: Floats

    def __len__(self) -> int:
        return len(self.since)

    def of(self, rows: Ints) -> Histories:
        """Return the histories of some of the targets."""
        first, place = places_of(rows, self.first)
        return Histories(
            self.since[rows], self.until[rows], first, self.after[place], self.by[place]
        )

    @classmethod
    def joined(cls, parts: Sequence[Histories]) -> Histories:
        """Return the histories of all targets of these parts."""
        counts = np.concatenate([np.diff(each.first) for each in parts])
        since, until, after, by = (
            np.concatenate([getattr(each, name) for each in parts])
            for name in ("since", "until", "after", "by")
        )
        return cls(since, until, offsets(counts), after, by)


def field_pasts(
    fields: FieldHistories, found: Histories, exact: Histories, least: int
) -> FieldPasts:
    """Return the history of each field that changed at least `least` times.

    found: histories of the same m targets, with the observations that found the changes
    exact: the same changes at the times that pages state for them

    A change of a field is left out if the history of its target does not contain it.
    """
    # Changes are ordered by target, and by time within a target.
    keys = _keys(found.first, np.round(found.by * MINUTES).astype(np.int64))
    wanted = _keys(fields.first, fields.by.astype(np.int64))
    own = np.repeat(np.arange(len(fields)), np.diff(fields.first))
    place = np.searchsorted(keys, wanted)
    is_found = place < len(keys)
    is_found[is_found] = keys[place[is_found]] == wanted[is_found]
    parts: list[tuple[Ints, Ints, Ints, Ints]] = []
    for bit in range(MAX_FIELDS):
        has = np.flatnonzero(is_found & ((fields.fields >> np.uint32(bit)) & 1 == 1))
        count = np.bincount(own[has], minlength=len(fields))
        kept = np.flatnonzero(count >= least)
        has = has[count[own[has]] >= least]
        parts.append((kept, np.full(len(kept), bit, np.int64), count[kept], place[has]))
    of, bits, counts, places = (np.concatenate(column) for column in zip(*parts, strict=True))
    since = np.maximum(fields.since[of], found.since[of])
    histories = Histories(
        since, found.until[of], offsets(counts), exact.after[places], exact.by[places]
    )
    return FieldPasts(fields.row[of], fields.name[of], bits, histories)


def _keys(first: Ints, minutes: Ints) -> Ints:
    """Return a number for each time, ordered by row and time. first: (n + 1,) offsets of rows."""
    row = np.repeat(np.arange(len(first) - 1), np.diff(first))
    return (row << 32) | minutes
