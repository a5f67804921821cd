"""The silence alarm: hand-computed scores, invariants, and the rate of false alarms."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.estimation import silence
from schedules.estimation.estimate import site_mixtures
from schedules.estimation.rates import uniform_mixtures
from schedules.estimation.silence import (
    Calibration,
    GapModel,
    alarms_of_sites,
    allowed_per_target,
    fit_tail,
    shared_from,
)
from schedules.evaluation.world import even_population
from schedules.history import Histories, offsets
from schedules.population import Population
from schedules.schedule import WEEK_HOURS

START = 24.0 * 19_723  # 2024-01-01, a Monday
WEEKS = 12
END = START + WEEKS * WEEK_HOURS


def population_of(n: int, sites: int = 1) -> Population:
    key = np.random.default_rng(1).integers(0, 2**63, n).astype(np.uint64)
    site = np.arange(n) % sites
    return even_population(key, site, np.ones(n), (1.0, 672.0), START, END)


def histories_of(changes: list[list[float]], until: float = END) -> Histories:
    """Return histories with changes at these hours since START, each found an hour later."""
    by = START + np.ceil(np.concatenate([np.asarray(each, float) for each in changes]))
    first = offsets(np.array([len(each) for each in changes]))
    n = len(changes)
    return Histories(np.full(n, START), np.full(n, until), first, by - 1, by)


def random_gaps(rng: np.random.Generator, shape: float) -> list[float]:
    """Return changes with a mean gap of three days; shape 1: at random, larger: regular."""
    gaps = 24 + rng.gamma(shape, 48 / shape, 200)
    at = np.cumsum(gaps)
    return [float(each) for each in at[at < WEEKS * WEEK_HOURS - 1]]


def test_threshold_of_exact_model_is_log_of_rate() -> None:
    exact = Calibration(start=2.0, rate=float(np.exp(-2)), excess=1.0)
    assert exact.threshold(0.001) == pytest.approx(6.9078, abs=1e-4)
    # A gap of two weeks at that score: twice the rate per week.
    chance = exact.chance(np.array([6.9078]), np.array([2.0]))
    assert chance[0] == pytest.approx(0.002, rel=1e-3)


def test_heavy_tails_of_past_gaps_raise_threshold() -> None:
    # 20 of 100 scores exceed 2, on average by 4: (80 + 15) / 25 = 3.8. Rate: 21 in 1,001 weeks.
    scores = np.concatenate([np.full(20, 6.0), np.full(80, 2.0)])
    tail = fit_tail(scores, weeks=1000.0, false_per_week=0.001)
    assert tail == pytest.approx(Calibration(2.0, 21 / 1001, 3.8))
    assert tail.threshold(0.001) == pytest.approx(2 + 3.8 * np.log(20.979), rel=1e-4)
    assert tail.threshold(0.0001) > tail.threshold(0.001)


def test_site_contributes_as_many_scores_as_alarms() -> None:
    score = np.array([1.0, 9.0, 7.0, 8.0, 5.0])
    at = np.array([0.0, 10.0, 20.0, 30.0, 700.0])  # the last one is in the next four weeks
    site_scores = alarms_of_sites(score, at, np.zeros(5, np.int64), np.array([2]))
    assert sorted(site_scores.tolist()) == [5.0, 8.0, 9.0]
    empty = np.empty(0)
    assert len(alarms_of_sites(empty, empty, np.empty(0, np.int64), np.array([2]))) == 0


def test_site_alarm_needs_three_targets_and_2_percent() -> None:
    assert shared_from(np.array([0, 100, 1000])).tolist() == [3, 3, 20]


def test_stopped_regular_page_is_found_but_not_a_bursty_one() -> None:
    n, stop = 60, WEEKS * WEEK_HOURS - 5 * 24
    rng = np.random.default_rng(3)
    regular = [[float(hour) for hour in range(i % 24, stop, 48)] for i in range(n)]
    bursty = [[at for at in random_gaps(rng, 0.4) if at < stop] for _ in range(n)]
    for changes, is_found in ((regular, True), (bursty, False)):
        population, past = population_of(n, sites=n), histories_of(changes)
        mixtures = site_mixtures(population, past)
        found = GapModel.of(population, past, mixtures, 0.5 / n).rated(population, past)
        share = found.silent.mean()
        assert share > 0.9 if is_found else share < 0.1
        assert (found.chance[found.silent] < 0.01).all()


def test_score_grows_with_silence_but_few_changes_are_not_rated() -> None:
    changes = [[100.0, 180.0, 260.0, 340.0], [100.0, 180.0], []]
    population, mixtures = population_of(3), uniform_mixtures(1)
    scores = []
    for days in (20, 30, 40, 60):
        past = histories_of(changes, START + 24 * days)
        prior = np.ones((1, len(silence.GRID.mean)))
        ratings = silence.rate_silences(population, past, mixtures, prior)
        assert ratings.rated.tolist() == [True, False, False]
        assert ratings.score[1] == ratings.score[2] == -np.inf
        scores.append(float(ratings.score[0]))
    assert scores[0] == -np.inf or scores[0] < scores[1]
    assert scores[1] < scores[2] < scores[3]


def test_time_without_observations_is_not_silence() -> None:
    changes = [[float(hour) for hour in range(0, 600, 48)]]
    past = histories_of(changes, START + 601)
    population = population_of(1)
    found = GapModel.of(population, past, uniform_mixtures(1), 0.01).rated(population, past)
    assert not found.silent.any()


@pytest.mark.soak
@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
def test_false_alarms_stay_within_chosen_rate(shape: float) -> None:
    n, allowed = 400, 4.0
    rng = np.random.default_rng(17)
    changes = [random_gaps(rng, shape) for _ in range(n)]
    population, false = population_of(n, sites=n), 0
    reported_gaps: set[tuple[int, float]] = set()
    for day in range(6 * 7, WEEKS * 7, 3):
        until = START + 24.0 * day
        seen = [[at for at in each if START + np.ceil(at) <= until] for each in changes]
        past = histories_of(seen, until)
        mixtures, share = uniform_mixtures(n), allowed_per_target(allowed, n)
        model = GapModel.of(population, past, mixtures, share, combined=False)
        found = model.rated(population, past)
        for row in np.flatnonzero(found.silent):
            gap = (int(row), float(found.ratings.since[row]))
            false += gap not in reported_gaps
            reported_gaps.add(gap)
    # In six weeks, 24 on average: three standard deviations above.
    assert false <= 24 + 3 * 24**0.5
