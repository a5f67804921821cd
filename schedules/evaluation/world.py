"""Hold the ground truth of a simulation, and represent visits as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from schedules.calendar import visits_between
from schedules.history import Floats, Histories, Ints, Times
from schedules.population import Population, walls_of
from schedules.schedule import WEEK_HOURS, Schedules


@dataclass(frozen=True, slots=True)
class World:
    """Hold the true changes of n targets, in hours since 1970 (UTC).

    changes:     of each target, ascending
    began, ends: (n,) a target exists from `began` (NaN: always) to `ends` (inf: forever)
    """

    population: Population
    changes: Times
    began: Floats
    ends: Floats

    def __len__(self) -> int:
        return len(self.population)

    def there(self, at: float) -> Ints:
        """Return the rows of the targets that exist at a time."""
        return np.flatnonzero(~(self.began > at) & (self.ends > at))


def even_population(
    key: NDArray[np.uint64],
    site: Ints,
    weight: Floats,
    hours: tuple[float, float],
    start: float,
    stop: float,
) -> Population:
    """Return targets of sites without visiting hours or caps, on UTC clocks.

    site:  (n,) number of each target's site, consecutive from 0
    hours: shortest and longest interval
    """
    n, sites, zone = len(key), int(site.max(initial=0)) + 1, ZoneInfo("UTC")
    return Population(
        key=key,
        site=site,
        group=site,
        parent=np.arange(sites),
        zones=(zone,) * sites,
        open_hours=np.ones((sites, WEEK_HOURS), np.bool_),
        weight=weight,
        cost=np.ones(n),
        min_hours=np.full(n, hours[0]),
        max_hours=np.full(n, hours[1]),
        site_day=np.full(sites, np.inf),
        walls=walls_of((zone,), start, stop),
    )


class Span(NamedTuple):
    """Mark the start, the beginning of the scored period and the end; hours since 1970 (UTC)."""

    start: float
    split: float
    stop: float


def while_there(world: World, visits: Times) -> Times:
    """Return the visits at times when their targets exist."""
    owner = np.repeat(np.arange(len(world)), np.diff(visits.first))
    there = ~(visits.at < world.began[owner]) & (visits.at <= world.ends[owner])
    return times_of(len(world), [(owner[there], visits.at[there])])


def visits_of(schedules: Schedules, population: Population, start: float, stop: float) -> Times:
    """Return the visits of all targets by the wall clocks of their sites."""
    zone, done = population.zone[population.site], list[tuple[Ints, Floats]]()
    for number in np.unique(zone):
        rows = np.flatnonzero(zone == number)
        site = population.site[rows[0]]
        times = visits_between(schedules.of(rows), population.zones[site], start, stop)
        done.append((np.repeat(rows, np.diff(times[0])), times[1]))
    return times_of(len(schedules), done)


def joined(n: int, parts: list[Times]) -> Times:
    """Return the visits of several periods as one."""
    return times_of(n, [by_time(part) for part in parts])


def by_time(visits: Times) -> tuple[Ints, Floats]:
    """Return targets and times of visits in chronological order."""
    owner = np.repeat(np.arange(len(visits.first) - 1), np.diff(visits.first))
    order = np.argsort(visits.at, kind="stable")
    return owner[order], visits.at[order]


def times_of(n: int, pieces: list[tuple[Ints, Floats]]) -> Times:
    """Return visits of n targets from pieces of targets and times."""
    pieces = [(np.empty(0, np.int64), np.empty(0)), *pieces]
    owner, at = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.lexsort((at, owner))
    return Times(np.searchsorted(owner[order], np.arange(n + 1)), at[order])


def placed(schedules: Schedules, rows: Ints, n: int) -> Schedules:
    """Return schedules of n targets: the given ones in `rows`, empty ones elsewhere."""
    none = Schedules.none(1)
    longer = replace(
        schedules,
        weeks=np.append(schedules.weeks, none.weeks),
        first=np.append(schedules.first, schedules.first[-1]),
        every_hours=np.append(schedules.every_hours, 0.0),
        phase_hours=np.append(schedules.phase_hours, 0.0),
    )
    source = np.full(n, len(rows))
    source[rows] = np.arange(len(rows))
    return longer.of(source)


def never(n: int) -> Histories:
    """Return the histories of n targets that were never observed."""
    nothing, none = np.full(n, np.nan), np.empty(0)
    return Histories(nothing, nothing.copy(), np.zeros(n + 1, np.int64), none, none)


def seen(past: Histories, visits: Times, changes: Times) -> Histories:
    """Return the histories after more visits.

    visits: later than the histories, ascending for each target
    """
    n = len(past)
    owner = np.repeat(np.arange(n), np.diff(visits.first))
    before = np.empty(len(visits.at))
    before[1:] = visits.at[:-1]
    begins = visits.first[:-1][np.diff(visits.first) > 0]
    before[begins] = past.until[owner[begins]]
    old, new = _changes_until(changes, owner, before), _changes_until(changes, owner, visits.at)
    changed = (new > old) & ~np.isnan(before)
    since, until = past.since.copy(), past.until.copy()
    visited = np.diff(visits.first) > 0
    first_seen = visited & np.isnan(since)
    since[first_seen] = visits.at[visits.first[:-1][first_seen]]
    until[visited] = visits.at[visits.first[1:][visited] - 1]
    of = np.concatenate([np.repeat(np.arange(n), np.diff(past.first)), owner[changed]])
    order = np.argsort(of, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=n))])
    after = np.concatenate([past.after, before[changed]])[order]
    by = np.concatenate([past.by, visits.at[changed]])[order]
    return Histories(since, until, first, after, by)


def _changes_until(changes: Times, owner: Ints, at: Floats) -> Ints:
    """Return the number of changes of each time's target up to that time."""
    if np.isnan(at).all():
        return np.zeros(len(at), np.int64)
    low = min(changes.at.min(initial=np.inf), np.nanmin(at, initial=np.inf))
    high = max(changes.at.max(initial=-np.inf), np.nanmax(at, initial=-np.inf))
    # Put all targets on one axis. Use whole milliseconds, because sums of hours are inexact.
    length = round((high - low) * 3.6e6) + 2
    of = np.repeat(np.arange(len(changes.first) - 1), np.diff(changes.first))
    line = of * length + np.rint((changes.at - low) * 3.6e6).astype(np.int64)
    place = owner * length + np.rint((np.nan_to_num(at, nan=low) - low) * 3.6e6).astype(np.int64)
    behind: Ints = np.searchsorted(line, place, "right") - changes.first[owner]
    return behind
