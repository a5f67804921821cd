"""Who goes first when not all that is due can go, and who does not go at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from schedules.history import Floats, Ints
from schedules.ratios import FLOOR_SHARE


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


# The first key decides, then the next; the smallest goes first.
Keys = tuple[Floats, ...]


def _by_value(due: Due, equal: float | Floats) -> Keys:
    """Worth by cost; but whoever is about to fall below the floor goes before, the latest first.

    The floor: FLOOR_SHARE of the ratio that all would have if all had the same. Below it is who
    has had too few of the requests before this one, and who has waited for so many periods, or for
    too long.
    """
    floor = FLOOR_SHARE * equal
    late = due.waited / np.minimum(due.period, due.longest)
    starves = due.refreshed < floor * (due.requested - 1)
    starves |= due.waited * floor >= due.period
    starves |= due.waited >= due.longest
    return (~starves).astype(np.float64), -np.where(starves, late, due.value / due.cost)


def _by_expected_ratio(due: Due, equal: float | Floats) -> Keys:
    """The lowest refresh ratio against the expected one (Ha et al. 2002)."""
    return (due.refreshed / due.requested / due.expected,)


def _by_starvation(due: Due, equal: float | Floats) -> Keys:
    """Maximum starved first: most requests that came to nothing (Ha et al. 2002, the baseline)."""
    return (due.refreshed - due.requested,)


def _in_turn(due: Due, equal: float | Floats) -> Keys:
    """Who has waited longest."""
    return (-due.waited,)


def _by_deadline(due: Due, equal: float | Floats) -> Keys:
    """Whose next request is nearest."""
    return (due.period - due.asked,)


RULES: dict[str, Callable[[Due, float | Floats], Keys]] = {
    "value": _by_value,
    "expected-ratio": _by_expected_ratio,
    "starved-first": _by_starvation,
    "round-robin": _in_turn,
    "earliest-deadline": _by_deadline,
}
POLICIES = tuple(RULES)


def dispatch(policy: str, due: Due, capacity: Capacity, equal_ratio: float | Floats = 1.0) -> Ints:
    """Who goes, in this order.

    policy:      one of POLICIES
    equal_ratio: the refresh ratio of every target, due or not, if all had the same; (n,) where
                 hosts are short of time by themselves: of those of the same host
    returns indices into `due`; among equals who has waited longest goes first
    """
    keys = RULES[policy](due, equal_ratio)
    order = np.lexsort((-due.waited, *reversed(keys)))
    return _cut(order, due, capacity)


def _cut(order: Ints, due: Due, capacity: Capacity) -> Ints:
    """As many as may go: no host more than its part, all together within time and number."""
    if capacity.of_host is not None:
        order = order[_place(due.host[order]) < capacity.of_host[due.host[order]]]
    if capacity.seconds is not None:
        within = np.cumsum(due.cost[order]) <= capacity.seconds
        order = order[: int(within.sum())]
    return order[: capacity.requests]


def _place(host: Ints) -> Ints:
    """(n,) how many of the same host come before."""
    by_host = np.argsort(host, kind="stable")
    sorted_host = host[by_host]
    first = np.searchsorted(sorted_host, sorted_host)
    place = np.empty(len(host), np.int64)
    place[by_host] = np.arange(len(host)) - first
    return place


def room(cap: int, used: int) -> int | None:
    """Requests left of a cap of which `used` are spent; None where there is no cap (0)."""
    return max(0, cap - used) if cap else None


def least(*rooms: int | None) -> int | None:
    """The tightest of several; None where none is bounded."""
    bounded = [one for one in rooms if one is not None]
    return min(bounded) if bounded else None
