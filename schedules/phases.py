"""In which weeks the rare visits fall: as many in each week as in any other."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from schedules.history import Floats, Ints
from schedules.population import Keys
from schedules.schedule import LONGEST_WEEKS, WEEK_HOURS, Schedules, replace_slots

# Cycles of 1 to 4 weeks all begin anew together.
ROUND_WEEKS = 12


def first_weeks(weeks: Ints, key: Keys) -> Ints:
    """(n,) week of its cycle for each target, as evenly as whole targets allow."""
    order = np.lexsort((key, weeks))
    begins = np.searchsorted(weeks[order], weeks[order], side="left")
    result = np.empty(len(weeks), np.int64)
    result[order] = (np.arange(len(weeks)) - begins) % weeks[order]
    return result


def even_phase(key: Keys) -> Floats:
    """(n,) in [0, 1), where in its even interval a target begins: looks random, stays with it."""
    return key.astype(np.float64) / 2.0**64


def balanced(schedules: Schedules, key: Keys) -> Schedules:
    """The schedules with a few rare visits moved to another week, where weeks differ by two."""
    rare = np.flatnonzero((schedules.weeks > 1) & (np.diff(schedules.first) == 1))
    rows = rare[np.argsort(key[rare])]
    weeks = schedules.weeks[rows].astype(np.int64)
    week, hour = np.divmod(schedules.slots[schedules.first[rows]].astype(np.int64), WEEK_HOURS)
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    load = np.zeros(ROUND_WEEKS, np.int64)
    for place, (length, phase) in enumerate(zip(weeks.tolist(), week.tolist(), strict=True)):
        waiting[length, phase].append(place)
        load[phase::length] += 1
    for _ in range(len(rows)):
        if (move := _best_move(load, waiting)) is None:
            break
        length, old, new = move
        place = waiting[length, old].pop()
        waiting[length, new].append(place)
        week[place] = new
        load[old::length] -= 1
        load[new::length] += 1
    return replace_slots(schedules, rows, week * WEEK_HOURS + hour)


def _best_move(
    load: Ints, waiting: dict[tuple[int, int], list[int]]
) -> tuple[int, int, int] | None:
    """A cycle length and two of its weeks between which a move evens the load most."""
    best, least = None, 0
    for length in range(2, LONGEST_WEEKS + 1):
        by_phase = [int(load[phase::length].sum()) for phase in range(length)]
        size = ROUND_WEEKS // length
        for old in (phase for phase in range(length) if waiting[length, phase]):
            new = int(np.argmin(by_phase))
            # Change of the sum of squares by the move.
            change = 2 * (by_phase[new] - by_phase[old] + size)
            if new != old and change < least:
                best, least = (length, old, new), change
    return best
