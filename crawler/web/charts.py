"""Small charts as SVG, without scripts or inline styles: colors come from the style sheets.

Each chart has a text alternative; show the numbers in a table as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from crawler.reports.site_history import DayFreshness
from crawler.reports.sites import DayVisits

# Steps of the color scale; 0 is for values of 0.
LEVELS = 6
BAR_WIDTH, BAR_GAP, BAR_HEIGHT = 8, 2, 28
CHART_WIDTH, CHART_HEIGHT, CHART_MARGIN = 720, 180, 40
DOT_RADIUS = 3


def bars(values: Sequence[float], label: str) -> Markup:
    """Return a row of bars; the highest value has the full height."""
    most = max(values, default=0.0) or 1.0
    width = len(values) * (BAR_WIDTH + BAR_GAP) - BAR_GAP
    drawn = []
    for place, value in enumerate(values):
        height = max(round(BAR_HEIGHT * value / most, 1), 1.0 if value else 0.5)
        drawn.append(
            Markup('<rect x="{}" y="{}" width="{}" height="{}"/>').format(
                place * (BAR_WIDTH + BAR_GAP), round(BAR_HEIGHT - height, 1), BAR_WIDTH, height
            )
        )
    return Markup(
        '<svg class="spark" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" '
        'aria-label="{2}"><title>{2}</title>{3}</svg>'
    ).format(width, BAR_HEIGHT, label, Markup("").join(drawn))


def week(days: Sequence[DayVisits]) -> Markup:
    """Return the changes found on each day as bars."""
    changes = [day["changed"] for day in days]
    return bars(changes, f"Changes found each day, oldest first: {', '.join(map(str, changes))}")


def freshness(days: Sequence[DayFreshness]) -> Markup:
    """Return the freshness of each day as a line."""
    values = [day["freshness"] for day in days]
    known = [value for value in values if value is not None]
    mean = f", {sum(known) / len(known):.1%} on average".replace("%", " %") if known else ""
    label = f"Estimated freshness at noon of the last {len(days)} days{mean}"
    ends = [f"{day['day']:%b} {day['day'].day}" for day in (days[0], days[-1])]
    return shares(values, label, (ends[0], ends[1]))


def shares(values: Sequence[float | None], label: str, ends: tuple[str, str]) -> Markup:
    """Return a line of shares between 0 and 1, with gaps for None.

    ends: labels of the first and the last value
    """
    known = [value for value in values if value is not None]
    # Differences between high values stay visible, and the scale has round ends.
    low = math.floor(min(known, default=0.0) * 10) / 10
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
        '<text x="{6}" y="{1}">{7}</text><text class="end" x="{0}" y="{1}">{8}</text></svg>'
    ).format(
        CHART_WIDTH, CHART_HEIGHT, label, Markup("").join(grid), " ".join(path),
        Markup("").join(points), CHART_MARGIN, *ends,
    )  # fmt: skip


def levels(values: Sequence[float]) -> list[int]:
    """Return the step of each value on the color scale, 0 to LEVELS."""
    most = max(values, default=0.0)
    return [math.ceil(value / most * LEVELS) if value > 0 else 0 for value in values]
