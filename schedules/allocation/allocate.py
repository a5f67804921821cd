"""Choose from the options of all targets at one price, by marginal value.

Targets may be divided into shards. Each shard offers its steps as a demand curve: the number of
visits worth more than a price. Only sums of the curves are needed to find the price. They are sums
of whole numbers, so the result is the same for any number of shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.history import Floats, Ints
from schedules.schedule import VISIT_PARTS, in_parts

# Relative bonus for visits that a target already has, and relative penalty for new ones.
DEAD_BAND = 0.1
MAX_PARTS = 2.0**62
# Steps that are converted together.
CHUNK = 100_000
# Prices of a grid. Three grids, each between two prices of the previous one, reach neighboring
# values of 32 bits.
GRID = 2**11

Floats32 = NDArray[np.float32]
# Values of steps, >= 0, as whole numbers in the same order: the bits of a positive float.
Codes = NDArray[np.uint32]
INFINITE = int(np.float32(np.inf).view(np.uint32))
CODE_SHIFT, ALL_PARTS = np.uint64(32), np.uint64(2**32 - 1)


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
    exhausted: whether every offered step was taken
    """

    chosen: Ints
    price: float
    exhausted: bool


def least_parts(steps: Steps) -> int:
    """Return the visits that the limits require, in parts (see VISIT_PARTS)."""
    return int(in_parts(steps.visits[steps.first[:-1]]).sum())


def least_visits(steps: Steps) -> float:
    """Return the visits a week that the limits require."""
    return least_parts(steps) / VISIT_PARTS


@dataclass(frozen=True, slots=True)
class Offers:
    """Hold the optional steps of n targets, with values under the current schedules.

    first, option: as in Steps
    value:         (m,) with the bonus or penalty; inf for mandatory steps
    own:           (m,) value without them
    more:          (m,) parts of visits that each step adds to the previous one
    key:           (n,) breaks ties
    codes:         (k,) of the optional steps, ascending
    from_code:     (k + 1,) parts of the optional steps from each of these codes on
    """

    first: Ints
    option: NDArray[np.uint8]
    value: Floats32
    own: Floats32
    more: NDArray[np.int32]
    key: NDArray[np.uint64]
    codes: Codes
    from_code: Ints

    @classmethod
    def of(cls, steps: Steps, key: NDArray[np.uint64], current: Floats | None = None) -> Offers:
        """Return the offers of n targets.

        current: (n,) current visits a week. Visits that a target has get a bonus and further ones a
                 penalty, so that small changes of the estimates do not change the plan.
        """
        value, m = steps.value, len(steps.value)
        if current is not None:
            current_visits = np.repeat(current.astype(np.float32), np.diff(steps.first))
            has = steps.visits <= current_visits * np.float32(1 + 1e-6)
            preference = np.where(has, np.float32(1 + DEAD_BAND), np.float32(1 - DEAD_BAND))
            preference[current_visits == 0] = 1
            preference *= value
            value = preference
        # No target has 2**31 parts of visits.
        more = np.empty(m, np.int32)
        for begin in range(0, m, CHUNK):
            part = slice(begin, begin + CHUNK)
            more[part] = in_parts(steps.visits[part])
        more[1:] -= more[:-1]
        # Code and parts of a step in one number: sorting these needs neither an order nor gathers.
        # These are the longest arrays of a plan, so they are changed in place.
        optional = np.isfinite(value)
        packed = np.zeros(int(np.count_nonzero(optional)) + 1, "<u8")
        steps_of = packed[:-1]
        steps_of[:] = value[optional].view(np.uint32)
        steps_of <<= CODE_SHIFT
        steps_of |= more[optional].view(np.uint32)
        steps_of.sort()
        codes = steps_of.view("<u4")[1::2].copy()
        steps_of &= ALL_PARTS
        backward = steps_of.view(np.int64)[::-1]
        np.cumsum(backward, out=backward)
        return cls(
            steps.first, steps.option, value, steps.value, more, key, codes, packed.view(np.int64)
        )

    def demand(self, codes: Codes) -> Ints:
        """Return the (g,) parts of visits whose value is at least that of each code."""
        result: Ints = self.from_code[np.searchsorted(self.codes, codes)]
        return result

    def taken(self, price: float, left: int) -> Taken:
        """Take the steps whose value exceeds the price, and some that equal it.

        left: parts available for the steps that equal the price; the key decides which of them are
        taken
        """
        marginal, optional = np.float32(price), np.isfinite(self.value)
        above = optional & (self.value > marginal)
        before = np.append(np.int32(0), np.cumsum(above, dtype=np.int32))
        count = np.diff(before[self.first])
        even = np.flatnonzero(optional & (self.value == marginal))
        owner = np.searchsorted(self.first, even, "right") - 1
        order = np.lexsort((self.option[even], self.key[owner]))
        parts = np.cumsum(self.more[even[order]], dtype=np.int64)
        order = order[: np.searchsorted(parts, left, "right")]
        np.add.at(count, owner[order], 1)
        lowest = self.own[above].min(initial=np.float32(np.inf))
        lowest = float(self.own[even[order]].min(initial=lowest))
        return Taken(self.first[:-1] + count, lowest)

    def next_within(self, chosen: Ints, left: int) -> NextStep | None:
        """Return the most valuable step after the chosen ones that fits; None if none does.

        chosen: (n,) as in Allocation
        left:   parts available
        """
        rows = np.flatnonzero(chosen + 1 < self.first[1:])
        rows = rows[self.more[chosen[rows] + 1] <= left]
        if not len(rows):
            return None
        value = self.value[chosen[rows] + 1]
        best = rows[np.lexsort((self.key[rows], -value))[0]]
        step = chosen[best] + 1
        return NextStep(
            float(self.value[step]), int(self.key[best]), int(best), int(self.more[step])
        )


class Taken(NamedTuple):
    """Hold the steps that a shard takes.

    chosen: (n,) as in Allocation
    lowest: lowest value of the optional steps taken; inf if there are none
    """

    chosen: Ints
    lowest: float


class NextStep(NamedTuple):
    """Describe a step that a shard could take next.

    value:    as in Offers
    key, row: of its target
    parts:    visits that it adds
    """

    value: float
    key: int
    row: int
    parts: int


class Clearing(NamedTuple):
    """Describe the step at which the budget is exhausted.

    marginal: value of the first step that does not fit; every step with a higher value is taken;
              negative if all steps fit
    left:     (h,) parts for the steps of each shard that have the marginal value
    """

    marginal: float
    left: list[int]

    @property
    def exhausted(self) -> bool:
        """Return whether every offered step was taken."""
        return self.marginal < 0

    def price(self, lowest: Sequence[float]) -> float:
        """Return the value of the last visit taken, or of the first one not taken if none is.

        lowest: value taken by each shard
        """
        least = min(lowest, default=np.inf)
        return least if least < np.inf else max(self.marginal, 0.0)


def budget_parts(budget: float) -> int:
    """Return a number of visits a week in whole parts, with a tolerance for rounding."""
    return int(min(np.floor(budget * (1 + 1e-9) * VISIT_PARTS), MAX_PARTS))


def cleared(demand: Callable[[Codes], Sequence[Ints]], least: int, budget: float) -> Clearing:
    """Find the price at which the demand of all shards meets the budget.

    demand: returns `Offers.demand` of each shard, in the order of their keys
    least:  parts of the visits that the limits require
    budget: visits a week; never exceeded, provided that it covers `least`
    """
    left = max(budget_parts(budget) - least, 0)
    everything = demand(np.zeros(1, np.uint32))
    if sum(int(parts[0]) for parts in everything) <= left:
        return Clearing(-1.0, [0] * len(everything))
    # The steps from code `high` on fit into the budget, those from `low` on do not.
    low, high = 0, INFINITE
    while high - low > 1:
        grid = np.unique(np.linspace(low, high, GRID + 1).astype(np.uint32))
        total = np.sum(demand(grid), axis=0)
        fits = int(np.searchsorted(-total, -left))
        low, high = int(grid[fits - 1]), int(grid[fits])
    at_edge = demand(np.array([low, high], np.uint32))
    left -= sum(int(above) for _, above in at_edge)
    shares = []
    for from_low, above in at_edge:
        shares.append(left)
        even = int(from_low - above)
        # A step that does not fit ends the allocation.
        left = left - even if even <= left else 0
    return Clearing(float(np.uint32(low).view(np.float32)), shares)


def allocate(
    steps: Steps, key: NDArray[np.uint64], budget: float, current: Floats | None = None
) -> Allocation:
    """Allocate `budget` visits a week; never more, provided that it covers `least_visits`.

    current: (n,) current visits a week, as in Offers

    Values decrease along a target's steps, so the steps taken are always its first ones. Ties are
    broken by the key, so the result does not depend on the order of the targets.
    """
    offers = Offers.of(steps, key, current)
    clearing = cleared(lambda codes: [offers.demand(codes)], least_parts(steps), budget)
    chosen, lowest = offers.taken(clearing.marginal, clearing.left[0])
    return Allocation(chosen, clearing.price([lowest]), clearing.exhausted)
