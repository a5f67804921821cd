"""Balance the load of weeks, days and hours, and keep the caps.

Rare visits move between weeks until weeks differ by at most one visit. A day above its cap gets a
surcharge, with which the allocation is repeated. Hours have no surcharge, because an hour more or
less costs a visit little: each visit moves to the nearest hour that the caps, the site's visiting
hours and the target's intervals allow. Current slots stay unless a move brings them closer to the
drawn slots, so that a replan does not level an already leveled plan differently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.compiled import compiled
from schedules.history import DAY_HOURS, Flags, Floats, Ints
from schedules.population import MONDAY_HOURS, Keys, Population
from schedules.schedule import ROUND_WEEKS, WEEK_HOURS, Schedules, chosen_of, replace_slots
from schedules.terms import Terms

NEVER = 2**31
PLACES = ROUND_WEEKS + 1
DAYS = 7
CAPS_ROUNDS = 40
# The step is initially this share of a load's distance from its cap, both as logarithms. It grows
# while the load stays on one side of the cap, and shrinks when the load crosses it.
FIRST_STEP, MAX_STEP = 0.5, 1.0
STEP_GROWTH, STEP_SHRINK = 1.2, 0.5
# Ratios of load to cap are clipped to this factor on either side of 1.
MAX_RATIO = 20.0
TOLERANCE = 0.01
# Loads are whole numbers, so that sums do not depend on their order. A weekly visit counts PARTS, a
# rarer one proportionally fewer.
PARTS = ROUND_WEEKS
UNCAPPED = 2**62
# A visit before its best hour misses the changes until then, so an hour earlier costs as much as
# this many hours later.
EARLIER = 4
# Moving to other hours must save this share of the distance to the drawn hours.
DEAD_BAND = 0.5
# A target that leaves an hour makes room for another one, so repeat.
ROUNDS = 3
# Sites that need more than this share of their available hours are leveled first, because they
# cannot use what others leave.
CROWDED = 0.5
Loads = Callable[[Floats], tuple[Floats, float]]


class Rare(NamedTuple):
    """Hold the r targets with one visit in a cycle of several weeks.

    rows, weeks: (r,)
    week, hour:  (r,) position of the slot in its cycle
    soonest:     (r,) first week in which the hour is still ahead
    latest:      (r,) last week within one cycle after the last observation
    limit:       (r,) last week within the longest interval after the last observation

    The last three are numbers of local weeks since Monday 1970-01-05.
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
        """Select them from n targets.

        last: (n,) last observation, NaN if there was none; like `now` in hours since 1970 (UTC)
        """
        rows = np.flatnonzero((schedules.weeks > 1) & (np.diff(schedules.first) == 1))
        last = _last_seen(population, last, now)
        weeks = schedules.weeks[rows].astype(np.int64)
        week, hour = np.divmod(schedules.slots[schedules.first[rows]].astype(np.int64), WEEK_HOURS)
        clock = population.ahead(now)[population.site[rows]] - MONDAY_HOURS - hour
        soonest = np.floor((now + clock) / WEEK_HOURS).astype(np.int64) + 1
        seen = np.nan_to_num(last[rows] + clock, nan=NEVER)
        latest = np.floor(seen / WEEK_HOURS).astype(np.int64) + weeks
        limit = np.floor((seen + population.max_hours[rows]) / WEEK_HOURS).astype(np.int64)
        return cls(rows, weeks, week, hour, soonest, latest, limit)

    def coming(self, week: Ints) -> Ints:
        """Return the (r,) first upcoming week that is this week of the cycle."""
        return self.soonest + (week - self.soonest) % self.weeks

    def best_move(
        self, load: Ints, waiting: dict[tuple[int, int], list[int]]
    ) -> tuple[int, int, int] | None:
        """Return a cycle length and two of its weeks between which a move evens the load most.

        load:    (ROUND_WEEKS,) visits of each week
        waiting: indices of the targets that may move, by cycle length and week; the last one moves
                 first
        """
        best, least = None, 0
        for length in sorted({length for length, _ in waiting}):
            by_phase = [int(load[phase::length].sum()) for phase in range(length)]
            size = ROUND_WEEKS // length
            for old in (phase for phase in range(length) if waiting[length, phase]):
                for new in (phase for phase in range(length) if phase != old):
                    # Change of the sum of squared loads.
                    change = 2 * (by_phase[new] - by_phase[old] + size)
                    place = waiting[length, old][-1]
                    soonest = int(self.soonest[place])
                    in_time = soonest + (new - soonest) % length <= self.limit[place]
                    if change < least and in_time:
                        best, least = (length, old, new), change
        return best

    def put(self, schedules: Schedules, at: Ints) -> Schedules:
        """Return the schedules with these hours, counted like the weeks."""
        return replace_slots(schedules, self.rows, at % (self.weeks * WEEK_HOURS))


def _last_seen(population: Population, last: Floats, now: float) -> Floats:
    """Return the (n,) last observation; now for overdue targets, which are visited immediately."""
    seen: Floats = np.where(last + population.max_hours < now, now, last)
    return seen


def even_phase(key: Keys) -> Floats:
    """Return the (n,) pseudorandom but fixed start of each target in its interval, in [0, 1)."""
    return key.astype(np.float64) / 2.0**64


def first_weeks(weeks: Ints, key: Keys) -> Ints:
    """Return the (n,) week of each target in its cycle, spread as evenly as possible."""
    order = np.lexsort((key, weeks))
    begins = np.searchsorted(weeks[order], weeks[order], side="left")
    result = np.empty(len(weeks), np.int64)
    result[order] = (np.arange(len(weeks)) - begins) % weeks[order]
    return result


def in_time(
    schedules: Schedules, moved: Flags, population: Population, last: Floats, now: float
) -> Schedules:
    """Return the schedules with rare visits of moved targets at most one cycle after the last one.

    updated: (n,) flags of the targets with new schedules
    last:  (n,) last observation, NaN if there was none; like `now` in hours since 1970 (UTC)

    Without this rule, a target whose week changes in every replan would be skipped again and again.
    If the slot comes too late for the longest interval, the target keeps the hour of its last
    visit: it would be visited then anyway, and once more at its slot.
    """
    rare = Rare.of(schedules, population, last, now)
    week = rare.coming(rare.week)
    room = np.clip(rare.latest - rare.soonest + 1, 1, rare.weeks)
    at = np.where(week > rare.latest, rare.soonest + rare.week % room, week)
    at = at * WEEK_HOURS + rare.hour
    clock = population.ahead(now)[population.site[rare.rows]] - MONDAY_HOURS
    limit = _last_seen(population, last, now)[rare.rows] + population.max_hours[rare.rows] + clock
    limit = np.floor(np.nan_to_num(limit, nan=NEVER)).astype(np.int64)
    opened = population.open_hours[population.site[rare.rows], limit % WEEK_HOURS]
    at = np.where((at > limit) & (limit > now + clock) & opened, limit, at)
    same = rare.week * WEEK_HOURS + rare.hour
    return rare.put(schedules, np.where(moved[rare.rows], at, same))


def balanced(schedules: Schedules, population: Population, last: Floats, now: float) -> Schedules:
    """Return the schedules with a few rare visits moved between weeks that differ by two or more.

    last, now: as in `in_time`. No visit moves past its longest interval.
    """
    rare = Rare.of(schedules, population, last, now)
    # Recently visited targets can wait, so they move first.
    order = np.lexsort((population.key[rare.rows], rare.latest)).tolist()
    week = rare.week.copy()
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    load = np.zeros(ROUND_WEEKS, np.int64)
    for place in order:
        length, phase = int(rare.weeks[place]), int(week[place])
        waiting[length, phase].append(place)
        load[phase::length] += 1
    for _ in order:
        if (move := rare.best_move(load, waiting)) is None:
            break
        length, old, new = move
        place = waiting[length, old].pop()
        waiting[length, new].append(place)
        week[place] = new
        load[old::length] -= 1
        load[new::length] += 1
    return rare.put(schedules, week * WEEK_HOURS + rare.hour)


def fullest_week(schedules: Schedules) -> float:
    """Return the number of visits in the fullest week of the round."""
    even = float(schedules.visits_per_week[schedules.every_hours > 0].sum())
    cycle = np.repeat(schedules.weeks.astype(np.int64), np.diff(schedules.first))
    place, count = np.unique(cycle * PLACES + schedules.slots // WEEK_HOURS, return_counts=True)
    load = np.full(ROUND_WEEKS, even)
    for length, phase, visits in zip(*np.divmod(place, PLACES), count, strict=True):
        load[phase::length] += visits
    return float(load.max())


@dataclass(frozen=True, slots=True)
class Caps:
    """Hold the maximum requests per day and hour, of all sites and of each site (s,)."""

    day: float
    hour: float
    site_day: Floats
    site_hour: Floats

    @classmethod
    def of(cls, terms: Terms, population: Population, share: float = 1.0) -> Caps:
        """Return the caps of a plan, or a share of them for a sample of its targets."""
        day, hour = terms.daily_cap or np.inf, terms.hourly_cap or np.inf
        site = population.site_day * share, population.site_hour * share
        return cls(day * share, hour * share, *site)

    @property
    def by_day(self) -> bool:
        """Return whether any day is capped."""
        return bool(np.isfinite(self.day) or np.isfinite(self.site_day).any())

    @property
    def by_hour(self) -> bool:
        """Return whether any hour is capped."""
        return bool(np.isfinite(self.hour) or np.isfinite(self.site_hour).any())


def day_surcharges(loads: Loads, caps: Caps, sites: int) -> Floats:
    """Return the (s, 7) surcharge of a visit on each UTC day of the week, by site.

    loads: returns the (s, 7) visits of each site on each day, and the price, under given surcharges
    """
    common, own = _DaySurcharges(DAYS), _DaySurcharges((sites, DAYS))
    best, least = common.surcharge + own.surcharge, np.inf
    for _ in range(CAPS_ROUNDS if caps.by_day else 0):
        load, price = loads(common.surcharge + own.surcharge)
        used, site_used = load.sum(0) / caps.day, load / caps.site_day[:, None]
        worst = max(used.max(), site_used.max()) - 1
        if worst < least:
            best, least = common.surcharge + own.surcharge, worst
        if worst <= TOLERANCE:
            break
        common.move(used, price)
        own.move(site_used, price + common.surcharge)
    return best


class _DaySurcharges:
    """Adjust a surcharge per day until the load meets the cap.

    Steps are relative to the full price of a day (request and surcharge). If few targets use the
    quiet days, the price of a request falls to almost nothing, and the surcharges of the other days
    replace it.
    """

    def __init__(self, shape: int | tuple[int, int]) -> None:
        self.surcharge, self.over = np.zeros(shape), np.zeros(shape)
        self.step = np.full(shape, FIRST_STEP)

    def move(self, used: Floats, price: Floats | float) -> None:
        """Make one step. used: load over cap; price: of a visit without this surcharge."""
        over = np.log(np.clip(used, 1 / MAX_RATIO, MAX_RATIO))
        swings = over * self.over < 0
        bolder = np.minimum(self.step * STEP_GROWTH, MAX_STEP)
        self.step, self.over = np.where(swings, self.step * STEP_SHRINK, bolder), over
        whole = (price + self.surcharge) * np.exp(np.clip(self.step * over, -1, 1))
        self.surcharge = np.maximum(whole - price, 0)


def shifted(schedules: Schedules, offset: Ints) -> Ints:
    """Return the (k,) UTC hour of the week of each slot. offset: (n,) hours ahead of UTC."""
    ahead = np.repeat(offset, np.diff(schedules.first))
    return (schedules.slots.astype(np.int64) - ahead) % WEEK_HOURS


def site_days(schedules: Schedules, offset: Ints, site: Ints, sites: int) -> Floats:
    """Return the (s, 7) mean visits of each site on each UTC day of the week."""
    count = np.diff(schedules.first)
    day = shifted(schedules, offset) // DAY_HOURS
    place = np.repeat(site, count) * DAYS + day
    weight = np.repeat(1 / schedules.weeks, count)
    visits = np.bincount(place, weight, sites * DAYS).astype(np.float64)
    return visits.reshape(sites, DAYS)


class _Room(NamedTuple):
    """Hold the remaining room in parts, and the visiting hours.

    common: (168,) by hour of the UTC week
    own:    (s, 168) of each site
    opened: (s, 168) by hour of the local week
    """

    common: Ints
    own: NDArray[np.int64]
    opened: Flags


class _Targets(NamedTuple):
    """Hold n targets for the kernels.

    first:       (n + 1,) offsets into slots
    cycle:       (n,) length in hours
    site:        (n,)
    ahead:       (n,) hours ahead of UTC
    least, most: (n,) shortest and longest hours between two visits
    """

    first: Ints
    cycle: Ints
    site: Ints
    ahead: Ints
    least: Floats
    most: Floats


class _Target(NamedTuple):
    """Hold one of the targets. part: room that a visit takes in an hour."""

    part: int
    cycle: int
    site: int
    ahead: int
    least: float
    most: float


def leveled(
    drawn: Schedules, current: Schedules, population: Population, caps: Caps, ahead: Ints
) -> Schedules:
    """Return the drawn schedules with no UTC hour of the week above its caps, if there is room.

    current: schedules so far
    ahead:   (s,) hours that each site's clock is ahead of UTC
    """
    # The limits are no tighter than those that the drawn schedules keep.
    cycle, site = drawn.weeks.astype(np.int64) * WEEK_HOURS, population.site
    shortest, longest = np.maximum(population.min_hours, 1.0), population.max_hours.copy()
    targets = _Targets(drawn.first, cycle, site, ahead[site], shortest, longest)
    _relax_limits(targets, drawn.slots)

    # Compare single slots in the week nearest to the drawn one, because the week is chosen
    # elsewhere.
    single = (np.diff(current.first) == 1) & (np.diff(drawn.first) == 1)
    rows = np.flatnonzero(single & (current.weeks == drawn.weeks))
    wanted = drawn.slots[drawn.first[rows]].astype(np.int64)
    shift = current.slots[current.first[rows]] - wanted + WEEK_HOURS // 2
    nearest = (wanted + shift % WEEK_HOURS - WEEK_HOURS // 2) % cycle[rows]
    current = replace_slots(current, rows, nearest)

    slots = drawn.slots.astype(np.int64)
    had = (drawn.weeks == current.weeks) & (np.diff(drawn.first) == np.diff(current.first))
    had &= _allowed(targets, population.open_hours, current.first, current.slots, had)
    begun = chosen_of(had, current, drawn).slots.astype(np.int64)
    opened = population.open_hours
    common, own = np.full(WEEK_HOURS, caps.hour), np.repeat(caps.site_hour, WEEK_HOURS)
    room = _Room(_parts(common), _parts(own).reshape(opened.shape), opened)
    # Sites that need much of their own caps go first. New targets go last.
    needed = PARTS * WEEK_HOURS // cycle * np.diff(drawn.first)
    has = np.where(opened, room.own.astype(np.float64), 0).sum(1)
    crowded: Flags = np.bincount(site, needed, len(has)) > CROWDED * has
    order = np.lexsort((population.key, ~had))
    first = crowded[site[order]]
    for rows in (order[first], order[~first]):
        _level(room, targets, slots, begun, rows)
    return replace(drawn, slots=begun.astype(np.uint16))


def _parts(cap: Floats) -> Ints:
    """Return caps in parts; UNCAPPED for inf."""
    parts = np.minimum(cap * PARTS * (1 + 1e-9), UNCAPPED)
    return np.floor(parts).astype(np.int64)


@compiled
def _relax_limits(t: _Targets, slots: NDArray[np.uint16]) -> None:
    """Widen the limits of targets in place, to include the intervals of these slots."""
    for i in range(len(t.cycle)):
        for j in range(t.first[i], t.first[i + 1]):
            gap = _gap(slots, j, t.first[i], t.first[i + 1], t.cycle[i])
            t.least[i], t.most[i] = min(t.least[i], gap), max(t.most[i], gap)


@compiled
def _gap(slots: NDArray[np.uint16], j: int, begin: int, end: int, cycle: int) -> int:
    """Return the hours from slot j to the next of the slots from `begin` to `end`."""
    later = int(slots[j + 1]) if j + 1 < end else int(slots[begin]) + cycle
    return later - int(slots[j])


@compiled
def _allowed(
    t: _Targets, opened: Flags, first: Ints, slots: NDArray[np.uint16], candidates: Flags
) -> Flags:
    """Return (n,) flags of the candidates that keep their limits with these slots."""
    allowed = candidates.copy()
    for i in np.flatnonzero(candidates):
        for j in range(first[i], first[i + 1]):
            gap = _gap(slots, j, first[i], first[i + 1], t.cycle[i])
            allowed[i] &= opened[t.site[i], slots[j] % WEEK_HOURS]
            allowed[i] &= t.least[i] <= gap <= t.most[i]
    return allowed


@compiled
def _level(room: _Room, t: _Targets, drawn: Ints, slots: Ints, order: Ints) -> None:
    """Move slots in place, from their current hours toward the drawn ones."""
    placed = np.zeros(len(slots), np.bool_)
    for i in order:
        begin, end = t.first[i], t.first[i + 1]
        _take_room(room, _target(t, i), slots[begin:end], placed[begin:end])
    for _ in range(ROUNDS):
        moved = False
        for i in order:
            begin, end = t.first[i], t.first[i + 1]
            wanted, had, fine = drawn[begin:end], slots[begin:end], placed[begin:end]
            if not (np.all(fine) and np.all(wanted == had)):
                moved |= _try_move(room, _target(t, i), wanted, had, fine)
        if not moved:
            break


@compiled
def _target(t: _Targets, i: int) -> _Target:
    """Return one of the targets."""
    part = PARTS * WEEK_HOURS // t.cycle[i]
    return _Target(part, t.cycle[i], t.site[i], t.ahead[i], t.least[i], t.most[i])


@compiled
def _try_move(room: _Room, target: _Target, drawn: Ints, slots: Ints, placed: Flags) -> bool:
    """Try to move a target closer to the drawn slots; return whether there was room."""
    _add_room(room, target, slots[placed], target.part)
    tried, fits = drawn.copy(), np.zeros(len(drawn), np.bool_)
    _take_room(room, target, tried, fits)
    for j in range(len(tried)):
        if not fits[j]:
            # Take the nearest room; an earlier hour only if it is much nearer.
            later, earlier = (
                _nearest_room(room, target, tried, j, 1),
                _nearest_room(room, target, tried, j, -1),
            )
            way = later if earlier == 0 or 0 < later <= EARLIER * earlier else -earlier
            tried[j], fits[j] = (tried[j] + way) % target.cycle, way != 0
            if fits[j]:
                _add_room(room, target, tried[j : j + 1], -target.part)
    gained = int(np.sum(fits)) - int(np.sum(placed))
    far, was = _distance(drawn, tried, target.cycle), _distance(drawn, slots, target.cycle)
    if gained > 0 or (gained == 0 and far < (1 - DEAD_BAND) * was):
        order = np.argsort(tried)
        slots[:], placed[:] = tried[order], fits[order]
        return True
    _add_room(room, target, tried[fits], target.part)
    _add_room(room, target, slots[placed], -target.part)
    return False


@compiled
def _take_room(room: _Room, target: _Target, slots: Ints, placed: Flags) -> None:
    """Take the room that slots need, and mark those that got it."""
    for j in range(len(slots)):
        placed[j] = _has_room(room, target, slots[j])
        if placed[j]:
            _add_room(room, target, slots[j : j + 1], -target.part)


@compiled
def _has_room(room: _Room, target: _Target, slot: int) -> bool:
    """Return whether an hour has room for one more visit."""
    hour = (slot - target.ahead) % WEEK_HOURS
    return bool(min(room.common[hour], room.own[target.site, hour]) >= target.part)


@compiled
def _add_room(room: _Room, target: _Target, slots: Ints, part: int) -> None:
    """Change the room in the hours of these slots."""
    for slot in slots:
        hour = (slot - target.ahead) % WEEK_HOURS
        room.common[hour] += part
        room.own[target.site, hour] += part


@compiled
def _nearest_room(room: _Room, target: _Target, slots: Ints, j: int, step: int) -> int:
    """Return how many steps from slot j an open hour has room and keeps the limits; 0: none."""
    left, right = _neighbors(target.cycle, slots, j, slots[j])
    for way in range(1, WEEK_HOURS):
        at = slots[j] + step * way
        if not (room.opened[target.site, at % WEEK_HOURS] and _has_room(room, target, at)):
            continue
        # With slot j there, no interval may be shorter or longer than allowed.
        before, after = _neighbors(target.cycle, slots, j, at)
        between = (at - slots[j]) % target.cycle < right or (slots[j] - at) % target.cycle < left
        longest = max(before, after) if between else max(before, after, left + right)
        if target.least <= min(before, after) and longest <= target.most:
            return way
    return 0


@compiled
def _neighbors(cycle: int, slots: Ints, j: int, at: int) -> tuple[int, int]:
    """Return the hours from the previous slot to an hour, and to the next, ignoring slot j."""
    before, after = cycle, cycle
    for k in range(len(slots)):
        if k != j:
            before = min(before, (at - slots[k]) % cycle)
            after = min(after, (slots[k] - at) % cycle)
    return before, after


@compiled
def _distance(drawn: Ints, slots: Ints, cycle: int) -> int:
    """Return the hours between drawn and other slots, for the best order-keeping pairing."""
    n, least = len(drawn), UNCAPPED
    for turn in range(n):
        total = 0
        for j in range(n):
            later = (slots[(j + turn) % n] - drawn[j]) % cycle
            total += min(later, EARLIER * (cycle - later))
        least = min(least, total)
    return least
