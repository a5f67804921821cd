"""In which weeks the rare visits fall: none too late, and as many in each week as in any other."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from schedules.history import Flags, Floats, Ints
from schedules.population import MONDAY_HOURS, Keys, Population
from schedules.schedule import ROUND_WEEKS, WEEK_HOURS, Schedules, replace_slots

NEVER = 2**31
PLACES = ROUND_WEEKS + 1


class Rare(NamedTuple):
    """The r targets with one visit in a cycle of several weeks.

    rows, weeks: (r,)       week, hour: (r,) of the slot in its cycle
    soonest, latest, limit: (r,) numbers of weeks since Monday 1970-01-05 (local): the first in
                     which the hour is still to come, the last within one cycle after the last look,
                     and the last within the longest interval after it
    """

    rows: Ints
    weeks: Ints
    week: Ints
    hour: Ints
    soonest: Ints
    latest: Ints
    limit: Ints

    @classmethod
    def of(cls, schedules: Schedules, population: Population, last: Floats, now: float) -> Rare:
        """Those of n targets. last: (n,) hours since 1970 (UTC), NaN before the first look."""
        rows = np.flatnonzero((schedules.weeks > 1) & (np.diff(schedules.first) == 1))
        last = _looked(population, last, now)
        weeks = schedules.weeks[rows].astype(np.int64)
        week, hour = np.divmod(schedules.slots[schedules.first[rows]].astype(np.int64), WEEK_HOURS)
        clock = population.ahead(now)[population.site[rows]] - MONDAY_HOURS - hour
        soonest = np.floor((now + clock) / WEEK_HOURS).astype(np.int64) + 1
        seen = np.nan_to_num(last[rows] + clock, nan=NEVER)
        latest = np.floor(seen / WEEK_HOURS).astype(np.int64) + weeks
        limit = np.floor((seen + population.max_hours[rows]) / WEEK_HOURS).astype(np.int64)
        return cls(rows, weeks, week, hour, soonest, latest, limit)

    def coming(self, week: Ints) -> Ints:
        """(r,) the first week to come that is this one of the cycle."""
        return self.soonest + (week - self.soonest) % self.weeks

    def put(self, schedules: Schedules, at: Ints) -> Schedules:
        """The schedules with these hours, counted like the weeks."""
        return replace_slots(schedules, self.rows, at % (self.weeks * WEEK_HOURS))


def _looked(population: Population, last: Floats, now: float) -> Floats:
    """(n,) the last look; now for those overdue, as they are visited at once."""
    looked: Floats = np.where(last + population.max_hours < now, now, last)
    return looked


def even_phase(key: Keys) -> Floats:
    """(n,) in [0, 1), where in its even interval a target begins: looks random, stays with it."""
    return key.astype(np.float64) / 2.0**64


def first_weeks(weeks: Ints, key: Keys) -> Ints:
    """(n,) week of its cycle for each target, as evenly as whole targets allow."""
    order = np.lexsort((key, weeks))
    begins = np.searchsorted(weeks[order], weeks[order], side="left")
    result = np.empty(len(weeks), np.int64)
    result[order] = (np.arange(len(weeks)) - begins) % weeks[order]
    return result


def in_time(
    schedules: Schedules, moved: Flags, population: Population, last: Floats, now: float
) -> Schedules:
    """The schedules with rare visits of moved targets not later than one cycle after the last look.

    moved: (n,)   last: (n,) hours since 1970 (UTC), NaN before the first look   now: of the same

    A target whose week changed with each replan would be passed over again and again. One whose
    hour comes too late for its longest interval keeps the hour of its last visit: it would be
    visited there anyway, and at its slot once more.
    """
    rare = Rare.of(schedules, population, last, now)
    week = rare.coming(rare.week)
    room = np.clip(rare.latest - rare.soonest + 1, 1, rare.weeks)
    at = np.where(week > rare.latest, rare.soonest + rare.week % room, week)
    at = at * WEEK_HOURS + rare.hour
    clock = population.ahead(now)[population.site[rare.rows]] - MONDAY_HOURS
    limit = _looked(population, last, now)[rare.rows] + population.max_hours[rare.rows] + clock
    limit = np.floor(np.nan_to_num(limit, nan=NEVER)).astype(np.int64)
    opened = population.open_hours[population.site[rare.rows], limit % WEEK_HOURS]
    at = np.where((at > limit) & (limit > now + clock) & opened, limit, at)
    same = rare.week * WEEK_HOURS + rare.hour
    return rare.put(schedules, np.where(moved[rare.rows], at, same))


def balanced(schedules: Schedules, population: Population, last: Floats, now: float) -> Schedules:
    """The schedules with a few rare visits moved to another week, where weeks differ by two.

    last, now: as in `in_time`; no visit is moved past its longest interval
    """
    rare = Rare.of(schedules, population, last, now)
    # Who was just visited can wait, and goes first.
    order = np.lexsort((population.key[rare.rows], rare.latest)).tolist()
    week = rare.week.copy()
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    load = np.zeros(ROUND_WEEKS, np.int64)
    for place in order:
        length, phase = int(rare.weeks[place]), int(week[place])
        waiting[length, phase].append(place)
        load[phase::length] += 1
    for _ in order:
        if (move := _best_move(load, waiting, rare)) is None:
            break
        length, old, new = move
        place = waiting[length, old].pop()
        waiting[length, new].append(place)
        week[place] = new
        load[old::length] -= 1
        load[new::length] += 1
    return rare.put(schedules, week * WEEK_HOURS + rare.hour)


def fullest_week(schedules: Schedules) -> float:
    """Visits in that week of the round which has most."""
    even = float(schedules.visits_per_week[schedules.every_hours > 0].sum())
    cycle = np.repeat(schedules.weeks.astype(np.int64), np.diff(schedules.first))
    place, count = np.unique(cycle * PLACES + schedules.slots // WEEK_HOURS, return_counts=True)
    load = np.full(ROUND_WEEKS, even)
    for length, phase, visits in zip(*np.divmod(place, PLACES), count, strict=True):
        load[phase::length] += visits
    return float(load.max())


def _best_move(
    load: Ints, waiting: dict[tuple[int, int], list[int]], rare: Rare
) -> tuple[int, int, int] | None:
    """A cycle length and two of its weeks between which a move evens the load most."""
    best, least = None, 0
    for length in sorted({length for length, _ in waiting}):
        by_phase = [int(load[phase::length].sum()) for phase in range(length)]
        size = ROUND_WEEKS // length
        for old in (phase for phase in range(length) if waiting[length, phase]):
            for new in (phase for phase in range(length) if phase != old):
                # Change of the sum of squares by the move.
                change = 2 * (by_phase[new] - by_phase[old] + size)
                if change < least and _in_time(rare, waiting[length, old][-1], new):
                    best, least = (length, old, new), change
    return best


def _in_time(rare: Rare, place: int, week: int) -> bool:
    soonest, length = int(rare.soonest[place]), int(rare.weeks[place])
    return bool(soonest + (week - soonest) % length <= rare.limit[place])
