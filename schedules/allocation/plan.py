"""Make a plan from histories: estimate, allocate, place, and record the reasons.

The policy `optimal` has one price, which decides over the steps of all targets, in any number of
shards. It is found on a sample first, with the surcharges of full days, so that shards need not
compute steps whose value is far below it. The shards then offer their steps, the budget clears
their demand (`allocate.cleared`), and each places the slots of its own targets. Weeks are balanced
over all shards (`load.balance`). Shards exchange sums of whole numbers, and rows in the order of
their keys, so the result is that of a single shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedules.allocation import policies
from schedules.allocation.allocate import (
    Codes,
    NextStep,
    Offers,
    allocate,
    budget_parts,
    cleared,
    least_parts,
)
from schedules.allocation.optimal import (
    LOWEST_PRICE,
    Candidates,
    Outlook,
    candidates_of,
    outlook,
    schedules_of,
    settled,
    weeks_of,
    why,
)
from schedules.cost import Objective
from schedules.estimation.estimate import Estimate, estimate, lowest_keys
from schedules.history import DAY_HOURS, Floats, Histories, Ints
from schedules.placement.load import (
    PLACES,
    Caps,
    balance,
    coming_visits,
    day_surcharges,
    delay,
    delays_of,
    in_time,
    resumed,
    site_hours,
    week_load,
)
from schedules.population import Columns, InMemory, Population, Shards, min_per_day
from schedules.schedule import (
    PAGE_CYCLES,
    VISIT_PARTS,
    WEEK_DAYS,
    WEEK_HOURS,
    Schedules,
    in_parts,
)
from schedules.terms import (
    AT_MIN_RATE,
    BUDGET,
    EXPLORATION,
    KEPT,
    PRIOR,
    RULE,
    UNBOUNDED,
    BudgetTooSmall,
    Terms,
)

HALVINGS = 14
# Slots are hours, so the maximum is one visit an hour.
MAX_PER_DAY = 24.0
# Number of targets from which the price and the surcharges are estimated.
MAX_SAMPLE = 4_000
# Steps whose value is far below the expected price are not computed.
MIN_VALUE_SHARE = 0.7
FIRST_MIN_VALUE = 16.0
# Rare visits that must not wait can make one week fuller than others; the next try spends less.
TRIES = 3
# Small budgets, in visits a week, are used completely, which takes more tries, cheaper steps, and
# steps that fit although a more valuable one does not.
SMALL_BUDGET, SMALL_TRIES, SMALL_VALUE_SHARE = 1_000, 8, 0.25
MAX_FILLED = 32
# Budgets, in visits a week, whose fullest week may have the budget rounded up.
TINY_BUDGET = 50


class GoalTooHigh(ValueError):
    """Raised if no budget reaches the goal; `best` is the result of hourly visits to all."""

    def __init__(self, best: float) -> None:
        super().__init__(f"even hourly visits to all targets only reach {best:g}")
        self.best = best


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold a schedule for each of n targets, and the estimates behind it.

    estimates: profiles and rates
    rate, rate_low, rate_high: (n,) changes a week, with 5 % and 95 % quantiles
    stale, age_days: (n,) expected share of time stale, mean age in days
    value: (n,) value of one more visit, comparable with `price`
    worth: (n,) value of the last visit, which removing it would lose; NaN if the policy computes
        none
    bound: (n,) what limited the visits, an index of LIMITS
    updated: (n,) whether the schedule is new
    """

    estimates: Estimate
    schedules: Schedules
    rate: Floats
    rate_low: Floats
    rate_high: Floats
    stale: Floats
    age_days: Floats
    value: Floats
    worth: Floats
    bound: NDArray[np.uint8]
    updated: NDArray[np.bool_]
    price: float

    def figures(self, rows: Ints) -> dict[str, Floats]:
        """Return the expected figures of some targets by name: changes a week, freshness, age."""
        return {
            "rate_per_week": self.rate[rows],
            "rate_low": self.rate_low[rows],
            "rate_high": self.rate_high[rows],
            "freshness": 1 - self.stale[rows],
            "age_days": self.age_days[rows],
        }

    @property
    def requests_per_day(self) -> float:
        """Return the mean number of requests a day."""
        return float(self.schedules.visits_per_week.sum() / WEEK_DAYS)


def plan(
    population: Population,
    histories: Histories,
    terms: Terms,
    now_hours: float,
    current: Schedules | None = None,
) -> Plan:
    """Return a plan for all targets from `now_hours`, in hours since 1970 (UTC).

    current: schedules so far, without slots for unplanned targets; None if none is planned

    Raises BudgetTooSmall if the budget does not keep every target's longest interval.
    """
    least = min_per_day(population)
    if terms.policy not in UNBOUNDED and terms.budget_per_day < least * (1 - 1e-9):
        raise BudgetTooSmall(least, len(population))
    current = Schedules.none(len(population)) if current is None else current
    estimates = estimate(population, histories)
    columns = columns_of(estimates, current)
    shards = InMemory([columns])
    if terms.policy == "optimal":
        sample, _ = sampled(estimates)
        price = draft_shards(shards, sample, len(population), terms, now_hours)
    else:
        policy_draft, n = policies.schedules_by_policy(estimates, terms, current), len(population)
        columns["schedules"], columns["expected"] = policy_draft, outlook(estimates, policy_draft)
        unknown, price = np.full(n, np.nan), np.nan
        columns["reasons"] = unknown, unknown, np.full(n, RULE, np.uint8)
    shards.each(finish)
    return plan_of(columns, price)


def plan_shards(
    shards: Shards, counts: Ints, least: float, terms: Terms, now_hours: float
) -> float:
    """Make the optimal plan for targets in shards; return the price of a request.

    counts: (h,) number of targets of each shard
    least:  requests a day that keep every target's longest interval

    The shards are estimated (`estimate_shards`) and have a column `current`. Afterwards, `plan_of`
    returns the plan of each. Raises BudgetTooSmall as `plan` does.
    """
    n = int(counts.sum())
    if terms.budget_per_day < least * (1 - 1e-9):
        raise BudgetTooSmall(least, n)
    sample = lowest_keys(shards, counts, MAX_SAMPLE)
    price = draft_shards(shards, sample, n, terms, now_hours)
    shards.each(finish)
    return price


def finish(columns: Columns) -> None:
    """Determine which targets of a shard have new schedules, and what limits their visits."""
    moved = ~columns["schedules"].same_as(columns["current"])
    value, worth, bound = columns["reasons"]
    bound = np.where((bound == BUDGET) & ~moved, KEPT, bound)
    bound = np.where(np.isnan(columns["last"]), PRIOR, bound).astype(np.uint8)
    columns["reasons"], columns["updated"] = (value, worth, bound), moved


def plan_of(columns: Columns, price: float) -> Plan:
    """Return the plan of a shard's targets."""
    estimates = estimates_of(columns)
    _, mean, low, high = estimates.all_rates
    value, worth, bound = columns["reasons"]
    stale, age_days = columns["expected"]
    return Plan(
        estimates, columns["schedules"], mean, low, high, stale, age_days,
        value, worth, bound, columns["updated"], price,
    )  # fmt: skip


def budget_for(
    sample: Estimate,
    share: float,
    now_hours: float,
    freshness: float | None = None,
    max_age_days: float | None = None,
) -> float:
    """Return the requests a day with which the optimal policy is expected to reach a goal.

    share:        share of all targets that are in the sample
    freshness:    mean share of time in which a copy is fresh
    max_age_days: mean age of a copy; give exactly one of the two

    Raises GoalTooHigh if no budget reaches the goal.
    """
    none = Schedules.none(len(sample.population))

    def reached(per_day: float) -> float:
        """Return by how much a budget exceeds the goal; negative if it falls short."""
        terms = Terms(budget_per_day=per_day)
        expected, _ = draft(sample, terms, now_hours, none)
        if freshness is not None:
            return float(1 - expected.stale.mean()) - freshness
        return (max_age_days or 0.0) - float(expected.age_days.mean())

    low, high = min_per_day(sample.population), MAX_PER_DAY * len(sample.population)
    if (surplus := reached(high)) < 0:
        best = freshness + surplus if freshness is not None else (max_age_days or 0.0) - surplus
        raise GoalTooHigh(best)
    try:
        surplus = reached(low)
    except BudgetTooSmall as error:
        # On a site with closed days, the longest intervals may need more visits.
        low = error.min_per_day
        surplus = reached(low)
    if surplus >= 0:
        return low / share
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if reached(middle) >= 0 else (middle, high)
    return high / share


def draft(
    estimates: Estimate, terms: Terms, now: float, current: Schedules
) -> tuple[Outlook, float]:
    """Return what the best schedules for the budget are expected to give, and a request's price.

    Current schedules are kept if others are hardly better.

    Raises BudgetTooSmall if the budget does not keep every target's longest interval.
    """
    columns = columns_of(estimates, current)
    sample = sampled(estimates)[0]
    price = draft_shards(InMemory([columns]), sample, len(estimates.population), terms, now)
    return columns["expected"], price


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


def draft_shards(shards: Shards, sample: Estimate, n: int, terms: Terms, now: float) -> float:
    """Draft schedules for all shards, and return the price of a request.

    sample: up to MAX_SAMPLE of the n targets, those with the lowest keys
    now:    in hours since 1970 (UTC)

    Raises BudgetTooSmall if the budget does not keep every target's longest interval.
    """
    population, share = sample.population, len(sample.population) / n if n else 1.0
    whole = terms.budget_per_day * WEEK_DAYS
    is_small = whole <= SMALL_BUDGET
    small = _Sample(sample, terms, now, share)
    days = day_surcharges(small.loads, Caps.of(terms, population, share), population.sites)
    surcharge, price = small.surcharge(days), small.allocated(days)[1]
    value_share = SMALL_VALUE_SHARE if is_small else MIN_VALUE_SHARE
    least = sum(shards.each(offer, terms.aim, surcharge, value_share * price))
    needed = least / VISIT_PARTS
    if needed > whole * (1 + 1e-6):
        raise BudgetTooSmall(needed / WEEK_DAYS, n)
    # Visits are whole, so the fullest week can have one more than the mean. That is much of a small
    # budget, so try all of it first.
    budget = max(whole if is_small else whole - 1, needed)
    most = float(np.ceil(whole - 1e-6)) if whole <= TINY_BUDGET else whole
    tries = SMALL_TRIES if is_small else TRIES
    for tries_left in range(tries - 1, -1, -1):
        clearing = cleared(lambda codes: shards.each(demand, codes), least, budget)
        taken = shards.each(take, clearing.marginal, own=[(left,) for left in clearing.left])
        price = clearing.price([lowest for lowest, _ in taken])
        if is_small:
            fill(shards, budget_parts(budget) - sum(parts for _, parts in taken))
            price = price_of(shards, price)
        cycles = np.array(shards.each(count_cycles))
        before = np.cumsum(cycles, axis=0) - cycles
        shards.each(place, terms.aim, surcharge, price, now, own=[(own,) for own in before])
        balance(shards, now)
        load = np.sum(shards.each(load_of_weeks), axis=0) / VISIT_PARTS
        over = np.maximum(load - most, 0)
        if over.max() <= 1e-6:
            break
        # If cycles of different lengths collide in a few weeks, a few visits less are enough.
        excess = float(over.mean() if is_small and tries_left > 1 else over.max())
        budget = max(min(budget, float(load.mean())) - excess, needed)
    # Pages that were visited since the last plan got longer intervals, the others shorter ones: for
    # some days, more visits come than the intervals have on average.
    if load.any():
        # In whole hours, so that plans do not depend on the second of the replan.
        hour = float(np.floor(now))
        coming = np.sum(shards.each(coming_visits, hour), axis=0)
        shards.each(delay, delays_of(coming, float(load.mean()) / WEEK_HOURS), hour)
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


def take(columns: Columns, marginal: float, left: int) -> tuple[float, int]:
    """Take the steps of a shard at a price; arguments as in `Offers.taken`.

    Returns the lowest value taken, and the visits of all targets in parts.
    """
    taken = _offers(columns).taken(marginal, left)
    columns["chosen"] = taken.chosen
    visits = columns["candidates"].steps.visits[taken.chosen]
    return taken.lowest, int(in_parts(visits).sum())


def fill(shards: Shards, left: int) -> None:
    """Take the most valuable further steps that fit into `left` parts, at most MAX_FILLED."""
    for _ in range(MAX_FILLED):
        offered = enumerate(shards.each(next_step, left))
        steps = [(-step.value, step.key, number, step) for number, step in offered if step]
        if not steps:
            break
        _, _, number, step = min(steps)
        shards.one(number, take_next, step.row)
        left -= step.parts


def price_of(shards: Shards, price: float) -> float:
    """Return the value of the last visit that no step of a higher value was omitted for.

    price: returned if there is no such visit
    """
    omitted = max(shards.each(highest_omitted))
    lowest = min(shards.each(lowest_taken, omitted))
    return lowest if lowest < np.inf else max(omitted, 0.0) or price


def highest_omitted(columns: Columns) -> float:
    """Return the highest value of the next steps of a shard; -inf if there are none."""
    steps, following = columns["candidates"].steps, columns["chosen"] + 1
    return float(steps.value[following[following < steps.first[1:]]].max(initial=-np.inf))


def lowest_taken(columns: Columns, least: float) -> float:
    """Return the lowest value of a shard's taken steps that is `least` or more; inf if none is."""
    steps, chosen = columns["candidates"].steps, columns["chosen"]
    is_taken = np.arange(len(steps.value)) <= np.repeat(chosen, np.diff(steps.first))
    value = steps.value[is_taken]
    return float(value[value >= least].min(initial=np.inf))


def next_step(columns: Columns, left: int) -> NextStep | None:
    """Return the most valuable further step of a shard that fits into `left` parts."""
    return _offers(columns).next_within(columns["chosen"], left)


def take_next(columns: Columns, row: int) -> None:
    """Take the next step of a target of a shard."""
    chosen: Ints = columns["chosen"]
    chosen[row] += 1
    # Engines store a column when it is set.
    columns["chosen"] = chosen


def count_cycles(columns: Columns) -> Ints:
    """Return the (PLACES,) number of targets with each cycle length; drop the offers of a shard."""
    columns.pop("offers", None)
    weeks = weeks_of(columns["chosen"], columns["candidates"].steps, PAGE_CYCLES)
    return np.bincount(weeks, minlength=PLACES)


def place(
    columns: Columns, aim: Objective, surcharge: Floats, price: float, now: float, before: Ints
) -> None:
    """Place the slots of a shard's targets, except for the balance of weeks.

    before: (PLACES,) number of targets with each cycle length in earlier shards
    """
    estimates, current = estimates_of(columns), columns["current"]
    candidates: Candidates = columns["candidates"]
    population, last = estimates.population, columns["last"]
    new = schedules_of(columns["chosen"], candidates, population.key, PAGE_CYCLES, before)
    schedules, expected = settled(estimates, aim, surcharge, price, new, current)
    schedules = resumed(schedules, current, population, now)
    schedules = in_time(schedules, ~schedules.same_as(current), population, last, now)
    columns["schedules"], columns["expected"] = schedules, expected


def load_of_weeks(columns: Columns) -> Ints:
    """Return the (ROUND_WEEKS,) visits of a shard in each week of the round, in parts."""
    return week_load(columns["schedules"])


def give_reasons(columns: Columns) -> None:
    """Set the value of one more visit, the worth of the last one, and what limits the visits."""
    value, worth, bound = why(columns.pop("candidates"), columns.pop("chosen"))
    explored = (columns["schedules"].every_hours > 0) & (bound != AT_MIN_RATE)
    bound = np.where(explored, EXPLORATION, bound).astype(np.uint8)
    columns["reasons"] = value, worth, bound


def sampled(estimates: Estimate) -> tuple[Estimate, float]:
    """Return a sample of the targets (all if there are few), and its share of all targets."""
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
        worth = estimates.population.weight / estimates.population.cost
        # Values are proportional to weights, so plans do not depend on the unit of the weights.
        self.lowest = LOWEST_PRICE * float(worth.min()) if len(worth) else LOWEST_PRICE
        self.least = FIRST_MIN_VALUE * float(worth.mean()) if len(worth) else FIRST_MIN_VALUE

    def surcharge(self, surcharges: Floats) -> Floats:
        """Return the (s, 168) surcharges of local hours from the (s, 7) surcharges of UTC days."""
        return np.take_along_axis(surcharges, self.utc_day, 1) + self.estimates.population.closed

    def allocated(self, surcharges: Floats) -> tuple[Schedules, float]:
        """Return the allocated schedules, and the price of the last visit."""
        key, surcharge = self.estimates.population.key, self.surcharge(surcharges)
        while True:
            candidates = candidates_of(self.estimates, self.aim, surcharge, self.least)
            allocation = allocate(candidates.steps, key, self.budget)
            # If every candidate was taken, the true price is lower: offer cheaper ones.
            if self.least <= self.lowest or not allocation.exhausted:
                break
            self.least = max(self.least / 4, self.lowest)
        self.least = max(min(MIN_VALUE_SHARE * allocation.price, self.least), self.lowest)
        return schedules_of(allocation.chosen, candidates, key, PAGE_CYCLES), allocation.price

    def loads(self, surcharges: Floats) -> tuple[Floats, float]:
        """Return the (s, 7) visits of each site on each UTC day of the week, and the price."""
        allocated, price = self.allocated(surcharges)
        surcharge, none = self.surcharge(surcharges), Schedules.none(len(allocated))
        schedules, _ = settled(self.estimates, self.aim, surcharge, price, allocated, none)
        population = self.estimates.population
        ahead = self.ahead[population.site]
        hours = site_hours(schedules, ahead, population.site, population.sites)
        return hours.reshape(-1, WEEK_DAYS, DAY_HOURS).sum(2), price
