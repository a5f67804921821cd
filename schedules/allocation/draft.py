"""Draft the best schedules for a budget, for targets in any number of shards.

One price decides over the steps of all targets. It is found on a sample first, with the surcharges
of full days, so that shards need not compute steps whose value is far below it. The shards then
offer their steps, the budget clears their demand (`allocate.cleared`), and each places the slots of
its own targets. Weeks are balanced over all shards (`load.balance`).

Shards exchange sums of whole numbers, and rows in the order of their keys. So the result is that of
a single shard.
"""

from __future__ import annotations

import numpy as np

from schedules.allocation.allocate import Codes, Offers, allocate, cleared, least_parts
from schedules.allocation.optimal import (
    LOWEST_PRICE,
    Candidates,
    candidates_of,
    exploring,
    schedules_of,
    settled,
    weeks_of,
    why,
)
from schedules.allocation.outlook import Draft
from schedules.cost import Objective
from schedules.estimation.estimate import Estimate
from schedules.history import DAY_HOURS, Floats, Ints
from schedules.placement.load import (
    PLACES,
    Caps,
    balance,
    day_surcharges,
    in_time,
    site_days,
    week_load,
)
from schedules.schedule import PAGE_CYCLES, VISIT_PARTS, WEEK_DAYS, WEEK_HOURS, Schedules
from schedules.shards import Columns, InMemory, Shards
from schedules.terms import EXPLORATION, BudgetTooSmall, Terms

# Number of targets from which the price and the surcharges are estimated.
MAX_SAMPLE = 4_000
# Steps whose value is far below the expected price are not computed.
MIN_VALUE_SHARE = 0.7
FIRST_MIN_VALUE = 16.0
# Rare visits that must not wait can make one week fuller than others; the next try spends less.
TRIES = 3


def draft(estimates: Estimate, terms: Terms, now: float, current: Schedules) -> Draft:
    """Return the best schedules for the budget; keep current ones if others are hardly better.

    Raises BudgetTooSmall if the budget does not keep every target's longest interval.
    """
    columns = columns_of(estimates, current)
    sample = sampled(estimates)[0]
    price = draft_shards(InMemory([columns]), sample, len(estimates.population), terms, now)
    return draft_of(columns, price)


def columns_of(estimates: Estimate, current: Schedules) -> Columns:
    """Return the columns of a shard with all targets."""
    return {
        "population": estimates.population,
        "histories": estimates.histories,
        "last": estimates.histories.until,
        "current": current,
        "mixtures": estimates.mixtures,
        "prior": estimates.prior,
        "rates": estimates.all_rates,
    }


def estimates_of(columns: Columns) -> Estimate:
    """Return the estimates of a shard's targets."""
    return Estimate(
        columns["population"], columns["histories"], columns["mixtures"], columns["prior"],
        columns["rates"],
    )  # fmt: skip


def draft_of(columns: Columns, price: float) -> Draft:
    """Return the schedules of a shard after `draft_shards`."""
    value, worth, bound = columns["reasons"]
    return Draft(columns["schedules"], columns["expected"], value, worth, bound, price)


def draft_shards(shards: Shards, sample: Estimate, n: int, terms: Terms, now: float) -> float:
    """Draft schedules for all shards, and return the price of a request.

    sample: up to MAX_SAMPLE of the n targets, those with the lowest keys
    now:    in hours since 1970 (UTC)

    Raises BudgetTooSmall if the budget does not keep every target's longest interval.
    """
    population, share = sample.population, len(sample.population) / n if n else 1.0
    small = _Sample(sample, terms, now, share)
    days = day_surcharges(small.loads, Caps.of(terms, population, share), population.sites)
    surcharge, price = small.surcharge(days), small.allocated(days)[1]
    least = sum(shards.each(offer, terms.aim, surcharge, MIN_VALUE_SHARE * price))
    whole, needed = terms.budget_per_day * WEEK_DAYS, least / VISIT_PARTS
    if needed > whole * (1 + 1e-6):
        raise BudgetTooSmall(needed / WEEK_DAYS, n)
    # Visits are whole, so the fullest week can have one more than the mean.
    budget = max(whole - 1, needed)
    for _ in range(TRIES):
        clearing = cleared(lambda codes: shards.each(demand, codes), least, budget)
        taken = shards.each(take, clearing.marginal, own=[(left,) for left in clearing.left])
        price = clearing.price([lowest for lowest, _ in taken])
        cycles = np.array([counts for _, counts in taken])
        before = np.cumsum(cycles, axis=0) - cycles
        shards.each(place, terms.aim, surcharge, price, now, own=[(own,) for own in before])
        balance(shards, now)
        over = float(np.sum(shards.each(load_of_weeks), axis=0).max() / VISIT_PARTS) - whole
        if over <= 1e-6:
            break
        budget = max(budget - over, needed)
    shards.each(give_reasons)
    return price


def offer(columns: Columns, aim: Objective, surcharge: Floats, least: float) -> int:
    """Compute the steps of a shard worth more than `least`; return the parts of the mandatory ones.

    surcharge: (s, 168) of each local hour, inf if closed
    """
    candidates = candidates_of(estimates_of(columns), aim, surcharge, least)
    columns["candidates"] = candidates
    return least_parts(candidates.steps)


def _offers(columns: Columns) -> Offers:
    """Return the offers of a shard's steps, which exist only until the budget is cleared."""
    if "offers" not in columns:
        key, current = columns["population"].key, columns["current"].visits_per_week
        columns["offers"] = Offers.of(columns["candidates"].steps, key, current)
    offers: Offers = columns["offers"]
    return offers


def demand(columns: Columns, codes: Codes) -> Ints:
    """Return the demand of a shard, as in Offers."""
    return _offers(columns).demand(codes)


def take(columns: Columns, marginal: float, left: int) -> tuple[float, Ints]:
    """Take the steps of a shard at a price; arguments as in `Offers.taken`.

    Returns the lowest value taken, and the (PLACES,) number of targets with each length of cycle.
    """
    taken = _offers(columns).taken(marginal, left)
    del columns["offers"]
    columns["chosen"] = taken.chosen
    weeks = weeks_of(taken.chosen, columns["candidates"].steps, PAGE_CYCLES)
    return taken.lowest, np.bincount(weeks, minlength=PLACES)


def place(
    columns: Columns, aim: Objective, surcharge: Floats, price: float, now: float, before: Ints
) -> None:
    """Place the slots of a shard's targets, except for the balance of weeks.

    before: (PLACES,) number of targets with each length of cycle in earlier shards
    """
    estimates, current = estimates_of(columns), columns["current"]
    candidates: Candidates = columns["candidates"]
    population, last = estimates.population, columns["last"]
    new = schedules_of(columns["chosen"], candidates, population.key, PAGE_CYCLES, before)
    schedules, expected = settled(estimates, aim, surcharge, price, new, current)
    schedules = in_time(schedules, ~schedules.same_as(current), population, last, now)
    schedules, expected, explored = exploring(estimates, schedules, expected)
    columns["schedules"], columns["expected"], columns["explored"] = schedules, expected, explored


def load_of_weeks(columns: Columns) -> Ints:
    """Return the (ROUND_WEEKS,) visits of a shard in each week of the round, in parts."""
    return week_load(columns["schedules"])


def give_reasons(columns: Columns) -> None:
    """Set the value of one more visit, the worth of the last one, and what limits the visits."""
    value, worth, bound = why(columns.pop("candidates"), columns.pop("chosen"))
    bound = np.where(columns.pop("explored"), EXPLORATION, bound).astype(np.uint8)
    columns["reasons"] = value, worth, bound


def sampled(estimates: Estimate) -> tuple[Estimate, float]:
    """Return a sample of the targets, all if there are few, and its share of all."""
    rows = np.argsort(estimates.population.key)[:MAX_SAMPLE]
    return estimates.of(rows), len(rows) / max(len(estimates.population), 1)


class _Sample:
    """Allocate visits to a sample of the targets at given surcharges."""

    def __init__(self, estimates: Estimate, terms: Terms, now: float, share: float) -> None:
        self.estimates, self.aim = estimates, terms.aim
        self.budget = terms.budget_per_day * WEEK_DAYS * share
        self.ahead = estimates.population.ahead(now)
        local = np.arange(WEEK_HOURS) - self.ahead[:, None]
        self.utc_day = local % WEEK_HOURS // DAY_HOURS
        self.least = FIRST_MIN_VALUE

    def surcharge(self, surcharges: Floats) -> Floats:
        """Return the (s, 168) surcharges of local hours from the (s, 7) surcharges of UTC days."""
        closed = np.where(self.estimates.population.open_hours, 0.0, np.inf)
        return np.take_along_axis(surcharges, self.utc_day, 1) + closed

    def allocated(self, surcharges: Floats) -> tuple[Schedules, float]:
        """Return the allocated schedules, and the price of the last visit."""
        key, surcharge = self.estimates.population.key, self.surcharge(surcharges)
        while True:
            candidates = candidates_of(self.estimates, self.aim, surcharge, self.least)
            allocation = allocate(candidates.steps, key, self.budget)
            # Every candidate was taken, so the price is lower: offer cheaper ones.
            if self.least <= LOWEST_PRICE or not allocation.sold_out:
                break
            self.least = max(self.least / 4, LOWEST_PRICE)
        self.least = max(min(MIN_VALUE_SHARE * allocation.price, self.least), LOWEST_PRICE)
        return schedules_of(allocation.chosen, candidates, key, PAGE_CYCLES), allocation.price

    def loads(self, surcharges: Floats) -> tuple[Floats, float]:
        """Return the (s, 7) visits of each site on each UTC day of the week, and the price."""
        allocated, price = self.allocated(surcharges)
        surcharge, none = self.surcharge(surcharges), Schedules.none(len(allocated))
        schedules, _ = settled(self.estimates, self.aim, surcharge, price, allocated, none)
        population = self.estimates.population
        ahead = self.ahead[population.site]
        return site_days(schedules, ahead, population.site, population.sites), price
