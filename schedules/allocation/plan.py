"""Make a plan from histories: estimate, allocate, place, and record the reasons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedules.allocation import policies
from schedules.allocation.draft import (
    MAX_SAMPLE,
    columns_of,
    draft,
    draft_shards,
    estimates_of,
    sampled,
)
from schedules.allocation.outlook import outlook
from schedules.estimation.estimate import Estimate, estimate, lowest_keys
from schedules.history import Floats, Histories, Ints
from schedules.placement.leveling import level
from schedules.placement.load import Caps
from schedules.population import Population
from schedules.schedule import WEEK_DAYS, Schedules
from schedules.shards import Columns, InMemory, Shards
from schedules.terms import (
    BUDGET,
    KEPT,
    LIMITS,
    POLICIES,
    PRIOR,
    UNBOUNDED,
    BudgetTooSmall,
    Terms,
    least_per_day,
)

__all__ = [
    "LIMITS",
    "POLICIES",
    "BudgetTooSmall",
    "GoalTooHigh",
    "Plan",
    "Terms",
    "budget_for",
    "least_per_day",
    "plan",
]

HALVINGS = 14
# Slots are hours, so the maximum is one visit an hour.
MAX_PER_DAY = 24.0


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
    least = least_per_day(population)
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
        made = policies.draft(estimates, terms, current)
        price = made.price
        columns["schedules"], columns["expected"] = made.schedules, made.outlook
        columns["reasons"] = made.value, made.worth, made.bound
    complete(shards, population, terms, now_hours)
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
    complete(shards, sample.population, terms, now_hours)
    return price


def complete(shards: Shards, sites: Population, terms: Terms, now_hours: float) -> None:
    """Keep the caps of hours in drafted schedules, and compute the other figures of a plan.

    sites: any targets of the population
    """
    caps = Caps.of(terms, sites)
    if caps.by_hour:
        level(shards, caps, sites.open_hours, sites.ahead(now_hours))
    shards.each(finish, caps.by_hour)


def finish(columns: Columns, is_leveled: bool) -> None:
    """Find out which targets of a shard have new schedules, and what limits their visits.

    is_leveled: whether their slots have changed since they were drafted
    """
    estimates, schedules = estimates_of(columns), columns["schedules"]
    if is_leveled:
        columns["expected"] = outlook(estimates, schedules)
    moved = ~schedules.same_as(columns["current"])
    value, worth, bound = columns["reasons"]
    bound = np.where((bound == BUDGET) & ~moved, KEPT, bound)
    bound = np.where(np.isnan(estimates.histories.until), PRIOR, bound).astype(np.uint8)
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
    population: Population,
    histories: Histories,
    now_hours: float,
    freshness: float | None = None,
    max_age_days: float | None = None,
) -> float:
    """Return the requests a day with which the optimal policy is expected to reach a goal.

    freshness:    mean share of time in which a copy is fresh
    max_age_days: mean age of a copy; give exactly one of the two

    If there are very many targets, a sample of them is planned. Raises GoalTooHigh if no budget
    reaches the goal.
    """
    sample, share = sampled(estimate(population, histories))
    return budget_of_sample(sample, share, now_hours, freshness, max_age_days)


def budget_of_sample(
    sample: Estimate,
    share: float,
    now_hours: float,
    freshness: float | None = None,
    max_age_days: float | None = None,
) -> float:
    """Return the same as `budget_for`, from a sample of the targets. share: of all targets."""
    none = Schedules.none(len(sample.population))

    def reached(per_day: float) -> float:
        """Return by how much a budget exceeds the goal; negative if it falls short."""
        terms = Terms(budget_per_day=per_day)
        outlook = draft(sample, terms, now_hours, none).outlook
        if freshness is not None:
            return float(1 - outlook.stale.mean()) - freshness
        return (max_age_days or 0.0) - float(outlook.age_days.mean())

    low, high = least_per_day(sample.population), MAX_PER_DAY * len(sample.population)
    if (surplus := reached(high)) < 0:
        best = freshness + surplus if freshness is not None else (max_age_days or 0.0) - surplus
        raise GoalTooHigh(best)
    if reached(low) >= 0:
        return low / share
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if reached(middle) >= 0 else (middle, high)
    return high / share
