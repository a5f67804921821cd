"""Examples and tables of the minimum-missing paper, and properties that hold for any feeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedules.feeds.plan import choices, min_delay, min_missing, uniform, whole

# Figures 5 and 8 of the paper.
RATE = np.array([30.0, 30, 10, 10])
WINDOW = np.array([15.0, 10, 10, 5])
ONE = np.ones(4)


def test_example_2_and_table_1_least_delay() -> None:
    shares = 8 * np.sqrt(RATE) / np.sqrt(RATE).sum()
    assert shares == pytest.approx([2.535898385, 2.535898385, 1.464101615, 1.464101615])
    assert min_delay(RATE, ONE, 8).tolist() == [3, 3, 1, 1]


def test_example_4_and_table_2_the_order_of_choices() -> None:
    assert (choices(RATE, WINDOW, 8) + 1).tolist() == [1, 1, 2, 2, 2, 3, 4, 4]
    assert min_missing(RATE, WINDOW, 8).tolist() == [2, 3, 1, 2]


def test_table_3_fetches_and_missing_posts_of_the_three_policies() -> None:
    table = {
        "uniform": uniform(RATE, 8),
        "min-delay": min_delay(RATE, ONE, 8),
        "min-missing": min_missing(RATE, WINDOW, 8),
    }
    assert {name: m.tolist() for name, m in table.items()} == {
        "uniform": [2, 2, 2, 2],
        "min-delay": [3, 3, 1, 1],
        "min-missing": [2, 3, 1, 2],
    }
    lost = {name: np.maximum(RATE - m * WINDOW, 0).tolist() for name, m in table.items()}
    assert lost == {
        "uniform": [0, 10, 0, 0],
        "min-delay": [0, 0, 0, 5],
        "min-missing": [0, 0, 0, 0],
    }


def literal(rate: list[int], window: list[int], fetches: int) -> list[int]:
    """Implement figure 7 of the paper word for word, with the `end if` that is missing in print."""
    left, chosen = list(rate), []
    while len(chosen) < fetches:
        posts = [min(t, s) for t, s in zip(left, window, strict=True)]
        best = posts.index(max(posts))
        chosen.append(best)
        left[best] -= posts[best]
        if sum(left) == 0:
            left = list(rate)
    return chosen


FEEDS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=8).filter(
    lambda feeds: any(rate for rate, _ in feeds)
)


@given(FEEDS, st.integers(0, 80))
def test_heap_matches_algorithm_of_paper(feeds: list[tuple[int, int]], fetches: int) -> None:
    rate, window = zip(*feeds, strict=True)
    chosen = choices(np.array(rate, float), np.array(window, float), fetches)
    assert chosen.tolist() == literal(list(rate), list(window), fetches)
    counted = min_missing(np.array(rate, float), np.array(window, float), fetches)
    assert counted.tolist() == np.bincount(chosen, minlength=len(rate)).tolist()


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 60)), min_size=1, max_size=30),
    st.integers(0, 300),
)
@example([(5e-324, 2)], 3)
def test_residues_of_floats_do_not_stall_the_reset(
    feeds: list[tuple[float, int]], fetches: int
) -> None:
    rate, window = np.array([r for r, _ in feeds]), np.array([float(s) for _, s in feeds])
    m = min_missing(rate, window, fetches)
    assert m.sum() == fetches
    assert (m >= 0).all()
    if (rate > 0).any():
        assert not m[rate == 0].any()


def test_fractions_of_posts_are_used_up() -> None:
    assert min_missing(np.array([0.1 + 0.2, 0.3]), np.array([0.1, 0.1]), 12).tolist() == [6, 6]


@given(st.lists(st.floats(0, 1e6), max_size=20), st.integers(0, 1000))
def test_rounded_shares_sum_to_total(shares: list[float], total: int) -> None:
    rounded = whole(np.array(shares), total)
    if not shares:
        assert rounded.tolist() == []
        return
    assert rounded.sum() == total
    if sum(shares) > 0:
        exact = total * np.array(shares) / np.sum(shares)
        assert (np.abs(rounded - exact) < 1 + 1e-6).all()


def test_ties_go_to_the_lowest_index() -> None:
    assert whole(np.ones(4), 6).tolist() == [2, 2, 1, 1]
    assert (choices(np.array([5.0, 5, 5]), np.array([5.0, 5, 5]), 4) + 1).tolist() == [1, 2, 3, 1]


def test_feeds_without_posts_share_evenly() -> None:
    assert min_missing(np.zeros(3), np.ones(3), 7).tolist() == [3, 2, 2]
    assert min_delay(np.zeros(3), np.ones(3), 6).tolist() == [2, 2, 2]
