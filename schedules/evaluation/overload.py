"""Simulate one server that cannot refresh all cells in time, to compare dispatch policies.

Each period of a cell adds one request, whether or not the previous one was served. A refresh serves
the newest request; older unserved ones are missed. A refresh reads its cell at its start and
publishes the result at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schedules.dispatch import (
    Capacity,
    Due,
    dispatch,
    equal_ratio,
    expected_ratio,
    gain_of_visit,
    load_of,
)
from schedules.history import Floats, Ints, Times

HOUR_SECONDS = 3600
# Tolerance for sums of periods, so that a request counts from its exact time.
TOUCH = 1e-9
ONE = Capacity(requests=1)


@dataclass(frozen=True, slots=True)
class Cells:
    """Describe n cells. All arrays are (n,), all times are in seconds.

    period:       between two requests
    cost:         of a refresh
    change_every: mean time between two changes
    """

    period: Floats
    cost: Floats
    change_every: Floats

    def __len__(self) -> int:
        return len(self.period)

    @property
    def load(self) -> float:
        """Return the load: seconds of work requested per second."""
        return load_of(self.period, self.cost)

    @property
    def expected(self) -> Floats:
        """Return the (n,) expected refresh ratio (Ha et al. 2002)."""
        return expected_ratio(self.period, self.cost, HOUR_SECONDS)


@dataclass(frozen=True, slots=True)
class Course:
    """Hold what happens to n cells in `seconds`, independent of the policy.

    changes: of each cell, ascending
    first:   (n,) time of its first request, in seconds
    """

    seconds: float
    changes: Times
    first: Floats

    @classmethod
    def drawn(cls, cells: Cells, seconds: float, rng: np.random.Generator) -> Course:
        """Draw changes from a Poisson process, and first requests uniformly in the first period."""
        count = rng.poisson(seconds / cells.change_every)
        owner = np.repeat(np.arange(len(cells)), count)
        at = rng.random(len(owner)) * seconds
        at = at[np.lexsort((at, owner))]
        first = cells.period * (1 - rng.random(len(cells)))
        return cls(seconds, Times(np.append(0, np.cumsum(count)), at), first)

    def requested(self, cells: Cells, at: float) -> Floats:
        """Return the (n,) number of requests up to this time."""
        count: Floats = np.maximum(np.floor((at - self.first) / cells.period + TOUCH) + 1, 0)
        return count


class Refresh(NamedTuple):
    """Describe one refresh of a cell. number: of the served request, from 1."""

    cell: int
    number: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Played:
    """Hold the result of one policy.

    requested, refreshed: (n, h) requests in each hour, and how many of them were served
    fresh:                (n,) share of time in which a cell showed the current value
    """

    requested: Floats
    refreshed: Floats
    fresh: Floats

    @property
    def ratio(self) -> Floats:
        """Return the (n,) refresh ratio; 1 without requests."""
        requested, refreshed = self.requested.sum(1), self.refreshed.sum(1)
        result: Floats = np.ones(len(requested))
        np.divide(refreshed, requested, where=requested > 0, out=result)
        return result


def play(cells: Cells, course: Course, policy: str) -> Played:
    """Simulate the refreshes of a policy, one of `dispatch.POLICIES`."""
    done = _Server(cells, course).until(course.seconds, policy)
    hours = int(np.ceil(course.seconds / HOUR_SECONDS))
    # Cell and time of each request before the end.
    count = course.requested(cells, np.nextafter(course.seconds, 0)).astype(np.int64)
    request_cell = np.repeat(np.arange(len(cells)), count)
    order = np.arange(len(request_cell)) - np.repeat(np.cumsum(count) - count, count)
    request_time = course.first[request_cell] + order * cells.period[request_cell]
    served_of = np.array([refresh.cell for refresh in done], np.int64)
    number = np.array([refresh.number for refresh in done])
    served_at = course.first[served_of] + (number - 1) * cells.period[served_of]
    # Share of the time in which the published value of a cell was current.
    fresh = np.empty(len(cells))
    by_cell: list[list[Refresh]] = [[] for _ in range(len(cells))]
    for refresh in done:
        if refresh.end < course.seconds:
            by_cell[refresh.cell].append(refresh)
    for cell, refreshes in enumerate(by_cell):
        read = np.array([0.0, *(refresh.begin for refresh in refreshes)])
        shown = np.array([0.0, *(refresh.end for refresh in refreshes), course.seconds])
        begin, end = course.changes.first[cell], course.changes.first[cell + 1]
        changes = np.append(course.changes.at[begin:end], np.inf)
        stale = changes[np.searchsorted(changes, read, side="right")]
        fresh[cell] = (np.clip(stale, shown[:-1], shown[1:]) - shown[:-1]).sum()
    return Played(
        _by_hour(request_cell, request_time, len(cells), hours),
        _by_hour(served_of, served_at, len(cells), hours),
        fresh / course.seconds,
    )


class _Server:
    """Refresh one cell at a time. The state arrays are (n,)."""

    def __init__(self, cells: Cells, course: Course) -> None:
        self.cells, self.course = cells, course
        self.equal, self.expected = equal_ratio(cells.load), cells.expected
        self.served, self.refreshed, self.last = np.zeros((3, len(cells)))

    def until(self, end: float, policy: str) -> list[Refresh]:
        """Return all refreshes that start before `end`."""
        done: list[Refresh] = []
        now = float(self.course.first.min())
        while now < end:
            requested = self.course.requested(self.cells, now)
            rows = np.flatnonzero(requested > self.served)
            if len(rows):
                due = self._due(rows, requested[rows], now)
                cell = int(rows[dispatch(policy, due, ONE, self.equal)[0]])
                self.served[cell], self.last[cell] = requested[cell], now
                self.refreshed[cell] += 1
                end_of_refresh = now + float(self.cells.cost[cell])
                done.append(Refresh(cell, int(requested[cell]), now, end_of_refresh))
                now = end_of_refresh
            else:
                now = float((self.course.first + requested * self.cells.period).min())
        return done

    def _due(self, rows: Ints, requested: Floats, now: float) -> Due:
        """Return the due cells as input of `dispatch`."""
        period, waited = self.cells.period[rows], now - self.last[rows]
        return Due(
            requested=requested,
            refreshed=self.refreshed[rows],
            period=period,
            longest=np.full(len(rows), np.inf),
            waited=waited,
            asked=now - self.course.first[rows] - (requested - 1) * period,
            cost=self.cells.cost[rows],
            value=gain_of_visit(1 / self.cells.change_every[rows], waited),
            expected=self.expected[rows],
            host=np.zeros(len(rows), np.int64),
        )


def _by_hour(cell: Ints, at: Floats, n: int, hours: int) -> Floats:
    """Return the (n, h) number of requests of each cell in each hour."""
    place = cell * hours + np.minimum(at // HOUR_SECONDS, hours - 1).astype(np.int64)
    return np.bincount(place, minlength=n * hours).reshape(n, hours).astype(np.float64)
