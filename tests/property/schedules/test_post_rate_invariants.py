"""Invariants of feed fetches: the score, the paper's policies, and weekly schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules.evaluation.feeds import (
    FEED_POLICIES,
    PAPER_POLICIES,
    Feeds,
    paper_visits,
    replanned_visits,
)
from schedules.evaluation.score import collected
from schedules.evaluation.world import Span
from schedules.feeds.optimal import DELAY_PER_DAY, FeedLimits, optimal_schedules
from schedules.feeds.plan import feed_outlook
from schedules.feeds.post_rates import estimate_posting
from schedules.history import Times
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import BudgetTooSmall

MONDAY = 24.0 * (7 * 2822 + 4)
LENGTH = 40
SPLIT, STOP = MONDAY + WEEK_HOURS, MONDAY + 2 * WEEK_HOURS
SPAN = Span(MONDAY, SPLIT, STOP)
MOMENTS = st.lists(st.integers(-5, LENGTH + 5), max_size=12).map(sorted)
WINDOWS = st.integers(1, 6)
LONGEST = st.sampled_from([24, 100, 168, 400, 672, 1500, 4032])


@dataclass(frozen=True)
class Walked:
    """Results of the minute-by-minute walk through a feed."""

    got: int = 0
    missed: int = 0
    uncollected: int = 0
    delay: int = 0


def walk(posts: list[int], visits: list[int], window: int) -> Walked:
    """Walk through a feed minute by minute, and collect the new posts at each visit."""
    document: list[tuple[int, bool]] = []
    got = delay = missed = 0
    for minute in range(LENGTH + 1):
        new = [(at, False) for at in posts if at == minute and at > 0]
        document += new
        gone, document = document[: max(len(document) - window, 0)], document[-window:]
        missed += sum(not taken for _, taken in gone)
        if minute in visits:
            fresh = [minute - at for at, taken in document if not taken]
            got, delay = got + len(fresh), delay + sum(fresh)
            document = [(at, True) for at, _ in document]
    return Walked(got, missed, sum(not taken for _, taken in document), delay)


def times(feeds: list[list[int]], scale: float = 1 / 60) -> Times:
    flat = np.array([at for some in feeds for at in some], np.float64)
    return Times(np.cumsum([0, *map(len, feeds)]), MONDAY + flat * scale)


@given(st.lists(st.tuples(MOMENTS, MOMENTS, WINDOWS), max_size=6))
def test_collected_posts_match_the_walk(
    feeds: list[tuple[list[int], list[int], int]],
) -> None:
    posts, visits = [feed[0] for feed in feeds], [feed[1] for feed in feeds]
    window = [feed[2] for feed in feeds]
    of = collected(
        times(posts), times(visits), np.array(window, np.int64), MONDAY, MONDAY + LENGTH / 60
    )
    walked = [walk(*feed) for feed in feeds]
    assert of.got.tolist() == [feed.got for feed in walked]
    assert of.missed.tolist() == [feed.missed for feed in walked]
    assert of.uncollected.tolist() == [feed.uncollected for feed in walked]
    assert of.delay_h == pytest.approx([feed.delay / 60 for feed in walked], abs=1e-9)
    assert (of.posts == of.got + of.missed + of.uncollected).all()


@given(MOMENTS, MOMENTS, WINDOWS, st.integers(0, LENGTH))
def test_additional_fetch_never_misses_more_posts(
    posts: list[int], visits: list[int], window: int, at: int
) -> None:
    span = MONDAY, MONDAY + LENGTH / 60
    few, many = (
        collected(times([posts]), times([some]), np.array([window]), *span)
        for some in (visits, sorted([*visits, at]))
    )
    assert (many.missed <= few.missed).all()
    assert (many.got >= few.got).all()


HOURS = st.lists(st.integers(1, 2 * WEEK_HOURS), max_size=25).map(sorted)
FEEDS = st.lists(st.tuples(HOURS, st.integers(1, 10)), min_size=1, max_size=5)


def world(feeds: list[tuple[list[int], int]]) -> tuple[Feeds, Times]:
    n = len(feeds)
    window = np.array([of for _, of in feeds], np.int64)
    made = Feeds(np.arange(n, dtype=np.uint64) * np.uint64(977), window, np.ones(n))
    return made, times([posts for posts, _ in feeds], 1.0)


def simulated(
    known_feeds: Feeds, posts: Times, visits: int, policy: str, *, force_replans: bool
) -> Times:
    if force_replans or policy not in PAPER_POLICIES:
        return replanned_visits(policy, known_feeds, posts, visits, SPAN, 48.0)
    return paper_visits(policy, known_feeds, posts, visits, SPAN)


@given(FEEDS, st.integers(0, 40), st.sampled_from(FEED_POLICIES), st.booleans())
def test_fetches_stay_within_budget_and_period(
    feeds: list[tuple[list[int], int]], visits: int, policy: str, force: bool
) -> None:
    known_feeds, posts = world(feeds)
    visited = simulated(known_feeds, posts, visits, policy, force_replans=force)
    assert len(visited.at) == visited.first[-1] <= visits
    assert len(visited.first) == len(feeds) + 1
    assert ((visited.at > SPLIT) & (visited.at <= STOP + 1e-5)).all()
    for begin, end in zip(visited.first[:-1], visited.first[1:], strict=True):
        assert (np.diff(visited.at[begin:end]) > 0).all()


@given(FEEDS, st.integers(0, 40), st.sampled_from(FEED_POLICIES))
def test_first_plan_ignores_future_posts(
    feeds: list[tuple[list[int], int]], visits: int, policy: str
) -> None:
    known_feeds, whole = world(feeds)
    past = times([[at for at in of if at <= WEEK_HOURS] for of, _ in feeds], 1.0)
    one, other = (
        simulated(known_feeds, some, visits, policy, force_replans=False) for some in (whole, past)
    )
    until = STOP if policy in PAPER_POLICIES else SPLIT + 48
    assert one.at[one.at <= until].tolist() == other.at[other.at <= until].tolist()


@given(FEEDS, st.integers(0, 40))
@settings(max_examples=10)
def test_plan_uses_only_fetched_posts(feeds: list[tuple[list[int], int]], visits: int) -> None:
    known_feeds, whole = world(feeds)
    replanned = replanned_visits("optimal", known_feeds, whole, visits, SPAN, 48.0)
    # Posts after a feed's last fetch make no difference.
    last = [
        max(replanned.at[begin:end], default=SPLIT)
        for begin, end in zip(replanned.first[:-1], replanned.first[1:], strict=True)
    ]
    ends = [int(np.floor(at - MONDAY + 1e-3)) for at in last]
    seen = [[at for at in of if at <= end] for (of, _), end in zip(feeds, ends, strict=True)]
    again = replanned_visits("optimal", known_feeds, times(seen, 1.0), visits, SPAN, 48.0)
    assert again.at.tolist() == replanned.at.tolist()


@given(st.integers(1, 12), st.integers(1, 5))
def test_equal_feeds_get_equal_fetches(visits_of_each: int, n: int) -> None:
    posts = list(range(5, WEEK_HOURS, 9))
    known_feeds, past = world([(posts, 5)] * n)
    fetches = paper_visits("min-delay", known_feeds, past, visits_of_each * n + 1, SPAN)
    count = np.diff(fetches.first)
    assert count.max() - count.min() <= 1
    assert (np.diff(count) <= 0).all()


def limits_of(feeds: Feeds, least: float = 1, most: float = 672) -> FeedLimits:
    n = len(feeds)
    is_open = np.ones((1, WEEK_HOURS), np.bool_)
    is_open[0, :8] = False
    zero, ones = np.zeros(n, np.int64), np.ones(n)
    return FeedLimits(feeds.key, feeds.window, ones, ones, least * ones, most * ones, zero, is_open)


@given(FEEDS, st.floats(0.25, 40), st.integers(1, 12), LONGEST)
def test_schedules_keep_budget_hours_and_intervals(
    feeds: list[tuple[list[int], int]], visits: float, least: int, most: int
) -> None:
    known_feeds, posts = world(feeds)
    n = len(feeds)
    posting = estimate_posting(posts, np.full(n, MONDAY), np.full(n, STOP))
    limits, none = limits_of(known_feeds, least, most), Schedules.none(n)
    try:
        plan = optimal_schedules(posting, limits, none, visits_per_week=visits)
    except BudgetTooSmall:
        assert visits < n * WEEK_HOURS / most * 2
        return
    assert plan.schedules.visits_per_week.sum() <= visits * (1 + 1e-6)
    for i in range(n):
        schedule = plan.schedules[i]
        slots = np.array(schedule.slots)
        gaps = np.diff(np.append(slots, slots[0] + schedule.weeks * WEEK_HOURS))
        assert (slots % WEEK_HOURS >= 8).all()
        assert (gaps >= least).all()
        assert (gaps <= most).all()


@given(FEEDS, st.floats(1, 40))
def test_equally_good_schedule_is_kept(feeds: list[tuple[list[int], int]], visits: float) -> None:
    known_feeds, posts = world(feeds)
    n = len(feeds)
    posting = estimate_posting(posts, np.full(n, MONDAY), np.full(n, STOP))
    limits = limits_of(known_feeds)
    try:
        first = optimal_schedules(posting, limits, Schedules.none(n), visits_per_week=visits)
    except BudgetTooSmall:
        return
    again = optimal_schedules(posting, limits, first.schedules, price=first.price)
    same = again.schedules.visits_per_week == first.schedules.visits_per_week
    assert again.schedules.same_as(first.schedules)[same].all()


@given(FEEDS, st.floats(1, 20), st.floats(1, 20))
def test_more_fetches_never_raise_expected_cost(
    feeds: list[tuple[list[int], int]], few: float, more: float
) -> None:
    known_feeds, posts = world(feeds)
    n = len(feeds)
    posting = estimate_posting(posts, np.full(n, MONDAY), np.full(n, SPLIT))
    limits, none = limits_of(known_feeds), Schedules.none(n)
    cost = []
    for visits in (few, few + more):
        plan = optimal_schedules(posting, limits, none, visits_per_week=n * visits)
        of = feed_outlook(posting, known_feeds.window, plan.schedules)
        waits = of.delay_hours * (posting.per_week - of.missed)
        cost.append(float((of.missed + waits * DELAY_PER_DAY / 24).sum()))
    assert cost[1] <= cost[0] * (1 + 0.02) + 1e-6


@given(FEEDS, st.integers(1, 20), st.sampled_from([0.25, 4.0, 16.0]))
def test_scaled_weights_give_same_visits(
    feeds: list[tuple[list[int], int]], visits: int, unit: float
) -> None:
    known_feeds, posts = world(feeds)
    n = len(feeds)
    posting, none = (
        estimate_posting(posts, np.full(n, MONDAY), np.full(n, SPLIT)),
        Schedules.none(n),
    )
    limits = limits_of(known_feeds)
    scaled = replace(limits, weight=limits.weight * unit)
    one, other = (
        optimal_schedules(posting, some, none, visits_per_week=float(n * visits)).schedules
        for some in (limits, scaled)
    )
    assert one.visits_per_week.sum() == other.visits_per_week.sum()
