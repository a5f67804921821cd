"""Freshness, age and requests of sites, estimated from a sample of their targets.

The uncertainty of a rate is given by its mean and its 5 % and 95 % quantiles. The distribution is
replaced by three rates, the two quantiles and a middle one that preserves the mean, with the
weights of Pearson and Tukey (Keefer and Bodily 1983). The mean rate would understate freshness: a
page that may change rarely is likely to be unchanged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np

from crawler.storage import stats
from crawler.storage.client import Database
from crawler.storage.stats import Sample
from schedules.history import Flags, Floats
from schedules.schedule import WEEK_DAYS, WEEK_HOURS

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS
OUTER, MIDDLE = 0.185, 0.63
# Lower limit of expected changes, which avoids division by zero.
MIN_CHANGES = 1e-9


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates for one spider; NaN if unknown.

    planned:          number of targets with a planned frequency or a fixed period
    requests_per_day: requests that these targets require
    expected_*:       means that the plan expects, over pages and planned cells
    present_*:        the same means at the current time
    missed_per_week, delay_seconds: expected by the plan, for feeds
    """

    planned: float
    requests_per_day: float
    expected_freshness: float
    expected_age_seconds: float
    present_freshness: float
    present_age_seconds: float
    missed_per_week: float
    delay_seconds: float


def estimated(sample: Sample, of_spiders: Counter[str]) -> Iterator[tuple[str, Estimates]]:
    """Yield estimates for each spider of a sample. of_spiders: number of targets by spider."""
    low = np.where(np.isnan(sample.low), sample.rate, sample.low)
    high = np.where(np.isnan(sample.high), sample.rate, sample.high)
    rates, hours = Rates(sample.rate, low, high), sample.hours
    # Feeds have no freshness: their rates are of posts, which arrive in batches.
    of_pages = np.where(np.isnan(sample.freshness), np.nan, 1.0)
    fresh = freshness(rates, hours) * of_pages
    age = age_hours(rates, hours) * of_pages
    for number, name in enumerate(sample.spiders):
        mask: Flags = sample.spider == number
        part = of_spiders[name] / np.count_nonzero(mask)
        yield (
            name,
            Estimates(
                planned=round(part * np.count_nonzero(sample.visits[mask] > 0)),
                requests_per_day=part * _sum(sample.visits[mask]) / WEEK_DAYS,
                expected_freshness=_mean(sample.freshness[mask]),
                expected_age_seconds=_mean(sample.age_days[mask]) * DAY_SECONDS,
                present_freshness=_mean(fresh[mask]),
                present_age_seconds=_mean(age[mask]) * HOUR_SECONDS,
                missed_per_week=part * _sum(sample.missed[mask]),
                delay_seconds=_mean(sample.delay_hours[mask]) * HOUR_SECONDS,
            ),
        )


class Rates(NamedTuple):
    """Hold the (n,) changes a week of n targets: means with 5 % and 95 % quantiles."""

    mean: Floats
    low: Floats
    high: Floats


def freshness(rates: Rates, hours: Floats) -> Floats:
    """Return the (n,) probability of no change.

    hours: (n,) since the last observation, >= 0
    """
    return _weighted(np.exp(-_expected_changes(rates, hours)))


def age_hours(rates: Rates, hours: Floats) -> Floats:
    """Return the (n,) expected hours since the first unseen change, 0 if there was none.

    hours: (n,) since the last observation, >= 0
    """
    # Expected share of the time since the observation that follows the first change: 1 - (1 - e^-x)
    # / x, with x expected changes.
    x = np.maximum(_expected_changes(rates, hours), MIN_CHANGES)
    return hours * _weighted(1 + np.expm1(-x) / x)


def _expected_changes(rates: Rates, hours: Floats) -> Floats:
    """Return the (3, n) expected changes at the low, middle and high rate."""
    between = (rates.mean - OUTER * (rates.low + rates.high)) / MIDDLE
    between = np.maximum(between, rates.low)
    return np.stack([rates.low, between, rates.high]) * (hours / WEEK_HOURS)


def _weighted(values: Floats) -> Floats:
    """Return the (n,) weighted mean of (3, n) values at the three rates."""
    low, between, high = values
    result: Floats = OUTER * (low + high) + MIDDLE * between
    return result


def _mean(values: Floats) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else np.nan


def _sum(values: Floats) -> float:
    """Return the sum of the known values; NaN if there are none."""
    values = values[~np.isnan(values)]
    return float(values.sum()) if len(values) else np.nan


@dataclass(frozen=True, slots=True)
class SiteEstimates:
    """Estimates by spider. at: time at which they were read."""

    at: datetime
    of_sites: dict[str, Estimates]


async def read_estimates(db: Database, now: datetime) -> SiteEstimates:
    """Return estimates for each spider with targets; scans all targets."""
    states, sample = await stats.scan_targets(db, now)
    of_spiders = stats.targets_by_spider(states)
    return SiteEstimates(now, await asyncio.to_thread(lambda: dict(estimated(sample, of_spiders))))
