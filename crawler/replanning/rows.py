"""What a plan writes on its targets: schedule, figures, next visit."""

from __future__ import annotations

import math
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any

import numpy as np

from crawler.replanning.population import Gathered
from crawler.storage.parts import ADAPTIVE, EPOCH
from crawler.storage.plans import Moved
from schedules import calendar, groups
from schedules.history import Floats, Ints
from schedules.plan import BOUNDS, Plan
from schedules.schedule import Schedule, Schedules
from schedules.windows import DAY_HOURS, day_names

HOUR_MILLISECONDS = 3_600_000
MILLISECOND = timedelta(milliseconds=1)
DIGITS = 5


def next_visits(gathered: Gathered, schedules: Schedules, rows: Ints, now_hours: float) -> Floats:
    """(m,) hours since 1970 (UTC) of the next visits of some targets under new schedules.

    Never later than the longest interval after the last visit; what is due stays due.
    """
    watched, population = gathered.watched, gathered.population
    when = np.empty(len(rows))
    zone = np.array([str(one) for one in population.zones])[population.site[rows]]
    for name in np.unique(zone):
        here = np.flatnonzero(zone == name)
        own = population.zones[population.site[rows[here[0]]]]
        when[here] = calendar.next_visits(_some(schedules, rows[here]), own, now_hours)
    latest = watched.visited[rows] + population.max_hours[rows]
    when = np.maximum(np.fmin(when, latest), now_hours)
    due: Floats = watched.next_visit[rows]
    result: Floats = np.where(due <= now_hours, due, when)
    return result


def _some(schedules: Schedules, rows: Ints) -> Schedules:
    """The schedules of some targets."""
    count = np.diff(schedules.first)[rows]
    first = np.concatenate([[0], np.cumsum(count)])
    place = np.arange(first[-1]) + np.repeat(schedules.first[rows] - first[:-1], count)
    return Schedules(
        schedules.weeks[rows], first, schedules.slots[place],
        schedules.every_hours[rows], schedules.phase_hours[rows],
    )  # fmt: skip


def batch(gathered: Gathered, made: Plan, policy: str, rows: Ints, when: Floats) -> list[Moved]:
    """`_id`, plan and next visit of some targets. when: (m,) hours since 1970 (UTC)."""
    ids, shared = gathered.watched.ids, {"policy": policy}
    columns = _columns(made, rows)
    if policy == ADAPTIVE:
        population = gathered.population
        columns["min_hours"] = population.min_hours[rows].tolist()
        columns["max_hours"] = population.max_hours[rows].tolist()
    times = np.rint(when * HOUR_MILLISECONDS).astype(np.int64).tolist()
    values = zip(*columns.values(), strict=True)
    return [
        (ids[row], shared | dict(zip(columns, part, strict=True)), EPOCH + at * MILLISECOND)
        for row, at, part in zip(rows.tolist(), times, values, strict=True)
    ]


def _columns(made: Plan, rows: Ints) -> dict[str, list[Any]]:
    """What is written of some targets, column by column."""
    some = _some(made.schedules, rows)
    schedules = [some[i] for i in range(len(rows))]
    codes = groups.nearest_group(some.visits_per_week).tolist()
    return {
        "group": [groups.NAMES[code] for code in codes],
        "windows": [windows_of(schedule) for schedule in schedules],
        "visits_per_week": _numbers(some.visits_per_week),
        "weeks": some.weeks.tolist(),
        "slots": [list(schedule.slots) for schedule in schedules],
        "every_hours": some.every_hours.tolist(),
        "phase_hours": some.phase_hours.tolist(),
        "rate_per_week": _numbers(made.rate[rows]),
        # Quantiles stand on a grid, which may be coarser than the rate is known.
        "rate_low": _numbers(np.minimum(made.rate_low[rows], made.rate[rows])),
        "rate_high": _numbers(np.maximum(made.rate_high[rows], made.rate[rows])),
        "freshness": _numbers(1 - made.stale[rows]),
        "age_days": _numbers(made.age_days[rows]),
        "value": _numbers(made.value[rows]),
        "worth": _numbers(made.worth[rows]),
        "bound": [BOUNDS[code] for code in made.bound[rows].tolist()],
    }


def _numbers(column: Floats) -> list[float | None]:
    """Rounded; what cannot be known is null, as JSON knows no NaN."""
    values: list[float] = np.round(column, DIGITS).tolist()
    return [value if math.isfinite(value) else None for value in values]


def windows_of(schedule: Schedule) -> list[str]:
    """The times of a schedule in words, such as `Mon,Wed,Fri 00:00`; not to be written to."""
    if schedule.every_hours:
        return [f"every {schedule.every_hours:.3g} hours"]
    if schedule.weeks > 1:
        return _rare_windows(schedule)
    # As groups.times_of, and fast: most targets have times of their own.
    days_at: dict[int, tuple[int, ...]] = {}
    for slot in schedule.slots:
        day, hour = divmod(slot, DAY_HOURS)
        days_at[hour] = (*days_at.get(hour, ()), day)
    return [f"{_day_names(days)} {hour:02}:00" for hour, days in sorted(days_at.items())]


@lru_cache(maxsize=10_000)
def _rare_windows(schedule: Schedule) -> list[str]:
    return [" ".join(time) for time in groups.times_of(schedule)]


@cache
def _day_names(days: tuple[int, ...]) -> str:
    return day_names(list(days)) or "daily"
