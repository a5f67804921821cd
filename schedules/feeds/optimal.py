"""Find the best schedules of feeds: cycles of one or more weeks, one price over all feeds.

As for pages (`allocation.optimal`), each feed offers candidate steps, the most valuable steps are
allocated, and a feed keeps its current schedule if another one would hardly be better.

Each fetch of a feed is placed in the hour that saves the most posts and waiting time. The hours of
a plan are an axis from Monday 00:00. `begin` is the first fetch of a cycle and `end` the first
fetch of the next cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.allocation.allocate import Allocation, allocate, least_visits
from schedules.allocation.optimal import (
    DEAD_BAND,
    INDIFFERENCE,
    Candidates,
    joined,
    schedules_of,
    why,
)
from schedules.compiled import Part, compiled, parts, spread_over
from schedules.feeds.post_rates import Posting, Table, looked_up, profile_of, table
from schedules.history import DAY_HOURS, Flags, Floats, Ints
from schedules.placement.placement import allowed, next_gap
from schedules.schedule import FEED_CYCLES, WEEK_DAYS, WEEK_HOURS, Schedules, chosen_of
from schedules.terms import BudgetTooSmall

# Long intervals are searched in this many steps, then around the best step.
STEPS = 72
SWEEPS = 4
# An interval starts in the first week; `interval_posts` reads at most two more weeks.
AXIS_HOURS = 3 * WEEK_HOURS
NO_FETCH = -1
# Cost of one post waiting for a day, in missed posts.
DELAY_PER_DAY = 0.01
# Steps below this share of the expected price are not computed.
MIN_VALUE_SHARE = 0.7
FIRST_MIN_VALUE, LOWEST_PRICE = 1.0, 1e-9
CHEAPER = 0.25
# The first options are one visit in each of the cycles. Option RARE + n - 1 is n visits a week.
CYCLES = len(FEED_CYCLES)
RARE = CYCLES - 1
PER_FEED = ("key", "window", "weight", "cost", "min_hours", "max_hours", "site")
# Number of feeds from which the price is estimated.
MAX_SAMPLE = 4_000


class Course(NamedTuple):
    """Hold the expected posts of a feed along its axis of hours.

    mass:  (h,) posts up to each hour
    lever: (h,) sum of the posts up to each hour, each times its hour
    table: losses of intervals
    delay: cost of one hour of waiting of one post, in missed posts
    """

    mass: Floats
    lever: Floats
    table: Table
    delay: float


class Room(NamedTuple):
    """Limit where fetches may be placed.

    begin, end:           of the axis
    open_hours:           (168,)
    min_hours, max_hours: shortest and longest interval between two fetches
    """

    begin: int
    end: int
    open_hours: Flags
    min_hours: float
    max_hours: float


@compiled
def course(profile: Floats, per_week: float) -> tuple[Floats, Floats]:
    """Return (AXIS_HOURS + 1,) mass and lever from Monday 00:00. profile: (168,) sums to 1."""
    mass, lever = np.empty(AXIS_HOURS + 1), np.empty(AXIS_HOURS + 1)
    mass[0] = lever[0] = 0.0
    hour = 0
    for t in range(AXIS_HOURS):
        posts = per_week * profile[hour]
        mass[t + 1] = mass[t] + posts
        lever[t + 1] = lever[t] + posts * (t + 0.5)
        hour = hour + 1 if hour + 1 < WEEK_HOURS else 0
    return mass, lever


@compiled
def interval_cost(c: Course, a: int, n: int) -> float:
    """Return the cost of the interval between fetches at `a` and `n`, in missed posts.

    Posts that are not missed add the cost of their waiting time.
    """
    posts, wait = interval_posts(c.mass, c.lever, a, n)
    lost, share = looked_up(c.table.lost, c.table.wait, c.table.top, posts)
    return lost + c.delay * share * wait


@compiled
def interval_posts(mass: Floats, lever: Floats, a: int, n: int) -> tuple[float, float]:
    """Return the posts of the hours from `a` to `n`, and the sum of their waiting hours until `n`.

    All weeks are identical, so further whole weeks are computed, not looked up.
    """
    weeks = max((n - a) // WEEK_HOURS, 0)
    b = n - weeks * WEEK_HOURS
    posts: float = mass[b] - mass[a]
    wait: float = b * posts - (lever[b] - lever[a])
    if weeks:
        end = b + WEEK_HOURS
        of_week = mass[end] - mass[b]
        of_week_waits = end * of_week - (lever[end] - lever[b])
        wait += weeks * (WEEK_HOURS * posts + of_week_waits)
        wait += of_week * WEEK_HOURS * weeks * (weeks - 1) / 2
        posts += weeks * of_week
    return posts, wait


@compiled
def _split(c: Course, room: Room, a: int, z: int, n: int) -> float:
    """Return the cost of the hours from `a` to `n` with a fetch at `z`."""
    return _search(c, room, a, n, z, z, 1)[0]


@compiled
def _search(
    c: Course, room: Room, a: int, n: int, first: int, last: int, stride: int
) -> tuple[float, int]:
    """Return the lowest cost of the hours from `a` to `n` with a fetch in between, and its hour."""
    # Copy to locals, because taking an array out of a tuple costs as much as all other operations.
    mass, lever, lost, wait = c.mass, c.lever, c.table.lost, c.table.wait
    top, delay, is_open = c.table.top, c.delay, room.open_hours
    cost, where = np.inf, NO_FETCH
    before, early, after, late = mass[a], lever[a], mass[n], lever[n]
    for z in range(first, last + 1, stride):
        if not is_open[z % WEEK_HOURS]:
            continue
        posts, later = mass[z] - before, after - mass[z]
        gone, share = looked_up(lost, wait, top, posts)
        split = gone + delay * share * (z * posts - (lever[z] - early))
        gone, share = looked_up(lost, wait, top, later)
        split += gone + delay * share * (n * later - (late - lever[z]))
        if split < cost:
            cost, where = split, z
    return cost, where


@compiled
def best_split(c: Course, room: Room, a: int, n: int) -> tuple[float, int]:
    """Return the saving and the hour of the best fetch between `a` and `n`; NO_FETCH if none."""
    first, last = allowed(a, n, room.min_hours, room.max_hours)
    stride = max(1, (last - first) // STEPS)
    cost, where = _search(c, room, a, n, first, last, stride)
    if stride > 1 and where >= 0:
        low, high = max(first, where - stride + 1), min(last, where + stride - 1)
        cost, where = _search(c, room, a, n, low, high, 1)
    if where < 0 and n - a > room.max_hours:
        # Fall back to the last open hour that the longest interval after `a` allows.
        least = max(1, int(np.ceil(room.min_hours)))
        for z in range(min(a + int(room.max_hours), n - least), a + least - 1, -1):
            if room.open_hours[z % WEEK_HOURS]:
                where = z
                break
        cost = np.inf if where < 0 else _split(c, room, a, where, n)
    return interval_cost(c, a, n) - cost, where


@compiled
def insert(c: Course, room: Room, least: float, most: int) -> tuple[Floats, Ints, int, bool]:
    """Insert up to `most` fetches, one at a time, while each saves more than `least`.

    Returns the saving and the hour of each fetch in the order of insertion, the number of fetches
    that the longest interval requires, and whether no further fetch fits.
    """
    at, where = np.empty(most + 2, np.int64), np.empty(most + 2, np.int64)
    gain, saved = np.empty(most + 2), np.empty(most)
    order = np.empty(most, np.int64)
    at[0], at[1] = room.begin, room.end
    gain[0], where[0] = best_split(c, room, at[0], at[1])
    count, needed = 0, 0
    i = next_gap(at, gain, where, 1, room.max_hours)
    while i >= 0 and count < most:
        forced = at[i + 1] - at[i] > room.max_hours
        if not forced and gain[i] <= least:
            break
        saved[count], order[count] = gain[i], where[i]
        count += 1
        needed = count if forced else needed
        for j in range(count, i, -1):
            at[j + 1] = at[j]
            gain[j], where[j] = gain[j - 1], where[j - 1]
        at[i + 1] = order[count - 1]
        gain[i], where[i] = best_split(c, room, at[i], at[i + 1])
        gain[i + 1], where[i + 1] = best_split(c, room, at[i + 1], at[i + 2])
        i = next_gap(at, gain, where, count + 1, room.max_hours)
    return saved[:count], order[:count], needed, i < 0


@compiled
def refine(c: Course, room: Room, fetches: Ints) -> Ints:
    """Move each fetch to the best hour between its neighbors, SWEEPS times; return them sorted."""
    at = np.empty(len(fetches) + 2, np.int64)
    at[0], at[-1], at[1:-1] = room.begin, room.end, np.sort(fetches)
    for _ in range(SWEEPS):
        moved = False
        for j in range(1, len(at) - 1):
            a, z, n = at[j - 1], at[j], at[j + 1]
            saved, where = best_split(c, room, a, n)
            now = interval_cost(c, a, n) - _split(c, room, a, z, n)
            if where >= 0 and saved > now + 1e-12 and where != z:
                at[j], moved = where, True
        if not moved:
            break
    return at[1:-1].copy()


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """Hold the limits and weights of n feeds of s sites.

    key:                  (n,) stable pseudorandom number
    window:               (n,) feed size in posts, >= 1
    weight, cost:         (n,) importance, and cost of a fetch
    min_hours, max_hours: (n,) shortest and longest interval between two fetches
    site:                 (n,) 0 to s - 1
    open_hours:           (s, 168) of the local week
    """

    key: NDArray[np.uint64]
    window: Ints
    weight: Floats
    cost: Floats
    min_hours: Floats
    max_hours: Floats
    site: Ints
    open_hours: Flags

    def __len__(self) -> int:
        return len(self.key)

    def of(self, rows: Ints) -> FeedLimits:
        """Return the limits of some of the feeds."""
        own = {name: getattr(self, name)[rows] for name in PER_FEED}
        return replace(self, **own)


class FeedPlan(NamedTuple):
    """Hold schedules of n feeds, and the posts saved by the last allocated visit.

    value, worth, bound: (n,) as in `plan.Plan`
    """

    schedules: Schedules
    value: Floats
    worth: Floats
    bound: NDArray[np.uint8]
    price: float


class Columns(NamedTuple):
    """Hold the input of the kernels for m feeds; see Posting and FeedLimits."""

    per_week: Floats
    batch: Floats
    first: Ints
    cell: NDArray[np.uint8]
    common: Floats
    window: Ints
    worth: Floats
    min_hours: Floats
    max_hours: Floats
    phase: Ints
    site: Ints
    open_hours: Flags


def optimal_schedules(
    posting: Posting,
    limits: FeedLimits,
    current: Schedules,
    *,
    visits_per_week: float = np.inf,
    price: float | None = None,
) -> FeedPlan:
    """Return the schedules that save the most posts with `visits_per_week`, or at a price.

    current: (n,) schedules so far, `Schedules.none` if there are none
    price:   posts that a visit must save

    Slots are hours of the same clock as the times given to `posting`. Raises BudgetTooSmall if the
    visits do not keep every feed's longest interval.
    """
    if price is not None:
        candidates, allocation = _allocated(posting, limits, current, np.inf, price)
    else:
        candidates, allocation = _within(posting, limits, current, visits_per_week)
    if (needed := least_visits(candidates.steps)) > visits_per_week * (1 + 1e-6):
        raise BudgetTooSmall(needed / WEEK_DAYS, len(limits))
    last = allocation.price if price is None else price
    new = schedules_of(allocation.chosen, candidates, limits.key, FEED_CYCLES)

    # Refine the new schedules by local search; keep current ones if a new one is hardly better.
    slots, kept = new.slots.astype(np.int64), np.zeros(len(new), np.bool_)
    old_slots = current.slots.astype(np.int64)

    def work(part: Part) -> None:
        first, old = (s.first[part.start : part.stop + 1] for s in (new, current))
        own, current_slots = slots[first[0] : first[-1]], old_slots[old[0] : old[-1]]
        weeks = new.weeks[part].astype(np.int64), current.weeks[part].astype(np.int64)
        f, begins = _columns(posting, limits, part), (first - first[0], old - old[0])
        _settle(f, last, weeks, begins, own, current_slots, kept[part])

    spread_over(work, parts(len(new)))
    refined = replace(new, slots=slots.astype(np.uint16))
    return FeedPlan(chosen_of(kept, current, refined), *why(candidates, allocation.chosen), last)


def _allocated(
    posting: Posting, limits: FeedLimits, current: Schedules, visits: float, least: float
) -> tuple[Candidates, Allocation]:
    """Allocate visits among the candidates worth more than `least`; at least the mandatory ones."""
    candidates = candidates_of(posting, limits, least)
    visits = max(visits, least_visits(candidates.steps))
    return candidates, allocate(candidates.steps, limits.key, visits, current.visits_per_week)


def _within(
    posting: Posting, limits: FeedLimits, current: Schedules, visits: float
) -> tuple[Candidates, Allocation]:
    """Allocate a number of visits, adding cheaper candidates until there are enough.

    If there are very many feeds, a sample determines the price.
    """
    least, n = FIRST_MIN_VALUE * MIN_VALUE_SHARE, len(limits)
    if n > MAX_SAMPLE:
        rows = np.argsort(limits.key)[:MAX_SAMPLE]
        sample = posting.of(rows), limits.of(rows), current.of(rows)
        least = max(
            _within(*sample, visits * MAX_SAMPLE / n)[1].price * MIN_VALUE_SHARE, LOWEST_PRICE
        )
    while True:
        candidates, allocation = _allocated(posting, limits, current, visits, least)
        if not allocation.exhausted or least <= LOWEST_PRICE:
            return candidates, allocation
        least = max(least * CHEAPER, LOWEST_PRICE)


def candidates_of(posting: Posting, limits: FeedLimits, least: float) -> Candidates:
    """Return the candidate steps of all feeds whose value exceeds `least` per visit."""
    return joined(
        spread_over(
            lambda part: _candidates(_columns(posting, limits, part), least), parts(len(limits))
        )
    )


def _columns(posting: Posting, limits: FeedLimits, part: Part) -> Columns:
    """Return the input of the kernels for the feeds of a part."""
    cells = posting.cells_of(part)
    return Columns(
        posting.per_week[part],
        posting.batch[part],
        cells.first,
        cells.hour,
        posting.common,
        limits.window[part],
        limits.weight[part] / limits.cost[part],
        limits.min_hours[part],
        limits.max_hours[part],
        (limits.key[part] % np.uint64(WEEK_HOURS)).astype(np.int64),
        limits.site[part],
        limits.open_hours,
    )


@compiled
def _course(f: Columns, i: int) -> Course:
    """Return the expected posts and the losses of one feed."""
    profile = profile_of(f.cell[f.first[i] : f.first[i + 1]], f.common)
    mass, lever = course(profile, f.per_week[i])
    most = FEED_CYCLES[0] * f.per_week[i]
    return Course(mass, lever, table(most, f.batch[i], f.window[i]), DELAY_PER_DAY / DAY_HOURS)


@compiled
def _room(f: Columns, i: int, begin: int) -> Room:
    """Return the room in the week that starts at hour `begin`."""
    open_hours = f.open_hours[f.site[i]]
    end = begin + WEEK_HOURS
    return Room(begin, end, open_hours, f.min_hours[i], f.max_hours[i])


@compiled
def _best_single(c: Course, room: Room, weeks: int, phase: int, slope: float) -> tuple[float, int]:
    """Return the cost per week of one visit every `weeks` weeks at its best hour, and that hour.

    Among equivalent hours, the first from `phase` is taken, as if each later one cost `slope`.
    """
    best, cost, where = np.inf, np.inf, -1
    for late in range(WEEK_HOURS):
        z = (phase + late) % WEEK_HOURS
        if room.open_hours[z]:
            visit_cost = interval_cost(c, z, z + weeks * WEEK_HOURS) / weeks
            if visit_cost + slope * late < best:
                best, cost, where = visit_cost + slope * late, visit_cost, z
    return cost, where


@compiled
def _options(
    c: Course, f: Columns, i: int, least: float
) -> tuple[Floats, Floats, Ints, Ints, Ints, bool]:
    """Return visits, value and options of the steps, rare hours, slots, and whether full."""
    slope = INDIFFERENCE * least / WEEK_HOURS
    room = _room(f, i, 0)
    rare, single = np.full(CYCLES, -1), np.full(CYCLES, np.inf)
    for k in range(CYCLES):
        single[k], rare[k] = _best_single(c, room, FEED_CYCLES[k], f.phase[i], slope)
    # The first slot of a week is that of one visit a week.
    saved, order, needed, full = insert(c, _room(f, i, rare[RARE]), least, WEEK_HOURS - 1)
    slots = np.empty(len(order) + 1, np.int64)
    slots[0] = rare[RARE]
    slots[1:] = order % WEEK_HOURS
    size = CYCLES + len(saved)
    more, gain = np.ones(size), np.empty(size)
    must, end = 1, size
    for k in range(CYCLES):
        weeks = FEED_CYCLES[k]
        more[k] = 1 / weeks - (1 / FEED_CYCLES[k - 1] if k else 0.0)
        gain[k] = single[k - 1] - single[k] if k else 0.0
        if weeks * WEEK_HOURS > f.max_hours[i]:
            must = min(k + 2, CYCLES)
        if weeks * WEEK_HOURS < f.min_hours[i]:
            end = min(end, max(k, 1))
    gain[CYCLES:] = saved
    must = CYCLES + needed if needed else must
    visits, value, last = hull(more[:end], gain[:end], min(must, end))
    kept = 1
    while kept < len(value) and value[kept] > least:
        kept += 1
    return np.cumsum(visits[:kept]), value[:kept], last[:kept], rare, slots, full or end < size


@compiled
def _candidates(f: Columns, least: float) -> tuple[NDArray[Any], ...]:
    """Compute the candidate steps of m feeds, as columns for `joined`."""
    m = len(f.worth)
    size = m * (CYCLES + WEEK_HOURS)
    counts, slots = np.empty(m, np.int64), np.empty(m, np.int64)
    visits, value = np.empty(size, np.float32), np.empty(size, np.float32)
    option, order = np.empty(size, np.uint8), np.empty(size, np.uint8)
    rare, full = np.empty((m, RARE), np.int16), np.empty(m, np.bool_)
    used, placed = 0, 0
    for i in range(m):
        worth = f.worth[i]
        often, saves, last, hour, slot, full[i] = _options(_course(f, i), f, i, least / worth)
        counts[i], slots[i] = len(last), len(slot)
        rare[i] = hour[:RARE]
        for j in range(len(last)):
            visits[used], value[used], option[used] = often[j], saves[j] * worth, last[j]
            used += 1
        for j in range(len(slot)):
            order[placed] = slot[j]
            placed += 1
    return (
        counts, visits[:used].copy(), value[:used].copy(), option[:used].copy(), rare, slots,
        order[:placed].copy(), full,
    )  # fmt: skip


@compiled
def _settle(
    f: Columns, price: float, weeks: tuple[Ints, Ints], first: tuple[Ints, Ints], slots: Ints,
    before: Ints, kept: Flags,
) -> None:  # fmt: skip
    """Refine the new slots in place, and mark feeds that keep their current schedule."""
    for i in range(len(kept)):
        c, room = _course(f, i), _room(f, i, 0)
        own = slots[first[0][i] : first[0][i + 1]]
        if weeks[0][i] == 1 and len(own) > 1:
            own[:] = _refined(c, f, i, own)
        old = before[first[1][i] : first[1][i + 1]]
        same = len(old) * weeks[0][i] == len(own) * weeks[1][i]
        if same and _allows(room, weeks[1][i], old):
            saved = cycle_cost(c, weeks[1][i], old) - cycle_cost(c, weeks[0][i], own)
            kept[i] = saved <= DEAD_BAND * price / f.worth[i]


@compiled
def _refined(c: Course, f: Columns, i: int, slots: Ints) -> Ints:
    """Move each slot of a week to its best hour between its neighbors; return them sorted."""
    at = np.sort(slots)
    for place in (0, len(at) // 2):
        begin = at[place]
        others = np.append(at[place + 1 :], at[:place] + WEEK_HOURS)
        at[0], at[1:] = begin, refine(c, _room(f, i, begin), others) % WEEK_HOURS
        at = np.sort(at)
    return at


@compiled
def cycle_cost(c: Course, weeks: int, slots: Ints) -> float:
    """Return the cost per week of slots (ascending hours of a cycle of `weeks` weeks)."""
    cost = 0.0
    for j in range(len(slots)):
        later = slots[j + 1] if j + 1 < len(slots) else slots[0] + weeks * WEEK_HOURS
        begin = slots[j] % WEEK_HOURS
        cost += interval_cost(c, begin, begin + later - slots[j])
    return cost / weeks


@compiled
def _allows(room: Room, weeks: int, slots: Ints) -> bool:
    """Return whether slots keep the limits: open hours, and intervals of allowed length."""
    for j in range(len(slots)):
        later = slots[j + 1] if j + 1 < len(slots) else slots[0] + weeks * WEEK_HOURS
        hours = later - slots[j]
        is_open = room.open_hours[slots[j] % WEEK_HOURS]
        if not is_open or hours < room.min_hours or hours > room.max_hours:
            return False
    return len(slots) > 0


@compiled
def hull(more: Floats, saved: Floats, needed: int) -> tuple[Floats, Floats, Ints]:
    """Return the steps of decreasing value: visits added, saving per visit, and last item of each.

    more:   (k,) visits that each item adds
    saved:  (k,) saving of each item
    needed: number of first items that are mandatory; they form one step of infinite value
    """
    count, value = np.empty(len(saved)), np.empty(len(saved))
    last = np.empty(len(saved), np.int64)
    k = 0
    for i in range(len(saved)):
        visits, worth = more[i], saved[i] / more[i]
        if i < needed:
            worth = np.inf
        while k and (value[k - 1] <= worth):
            if worth < np.inf:
                worth = (worth * visits + value[k - 1] * count[k - 1]) / (visits + count[k - 1])
            visits += count[k - 1]
            k -= 1
        count[k], value[k], last[k] = visits, worth, i
        k += 1
    return count[:k], value[:k], last[:k]
