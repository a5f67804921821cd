"""Estimate the current freshness and age of copies from their change rates.

The uncertainty of a rate is known by its mean and its 5 % and 95 % quantiles. It is replaced by
three rates, the two quantiles and a middle one that preserves the mean, with the weights of Pearson
and Tukey (Keefer and Bodily 1983). The mean rate would understate freshness: a page that may change
rarely is likely to be unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.history import Floats
from schedules.schedule import WEEK_HOURS

OUTER, MIDDLE = 0.185, 0.63
# Lower limit of expected changes, which avoids division by zero.
MIN_CHANGES = 1e-9


class Rates(NamedTuple):
    """Hold the (n,) changes a week of n targets: means with 5 % and 95 % quantiles."""

    mean: Floats
    low: Floats
    high: Floats


def freshness(rates: Rates, hours: Floats) -> Floats:
    """Return the (n,) probability of no change.

    hours: (n,) since the last observation, >= 0
    """
    return _mean(np.exp(-_expected_changes(rates, hours)))


def age_hours(rates: Rates, hours: Floats) -> Floats:
    """Return the (n,) expected hours since the first unseen change, 0 if there was none.

    hours: (n,) since the last observation, >= 0
    """
    # Expected share of the time since the observation that follows the first change: 1 - (1 - e^-x)
    # / x, with x expected changes.
    x = np.maximum(_expected_changes(rates, hours), MIN_CHANGES)
    return hours * _mean(1 + np.expm1(-x) / x)


def _expected_changes(rates: Rates, hours: Floats) -> Floats:
    """Return the (3, n) expected changes at the low, middle and high rate."""
    between = (rates.mean - OUTER * (rates.low + rates.high)) / MIDDLE
    between = np.maximum(between, rates.low)
    return np.stack([rates.low, between, rates.high]) * (hours / WEEK_HOURS)


def _mean(values: Floats) -> Floats:
    """Return the (n,) mean of (3, n) values at the three rates."""
    low, between, high = values
    result: Floats = OUTER * (low + high) + MIDDLE * between
    return result
