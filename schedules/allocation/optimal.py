"""Minimize expected staleness and age for a budget of requests (the default policy).

Every target offers its candidate options (`placement.options`), one price decides which of them are
taken (`allocate.allocate`), and local search refines the allocated slots. A target keeps its
current schedule if a new one would save less than a small share of a visit's price, so that plans
are stable. `outlook` computes the expected stale share and age of any schedules.

At a given price, the targets are independent of each other: each takes the visits that save more
than the price. One pass over the targets therefore gives the results of every budget (`demand`),
while `plan.draft` plans one budget. These results leave out two later steps of a plan: it keeps
current schedules that are hardly worse, and explores targets with a short history.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.allocation.allocate import Steps
from schedules.compiled import Part, compiled, parts, spread_over
from schedules.cost import MAX_RATE, Curves, Objective, costs_of, curves, even_cost
from schedules.estimation.estimate import Estimate
from schedules.history import DAY_HOURS, Flags, Floats, Ints, offsets
from schedules.placement.load import even_phase, first_weeks
from schedules.placement.placement import (
    EVEN,
    EVEN_VISITS,
    MAX_OPTIONS,
    RARE,
    Choice,
    Limits,
    allows,
    cycle_cost,
    even_options,
    options,
    refine,
    tilted,
)
from schedules.population import Keys, shortest_hours
from schedules.schedule import MAX_WEEKS, WEEK_DAYS, WEEK_HOURS, Schedules, chosen_of
from schedules.terms import AT_MAX_RATE, AT_MIN_RATE, BUDGET

STALE, AGE = Objective(1.0, 0.0, 0.0), Objective(0.0, 1.0, 0.0)
# Moving visits to other hours must save more than this share of a visit's price.
DEAD_BAND = 0.3
# Hours whose costs differ by less than this share of a visit's price are equivalent.
INDIFFERENCE = 0.05
# Targets observed for less time get even intervals, to learn the hours of their changes. Ten days
# are a week of visits and a margin; a longer period costs more than it reveals.
KNOWN_HOURS = 240.0
# At first even one visit a week or less has no slot, because the hours of a few changes are chance.
# Later, the slot must save this share of the cost.
SLOT_HOURS, SLOT_GAIN = 120.0, 0.05
LOWEST_PRICE = 1e-3
Columns = tuple[NDArray[Any], ...]
# Number of targets from which the prices of the grid are chosen.
MAX_PILOT = 1_000
# A request that saves the least important target less than this many hours of staleness is not
# worth a place on the curve.
MIN_PRICE = 10 * LOWEST_PRICE


class Outlook(NamedTuple):
    """Hold expected results. stale: (n,) share of the time; age_days: (n,) mean age in days."""

    stale: Floats
    age_days: Floats


def outlook(estimates: Estimate, schedules: Schedules) -> Outlook:
    """Return the outlook of any schedules under the estimated rates and profiles."""

    def work(part: Part) -> Outlook:
        node = np.minimum(estimates.rates(part).node, MAX_RATE)
        first = schedules.first[part.start : part.stop + 1]
        slots = schedules.slots[first[0] : first[-1]].astype(np.int64)
        weeks = schedules.weeks[part].astype(np.int64)
        every = schedules.every_hours[part]
        return Outlook(
            *_outlook(estimates.profiles(part), node, every, weeks, first - first[0], slots)
        )

    pieces = spread_over(work, parts(len(schedules)))
    return Outlook(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


@compiled
def _outlook(
    profile: Floats, node: Floats, every: Floats, weeks: Ints, first: Ints, slots: Ints
) -> tuple[Floats, Floats]:
    """Return stale share and age in days; 1 and inf with neither slots nor an even interval."""
    stale, age = np.ones(len(weeks)), np.full(len(weeks), np.inf)
    weight = np.full(node.shape[1], 1 / node.shape[1])
    for i in range(len(weeks)):
        own = slots[first[i] : first[i + 1]]
        if every[i] > 0:
            stale[i] = even_cost(node[i], weight, STALE, WEEK_HOURS / every[i]) / WEEK_HOURS
            age[i] = even_cost(node[i], weight, AGE, WEEK_HOURS / every[i]) / WEEK_HOURS
        elif len(own):
            c = curves(profile[i], node[i], weight)
            stale[i] = cycle_cost(c, STALE, weeks[i], own) / WEEK_HOURS
            age[i] = cycle_cost(c, AGE, weeks[i], own) / WEEK_HOURS
    return stale, age


class Candidates(NamedTuple):
    """Hold the candidate steps of n targets, and their slots.

    rare:  (n, r) hour of the week of one visit in each of the r cycles longer than a week
    begin: (n + 1,) offsets into order
    order: (k,) slots in the order of insertion; of a target with even intervals, only that of a
           weekly visit
    full:  (n,) whether no further visit fits
    """

    steps: Steps
    rare: NDArray[np.int16]
    begin: Ints
    order: NDArray[np.uint8]
    full: NDArray[np.bool_]


class Targets(NamedTuple):
    """Hold the input of the kernels for m targets.

    profile: (m, 168)
    node: (m, k) rates
    worth: (m,) importance divided by cost
    min_hours, max_hours, site, phase: (m,)
    is_even: (m,) whether several visits a week are at even intervals, because the hours of changes
             are not known yet
    slot_gain: (m,) as in `even_options`
    surcharge: (s, 168)
    dither: (m, 7)
    """

    profile: Floats
    node: Floats
    worth: Floats
    min_hours: Floats
    max_hours: Floats
    site: Ints
    phase: Ints
    is_even: Flags
    slot_gain: Floats
    surcharge: Floats
    dither: Floats


def targets(estimate: Estimate, part: Part, surcharge: Floats) -> Targets:
    """Return the targets of a part. surcharge: (s, 168) of each hour; inf if closed."""
    population, histories = estimate.population.of(part), estimate.histories
    observed = histories.until[part] - histories.since[part]
    # Even intervals include all hours, so the site must not have closed hours.
    always = np.all(population.open_hours, axis=1)
    # Vary the surcharge slightly between targets, so that they do not all move at the same time.
    days = np.arange(0, 56, 8, dtype=np.uint64)
    chance = (population.key[:, None] >> days) % np.uint64(256)
    return Targets(
        estimate.profiles(part),
        np.minimum(estimate.rates(part).node, MAX_RATE),
        population.weight / population.cost,
        shortest_hours(population),
        population.max_hours,
        population.site,
        (population.key % np.uint64(WEEK_HOURS)).astype(np.int64),
        ~(observed >= KNOWN_HOURS) & always[population.site],
        np.where(observed >= SLOT_HOURS, SLOT_GAIN, 1.0),
        surcharge,
        1 + INDIFFERENCE * (chance / 255 - 0.5),
    )


def candidates_of(
    estimate: Estimate, aim: Objective, surcharge: Floats, least: float
) -> Candidates:
    """Return the candidate steps of all targets whose value exceeds `least` per visit."""
    pieces = spread_over(
        lambda part: _candidates(targets(estimate, part, surcharge), aim, least),
        parts(len(estimate.population)),
    )
    return joined(pieces)


def joined(pieces: list[Columns]) -> Candidates:
    """Join the candidates of all parts, as returned by the kernel."""
    counts, visits, value, option, rare, slots, order, full = (
        np.concatenate(column) for column in zip(*pieces, strict=True)
    )
    return Candidates(
        Steps(offsets(counts), visits, value, option), rare, offsets(slots), order, full
    )


@compiled
def limits_of(t: Targets, i: int, price: float) -> Limits:
    """Return the limits of one target. price: of a visit, divided by the worth."""
    slope = INDIFFERENCE * price / WEEK_HOURS
    surcharge = t.surcharge[t.site[i]] / t.worth[i]
    for day in range(WEEK_DAYS):
        for z in range(day * DAY_HOURS, (day + 1) * DAY_HOURS):
            surcharge[z] *= t.dither[i, day]
    return Limits(
        surcharge, tilted(t.phase[i], slope), t.min_hours[i], t.max_hours[i], is_dense=False
    )


@compiled
def choice_of(t: Targets, i: int, c: Curves, aim: Objective, least: float) -> Choice:
    """Return the options of one target that save more than `least` per visit."""
    limits, costs = limits_of(t, i, least / t.worth[i]), costs_of(c, aim)
    if t.is_even[i]:
        return even_options(
            costs, limits, aim, t.node[i], c.weight, least / t.worth[i], t.slot_gain[i]
        )
    return options(costs, limits, least / t.worth[i])


@compiled
def _candidates(t: Targets, aim: Objective, least: float) -> Columns:
    """Compute the candidate steps of m targets, as columns for `joined`."""
    m = len(t.worth)
    size = m * MAX_OPTIONS
    counts, slots = np.empty(m, np.int64), np.empty(m, np.int64)
    visits, value = np.empty(size, np.float32), np.empty(size, np.float32)
    option, order = np.empty(size, np.uint8), np.empty(size, np.uint8)
    rare, full = np.empty((m, RARE), np.int16), np.empty(m, np.bool_)
    weight = np.full(t.node.shape[1], 1 / t.node.shape[1])
    used, placed = 0, 0
    for i in range(m):
        choice = choice_of(t, i, curves(t.profile[i], t.node[i], weight), aim, least)
        counts[i], slots[i] = len(choice.option), len(choice.slots)
        rare[i], full[i] = choice.rare, choice.full
        for j in range(counts[i]):
            visits[used + j] = choice.visits[j]
            value[used + j] = choice.value[j] * t.worth[i]
            option[used + j] = choice.option[j]
        for j in range(slots[i]):
            order[placed + j] = choice.slots[j]
        used, placed = used + counts[i], placed + slots[i]
    steps = visits[:used].copy(), value[:used].copy(), option[:used].copy()
    return counts, steps[0], steps[1], steps[2], rare, slots, order[:placed].copy(), full


def weeks_of(chosen: Ints, steps: Steps, cycles: tuple[int, ...]) -> Ints:
    """Return the (n,) cycle lengths of allocated options; arguments as in `schedules_of`."""
    option = steps.option[chosen].astype(np.int64)
    weeks: Ints = np.array(cycles)[np.minimum(option, len(cycles) - 1)]
    return weeks


def schedules_of(
    chosen: Ints,
    candidates: Candidates,
    key: NDArray[np.uint64],
    cycles: tuple[int, ...],
    before: Ints | None = None,
) -> Schedules:
    """Return the allocated schedules.

    chosen: (n,) indices into the steps
    key:    (n,) spreads rare visits over weeks
    cycles: cycle lengths in weeks, as in `schedule`
    before: number of targets with each cycle in earlier shards, as in `first_weeks`
    """
    option = candidates.steps.option[chosen].astype(np.int64)
    weekly = len(cycles) - 1
    rare, weeks = option < weekly, weeks_of(chosen, candidates.steps, cycles)
    count = np.where(rare, 1, option - weekly + 1)
    is_even = count > np.diff(candidates.begin)
    count[is_even] = 0
    first = offsets(count)
    rare_first = first[:-1][rare]
    place = np.arange(first[-1]) - np.repeat(first[:-1], count)
    slots = candidates.order[np.repeat(candidates.begin[:-1], count) + place].astype(np.int64)
    week = first_weeks(weeks, key, before) * WEEK_HOURS
    slots[rare_first] = candidates.rare[rare, option[rare]] + week[rare]
    # Put all targets on one axis, each with its own stretch, to sort their slots together.
    stretch = np.repeat(np.arange(len(count)) * cycles[0] * WEEK_HOURS, count)
    slots = (np.sort(stretch + slots) - stretch).astype(np.uint16)
    every = np.zeros(len(count))
    every[is_even] = WEEK_HOURS / EVEN_VISITS[option[is_even] - EVEN]
    return Schedules(weeks.astype(np.uint8), first, slots, every, every * even_phase(key))


def settled(
    estimate: Estimate,
    aim: Objective,
    surcharge: Floats,
    price: float,
    new: Schedules,
    old: Schedules,
) -> tuple[Schedules, Outlook]:
    """Refine the new schedules, keep old ones that are hardly worse, and return the outlook."""
    slots, kept = new.slots.astype(np.int64), np.zeros(len(new), np.bool_)
    old_slots = old.slots.astype(np.int64)

    def work(part: Part) -> tuple[Floats, Floats]:
        t = targets(estimate, part, surcharge)
        after, before = _timetable(new, slots, part), _timetable(old, old_slots, part)
        return _settle(t, aim, price, after, before, kept[part])

    pieces = spread_over(work, parts(len(new)))
    stale, age = (np.concatenate(column) for column in zip(*pieces, strict=True))
    refined = replace(new, slots=slots.astype(np.uint16))
    return chosen_of(kept, old, refined), Outlook(stale, age)


class Timetable(NamedTuple):
    """Hold schedules for the kernels. every, weeks: (m,); first: (m + 1,) offsets into slots."""

    every: Floats
    weeks: Ints
    first: Ints
    slots: Ints


def _timetable(schedules: Schedules, slots: Ints, part: Part) -> Timetable:
    """Return the schedules of a part."""
    first = schedules.first[part.start : part.stop + 1]
    every, weeks = schedules.every_hours[part], schedules.weeks[part].astype(np.int64)
    return Timetable(every, weeks, first - first[0], slots[first[0] : first[-1]])


@compiled
def _settle(
    t: Targets,
    aim: Objective,
    price: float,
    new: Timetable,
    old: Timetable,
    kept: NDArray[np.bool_],
) -> tuple[Floats, Floats]:
    """Refine new slots in place and set `kept`; return stale share and age in days per target."""
    stale, age = np.empty(len(kept)), np.empty(len(kept))
    weight = np.full(t.node.shape[1], 1 / t.node.shape[1])
    for i in range(len(kept)):
        if new.every[i] > 0:
            visits = WEEK_HOURS / new.every[i]
            stale[i] = even_cost(t.node[i], weight, STALE, visits) / WEEK_HOURS
            age[i] = even_cost(t.node[i], weight, AGE, visits) / WEEK_HOURS
            continue
        limits = limits_of(t, i, price / t.worth[i])
        c = curves(t.profile[i], t.node[i], weight)
        weeks, slots = new.weeks[i], new.slots[new.first[i] : new.first[i + 1]]
        if weeks == 1 and len(slots) > 1:
            for j, slot in enumerate(refine(costs_of(c, aim), limits, slots)):
                slots[j] = slot
        before = old.slots[old.first[i] : old.first[i + 1]]
        if len(before) * weeks == len(slots) * old.weeks[i] and allows(limits, weeks, before):
            was, now = cycle_cost(c, aim, weeks, before), cycle_cost(c, aim, weeks, slots)
            surcharges = _surcharges(limits, before) - _surcharges(limits, slots)
            kept[i] = was - now + surcharges / weeks <= DEAD_BAND * price / t.worth[i]
        if kept[i]:
            weeks, slots = old.weeks[i], before
        stale[i] = cycle_cost(c, STALE, weeks, slots) / WEEK_HOURS
        age[i] = cycle_cost(c, AGE, weeks, slots) / WEEK_HOURS
    return stale, age


@compiled
def _surcharges(limits: Limits, slots: Ints) -> float:
    """Return the total surcharge of slots."""
    total = 0.0
    for slot in slots:
        total += limits.surcharge[slot % WEEK_HOURS]
    return total


def why(candidates: Candidates, chosen: Ints) -> tuple[Floats, Floats, NDArray[np.uint8]]:
    """Return the (n,) value of one more visit, worth of the last one, and limiting reason.

    chosen: (n,) as in Allocation

    The maximum rate is the limit if no further visit fits, the minimum rate if only the mandatory
    visits were allocated. The worth of a mandatory visit is unknown, but at least the value of the
    next one.
    """
    steps = candidates.steps
    last = chosen == steps.first[1:] - 1
    following = np.minimum(chosen + 1, len(steps.value) - 1)
    value = np.where(last, 0.0, steps.value[following])
    at_max = last & candidates.full & np.isfinite(steps.value[chosen])
    at_min = chosen == steps.first[:-1]
    worth = np.where(at_min, value, steps.value[chosen])
    return (
        value,
        worth,
        np.select([at_min, at_max], [AT_MIN_RATE, AT_MAX_RATE], BUDGET).astype(np.uint8),
    )


class Demand(NamedTuple):
    """Hold the results of g prices for s sites; sums over all targets of a site.

    price:            (g,) descending; the first is inf, with only the visits that limits require
    requests_per_day: (g, s)
    stale:            (g, s) expected number of stale targets
    age_days:         (g, s) sum of the expected mean ages
    """

    price: Floats
    requests_per_day: Floats
    stale: Floats
    age_days: Floats


def sampled_by_site(key: Keys, site: Ints, most: int, least: int) -> tuple[Ints, Floats]:
    """Return a sample of about `most` of n targets, and the number of targets each one represents.

    key:   (n,) pseudorandom and fixed, so that the sample does not change between runs
    site:  (n,)
    least: minimum number of sampled targets per site; smaller sites are sampled completely
    """
    n = len(key)
    if n <= most:
        return np.arange(n), np.ones(n)
    counts = np.bincount(site)
    wanted = np.maximum(np.ceil(counts * (most / n)), least).astype(np.int64)
    order = np.lexsort((key, site))
    rank = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.sort(order[rank < wanted[site[order]]])
    taken = np.bincount(site[chosen], minlength=len(counts))
    scale = counts / np.maximum(taken, 1)
    return chosen, scale[site[chosen]]


def price_grid(estimates: Estimate, aim: Objective, size: int) -> Floats:
    """Return up to `size` descending prices, from inf on, for budgets that grow geometrically.

    The prices are computed from a pilot sample.
    """
    n, population = len(estimates.population), estimates.population
    # Relative to the weights, so that the curve does not depend on their unit.
    lowest = MIN_PRICE * float((population.weight / population.cost).min(initial=1e9))
    if n > MAX_PILOT:
        estimates = estimates.of(np.argsort(estimates.population.key)[:MAX_PILOT])
    steps = candidates_of(estimates, aim, estimates.population.closed, lowest).steps
    more = np.diff(steps.visits, prepend=np.float32(0))
    optional = np.flatnonzero(np.isfinite(steps.value))
    order = optional[np.argsort(-steps.value[optional])]
    least = float(steps.visits[steps.first[:-1]].sum(dtype=np.float64))
    total = least + np.cumsum(more[order], dtype=np.float64)
    if not len(order) or least <= 0:
        return np.array([np.inf])
    budgets = np.geomspace(least, total[-1], size)[1:]
    place = np.minimum(np.searchsorted(total, budgets), len(order) - 1)
    # Slightly below the value of the step, which is taken only if it exceeds the price.
    prices = np.unique(steps.value[order[place]].astype(np.float64) * (1 - 1e-6))[::-1]
    return np.concatenate([[np.inf], prices])


def demand(estimates: Estimate, scale: Floats, aim: Objective, price: Floats) -> Demand:
    """Return the demand of all sites at descending prices.

    scale: (n,) number of targets that each target represents

    A site whose demand exceeds its own cap of requests gets the results of the lowest price at
    which it does not, as if its requests were more expensive.
    """
    population = estimates.population

    def work(part: Part) -> tuple[Floats, Floats, Floats]:
        some = targets(estimates, part, population.closed)
        return _demand(some, aim, scale[part], price, population.sites)

    pieces = spread_over(work, parts(len(population)))
    visits, stale, age = (np.sum(column, axis=0) for column in zip(*pieces, strict=True))
    per_day = visits / WEEK_DAYS
    over = per_day > np.maximum(population.site_day, per_day[0]) * (1 + 1e-9)
    # Demand grows as the price falls: the rows within the cap are the first ones.
    last = np.maximum((~over).sum(axis=0) - 1, 0)
    row = np.minimum(np.arange(len(price))[:, None], last)
    return Demand(price, *(np.take_along_axis(column, row, 0) for column in (per_day, stale, age)))


@compiled
def _demand(
    t: Targets, aim: Objective, scale: Floats, price: Floats, sites: int
) -> tuple[Floats, Floats, Floats]:
    """Return the (g, s) visits a week, stale share and age in days of m targets, summed by site."""
    visits = np.zeros((len(price), sites))
    stale, age = np.zeros((len(price), sites)), np.zeros((len(price), sites))
    weight = np.full(t.node.shape[1], 1 / t.node.shape[1])
    slots = np.empty(WEEK_HOURS, np.int64)
    for i in range(len(t.worth)):
        least = price[len(price) - 1]
        if least == np.inf:
            least = 1e9
        c = curves(t.profile[i], t.node[i], weight)
        choice = choice_of(t, i, c, aim, least)
        taken, done, used = 0, -1, 0
        visits_per_week, stale_share, age_days = 0.0, 1.0, 0.0
        for g in range(len(price)):
            # The last step that saves more than the price of each visit.
            while (
                taken + 1 < len(choice.option) and choice.value[taken + 1] > price[g] / t.worth[i]
            ):
                taken += 1
            if taken != done and len(choice.option):
                option = choice.option[taken]
                visits_per_week, done = choice.visits[taken], taken
                if t.is_even[i] and option >= EVEN:
                    stale_share = even_cost(t.node[i], weight, STALE, visits_per_week) / WEEK_HOURS
                    age_days = even_cost(t.node[i], weight, AGE, visits_per_week) / WEEK_HOURS
                else:
                    weeks, used = _placed(choice, option, slots, used)
                    stale_share = cycle_cost(c, STALE, weeks, slots[:used]) / WEEK_HOURS
                    age_days = cycle_cost(c, AGE, weeks, slots[:used]) / WEEK_HOURS
            visits[g, t.site[i]] += scale[i] * visits_per_week
            stale[g, t.site[i]] += scale[i] * stale_share
            age[g, t.site[i]] += scale[i] * age_days
    return visits, stale, age


@compiled
def _placed(choice: Choice, option: int, slots: Ints, used: int) -> tuple[int, int]:
    """Write the ascending slots of an option; return its cycle in weeks and the slot count.

    slots: begins with the `used` slots of an option with fewer visits
    """
    if option < RARE:
        slots[0] = choice.rare[option]
        return MAX_WEEKS - option, 1
    # The slot of a rare option is not one of the week.
    if used == 1:
        used = 0
    for k in range(used, option - RARE + 1):
        slot, j = choice.slots[k], k
        while j and slots[j - 1] > slot:
            slots[j] = slots[j - 1]
            j -= 1
        slots[j] = slot
    return 1, option - RARE + 1
