"""What a plan writes on its targets: schedule, figures, next visit."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from crawler.replanning.population import Gathered
from crawler.replanning.times import in_words
from crawler.storage.parts import ADAPTIVE, EPOCH
from crawler.storage.plans import Moved
from schedules import calendar, groups
from schedules.feedplan import FeedsPlan
from schedules.history import Floats, Ints
from schedules.plan import BOUNDS, Plan
from schedules.schedule import Schedules

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
        when[here] = calendar.next_visits(schedules.of(rows[here]), own, now_hours)
    latest = watched.visited[rows] + population.max_hours[rows]
    when = np.maximum(np.fmin(when, latest), now_hours)
    due: Floats = watched.next_visit[rows]
    result: Floats = np.where(due <= now_hours, due, when)
    return result


def batch(
    gathered: Gathered, made: Plan | FeedsPlan, policy: str, rows: Ints, when: Floats
) -> list[Moved]:
    """`_id`, plan and next visit of some targets. when: (m,) hours since 1970 (UTC)."""
    ids = gathered.watched.ids
    columns = {"policy": [policy] * len(rows), **_columns(made, rows)}
    if policy == ADAPTIVE:
        population = gathered.population
        columns["min_hours"] = population.min_hours[rows].tolist()
        columns["max_hours"] = population.max_hours[rows].tolist()
    times = np.rint(when * HOUR_MILLISECONDS).astype(np.int64).tolist()
    values = zip(*columns.values(), strict=True)
    return [
        (ids[row], dict(zip(columns, part, strict=True)), EPOCH + at * MILLISECOND)
        for row, at, part in zip(rows.tolist(), times, values, strict=True)
    ]


def _columns(made: Plan | FeedsPlan, rows: Ints) -> dict[str, list[Any]]:
    """What is written of some targets, column by column."""
    some = made.schedules.of(rows)
    slots, codes = some.slots.tolist(), groups.nearest_group(some.visits_per_week).tolist()
    return {
        "group": [groups.NAMES[code] for code in codes],
        "windows": in_words(some),
        "visits_per_week": _numbers(some.visits_per_week),
        "weeks": some.weeks.tolist(),
        "slots": [slots[begin:end] for begin, end in pairwise(some.first.tolist())],
        "every_hours": some.every_hours.tolist(),
        "phase_hours": some.phase_hours.tolist(),
        **{name: _numbers(column) for name, column in made.figures(rows).items()},
        "value": _numbers(made.value[rows]),
        "worth": _numbers(made.worth[rows]),
        "bound": [BOUNDS[code] for code in made.bound[rows].tolist()],
    }


def _numbers(column: Floats) -> list[float | None]:
    """Rounded; what cannot be known is null, as JSON knows no NaN."""
    values: list[float | None] = np.round(column, DIGITS).tolist()
    for unknown in np.flatnonzero(~np.isfinite(column)).tolist():
        values[unknown] = None
    return values
