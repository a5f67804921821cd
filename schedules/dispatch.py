"""Decide which due targets go first, and which have to wait, when capacity is short.

Targets are ordered by the expected refresh ratio of Ha et al. (2002, equations 2 to 6), by the
baselines of that paper, or by value with a minimum for each target. Dispatch never changes the
times of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules.history import Floats, Ints

POLICIES = ("value", "expected-ratio", "starved-first", "round-robin", "earliest-deadline")
# Minimum refresh ratio of a target, as a share of the ratio if it were equal for all targets.
FLOOR_SHARE = 0.8


def expected_ratio(period: Floats, cost: Floats, horizon: float) -> Floats:
    """Return the (n,) share of each cell's requests that `horizon` seconds of execution can serve.

    period: (n,) seconds between two requests of a cell, > 0
    cost:   (n,) mean seconds that one refresh takes, > 0

    Implements equations 2 to 6 of Ha et al. (2002) per cell: min(eta, Rc) / eta, in [0, 1]. Shorter
    periods get more time, and time that a cell does not need is not redistributed.
    """
    requested = horizon / period
    share = (1 / period) / (1 / period).sum()
    affordable = horizon * share / cost
    result: Floats = np.minimum(requested, affordable) / requested
    return result


def load_of(period: Floats, cost: Floats) -> float:
    """Return the load: seconds of execution requested per second."""
    return float((cost / period).sum())


def equal_ratio(load: float) -> float:
    """Return the refresh ratio of every cell if all ratios were equal."""
    return 1 / max(load, 1.0)


def jain(ratio: Floats) -> float:
    """Return Jain's fairness index, from 1 / n to 1 (all equal); NaN if all are 0."""
    squares = float((ratio**2).sum()) * len(ratio)
    return float(ratio.sum()) ** 2 / squares if squares else float("nan")


def gain_of_visit(rate: Floats, waited: Floats) -> Floats:
    """Return the (n,) fresh time gained by one more visit, if all visits are this far apart.

    rate:   (n,) changes per unit of time, > 0
    waited: (n,) time since the last visit

    With r = rate * waited, even visits have freshness (1 - e^-r) / r. The gain is the derivative
    with respect to their number, (1 - (1 + r) e^-r) / rate.
    """
    r = rate * waited
    result: Floats = (-np.expm1(-r) - r * np.exp(-r)) / rate
    return result


@dataclass(frozen=True, slots=True)
class Due:
    """Describe n due targets. All times are in the same unit.

    requested: (n,) visits requested by their periods so far, Rq >= 1
    refreshed: (n,) visits made so far, r
    period:    (n,) time between two requests, P; inf without a plan
    longest:   (n,) longest time that a target may wait; inf if unlimited
    waited:    (n,) time since the last visit, or since the target was discovered
    asked:     (n,) time since the newest request
    cost:      (n,) mean execution time of a visit, Eq > 0
    value:     (n,) value of a visit now
    expected:  (n,) expected refresh ratio, nu > 0; used by the policy expected-ratio only
    host:      (n,) number of the host
    """

    requested: Floats
    refreshed: Floats
    period: Floats
    longest: Floats
    waited: Floats
    asked: Floats
    cost: Floats
    value: Floats
    expected: Floats
    host: Ints

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limit what one call of `dispatch` may choose; None: unlimited.

    requests: number of visits
    seconds:  total execution time, in the unit of `Due.cost`
    of_host:  (h,) visits of each host
    """

    requests: int | None = None
    seconds: float | None = None
    of_host: Ints | None = None


def dispatch(policy: str, due: Due, capacity: Capacity, equal_ratio: float | Floats = 1.0) -> Ints:
    """Return the indices into `due` of the targets to visit, in order; ties go to the longest wait.

    policy:      one of POLICIES
    equal_ratio: refresh ratio of every target, due or not, if all ratios were equal; (n,) if single
                 hosts are overloaded: the ratio of each target's host
    """
    # np.lexsort sorts ascending, by its last key first.
    if policy == "value":
        # Sort by value per cost, but put targets that are about to fall below the floor first, in
        # order of decreasing lateness. The floor is FLOOR_SHARE of the equal ratio. A target
        # starves if too few of its previous requests were served, or if it has waited too many
        # periods or longer than its longest interval.
        floor = FLOOR_SHARE * equal_ratio
        late = due.waited / np.minimum(due.period, due.longest)
        starves = due.refreshed < floor * (due.requested - 1)
        starves |= due.waited * floor >= due.period
        starves |= due.waited >= due.longest
        key = np.where(starves, late, due.value / due.cost)
        order = np.lexsort((-due.waited, -key, ~starves))
    else:
        if policy == "expected-ratio":
            # Lowest refresh ratio relative to the expected one first (Ha et al. 2002).
            key = due.refreshed / due.requested / due.expected
        elif policy == "starved-first":
            # Maximum starved first: most unserved requests first (baseline of the paper).
            key = due.refreshed - due.requested
        elif policy == "round-robin":
            key = -due.waited
        else:  # earliest-deadline: nearest next request first
            key = due.period - due.asked
        order = np.lexsort((-due.waited, key))
    if capacity.of_host is not None:
        host = due.host[order]
        by_host = np.argsort(host, kind="stable")
        rank = np.empty(len(host), np.int64)
        rank[by_host] = np.arange(len(host)) - np.searchsorted(host[by_host], host[by_host])
        order = order[rank < capacity.of_host[host]]
    if capacity.seconds is not None:
        within = np.cumsum(due.cost[order]) <= capacity.seconds
        order = order[: int(within.sum())]
    return order[: capacity.requests]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Describe n due targets. All arrays are (n,), times are in hours.

    worth:   value of a timely visit according to the plan; NaN if unknown
    every:   mean time between planned visits; NaN or inf without a plan
    waited:  time since the last visit, or since the target was discovered
    overdue: time since the visit was due
    visits:  number of visits made
    missed:  number of planned visits not made, excluding those now overdue
    seconds: duration of the last visit; NaN if there was none
    host:    number of the host
    """

    worth: Floats
    every: Floats
    waited: Floats
    overdue: Floats
    visits: Floats
    missed: Floats
    seconds: Floats
    host: Ints

    def __len__(self) -> int:
        return len(self.worth)

    def due(self, longest_hours: float, *, by_time: bool = False) -> Due:
        """Return the input of `dispatch`.

        longest_hours: no target may wait longer
        by_time:       if true, time is short and a visit costs the seconds that it takes; else
                       requests are short and all visits cost the same
        """
        period = np.where(self.every > 0, self.every, np.inf)
        late = np.floor(self.overdue / period)
        took = np.where(self.seconds > 0, self.seconds, np.nan)
        usual = _mean(took, 1.0)
        cost = np.where(np.isfinite(took), took, usual) if by_time else np.ones(len(self))
        # The expected ratio of the paper, for the targets that have a period.
        expected, planned = np.ones(len(self)), np.isfinite(period)
        if planned.any():
            expected[planned] = expected_ratio(period[planned], cost[planned], 1.0)
        return Due(
            requested=self.visits + self.missed + late + 1,
            refreshed=self.visits,
            period=period,
            longest=np.full(len(self), longest_hours),
            waited=self.waited,
            asked=np.mod(self.overdue, period),
            cost=cost,
            value=worth_now(self.worth, self.waited, period),
            expected=expected,
            host=self.host,
        )


def worth_now(worth: Floats, waited: Floats, period: Floats) -> Floats:
    """Return the (n,) value of a visit now.

    worth:          (n,) value of a timely visit; NaN if no plan sets it
    waited, period: (n,) time since the last visit, and between planned visits

    The value of a delayed visit grows in proportion to the time by which the planned interval is
    exceeded. Targets with a period but no value are assumed to change once per period; those with
    neither get the mean value of the others.
    """
    planned = np.where(np.isfinite(worth), worth, _mean(worth, 0.0))
    result: Floats = planned * np.maximum(waited / period, 1.0)
    by_period = np.isfinite(period) & ~np.isfinite(worth)
    result[by_period] = gain_of_visit(1 / period[by_period], waited[by_period])
    return result


def _mean(values: Floats, otherwise: float) -> float:
    """Return the mean of the finite values, or `otherwise` if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else otherwise
