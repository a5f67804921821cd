"""Visits in time: days with clock changes, weeks of a cycle, and visiting hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.calendar import next_visit, next_visits, upcoming, visits_between
from schedules.schedule import Schedule, Schedules

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")
KOLKATA = ZoneInfo("Asia/Kolkata")
APIA = ZoneInfo("Pacific/Apia")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")
MONDAY_NINE = Schedule(slots=(9,))


def daily(*hours: int) -> Schedule:
    """Return a schedule of daily visits at these hours."""
    return Schedule(slots=tuple(24 * day + hour for day in range(7) for hour in hours))


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


def hours(moment: datetime) -> float:
    return (moment - EPOCH) / timedelta(hours=1)


def local(visits: list[datetime], zone: ZoneInfo) -> list[str]:
    return [f"{visit.astimezone(zone):%d %H:%M %z}" for visit in visits]


def nothing_planned(count: int) -> Schedules:
    """Return `count` schedules without slots or intervals."""
    return Schedules(
        np.ones(count, np.uint8), np.zeros(count + 1, np.int64), np.zeros(0, np.uint16),
        np.zeros(count), np.zeros(count),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        (
            daily(2), NEW_YORK, utc(2024, 3, 9),
            ["09 02:00 -0500", "10 03:00 -0400", "11 02:00 -0400"],
        ),
        (
            daily(1), NEW_YORK, utc(2024, 11, 2),
            ["02 01:00 -0400", "03 01:00 -0400", "04 01:00 -0500"],
        ),
        (
            daily(2, 3), NEW_YORK, utc(2024, 3, 10),
            ["10 03:00 -0400", "11 02:00 -0400", "11 03:00 -0400", "12 02:00 -0400"],
        ),
        (
            daily(2), LORD_HOWE, utc(2024, 10, 4, 18),
            ["06 02:30 +1100", "07 02:00 +1100", "08 02:00 +1100"],
        ),
        (
            daily(0, 12), APIA, utc(2011, 12, 29, 12),
            ["29 12:00 -1000", "31 00:00 +1400", "31 12:00 +1400", "01 00:00 +1400"],
        ),
        (daily(9), KOLKATA, utc(2024, 5, 1, 3, 30), ["02 09:00 +0530", "03 09:00 +0530"]),
    ],
    ids=[
        "skipped time moves to the jump", "repeated time is visited once",
        "two slots at one jump are one visit", "jump of half an hour",
        "skipped day", "offset of half an hour",
    ],
)  # fmt: skip
def test_visits_follow_the_wall_clock(
    schedule: Schedule, zone: ZoneInfo, after: datetime, expected: list[str]
) -> None:
    assert local(upcoming(schedule, zone, after, 72), zone)[: len(expected)] == expected


def test_visit_due_now_is_in_the_past() -> None:
    due = utc(2024, 5, 6, 9)
    assert next_visit(MONDAY_NINE, ZoneInfo("UTC"), due - timedelta(microseconds=1)) == due
    assert next_visit(MONDAY_NINE, ZoneInfo("UTC"), due) == due + timedelta(weeks=1)


def test_reference_time_may_be_in_any_zone() -> None:
    after = datetime(2024, 5, 6, 17, 59, tzinfo=ZoneInfo("Asia/Seoul"))
    assert next_visit(MONDAY_NINE, ZoneInfo("UTC"), after) == utc(2024, 5, 6, 9)


@pytest.mark.parametrize("weeks", [1, 2, 3, 4])
def test_cycles_start_on_first_monday_of_1970(weeks: int) -> None:
    last_monday = Schedule(weeks=weeks, slots=(168 * (weeks - 1),))
    expected = utc(1970, 1, 5) + timedelta(weeks=weeks - 1)
    for _ in range(50):
        before = expected - timedelta(hours=1)
        assert next_visit(last_monday, ZoneInfo("UTC"), before) == expected
        expected += timedelta(weeks=weeks)


def test_even_intervals_count_from_their_phase() -> None:
    even = Schedule(every_hours=36, phase_hours=hours(utc(2024, 5, 1)))
    visits = upcoming(even, NEW_YORK, utc(2024, 5, 1), 80)
    assert visits == [utc(2024, 5, 2, 12), utc(2024, 5, 4)]


def test_empty_schedule_has_no_visits() -> None:
    with pytest.raises(ValueError, match="neither slots nor an interval"):
        next_visit(Schedule(), NEW_YORK, EPOCH)
    assert np.isinf(next_visits(nothing_planned(3), NEW_YORK, 480_000)).all()
    first, at = visits_between(nothing_planned(3), NEW_YORK, 480_000, 490_000)
    assert first.tolist() == [0, 0, 0, 0]
    assert not len(at)


def test_no_targets_have_no_visits() -> None:
    assert next_visits(nothing_planned(0), NEW_YORK, 480_000).shape == (0,)
    first, at = visits_between(nothing_planned(0), NEW_YORK, 480_000, 490_000)
    assert first.tolist() == [0]
    assert not len(at)


@pytest.mark.parametrize("every", [1e-9, 1e-4, -24])
def test_rejects_interval_below_one_second(every: float) -> None:
    with pytest.raises(ValueError, match="at least one second"):
        next_visit(Schedule(every_hours=every), NEW_YORK, utc(2024, 1, 1))


@pytest.mark.parametrize("year", [3, 1900, 9990])
def test_supports_distant_years(year: int) -> None:
    after = utc(year, 6, 1)
    visit = next_visit(daily(9), NEW_YORK, after)
    assert after < visit <= after + timedelta(days=1)


def test_span_includes_start_and_excludes_end() -> None:
    schedules = Schedules(
        np.ones(1, np.uint8), np.array([0, 1]), np.array([9], np.uint16), np.zeros(1), np.zeros(1)
    )
    due, zone = hours(utc(2024, 5, 6, 9)), ZoneInfo("UTC")
    assert visits_between(schedules, zone, due, due + 168)[1].tolist() == [due]
    assert visits_between(schedules, zone, due + 1e-3, due + 168)[1].tolist() == []
    assert visits_between(schedules, zone, due, due)[1].tolist() == []
    assert visits_between(schedules, zone, due, due - 500)[1].tolist() == []
