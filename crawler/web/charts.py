"""Small charts as SVG, and the positions of the marks in those that templates draw.

SVG has no scripts or inline styles: colors come from the style sheets. Each chart has a text
alternative: a label, a sentence or a table with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from markupsafe import Markup

from crawler.items import Outcome
from crawler.planning.report_types import Explanation
from crawler.reports.history import VisitRow
from crawler.reports.site_history import DayFreshness
from crawler.reports.sites import DayVisits
from crawler.utils.text import plain

# Steps of the color scale; 0 is for values of 0.
LEVELS = 6
BAR_WIDTH, BAR_GAP, BAR_HEIGHT = 8, 2, 28
CHART_WIDTH, CHART_HEIGHT, CHART_MARGIN = 720, 180, 48
DOT_RADIUS = 3
SPARK_WIDTH, SPARK_HEIGHT, SPARK_DOT = 56, 18, 2
# Size of the charts that templates draw.
WIDTH = 1000
LANE_HEIGHT = 22
# On longer axes, only powers of ten have a tick.
MAX_DECADES = 3
# Shades of a heat map.
SHADES = 8
WEEK_HOURS, DAY_HOURS = 168, 24
DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def bars(values: Sequence[float], label: str) -> Markup:
    """Return a row of bars; the highest value has the full height."""
    peak = max(values, default=0.0) or 1.0
    width = len(values) * (BAR_WIDTH + BAR_GAP) - BAR_GAP
    drawn = []
    for place, value in enumerate(values):
        height = max(round(BAR_HEIGHT * value / peak, 1), 1.0 if value else 0.5)
        drawn.append(
            Markup('<rect x="{}" y="{}" width="{}" height="{}"/>').format(
                place * (BAR_WIDTH + BAR_GAP), round(BAR_HEIGHT - height, 1), BAR_WIDTH, height
            )
        )
    return Markup(
        '<svg class="spark" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" '
        'aria-label="{2}"><title>{2}</title>{3}</svg>'
    ).format(width, BAR_HEIGHT, label, Markup("").join(drawn))


def spark(values: Sequence[float]) -> Markup:
    """Return at least two numbers as a small line of steps with its end marked, without a label.

    Each number has the same width, however long it lasted.
    """
    low, high = min(values), max(values)
    step = (SPARK_WIDTH - 2 * SPARK_DOT) / len(values)
    heights = [
        SPARK_HEIGHT - SPARK_DOT - (SPARK_HEIGHT - 2 * SPARK_DOT) * _share(value, low, high)
        for value in values
    ]
    path = f"M{SPARK_DOT} {heights[0]:.1f}"
    for place, height in enumerate(heights[1:], 1):
        path += f"H{SPARK_DOT + place * step:.1f}V{height:.1f}"
    end = SPARK_WIDTH - SPARK_DOT
    return Markup(
        '<svg class="sparkline" viewBox="0 0 {0} {1}" width="{0}" height="{1}" aria-hidden="true">'
        '<path d="{2}H{3}"/><circle cx="{3}" cy="{4}" r="{5}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, path, end, f"{heights[-1]:.1f}", SPARK_DOT)


def _share(value: float, low: float, high: float) -> float:
    """Return the place of a number between others; halves, because a difference may overflow."""
    return (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5


def week(days: Sequence[DayVisits]) -> Markup:
    """Return the changes found on each day as bars."""
    changes = [day["changed"] for day in days]
    return bars(changes, f"Changes found each day, oldest first: {', '.join(map(str, changes))}")


def freshness(days: Sequence[DayFreshness]) -> Markup:
    """Return the freshness of each day as a line."""
    values = [day["freshness"] for day in days]
    rated = [value for value in values if value is not None]
    mean = f", {sum(rated) / len(rated):.1%} on average".replace("%", " %") if rated else ""
    label = f"Estimated freshness at noon of the last {len(days)} days{mean}"
    ends = [f"{day['day']:%b} {day['day'].day}" for day in (days[0], days[-1])]
    return shares(values, label, (ends[0], ends[1]))


def shares(values: Sequence[float | None], label: str, ends: tuple[str, str]) -> Markup:
    """Return a line of shares between 0 and 1, with gaps for None.

    ends: labels of the first and the last value
    """
    drawn = [value for value in values if value is not None]
    # Differences between high values stay visible, and the scale has round ends.
    low = math.floor(min(drawn, default=0.0) * 10) / 10
    low = min(low, 0.9)
    inner = CHART_WIDTH - CHART_MARGIN - DOT_RADIUS
    high_y, low_y = 10, CHART_HEIGHT - 24

    def y_of(share: float) -> float:
        return round(low_y - (share - low) / (1 - low) * (low_y - high_y), 1)

    step = inner / max(1, len(values) - 1)
    places = [(round(CHART_MARGIN + at * step, 1), value) for at, value in enumerate(values)]
    dots = [(x, y_of(value)) for x, value in places if value is not None]
    path, was_known = [], False
    for x, value in places:
        if value is not None:
            path.append(f"{'L' if was_known else 'M'}{x} {y_of(value)}")
        was_known = value is not None
    grid = [
        Markup('<line x1="{0}" x2="{1}" y1="{2}" y2="{2}"/><text x="0" y="{3}">{4}</text>').format(
            CHART_MARGIN,
            CHART_WIDTH,
            y_of(share),
            y_of(share) + 4,
            f"{share:.0%}".replace("%", " %"),
        )
        for share in (1.0, round((1 + low) / 2, 3), low)
    ]
    points = [Markup('<circle cx="{}" cy="{}" r="{}"/>').format(x, y, DOT_RADIUS) for x, y in dots]
    return Markup(
        '<svg class="line" viewBox="0 0 {0} {1}" role="img" aria-label="{2}"><title>{2}</title>'
        '<g class="grid">{3}</g><path d="{4}"/>{5}'
        '<text x="{6}" y="{9}">{7}</text><text class="end" x="{0}" y="{9}">{8}</text></svg>'
    ).format(
        CHART_WIDTH, CHART_HEIGHT, label, Markup("").join(grid), " ".join(path),
        Markup("").join(points), CHART_MARGIN, *ends, CHART_HEIGHT - 5,
    )  # fmt: skip


def levels(values: Sequence[float]) -> list[int]:
    """Return the step of each value on the color scale, 0 to LEVELS."""
    peak = max(values, default=0.0)
    return [math.ceil(value / peak * LEVELS) if value > 0 else 0 for value in values]


@dataclass(frozen=True, slots=True)
class Mark:
    """A visit in a timeline. x: 0 to WIDTH; y: center of its lane."""

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
    values: hours that visits save; empty if unknown
    ahead:  planned visits with the weekday and time of the site
    """

    week: list[list[HourCell]] | None
    rate: Interval | None
    values: list[Bar]
    ahead: list[tuple[datetime, str]]


def strip(visits: Sequence[VisitRow]) -> Strip | None:
    """Return the timeline of some visits; None for fewer than two."""
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
    peak = max((hours for _, hours in shown), default=0.0) or 1.0
    return ExplanationCharts(
        week,
        _interval(rate["low"], rate["per_week"], rate["high"]) if rate["known"] else None,
        [Bar(label, hours, round(hours / peak * WIDTH, 1)) for label, hours in shown],
        ahead,
    )


def _week(by_day: dict[str, list[float]], slots: Sequence[int]) -> list[list[HourCell]]:
    """Return the cells of each day, from Monday. slots: hours of the cycle with a visit."""
    days = list(by_day.values())
    peak = max((changes for day in days for changes in day), default=0.0)
    visits = [0] * WEEK_HOURS
    for slot in slots:
        visits[slot % WEEK_HOURS] += 1
    return [
        [
            HourCell(
                DAY_NAMES[n], hour, changes, math.ceil(changes / peak * SHADES) if peak else 0,
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
    ticks = [(place(mark), plain(mark)) for mark in (*marks, 10.0**last)]
    if last - first > MAX_DECADES:
        ticks = ticks[::3]
    return Interval(place(low), place(mean), place(high), ticks)
