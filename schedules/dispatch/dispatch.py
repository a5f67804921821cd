"""Who goes first when not all that is due can go, and who does not go at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules.history import Floats, Ints

POLICIES = ("value", "expected-ratio", "starved-first", "round-robin", "earliest-deadline")
# Nobody is to get less than this part of what equal ratios would give.
FLOOR_SHARE = 0.8


def expected_ratio(period: Floats, cost: Floats, horizon: float) -> Floats:
    """Share of each cell's refresh requests that `horizon` seconds of execution can serve.

    period: (n,) seconds between two requests of a cell, > 0
    cost:   (n,) mean seconds that one refresh takes, > 0
    returns (n,) in [0, 1]

    Ha et al. 2002, equations 2 to 6, read per cell: min(eta, Rc) / eta. More time goes to shorter
    periods, and what a cell does not need is not handed on.
    """
    requested = horizon / period
    share = (1 / period) / (1 / period).sum()
    affordable = horizon * share / cost
    result: Floats = np.minimum(requested, affordable) / requested
    return result


def load_of(period: Floats, cost: Floats) -> float:
    """Seconds of execution that are asked for in a second."""
    return float((cost / period).sum())


def equal_ratio(load: float) -> float:
    """The refresh ratio of every cell if all had the same."""
    return 1 / max(load, 1.0)


def jain(ratio: Floats) -> float:
    """Jain's index of fairness: 1 where all are equal, 1 / n where one has all; NaN of nothing."""
    squares = float((ratio**2).sum()) * len(ratio)
    return float(ratio.sum()) ** 2 / squares if squares else float("nan")


def gain_of_visit(rate: Floats, waited: Floats) -> Floats:
    """Time for which a copy is fresher by a visit now, and each time it has waited as long.

    rate: (n,) changes in a unit of time, > 0   waited: (n,) time since the last visit

    The derivative of even visits' freshness, (1 - e^-r) / r with r = rate * waited, by their
    number: (1 - (1 + r) e^-r) / rate.
    """
    r = rate * waited
    result: Floats = (-np.expm1(-r) - r * np.exp(-r)) / rate
    return result


@dataclass(frozen=True, slots=True)
class Due:
    """n targets that are due. Times in one unit, whichever.

    requested: (n,) visits that their periods have asked for so far, Rq >= 1
    refreshed: (n,) visits made so far, r
    period:    (n,) time between two requests, P; inf where there is no plan
    longest:   (n,) time that it may wait at most; inf where there is no such time
    waited:    (n,) time since the last visit, or since the target was found
    asked:     (n,) time since the newest request
    cost:      (n,) mean execution time of a visit, Eq > 0
    value:     (n,) what a visit now is worth
    expected:  (n,) expected refresh ratio, nu > 0; only the paper's policy asks for it
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
    """What may be spent at once. None: no bound.

    requests: visits       seconds: execution time, in the unit of `Due.cost`
    of_host:  (h,) visits of each host
    """

    requests: int | None = None
    seconds: float | None = None
    of_host: Ints | None = None


def dispatch(policy: str, due: Due, capacity: Capacity, equal_ratio: float | Floats = 1.0) -> Ints:
    """Who goes, in this order.

    policy:      one of POLICIES
    equal_ratio: the refresh ratio of every target, due or not, if all had the same; (n,) where
                 hosts are short of time by themselves: of those of the same host
    returns indices into `due`; among equals who has waited longest goes first
    """
    # The smallest key goes first. Numpy's last key decides, then the one before it.
    if policy == "value":
        # Worth by cost; but whoever is about to fall below the floor goes before, the latest first.
        # The floor is FLOOR_SHARE of the ratio that all would have if all had the same. Below it is
        # who has had too few of the requests before this one, and who has waited for so many
        # periods, or for too long.
        floor = FLOOR_SHARE * equal_ratio
        late = due.waited / np.minimum(due.period, due.longest)
        starves = due.refreshed < floor * (due.requested - 1)
        starves |= due.waited * floor >= due.period
        starves |= due.waited >= due.longest
        key = np.where(starves, late, due.value / due.cost)
        order = np.lexsort((-due.waited, -key, ~starves))
    else:
        if policy == "expected-ratio":
            # The lowest refresh ratio against the expected one (Ha et al. 2002).
            key = due.refreshed / due.requested / due.expected
        elif policy == "starved-first":
            # Maximum starved first: most requests that came to nothing (the paper's baseline).
            key = due.refreshed - due.requested
        elif policy == "round-robin":
            key = -due.waited
        else:  # earliest-deadline: whose next request is nearest
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


def room(cap: int, used: int) -> int | None:
    """Requests left of a cap of which `used` are spent; None where there is no cap (0)."""
    return max(0, cap - used) if cap else None


def least(*rooms: int | None) -> int | None:
    """The tightest of several; None where none is bounded."""
    bounded = [requests for requests in rooms if requests is not None]
    return min(bounded) if bounded else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """n targets that are due; (n,) each, times in hours.

    worth:   of a visit in time, by the plan; NaN where there is none
    every:   mean time between visits by the plan; NaN or inf where there is none
    waited:  since the last visit, or since the target was found
    overdue: since the visit was due
    visits:  made so far
    missed:  visits of plans that were not made so far, without those that are overdue
    seconds: that the last visit took; NaN where there was none
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
        """What the dispatcher has to know.

        longest_hours: no target is to wait longer
        by_time:       what is short is time, and a visit costs the seconds that it takes; else
                       requests are short, and one costs what another does
        """
        period = np.where(self.every > 0, self.every, np.inf)
        late = np.floor(self.overdue / period)
        took = np.where(self.seconds > 0, self.seconds, np.nan)
        usual = _mean(took, 1.0)
        cost = np.where(np.isfinite(took), took, usual) if by_time else np.ones(len(self))
        # The paper's expected ratio of those that have a period.
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
    """(n,) what a visit now is worth.

    worth: (n,) of a visit in time; NaN where no plan says it
    waited, period: (n,) time since the last visit, and between visits by the plan

    A visit that is put off gains by as much as the planned interval is exceeded. Of those with a
    period alone a change in each period is expected; of those without one, the others' mean worth.
    """
    planned = np.where(np.isfinite(worth), worth, _mean(worth, 0.0))
    result: Floats = planned * np.maximum(waited / period, 1.0)
    by_period = np.isfinite(period) & ~np.isfinite(worth)
    result[by_period] = gain_of_visit(1 / period[by_period], waited[by_period])
    return result


def _mean(values: Floats, otherwise: float) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else otherwise
