"""Small charts of text, for terminals: bars in a line, a week as a table of shades."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedules.history import DAY_HOURS
from schedules.windows import DAYS

BARS = " ▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
HOURS = "0     6     12    18     "


def bars(values: Iterable[float]) -> str:
    """A bar for each value >= 0, in a line; the highest is full, what is not 0 is seen."""
    return _drawn(values, BARS)


def week(values: Sequence[float], marked: Iterable[int] = (), mark: str = "●") -> list[str]:
    """The 168 hours of a local week, a line a day, darker where values are higher.

    marked: hours of the week that get a mark instead
    """
    shades = list(_drawn(values, SHADES))
    for hour in marked:
        shades[hour] = mark
    rows = [
        f"{name} {''.join(shades[day * DAY_HOURS : (day + 1) * DAY_HOURS])}"
        for day, name in enumerate(DAYS)
    ]
    return [f"    {HOURS}".rstrip(), *rows]


def _drawn(values: Iterable[float], levels: str) -> str:
    values = list(values)
    highest = max(values, default=0.0)
    if highest <= 0:
        return levels[0] * len(values)
    steps = len(levels) - 1
    return "".join(levels[-int(-value / highest * steps // 1)] for value in values)
