"""Rule-based policies: frequency classes, even intervals with a dead band, and adaptive."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules import compiled
from schedules.allocation import optimal
from schedules.allocation.optimal import outlook
from schedules.allocation.plan import plan
from schedules.allocation.policies import by_night, grouped
from schedules.estimation.estimate import estimate
from schedules.history import Floats, Times
from schedules.intervals import next_interval
from schedules.population import Population, shortest_hours
from schedules.schedule import FREQUENCY_CLASSES, WEEK_HOURS, Schedule, Schedules, nearest_class
from schedules.terms import Terms
from tests.unit.populations import NOW, OFFICE, ZONES, all_of, changes, population, rates, watched

# Changes in three weeks, whether they are at night, and the class in the paper's table.
PAPER = {
    "u1": (14, False, "G5"), "u5": (10, False, "G3"), "u3": (10, False, "G3"),
    "u2": (8, False, "G3"), "u4": (7, False, "G2"), "u11": (7, False, "G2"),
    "u10": (6, False, "G2"), "u9": (3, True, "G1"), "u8": (3, True, "G1"), "u7": (3, True, "G1"),
    "u6": (3, True, "G1"), "u12": (3, True, "G1"), "u15": (2, True, "G1"),
    "u13": (1, False, "2G1"), "u14": (0, False, "4G1"),
}  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "Asia/Seoul", "Asia/Kolkata", "America/New_York"])
def test_paper_classes_from_histories(zone: str) -> None:
    """Poll every 20 minutes for three weeks; changes are at 11:30 or 22:30 by the site's clock."""
    some = population(len(PAPER), (ZoneInfo(zone),))
    ahead = {"UTC": 0, "Asia/Seoul": 9, "Asia/Kolkata": 5.5, "America/New_York": -4}[zone]
    rows = []
    for count, night, _ in PAPER.values():
        days = NOW - 3 * WEEK_HOURS + 24 * (1 + np.arange(count) * 19 // max(count, 1))
        rows.append(days + (22.5 if night else 11.5) - ahead)
    first = np.cumsum([0, *(len(row) for row in rows)])
    past = watched(some, Times(first, np.concatenate(rows)), 1 / 3, 3)
    result = grouped(some, past, six=False)
    groups = [FREQUENCY_CLASSES[code] for code in nearest_class(result.visits_per_week)]
    assert dict(zip(PAPER, groups, strict=True)) == {url: row[2] for url, row in PAPER.items()}
    assert by_night(some, past).tolist() == [night for _, night, _ in PAPER.values()]
    assert [slot for i in range(7, 13) for slot in result[i].slots] == [5 * 24 + 12] * 6
    six = grouped(some, past, six=True)
    assert six[0].visits_per_week == 7
    assert six[4].visits_per_week == 3


def test_groups_policy_ignores_the_budget() -> None:
    some = population(60)
    past = watched(some, changes(some, rates(60)), every=2)
    one, other = (plan(some, past, Terms("groups", b), NOW) for b in (1.0, 1000.0))
    assert one.schedules.same_as(other.schedules).all()


def test_small_budget_changes_keep_even_intervals() -> None:
    n = 80
    some = population(n)
    past = watched(some, changes(some, rates(n)), every=4)
    first = plan(some, past, Terms("harmonic", 100.0), NOW)
    again = plan(some, past, Terms("harmonic", 108.0), NOW, first.schedules)
    assert not again.updated.any()
    less = plan(some, past, Terms("harmonic", 95.0), NOW, first.schedules)
    assert less.requests_per_day <= 95 * (1 + 1e-9)
    generous = plan(some, past, Terms("harmonic", 250.0), NOW, first.schedules)
    assert generous.updated.mean() > 0.9
    assert generous.requests_per_day == pytest.approx(250, rel=1e-6)


def test_even_visits_have_spread_phases() -> None:
    some = population(400)
    result = plan(some, watched(some, changes(some, rates(400))), Terms("uniform", 400.0), NOW)
    phase = result.schedules.phase_hours / result.schedules.every_hours
    assert 0 <= phase.min() <= phase.max() < 1
    assert np.histogram(phase, 4)[0].min() > 70


def test_adaptive_interval() -> None:
    assert next_interval(24, 0, 0, changed=True) == 12
    assert next_interval(24, 0, 0, changed=False) == pytest.approx(28.8)
    assert next_interval(24, 20, 672, changed=True) == 20
    assert next_interval(600, 1, 672, changed=False) == 672
    every = 24.0
    for _ in range(100):
        every = next_interval(every, 0, 0, changed=True)
    assert every == pytest.approx(1 / 60)


def test_adaptive_starts_daily_and_keeps_intervals() -> None:
    some = population(10)
    past = watched(some, changes(some, rates(10)))
    result = plan(some, past, Terms("adaptive", 1.0), NOW)
    assert set(result.schedules.every_hours) == {24.0}
    present = Schedules.even(np.linspace(1, 14, 10), np.zeros(10))
    again = plan(some, past, Terms("adaptive", 1.0), NOW, present)
    assert not again.updated.any()


def test_outlooks_of_even_and_slotted_visits_agree() -> None:
    """Compare hourly slots of an even profile with the formula for even intervals."""
    n = 30
    some = population(n, (ZoneInfo("UTC"),))
    estimated = estimate(some, watched(some, Times(np.zeros(n + 1, int), np.empty(0)), every=12))
    slotted = Schedules(
        np.ones(n, np.uint8), np.arange(n + 1) * 7,
        np.tile(np.arange(7) * 24, n).astype(np.uint16), np.zeros(n), np.zeros(n),
    )  # fmt: skip
    even = outlook(estimated, Schedules.even(np.full(n, 7.0), np.zeros(n)))
    slotted_outlook = outlook(estimated, slotted)
    np.testing.assert_allclose(slotted_outlook.stale, even.stale, rtol=1e-4)
    np.testing.assert_allclose(slotted_outlook.age_days, even.age_days, rtol=1e-3)


def test_a_part_of_the_targets_takes_no_time_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, plans of a million targets take time that grows with the square of the targets."""
    monkeypatch.setattr(compiled, "CHUNK", 10)
    sizes: list[int] = []

    def spy(population: Population) -> Floats:
        sizes.append(len(population))
        return shortest_hours(population)

    monkeypatch.setattr(optimal, "shortest_hours", spy)
    some = population(40, ZONES[:1])
    estimates = estimate(some, watched(some, changes(some, rates(40))))
    optimal.candidates_of(estimates, Terms().aim, np.zeros((1, WEEK_HOURS)), 1.0)
    assert sizes == [10, 10, 10, 10]


def test_target_without_visits_stays_stale() -> None:
    some = population(3, ZONES[:1])
    seen = outlook(estimate(some, watched(some, changes(some, rates(3)))), Schedules.none(3))
    assert seen.stale.tolist() == [1, 1, 1]
    assert np.isinf(seen.age_days).all()


def test_outlook_predicts_simulated_staleness() -> None:
    """Score other weeks, which are staler because several changes a day are counted as one."""
    n, rng = 200, np.random.default_rng(3)
    some = population(n, (ZoneInfo("UTC"),))
    true = rng.gamma(2.0, 1.5, n) + 0.1
    past = watched(some, changes(some, true, OFFICE, 25), 1, 25)
    result = plan(some, past, Terms(budget_per_day=1.0 * n), NOW)
    happened = changes(some, true, OFFICE, 25, seed=9)
    stale = [
        stale_share(
            schedule, happened.at[happened.first[i] : happened.first[i + 1]] - NOW + 25 * 168
        )
        for i, schedule in enumerate(all_of(result.schedules))
    ]
    assert np.mean(stale) * 0.75 < result.stale.mean() < np.mean(stale) * 1.05


def stale_share(schedule: Schedule, at: np.ndarray, weeks: int = 25) -> float:
    """Return the share of the weeks since a Monday in which a copy is stale."""
    cycle = schedule.weeks * WEEK_HOURS
    turns = np.arange(weeks // schedule.weeks + 2)[:, None] * cycle
    visits = (turns + np.array(schedule.slots)).ravel()
    following = visits[np.searchsorted(visits, at)]
    _, place = np.unique(following, return_index=True)
    return float((following[place] - at[place]).sum() / (weeks * WEEK_HOURS))
