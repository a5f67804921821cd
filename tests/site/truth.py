"""The freshness of a copy of the demo site: visits compared with the real changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import numpy as np

from schedules.evaluation.score import Totals, score
from schedules.history import Times
from tests.site.world import World

HOUR_SECONDS = 3600
Visits = Mapping[str, Iterable[datetime]]


def totals(world: World, visits: Visits, start: datetime, stop: datetime) -> Totals:
    """Return the results for these paths, whose copies are fresh at `start`.

    visits: times at which each path was visited; visits before `start` or after `stop` do not count
    """
    paths = list(visits)
    changes = [world.changes(path, start, stop) for path in paths]
    observations = [list(visits[path]) for path in paths]
    ends = {item.path: item.ends for item in world.items if item.ends is not None}
    return score(
        _times(changes),
        _times(observations),
        np.zeros(len(paths), np.int64),
        np.array([_hours(ends[path]) if path in ends else np.inf for path in paths]),
        _hours(start),
        _hours(stop),
    ).totals()


def _times(rows: list[list[datetime]]) -> Times:
    first = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Times(first, np.array([_hours(at) for row in rows for at in row], np.float64))


def _hours(moment: datetime) -> float:
    return moment.timestamp() / HOUR_SECONDS
