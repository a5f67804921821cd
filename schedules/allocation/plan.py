"""Make a plan from histories: estimate, allocate, place, and record the reasons.

The policy `optimal` has one price, which decides over the steps of all targets, in any number of
shards. It is found on a sample first, with the surcharges of full days, so that shards need not
compute steps whose value is far below it. The shards then offer their steps, the budget clears
their demand (`allocate.cleared`), and each places the slots of its own targets. Weeks are balanced
over all shards (`load.balance`). Shards exchange sums of whole numbers, and rows in the order of
their keys, so the result is that of a single shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

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
from schedules.allocation.signals import Coverage, Signaled, signaled
from schedules.cost import Objective
from schedules.estimation.estimate import Estimate, RatedShard, Rates, estimate, lowest_keys
from schedules.history import DAY_HOURS, Floats, Histories, Ints
from schedules.placement.load import (
    PLACES,
    Caps,
    PlacedShard,
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
from schedules.population import InMemory, Population, Shards, min_per_day
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
# Rounds in which the price of a plan with signals is found between these shares of the price
# without them, and the share of the smallest possible budget that is left to polls.
SIGNAL_ROUNDS, LOWER_PRICE, HIGHER_PRICE, LEAST_SHARE = 10, 64.0, 8.0, 1.02
# A plan with signals that spends more than its budget by this share is made again.
SPENDING_TRIES, MAX_EXCESS = 3, 0.005
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
    signals: what sources are expected to show; None without any
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
    signals: Signaled | None = None

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
    def follows(self) -> NDArray[np.bool_]:
        """Return the (n,) targets of which a visit that a signal asks for is worth its price."""
        follows = np.zeros(len(self.rate), np.bool_)
        if self.signals is not None:
            follows[self.signals.shown.item] = True
        return follows

    @property
    def flags_per_day(self) -> float:
        """Return the visits that signals are expected to ask for, besides the schedules."""
        if self.signals is None:
            return 0.0
        visits = self.schedules.visits_per_week[self.signals.shown.source]
        return float(self.signals.flagged(visits).sum()) / WEEK_DAYS

    @property
    def lists_per_day(self) -> float:
        """Return the scheduled visits of sources that show changes of others."""
        if self.signals is None:
            return 0.0
        shown = self.signals.shown
        sources = shown.source[np.diff(shown.first) > 0]
        return float(self.schedules.visits_per_week[sources].sum()) / WEEK_DAYS

    @property
    def requests_per_day(self) -> float:
        """Return the mean number of scheduled requests a day."""
        return float(self.schedules.visits_per_week.sum() / WEEK_DAYS)


@dataclass(kw_only=True)
class Shard(RatedShard, PlacedShard):
    """Hold a shard's targets, and what the steps of the optimal policy set, in this order.

    candidates, offers: steps of the targets, and their order by value
    chosen:   (n,) last step of each target that is taken
    expected: results of the schedules
    value, worth, bound, updated: (n,) as in Plan
    """

    schedules: Schedules = field(init=False)
    candidates: Candidates = field(init=False)
    offers: Offers = field(init=False)
    chosen: Ints = field(init=False)
    expected: Outlook = field(init=False)
    value: Floats = field(init=False)
    worth: Floats = field(init=False)
    bound: NDArray[np.uint8] = field(init=False)
    updated: NDArray[np.bool_] = field(init=False)

    @classmethod
    def of(cls, estimates: Estimate, current: Schedules) -> Self:
        """Return a shard with all estimated targets."""
        histories = estimates.histories
        shard = cls(
            population=estimates.population,
            histories=histories,
            last=histories.until,
            current=current,
        )
        shard.mixtures, shard.prior = estimates.mixtures, estimates.prior
        shard.given = estimates.given
        shard.rates = estimates.all_rates
        return shard


def plan(
    population: Population,
    histories: Histories,
    terms: Terms,
    now_hours: float,
    current: Schedules | None = None,
    coverage: Coverage | None = None,
) -> Plan:
    """Return a plan for all targets from `now_hours`, in hours since 1970 (UTC).

    current:  schedules so far, without slots for unplanned targets; None if none is planned
    coverage: which targets show changes of others; only the policy `optimal` uses it

    Raises BudgetTooSmall if the budget does not keep every target's longest interval.
    """
    least = min_per_day(population)
    if terms.policy not in UNBOUNDED and terms.budget_per_day < least * (1 - 1e-9):
        raise BudgetTooSmall(least, len(population))
    current = Schedules.none(len(population)) if current is None else current
    estimates = estimate(population, histories)
    if terms.policy == "optimal" and coverage is not None and len(coverage.item):
        return _plan_with_signals(estimates, coverage, terms, now_hours, current)
    return _plan(estimates, terms, now_hours, current)


def _plan_with_signals(
    estimates: Estimate, coverage: Coverage, terms: Terms, now: float, current: Schedules
) -> Plan:
    """Return a plan in which sources show changes, within the budget with the flagged visits."""
    shows, within = with_signals(estimates, coverage, terms, now)
    least = min_per_day(estimates.population) * LEAST_SHARE
    for _ in range(SPENDING_TRIES):
        made = _with_shown(_plan(shows.estimates, within, now, current), shows, estimates.all_rates)
        excess = made.requests_per_day + made.flags_per_day - terms.budget_per_day
        left = max(within.budget_per_day - excess, least)
        if excess <= MAX_EXCESS * terms.budget_per_day or left >= within.budget_per_day:
            break
        # More visits of the sources than at the price of the sample show more changes.
        within = replace(within, budget_per_day=left)
    return made


def _plan(estimates: Estimate, terms: Terms, now_hours: float, current: Schedules) -> Plan:
    """Return a plan for all targets with these estimates."""
    population = estimates.population
    shard = Shard.of(estimates, current)
    if terms.policy == "optimal":
        sample, _ = sampled(estimates)
        price = draft_shards(InMemory([shard]), sample, len(population), terms, now_hours)
    else:
        price, n = np.nan, len(population)
        shard.schedules = policies.schedules_by_policy(estimates, terms, current)
        shard.expected = outlook(estimates, shard.schedules)
        shard.value = shard.worth = np.full(n, np.nan)
        shard.bound = np.full(n, RULE, np.uint8)
    finish(shard)
    return plan_of(shard, price)


def with_signals(
    estimates: Estimate, coverage: Coverage, terms: Terms, now: float
) -> tuple[Signaled, Terms]:
    """Return the estimates for a plan with signals, and the terms without the flagged visits.

    The price decides which flags are followed, and these visits change the price. So it is found by
    bisection, on a sample of the targets.
    """
    rows = np.argsort(estimates.population.key)[:MAX_SAMPLE]
    share = len(rows) / len(estimates.population)
    plain = _Sample(estimates.of(rows), terms, now, share)
    price = plain.allocated(np.zeros((estimates.population.sites, WEEK_DAYS)))[1]
    low, high = price / LOWER_PRICE, price * HIGHER_PRICE
    for _ in range(SIGNAL_ROUNDS):
        middle = float(np.sqrt(low * high))
        shows = signaled(estimates, coverage, middle, terms.aim)
        polls, flags = _requests(shows, rows, terms, middle)
        low, high = (middle, high) if polls + flags > terms.budget_per_day else (low, middle)
    shows = signaled(estimates, coverage, high, terms.aim)
    least = min_per_day(shows.estimates.population) * LEAST_SHARE
    flags = _requests(shows, rows, terms, high)[1]
    left = max(terms.budget_per_day - flags, least)
    return shows, replace(terms, budget_per_day=left)


def _requests(shows: Signaled, rows: Ints, terms: Terms, price: float) -> tuple[float, float]:
    """Return the polls and the followed flags a day at a price. rows: a sample of the targets."""
    sample, source = shows.estimates.of(rows), shows.shown.source
    share = len(rows) / len(shows.estimates.population)
    steps = candidates_of(sample, terms.aim, sample.population.closed, price).steps
    visits = steps.visits[steps.first[1:] - 1].astype(np.float64)
    place = np.minimum(np.searchsorted(source, rows), len(source) - 1)
    drawn = source[place] == rows
    of_source = np.zeros(len(source))
    of_source[place[drawn]] = visits[drawn]
    flags = shows.flagged(of_source)[place[drawn]].sum() * len(source) / max(drawn.sum(), 1)
    return float(visits.sum()) / share / WEEK_DAYS, float(flags) / WEEK_DAYS


def _with_shown(made: Plan, shows: Signaled, rates: Rates) -> Plan:
    """Return a plan whose rates and expected staleness include the changes that sources show."""
    shown, stale = shows.shown, made.stale.copy()
    late = shows.stale_shown(made.schedules.visits_per_week[shown.source])
    stale[shown.item] = 1 - (1 - stale[shown.item]) * (1 - late)
    return replace(
        made, stale=stale, rate=rates.mean, rate_low=rates.low, rate_high=rates.high,
        signals=shows,
    )  # fmt: skip


def plan_shards(
    shards: Shards[Shard], counts: Ints, least: float, terms: Terms, now_hours: float
) -> float:
    """Make the optimal plan for targets in shards; return the price of a request.

    counts: (h,) number of targets of each shard
    least:  requests a day that keep every target's longest interval

    The shards are estimated (`estimate_shards`). Afterwards, `plan_of` returns the plan of each.
    Raises BudgetTooSmall as `plan` does.
    """
    n = int(counts.sum())
    if terms.budget_per_day < least * (1 - 1e-9):
        raise BudgetTooSmall(least, n)
    sample = lowest_keys(shards, counts, MAX_SAMPLE)
    price = draft_shards(shards, sample, n, terms, now_hours)
    shards.each(finish)
    return price


def finish(shard: Shard) -> None:
    """Determine which targets of a shard have new schedules, and what limits their visits."""
    shard.updated = ~shard.schedules.same_as(shard.current)
    bound = np.where((shard.bound == BUDGET) & ~shard.updated, KEPT, shard.bound)
    shard.bound = np.where(np.isnan(shard.last), PRIOR, bound).astype(np.uint8)


def plan_of(shard: Shard, price: float) -> Plan:
    """Return the plan of a shard's targets."""
    (stale, age_days), (_, mean, low, high) = shard.expected, shard.rates
    return Plan(
        shard.estimates, shard.schedules, mean, low, high, stale, age_days,
        shard.value, shard.worth, shard.bound, shard.updated, price,
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
    shard, sample = Shard.of(estimates, current), sampled(estimates)[0]
    price = draft_shards(InMemory([shard]), sample, len(estimates.population), terms, now)
    return shard.expected, price


def draft_shards(
    shards: Shards[Shard], sample: Estimate, n: int, terms: Terms, now: float
) -> float:
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
        shards.each(sort_offers)
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


def offer(shard: Shard, aim: Objective, surcharge: Floats, least: float) -> int:
    """Compute the steps of a shard worth more than `least`; return the parts of the mandatory ones.

    surcharge: (s, 168) of each local hour, inf if closed
    """
    shard.candidates = candidates_of(shard.estimates, aim, surcharge, least)
    return least_parts(shard.candidates.steps)


def sort_offers(shard: Shard) -> None:
    """Sort the steps of a shard, until `count_cycles`: they take much memory."""
    steps, current = shard.candidates.steps, shard.current.visits_per_week
    shard.offers = Offers.of(steps, shard.population.key, current)


def demand(shard: Shard, codes: Codes) -> Ints:
    """Return the demand of a shard, as in Offers."""
    return shard.offers.demand(codes)


def take(shard: Shard, marginal: float, left: int) -> tuple[float, int]:
    """Take the steps of a shard at a price; arguments as in `Offers.taken`.

    Returns the lowest value taken, and the visits of all targets in parts.
    """
    taken = shard.offers.taken(marginal, left)
    shard.chosen = taken.chosen
    visits = shard.candidates.steps.visits[taken.chosen]
    return taken.lowest, int(in_parts(visits).sum())


def fill(shards: Shards[Shard], left: int) -> None:
    """Take the most valuable further steps that fit into `left` parts, at most MAX_FILLED."""
    for _ in range(MAX_FILLED):
        offered = enumerate(shards.each(next_step, left))
        steps = [(-step.value, step.key, number, step) for number, step in offered if step]
        if not steps:
            break
        _, _, number, step = min(steps)
        shards.one(number, take_next, step.row)
        left -= step.parts


def price_of(shards: Shards[Shard], price: float) -> float:
    """Return the value of the last visit that no step of a higher value was omitted for.

    price: returned if there is no such visit
    """
    omitted = max(shards.each(highest_omitted))
    lowest = min(shards.each(lowest_taken, omitted))
    return lowest if lowest < np.inf else max(omitted, 0.0) or price


def highest_omitted(shard: Shard) -> float:
    """Return the highest value of the next steps of a shard; -inf if there are none."""
    steps, following = shard.candidates.steps, shard.chosen + 1
    return float(steps.value[following[following < steps.first[1:]]].max(initial=-np.inf))


def lowest_taken(shard: Shard, least: float) -> float:
    """Return the lowest value of a shard's taken steps that is `least` or more; inf if none is."""
    steps, chosen = shard.candidates.steps, shard.chosen
    is_taken = np.arange(len(steps.value)) <= np.repeat(chosen, np.diff(steps.first))
    value = steps.value[is_taken]
    return float(value[value >= least].min(initial=np.inf))


def next_step(shard: Shard, left: int) -> NextStep | None:
    """Return the most valuable further step of a shard that fits into `left` parts."""
    return shard.offers.next_within(shard.chosen, left)


def take_next(shard: Shard, row: int) -> None:
    """Take the next step of a target of a shard."""
    # A copy: engines store what a step sets.
    shard.chosen = shard.chosen + (np.arange(len(shard.chosen)) == row)


def count_cycles(shard: Shard) -> Ints:
    """Return the (PLACES,) number of targets with each cycle length; drop the offers of a shard."""
    del shard.offers
    weeks = weeks_of(shard.chosen, shard.candidates.steps, PAGE_CYCLES)
    return np.bincount(weeks, minlength=PLACES)


def place(
    shard: Shard, aim: Objective, surcharge: Floats, price: float, now: float, before: Ints
) -> None:
    """Place the slots of a shard's targets, except for the balance of weeks.

    before: (PLACES,) number of targets with each cycle length in earlier shards
    """
    population, current = shard.population, shard.current
    new = schedules_of(shard.chosen, shard.candidates, population.key, PAGE_CYCLES, before)
    schedules, shard.expected = settled(shard.estimates, aim, surcharge, price, new, current)
    schedules = resumed(schedules, current, population, now)
    moved = ~schedules.same_as(current)
    shard.schedules = in_time(schedules, moved, population, shard.last, now)


def load_of_weeks(shard: Shard) -> Ints:
    """Return the (ROUND_WEEKS,) visits of a shard in each week of the round, in parts."""
    return week_load(shard.schedules)


def give_reasons(shard: Shard) -> None:
    """Set the value of one more visit, the worth of the last one, and what limits the visits."""
    shard.value, shard.worth, bound = why(shard.candidates, shard.chosen)
    del shard.candidates, shard.chosen
    explored = (shard.schedules.every_hours > 0) & (bound != AT_MIN_RATE)
    shard.bound = np.where(explored, EXPLORATION, bound).astype(np.uint8)


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
