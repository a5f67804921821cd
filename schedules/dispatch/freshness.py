"""How fresh copies are at this moment, by what is known of the rates of changes.

A rate known by its mean, 5 % and 95 % quantiles stands for three rates: these two, and one between
that keeps the mean, with the weights of Pearson and Tukey (Keefer and Bodily 1983). The mean rate
alone would tell too little: what may change rarely is likely to have stayed as it was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.history import Floats
from schedules.schedule import WEEK_HOURS

OUTER, MIDDLE = 0.185, 0.63
# So few changes expected are none.
MIN_CHANGES = 1e-9


class Rates(NamedTuple):
    """Changes a week of n targets: (n,) means with 5 % and 95 % quantiles."""

    mean: Floats
    low: Floats
    high: Floats


def freshness(rates: Rates, hours: Floats) -> Floats:
    """(n,) probability that nothing has changed. hours: (n,) since the last look, >= 0."""
    return _mean(np.exp(-_expected(rates, hours)))


def age_hours(rates: Rates, hours: Floats) -> Floats:
    """(n,) expected time since the first change that was not seen, 0 where there was none.

    hours: (n,) since the last look, >= 0
    """
    # Of the time since the look, the share that lies after the first change: 1 - (1 - e^-x) / x.
    x = np.maximum(_expected(rates, hours), MIN_CHANGES)
    return hours * _mean(1 + np.expm1(-x) / x)


def _expected(rates: Rates, hours: Floats) -> Floats:
    """(3, n) changes expected at the low rate, the one between and the high one."""
    between = (rates.mean - OUTER * (rates.low + rates.high)) / MIDDLE
    between = np.maximum(between, rates.low)
    return np.stack([rates.low, between, rates.high]) * (hours / WEEK_HOURS)


def _mean(values: Floats) -> Floats:
    """(n,) mean of (3, n) values at the three rates."""
    low, between, high = values
    result: Floats = OUTER * (low + high) + MIDDLE * between
    return result
