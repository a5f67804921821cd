"""One price for a request over all targets: the steps worth most are bought within the budget.

The price is the Lagrange multiplier of the budget, the shadow price of one more visit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.history import Floats, Ints

# Share of its value by which a visit that a target has is preferred to one that it has not.
DEAD_BAND = 0.1

Floats32 = NDArray[np.float32]


class Steps(NamedTuple):
    """The convex options of n targets, m in all.

    first: (n + 1,) offsets   visits: (m,) a week   value: (m,) saved by each visit that this
    option has more than the one before; inf for the first, which must be   option: (m,) its number
    """

    first: Ints
    visits: Floats32
    value: Floats32
    option: NDArray[np.uint8]


class Allocation(NamedTuple):
    """What was bought.

    chosen: (n,) place of the option of each target in the steps
    price:  of the last visit, or what was offered for the first where there was no money
    sold_out: all that was offered was bought
    """

    chosen: Ints
    price: float
    sold_out: bool


def least_visits(steps: Steps) -> float:
    """Visits a week without which limits are broken."""
    return float(steps.visits[steps.first[:-1]].sum(dtype=np.float64))


def allocate(
    steps: Steps, key: NDArray[np.uint64], budget: float, current: Floats | None = None
) -> Allocation:
    """Spend `budget` visits a week; never more, if it covers `least_visits`.

    current: (n,) visits a week so far; what a target has counts for more, what it has not for
             less, so that estimates that tremble move nobody

    Values fall along a target's steps, so that those bought are always its first ones. Equal
    values are told apart by the key: the order of the targets does not matter.
    """
    owner = np.repeat(np.arange(len(key), dtype=np.int32), np.diff(steps.first))
    value, more = steps.value, np.diff(steps.visits, prepend=np.float32(0))
    if current is not None:
        had = current.astype(np.float32)[owner]
        has = steps.visits <= had * np.float32(1 + 1e-6)
        preferred = np.where(has, np.float32(1 + DEAD_BAND), np.float32(1 - DEAD_BAND))
        value = value * np.where(had > 0, preferred, np.float32(1))
    optional = np.isfinite(value)
    left = budget * (1 + 1e-9) - least_visits(steps)
    order = np.flatnonzero(optional)
    order = order[np.argsort(-value[order])]
    count = int(np.searchsorted(np.cumsum(more[order], dtype=np.float64), left, "right"))
    sold_out = count == len(order)
    # Of those that are worth just this much, some may be left out: the key says which.
    marginal = -np.inf if sold_out else float(value[order[count]])
    bought = order[value[order] > marginal]
    even = np.flatnonzero(optional & (value == marginal))
    even = even[np.lexsort((steps.option[even], key[owner[even]]))]
    left -= more[bought].sum(dtype=np.float64)
    even = even[: np.searchsorted(np.cumsum(more[even], dtype=np.float64), left, "right")]
    dearest = float(value[bought].min(initial=np.inf)) if len(bought) else max(marginal, 0.0)
    price = marginal if len(even) else dearest
    taken = np.bincount(owner[bought], minlength=len(key))
    taken += np.bincount(owner[even], minlength=len(key))
    return Allocation(steps.first[:-1] + taken, price, sold_out)
