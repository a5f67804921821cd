"""Place a target's visits in the local week, and compute the value of each.

Slots are inserted one at a time, each where it lowers the expected cost most. Fewer than one visit
a week is a single slot every two, three or four weeks. The convex hull of the costs of these
options gives the steps that `allocate` chooses from for all targets at one price.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.compiled import compiled
from schedules.cost import (
    Costs,
    Curves,
    Objective,
    even_cost,
    interval_cost,
    split_costs,
    weeks_costs,
    whole_cost,
)
from schedules.history import Floats, Ints
from schedules.schedule import MAX_WEEKS, WEEK_HOURS
from schedules.vectorized import lowest

# Slots are hours, so there is at most one visit an hour.
MAX_SLOTS = WEEK_HOURS
# Options 0 to 2 are one visit every 4, 3 and 2 weeks. Option 2 + n is n visits a week.
RARE = MAX_WEEKS - 1
# Option EVEN and following are even intervals, with these visits a week. The fewer there are, the
# finer the steps, because few pages are worth a whole visit more.
EVEN = RARE + 1
EVEN_VISITS = np.concatenate(
    [
        np.arange(3, 24) / 12, np.arange(8, 16) / 4, np.arange(8, 16) / 2,
        np.arange(8.0, WEEK_HOURS + 1),
    ]
)  # fmt: skip
# Of one target.
MAX_OPTIONS = max(RARE + MAX_SLOTS, len(EVEN_VISITS))
SWEEPS = 1


class Limits(NamedTuple):
    """Limit the slots of a target.

    surcharge: (168,) price of the hour in addition to a request's; inf if the hour is closed
    tilt:      (168,) makes one of several equivalent hours preferable, as if it cost this much less
    min_hours, max_hours: shortest and longest interval between two visits
    is_dense: whether every slot must leave room for as many others as without it
    """

    surcharge: Floats
    tilt: Floats
    min_hours: float
    max_hours: float
    is_dense: bool = False


class Choice(NamedTuple):
    """Hold the m options of one target that are worth a price, in order of visits.

    visits: (m,) visits a week
    value:  (m,) cost saved per visit that this option adds to the previous one; the first option is
            the minimum that the limits allow
    option: (m,) numbers of options
    rare:   (3,) hour of the week of the rare options
    slots:  hours in the order of insertion
    full:   whether no further visit fits
    """

    visits: Floats
    value: Floats
    option: Ints
    rare: Ints
    slots: Ints
    full: bool


@compiled
def tilted(phase: int, slope: float) -> Floats:
    """Return a tilt that prefers the first hour from `phase` on; each later one costs `slope` more.

    With different phases, similar targets are not all visited at the same time.
    """
    tilt = np.empty(WEEK_HOURS)
    for z in range(WEEK_HOURS):
        late = z - phase
        tilt[z] = slope * (late if late >= 0 else late + WEEK_HOURS)
    return tilt


@compiled
def best_split(c: Costs, limits: Limits, a: int, n: int) -> tuple[float, int]:
    """Return the lowest cost from `a` to `n` with one visit in between, and its hour; -1: none."""
    begin, end = allowed(a, n, limits.min_hours, limits.max_hours)
    if begin <= end:
        cost = split_costs(c, a, n, begin, end)
        middle = min(max(WEEK_HOURS - begin, 0), len(cost))
        _add_prices(limits, begin, cost[:middle])
        _add_prices(limits, begin + middle - WEEK_HOURS, cost[middle:])
        if limits.is_dense:
            _keep_room(limits, begin - a, n - a, cost)
        where = begin + lowest(cost)
        if cost[where - begin] < np.inf:
            return cost[where - begin] - limits.tilt[where % WEEK_HOURS], where
    if n - a > limits.max_hours:
        # Fall back to the last open hour that the longest interval after `a` allows.
        least = max(1, int(np.ceil(limits.min_hours)))
        for z in range(min(a + int(limits.max_hours), n - least), a + least - 1, -1):
            if limits.surcharge[z % WEEK_HOURS] < np.inf:
                return split_costs(c, a, n, z, z)[0], z
    return np.inf, -1


@compiled
def _add_prices(limits: Limits, first: int, cost: Floats) -> None:
    """Add surcharge and tilt of the hours from `first` on to their costs."""
    for j in range(len(cost)):
        z = np.uintp(first + j)
        cost[j] += limits.surcharge[z] + limits.tilt[z]


@compiled
def _keep_room(limits: Limits, begin: int, hours: int, cost: Floats) -> None:
    """Exclude slots after which fewer others would fit into an interval of `hours`.

    cost: of slots from `begin` hours after the start of the interval on
    """
    least = max(1, int(np.ceil(limits.min_hours)))
    spare = hours % least
    for j in range(len(cost)):
        if (begin + j) % least > spare:
            cost[j] = np.inf


@compiled
def best_gain(c: Costs, limits: Limits, a: int, n: int) -> tuple[float, int]:
    """Return the saving and hour of the best visit between those at `a` and `n`; hour -1: none."""
    cost, where = best_split(c, limits, a, n)
    return whole_cost(c, a, n) - cost, where


@compiled
def allowed(a: int, n: int, min_hours: float, max_hours: float) -> tuple[int, int]:
    """Return the first and the last hour allowed for a slot between `a` and `n`.

    An interval that is too long is split so that the fewest possible slots bring it below the
    maximum, and so that none of these gets too close to the next.
    """
    least = max(1, int(np.ceil(min_hours)))
    begin, end = a + least, n - least
    if n - a > max_hours:
        most = int(max_hours)
        cuts = (n - a - 1) // most
        begin, end = max(begin, n - cuts * most), min(end, a + most)
        if n - cuts * least >= begin:
            end = min(end, n - cuts * least)
    return begin, end


@compiled
def best_single(c: Costs, limits: Limits, weeks: int) -> tuple[float, int]:
    """Return the cost per week of one visit every `weeks` weeks at its best hour, and that hour."""
    cost = weeks_costs(c, weeks)
    for z in range(WEEK_HOURS):
        cost[z] = (cost[z] + limits.surcharge[z]) / weeks + limits.tilt[z]
    where = lowest(cost)
    if cost[where] == np.inf:
        return np.inf, -1
    return cost[where] - limits.tilt[where], where


@compiled
def insert(c: Costs, limits: Limits, first: int, least: float) -> tuple[Floats, Ints, int, bool]:
    """Insert slots into the week that starts at hour `first`, while each saves more than `least`.

    Returns the saving of each slot after the first, the hours of all slots in the order of
    insertion, the number of slots that the longest interval requires, and whether the week is full.
    """
    at = np.empty(MAX_SLOTS + 1, np.int64)
    gain, where = np.empty(MAX_SLOTS + 1), np.empty(MAX_SLOTS + 1, np.int64)
    saved, order = np.empty(MAX_SLOTS), np.empty(MAX_SLOTS, np.int64)
    at[0], at[1], order[0] = first, first + WEEK_HOURS, first
    gain[0], where[0] = best_gain(c, limits, at[0], at[1])
    slots, needed = 1, 1
    i = next_gap(at, gain, where, slots, limits.max_hours)
    while i >= 0:
        forced = at[i + 1] - at[i] > limits.max_hours
        if not forced and gain[i] <= least:
            break
        saved[slots - 1], order[slots] = gain[i], where[i] % WEEK_HOURS
        slots += 1
        if forced:
            needed = slots
        for j in range(slots, i + 1, -1):
            at[j] = at[j - 1]
        for j in range(slots - 1, i + 1, -1):
            gain[j], where[j] = gain[j - 1], where[j - 1]
        at[i + 1] = where[i]
        gain[i], where[i] = best_gain(c, limits, at[i], at[i + 1])
        gain[i + 1], where[i + 1] = best_gain(c, limits, at[i + 1], at[i + 2])
        i = next_gap(at, gain, where, slots, limits.max_hours)
    return saved[: slots - 1], order[:slots], needed, i < 0


@compiled
def next_gap(at: Ints, gain: Floats, where: Ints, slots: int, max_hours: float) -> int:
    """Return the interval to split next: the longest above `max_hours`, else the most valuable."""
    longest, best = -1, -1
    for j in range(slots):
        if where[j] < 0:
            continue
        length = at[j + 1] - at[j]
        if length > max_hours and (longest < 0 or length > at[longest + 1] - at[longest]):
            longest = j
        if best < 0 or gain[j] > gain[best]:
            best = j
    return longest if longest >= 0 else best


@compiled
def options(c: Costs, limits: Limits, least: float) -> Choice:
    """Return the convex hull of a target's options that save more than `least` per visit."""
    cost = np.full(RARE + MAX_SLOTS, np.inf)
    visits = np.empty(RARE + MAX_SLOTS)
    rare = np.full(RARE, -1)
    for i in range(RARE):
        weeks = MAX_WEEKS - i
        visits[i] = 1 / weeks
        if limits.min_hours <= weeks * WEEK_HOURS <= limits.max_hours:
            cost[i], rare[i] = best_single(c, limits, weeks)
    weekly, first = best_single(c, limits, 1)
    saved, slots, needed, full = insert(c, limits, first, least)
    if full and len(slots) < WEEK_HOURS // max(1, int(np.ceil(limits.min_hours))):
        # Intervals of less than twice the shortest one cannot be split. Keep room for more slots.
        dense = Limits(
            limits.surcharge, limits.tilt, limits.min_hours, limits.max_hours, is_dense=True
        )
        more = insert(c, dense, first, least)
        if len(more[1]) > len(slots) and more[2] <= needed:
            saved, slots, needed, full = more
    for n in range(len(slots)):
        weekly -= saved[n - 1] if n else 0.0
        visits[RARE + n] = n + 1.0
        if n + 1 >= needed and (n or limits.min_hours <= WEEK_HOURS):
            cost[RARE + n] = weekly
    option, value = _hull(visits[: RARE + len(slots)], cost[: RARE + len(slots)])
    return Choice(visits[option], value, option, rare, slots, full)


@compiled
def even_options(
    c: Costs,
    limits: Limits,
    aim: Objective,
    rate: Floats,
    weight: Floats,
    least: float,
    gain: float,
) -> Choice:
    """Return the same as `options`, with even intervals instead of several slots a week.

    limits:       without closed hours
    rate, weight: (k,) as in `even_cost`
    gain:         share of the cost that a slot must save to replace an even interval of whole
                  weeks; 1: no slots
    """
    size, surcharge, before, full = len(EVEN_VISITS), limits.surcharge.mean(), np.inf, True
    cost, option, used = np.full(size, np.inf), EVEN + np.arange(size), 0
    rare, slots = np.full(RARE, -1), np.zeros(1, np.int64)
    for i in range(size):
        visits = EVEN_VISITS[i]
        every = WEEK_HOURS / visits
        if every > limits.max_hours * (1 + 1e-9):
            continue
        after = even_cost(rate, weight, aim, visits) + visits * surcharge
        saved = (before - after) / (visits - EVEN_VISITS[i - 1])
        full = every < limits.min_hours * (1 - 1e-9)
        if used and (full or saved <= least):
            break
        cost[i], before, used = after, after, i + 1
        weeks = int(1 / visits)
        if gain < 1 and weeks * visits == 1:
            single, hour = best_single(c, limits, weeks)
            if single < (1 - gain) * after:
                cost[i], option[i] = single, MAX_WEEKS - weeks
                slots[0] = hour
                if weeks > 1:
                    rare[MAX_WEEKS - weeks] = hour
    chosen, value = _hull(EVEN_VISITS[:used], cost[:used])
    return Choice(EVEN_VISITS[chosen], value, option[chosen], rare, slots, full)


@compiled
def refine(c: Costs, limits: Limits, slots: Ints) -> Ints:
    """Move each slot to the best hour between its neighbors, SWEEPS times; return them sorted."""
    n = len(slots)
    at = _ascending(slots)
    for _ in range(SWEEPS if n > 1 else 0):
        moved = False
        for j in range(n):
            before = at[j - 1] - (WEEK_HOURS if j == 0 else 0)
            after = at[(j + 1) % n] + (WEEK_HOURS if j == n - 1 else 0)
            shift = WEEK_HOURS if before < 0 else 0
            a, z = before + shift, at[j] + shift
            b = after + shift
            best, where = best_split(c, limits, a, b)
            now = whole_cost(c, a, z) + whole_cost(c, z, b) + limits.surcharge[z % WEEK_HOURS]
            if where >= 0 and best < now - 1e-9:
                at[j], moved = where - shift, True
        if not moved:
            break
    for j in range(n):
        at[j] %= WEEK_HOURS
    return _ascending(at)


@compiled
def _ascending(slots: Ints) -> Ints:
    """Return the slots sorted.

    They are at most 168 and nearly sorted already, and Numba takes a second to compile np.sort.

    """
    at = slots.copy()
    for j in range(1, len(at)):
        slot, k = at[j], j
        while k and at[k - 1] > slot:
            at[k] = at[k - 1]
            k -= 1
        at[k] = slot
    return at


@compiled
def cycle_cost(c: Curves, aim: Objective, weeks: int, slots: Ints) -> float:
    """Return the cost per week of slots (ascending hours of a cycle of `weeks` weeks)."""
    cost = 0.0
    for j in range(len(slots)):
        later = slots[j + 1] if j + 1 < len(slots) else slots[0] + weeks * WEEK_HOURS
        begin, hours = slots[j] % WEEK_HOURS, later - slots[j]
        cost += interval_cost(c, aim, begin, begin + hours)
    return cost / weeks


@compiled
def allows(limits: Limits, weeks: int, slots: Ints) -> bool:
    """Return whether a schedule keeps the limits: open hours, and intervals of allowed length."""
    for j in range(len(slots)):
        later = slots[j + 1] if j + 1 < len(slots) else slots[0] + weeks * WEEK_HOURS
        hours = later - slots[j]
        closed = limits.surcharge[slots[j] % WEEK_HOURS] == np.inf
        if closed or hours < limits.min_hours or hours > limits.max_hours:
            return False
    return len(slots) > 0


@compiled
def _hull(visits: Floats, cost: Floats) -> tuple[Ints, Floats]:
    """Return the options on the lower convex hull of cost over visits, and savings per visit."""
    option = np.empty(len(visits), np.int64)
    value = np.empty(len(visits))
    n = 0
    for i in range(len(visits)):
        if not np.isfinite(cost[i]):
            continue
        slope = np.inf
        while n:
            before = option[n - 1]
            slope = (cost[before] - cost[i]) / (visits[i] - visits[before])
            if slope < value[n - 1]:
                break
            n -= 1
        if n and slope <= 0:
            continue
        option[n], value[n] = i, slope if n else np.inf
        n += 1
    return option[:n], value[:n]
