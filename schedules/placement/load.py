"""Balance the load of weeks and days, and describe the caps.

Rare visits move between weeks until weeks differ by at most one visit. A day above its cap gets a
surcharge, with which the allocation is repeated. Hours are not balanced: a crawl makes the visits
that exceed an hourly cap in later hours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from schedules.history import DAY_HOURS, Flags, Floats, Ints
from schedules.population import MONDAY_HOURS, InMemory, Keys, Population, Shards
from schedules.schedule import (
    ROUND_WEEKS,
    VISIT_PARTS,
    WEEK_HOURS,
    Schedules,
    in_parts,
    replace_slots,
)
from schedules.terms import Terms

NEVER = 2**31
PLACES = ROUND_WEEKS + 1
# Rare visits of each cycle and week that shards offer to move, and the factor if more are needed.
FIRST_MOVABLE, MORE_MOVABLE = 64, 16
DAYS = 7
CAPS_ROUNDS = 40
# The step is initially this share of a load's distance from its cap, both as logarithms. It grows
# while the load stays on one side of the cap, and shrinks when the load crosses it.
FIRST_STEP, MAX_STEP = 0.5, 1.0
STEP_GROWTH, STEP_SHRINK = 1.2, 0.5
# Visits that are at most this late are not a backlog.
FREE_HOURS = 1.0
# Ratios of load to cap are clipped to this factor on either side of 1.
MAX_RATIO = 20.0
TOLERANCE = 0.01
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
        """Select the rare targets among n targets.

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

    def put(self, schedules: Schedules, at: Ints) -> Schedules:
        """Return the schedules with slots at these hours, counted from the Monday of the weeks."""
        return replace_slots(schedules, self.rows, at % (self.weeks * WEEK_HOURS))


def _last_seen(population: Population, last: Floats, now: float) -> Floats:
    """Return the (n,) last observation; now for overdue targets, which are visited immediately."""
    seen: Floats = np.where(last + population.max_hours < now, now, last)
    return seen


def even_phase(key: Keys) -> Floats:
    """Return the (n,) pseudorandom but fixed start of each target in its interval, in [0, 1)."""
    return key.astype(np.float64) / 2.0**64


def first_weeks(weeks: Ints, key: Keys, before: Ints | None = None) -> Ints:
    """Return the (n,) week of each target in its cycle, spread as evenly as possible.

    before: (PLACES,) number of targets with each cycle in earlier shards
    """
    order = np.lexsort((key, weeks))
    begins = np.searchsorted(weeks[order], weeks[order], side="left")
    rank = np.arange(len(weeks)) - begins
    if before is not None:
        rank += before[weeks[order]]
    result = np.empty(len(weeks), np.int64)
    result[order] = rank % weeks[order]
    return result


def in_time(
    schedules: Schedules, moved: Flags, population: Population, last: Floats, now: float
) -> Schedules:
    """Return the schedules with rare visits of moved targets at most one cycle after the last one.

    moved: (n,) flags of the targets with new schedules
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


def resumed(
    schedules: Schedules, current: Schedules, population: Population, now: float
) -> Schedules:
    """Return the schedules with even intervals that go on from the current schedules.

    now: in hours since 1970 (UTC)

    The rest of a current interval becomes the same share of the new one. If every replan began new
    intervals at other times, targets would be visited too late or twice.
    """
    is_planned = (current.every_hours > 0) | (np.diff(current.first) > 0)
    rows = np.flatnonzero((schedules.every_hours > 0) & is_planned)
    old, every = current.of(rows), schedules.every_hours[rows]
    usual = WEEK_HOURS / old.visits_per_week
    ahead = (now + population.ahead(now) - MONDAY_HOURS)[population.site[rows]]
    owner = np.repeat(np.arange(len(rows)), np.diff(old.first))
    cycle = (old.weeks.astype(np.int64) * WEEK_HOURS)[owner]
    wait = np.where(old.every_hours > 0, (old.phase_hours - now) % usual, usual)
    np.minimum.at(wait, owner, (old.slots - ahead[owner]) % cycle)
    phase = schedules.phase_hours.copy()
    continued = (now + wait * every / usual) % every
    phase[rows] = np.where(old.every_hours == every, old.phase_hours, continued)
    return replace(schedules, phase_hours=phase)


@dataclass
class PlacedShard:
    """Hold the new schedules of a shard's targets.

    last:    (n,) last visits, in hours since 1970
    current: schedules so far
    """

    population: Population
    last: Floats
    current: Schedules
    schedules: Schedules


def coming_visits(shard: PlacedShard, now: float) -> Ints:
    """Return the (168,) visits of a shard in each of the coming hours. now: as in `resumed`."""
    schedules, population = shard.schedules, shard.population
    rows = np.flatnonzero(schedules.every_hours > 0)
    every = schedules.every_hours[rows]
    wait = (schedules.phase_hours[rows] - now) % every
    times = np.maximum(np.ceil((WEEK_HOURS - wait) / every), 0).astype(np.int64)
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    at = np.repeat(wait, times) + nth * np.repeat(every, times)
    owner = np.repeat(np.arange(len(schedules)), np.diff(schedules.first))
    cycle = schedules.weeks.astype(np.int64)[owner] * WEEK_HOURS
    clock = (now + population.ahead(now) - MONDAY_HOURS)[population.site[owner]]
    slots = (schedules.slots - clock) % cycle
    hours = np.concatenate([at, slots[slots < WEEK_HOURS]]).astype(np.int64)
    return np.bincount(np.minimum(hours, WEEK_HOURS - 1), minlength=WEEK_HOURS)


def delays_of(visits: Ints, per_hour: float) -> Floats:
    """Return the (169,) delays in hours that keep the coming visits within the budget.

    visits:   (168,) number in each hour
    per_hour: mean number of visits

    The delays are those of a queue from which visits leave in the order of their times.
    """
    hours = np.arange(WEEK_HOURS + 1)
    surplus = np.concatenate([[0], np.cumsum(visits)]) - per_hour * hours
    backlog = surplus - np.minimum.accumulate(surplus)
    delays: Floats = np.maximum(backlog / per_hour - FREE_HOURS, 0)
    return delays


def delay(shard: PlacedShard, delays: Floats, now: float) -> None:
    """Delay the first visits of a shard's targets with new even intervals.

    delays: of `delays_of`; now: as in `resumed`

    A target is not delayed beyond its longest interval.
    """
    schedules, population = shard.schedules, shard.population
    is_new = ~schedules.same_as(shard.current)
    rows = np.flatnonzero((schedules.every_hours > 0) & is_new)
    every = schedules.every_hours[rows]
    wait = (schedules.phase_hours[rows] - now) % every
    later = wait + np.interp(wait, np.arange(len(delays)), delays)
    latest = (shard.last + population.max_hours)[rows] - now
    later = np.where(later > latest, np.maximum(wait, latest), later)
    # An interval that is skipped as a whole would begin earlier.
    later = np.minimum(later, every * (1 - 1e-6))
    phase = schedules.phase_hours.copy()
    phase[rows] = (now + later) % every
    shard.schedules = replace(schedules, phase_hours=phase)


class Movable(NamedTuple):
    """Hold the rare visits of a shard that can move to another week first.

    place:          (m,) index into the shard's rare targets
    weeks, week:    (m,) as in Rare
    soonest, limit: (m,) as in Rare
    latest, key:    (m,) recently visited targets can wait, so they move first
    has_more:       (PLACES, PLACES) whether the shard has further visits of this cycle and week
    """

    place: Ints
    weeks: Ints
    week: Ints
    soonest: Ints
    limit: Ints
    latest: Ints
    key: Keys
    has_more: Flags

    @classmethod
    def of(cls, rare: Rare, key: Keys, most: int) -> Movable:
        """Select up to `most` of each cycle and week. `key`: keys of the rare targets."""
        order = np.lexsort((key, rare.latest))
        cell = (rare.weeks * PLACES + rare.week)[order]
        by_cell = np.argsort(cell, kind="stable")
        counts = np.bincount(cell, minlength=PLACES * PLACES)
        from_end = np.repeat(np.cumsum(counts), counts) - np.arange(len(cell))
        place = order[np.sort(by_cell[from_end <= most])]
        weeks, week, soonest, limit, latest = (
            column[place]
            for column in (rare.weeks, rare.week, rare.soonest, rare.limit, rare.latest)
        )
        has_more = (counts > most).reshape(PLACES, PLACES)
        return cls(place, weeks, week, soonest, limit, latest, key[place], has_more)


class Moves(NamedTuple):
    """Hold new weeks of some rare visits of a shard. Fields are (m,) as in Movable."""

    place: Ints
    week: Ints


def balanced(schedules: Schedules, population: Population, last: Floats, now: float) -> Schedules:
    """Return the schedules with a few rare visits moved between weeks that differ by two or more.

    last, now: as in `in_time`. No visit moves past its longest interval.
    """
    shard = PlacedShard(population, last, schedules, schedules)
    balance(InMemory([shard]), now)
    return shard.schedules


def balance(shards: Shards[PlacedShard], now: float) -> None:
    """Balance the weeks of the schedules of shards, in place; `now` is as in `in_time`."""
    load = np.sum(shards.each(rare_load), axis=0)
    most = FIRST_MOVABLE
    while (moves := _moves(load, shards.each(movable, now, most))) is None:
        most *= MORE_MOVABLE
    if any(len(own.place) for own in moves):
        shards.each(change_weeks, now, own=[(own,) for own in moves])


def rare_load(shard: PlacedShard) -> Ints:
    """Return the (ROUND_WEEKS,) rare visits of a shard in each week of the round."""
    schedules = shard.schedules
    rows = np.flatnonzero((schedules.weeks > 1) & (np.diff(schedules.first) == 1))
    week = schedules.slots[schedules.first[rows]].astype(np.int64) // WEEK_HOURS
    return _round(schedules.weeks[rows].astype(np.int64) * PLACES + week)


def movable(shard: PlacedShard, now: float, most: int) -> Movable:
    """Return the rare visits of a shard that can move first, `most` of each cycle and week."""
    rare = _rare(shard, now)
    return Movable.of(rare, shard.population.key[rare.rows], most)


def change_weeks(shard: PlacedShard, now: float, moves: Moves) -> None:
    """Move rare visits of a shard to other weeks."""
    rare = _rare(shard, now)
    week = rare.week.copy()
    week[moves.place] = moves.week
    shard.schedules = rare.put(shard.schedules, week * WEEK_HOURS + rare.hour)


def _rare(shard: PlacedShard, now: float) -> Rare:
    return Rare.of(shard.schedules, shard.population, shard.last, now)


def _moves(load: Ints, offers: Sequence[Movable]) -> list[Moves] | None:
    """Return the moves of each shard that even out the weeks; None if more offers are needed.

    load: (ROUND_WEEKS,) rare visits of all shards
    """
    shard = np.repeat(np.arange(len(offers)), [len(own.place) for own in offers])
    place, weeks, week, soonest, limit, latest, key = (
        np.concatenate(column) for column in list(zip(*offers, strict=True))[:-1]
    )
    has_more = np.any([own.has_more for own in offers], axis=0)
    most = {
        (length, phase): min(
            int(np.count_nonzero((own.weeks == length) & (own.week == phase)))
            for own in offers
            if own.has_more[length, phase]
        )
        for length, phase in zip(*(axis.tolist() for axis in np.nonzero(has_more)), strict=True)
    }
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in np.lexsort((key, latest)).tolist():
        waiting[int(weeks[i]), int(week[i])].append(i)
    # If a shard has further visits, they may rank between the offers, but not after the last ones.
    for cell, count in most.items():
        waiting[cell] = waiting[cell][-count:]
    load, moved = load.copy(), {}
    for _ in range(int(load.sum()) + 1):
        if (move := _best_move(load, waiting, soonest, limit)) is None:
            break
        length, old, new = move
        i = waiting[length, old].pop()
        waiting[length, new].append(i)
        moved[i] = new
        load[old::length] -= 1
        load[new::length] += 1
        if not waiting[length, old] and (length, old) in most:
            return None
    rows = np.array(sorted(moved), np.int64)
    weeks = np.array([moved[i] for i in rows.tolist()], np.int64)
    return [
        Moves(place[rows[shard[rows] == number]], weeks[shard[rows] == number])
        for number in range(len(offers))
    ]


def _best_move(
    load: Ints, waiting: dict[tuple[int, int], list[int]], soonest: Ints, limit: Ints
) -> tuple[int, int, int] | None:
    """Return a cycle length and two of its weeks between which a move evens out the load most.

    load:           (ROUND_WEEKS,) visits of each week
    waiting:        targets that may move, by cycle length and week; the last one moves first
    soonest, limit: as in Rare
    """
    best, least = None, 0
    for length in sorted({length for length, _ in waiting}):
        by_phase = [int(load[phase::length].sum()) for phase in range(length)]
        size = ROUND_WEEKS // length
        for old in (phase for phase in range(length) if waiting[length, phase]):
            for new in (phase for phase in range(length) if phase != old):
                # Change of the sum of squared loads.
                change = 2 * (by_phase[new] - by_phase[old] + size)
                i = waiting[length, old][-1]
                first = int(soonest[i])
                in_time = first + (new - first) % length <= limit[i]
                if change < least and in_time:
                    best, least = (length, old, new), change
    return best


def _round(cell: Ints) -> Ints:
    """Return the (ROUND_WEEKS,) number of visits in each week of the round.

    cell: (k,) cycle length times PLACES plus week of each visit
    """
    load = np.zeros(ROUND_WEEKS, np.int64)
    place, count = np.unique(cell, return_counts=True)
    for length, phase, visits in zip(*np.divmod(place, PLACES), count, strict=True):
        load[phase::length] += visits
    return load


def week_load(schedules: Schedules) -> Ints:
    """Return the (ROUND_WEEKS,) visits in each week of the round, in parts of a visit."""
    even = in_parts(schedules.visits_per_week[schedules.every_hours > 0]).sum()
    cycle = np.repeat(schedules.weeks.astype(np.int64), np.diff(schedules.first))
    visits = _round(cycle * PLACES + schedules.slots // WEEK_HOURS)
    result: Ints = visits * VISIT_PARTS + even
    return result


def fullest_week(schedules: Schedules) -> float:
    """Return the number of visits in the fullest week of the round."""
    return float(week_load(schedules).max() / VISIT_PARTS)


@dataclass(frozen=True, slots=True)
class Caps:
    """Hold the maximum requests per day, of all sites and of each site (s,)."""

    day: float
    site_day: Floats

    @classmethod
    def of(cls, terms: Terms, population: Population, share: float = 1.0) -> Caps:
        """Return the caps of a plan, or a share of them for a sample of its targets."""
        day = min(terms.daily_cap or np.inf, (terms.hourly_cap or np.inf) * DAY_HOURS)
        return cls(day * share, population.site_day * share)

    @property
    def by_day(self) -> bool:
        """Return whether any day is capped."""
        return bool(np.isfinite(self.day) or np.isfinite(self.site_day).any())


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


def site_hours(schedules: Schedules, offset: Ints, site: Ints, sites: int) -> Floats:
    """Return the (s, 168) mean visits of each site in each UTC hour of the week.

    offset: (n,) hours ahead of UTC
    """
    evenly = np.where(schedules.every_hours > 0, schedules.visits_per_week, 0.0)
    even = np.bincount(site, evenly, sites)[:, None] / WEEK_HOURS
    count = np.diff(schedules.first)
    hour = (schedules.slots.astype(np.int64) - np.repeat(offset, count)) % WEEK_HOURS
    place = np.repeat(site, count) * WEEK_HOURS + hour
    weight = np.repeat(1 / schedules.weeks, count)
    visits = np.bincount(place, weight, sites * WEEK_HOURS).astype(np.float64)
    return visits.reshape(sites, WEEK_HOURS) + even
