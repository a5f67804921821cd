"""What is known of a target's past: the span it was watched, and between which looks it changed.

A visit that finds a change knows only that it happened since the visit before. Visits that find
nothing need no record of their own: all that is watched and in no record is unchanged. Errors and
blocks are no looks, so the interval simply goes on to the next visit that saw the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Minutes since 1970, UTC. `said`: when the page itself says it changed; 0 where it says nothing.
CHANGE = np.dtype([("after", "<u4"), ("by", "<u4"), ("said", "<u4")])
# Older changes leave, and with them the span they stood in: 512 are five weeks of a page that
# changes between any two of fourteen daily visits, and 6 kB.
MAX_CHANGES = 512
MINUTES = 60
DAY_HOURS = 24


def offsets(counts: Ints) -> Ints:
    """(n + 1,) where each of n rows begins, and the last one ends, from their (n,) lengths."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def places_of(rows: Ints, first: Ints) -> tuple[Ints, Ints]:
    """Offsets of some of the rows, and (k,) where their entries are. first: offsets of all."""
    count = np.diff(first)[rows]
    own = offsets(count)
    return own, np.arange(own[-1]) + np.repeat(first[rows] - own[:-1], count)


class Times(NamedTuple):
    """Moments of n pages, k in all, in hours since 1970 (UTC).

    first: (n + 1,) those of page i are first[i] to first[i + 1]
    at:    (k,) in any order within a page
    """

    first: Ints
    at: Floats


@dataclass(frozen=True, slots=True)
class History:
    """The past of one target, in whole minutes since 1970 (UTC).

    since:   from here on `changes` is complete
    until:   the last look
    changes: records of CHANGE, packed, in the order of time
    """

    since: int
    until: int
    changes: bytes = b""

    @classmethod
    def begin(cls, at: int) -> History:
        """The past of a target that was seen for the first time."""
        return cls(at, at)

    def seen(self, at: int, *, changed: bool, said: int = 0) -> History:
        """The past after one more look; a look that is not later than the last tells nothing."""
        if at <= self.until:
            return self
        records = [(self.until, at, said)] if changed else []
        return self.extended(at, records)

    def extended(self, until: int, records: Sequence[tuple[int, int, int]]) -> History:
        """The past up to a later look, with records (after, by, said) in the order of `by`."""
        changes = self.changes + np.array(records, CHANGE).tobytes()
        surplus = len(changes) - MAX_CHANGES * CHANGE.itemsize
        if surplus <= 0:
            return History(self.since, until, changes)
        forgotten = np.frombuffer(changes[:surplus], CHANGE)
        return History(int(forgotten["by"][-1]), until, changes[surplus:])


@dataclass(frozen=True, slots=True)
class Histories:
    """The pasts of n targets with c changes in all, in hours since 1970 (UTC).

    since, until: (n,) the span watched; NaN where a target was never seen
    first:        (n + 1,) changes of target i are first[i] to first[i + 1]
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
        """The pasts of some of the targets."""
        first, place = places_of(rows, self.first)
        return Histories(
            self.since[rows], self.until[rows], first, self.after[place], self.by[place]
        )
