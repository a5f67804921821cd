"""Feeds in a closed loop: plans from what their own fetches saw, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.collected import collected
from schedules.feedmarket import Feeds
from schedules.feedplans import FEED_POLICIES
from schedules.feedstanding import standing
from schedules.score import Times

SPLIT = 24.0 * 19_744  # 2024-01-22, a Monday
DAYS, N = 14, 30
STOP = SPLIT + DAYS * 24


def world(seed: int = 3) -> tuple[Feeds, Times]:
    """Feeds of all sorts; the last one never posts."""
    rng = np.random.default_rng(seed)
    rows = []
    for per_day in [*rng.lognormal(0, 1, N - 1), 0.0]:
        count = rng.poisson(per_day * (DAYS + 60))
        days = rng.integers(-60, DAYS, count) * 24.0
        rows.append(np.sort(SPLIT + days + rng.normal(13, 3, count) % 24))
    first = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    key = rng.integers(0, 2**63, N).astype(np.uint64)
    return Feeds(key, np.full(N, 10), np.ones(N)), Times(first, np.concatenate(rows))


@pytest.mark.parametrize("policy", FEED_POLICIES)
@pytest.mark.parametrize("each", [1, 6])
def test_no_policy_spends_more_than_it_has(policy: str, each: int) -> None:
    feeds, posts = world()
    visits = standing(policy, feeds, posts, each * N, SPLIT, STOP, 24.0)
    assert 0 < len(visits.at) <= each * N
    assert ((visits.at >= SPLIT) & (visits.at <= STOP)).all()


def test_what_is_still_to_come_moves_no_visit() -> None:
    feeds, posts = world()
    middle = SPLIT + 7 * 24
    later = np.where(posts.at > middle, np.minimum(posts.at + 5, STOP), posts.at)
    one, other = (
        standing("optimal", feeds, Times(posts.first, at), 6 * N, SPLIT, STOP, 24.0)
        for at in (posts.at, later)
    )
    before = [np.sort(visits.at[visits.at <= middle]) for visits in (one, other)]
    assert np.array_equal(*before)


def test_the_default_policy_loses_less_than_even_visits() -> None:
    feeds, posts = world()
    lost = {
        policy: collected(
            posts, standing(policy, feeds, posts, 4 * N, SPLIT, STOP, 24.0),
            feeds.window, SPLIT, STOP,
        ).totals().lost_pct
        for policy in ("optimal", "uniform")
    }  # fmt: skip
    assert lost["optimal"] < lost["uniform"]
