"""Evaluate the budget curve: the expected results of any number of requests a day.

Pages and feeds have the same curve, and a `Measure` of their own: pages a freshness and an age, by
site; feeds a share of missed posts and a delay. `budget_forecast` computes the curves. This module
imports neither NumPy nor the database, because the web app evaluates a curve while a slider moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.utils.shapes import copied
from crawler.utils.text import amount, count, rounded_up

# A site or feed wins or loses if its share changes by at least this much; else if its hours change
# by more than MIN_TIME_SHARE.
MIN_SHARE, MIN_TIME_SHARE = 0.002, 0.05
# A budget that is too small by rounding only.
TOLERANCE = 1e-6
# Rows of the curve's table.
MAX_POINTS_SHOWN = 12

MeasureName = Literal["pages", "feeds"]
Verdict = Literal["wins", "loses", "same"]
# The names of `options.OBJECTIVES`.
Objective = Literal["balanced", "freshness", "age", "delay"]


@dataclass(frozen=True, slots=True)
class Measure:
    """What requests are for.

    pages: `share` is the freshness of copies, and `hours` their age
    feeds: `share` is that of missed posts, and `hours` the delay of the others

    target:  what is planned
    is_gain: whether a larger share is better
    """

    name: MeasureName
    target: str
    is_gain: bool

    def verdict(self, current: BudgetResults, planned: BudgetResults) -> Verdict:
        """Judge by the share or, if it hardly changes, by the hours."""
        gain = planned["share"] - current["share"]
        if abs(gain) >= MIN_SHARE:
            return "wins" if (gain > 0) == self.is_gain else "loses"
        before, after = current["hours"], planned["hours"]
        if before is None or after is None:
            return "same" if before == after else "wins" if before is None else "loses"
        if abs(after - before) <= MIN_TIME_SHARE * max(before, after):
            return "same"
        return "wins" if after < before else "loses"


PAGES = Measure("pages", "target", is_gain=True)
FEEDS = Measure("feeds", "feed", is_gain=False)
MEASURES = {measure.name: measure for measure in (PAGES, FEEDS)}


class BudgetResults(TypedDict):
    """Requests, and the expected results."""

    requests_per_day: float
    """Mean requests per day."""
    share: float
    """For pages: expected mean freshness; for feeds: expected share of missed posts."""
    hours: float | None
    """For pages: expected mean age of copies; for feeds: expected mean delay of collected posts;
    null if some pages would not be visited at all."""


class PartCurve(TypedDict):
    """The curve of a site or feed. Lists have one value for each point of the curve."""

    site: str
    """Name of the site, or spider of the feed; empty for all others together."""
    url: str
    """URL of the feed; empty for a site, and for all others together."""
    amount: float
    """For a site: number of planned targets; for a feed: expected posts per day."""
    requests_per_day: list[float]
    """Mean requests per day."""
    share: list[float]
    """Expected freshness, or share of missed posts."""
    hours: list[float]
    """Expected mean age or delay in hours."""
    current: BudgetResults
    """With the current schedules."""


class BudgetCurve(TypedDict):
    """Expected results of the policy `optimal` for a range of budgets."""

    kind: MeasureName
    """`pages` or `feeds`."""
    at: datetime
    """Time of the computation."""
    objective: str | None
    """For pages: objective of the plan."""
    targets: int
    """Number of planned pages or feeds."""
    sampled: int
    """Number of them from which the curve was computed."""
    budget_per_day: float | None
    """Budget that a replan without options would use."""
    plans: list[str]
    """Ids of the plans in effect, without duplicates."""
    amount: float
    """For pages: number of planned targets; for feeds: expected posts per day."""
    requests_per_day: list[float]
    """Points of the curve: mean requests per day, ascending."""
    price: list[float | None]
    """What the last request saves: hours of staleness, or posts; null if unknown."""
    share: list[float]
    """For pages: expected mean freshness; for feeds: expected share of missed posts."""
    hours: list[float]
    """For pages: expected mean age of copies; for feeds: expected mean delay of collected posts."""
    current: BudgetResults
    """With the current schedules."""
    parts: list[PartCurve]
    """Curves of the sites with the most requests or of the feeds with the most posts."""
    warnings: list[str]
    """Warnings about missing or implausible history."""


class PartForecast(TypedDict):
    """A budget's expected results for a site or feed."""

    site: str
    """Name of the site, or spider of the feed; empty for all others together."""
    url: str
    """URL of the feed; empty for a site, and for all others together."""
    amount: float
    """For a site: number of planned targets; for a feed: expected posts per day."""
    current: BudgetResults
    """With the current schedules."""
    planned: BudgetResults
    """With the budget."""
    verdict: Verdict
    """Whether copies would be fresher or fewer posts missed: `wins`, `loses` or `same`."""


class BudgetForecast(TypedDict):
    """A budget's expected results."""

    budget_per_day: float
    """Requests per day."""
    objective: str | None
    """For pages: objective of the plan."""
    current: BudgetResults
    """With the current schedules."""
    planned: BudgetResults
    """With the budget."""
    price: float | None
    """What one more request a day would save each day: hours of staleness, or posts."""
    wins: int
    """Number of sites or feeds that would have better results."""
    loses: int
    """Number of sites or feeds that would have worse results."""
    parts: list[PartForecast]
    """The same by site or feed, the largest change of requests first."""


def forecast(curve: BudgetCurve, budget: float) -> BudgetForecast:
    """Return the expected results of a budget in requests a day.

    Raises ConfigError if it is below the requests that the longest intervals need. A budget above
    the end of the curve gives the results of its end, because more requests would save nothing.
    """
    points, measure = curve["requests_per_day"], MEASURES[curve["kind"]]
    if budget < points[0] * (1 - TOLERANCE):
        needed = rounded_up(points[0])
        raise ConfigError(
            f"budget {amount(budget)}/day is too small: "
            f"{count(curve['targets'], measure.target)} at their longest intervals need "
            f"{needed}/day. Use {needed}/day or more"
        )
    place = place_of(points, budget)
    parts: list[PartForecast] = []
    for part in curve["parts"]:
        planned = _at(part, place)
        parts.append(
            {
                **copied(PartForecast, part),
                "planned": planned,
                "verdict": measure.verdict(part["current"], planned),
            }
        )

    def moved(part: PartForecast) -> float:
        return abs(part["planned"]["requests_per_day"] - part["current"]["requests_per_day"])

    parts.sort(key=lambda part: (-moved(part), part["site"], part["url"]))
    return {
        "budget_per_day": budget,
        "objective": curve["objective"],
        "current": curve["current"],
        "planned": _at(curve, place),
        "price": curve["price"][min(place.before + 1, len(points) - 1)],
        "wins": sum(part["verdict"] == "wins" for part in parts),
        "loses": sum(part["verdict"] == "loses" for part in parts),
        "parts": parts,
    }


def usual_budget(curve: BudgetCurve) -> float:
    """Return the current budget, within the range of the curve."""
    budget = curve["budget_per_day"] or curve["current"]["requests_per_day"]
    points = curve["requests_per_day"]
    return min(max(budget, points[0]), points[-1])


def sample_points(curve: BudgetCurve) -> list[BudgetResults]:
    """Return a few points of the curve for a table, the first and the last one included."""
    last = len(curve["requests_per_day"]) - 1
    rows = min(last, MAX_POINTS_SHOWN - 1)
    numbers = sorted({round(row * last / max(1, rows)) for row in range(rows + 1)})
    return [_at(curve, Place(number, 0.0)) for number in numbers]


def _at(curve: BudgetCurve | PartCurve, place: Place) -> BudgetResults:
    return {
        "requests_per_day": value_at(curve["requests_per_day"], place),
        "share": value_at(curve["share"], place),
        "hours": value_at(curve["hours"], place),
    }


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


def value_at(values: Sequence[float], place: Place) -> float:
    """Return the value at a place, linear between the two points. values: one for each point."""
    here = values[place.before]
    if not place.share:
        return here
    there = values[place.before + 1]
    return here + (there - here) * place.share
