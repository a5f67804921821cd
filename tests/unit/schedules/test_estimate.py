"""Estimates from histories: change rates, weekly profiles, and mixtures of profiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC as UTC_ZONE
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.calendar import EPOCH
from schedules.estimation.estimate import (
    LOW,
    NODES,
    Estimate,
    Rates,
    _rates,
    estimate,
    likelihoods,
)
from schedules.estimation.rates import (
    RATES,
    Counts,
    Past,
    Wall,
    even_counts,
    exposure,
    fit_mixture,
    fit_prior,
    hour_counts,
    log_likelihood,
    memberships,
    pooled,
    running,
    sample,
    smoothed,
    target_profile,
)
from schedules.evaluation.world import never, seen
from schedules.history import Floats, Histories, Times
from schedules.population import Population, walls_of
from schedules.schedule import WEEK_HOURS
from tests.unit.populations import (
    HOUR,
    NOW,
    OFFICE,
    UNIFORM,
    ZONES,
    changes,
    population,
    rates,
    watched,
)

UTC = (ZoneInfo("UTC"),)
NIGHT: Floats = np.where(HOUR % 24 == 2, 1 / 7, 0.0)


def wall(zone: str, since: float, until: float) -> Wall:
    walls = walls_of((ZoneInfo(zone),), since, until)
    return Wall(walls.base, walls.hours[0])


def estimates(some: Population, past: Histories) -> tuple[Estimate, Rates]:
    estimated = estimate(some, past)
    return estimated, estimated.rates(slice(0, len(some)))


def test_likelihood_is_that_of_a_poisson_process() -> None:
    """Observe daily from a Monday on; each span of a day has a change or has none."""
    since = NOW - WEEK_HOURS * 3
    by = since + 24.0 * np.array([1, 4, 5, 12])
    past = Past(since, since + 20 * 24, by - 24, by)
    mass = running(UNIFORM)
    likelihood = log_likelihood(past, mass, wall("UTC", since, NOW), RATES)
    expected = 4 * np.log(-np.expm1(-RATES / 7)) - RATES * 16 / 7
    np.testing.assert_allclose(likelihood, expected, rtol=1e-9)


def test_a_day_of_many_changes_counts_as_one() -> None:
    since = NOW - WEEK_HOURS
    by = since + 24 + np.arange(1, 13) / 2
    past = Past(since, NOW, by - 0.5, by)
    walls, mass = wall("UTC", since, NOW), running(UNIFORM)
    likelihood = log_likelihood(past, mass, walls, RATES)
    np.testing.assert_allclose(likelihood, np.log(-np.expm1(-RATES / 7)) - RATES * 6 / 7, rtol=1e-9)
    assert hour_counts(past, walls, UNIFORM).sum() == pytest.approx(1, abs=0.01)


def test_exposure_follows_the_profile() -> None:
    walls, mass = wall("UTC", NOW - 1000, NOW + 1000), running(OFFICE)
    monday = NOW - WEEK_HOURS
    assert exposure(mass, walls, monday, monday + 8) == 0
    assert exposure(mass, walls, monday + 8, monday + 9.5) == pytest.approx(1.5 / 50)
    assert exposure(mass, walls, monday + 9, monday + 9 + 2 * WEEK_HOURS) == pytest.approx(2)


def test_change_is_spread_over_its_possible_hours() -> None:
    walls, monday = wall("Asia/Tokyo", NOW - 1000, NOW), NOW - WEEK_HOURS
    past = Past(monday, NOW, np.array([monday + 0.5]), np.array([monday + 3.0]))
    counts = hour_counts(past, walls, UNIFORM)
    assert np.flatnonzero(counts).tolist() == [9, 10, 11]
    np.testing.assert_allclose(counts[9:12] / counts.sum(), [0.2, 0.4, 0.4])
    week = past._replace(after=np.array([monday]), by=np.array([monday + WEEK_HOURS]))
    assert hour_counts(week, walls, UNIFORM).sum() == 0


def test_change_around_the_end_of_the_week_is_in_both_weeks() -> None:
    monday = NOW - WEEK_HOURS
    past = Past(monday - 24, NOW, np.array([monday - 1.5]), np.array([monday + 1.5]))
    counts = hour_counts(past, wall("UTC", NOW - 1000, NOW), UNIFORM)
    assert np.flatnonzero(counts).tolist() == [0, 1, 166, 167]
    np.testing.assert_allclose(counts[[166, 167, 0, 1]] * 6 / counts.sum(), [1, 2, 2, 1])


@pytest.mark.parametrize(("zone", "day"), [("America/New_York", 21), ("Europe/Berlin", 0)])
def test_day_of_23_hours_counts_as_a_day(zone: str, day: int) -> None:
    """Count each hour from local midnight to local midnight once, but not the skipped hour."""
    jump = NOW - 8 * 24 if zone == "Europe/Berlin" else NOW - 29 * 24
    ahead = 1 if zone == "Europe/Berlin" else -5
    past = Past(jump - 100, NOW, np.array([jump - ahead]), np.array([jump - ahead + 23.0]))
    counts = hour_counts(past, wall(zone, jump - 200, NOW), UNIFORM)[6 * 24 :]
    assert np.flatnonzero(counts == 0).tolist() == [2]
    assert np.ptp(counts[counts > 0]) < 1e-12


def test_the_posterior_is_prior_times_likelihood() -> None:
    n = 60
    some = population(n, UTC)
    past = watched(some, changes(some, rates(n)), every=6)
    estimated, rate = estimates(some, past)
    likelihood = likelihoods(some, past, estimated.mixtures)
    posterior = likelihood.astype(float) * estimated.prior[some.group]
    posterior /= posterior.sum(1, keepdims=True)
    np.testing.assert_allclose(rate.mean, posterior @ RATES, rtol=1e-5)
    np.testing.assert_allclose(rate.node.mean(1), rate.mean, rtol=1e-5)
    below = np.cumsum(posterior, 1)
    for i in range(n):
        if rate.low[i] < rate.mean[i]:
            assert below[i, np.searchsorted(RATES, rate.low[i])] >= LOW
        assert rate.low[i] <= rate.mean[i] <= rate.high[i]
    assert np.all(np.diff(rate.node, axis=1) >= -1e-9)
    assert rate.node.shape == (n, NODES)
    np.testing.assert_allclose(estimated.profiles(slice(0, n)).sum(1), 1)


@pytest.mark.parametrize("every", [1.0, 24.0, 36.0, 60.0])
def test_rates_cover_the_truth_and_are_not_biased(every: float) -> None:
    n = 1500
    some = population(n, UTC)
    true = np.random.default_rng(1).gamma(1.5, 1.0, n).clip(0.05, 4)
    rate = estimates(some, watched(some, changes(some, true, weeks=10), every, 10))[1]
    assert rate.mean.sum() == pytest.approx(true.sum(), rel=0.05)
    covered = np.mean((true >= rate.low * 0.93) & (true <= rate.high * 1.07))
    assert 0.85 < covered < 0.97


def test_visits_at_irregular_times_are_unbiased() -> None:
    n = 1500
    some, rng = population(n, UTC), np.random.default_rng(2)
    true = np.full(n, 2.0)
    happened = changes(some, true, weeks=10)
    at = [np.sort(rng.uniform(NOW - 10 * WEEK_HOURS, NOW, 25)) for _ in range(n)]
    visits = Times(np.arange(n + 1) * 25, np.concatenate(at))
    rate = estimates(some, seen(never(n), visits, happened))[1]
    assert rate.mean.mean() == pytest.approx(2, rel=0.06)


def test_silent_targets_keep_a_rate() -> None:
    n = 200
    some = population(n, UTC)
    true = np.where(np.arange(n) < 100, 3.0, 0.0)
    rate = estimates(some, watched(some, changes(some, true, weeks=10), every=24, weeks=10))[1]
    assert (rate.mean[100:] > 0).all()
    assert rate.mean[100:].max() < 0.3
    assert rate.low.min() >= RATES[0]


def test_new_target_starts_with_rate_of_neighbors() -> None:
    """Start a new target with the rates of its group, or of its site if the group is empty."""
    n = 300
    some = population(n, (*UTC, *UTC))
    group = np.where(some.site == 0, 0, np.where(np.arange(n) % 4 == 1, 1, 2))
    some = replace(some, group=group, parent=np.array([0, 1, 1, 1]))
    true = np.choose(group, [0.1, 2.0, 6.0])
    past = watched(some, changes(some, true, weeks=10), every=6, weeks=10)
    twice = np.concatenate([np.arange(n), [0, 1, 3, 1]])
    more, pasts = some.of(twice), past.of(twice)
    more.group[-1] = 3
    silent = never(4)
    pasts = replace(
        pasts,
        since=np.concatenate([past.since, silent.since]),
        until=np.concatenate([past.until, silent.until]),
        first=np.concatenate([past.first, np.full(4, past.first[-1])]),
        after=past.after,
        by=past.by,
    )
    rate = estimates(more, pasts)[1]
    assert rate.mean[n] == pytest.approx(0.1, abs=0.1)
    assert rate.mean[n + 1] == pytest.approx(2, rel=0.3)
    assert rate.mean[n + 2] == pytest.approx(6, rel=0.3)
    assert 1.5 < rate.mean[n + 3] < 6.5


def test_estimate_without_data_is_wide() -> None:
    some = population(12)
    estimated, rate = estimates(some, never(12))
    assert (rate.low <= 0.02).all()
    assert (rate.high >= 20).all()
    np.testing.assert_allclose(estimated.profiles(slice(0, 12)), 1 / WEEK_HOURS)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_profiles_stay_even_with_few_changes(count: int) -> None:
    """Check that a few changes of a whole site carry little information about its hours."""
    some = population(5, UTC)
    at = np.sort(np.random.default_rng(count).uniform(NOW - 800, NOW, count))
    first = np.array([0, count, count, count, count, count])
    estimated = estimate(some, watched(some, Times(first, at), every=1))
    others = estimated.profiles(slice(1, 5))
    assert others.max() < 10 / WEEK_HOURS
    assert others.min() > 0.2 / WEEK_HOURS


@pytest.mark.parametrize("days", [3, 10, 17, 21])
def test_weekdays_observed_more_often_are_not_busier(days: int) -> None:
    """Check that an even profile stays even if some weekdays are observed more often."""
    n = 400
    some = population(n, UTC)
    past = watched(some, changes(some, np.full(n, 12.0)), every=1, weeks=days / 7)
    by_day = estimate(some, past).profiles(slice(0, n)).mean(0).reshape(7, 24).sum(1)
    np.testing.assert_allclose(by_day, 1 / 7, rtol=0.1)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Europe/Berlin"])
@pytest.mark.parametrize("days", [0.01, 0.5, 3, 7, 10, 35, 300])
def test_even_changes_follow_observed_hours(zone: str, days: float) -> None:
    """Count hours by the clock: in the week of a jump, an hour is missing or repeated."""
    since = int(NOW - 24 * days)
    hours = [
        (EPOCH + timedelta(hours=hour)).astimezone(ZoneInfo(zone))
        for hour in range(since, int(NOW))
    ]
    seen = Counter(at.weekday() * 24 + at.hour for at in hours)
    expected = np.array([seen[h] for h in range(WEEK_HOURS)], float)
    past = Past(since + 0.4, NOW + 0.3, np.empty(0), np.empty(0))
    even = even_counts(past, wall(zone, since, NOW + 1), 5.0)
    assert even.sum() == pytest.approx(5)
    # Over whole weeks, the two clock changes of a year cancel out, except for one hour each.
    np.testing.assert_allclose(even, 5 * expected / expected.sum(), rtol=0.03)


@pytest.mark.parametrize(("day", "hours", "expected"), [(70, 23, {2: 0}), (308, 25, {1: 2})])
def test_sunday_of_23_or_25_hours_is_fully_counted(
    day: int, hours: int, expected: dict[int, int]
) -> None:
    """Check 2024-03-10 and 2024-11-03 in New York."""
    start = (datetime(2024, 1, 1, 5, tzinfo=UTC_ZONE) - EPOCH) / timedelta(hours=1) + (day - 1) * 24
    start -= day > 70
    past = Past(start, start + hours, np.empty(0), np.empty(0))
    even = even_counts(past, wall("America/New_York", start - 9, start + 99), float(hours))
    assert not even[: 6 * 24].any()
    assert even[6 * 24 :].tolist() == pytest.approx([expected.get(k, 1) for k in range(24)])


def test_observation_of_minutes_gives_even_profile() -> None:
    past = Past(NOW + 0.1, NOW + 0.6, np.empty(0), np.empty(0))
    np.testing.assert_allclose(even_counts(past, wall("UTC", NOW, NOW + 1), 1.0), 1 / WEEK_HOURS)


def test_targets_of_site_share_its_profile() -> None:
    n = 60
    some = population(n, ZONES[:2])
    past = watched(some, changes(some, np.full(n, 6.0), OFFICE), every=1)
    profile = estimate(some, past).profiles(slice(0, n))
    assert profile[:, OFFICE > 0].sum(1).min() > 0.75


def test_two_profiles_of_a_site_are_separated() -> None:
    n = 120
    some = population(n, UTC)
    profile = np.where(np.arange(n)[:, None] % 2, OFFICE, NIGHT)
    past = watched(some, changes(some, np.full(n, 4.0), profile), every=1)
    estimated = estimate(some, past)
    profiles = estimated.profiles(slice(0, n))
    assert profiles[1::2, OFFICE > 0].sum(1).mean() > 0.8
    assert profiles[::2][:, np.roll(NIGHT > 0, 0)].sum(1).mean() > 0.4
    used = estimated.mixtures.share[0] > 0
    nightly = estimated.mixtures.profile[0][used][:, NIGHT > 0].sum(1)
    assert nightly.max() > 0.5
    assert nightly.min() < 0.05


def test_mixture_components_are_profiles() -> None:
    seen = np.random.default_rng(0).poisson(0.05, (50, WEEK_HOURS)).astype(float)
    counts = Counts(seen, np.repeat(seen.sum(1, keepdims=True) / WEEK_HOURS, WEEK_HOURS, 1))
    mixture = fit_mixture(counts)
    np.testing.assert_allclose(mixture.profile.sum(2), 1)
    assert mixture.share.sum() == pytest.approx(1)
    of = memberships(counts, mixture.profile[0], mixture.share[0])
    np.testing.assert_allclose(of.sum(1), 1)


def test_profiles_sum_to_one_with_all_hours_positive() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.poisson(rng.choice([0.02, 0.2]), WEEK_HOURS).astype(float)
        counts[rng.integers(WEEK_HOURS)] += 1
        even = np.full(WEEK_HOURS, counts.mean())
        common = smoothed(pooled(counts, even))
        assert common.sum() == pytest.approx(1)
        profile = target_profile(counts, even, common[None], np.log(common[None]), np.ones(1))
        assert profile.sum() == pytest.approx(1)
        assert profile.min() > 0


def test_the_prior_is_a_distribution_for_each_group() -> None:
    rng = np.random.default_rng(0)
    likelihood = rng.random((50, len(RATES))).astype(np.float32)
    prior = fit_prior(likelihood, rng.integers(0, 3, 50), np.array([0, 0, 1, 1]))
    assert prior.shape == (4, len(RATES))
    np.testing.assert_allclose(prior.sum(1), 1)
    assert (prior > 0).all()


def test_sample_does_not_depend_on_order() -> None:
    rng = np.random.default_rng(0)
    group, key = rng.integers(0, 4, 30_000), rng.integers(0, 2**64, 30_000, dtype=np.uint64)
    order = rng.permutation(30_000)
    original, reordered = (
        set(key[sample(group, key)]),
        set(key[order][sample(group[order], key[order])]),
    )
    assert original == reordered
    assert len(original) < 30_000


def test_estimates_do_not_depend_on_order() -> None:
    n = 60
    some = population(n)
    past = watched(some, changes(some, rates(n), OFFICE), every=2)
    order = np.random.default_rng(0).permutation(n)
    original, reordered = estimates(some, past), estimates(some.of(order), past.of(order))
    np.testing.assert_allclose(reordered[1].mean, original[1].mean[order], rtol=1e-4)
    np.testing.assert_allclose(
        reordered[0].profiles(slice(0, n)),
        original[0].profiles(slice(0, n))[order],
        rtol=1e-4,
        atol=1e-9,
    )


@pytest.mark.parametrize(("rate", "weeks"), [(0.5, 40), (5, 50), (22.8, 3), (60, 10)])
def test_intervals_contain_the_rate_of_nine_in_ten_pages(rate: float, weeks: int) -> None:
    changes = np.random.default_rng(5).poisson(rate * weeks, 2000)[:, None]
    log = changes * np.log(RATES) - RATES * weeks
    likelihood = np.exp(log - log.max(axis=1, keepdims=True)).astype(np.float32)
    even = np.full((1, len(RATES)), 1 / len(RATES))
    _, _, low, high = _rates(likelihood, even, np.zeros(2000, np.int64), RATES)
    covered = np.mean((low <= rate) & (rate <= high))
    assert 0.85 <= covered <= 0.99
    # They are as wide as a normal approximation, but no narrower than the steps of the grid.
    width = max(3.29 * np.sqrt(rate / weeks), 0.9 * rate * np.log(RATES[1] / RATES[0]))
    assert np.median(high - low) == pytest.approx(width, rel=0.2)
