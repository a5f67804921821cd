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
from schedules.history import DAY_HOURS, Floats
from schedules.schedule import WEEK_HOURS
from schedules.vectorized import decays, highest

# e^(2 * 300) still fits in a double. 300 changes a week is one every half hour, faster than any
# schedule of hourly slots can follow.
MAX_RATE = 300.0
# Number of nodes whose curves are computed in one loop.
AT_ONCE = 4


class Objective(NamedTuple):
    """Hold the weights of a plan's objective: hours of staleness, days of age, days of delay."""

    stale: float = 0.95
    age: float = 0.2
    delay: float = 0.02


class Curves(NamedTuple):
    """Hold the expected course after a visit at each hour of the week, t = 0 to 168, for k nodes.

    weight: (k,)
    grow:   (k, 169) e^(r P(t))
    drop:   (k, 169) e^(-r P(t))
    kept:   (k, 169) integral of e^(-r (P(s) - P(t))) over all s > t, in hours
    moment: (k, 169) integral of (s - t) e^(-r (P(s) - P(t))) over all s > t
    mass:   (169,) expected changes up to t
    wait:   (169,) expected hours that the changes up to t have waited at t, in total
    """

    weight: Floats
    grow: Floats
    drop: Floats
    kept: Floats
    moment: Floats
    mass: Floats
    wait: Floats


@compiled
def curves(profile: Floats, rate: Floats, weight: Floats) -> Curves:
    """Return the curves of a target.

    profile: (168,) sums to 1
    rate:    (k,) changes a week of each node, > 0
    weight:  (k,) sums to 1
    """
    k, size = len(rate), WEEK_HOURS + 1
    mass, wait = np.zeros(size), np.zeros(size)
    mean, peak = (rate * weight).sum(), highest(profile)
    grow, drop = np.empty((k, size)), np.empty((k, size))
    kept, moment = np.empty((k, size)), np.empty((k, size))
    # `drop` holds the expected changes of each hour until it is set, `grow` holds e^-x of these.
    for i in range(k):
        x = drop[i, :WEEK_HOURS]
        for t in range(WEEK_HOURS):
            x[t] = rate[i] * profile[t]
        fresh, late = kept[i, :WEEK_HOURS], moment[i, :WEEK_HOURS]
        decays(x, rate[i] * peak, grow[i, :WEEK_HOURS], fresh, late)
        drop[i, 0], kept[i, WEEK_HOURS], moment[i, WEEK_HOURS] = 1.0, 0.0, 0.0
    expected, waited = 0.0, 0.0
    for t in range(WEEK_HOURS):
        more = mean * profile[t]
        waited += expected + more / 2
        expected += more
        mass[t + 1], wait[t + 1] = expected, waited
    for i in range(0, k, AT_ONCE):
        rows = i, min(i + 1, k - 1), min(i + 2, k - 1), min(i + 3, k - 1)
        _add_following_hours(grow, drop, kept, moment, rows)
    # Every week is followed by an identical week.
    for i in range(k):
        gone, left = -np.expm1(-rate[i]), WEEK_HOURS * np.exp(-rate[i])
        later = kept[i, 0] / gone
        much_later = (moment[i, 0] + left * later) / gone
        last = drop[i, WEEK_HOURS]
        for t in range(WEEK_HOURS + 1):
            grow[i, t] = 1 / drop[i, t]
            left = last * grow[i, t]
            kept[i, t] += left * later
            moment[i, t] += left * (much_later + (WEEK_HOURS - t) * later)
    return Curves(weight, grow, drop, kept, moment, mass, wait)


@compiled
def _add_following_hours(
    grow: Floats, drop: Floats, kept: Floats, moment: Floats, rows: tuple[int, int, int, int]
) -> None:
    """Turn the figures of single hours into those of the week, for AT_ONCE nodes.

    grow: (k, 169) e^-x of each hour
    rows: nodes; equal ones are computed once

    Each hour waits for the result of the hour before it, so do several nodes in one loop, and keep
    the results in registers.
    """
    a, b, c, d = rows
    drop_a = drop_b = drop_c = drop_d = 1.0
    kept_a = kept_b = kept_c = kept_d = 0.0
    moment_a = moment_b = moment_c = moment_d = 0.0
    for t in range(WEEK_HOURS):
        drop_a, drop_b = drop_a * grow[a, t], drop_b * grow[b, t]
        drop_c, drop_d = drop_c * grow[c, t], drop_d * grow[d, t]
        drop[a, t + 1], drop[b, t + 1] = drop_a, drop_b
        drop[c, t + 1], drop[d, t + 1] = drop_c, drop_d
    for t in range(WEEK_HOURS - 1, -1, -1):
        moment_a = moment[a, t] + grow[a, t] * (kept_a + moment_a)
        moment_b = moment[b, t] + grow[b, t] * (kept_b + moment_b)
        moment_c = moment[c, t] + grow[c, t] * (kept_c + moment_c)
        moment_d = moment[d, t] + grow[d, t] * (kept_d + moment_d)
        kept_a, kept_b = kept[a, t] + grow[a, t] * kept_a, kept[b, t] + grow[b, t] * kept_b
        kept_c, kept_d = kept[c, t] + grow[c, t] * kept_c, kept[d, t] + grow[d, t] * kept_d
        moment[a, t], moment[b, t], moment[c, t], moment[d, t] = (
            moment_a, moment_b, moment_c, moment_d,
        )  # fmt: skip
        kept[a, t], kept[b, t], kept[c, t], kept[d, t] = kept_a, kept_b, kept_c, kept_d


@compiled
def interval_cost(c: Curves, aim: Objective, a: int, n: int) -> float:
    """Return the cost of the hours from a visit at `a` to the next at `n`, 0 <= a < n."""
    hours = n - a
    begin = a % WEEK_HOURS
    weeks, end = divmod(begin + hours, WEEK_HOURS)
    fresh, unaged = 0.0, 0.0
    for i in range(len(c.weight)):
        left = c.grow[i, begin] * c.drop[i, end]
        for _ in range(weeks):
            left *= c.drop[i, WEEK_HOURS]
        fresh += c.weight[i] * (c.kept[i, begin] - left * c.kept[i, end])
        unaged += c.weight[i] * (
            hours * c.kept[i, begin] - c.moment[i, begin] + left * c.moment[i, end]
        )
    age = hours * hours / 2.0 - unaged
    # Changes of whole weeks, and those of the hours from `begin` to `end`.
    week, waited = c.mass[WEEK_HOURS], c.wait[WEEK_HOURS]
    delay = c.wait[end] - c.wait[begin] - hours * c.mass[begin]
    delay += weeks * (waited + end * week) + WEEK_HOURS * week * weeks * (weeks - 1) / 2
    cost: float = aim.stale * (hours - fresh) + (aim.age * age + aim.delay * delay) / DAY_HOURS
    return cost


@compiled
def even_cost(rate: Floats, weight: Floats, aim: Objective, visits: float) -> float:
    """Return the cost of a week with visits at even intervals, if changes follow no profile.

    rate:   (k,) changes a week of each node, > 0
    weight: (k,) sums to 1
    visits: a week, > 0; need not be whole

    The age and the freshness are those of Cho and Garcia-Molina 2003.
    """
    hours, k = WEEK_HOURS / visits, len(rate)
    x, step, fresh, late = rate / visits, np.empty(k), np.empty(k), np.empty(k)
    decays(x, x.max(), step, fresh, late)
    stale, age, changes = 0.0, 0.0, 0.0
    for i in range(k):
        stale += weight[i] * (1 - fresh[i])
        age += weight[i] * hours * (0.5 - fresh[i] + late[i])
        changes += weight[i] * rate[i]
    late_days = (aim.age * WEEK_HOURS * age + aim.delay * changes * hours / 2) / DAY_HOURS
    cost: float = aim.stale * WEEK_HOURS * stale + late_days
    return cost


class Costs(NamedTuple):
    """Hold the components of the costs of a target's intervals, for one objective; t = 0 to 168.

    An interval of h hours between visits at `a` and `n` of a week costs stale h + age h^2 / 2 +
    wait[n] - wait[a] - saved[a] - h pace[a] + grow[a] lost[n], with the sum of the last product
    over the k nodes. So the costs of all hours at which a visit may split an interval take few
    operations each.

    stale, age: costs of an hour of staleness, and of a squared hour of age
    saved: (169,) saving of a visit, regardless of its interval
    pace:  (169,) saving of a visit in each hour of its interval
    wait:  (169,) cost of the delay of all changes up to t
    grow:  (k, 169) e^(r P(t))
    lost:  (k, 169) e^(-r P(t)) times the saving that a visit loses because another visit follows
    drop:  (k,) e^-r
    week:  cost of an hour of delay of the changes of a week
    """

    stale: float
    age: float
    saved: Floats
    pace: Floats
    wait: Floats
    grow: Floats
    lost: Floats
    drop: Floats
    week: float


@compiled
def costs_of(c: Curves, aim: Objective) -> Costs:
    """Return the costs of a target for an objective."""
    k, size = len(c.weight), WEEK_HOURS + 1
    age, delay = aim.age / DAY_HOURS, aim.delay / DAY_HOURS
    saved, pace, wait = np.zeros(size), np.empty(size), np.empty(size)
    for t in range(size):
        pace[t], wait[t] = delay * c.mass[t], delay * c.wait[t]
    lost, drop = np.empty((k, size)), np.empty(k)
    for i in range(k):
        weight, drop[i] = c.weight[i], c.drop[i, WEEK_HOURS]
        for t in range(size):
            value = weight * (aim.stale * c.kept[i, t] - age * c.moment[i, t])
            saved[t] += value
            pace[t] += weight * age * c.kept[i, t]
            lost[i, t] = c.drop[i, t] * value
    week = delay * c.mass[WEEK_HOURS]
    return Costs(aim.stale, age, saved, pace, wait, c.grow, lost, drop, week)


@compiled
def whole_cost(c: Costs, a: int, n: int) -> float:
    """Return the cost of the hours from a visit at `a` to the next at `n`.

    0 <= a < n <= a + 168
    """
    hours, shift = n - a, a // WEEK_HOURS * WEEK_HOURS
    a, n = a - shift, n - shift
    cost: float = c.stale * hours + c.age * hours * hours / 2
    cost += _wait(c, n) - c.wait[a] - c.saved[a] - hours * c.pace[a]
    for i in range(len(c.drop)):
        cost += c.grow[i, a] * _lost(c, i, n)
    return cost


@compiled
def _wait(c: Costs, n: int) -> float:
    """Return the cost of the delay of all changes up to hour `n` of two weeks."""
    later = n - WEEK_HOURS
    cost: float = c.wait[n] if later <= 0 else c.wait[-1] + c.wait[later] + later * c.week
    return cost


@compiled
def _lost(c: Costs, i: int, n: int) -> float:
    """Return `lost` of node `i` at hour `n` of two weeks."""
    lost: float = c.lost[i, n] if n <= WEEK_HOURS else c.lost[i, n - WEEK_HOURS] * c.drop[i]
    return lost


@compiled
def split_costs(c: Costs, a: int, n: int, begin: int, end: int) -> Floats:
    """Return the (end - begin + 1,) cost of the hours from `a` to `n` with one visit in between.

    0 <= a < n <= a + 168. The cost at z is whole_cost(a, z) + whole_cost(z, n), for z = begin to
    end.
    """
    shift = a // WEEK_HOURS * WEEK_HOURS
    a, n, begin, end = a - shift, n - shift, begin - shift, end - shift
    cost = np.empty(end - begin + 1)
    middle = min(max(WEEK_HOURS - begin, 0), len(cost))
    if middle > 0:
        _split_in_week(c, a, n, 0, begin, cost[:middle])
    if middle < len(cost):
        _split_in_week(c, a, n, 1, begin + middle - WEEK_HOURS, cost[middle:])
    return cost


@compiled
def _split_in_week(c: Costs, a: int, n: int, week: int, first: int, cost: Floats) -> None:
    """Set the costs of hours of this week or the next one, from its hour `first` on.

    Other arguments as in `split_costs`.
    """
    # The compiler vectorizes loops only if it knows that no index is negative: use unsigned ones.
    fixed = c.stale * (n - a) + _wait(c, n) - c.wait[a] - c.saved[a]
    begin, later, pace = float(first + week * WEEK_HOURS - a), week * c.week, c.pace[a]
    for j in range(len(cost)):
        z, before = np.uintp(first + j), begin + j
        after = n - a - before
        squares = c.age / 2 * (before * before + after * after)
        cost[j] = fixed + squares - before * pace - after * (c.pace[z] + later) - c.saved[z]
    for i in range(len(c.drop)):
        own, following = c.grow[i, a], _lost(c, i, n)
        if week:
            own, following = own * c.drop[i], following / c.drop[i]
        for j in range(len(cost)):
            z = np.uintp(first + j)
            cost[j] += own * c.lost[i, z] + following * c.grow[i, z]


@compiled
def weeks_costs(c: Costs, weeks: int) -> Floats:
    """Return the (168,) cost of `weeks` weeks between two visits at each hour of the week."""
    hours, cost = float(weeks * WEEK_HOURS), np.empty(WEEK_HOURS)
    fixed = c.stale * hours + c.age * hours * hours / 2 + weeks * c.wait[WEEK_HOURS]
    fixed += c.week * WEEK_HOURS * weeks * (weeks - 1) / 2
    for t in range(WEEK_HOURS):
        cost[t] = fixed + weeks * c.week * t - c.saved[t] - hours * c.pace[t]
    for i in range(len(c.drop)):
        left = 1.0
        for _ in range(weeks):
            left *= c.drop[i]
        for t in range(WEEK_HOURS):
            cost[t] += left * c.grow[i, t] * c.lost[i, t]
    return cost
