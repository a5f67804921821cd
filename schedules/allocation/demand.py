"""Compute visits, staleness and age of each site for any budget, on a grid of prices.

At a given price of a request, the targets are independent of each other: each takes the visits that
save more than the price. One pass over the targets therefore gives the results of every budget,
while `plan.draft` plans one budget. The results leave out two later steps of a plan: it keeps
current schedules that are hardly worse, and explores targets with a short history.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.allocation.optimal import (
    AGE,
    LOWEST_PRICE,
    STALE,
    Targets,
    candidates_of,
    limits_of,
    targets,
)
from schedules.compiled import Part, compiled, parts, spread_over
from schedules.cost import Objective, costs_of, curves, even_cost
from schedules.estimation.estimate import Estimate
from schedules.history import Floats, Ints
from schedules.placement.placement import EVEN, RARE, Choice, cycle_cost, even_options, options
from schedules.population import Keys
from schedules.schedule import MAX_WEEKS, WEEK_DAYS, WEEK_HOURS

# Number of targets from which the prices of the grid are chosen.
MAX_PILOT = 1_000
# A request that saves the least important target less than this many hours of staleness is not
# worth a place on the curve.
MIN_PRICE = 10 * LOWEST_PRICE


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
    steps = candidates_of(estimates, aim, _closed(estimates), lowest).steps
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
    closed, shape = _closed(estimates), (len(price), population.sites)

    def work(part: Part) -> tuple[Floats, Floats, Floats]:
        return _demand(targets(estimates, part, closed), aim, scale[part], price, shape[1])

    pieces = spread_over(work, parts(len(population)))
    visits, stale, age = (np.sum(column, axis=0) for column in zip(*pieces, strict=True))
    per_day = visits / WEEK_DAYS
    cap = np.minimum(population.site_day, population.site_hour * 24)
    over = per_day > np.maximum(cap, per_day[0]) * (1 + 1e-9)
    # Demand grows as the price falls: the rows within the cap are the first ones.
    last = np.maximum((~over).sum(axis=0) - 1, 0)
    row = np.minimum(np.arange(len(price))[:, None], last)
    return Demand(price, *(np.take_along_axis(column, row, 0) for column in (per_day, stale, age)))


def _closed(estimates: Estimate) -> Floats:
    """Return the (s, 168) surcharges without load leveling: inf for closed hours."""
    return np.where(estimates.population.open_hours, 0.0, np.inf)


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
        limits = limits_of(t, i, least / t.worth[i])
        c = curves(t.profile[i], t.node[i], weight)
        if t.is_even[i]:
            choice = even_options(
                costs_of(c, aim), limits, aim, t.node[i], weight, least / t.worth[i], t.slot_gain[i]
            )
        else:
            choice = options(costs_of(c, aim), limits, least / t.worth[i])
        taken, done, used = 0, -1, 0
        visits_per_week, stale_share, age_days = 0.0, 1.0, 0.0
        for g in range(len(price)):
            taken = _last_worth(choice, taken, price[g] / t.worth[i])
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
def _last_worth(choice: Choice, taken: int, price: float) -> int:
    """Return the last step from `taken` on that saves more than the price of each visit."""
    while taken + 1 < len(choice.option) and choice.value[taken + 1] > price:
        taken += 1
    return taken


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
