"""Positions of the marks in the charts of a target, which templates draw as SVG.

All charts have a table or a sentence with the same content.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from crawler.items import Outcome
from crawler.planning.explanation import Explanation
from crawler.reports.history import VisitRow

WIDTH = 1000
LANE_HEIGHT = 22
# On longer axes, only powers of ten have a tick.
MAX_DECADES = 3
# Shades of a heat map.
SHADES = 8
WEEK_HOURS, DAY_HOURS = 168, 24
DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class Mark:
    """A visit in a time line. x: 0 to WIDTH; y: center of its lane."""

    x: float
    y: int
    outcome: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Strip:
    """The visits of a page by outcome, one lane each.

    lanes: outcome and y of each lane
    """

    marks: list[Mark]
    lanes: list[tuple[str, int]]
    height: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class HourCell:
    """An hour of the week in the heat map. shade: 0 (none) to SHADES; visits: planned ones."""

    day: str
    hour: int
    changes: float
    shade: int
    visits: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate with its interval on a logarithmic axis from 0 to WIDTH."""

    low: float
    mean: float
    high: float
    ticks: list[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Bar:
    """A labeled bar of hours. width: 0 to WIDTH."""

    label: str
    hours: float
    width: float


@dataclass(frozen=True, slots=True)
class ExplanationCharts:
    """The charts of an explanation.

    week:   rows of HourCell by day; None if the rate is not known
    rate:   None if it is not known
    values: what visits save; empty if unknown
    ahead:  planned visits with the weekday and time of the site
    """

    week: list[list[HourCell]] | None
    rate: Interval | None
    values: list[Bar]
    ahead: list[tuple[datetime, str]]


def strip(visits: Sequence[VisitRow]) -> Strip | None:
    """Return the time line of some visits; None with fewer than two."""
    if len(visits) < 2:
        return None
    times = [visit["at"] for visit in visits]
    since, until = min(times), max(times)
    length = (until - since) / timedelta(seconds=1) or 1.0
    present = {visit["outcome"] for visit in visits}
    names = [str(outcome) for outcome in Outcome if outcome in present]
    lanes = {name: n * LANE_HEIGHT + LANE_HEIGHT // 2 for n, name in enumerate(names)}
    marks = [
        Mark(
            round((visit["at"] - since).total_seconds() / length * WIDTH, 1),
            lanes[visit["outcome"]], visit["outcome"], visit["at"],
        )
        for visit in visits
    ]  # fmt: skip
    return Strip(marks, list(lanes.items()), len(lanes) * LANE_HEIGHT, since, until)


def explanation_charts(explanation: Explanation) -> ExplanationCharts:
    """Return the charts of an explanation."""
    zone = ZoneInfo(explanation["timezone"])
    ahead = [(at, f"{at.astimezone(zone):%a %H:%M}") for at in explanation["ahead"]]
    expected = explanation["expected"]
    if expected is None:
        return ExplanationCharts(None, None, [], ahead)
    rate, week, value = expected["rate"], None, expected["value"]
    if rate["known"]:
        plan = explanation["plan"]
        week = _week(expected["changes_by_hour"], plan["slots"] if plan else [])
    bars: list[tuple[str, float | None]] = []
    if value is not None:
        bars = [
            ("The last planned visit a week saves", value["last"]),
            ("One more visit a week would save", value["more"]),
            ("A visit must save", value["shadow_price"]),
        ]
    shown = [(label, hours) for label, hours in bars if hours is not None]
    most = max((hours for _, hours in shown), default=0.0) or 1.0
    return ExplanationCharts(
        week,
        _interval(rate["low"], rate["per_week"], rate["high"]) if rate["known"] else None,
        [Bar(label, hours, round(hours / most * WIDTH, 1)) for label, hours in shown],
        ahead,
    )


def _week(by_day: dict[str, list[float]], slots: Sequence[int]) -> list[list[HourCell]]:
    """Return the cells of each day, from Monday. slots: hours of the cycle with a visit."""
    days = list(by_day.values())
    most = max((changes for day in days for changes in day), default=0.0)
    visits = [0] * WEEK_HOURS
    for slot in slots:
        visits[slot % WEEK_HOURS] += 1
    return [
        [
            HourCell(
                DAY_NAMES[n], hour, changes, math.ceil(changes / most * SHADES) if most else 0,
                visits[n * DAY_HOURS + hour],
            )
            for hour, changes in enumerate(day)
        ]
        for n, day in enumerate(days[: len(DAY_NAMES)])
    ]  # fmt: skip


def _interval(low: float, mean: float, high: float) -> Interval | None:
    """Return a rate on an axis whose ends are powers of ten; None for rates of 0."""
    if low <= 0 or not math.isfinite(high):
        return None
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)

    def place(rate: float) -> float:
        return round((math.log10(rate) - first) / (last - first) * WIDTH, 1)

    marks = [step * 10.0**power for power in range(first, last) for step in (1, 2, 5)]
    ticks = [(place(mark), f"{mark:g}") for mark in (*marks, 10.0**last)]
    if last - first > MAX_DECADES:
        ticks = ticks[::3]
    return Interval(place(low), place(mean), place(high), ticks)
