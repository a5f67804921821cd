"""How fresh copies are at this moment, by what is known of the rates of changes.

A rate known by its mean, 5 % and 95 % quantiles stands for three rates: these two, and one between
that keeps the mean, with the weights of Pearson and Tukey (Keefer and Bodily 1983). The mean rate
alone would tell too little: what may change rarely is likely to have stayed as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from schedules.history import Floats
from schedules.schedule import WEEK_HOURS

OUTER, MIDDLE = 0.185, 0.63
# So few changes expected are none.
LEAST = 1e-9


class Rates(NamedTuple):
    """Changes a week of n targets: (n,) means with 5 % and 95 % quantiles."""

    mean: Floats
    low: Floats
    high: Floats


def freshness(rates: Rates, hours: Floats) -> Floats:
    """(n,) probability that nothing has changed. hours: (n,) since the last look, >= 0."""
    return _over_rates(rates, hours / WEEK_HOURS, _unchanged)


def age_hours(rates: Rates, hours: Floats) -> Floats:
    """(n,) expected time since the first change that was not seen, 0 where there was none.

    hours: (n,) since the last look, >= 0
    """
    aged = _over_rates(rates, hours / WEEK_HOURS, _share_aged)
    result: Floats = hours * aged
    return result


def _over_rates(rates: Rates, weeks: Floats, of: Callable[[Floats], Floats]) -> Floats:
    between = (rates.mean - OUTER * (rates.low + rates.high)) / MIDDLE
    between = np.maximum(between, rates.low)
    outer = of(rates.low * weeks) + of(rates.high * weeks)
    result: Floats = OUTER * outer + MIDDLE * of(between * weeks)
    return result


def _unchanged(expected: Floats) -> Floats:
    result: Floats = np.exp(-expected)
    return result


def _share_aged(expected: Floats) -> Floats:
    """Of the time since the look, the share that lies after the first change: 1 - (1-e^-x)/x."""
    x = np.maximum(expected, LEAST)
    result: Floats = 1 + np.expm1(-x) / x
    return result
