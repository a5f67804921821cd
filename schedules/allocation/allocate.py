"""Allocate the budget: take the steps of highest value over all targets until it is spent.

The price of a request is the Lagrange multiplier of the budget: the value of one more visit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.history import Floats, Ints

# Relative bonus for visits that a target already has, and relative penalty for new ones.
DEAD_BAND = 0.1

Floats32 = NDArray[np.float32]


class Steps(NamedTuple):
    """Hold the convex options of n targets, m in total.

    first:  (n + 1,) offsets
    visits: (m,) visits a week
    value:  (m,) cost saved by each visit that this option adds to the previous one; inf for the
            first option, which is mandatory
    option: (m,) number of the option
    """

    first: Ints
    visits: Floats32
    value: Floats32
    option: NDArray[np.uint8]


class Allocation(NamedTuple):
    """Hold the result of an allocation.

    chosen:   (n,) index into the steps of each target's option
    price:    value of the last visit taken, or of the first one not taken if the budget covers none
    sold_out: whether every offered step was taken
    """

    chosen: Ints
    price: float
    sold_out: bool


def least_visits(steps: Steps) -> float:
    """Return the visits a week that the limits require."""
    return float(steps.visits[steps.first[:-1]].sum(dtype=np.float64))


def allocate(
    steps: Steps, key: NDArray[np.uint64], budget: float, current: Floats | None = None
) -> Allocation:
    """Allocate `budget` visits a week; never more, provided that it covers `least_visits`.

    current: (n,) current visits a week. Visits that a target has get a bonus and further ones a
             penalty, so that small changes of the estimates do not change the plan.

    Values decrease along a target's steps, so the steps taken are always its first ones. Ties are
    broken by the key, so the result does not depend on the order of the targets.
    """
    value = steps.value if current is None else _with_preference(steps, current)
    more, optional = np.diff(steps.visits, prepend=np.float32(0)), np.isfinite(value)
    left = budget * (1 + 1e-9) - least_visits(steps)
    order = np.flatnonzero(optional).astype(np.int32)
    order = order[np.argsort(-value[order])]
    owner = np.repeat(np.arange(len(key), dtype=np.int32), np.diff(steps.first))
    count = int(np.searchsorted(np.cumsum(more[order], dtype=np.float64), left, "right"))
    sold_out = count == len(order)
    # The budget may not cover all steps whose value equals the price. The key decides which to
    # take.
    marginal = -np.inf if sold_out else float(value[order[count]])
    allocated = order[value[order] > marginal]
    even = np.flatnonzero(optional & (value == marginal))
    even = even[np.lexsort((steps.option[even], key[owner[even]]))]
    left -= more[allocated].sum(dtype=np.float64)
    even = even[: np.searchsorted(np.cumsum(more[even], dtype=np.float64), left, "right")]
    dearest = float(value[allocated].min(initial=np.inf)) if len(allocated) else max(marginal, 0.0)
    price = marginal if len(even) else dearest
    taken = np.bincount(owner[allocated], minlength=len(key))
    taken += np.bincount(owner[even], minlength=len(key))
    return Allocation(steps.first[:-1] + taken, price, sold_out)


def _with_preference(steps: Steps, current: Floats) -> Floats32:
    """Return the (m,) values with a bonus for visits that targets have."""
    had = np.repeat(current.astype(np.float32), np.diff(steps.first))
    has = steps.visits <= had * np.float32(1 + 1e-6)
    preferred = np.where(has, np.float32(1 + DEAD_BAND), np.float32(1 - DEAD_BAND))
    value: Floats32 = steps.value * np.where(had > 0, preferred, np.float32(1))
    return value
