"""Generated targets for the planner tests: sites in zones with and without daylight saving time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from schedules.evaluation.world import never, seen
from schedules.history import Floats, Histories, Times
from schedules.population import Population, walls_of
from schedules.schedule import WEEK_HOURS, Schedule, Schedules

# A Monday. In the five weeks before, clocks changed in all of these zones except Asia/Kolkata.
NOW = datetime(2026, 4, 6, tzinfo=UTC).timestamp() / 3600
ZONES = tuple(
    ZoneInfo(name)
    for name in (
        "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata",
        "America/St_Johns", "Pacific/Auckland",
    )
)  # fmt: skip
HOUR = np.arange(WEEK_HOURS)
UNIFORM: Floats = np.full(WEEK_HOURS, 1 / WEEK_HOURS)
OFFICE: Floats = np.where((HOUR // 24 < 5) & (HOUR % 24 >= 8) & (HOUR % 24 < 18), 1 / 50, 0.0)


def polls(n: int, start: float, stop: float, every_hours: float) -> Times:
    """Return polls of all n targets on one grid, both ends included."""
    count = int(np.floor((stop - start) / every_hours + 1e-9)) + 1
    grid = start + np.arange(count) * every_hours
    return Times(np.arange(n + 1) * count, np.tile(grid, n))


def population(
    n: int, zones: tuple[ZoneInfo, ...] = ZONES, seed: int = 0, **own: Any
) -> Population:
    """Return targets of one site per zone; each site is a group. `own` overrides fields."""
    s, rng = len(zones), np.random.default_rng(seed)
    site = np.arange(n) % s
    distinct = tuple(dict.fromkeys(zones))
    fields = {
        "key": rng.integers(0, 2**64, n, dtype=np.uint64), "site": site, "group": site.copy(),
        "parent": np.arange(s), "zones": zones, "open_hours": np.ones((s, WEEK_HOURS), np.bool_),
        "weight": np.ones(n), "cost": np.ones(n), "min_hours": np.ones(n),
        "max_hours": np.full(n, 4.0 * WEEK_HOURS), "site_day": np.full(s, np.inf),
        "walls": walls_of(distinct, NOW - 30 * WEEK_HOURS, NOW + 30 * WEEK_HOURS),
    }  # fmt: skip
    return Population(**(fields | own))


def mixed(n: int, seed: int = 0) -> Population:
    """Return a population with closed hours, weights, costs, and feasible intervals."""
    rng = np.random.default_rng(seed)
    some = population(n, seed=seed)
    opened = np.ones((some.sites, WEEK_HOURS), np.bool_)
    opened[0] = HOUR % 24 >= 6
    opened[3] = HOUR // 24 != 6
    return replace(
        some,
        open_hours=opened,
        weight=rng.choice([0.2, 1.0, 5.0], n),
        cost=rng.choice([0.5, 1.0, 2.0], n),
        min_hours=rng.choice([1.0, 2.5, 6.0], n),
        max_hours=rng.choice([48.0, 168.0, 400.0, 672.0], n),
    )


def rates(n: int, seed: int = 0) -> Floats:
    """Return (n,) changes per week; most of the rates are low."""
    return np.random.default_rng(seed).gamma(0.7, 6.0, n) + 0.02


def changes(
    some: Population, rate: Floats, profile: Floats = UNIFORM, weeks: float = 5, seed: int = 0
) -> Times:
    """Return random changes in the weeks before NOW; `profile` has the shape (168,) or (n, 168)."""
    rng = np.random.default_rng(seed)
    profile = np.broadcast_to(profile, (len(some), WEEK_HOURS))
    hours = np.arange(int(NOW - weeks * WEEK_HOURS), int(NOW))
    local = some.walls.hours[:, hours - some.walls.base] % WEEK_HOURS
    counts = [
        rng.poisson(rate[i] * profile[i, local[some.zone[some.site[i]]]]) for i in range(len(some))
    ]
    at = [np.repeat(hours, count) + rng.random(count.sum()) for count in counts]
    first = np.concatenate([[0], np.cumsum([len(times) for times in at], dtype=np.int64)])
    return Times(first, np.concatenate([*(np.sort(times) for times in at), np.empty(0)]))


def watched(some: Population, happened: Times, every: float = 4, weeks: float = 5) -> Histories:
    """Return the histories observed by evenly spaced visits in the weeks before NOW."""
    n = len(some)
    return seen(never(n), polls(n, NOW - weeks * WEEK_HOURS, NOW, every), happened)


def gaps(schedule: Schedule) -> Floats:
    """Return the hours between consecutive visits of a cycle."""
    if schedule.every_hours:
        return np.array([schedule.every_hours])
    return np.diff([*schedule.slots, schedule.slots[0] + schedule.weeks * WEEK_HOURS]).astype(float)


def all_of(schedules: Schedules) -> list[Schedule]:
    """Return the schedules as a list."""
    return [schedules[i] for i in range(len(schedules))]
