"""Evaluate the budget curve of feeds: expected misses and delays for any number of fetches a day.

`feed_forecast.feed_curve_of` computes the curve. This module imports neither NumPy nor the
database, because the web app evaluates the curve while a slider moves.
"""

from __future__ import annotations

from datetime import datetime

from typing_extensions import TypedDict

from crawler.planning.budget_curve import (
    Place,
    Verdict,
    place_of_budget,
    shown_places,
    value_at,
)
from crawler.planning.replan_report import ReplanReport

# A feed wins or loses if its share of missed posts changes by at least this much, or, at the same
# share, its delay by this share.
MIN_MISSED_SHARE, MIN_DELAY_SHARE = 0.002, 0.05


class FeedStanding(TypedDict):
    """Fetches of a feed or of several feeds, and the expected results."""

    requests_per_day: float
    """Mean fetches per day."""
    missed_share: float
    """Expected share of posts that leave the document before a fetch."""
    delay_hours: float
    """Expected mean hours from a collected post to its fetch; 0 if no posts are expected."""


class FeedCurve(TypedDict):
    """The curve of a feed. Lists have one value for each point of the curve."""

    spider: str
    """Name of the spider; empty for all other feeds together."""
    url: str
    """URL of the feed; empty for all other feeds together."""
    posts_per_day: float
    """Expected posts per day."""
    requests_per_day: list[float]
    """Mean fetches per day."""
    missed_share: list[float]
    """Expected share of missed posts."""
    delay_hours: list[float]
    """Expected mean delay of collected posts in hours."""
    current: FeedStanding
    """With the current schedules."""


class FeedBudgetCurve(TypedDict):
    """Expected results of the policy `optimal` for a range of budgets of feeds."""

    at: datetime
    """Time of the computation."""
    feeds: int
    """Number of planned feeds."""
    sampled: int
    """Number of feeds from which the curve was computed."""
    budget_per_day: float | None
    """Budget that a replan without options would use."""
    plans: list[str]
    """Ids of the plans in effect, without duplicates."""
    posts_per_day: float
    """Expected posts per day of all feeds."""
    requests_per_day: list[float]
    """Points of the curve: mean fetches per day, ascending."""
    price: list[float]
    """Posts that the last fetch saves."""
    missed_share: list[float]
    """Expected share of missed posts."""
    delay_hours: list[float]
    """Expected mean delay of collected posts in hours."""
    current: FeedStanding
    """With the current schedules."""
    curves: list[FeedCurve]
    """Curves of the feeds with the most posts, and of all others together."""


class FeedForecast(TypedDict):
    """A budget's expected results for a feed."""

    spider: str
    """Name of the spider; empty for all other feeds together."""
    url: str
    """URL of the feed; empty for all other feeds together."""
    posts_per_day: float
    """Expected posts per day."""
    current: FeedStanding
    """With the current schedules."""
    planned: FeedStanding
    """With the budget."""
    verdict: Verdict
    """Whether fewer posts would be missed, or collected posts would have a shorter delay."""


class FeedBudgetForecast(TypedDict):
    """A budget's expected results for feeds."""

    budget_per_day: float
    """Fetches per day."""
    current: FeedStanding
    """With the current schedules."""
    planned: FeedStanding
    """With the budget."""
    price: float
    """Posts that one more fetch would save."""
    wins: int
    """Number of feeds that would miss fewer posts, or have a shorter delay."""
    loses: int
    """Number of feeds that would miss more posts, or have a longer delay."""
    feeds: list[FeedForecast]
    """The same by feed, the largest change of fetches first."""


class FeedMove(TypedDict):
    """A feed whose fetches would change."""

    spider: str
    """Name of the spider."""
    url: str
    """URL of the feed; truncated if it is very long."""
    posts_per_week: float
    """Expected posts per week."""
    visits_per_week_before: float
    """Fetches per week with the current schedule."""
    visits_per_week: float
    """Fetches per week with the new plan."""
    missed_share_before: float
    """Expected share of missed posts with the current schedule."""
    missed_share: float
    """Expected share of missed posts with the new plan."""


class FeedBudgetPreview(TypedDict):
    """A new plan for feeds that is not stored, next to the current schedules."""

    report: ReplanReport
    """The report of `scrapy replan --dry-run`."""
    plans: list[str]
    """Ids of the plans in effect, as in the budget curve."""
    current: FeedStanding
    """With the current schedules."""
    planned: FeedStanding
    """With the new plan."""
    more: int
    """Number of feeds that would be fetched more often."""
    fewer: int
    """Number of feeds that would be fetched less often."""
    moves: list[FeedMove]
    """Feeds whose fetches would change most, the largest change first."""


def forecast_of_feeds(curve: FeedBudgetCurve, budget: float) -> FeedBudgetForecast:
    """Return the expected results of a budget in fetches a day.

    Raises ConfigError if it is below the fetches that the longest intervals need. A budget above
    the end of the curve gives the results of its end, because more fetches would save nothing.
    """
    points = curve["requests_per_day"]
    place = place_of_budget(points, budget, f"{curve['feeds']:,} feeds")
    feeds = [_feed(each, place) for each in curve["curves"]]

    def moved(feed: FeedForecast) -> float:
        return abs(feed["planned"]["requests_per_day"] - feed["current"]["requests_per_day"])

    feeds.sort(key=lambda feed: (-moved(feed), feed["url"]))
    return {
        "budget_per_day": budget,
        "current": curve["current"],
        "planned": _at(curve, place),
        "price": curve["price"][min(place.before + 1, len(points) - 1)],
        "wins": sum(feed["verdict"] == "wins" for feed in feeds),
        "loses": sum(feed["verdict"] == "loses" for feed in feeds),
        "feeds": feeds,
    }


def feed_points(curve: FeedBudgetCurve) -> list[FeedStanding]:
    """Return a few points of the curve for a table, the first and the last one included."""
    return [_at(curve, place) for place in shown_places(len(curve["requests_per_day"]))]


def _at(curve: FeedBudgetCurve | FeedCurve, place: Place) -> FeedStanding:
    return {
        "requests_per_day": value_at(curve["requests_per_day"], place),
        "missed_share": value_at(curve["missed_share"], place),
        "delay_hours": value_at(curve["delay_hours"], place),
    }


def _feed(feed: FeedCurve, place: Place) -> FeedForecast:
    planned = _at(feed, place)
    return {
        "spider": feed["spider"],
        "url": feed["url"],
        "posts_per_day": feed["posts_per_day"],
        "current": feed["current"],
        "planned": planned,
        "verdict": verdict_of_feed(feed["current"], planned),
    }


def verdict_of_feed(current: FeedStanding, planned: FeedStanding) -> Verdict:
    """Return whether fewer posts are missed or, at the same share, the delay is shorter."""
    missed = planned["missed_share"] - current["missed_share"]
    if abs(missed) >= MIN_MISSED_SHARE:
        return "wins" if missed < 0 else "loses"
    before, after = current["delay_hours"], planned["delay_hours"]
    if abs(after - before) <= MIN_DELAY_SHARE * max(before, after):
        return "same"
    return "wins" if after < before else "loses"
