"""Caps on requests by day and hour: what an hour of the week costs where too many want it.

A toll on each UTC day rises while its load is over the cap and falls again when it is under, as a
price does; slots then move to cheaper days by themselves, those first that lose least. Hours are
levelled afterwards (`hours`): a slot loses little by coming an hour later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from schedules.history import DAY_HOURS, Floats, Ints
from schedules.population import Population
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import Terms

DAYS = 7
ROUNDS = 40
# A step is this share of a load's distance from its cap (both in the logarithm) at first; it grows
# as long as the load stays on one side, and shrinks when it swings.
FIRST_STEP, LARGEST_STEP = 0.5, 1.0
BOLDER, CALMER = 1.2, 0.5
# Nearer than this to a toll's price, or farther, a day is not moved in one step.
LARGEST_RATIO = 20.0
TOLERANCE = 0.01
Loads = Callable[[Floats], tuple[Floats, float]]


@dataclass(frozen=True, slots=True)
class Caps:
    """Requests at most. day, hour: of all sites together; site_day, site_hour: (s,) of each."""

    day: float
    hour: float
    site_day: Floats
    site_hour: Floats

    @classmethod
    def of(cls, terms: Terms, population: Population, share: float = 1.0) -> Caps:
        """The caps of a plan, or their share for some of its targets."""
        day, hour = terms.daily_cap or np.inf, terms.hourly_cap or np.inf
        site = population.site_day * share, population.site_hour * share
        return cls(day * share, hour * share, *site)

    @property
    def by_day(self) -> bool:
        """Whether any day is capped."""
        return bool(np.isfinite(self.day) or np.isfinite(self.site_day).any())

    @property
    def by_hour(self) -> bool:
        """Whether any hour is capped."""
        return bool(np.isfinite(self.hour) or np.isfinite(self.site_hour).any())


def day_tolls(loads: Loads, caps: Caps, sites: int) -> Floats:
    """(s, 7) toll of a visit on each UTC day of the week, by site.

    loads: gives the visits of each site on each day, (s, 7), and the price, under such tolls
    """
    common, own = _Toll(DAYS), _Toll((sites, DAYS))
    best, least = common.toll + own.toll, np.inf
    for _ in range(ROUNDS if caps.by_day else 0):
        load, price = loads(common.toll + own.toll)
        used, site_used = load.sum(0) / caps.day, load / caps.site_day[:, None]
        worst = max(used.max(), site_used.max()) - 1
        if worst < least:
            best, least = common.toll + own.toll, worst
        if worst <= TOLERANCE:
            break
        common.move(used, price)
        own.move(site_used, price + common.toll)
    return best


class _Toll:
    """A toll on each day, which feels its way to where the day is full.

    What counts is the whole price of a day: where few want the quiet days, the price of a request
    falls to almost nothing and the tolls of the others take its place.
    """

    def __init__(self, shape: int | tuple[int, int]) -> None:
        self.toll, self.over = np.zeros(shape), np.zeros(shape)
        self.step = np.full(shape, FIRST_STEP)

    def move(self, used: Floats, price: Floats | float) -> None:
        """One step. used: load over cap; price: of a visit without this toll."""
        over = np.log(np.clip(used, 1 / LARGEST_RATIO, LARGEST_RATIO))
        swings = over * self.over < 0
        bolder = np.minimum(self.step * BOLDER, LARGEST_STEP)
        self.step, self.over = np.where(swings, self.step * CALMER, bolder), over
        whole = (price + self.toll) * np.exp(np.clip(self.step * over, -1, 1))
        self.toll = np.maximum(whole - price, 0)


def shifted(schedules: Schedules, offset: Ints) -> Ints:
    """(k,) UTC hour of the week of each slot. offset: (n,) hours that the local clock is ahead."""
    ahead = np.repeat(offset, np.diff(schedules.first))
    return (schedules.slots.astype(np.int64) - ahead) % WEEK_HOURS


def site_days(schedules: Schedules, offset: Ints, site: Ints, sites: int) -> Floats:
    """(s, 7) mean visits of each site on each UTC day of the week."""
    count = np.diff(schedules.first)
    day = shifted(schedules, offset) // DAY_HOURS
    place = np.repeat(site, count) * DAYS + day
    weight = np.repeat(1 / schedules.weeks, count)
    visits = np.bincount(place, weight, sites * DAYS).astype(np.float64)
    return visits.reshape(sites, DAYS)
