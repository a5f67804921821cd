"""What is asked of a plan, and the words for what decided it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from schedules.cost import Objective
from schedules.history import Floats
from schedules.population import Population
from schedules.schedule import FEED_CYCLES, WEEK_HOURS

WEEK_DAYS = 7
GROUPED = ("groups", "groups6")
EVEN = ("uniform", "sqrt", "freshness", "harmonic", "age")
POLICIES = ("optimal", *GROUPED, *EVEN, "adaptive")
# These spend what they spend, whatever the budget.
UNBOUNDED = (*GROUPED, "adaptive")
# What decided how often a target is visited: the price of a request, its longest or shortest
# interval, the prior alone as it was never seen, the schedule it had, that its hours have to be
# explored first, the policy's rule.
BOUNDS = ("price", "floor", "ceiling", "prior", "kept", "exploration", "rule")
PRICE, FLOOR, CEILING, PRIOR, KEPT, EXPLORATION, RULE = range(len(BOUNDS))
HALVINGS = 200
MIN_RATE = 1e-6
TABLE_POINTS = 4_000


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


def visits_per_week(
    rule: str, rate: Floats, weight: Floats, budget: float, least: Floats, most: Floats
) -> Floats:
    """(n,) visits a week that spend `budget` visits a week in all, or as near below as limits let.

    rule: one of EVEN   rate: (n,) changes a week   weight: (n,) importance over cost
    least, most: (n,) visits a week
    """
    rate = np.maximum(rate, MIN_RATE)

    def within(log_price: float) -> Floats:
        return np.clip(_visits_at(float(np.exp(log_price)), rule, rate, weight), least, most)

    low, high = -60.0, 60.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if within(middle).sum() > budget:
            low = middle
        else:
            high = middle
        if high - low < 1e-12:
            break
    return within(high)


def _visits_at(price: float, rule: str, rate: Floats, weight: Floats) -> Floats:
    """(n,) visits a week at which one more is worth the price."""
    result: Floats
    if rule == "uniform":
        result = np.full(len(rate), 1 / price)
    elif rule == "sqrt":
        result = np.sqrt(weight * rate) / price
    elif rule == "harmonic":
        result = (np.sqrt(rate**2 + 4 * weight * rate / price) - rate) / 2
    elif rule == "freshness":
        # g(r) = price * rate / weight for r = rate / visits; nothing where it is 1 or more.
        ratio, gain, _ = _tables()
        r = np.interp(price * rate / weight, gain, ratio, right=np.inf)
        result = rate / np.maximum(r, ratio[0])
    else:
        # Age: (r^2 / 2 - g(r)) / rate^2 = price / weight.
        ratio, _, gain = _tables()
        result = rate / np.interp(price * rate**2 / weight, gain, ratio)
    return result


@cache
def _tables() -> tuple[Floats, Floats, Floats]:
    """r, g(r) = 1 - (1 + r) e^-r and r^2 / 2 - g(r), all ascending."""
    r = np.geomspace(1e-5, 1e5, TABLE_POINTS)
    gain = np.where(r < 1e-3, r**2 / 2 - r**3 / 3, -np.expm1(-r) - r * np.exp(-r))
    aged = np.where(r < 1e-3, r**3 / 3, r**2 / 2 - gain)
    return r, gain, aged


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
