"""Compute the expected cost of the interval between two visits, each in O(1).

Changes are a Poisson process whose rate follows the profile of the local week. The rate is
uncertain and given by k weighted values ("nodes"), so that P(stale at t | visit at a) = 1 - sum_k
w_k e^(-r_k (P(t)-P(a))), where P is the running sum of the profile. Let F(a) be the expected time
that a copy from a visit at `a` stays fresh without any later visit. F follows by backward recursion
over the hours. The fresh time of an interval from `a` to `n` is F(a) less what remains of it at
`n`, e^(-r(P(n)-P(a))) F(n). Running sums from the start of the week would lose all significant
digits for a fast page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.compiled import compiled
from schedules.exponential import exponentials
from schedules.history import DAY_HOURS, Floats
from schedules.schedule import WEEK_HOURS

# e^(2 * 300) still fits in a double. 300 changes a week is one every half hour, faster than any
# schedule of hourly slots can follow.
MAX_RATE = 300.0


class Objective(NamedTuple):
    """Hold the weights of a plan's objective: hours of staleness, days of age, days of delay."""

    stale: float = 0.95
    age: float = 0.2
    delay: float = 0.02


class Curves(NamedTuple):
    """Hold the expected course after a visit at each hour of two weeks, t = 0 to 336, for k nodes.

    weight: (k,)
    rate:   (k,) changes a week, > 0
    grow:   (k, 337) e^(r P(t))
    drop:   (k, 337) e^(-r P(t))
    kept:   (k, 337) integral of e^(-r (P(s) - P(t))) over all s > t, in hours
    moment: (k, 337) integral of (s - t) e^(-r (P(s) - P(t))) over all s > t
    mass:   (337,) expected changes up to t
    lever:  (337,) sum of the expected changes up to t, each times its hour
    """

    weight: Floats
    rate: Floats
    grow: Floats
    drop: Floats
    kept: Floats
    moment: Floats
    mass: Floats
    lever: Floats


@compiled
def curves(profile: Floats, rate: Floats, weight: Floats) -> Curves:
    """Return the curves of a target. profile: (168,) sums to 1; rate, weight: (k,) nodes."""
    k, size = len(rate), 2 * WEEK_HOURS + 1
    grow, drop = np.empty((k, size)), np.empty((k, size))
    kept, moment = np.empty((k, size)), np.empty((k, size))
    mass, lever = np.zeros(size), np.zeros(size)
    mean = (rate * weight).sum()
    for t in range(WEEK_HOURS):
        expected = mean * profile[t]
        mass[t + 1] = mass[t] + expected
        lever[t + 1] = lever[t] + expected * (t + 0.5)
    # Loop over hours, because Numba takes seconds to compile slice assignments.
    whole, turn = mass[WEEK_HOURS], lever[WEEK_HOURS]
    for t in range(WEEK_HOURS + 1):
        mass[WEEK_HOURS + t] = whole + mass[t]
        lever[WEEK_HOURS + t] = turn + lever[t] + WEEK_HOURS * mass[t]
    _one_week(profile, rate, grow, drop, kept, moment)
    for i in range(k):
        growth, decline = grow[i, WEEK_HOURS], drop[i, WEEK_HOURS]
        # Iterate backward: hour 0 of the second week is hour 168 of the first and is read last.
        for t in range(WEEK_HOURS, -1, -1):
            grow[i, WEEK_HOURS + t] = growth * grow[i, t]
            drop[i, WEEK_HOURS + t] = decline * drop[i, t]
            kept[i, WEEK_HOURS + t] = kept[i, t]
            moment[i, WEEK_HOURS + t] = moment[i, t]
    return Curves(weight, rate, grow, drop, kept, moment, mass, lever)


@compiled
def _steps(profile: Floats, rate: Floats) -> Floats:
    """Return the (k, 168) probability that no change happens in an hour."""
    step = np.empty((len(rate), WEEK_HOURS))
    for i in range(len(rate)):
        for t in range(WEEK_HOURS):
            step[i, t] = -rate[i] * profile[t]
    exponentials(step.reshape(-1))
    return step


@compiled
def _one_week(
    profile: Floats, rate: Floats, grow: Floats, drop: Floats, kept: Floats, moment: Floats
) -> None:
    """Fill the first week for all nodes. Every week is followed by an identical week."""
    k = len(rate)
    fresh, late = np.empty((k, WEEK_HOURS)), np.empty((k, WEEK_HOURS))
    step = _steps(profile, rate)
    for i in range(k):
        for t in range(WEEK_HOURS):
            x = rate[i] * profile[t]
            # Integrals of e^(-x s) and of s e^(-x s) over the hour; series near x = 0 avoid
            # cancellation.
            fresh[i, t] = (1 - step[i, t]) / x if x > 1e-6 else 1 - x / 2
            late[i, t] = (fresh[i, t] - step[i, t]) / x if x > 1e-3 else 0.5 - x / 3
        drop[i, 0], kept[i, WEEK_HOURS], moment[i, WEEK_HOURS] = 1.0, 0.0, 0.0
    for t in range(WEEK_HOURS):
        for i in range(k):
            drop[i, t + 1] = drop[i, t] * step[i, t]
    for t in range(WEEK_HOURS - 1, -1, -1):
        for i in range(k):
            kept[i, t] = fresh[i, t] + step[i, t] * kept[i, t + 1]
            moment[i, t] = late[i, t] + step[i, t] * (kept[i, t + 1] + moment[i, t + 1])
    for i in range(k):
        gone, left = -np.expm1(-rate[i]), WEEK_HOURS * np.exp(-rate[i])
        later = kept[i, 0] / gone
        much_later = (moment[i, 0] + left * later) / gone
        for t in range(WEEK_HOURS + 1):
            grow[i, t] = 1 / drop[i, t]
            left = drop[i, WEEK_HOURS] * grow[i, t]
            kept[i, t] += left * later
            moment[i, t] += left * (much_later + (WEEK_HOURS - t) * later)


@compiled
def interval_cost(c: Curves, aim: Objective, a: int, n: int) -> float:
    """Return the cost of the hours from a visit at `a` to the next at `n`, 0 <= a < n <= 336."""
    hours = float(n - a)
    fresh, unaged = 0.0, 0.0
    for i in range(len(c.weight)):
        left = c.grow[i, a] * c.drop[i, n]
        kept = c.kept[i, a] - left * c.kept[i, n]
        fresh += c.weight[i] * kept
        unaged += c.weight[i] * (hours * c.kept[i, a] - c.moment[i, a] + left * c.moment[i, n])
    age = hours * hours / 2 - unaged
    delay = n * (c.mass[n] - c.mass[a]) - (c.lever[n] - c.lever[a])
    cost: float = aim.stale * (hours - fresh) + (aim.age * age + aim.delay * delay) / DAY_HOURS
    return cost


@compiled
def long_cost(c: Curves, aim: Objective, a: int, hours: int) -> float:
    """Return the cost of an interval of any length that starts at hour `a` of the week."""
    weeks, n = divmod(a + hours, WEEK_HOURS)
    fresh, unaged = 0.0, 0.0
    for i in range(len(c.weight)):
        left = np.exp(-c.rate[i] * weeks) * c.grow[i, a] * c.drop[i, n]
        fresh += c.weight[i] * (c.kept[i, a] - left * c.kept[i, n])
        unaged += c.weight[i] * (hours * c.kept[i, a] - c.moment[i, a] + left * c.moment[i, n])
    age = hours * hours / 2.0 - unaged
    aged = aim.age * age + aim.delay * _wait(c, a, weeks, n)
    return aim.stale * (hours - fresh) + aged / DAY_HOURS


@compiled
def _wait(c: Curves, a: int, weeks: int, n: int) -> float:
    """Return the total hours that changes wait from a visit at `a` to one at `n`, `weeks` later."""
    end, week = WEEK_HOURS * weeks, c.mass[WEEK_HOURS]
    changes = weeks * week + c.mass[n] - c.mass[a]
    times = weeks * c.lever[WEEK_HOURS] + WEEK_HOURS * week * weeks * (weeks - 1) / 2
    times += c.lever[n] + end * c.mass[n] - c.lever[a]
    wait: float = (end + n) * changes - times
    return wait


@compiled
def split_costs(c: Curves, aim: Objective, a: int, n: int, begin: int, end: int) -> Floats:
    """Return the (end - begin + 1,) cost of the hours from `a` to `n` with one visit in between.

    The cost at z is interval_cost(a, z) + interval_cost(z, n), for z = begin to end. z is the inner
    loop, because the compiler vectorizes it (four hours per instruction).
    """
    cost = np.empty(end - begin + 1)
    for j in range(len(cost)):
        z = begin + j
        wait = z * (c.mass[z] - c.mass[a]) - (c.lever[z] - c.lever[a])
        wait += n * (c.mass[n] - c.mass[z]) - (c.lever[n] - c.lever[z])
        aged = aim.age * ((z - a) * (z - a) + (n - z) * (n - z)) / 2 + aim.delay * wait
        cost[j] = aim.stale * (n - a) + aged / DAY_HOURS
    age = aim.age / DAY_HOURS
    for k in range(len(c.weight)):
        kept, moment, grow, drop = c.kept[k], c.moment[k], c.grow[k], c.drop[k]
        weight = c.weight[k]
        for j in range(len(cost)):
            z = begin + j
            first, second = grow[a] * drop[z], grow[z] * drop[n]
            fresh = kept[a] - first * kept[z] + kept[z] - second * kept[n]
            unaged = (z - a) * kept[a] - moment[a] + first * moment[z]
            unaged += (n - z) * kept[z] - moment[z] + second * moment[n]
            cost[j] -= weight * (aim.stale * fresh + age * unaged)
    return cost


@compiled
def weeks_costs(c: Curves, aim: Objective, weeks: int) -> Floats:
    """Return the (168,) cost of `weeks` weeks between two visits at each hour of the week."""
    hours, cost = float(weeks * WEEK_HOURS), np.empty(WEEK_HOURS)
    for z in range(WEEK_HOURS):
        aged = aim.age * hours * hours / 2 + aim.delay * _wait(c, z, weeks, z)
        cost[z] = aim.stale * hours + aged / DAY_HOURS
    age = aim.age / DAY_HOURS
    for k in range(len(c.weight)):
        kept, moment, gone = c.kept[k], c.moment[k], -np.expm1(-c.rate[k] * weeks)
        for z in range(WEEK_HOURS):
            unaged = hours * kept[z] - gone * moment[z]
            cost[z] -= c.weight[k] * (aim.stale * gone * kept[z] + age * unaged)
    return cost
