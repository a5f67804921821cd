"""What is asked of a plan, and the words for what decided it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from schedules import even
from schedules.history import Floats
from schedules.population import Population
from schedules.schedule import FEED_CYCLES, WEEK_HOURS
from schedules.staleness import Objective

WEEK_DAYS = 7
GROUPED = ("groups", "groups6")
EVEN = tuple(even.RULES)
POLICIES = ("optimal", *GROUPED, *EVEN, "adaptive")
# These spend what they spend, whatever the budget.
UNBOUNDED = (*GROUPED, "adaptive")
# What decided how often a target is visited: the price of a request, its longest or shortest
# interval, the prior alone as it was never seen, the schedule it had, that its hours have to be
# explored first, the policy's rule.
BOUNDS = ("price", "floor", "ceiling", "prior", "kept", "exploration", "rule")
PRICE, FLOOR, CEILING, PRIOR, KEPT, EXPLORATION, RULE = range(len(BOUNDS))


class BudgetTooSmall(ValueError):
    """The budget does not cover one visit of each target in its longest interval."""

    def __init__(self, least_per_day: float, targets: int) -> None:
        super().__init__(f"{targets} targets need {least_per_day:g} requests a day at least")
        self.least_per_day = least_per_day
        self.targets = targets


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked of a plan.

    budget_per_day: requests, as a mean over weeks   daily_cap, hourly_cap: requests at most on a
    UTC day and in a UTC hour   aim: what to minimise
    """

    policy: str = "optimal"
    budget_per_day: float = float("inf")
    daily_cap: float | None = None
    hourly_cap: float | None = None
    aim: Objective = field(default_factory=Objective)


def least_visits(population: Population) -> Floats:
    """(n,) visits a week that keep each target's longest interval."""
    # Pages have the shorter ones of the cycles of feeds.
    cycles = np.array(FEED_CYCLES[::-1])
    place = np.searchsorted(cycles, population.max_hours / WEEK_HOURS, "right")
    weeks = cycles[np.maximum(place - 1, 0)]
    often = np.ceil(WEEK_HOURS / np.maximum(population.max_hours, 1))
    result: Floats = np.where(population.max_hours >= WEEK_HOURS, 1 / weeks, often)
    return result


def least_per_day(population: Population) -> float:
    """Requests a day without which some target waits longer than its longest interval."""
    return float(least_visits(population).sum() / WEEK_DAYS)
