"""Evaluate the budget curve: the expected results of any number of requests a day.

Pages have a freshness and an age, by site; feeds have missed posts and a delay. `budget_forecast`
computes the curves. This module imports neither NumPy nor the database, because the web app
evaluates a curve while a slider moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.utils.text import amount, count, rounded_up

# A site wins or loses if its freshness changes by at least this much, a feed if its share of missed
# posts does; else if the age or the delay changes by more than MIN_TIME_SHARE.
MIN_FRESHNESS, MIN_MISSED_SHARE, MIN_TIME_SHARE = 0.002, 0.002, 0.05
# A budget that is too small by rounding only.
TOLERANCE = 1e-6
# Rows of the curve's table.
MAX_POINTS_SHOWN = 12

Verdict = Literal["wins", "loses", "same"]
# The names of `options.OBJECTIVES`.
Objective = Literal["balanced", "freshness", "age", "delay"]


class PageResults(TypedDict):
    """Requests of a site or of all sites, and the expected results."""

    requests_per_day: float
    """Mean requests per day."""
    freshness: float
    """Expected mean freshness."""
    age_days: float | None
    """Expected mean age in days; null if some targets would not be visited at all."""


class SiteCurve(TypedDict):
    """The curve of a site. Lists have one value for each point of the curve."""

    site: str
    """Name of the site; empty for all smaller sites together."""
    targets: int
    """Number of planned targets."""
    requests_per_day: list[float]
    """Mean requests per day."""
    freshness: list[float]
    """Expected mean freshness."""
    age_days: list[float]
    """Expected mean age in days."""
    current: PageResults
    """With the current schedules."""


class BudgetCurve(TypedDict):
    """Expected results of the policy `optimal` for a range of budgets."""

    at: datetime
    """Time of the computation."""
    objective: str
    """Objective of the plan."""
    targets: int
    """Number of planned targets."""
    sampled: int
    """Number of targets from which the curve was computed."""
    budget_per_day: float | None
    """Budget that a replan without options would use."""
    plans: list[str]
    """Ids of the plans in effect, one for each site with a plan, without duplicates."""
    requests_per_day: list[float]
    """Points of the curve: mean requests per day, ascending."""
    price: list[float | None]
    """Hours of staleness that the last request saves; null at the minimum budget."""
    freshness: list[float]
    """Expected mean freshness."""
    age_days: list[float]
    """Expected mean age in days."""
    current: PageResults
    """With the current schedules."""
    sites: list[SiteCurve]
    """Curves of the sites, by current requests per day, highest first."""
    warnings: list[str]
    """Warnings about missing or implausible history."""


class SiteForecast(TypedDict):
    """A budget's expected results for a site."""

    site: str
    """Name of the site; empty for all smaller sites together."""
    targets: int
    """Number of planned targets."""
    current: PageResults
    """With the current schedules."""
    planned: PageResults
    """With the budget."""
    verdict: Verdict
    """Whether the copies of the site would be fresher: `wins`, `loses` or `same`."""


class BudgetForecast(TypedDict):
    """A budget's expected results."""

    budget_per_day: float
    """Requests per day."""
    objective: str
    """Objective of the plan."""
    current: PageResults
    """With the current schedules."""
    planned: PageResults
    """With the budget."""
    price: float | None
    """Hours of staleness that one more request a day would save each day; null if unknown."""
    wins: int
    """Number of sites whose copies would be fresher."""
    loses: int
    """Number of sites whose copies would be staler."""
    sites: list[SiteForecast]
    """The same by site, the largest change of requests first."""


def forecast(curve: BudgetCurve, budget: float) -> BudgetForecast:
    """Return the expected results of a budget in requests a day.

    Raises ConfigError if it is below the requests that the longest intervals need. A budget above
    the end of the curve gives the results of its end, because more requests would save nothing.
    """
    points = curve["requests_per_day"]
    place = place_of_budget(points, budget, count(curve["targets"], "target"))
    sites = [_site(site, place) for site in curve["sites"]]
    sites.sort(
        key=lambda site: (
            -abs(site["planned"]["requests_per_day"] - site["current"]["requests_per_day"]),
            site["site"],
        )
    )
    price = curve["price"][min(place.before + 1, len(points) - 1)]
    return {
        "budget_per_day": budget,
        "objective": curve["objective"],
        "current": curve["current"],
        "planned": _at(curve, place),
        "price": price,
        "wins": sum(site["verdict"] == "wins" for site in sites),
        "loses": sum(site["verdict"] == "loses" for site in sites),
        "sites": sites,
    }


def usual_budget(curve: BudgetCurve | FeedBudgetCurve) -> float:
    """Return the current budget, within the range of the curve."""
    budget = curve["budget_per_day"] or curve["current"]["requests_per_day"]
    points = curve["requests_per_day"]
    return min(max(budget, points[0]), points[-1])


def sample_points(curve: BudgetCurve) -> list[PageResults]:
    """Return a few points of the curve for a table, the first and the last one included."""
    return [_at(curve, place) for place in shown_places(len(curve["requests_per_day"]))]


def _at(curve: BudgetCurve | SiteCurve, place: Place) -> PageResults:
    return {
        "requests_per_day": value_at(curve["requests_per_day"], place),
        "freshness": value_at(curve["freshness"], place),
        "age_days": value_at(curve["age_days"], place),
    }


def _site(site: SiteCurve, place: Place) -> SiteForecast:
    planned = _at(site, place)
    return {
        "site": site["site"],
        "targets": site["targets"],
        "current": site["current"],
        "planned": planned,
        "verdict": verdict_of(site["current"], planned),
    }


def verdict_of(current: PageResults, planned: PageResults) -> Verdict:
    """Return whether copies get fresher or, at the same freshness, younger."""
    staler = current["freshness"] - planned["freshness"]
    return _verdict(staler, MIN_FRESHNESS, current["age_days"], planned["age_days"])


def _verdict(
    increase: float, min_increase: float, before: float | None, after: float | None
) -> Verdict:
    """Judge by a share that should be small or, if it hardly changes, by an age or delay.

    before, after: None: unbounded
    """
    if abs(increase) >= min_increase:
        return "wins" if increase < 0 else "loses"
    if before is None or after is None:
        return "same" if before == after else "wins" if before is None else "loses"
    if abs(after - before) <= MIN_TIME_SHARE * max(before, after):
        return "same"
    return "wins" if after < before else "loses"


class Place(NamedTuple):
    """Hold a place between two points of a curve.

    before: number of the point before the place, or of the second to last one
    share: distance from that point as a share of the distance to the next one, 0 to 1
    """

    before: int
    share: float


def place_of(points: Sequence[float], x: float) -> Place:
    """Return the place of x among ascending points; the first or last one if x is outside."""
    if len(points) < 2:
        return Place(0, 0.0)
    before = min(max(bisect_right(points, x) - 1, 0), len(points) - 2)
    length = points[before + 1] - points[before]
    share = (x - points[before]) / length if length > 0 else 1.0
    return Place(before, min(max(share, 0.0), 1.0))


def place_of_budget(points: Sequence[float], budget: float, what: str) -> Place:
    """Return the place of a budget among requests a day.

    what: the targets, for the ConfigError of a budget below their longest intervals
    """
    if budget < points[0] * (1 - TOLERANCE):
        needed = rounded_up(points[0])
        raise ConfigError(
            f"budget {amount(budget)}/day is too small: {what} at their longest intervals need "
            f"{needed}/day. Use {needed}/day or more"
        )
    return place_of(points, budget)


def shown_places(n: int) -> list[Place]:
    """Return at most MAX_POINTS_SHOWN of n points, with the first and the last."""
    rows = min(n, MAX_POINTS_SHOWN)
    numbers = sorted({round(row * (n - 1) / max(1, rows - 1)) for row in range(rows)})
    return [Place(number, 0.0) for number in numbers]


def value_at(values: Sequence[float], place: Place) -> float:
    """Return the value at a place, linear between the two points. values: one for each point."""
    here = values[place.before]
    if not place.share:
        return here
    there = values[place.before + 1]
    return here + (there - here) * place.share


class FeedResults(TypedDict):
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
    current: FeedResults
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
    current: FeedResults
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
    current: FeedResults
    """With the current schedules."""
    planned: FeedResults
    """With the budget."""
    verdict: Verdict
    """Whether fewer posts would be missed, or collected posts would have a shorter delay."""


class FeedBudgetForecast(TypedDict):
    """A budget's expected results for feeds."""

    budget_per_day: float
    """Fetches per day."""
    current: FeedResults
    """With the current schedules."""
    planned: FeedResults
    """With the budget."""
    price: float
    """Posts that one more fetch would save."""
    wins: int
    """Number of feeds that would miss fewer posts, or have a shorter delay."""
    loses: int
    """Number of feeds that would miss more posts, or have a longer delay."""
    feeds: list[FeedForecast]
    """The same by feed, the largest change of fetches first."""


def forecast_of_feeds(curve: FeedBudgetCurve, budget: float) -> FeedBudgetForecast:
    """Return the expected results of a budget in fetches a day.

    Raises ConfigError if it is below the fetches that the longest intervals need. A budget above
    the end of the curve gives the results of its end, because more fetches would save nothing.
    """
    points = curve["requests_per_day"]
    place = place_of_budget(points, budget, count(curve["feeds"], "feed"))
    feeds = [_feed(each, place) for each in curve["curves"]]

    def moved(feed: FeedForecast) -> float:
        return abs(feed["planned"]["requests_per_day"] - feed["current"]["requests_per_day"])

    feeds.sort(key=lambda feed: (-moved(feed), feed["url"]))
    return {
        "budget_per_day": budget,
        "current": curve["current"],
        "planned": _feeds_at(curve, place),
        "price": curve["price"][min(place.before + 1, len(points) - 1)],
        "wins": sum(feed["verdict"] == "wins" for feed in feeds),
        "loses": sum(feed["verdict"] == "loses" for feed in feeds),
        "feeds": feeds,
    }


def feed_points(curve: FeedBudgetCurve) -> list[FeedResults]:
    """Return a few points of the curve for a table, the first and the last one included."""
    return [_feeds_at(curve, place) for place in shown_places(len(curve["requests_per_day"]))]


def _feeds_at(curve: FeedBudgetCurve | FeedCurve, place: Place) -> FeedResults:
    return {
        "requests_per_day": value_at(curve["requests_per_day"], place),
        "missed_share": value_at(curve["missed_share"], place),
        "delay_hours": value_at(curve["delay_hours"], place),
    }


def _feed(feed: FeedCurve, place: Place) -> FeedForecast:
    planned = _feeds_at(feed, place)
    return {
        "spider": feed["spider"],
        "url": feed["url"],
        "posts_per_day": feed["posts_per_day"],
        "current": feed["current"],
        "planned": planned,
        "verdict": verdict_of_feed(feed["current"], planned),
    }


def verdict_of_feed(current: FeedResults, planned: FeedResults) -> Verdict:
    """Return whether fewer posts are missed or, at the same share, the delay is shorter."""
    missed = planned["missed_share"] - current["missed_share"]
    return _verdict(missed, MIN_MISSED_SHARE, current["delay_hours"], planned["delay_hours"])
