"""Refresh ratios: what to expect of too little time (Ha et al. 2002), and how fair a share was."""

from __future__ import annotations

import numpy as np

from schedules.history import Floats

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
