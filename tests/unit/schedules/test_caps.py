"""Hourly caps: surplus visits move to nearby open hours, and none is dropped."""

from __future__ import annotations

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.allocation.plan import plan
from schedules.calendar import visits_between
from schedules.placement.leveling import leveled
from schedules.placement.load import Caps, day_surcharges, site_days
from schedules.population import Population
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import Terms
from tests.unit.populations import (
    HOUR,
    NOW,
    OFFICE,
    ZONES,
    all_of,
    changes,
    gaps,
    mixed,
    population,
    rates,
    watched,
)

UTC = (ZoneInfo("UTC"),)


def at(*slots: int) -> Schedules:
    """Return schedules with one weekly visit per target."""
    n = len(slots)
    none = Schedules.none(n)
    return replace(none, first=np.arange(n + 1), slots=np.array(slots, np.uint16))


def moved(
    schedules: Schedules, some: Population, cap: float, present: Schedules | None = None
) -> Schedules:
    present = Schedules.none(len(some)) if present is None else present
    caps = Caps.of(Terms(hourly_cap=cap), some)
    return leveled(schedules, present, some, caps, some.ahead(NOW))


def requests(schedules: Schedules, some: Population, weeks: int = 12) -> np.ndarray:
    """Return (168,) mean visits in each UTC hour of the week, counted over a period of weeks."""
    hours = np.zeros(WEEK_HOURS)
    for site, zone in enumerate(some.zones):
        rows = some.site == site
        first, when = visits_between(schedules, zone, NOW, NOW + weeks * WEEK_HOURS)
        owner = np.repeat(np.arange(len(some)), np.diff(first))
        hour = np.floor(when[rows[owner]]).astype(int) - 96
        hours += np.bincount(hour % WEEK_HOURS, minlength=WEEK_HOURS) / weeks
    return hours


def test_surplus_visits_move_to_later_hours() -> None:
    some = population(7, UTC)
    after = moved(at(*[50] * 6, 51), some, 2)
    assert sorted(after.slots.tolist()) == [50, 50, 51, 51, 52, 52, 53]


def test_surplus_visits_wrap_around_the_week() -> None:
    some = population(4, UTC)
    assert sorted(moved(at(*[167] * 4), some, 1).slots.tolist()) == [0, 1, 2, 167]


def test_surplus_visits_do_not_displace_others() -> None:
    some = population(3, UTC)
    after = moved(at(10, 10, 11), some, 1)
    assert after.slots[2] == 11
    assert sorted(after.slots[:2].tolist()) == [10, 12]


def test_rare_visit_counts_as_a_fraction() -> None:
    some = population(4, UTC)
    rare = replace(at(*[30] * 4), weeks=np.full(4, 4, np.uint8))
    assert moved(rare, some, 1).slots.tolist() == [30] * 4


def test_closed_hours_stay_closed() -> None:
    opened = (HOUR % 24 < 12)[None, :]
    some = population(30, UTC, open_hours=opened)
    after = moved(at(*[9] * 30), some, 2)
    assert (after.slots % 24 < 12).all()


@pytest.mark.parametrize("zones", [UTC, ZONES[:3], ZONES[3:5]])
def test_hours_stay_below_cap_if_there_is_room(zones: tuple[ZoneInfo, ...]) -> None:
    """Count visits over a week, in UTC hours."""
    rng = np.random.default_rng(0)
    some = population(300, zones)
    peak = at(*rng.choice([9, 10, 33, 34, 100], 300).tolist())
    assert requests(peak, some, 1).max() > 20
    after = moved(peak, some, 3)
    # None of these zones changes its clock in the week that follows.
    assert requests(after, some, 1).max() <= 3


def test_visits_of_a_target_never_merge() -> None:
    """Move a third visit out of hour 10; its target already has a visit at 11."""
    some = population(3, UTC, key=np.array([1, 2, 3], np.uint64))
    before = replace(
        at(10, 10, 10), first=np.array([0, 1, 2, 4]), slots=np.array([10, 10, 10, 11], np.uint16)
    )
    after = moved(before, some, 2)
    assert len(set(after[2].slots)) == 2


def test_hours_of_plan_stay_below_cap() -> None:
    some = population(40, UTC)
    past = watched(some, changes(some, rates(40) + 10, OFFICE), every=2)
    result = plan(some, past, Terms(budget_per_day=280, hourly_cap=13), NOW)
    assert requests(result.schedules, some, 1).max() <= 13


def test_leveling_keeps_interval_limits() -> None:
    some = population(60, UTC, max_hours=np.full(60, 60.0), min_hours=np.full(60, 6.0))
    past = watched(some, changes(some, rates(60) + 4, OFFICE), every=2)
    result = plan(some, past, Terms(budget_per_day=100, hourly_cap=6), NOW)
    assert max(gaps(schedule).max() for schedule in all_of(result.schedules)) <= 60
    assert min(gaps(schedule).min() for schedule in all_of(result.schedules)) >= 6


def test_site_cap_and_total_cap_both_hold() -> None:
    """Allow the site 336 visits a week; it needs 314. All sites together need 630 of 1176."""
    some = population(80, (*UTC, ZONES[0]), site_hour=np.array([np.inf, 2.0]))
    past = watched(some, changes(some, rates(80) + 3, OFFICE), every=2)
    result = plan(some, past, Terms(budget_per_day=90, hourly_cap=7), NOW)
    of_site = np.flatnonzero(some.site == 1)
    assert 300 < result.schedules.of(of_site).visits_per_week.sum() < 336
    assert requests(result.schedules.of(of_site), some.of(of_site), 4).max() <= 2
    assert requests(result.schedules, some, 4).max() <= 7


def test_visits_without_room_are_kept() -> None:
    some = population(200, UTC)
    assert np.bincount(moved(at(*range(168), *[9] * 32), some, 1).slots).tolist() == [
        33 if hour == 9 else 1 for hour in range(168)
    ]


def test_visit_moves_earlier_if_it_cannot_move_later() -> None:
    """Avoid 11 and 12, which are less than three hours before the visit at 13."""
    some = population(2, UTC, min_hours=np.full(2, 3.0), key=np.array([1, 2], np.uint64))
    before = replace(at(10, 10), first=np.array([0, 1, 3]), slots=np.array([10, 10, 13], np.uint16))
    after = moved(before, some, 1)
    assert after[1].slots == (9, 13)


def test_current_hours_are_kept_if_drawn_hours_are_full() -> None:
    some = population(3, UTC, key=np.array([1, 2, 3], np.uint64))
    after = moved(at(10, 10, 10), some, 2, at(12, 10, 10))
    assert after.slots.tolist() == [12, 10, 10]


def test_drawn_hours_are_used_if_there_is_room() -> None:
    some = population(3, UTC, key=np.array([1, 2, 3], np.uint64))
    after = moved(at(10, 10, 10), some, 3, at(12, 10, 10))
    assert after.slots.tolist() == [10, 10, 10]


def test_targets_may_swap_hours() -> None:
    """Let each target move to the hour that another target leaves, one after the other."""
    some = population(4, UTC, key=np.arange(4, dtype=np.uint64))
    after = moved(at(20, 30, 40, 50), some, 1, at(10, 20, 30, 40))
    assert after.slots.tolist() == [20, 30, 40, 50]


def test_new_cap_moves_surplus_visits() -> None:
    some = population(4, UTC)
    after = moved(at(*[10] * 4), some, 2, at(*[10] * 4))
    assert sorted(after.slots.tolist()) == [10, 10, 11, 11]


def test_rare_visit_stays_in_its_week() -> None:
    """Take the hour from the current schedule and the week from the new one."""
    some = population(2, UTC, key=np.array([1, 2], np.uint64))
    weeks = np.array([1, 4], np.uint8)
    drawn, present = replace(at(10, 346), weeks=weeks), replace(at(10, 12), weeks=weeks)
    assert moved(drawn, some, 1, present).slots.tolist() == [10, 348]


def test_closed_current_hours_are_not_reused() -> None:
    some = population(2, UTC, open_hours=(HOUR != 12)[None, :], key=np.array([1, 2], np.uint64))
    assert moved(at(10, 10), some, 1, at(10, 12)).slots.tolist() == [10, 11]


def test_slot_that_moves_makes_room_for_another() -> None:
    """Move the slot at 71 to 70, so that the one at 23 may move to 22: at most 48 hours apart."""
    some = population(3, UTC, max_hours=np.full(3, 48.0), key=np.array([1, 2, 3], np.uint64))
    full = replace(
        at(0, 0, 0), first=np.array([0, 4, 8, 12]),
        slots=np.array([23, 71, 118, 143] * 3, np.uint16),
    )  # fmt: skip
    after = moved(full, some, 1)
    assert np.bincount(after.slots, minlength=WEEK_HOURS).max() == 1
    assert max(gaps(schedule).max() for schedule in all_of(after)) <= 48


def test_rare_visits_do_not_leave_their_balanced_weeks() -> None:
    some = population(4, UTC)
    rare = replace(at(*[WEEK_HOURS - 1] * 4), weeks=np.full(4, 2, np.uint8))
    assert (moved(rare, some, 1).slots // WEEK_HOURS == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_leveling_keeps_limits_in_any_order(seed: int) -> None:
    some = mixed(150, seed)
    some = replace(some, site_hour=np.where(np.arange(some.sites) % 2, 3.0, np.inf))
    past = watched(some, changes(some, rates(150, seed), OFFICE, seed=seed))
    terms = Terms(budget_per_day=250)
    drawn = plan(some, past, terms, NOW, None).schedules
    order = np.random.default_rng(seed).permutation(150)
    result, other = moved(drawn, some, 12), moved(drawn.of(order), some.of(order), 12)
    assert other.same_as(result.of(order)).all()
    assert moved(drawn, some, 12, result).same_as(result).all()
    for i, (before, after) in enumerate(zip(all_of(drawn), all_of(result), strict=True)):
        assert len(set(after.slots)) == len(before.slots)
        assert min(some.min_hours[i], gaps(before).min()) <= gaps(after).min()
        assert gaps(after).max() <= max(some.max_hours[i], gaps(before).max())


def test_site_visits_are_counted_by_utc_day() -> None:
    some = population(3, (ZoneInfo("Asia/Tokyo"), *UTC))
    days = site_days(at(0, 0, 24 + 9), some.ahead(NOW)[some.site], some.site, 2)
    assert days.tolist() == [[0, 1, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0]]


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

    caps = Caps(3.0, np.inf, np.full(1, np.inf), np.full(1, np.inf))
    load, _ = loads(day_surcharges(loads, caps, 1))
    assert load.max() <= 3.0 * 1.02
    assert load.sum() == pytest.approx(20, rel=1e-3)
