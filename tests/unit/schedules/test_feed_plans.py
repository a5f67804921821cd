"""Fetches of feeds by policy, by example and on real feeds."""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.evaluation.feeds import PAPER_POLICIES, Feeds, paper_visits, replanned_visits
from schedules.evaluation.score import CollectedTotals, collected
from schedules.evaluation.world import Span
from schedules.feeds.plan import posting_of
from schedules.history import Histories, Times
from tests.unit.populations import NOW, population

EVAL_DATA = os.environ.get("EVAL_DATA")
MONDAY = 24.0 * (7 * 2822 + 4)
SPAN = Span(MONDAY, MONDAY + 168, MONDAY + 336)
FETCHES_OF_A_FEED = (1, 2, 3, 5, 10, 20)


def two_feeds() -> tuple[Feeds, Times]:
    """Return two feeds of ten posts: one posts hourly for a week, the other posted twice."""
    at = np.concatenate([np.arange(1.0, 169), [20.0, 90]])
    key = np.array([3, 4], np.uint64)
    return Feeds(key, np.array([10, 10]), np.ones(2)), Times(np.array([0, 168, 170]), MONDAY + at)


def test_paper_policies_fetch_evenly_until_the_end() -> None:
    feeds, posts = two_feeds()
    visits = paper_visits("uniform", feeds, posts, 8, SPAN)
    assert (visits.at[:4] - MONDAY - 168).tolist() == [42, 84, 126, 168]


def test_busy_feed_gets_more_fetches() -> None:
    feeds, posts = two_feeds()
    visits = replanned_visits("optimal", feeds, posts, 18, SPAN, 24.0)
    busy, quiet = np.diff(visits.first)
    assert busy > 3 * quiet


def test_heavier_feed_gets_more_fetches() -> None:
    feeds, posts = two_feeds()
    twice = Feeds(feeds.key, feeds.window, np.array([1.0, 50]))
    few, many = (
        np.diff(replanned_visits("optimal", some, posts, 18, SPAN, 24.0).first)
        for some in (feeds, twice)
    )
    assert many[1] > few[1]


def test_rejects_unknown_policy_and_unordered_span() -> None:
    feeds, posts = two_feeds()
    with pytest.raises(ValueError, match="unknown policy: 'optimal'"):
        paper_visits("optimal", feeds, posts, 1, SPAN)
    with pytest.raises(ValueError, match="must be ascending"):
        paper_visits("uniform", feeds, posts, 1, Span(MONDAY, MONDAY, MONDAY + 2))


@pytest.mark.parametrize(("before", "since"), [(24, 1), (1, 24)])
def test_post_rate_of_busy_feed_follows_last_week(before: int, since: int) -> None:
    # Posts an hour: `before` for five weeks, then `since` for one week.
    at = np.concatenate(
        [
            np.arange(NOW - 6 * 168, NOW - 168, 1 / before) + 0.01,
            np.arange(NOW - 168, NOW, 1 / since) + 0.01,
        ]
    )
    past = Histories(
        np.array([NOW - 6 * 168]), np.array([NOW]), np.array([0, len(at)]), at, at + 0.001
    )
    posting = posting_of(population(1, (ZoneInfo("UTC"),)), past, NOW)
    assert posting.per_week[0] == pytest.approx(168 * since, rel=0.05)


def test_no_feeds_or_no_fetches_give_no_visits() -> None:
    feeds, posts = two_feeds()
    none = Feeds(feeds.key[:0], feeds.window[:0], feeds.weight[:0])
    nothing = Times(np.zeros(1, np.int64), np.empty(0))
    assert len(paper_visits("min-missing", none, nothing, 5, SPAN).at) == 0
    assert len(paper_visits("min-missing", feeds, posts, 0, SPAN).at) == 0
    assert len(replanned_visits("optimal", none, nothing, 5, SPAN, 24.0).at) == 0
    assert len(replanned_visits("optimal", feeds, posts, 0, SPAN, 24.0).at) == 0


@dataclass(frozen=True)
class Real:
    """Real feeds: three weeks of history and three weeks of fetches."""

    feeds: Feeds
    posts: Times
    span: Span

    @classmethod
    def read(cls, folder: Path) -> Real:
        with (folder / "feeds.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["window_size_S"]]
        place = {row["feed_id"]: i for i, row in enumerate(rows)}
        window = np.array([int(float(row["window_size_S"])) for row in rows])
        with gzip.open(folder / "posts.csv.gz", "rt", encoding="utf-8") as file:
            pairs = [
                (place[row["feed_id"]], hours(row["posted_at_utc"]))
                for row in csv.DictReader(file)
                if row["feed_id"] in place
            ]
        feed, at = (np.array(column) for column in zip(*sorted(pairs), strict=True))
        posts = Times(np.searchsorted(feed, np.arange(len(rows) + 1)), at)
        key = np.random.default_rng(0).integers(0, 2**63, len(rows)).astype(np.uint64)
        days = ("2024-01-01T00:00Z", "2024-01-22T00:00Z", "2024-02-12T00:00Z")
        return cls(Feeds(key, window, np.ones(len(rows))), posts, Span(*map(hours, days)))

    def totals(self, policy: str) -> list[CollectedTotals]:
        """Return the collected totals for each number of fetches."""
        totals = []
        for m in FETCHES_OF_A_FEED:
            visits = m * len(self.feeds)
            if policy in PAPER_POLICIES:
                plan = paper_visits(policy, self.feeds, self.posts, visits, self.span)
            else:
                plan = replanned_visits(policy, self.feeds, self.posts, visits, self.span, 24.0)
            of = collected(self.posts, plan, self.feeds.window, self.span.split, self.span.stop)
            totals.append(of.totals())
            assert totals[-1].visits <= visits
        return totals


def hours(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() / 3600


@pytest.fixture(scope="module")
def busy() -> Real:
    if not EVAL_DATA:
        pytest.skip("set EVAL_DATA to a folder with the posts of real feeds")
    return Real.read(Path(EVAL_DATA) / "feeds" / "busy")


@pytest.mark.parametrize(
    ("policy", "missed_pct", "delay_h"),
    [("uniform", 48.8, 79), ("min-delay", 23.9, 48.4), ("min-missing", 15.9, 43.1)],
)
def test_paper_policies_on_real_feeds(
    busy: Real, policy: str, missed_pct: float, delay_h: float
) -> None:
    results = busy.totals(policy)
    assert fmean(total.missed_pct for total in results) == pytest.approx(missed_pct, abs=0.3)
    assert fmean(total.delay_h for total in results) == pytest.approx(delay_h, abs=0.3)


def test_optimal_misses_fewer_posts_with_less_delay(busy: Real) -> None:
    results = dict(zip(FETCHES_OF_A_FEED, busy.totals("optimal"), strict=True))
    papers = dict(zip(FETCHES_OF_A_FEED, busy.totals("min-missing"), strict=True))
    # With one fetch per feed, both miss about equally many; a planner without an end drops no feed.
    assert results[1].missed_pct < papers[1].missed_pct + 1.5
    for m in FETCHES_OF_A_FEED[1:]:
        assert results[m].missed_pct < papers[m].missed_pct
    for m in FETCHES_OF_A_FEED:
        assert results[m].delay_h < papers[m].delay_h
    assert fmean(total.missed_pct for total in results.values()) <= 14.3
    assert fmean(total.delay_h for total in results.values()) <= 26.5
