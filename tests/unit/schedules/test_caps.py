"""Caps of requests: days above them get surcharges, and hours are counted in UTC."""

from __future__ import annotations

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.placement.load import Caps, day_surcharges, site_hours
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import Terms
from tests.unit.populations import NOW, population

UTC = (ZoneInfo("UTC"),)


def at(*slots: int) -> Schedules:
    """Return schedules with one weekly visit per target."""
    n = len(slots)
    none = Schedules.none(n)
    return replace(none, first=np.arange(n + 1), slots=np.array(slots, np.uint16))


def test_site_visits_are_counted_by_utc_hour() -> None:
    some = population(3, (ZoneInfo("Asia/Tokyo"), *UTC))
    hours = site_hours(at(0, 0, 24 + 9), some.ahead(NOW)[some.site], some.site, 2)
    assert np.argwhere(hours).tolist() == [[0, 24], [0, WEEK_HOURS - 9], [1, 0]]
    assert hours.max() == 1


def test_rare_visit_counts_as_a_fraction() -> None:
    rare = replace(at(*[30] * 4), weeks=np.full(4, 4, np.uint8))
    zeros = np.zeros(4, np.int64)
    assert site_hours(rare, zeros, zeros, 1)[0, 30] == 1


def test_even_intervals_count_in_every_hour() -> None:
    even, zeros = Schedules.even(np.full(2, 42.0), np.zeros(2)), np.zeros(2, np.int64)
    assert (site_hours(even, zeros, zeros, 1) == 0.5).all()


def test_hourly_cap_limits_the_day() -> None:
    some = population(3, UTC)
    assert Caps.of(Terms(hourly_cap=2), some).day == 48
    assert Caps.of(Terms(daily_cap=20, hourly_cap=2), some, 0.5).day == 10


def test_no_surcharges_without_caps() -> None:
    some = population(3, UTC)
    caps = Caps.of(Terms(), some)
    assert not caps.by_day
    assert not day_surcharges(lambda _: (np.ones((1, 7)), 1.0), caps, 1).any()


def test_surcharges_lower_demand_to_the_cap() -> None:
    """Let demand fall with the square root of a day's price and search for the budget's price."""
    demand = np.array([[9.0, 16, 25, 36, 4, 1, 1]])

    def loads(surcharge: np.ndarray) -> tuple[np.ndarray, float]:
        low, high = 1e-6, 1e3
        for _ in range(100):
            price = (low * high) ** 0.5
            load = demand / np.sqrt(price + surcharge)
            low, high = (price, high) if load.sum() > 20 else (low, price)
        return load, price

    caps = Caps(3.0, np.full(1, np.inf))
    load, _ = loads(day_surcharges(loads, caps, 1))
    assert load.max() <= 3.0 * 1.02
    assert load.sum() == pytest.approx(20, rel=1e-3)
