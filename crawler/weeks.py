"""The local week in numbers: requests and changes by day and hour, from rows that a server sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from schedules.history import DAY_HOURS, Floats
from schedules.schedule import WEEK_HOURS
from schedules.windows import DAYS

Row = Mapping[str, Any]
COLUMNS = 8


def requests(slots: Iterable[Row], even: Iterable[Row] = ()) -> Floats:
    """(168,) mean requests in each hour of the local week.

    slots: rows of `weeks`, `slot` and `targets`   even: rows of `per_week`, at any hour
    """
    week = np.zeros(WEEK_HOURS)
    for row in slots:
        week[row["slot"] % WEEK_HOURS] += row["targets"] / (row["weeks"] or 1)
    every: float = sum(row["per_week"] for row in even)
    return week + every / WEEK_HOURS


def sums(rows: Iterable[Row], name: str) -> Floats:
    """(168,) what rows of `day` (0 = Monday) and `hour` give under a name."""
    week = np.zeros(WEEK_HOURS)
    for row in rows:
        week[row["day"] * DAY_HOURS + row["hour"]] += row[name]
    return week


def matrix(week: Floats, digits: int = 3) -> dict[str, list[float]]:
    """Each day's 24 hours, by its name."""
    table = np.round(week.reshape(len(DAYS), DAY_HOURS), digits)
    return {day: row.tolist() for day, row in zip(DAYS, table, strict=True)}


def columns(week: Floats) -> tuple[list[str], Floats]:
    """Times of the day and (7, c) sums: hours apart where they are few, else three together."""
    table = week.reshape(len(DAYS), DAY_HOURS)
    used = np.flatnonzero(table.sum(0))
    if len(used) <= COLUMNS:
        return [f"{hour:02}:00" for hour in used], table[:, used]
    wide = DAY_HOURS // COLUMNS
    return (
        [f"{hour:02}-{hour + wide:02}" for hour in range(0, DAY_HOURS, wide)],
        table.reshape(len(DAYS), COLUMNS, wide).sum(2),
    )
