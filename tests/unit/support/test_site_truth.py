"""Visits compared with the true changes of the demo site."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.site.truth import totals
from tests.site.world import START, World

WEEK, HOUR = timedelta(weeks=1), timedelta(hours=1)
STOP = START + WEEK


def lasting(world: World) -> list[str]:
    """Return the paths of items that exist for the whole week."""
    return [item.path for item in world.items if item.live(START) and item.live(STOP)]


def test_visits_at_every_change_are_always_fresh() -> None:
    world = World()
    result = totals(world, {p: world.changes(p, START, STOP) for p in lasting(world)}, START, STOP)
    assert (result.by_page.freshness, result.by_page.age_days) == (1, 0)
    assert result.changes == result.visits > 50


def test_staleness_matches_page_contents() -> None:
    """Compare the staleness with the pages themselves, hour by hour."""
    world = World()
    changing = [path for path in lasting(world) if world.changes(path, START, STOP)][:12]
    visits = [START + 12 * HOUR + day * 24 * HOUR for day in range(7)]
    result = totals(world, dict.fromkeys(changing, visits), START, STOP)
    stale = sum(is_stale(world, path, visits, hour) for path in changing for hour in range(168))
    assert 1 - result.by_page.freshness == pytest.approx(stale / 168 / len(changing), abs=0.01)
    assert result.load.per_day == len(changing)


def is_stale(world: World, path: str, visits: list[datetime], hour: int) -> bool:
    now = START + (hour + 0.5) * HOUR
    seen = max((visit for visit in visits if visit <= now), default=START)
    return world.content(path, seen) != world.content(path, now)


def test_page_counts_until_its_end() -> None:
    """Count a page that is never visited as stale from its first change until it disappears."""
    world = World()
    item = next(i for i in world.items if i.ends and i.live(START) and i.per_week > 1)
    assert item.ends is not None
    result = totals(world, {item.path: []}, START, item.ends + WEEK)
    first = world.changes(item.path, START, item.ends)[0]
    assert result.by_page.freshness == pytest.approx((first - START) / (item.ends - START))
    assert (result.pages, result.never_visited) == (1, 1)
