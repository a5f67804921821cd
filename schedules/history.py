"""Store what visits observed of a target: the observed period, and when changes were found.

A visit that finds a change shows only that the page changed since the previous visit. Visits
without a change need no record of their own: every part of the observed period outside the recorded
intervals is unchanged. Failed and blocked fetches are not observations, so an interval extends to
the next visit that saw the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Times in minutes since 1970 (UTC). `said` is the change time that the page stated, 0 if none.
CHANGE = np.dtype([("after", "<u4"), ("by", "<u4"), ("stated", "<u4")])
# When a history is full, its oldest changes are dropped and the observed period starts later. 512
# records are five weeks of a page that changes between any two of 14 daily visits, and take 6 kB.
MAX_CHANGES = 512
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

    def seen(self, at: int, *, changed: bool, said: int = 0) -> History:
        """Return the history after one more observation.

        Changes found within one minute count as one. An observation before the last one is ignored.
        """
        if at > self.until:
            return self.extended(at, [(self.until, at, said)] if changed else [])
        if at < self.until or not changed or self._last_change == at:
            return self
        return self.from_before(at).extended(at, [(at - 1, at, said)])

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
    def _last_change(self) -> int | None:
        """Return the time of the observation that found the last change."""
        last = np.frombuffer(self.changes[-CHANGE.itemsize :], CHANGE)
        return int(last["by"][0]) if len(last) else None

    def extended(self, until: int, records: Sequence[tuple[int, int, int]]) -> History:
        """Return the history extended to a later observation.

        records: (after, by, said) of new changes, ordered by `by`
        """
        changes = self.changes + np.array(records, CHANGE).tobytes()
        surplus = len(changes) - MAX_CHANGES * CHANGE.itemsize
        if surplus <= 0:
            return History(self.since, until, changes)
        forgotten = np.frombuffer(changes[:surplus], CHANGE)
        return History(int(forgotten["by"][-1]), until, changes[surplus:])


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
