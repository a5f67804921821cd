"""Simulations of feeds: plans from known posts and from simulated fetches."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.evaluation.feeds import FEED_POLICIES, Feeds, replanned_visits
from schedules.evaluation.score import collected
from schedules.evaluation.world import Span, visits_of
from schedules.feeds.plan import plan_feeds
from schedules.history import Histories, Times
from schedules.population import Population, walls_of
from schedules.schedule import MAX_FEED_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import Terms

SPLIT = 24.0 * 19_744  # 2024-01-22, a Monday
UTC = ZoneInfo("UTC")
DAYS, N = 14, 30
STOP = SPLIT + DAYS * 24
SPAN = Span(SPLIT - 21 * 24, SPLIT, STOP)


def world(seed: int = 3) -> tuple[Feeds, Times]:
    """Return feeds of all kinds; the last feed never posts."""
    rng = np.random.default_rng(seed)
    rows = []
    for per_day in [*rng.lognormal(0, 1, N - 1), 0.0]:
        count = rng.poisson(per_day * (DAYS + 60))
        days = rng.integers(-60, DAYS, count) * 24.0
        rows.append(np.sort(SPLIT + days + rng.normal(13, 3, count) % 24))
    first = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    key = rng.integers(0, 2**63, N).astype(np.uint64)
    return Feeds(key, np.full(N, 10), np.ones(N)), Times(first, np.concatenate(rows))


def of_a_replan(feeds: Feeds, posts: Times) -> tuple[Histories, Population]:
    """Return the input of a replan at SPLIT: posts known by then, and feeds without limits."""
    owner = np.repeat(np.arange(N), np.diff(posts.first))
    is_known = (posts.at > SPAN.start) & (posts.at <= SPLIT)
    past = Histories(
        np.full(N, SPAN.start), np.full(N, SPLIT),
        np.searchsorted(owner[is_known], np.arange(N + 1)), posts.at[is_known],
        posts.at[is_known] + 1 / 60,
    )  # fmt: skip
    zeros = np.zeros(N, np.int64)
    population = Population(
        key=feeds.key, site=zeros, group=zeros, parent=np.zeros(1, np.int64), zones=(UTC,),
        open_hours=np.ones((1, WEEK_HOURS), np.bool_), weight=np.ones(N), cost=np.ones(N),
        min_hours=np.ones(N), max_hours=np.full(N, MAX_FEED_WEEKS * 168.0),
        site_day=np.full(1, np.inf),
        walls=walls_of((UTC,), SPAN.start - 2160, STOP),
    )  # fmt: skip
    return past, population


@pytest.mark.parametrize("policy", FEED_POLICIES)
@pytest.mark.parametrize("each", [1, 6])
@pytest.mark.parametrize("closed_loop", [True, False])
def test_policies_stay_within_budget(policy: str, each: int, closed_loop: bool) -> None:
    feeds, posts = world()
    visits = replanned_visits(policy, feeds, posts, each * N, SPAN, 24.0, closed_loop=closed_loop)
    assert 0 < len(visits.at) <= each * N
    assert ((visits.at >= SPLIT) & (visits.at <= STOP)).all()


@pytest.mark.parametrize("closed_loop", [True, False])
def test_future_posts_do_not_change_visits(closed_loop: bool) -> None:
    feeds, posts = world()
    middle = SPLIT + 7 * 24
    later = np.where(posts.at > middle, np.minimum(posts.at + 5, STOP), posts.at)
    one, other = (
        replanned_visits(
            "optimal", feeds, Times(posts.first, at), 6 * N, SPAN, 24.0, closed_loop=closed_loop
        )
        for at in (posts.at, later)
    )
    before = [np.sort(visits.at[visits.at <= middle]) for visits in (one, other)]
    assert np.array_equal(*before)


def test_default_policy_loses_fewer_posts_than_uniform() -> None:
    feeds, posts = world()
    lost = {
        policy: collected(
            posts, replanned_visits(policy, feeds, posts, 4 * N, SPAN, 24.0, closed_loop=True),
            feeds.window, SPLIT, STOP,
        ).totals().lost_pct
        for policy in ("optimal", "uniform")
    }  # fmt: skip
    assert lost["optimal"] < lost["uniform"]


@pytest.mark.parametrize("policy", FEED_POLICIES)
def test_simulation_uses_the_plan_of_a_replan(policy: str) -> None:
    feeds, posts = world()
    past, population = of_a_replan(feeds, posts)
    terms, none = Terms(policy, 6 * N / DAYS), Schedules.none(N)
    plan = plan_feeds(population, past, feeds.window, terms, SPLIT, none).schedules
    due = visits_of(plan, population, SPLIT + 1e-6, STOP)
    # A single plan for the whole period.
    replanned = replanned_visits(policy, feeds, posts, 6 * N, SPAN, STOP - SPLIT)
    some = min(due.at.max(), replanned.at.max())
    assert len(replanned.at) > 5 * N
    assert np.array_equal(due.at[due.at < some], replanned.at[replanned.at < some])


@pytest.mark.parametrize(("a_week", "weeks"), [(3 * N, 4), (N, 12), (N / 2, 24)])
def test_silent_feed_interval_depends_on_budget(a_week: float, weeks: int) -> None:
    feeds, posts = world()
    past, population = of_a_replan(feeds, posts)
    terms, none = Terms("optimal", a_week / 7), Schedules.none(N)
    plan = plan_feeds(population, past, feeds.window, terms, SPLIT, none)
    assert plan.schedules.visits_per_week[-1] == pytest.approx(1 / weeks)


def test_open_loop_plans_use_the_whole_history() -> None:
    feeds, posts = world()
    posts = Times(posts.first, np.where(posts.at > SPLIT - 24, posts.at, posts.at - 21 * 24))
    long = Span(SPLIT - 60 * 24, SPLIT, STOP)
    one, other = (
        replanned_visits("optimal", feeds, posts, 6 * N, span, 24.0) for span in (SPAN, long)
    )
    assert not np.array_equal(one.first, other.first)
