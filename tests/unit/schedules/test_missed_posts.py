"""Expected missed posts, compared with sums over the negative binomial distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedules.feeds.post_rates import expected, looked_up, table

MEANS, BATCHES, WINDOWS = st.floats(0.01, 400), st.floats(0.0, 12), st.integers(1, 120)


def summed(mean: float, batch: float, window: int) -> float:
    """Return E(N - window)+, summed term by term."""
    # Not in every test process: it loads slowly.
    from scipy import stats

    n = np.arange(40_000)
    if batch < 1e-9:
        chance = stats.poisson.pmf(n, mean)
    else:
        chance = stats.nbinom.pmf(n, mean / batch, 1 / (1 + batch))
    return float((np.maximum(n - window, 0) * chance).sum())


@given(MEANS, BATCHES, WINDOWS)
def test_missed_posts_match_summed_distribution(mean: float, batch: float, window: int) -> None:
    lost, wait = expected(mean, batch, window)
    assert lost == pytest.approx(summed(mean, batch, window), rel=1e-4, abs=1e-6)
    assert 0 <= wait <= 1


def test_underflowing_probabilities_do_not_distort_the_sum() -> None:
    assert expected(3000.0, 0.0, 2990)[0] == pytest.approx(summed(3000.0, 0.0, 2990), rel=1e-6)


def test_rare_posts_wait_half_an_interval_and_are_not_missed() -> None:
    assert expected(0.0, 3.0, 5) == (0.0, 1.0)
    lost, wait = expected(1e-6, 0.0, 5)
    assert lost == pytest.approx(0, abs=1e-9)
    assert wait == pytest.approx(1)


@given(st.floats(1e-7, 400), BATCHES, WINDOWS)
# Between the first two points of the table, where batches are longer than the feed.
@example(mean=0.01, batch=6.0, window=1)
@example(mean=1e-7, batch=12.0, window=1)
def test_table_approximates_exact_values(mean: float, batch: float, window: int) -> None:
    t = table(500.0, batch, window)
    lost, wait = looked_up(t.lost, t.wait, t.top, mean)
    exact, share = expected(mean, batch, window)
    assert lost == pytest.approx(exact, rel=0.03, abs=0.03 * (1 + np.sqrt(window)))
    assert wait == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("batch", [0.0, 0.5, 6.0, 12.0])
@pytest.mark.parametrize("window", [1, 3, 20])
def test_wait_converges_for_few_posts(batch: float, window: int) -> None:
    shares = [expected(mean, batch, window)[1] for mean in (1e-3, 1e-6, 1e-9)]
    assert shares == pytest.approx([shares[0]] * 3, abs=2e-3)


@given(BATCHES, WINDOWS, MEANS, MEANS)
def test_missed_posts_grow_with_posts(batch: float, window: int, one: float, other: float) -> None:
    t = table(500.0, batch, window)
    low, high = sorted((one, other))
    assert looked_up(t.lost, t.wait, t.top, low)[0] <= (
        looked_up(t.lost, t.wait, t.top, high)[0] + 1e-9
    )
