"""The fetches of a period by policy, by examples and on real feeds."""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from schedules.collected import CollectedTotals, collected
from schedules.feedplans import Feeds, feed_visits
from schedules.score import Times

EVAL_DATA = os.environ.get("EVAL_DATA")
MONDAY = 24.0 * (7 * 2822 + 4)
FETCHES_OF_A_FEED = (1, 2, 3, 5, 10, 20)


def two_feeds() -> tuple[Feeds, Times]:
    """One that posts each hour of a week, one that posted twice; documents of ten posts."""
    at = np.concatenate([np.arange(1.0, 169), [20.0, 90]])
    key = np.array([3, 4], np.uint64)
    return Feeds(key, np.array([10, 10]), np.ones(2)), Times(np.array([0, 168, 170]), MONDAY + at)


def test_fetches_of_the_papers_policies_are_even_the_last_at_the_end() -> None:
    feeds, posts = two_feeds()
    found = feed_visits("uniform", feeds, posts, 8, MONDAY, MONDAY + 168, MONDAY + 336)
    assert (found.at[:4] - MONDAY - 168).tolist() == [42, 84, 126, 168]


def test_the_busy_feed_gets_the_fetches_that_save_posts() -> None:
    feeds, posts = two_feeds()
    found = feed_visits("optimal", feeds, posts, 18, MONDAY, MONDAY + 168, MONDAY + 336)
    busy, quiet = np.diff(found.first)
    assert busy > 3 * quiet


def test_a_feed_of_double_weight_gets_more() -> None:
    feeds, posts = two_feeds()
    twice = Feeds(feeds.key, feeds.window, np.array([1.0, 50]))
    few, many = (
        np.diff(feed_visits("optimal", some, posts, 18, MONDAY, MONDAY + 168, MONDAY + 336).first)
        for some in (feeds, twice)
    )
    assert many[1] > few[1]


def test_a_policy_that_is_none_and_moments_in_disorder_are_refused() -> None:
    feeds, posts = two_feeds()
    with pytest.raises(ValueError, match="is none of optimal"):
        feed_visits("best", feeds, posts, 1, MONDAY, MONDAY + 1, MONDAY + 2)
    with pytest.raises(ValueError, match="one after the other"):
        feed_visits("uniform", feeds, posts, 1, MONDAY, MONDAY, MONDAY + 2)


def test_without_feeds_or_fetches_there_is_no_plan() -> None:
    feeds, posts = two_feeds()
    span = MONDAY, MONDAY + 168, MONDAY + 336
    none = Feeds(feeds.key[:0], feeds.window[:0], feeds.weight[:0])
    nothing = Times(np.zeros(1, np.int64), np.empty(0))
    assert len(feed_visits("optimal", none, nothing, 5, *span).at) == 0
    assert len(feed_visits("optimal", feeds, posts, 0, *span, posts=posts).at) == 0


@dataclass(frozen=True)
class Real:
    """Real feeds: three weeks to learn from, three to fetch in."""

    feeds: Feeds
    posts: Times
    span: tuple[float, float, float]

    @classmethod
    def read(cls, folder: Path) -> Real:
        with (folder / "feeds.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["window_size_S"]]
        place = {row["feed_id"]: i for i, row in enumerate(rows)}
        window = np.array([int(float(row["window_size_S"])) for row in rows])
        with gzip.open(folder / "posts.csv.gz", "rt", encoding="utf-8") as file:
            told = [
                (place[row["feed_id"]], hours(row["posted_at_utc"]))
                for row in csv.DictReader(file)
                if row["feed_id"] in place
            ]
        feed, at = (np.array(column) for column in zip(*sorted(told), strict=True))
        posts = Times(np.searchsorted(feed, np.arange(len(rows) + 1)), at)
        key = np.random.default_rng(0).integers(0, 2**63, len(rows)).astype(np.uint64)
        days = ("2024-01-01T00:00Z", "2024-01-22T00:00Z", "2024-02-12T00:00Z")
        since, split, stop = (hours(day) for day in days)
        return cls(Feeds(key, window, np.ones(len(rows))), posts, (since, split, stop))

    def totals(self, policy: str, learns: bool) -> list[CollectedTotals]:
        """What each number of fetches collects."""
        found = []
        for m in FETCHES_OF_A_FEED:
            truth = self.posts if learns else None
            visits = m * len(self.feeds)
            plan = feed_visits(policy, self.feeds, self.posts, visits, *self.span, posts=truth)
            of = collected(self.posts, plan, self.feeds.window, self.span[1], self.span[2])
            found.append(of.totals())
            assert found[-1].visits <= visits
        return found


def hours(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() / 3600


@pytest.fixture(scope="module")
def busy() -> Real:
    if not EVAL_DATA:
        pytest.skip("EVAL_DATA names no folder with the posts of real feeds")
    return Real.read(Path(EVAL_DATA) / "feeds" / "busy")


@pytest.mark.parametrize(
    ("policy", "missed_pct", "delay_h"),
    [("uniform", 48.8, 79), ("min-delay", 23.9, 48.4), ("min-missing", 15.9, 43.1)],
)
def test_the_papers_policies_on_real_feeds(
    busy: Real, policy: str, missed_pct: float, delay_h: float
) -> None:
    found = busy.totals(policy, learns=False)
    assert fmean(one.missed_pct for one in found) == pytest.approx(missed_pct, abs=0.3)
    assert fmean(one.delay_h for one in found) == pytest.approx(delay_h, abs=0.3)


@pytest.mark.parametrize(("learns", "lost_pct"), [(True, 18.2), (False, 18.7)])
def test_optimal_loses_fewer_posts_and_waits_less(
    busy: Real, learns: bool, lost_pct: float
) -> None:
    found = busy.totals("optimal", learns)
    assert fmean(one.missed_pct for one in found) <= 15.2
    assert fmean(one.delay_h for one in found) <= 35.3
    assert fmean(one.lost_pct for one in found) <= lost_pct
