"""Compute the expected stale share and age of schedules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.compiled import Part, compiled, parts, spread_over
from schedules.cost import MAX_RATE, Objective, curves
from schedules.estimation.estimate import Estimate
from schedules.history import Floats, Ints
from schedules.placement.placement import cycle_cost
from schedules.schedule import WEEK_DAYS, WEEK_HOURS, Schedules

STALE, AGE = Objective(1.0, 0.0, 0.0), Objective(0.0, 1.0, 0.0)


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
        slotted = _slotted_outlook(estimates.profiles(part), node, weeks, first - first[0], slots)
        # Even visits of a Poisson process (Cho and Garcia-Molina 2003), averaged over the rate's
        # nodes.
        every = schedules.every_hours[part]
        interval = np.maximum(every, 1e-9)[:, None] / WEEK_HOURS
        x = node * interval
        fresh = np.where(x > 1e-6, -np.expm1(-x) / np.maximum(x, 1e-9), 1 - x / 2)
        age = np.where(x > 1e-3, 0.5 - (1 - fresh) / np.maximum(x, 1e-9), x / 6)
        even = 1 - fresh.mean(1), (age * interval).mean(1) * WEEK_DAYS
        return Outlook(*(np.where(every > 0, a, b) for a, b in zip(even, slotted, strict=True)))

    pieces = spread_over(work, parts(len(schedules)))
    return Outlook(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


@compiled
def _slotted_outlook(
    profile: Floats, node: Floats, weeks: Ints, first: Ints, slots: Ints
) -> tuple[Floats, Floats]:
    """Return stale share and age in days of schedules with slots; 1 and inf without slots."""
    stale, age = np.ones(len(weeks)), np.full(len(weeks), np.inf)
    weight = np.full(node.shape[1], 1 / node.shape[1])
    for i in range(len(weeks)):
        own = slots[first[i] : first[i + 1]]
        if len(own):
            c = curves(profile[i], node[i], weight)
            stale[i] = cycle_cost(c, STALE, weeks[i], own) / WEEK_HOURS
            age[i] = cycle_cost(c, AGE, weeks[i], own) / WEEK_HOURS
    return stale, age


class Draft(NamedTuple):
    """Hold schedules of n targets with their expected results.

    value: (n,) value of one more visit, worth: (n,) value of the last one; NaN if the policy
           computes none
    bound: (n,) index of terms.LIMITS
    price: of a request
    """

    schedules: Schedules
    outlook: Outlook
    value: Floats
    worth: Floats
    bound: NDArray[np.uint8]
    price: float
