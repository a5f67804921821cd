"""The budget that a goal needs: so much freshness, or so little age."""

from __future__ import annotations

import numpy as np

from schedules.estimate import estimate
from schedules.history import Histories
from schedules.market import draft, sampled
from schedules.population import Population
from schedules.schedule import Schedules
from schedules.terms import Terms, least_per_day

HALVINGS = 14
# A visit every hour to every target is the most that slots allow.
MOST_PER_DAY = 24.0


class GoalTooHigh(ValueError):
    """No budget reaches the goal; `best` is what hourly visits to all would."""

    def __init__(self, best: float) -> None:
        super().__init__(f"even hourly visits to all reach {best:g} only")
        self.best = best


def budget_for(
    population: Population,
    histories: Histories,
    now_hours: float,
    freshness: float | None = None,
    max_age_days: float | None = None,
) -> float:
    """Requests a day with which the optimal policy is expected to reach a goal.

    freshness: mean share of time that a copy is fresh   max_age_days: mean age of a copy; one of
    the two. GoalTooHigh where no budget does.

    Judged by some of the targets where there are very many.
    """
    some, share = sampled(estimate(population, histories))
    none = Schedules.none(len(some.population))

    def reached(per_day: float) -> float:
        """How far beyond the goal a budget gets: negative where it falls short."""
        outlook = draft(some, Terms(budget_per_day=per_day), now_hours, none).outlook
        if freshness is not None:
            return float(1 - outlook.stale.mean()) - freshness
        return (max_age_days or 0.0) - float(outlook.age_days.mean())

    low, high = least_per_day(some.population), MOST_PER_DAY * len(some.population)
    if (surplus := reached(high)) < 0:
        best = freshness + surplus if freshness is not None else (max_age_days or 0.0) - surplus
        raise GoalTooHigh(best)
    if reached(low) >= 0:
        return low / share
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if reached(middle) >= 0 else (middle, high)
    return high / share
