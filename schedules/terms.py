"""Define the terms of a plan, the policies, and the reasons that limit a target's visits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from schedules.cost import Objective
from schedules.history import Floats

GROUPED = ("groups", "groups6")
EVEN = ("uniform", "sqrt", "freshness", "harmonic", "age")
POLICIES = ("optimal", *GROUPED, *EVEN, "adaptive")
# These policies ignore the budget.
UNBOUNDED = (*GROUPED, "adaptive")
# What limited a target's number of visits: the price of a request, the longest or shortest
# interval, the prior only because the target was never seen, its previous schedule, the exploration
# of hours, or the rule of the policy.
LIMITS = ("budget", "min_rate", "max_rate", "prior", "kept", "exploration", "rule")
BUDGET, AT_MIN_RATE, AT_MAX_RATE, PRIOR, KEPT, EXPLORATION, RULE = range(len(LIMITS))
HALVINGS = 200
MIN_RATE = 1e-6
TABLE_POINTS = 4_000


class BudgetTooSmall(ValueError):
    """Raised if the budget does not cover one visit to each target in its longest interval."""

    def __init__(self, min_per_day: float, targets: int) -> None:
        super().__init__(f"{targets} targets need at least {min_per_day:g} requests a day")
        self.min_per_day = min_per_day
        self.targets = targets


@dataclass(frozen=True, slots=True)
class Terms:
    """Hold the terms of a plan.

    budget_per_day:        mean requests a day over weeks
    daily_cap, hourly_cap: maximum requests per UTC day and per UTC hour
    aim:                   objective to minimize
    """

    policy: str = "optimal"
    budget_per_day: float = float("inf")
    daily_cap: float | None = None
    hourly_cap: float | None = None
    aim: Objective = field(default_factory=Objective)


def visits_per_week(
    rule: str, rate: Floats, weight: Floats, budget: float, least: Floats, most: Floats
) -> Floats:
    """Return the (n,) visits a week that use `budget`, or as much of it as the limits allow.

    rule:        one of EVEN
    rate:        (n,) changes a week
    weight:      (n,) importance divided by cost
    budget:      total visits a week
    least, most: (n,) visits a week

    The total falls as the price of a visit rises, so the price is found by bisection on its
    logarithm.
    """
    rate = np.maximum(rate, MIN_RATE)

    def within(log_price: float) -> Floats:
        return np.clip(_visits_at_price(float(np.exp(log_price)), rule, rate, weight), least, most)

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


def _visits_at_price(price: float, rule: str, rate: Floats, weight: Floats) -> Floats:
    """Return the (n,) visits a week at which the marginal value of a visit equals the price.

    The freshness and age rules are the optima of Cho and Garcia-Molina (2003), the harmonic rule is
    that of LambdaCrawl. With r = rate / visits and g(r) = 1 - (1 + r) e^-r, freshness solves g(r) =
    price * rate / weight, and age r^2 / 2 - g(r) = price * rate^2 / weight. Both are inverted by
    table look-up.
    """
    result: Floats
    if rule == "uniform":
        result = np.full(len(rate), 1 / price)
    elif rule == "sqrt":
        result = np.sqrt(weight * rate) / price
    elif rule == "harmonic":
        result = (np.sqrt(rate**2 + 4 * weight * rate / price) - rate) / 2
    elif rule == "freshness":
        # If price * rate / weight is 1 or more, the equation has no solution: no visit is worth the
        # price.
        ratio, gain, _ = _gain_tables()
        r = np.interp(price * rate / weight, gain, ratio, right=np.inf)
        result = rate / np.maximum(r, ratio[0])
    else:
        # Unlike freshness, age has a solution at every rate, so that no page is given up.
        ratio, _, gain = _gain_tables()
        result = rate / np.interp(price * rate**2 / weight, gain, ratio)
    return result


@cache
def _gain_tables() -> tuple[Floats, Floats, Floats]:
    """Return r, g(r) = 1 - (1 + r) e^-r and r^2 / 2 - g(r), all ascending.

    Series near r = 0 avoid cancellation.
    """
    r = np.geomspace(1e-5, 1e5, TABLE_POINTS)
    gain = np.where(r < 1e-3, r**2 / 2 - r**3 / 3, -np.expm1(-r) - r * np.exp(-r))
    aged = np.where(r < 1e-3, r**3 / 3, r**2 / 2 - gain)
    return r, gain, aged
