"""Estimates of the posts that left documents without dates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln

from pipelines.feed_posts import beyond, posts_beyond
from schedules.history import History

DAY = 24 * 60


@pytest.mark.parametrize(
    ("mean", "size"),
    [(0.0, 5), (0.01, 15), (3.0, 15), (15.0, 15), (40.0, 15), (9000.0, 15), (2, 0)],
)
def test_excess_is_that_of_a_truncated_poisson_distribution(mean: float, size: int) -> None:
    numbers = np.arange(size, size + 20_000)
    if mean:
        # The logarithms of the probabilities up to a constant. scipy.stats would load slowly.
        weights = numbers * np.log(mean) - gammaln(numbers + 1)
        weights = np.exp(weights - weights.max())
    else:
        weights = np.eye(1, len(numbers))[0]
    expected = float((weights * (numbers - size)).sum() / weights.sum())
    assert beyond(mean, size) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def observed(per_day: float, hours: int, size: int, days: int, seed: int) -> tuple[float, int]:
    """Return the estimated and the true number of posts missed by fetches at even intervals."""
    rng, history = np.random.default_rng(seed), History.begin(10 * DAY)
    estimated, missed = 0.0, 0
    for at in range(10 * DAY + hours * 60, (10 + days) * DAY, hours * 60):
        posts = int(rng.poisson(per_day * hours / 24))
        new, gone = min(posts, size), 0.0
        if posts >= size:
            gone = posts_beyond(history, size, at, new)
        estimated, missed = estimated + gone, missed + posts - new
        history = history.extended(at, [(history.until, at, 0)] * (new + round(gone)))
    return estimated, missed


@pytest.mark.parametrize(("per_day", "hours"), [(20, 12), (30, 12), (40, 12), (30, 8)])
def test_estimates_agree_with_missed_posts_if_some_fetches_find_few(
    per_day: float, hours: int
) -> None:
    estimated, missed = np.sum([observed(per_day, hours, 15, 40, n) for n in range(4)], axis=0)
    assert 0.7 * missed - 10 < estimated < 1.4 * missed + 10


def test_gaps_between_all_fetches_increase_the_estimate() -> None:
    """The rate is unknown, but is higher than that of full documents."""
    estimated, missed = observed(100, 24, 15, 30, 0)
    assert 29 * 15 / 3 < estimated < missed


def test_silent_history_limits_the_estimate() -> None:
    history = History.begin(0).extended(300 * DAY, [])
    assert posts_beyond(history, 15, 301 * DAY, 15) < 1
