"""What plans expect of each spider's targets, and how these are at this moment, from a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crawler.storage.present import Sample
from schedules import present
from schedules.history import Flags, Floats
from schedules.present import Rates
from schedules.terms import WEEK_DAYS

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS


@dataclass(frozen=True, slots=True)
class Estimates:
    """Of one spider; NaN where nothing is known.

    planned:          targets that are visited by a plan or a period
    requests_per_day: of these
    expected_*:       means as plans expect them, of pages and planned cells
    present_*:        the same for this moment
    missed_per_week, delay_seconds: of feeds, as plans expect them
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
    """The estimates of each spider in a sample. of_spiders: how many targets each has."""
    low = np.where(np.isnan(sample.low), sample.rate, sample.low)
    high = np.where(np.isnan(sample.high), sample.rate, sample.high)
    rates, hours = Rates(sample.rate, low, high), sample.hours
    # What a feed's plan calls a rate are posts, which come in batches.
    of_pages = np.where(np.isnan(sample.freshness), np.nan, 1.0)
    fresh = present.freshness(rates, hours) * of_pages
    age = present.age_hours(rates, hours) * of_pages
    for number, name in enumerate(sample.spiders):
        own: Flags = sample.spider == number
        part = of_spiders[name] / np.count_nonzero(own)
        yield (
            name,
            Estimates(
                planned=round(part * np.count_nonzero(sample.visits[own] > 0)),
                requests_per_day=part * _sum(sample.visits[own]) / WEEK_DAYS,
                expected_freshness=_mean(sample.freshness[own]),
                expected_age_seconds=_mean(sample.age_days[own]) * DAY_SECONDS,
                present_freshness=_mean(fresh[own]),
                present_age_seconds=_mean(age[own]) * HOUR_SECONDS,
                missed_per_week=part * _sum(sample.missed[own]),
                delay_seconds=_mean(sample.delay_hours[own]) * HOUR_SECONDS,
            ),
        )


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _sum(values: Floats) -> float:
    """NaN where nothing is known."""
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else np.nan
