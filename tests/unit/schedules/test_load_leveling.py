"""Leveling of rare visits: even over the weeks, and never late."""

from __future__ import annotations

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.allocation.plan import plan
from schedules.calendar import visits_between
from schedules.evaluation.world import never, seen
from schedules.history import Floats, Histories, Times
from schedules.placement.load import balanced, first_weeks, fullest_week, in_time
from schedules.population import MONDAY_HOURS
from schedules.schedule import FEED_CYCLES, ROUND_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import Terms
from tests.unit.populations import NOW, ZONES, changes, population, rates, watched

UTC = (ZoneInfo("UTC"),)


def rare(*pairs: tuple[int, int]) -> Schedules:
    """Return one visit per target, given as (weeks of the cycle, hour of the cycle)."""
    weeks = np.array([weeks for weeks, _ in pairs], np.uint8)
    slots = np.array([slot for _, slot in pairs], np.uint16)
    return replace(
        Schedules.none(len(pairs)), weeks=weeks, first=np.arange(len(pairs) + 1), slots=slots
    )


def waits(schedules: Schedules, last: Floats) -> Floats:
    """Return the weeks from the last observation to the next visit."""
    first, at = visits_between(schedules, UTC[0], NOW, NOW + 25 * WEEK_HOURS)
    return (at[first[:-1]] - last) / WEEK_HOURS


def test_first_weeks_are_even() -> None:
    key = np.random.default_rng(0).integers(0, 2**60, 100).astype(np.uint64)
    assert np.bincount(first_weeks(np.full(100, 4), key)).tolist() == [25] * 4


def test_fullest_week_counts_all_cycles() -> None:
    assert fullest_week(rare((4, 5), (4, 9), (4, 200), (2, 170), (2, 3))) == 3
    assert fullest_week(rare((24, 5), (12, 9), (8, 7), (6, 4 * 168), (24, 23 * 168))) == 3
    assert fullest_week(Schedules.even(np.full(3, 2.0), np.zeros(3))) == 6


def test_all_cycles_divide_the_round() -> None:
    assert [ROUND_WEEKS % weeks for weeks in FEED_CYCLES] == [0] * len(FEED_CYCLES)


@pytest.mark.parametrize("weeks", FEED_CYCLES[:-1])
def test_moved_visit_is_within_a_cycle_of_last_observation(weeks: int) -> None:
    """Check visits that were drawn for any week of the cycle."""
    n = 40
    some = population(n, UTC, max_hours=np.full(n, weeks * 168.0))
    drawn = rare(*((weeks, 168 * (i % weeks) + 4 * i) for i in range(n)))
    last = NOW - np.linspace(0, weeks * WEEK_HOURS - 169, n)
    moved = np.full(n, True)
    assert waits(drawn, last).max() > weeks
    assert waits(in_time(drawn, moved, some, last, NOW), last).max() <= weeks
    assert in_time(drawn, ~moved, some, last, NOW).same_as(drawn).all()


def test_urgent_visit_keeps_hour_of_last_observation() -> None:
    some, last = population(1, UTC), np.array([NOW - 27 * 24.0])
    after = in_time(rare((4, 5 * 24)), np.array([True]), some, last, NOW)
    assert waits(after, last).tolist() == [4]
    hours = np.arange(WEEK_HOURS) != (last[0] - MONDAY_HOURS) % WEEK_HOURS
    closed = replace(some, open_hours=some.open_hours & hours)
    after = in_time(rare((4, 5 * 24)), np.array([True]), closed, last, NOW)
    assert after.slots % WEEK_HOURS == [5 * 24]


def test_uneven_weeks_are_balanced_within_waits() -> None:
    some = population(6, UTC)
    last = NOW - np.array([0, 1, 1, 2, 2, 2]) * WEEK_HOURS - 5.0
    next_week = (int(NOW - 96) // WEEK_HOURS + 1) % 4
    drawn = rare(*[(4, next_week * WEEK_HOURS + 9)] * 6)
    after = balanced(drawn, some, last, NOW)
    assert fullest_week(after) == 2
    assert waits(after, last).max() <= 4


def test_weeks_are_balanced_after_a_long_pause() -> None:
    """Visit all targets immediately, because all are overdue."""
    n = 40
    some, last = population(n, UTC), np.full(n, NOW - 6 * WEEK_HOURS)
    drawn = rare(*((4, 168 * (i % 4) + 9) for i in range(n)))
    after = in_time(drawn, np.full(n, True), some, last, NOW)
    assert fullest_week(balanced(after, some, last, NOW)) == 10


def weekly(budget: float, weeks: int, zone: str) -> tuple[list[int], Floats]:
    """Replan weekly; return the visits in each week and each target's longest wait in weeks."""
    n, zones = 60, (ZoneInfo(zone),)
    some = population(n, zones)
    happened = changes(some, rates(n) / 2, weeks=weeks + 4, seed=1)
    happened = happened._replace(at=happened.at + weeks * WEEK_HOURS)
    past: Histories = watched(some, happened, every=24)
    present, counts, longest = Schedules.none(n), [], np.zeros(n)
    monday = NOW - (5.5 if zone == "Asia/Kolkata" else 0)
    for week in range(weeks):
        now, before = monday + week * WEEK_HOURS, past.until.copy()
        present = plan(some, past, Terms(budget_per_day=budget), now, present).schedules
        first, at = visits_between(present, zones[0], now, now + WEEK_HOURS)
        past = seen(past, Times(first, at), happened)
        longest = np.maximum(longest, (np.maximum(past.until, now + WEEK_HOURS) - before))
        counts.append(len(at))
    return counts, longest / WEEK_HOURS


@pytest.mark.parametrize("budget", [4.0, 6.0, 12.0])
@pytest.mark.parametrize("zone", ["UTC", str(ZONES[3])])
def test_weekly_budget_and_longest_wait_hold(budget: float, zone: str) -> None:
    counts, longest = weekly(budget, 10, zone)
    assert max(counts) <= 7 * budget
    assert longest.max() <= 5


def test_unvisited_targets_are_not_urgent() -> None:
    some, none = population(8, UTC), never(8)
    drawn = rare(*((4, 168 * (i % 4) + 9) for i in range(8)))
    assert in_time(drawn, np.full(8, True), some, none.until, NOW).same_as(drawn).all()
