"""Invariants of visit times, compared with a slow walk along each zone's wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schedules.calendar import next_visit, next_visits, upcoming, visits_between
from schedules.schedule import Schedule, Schedules

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONDAY = datetime(1970, 1, 5)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
MILLISECOND = timedelta(milliseconds=1)

# A clock change of each zone, if it has any: at midnight, of half an hour, two hours, or a day, for
# Ramadan, permanent, or in January; in both hemispheres; with offsets of fractions of an hour.
JUMPS = {
    "America/New_York": datetime(2024, 3, 10, 7),
    "Europe/London": datetime(2024, 10, 27, 1),
    "Australia/Lord_Howe": datetime(2024, 10, 5, 15, 30),
    "America/Sao_Paulo": datetime(2018, 11, 4, 3),
    "Africa/Cairo": datetime(2014, 7, 31, 22),
    "Africa/Casablanca": datetime(2024, 3, 10, 2),
    "Antarctica/Troll": datetime(2024, 10, 27, 1),
    "America/Havana": datetime(2024, 11, 3, 5),
    "America/St_Johns": datetime(2006, 10, 29, 2, 31),
    "Pacific/Chatham": datetime(2024, 4, 6, 14),
    "America/Caracas": datetime(2007, 12, 9, 7),
    "Asia/Pyongyang": datetime(2015, 8, 14, 15),
    "Pacific/Fiji": datetime(2021, 1, 16, 14),
    "Pacific/Apia": datetime(2011, 12, 30, 10),
    "Pacific/Kwajalein": datetime(1993, 8, 21, 12),
}
SKIPPED_DAYS = {"Pacific/Apia", "Pacific/Kwajalein"}
ZONES = st.sampled_from([*JUMPS, "UTC", "Asia/Seoul", "Asia/Kolkata", "Asia/Kathmandu"]).map(
    ZoneInfo
)


@st.composite
def places(draw: st.DrawFn) -> tuple[ZoneInfo, datetime]:
    """Draw a zone and a time in whole milliseconds, often near a clock change."""
    zone = draw(ZONES)
    near = JUMPS.get(zone.key, datetime(2024, 1, 1))
    days = draw(st.sampled_from([0.1, 2, 40, 8000]))
    moment = near + draw(st.floats(-days, days)) * timedelta(days=1)
    return zone, EPOCH + (moment.replace(tzinfo=UTC) - EPOCH) // MILLISECOND * MILLISECOND


PLACES = places()
# 2:00 is past, although the clock will show it again; 3:00 is not, although the clock jumped.
TWICE = datetime(2024, 10, 27, 1, 10, tzinfo=UTC)
HALF_PAST = datetime(2007, 12, 9, 7, 10, tzinfo=UTC)


@st.composite
def slotted(draw: st.DrawFn) -> Schedule:
    weeks = draw(st.integers(1, 4))
    if draw(st.booleans()):
        return Schedule(weeks, tuple(range(draw(st.integers(0, 23)), 168 * weeks, 24)))
    slots = draw(st.sets(st.integers(0, 168 * weeks - 1), min_size=1, max_size=20))
    return Schedule(weeks, tuple(sorted(slots)))


EVEN = st.builds(
    Schedule, every_hours=st.floats(1 / 60, 1000), phase_hours=st.floats(-1000, 500_000)
)
SCHEDULES = slotted() | EVEN


def packed(schedules: list[Schedule]) -> Schedules:
    return Schedules(
        np.array([schedule.weeks for schedule in schedules], np.uint8),
        np.cumsum([0, *(len(schedule.slots) for schedule in schedules)]),
        np.array([slot for schedule in schedules for slot in schedule.slots], np.uint16),
        np.array([schedule.every_hours for schedule in schedules], float),
        np.array([schedule.phase_hours for schedule in schedules], float),
    )


def hours(moment: datetime) -> float:
    return (moment - EPOCH) / HOUR


def moment(at: float) -> datetime:
    return EPOCH + round(at * 3_600_000) * MILLISECOND


def reached(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant at which the clock shows a wall time; jumps are at whole minutes."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == wall:
        return first
    at = min(first, wall.replace(tzinfo=zone, fold=1).astimezone(UTC))
    while at.astimezone(zone).replace(tzinfo=None) < wall:
        at += MINUTE
    return at


def slow_visits(
    schedule: Schedule, zone: ZoneInfo, start: datetime, end: datetime
) -> list[datetime]:
    """Return the visits at slots in [start, end), found by checking each wall-clock hour."""
    cycle = schedule.weeks * 168
    begin = int((start.replace(tzinfo=None) - MONDAY) / HOUR) - 48
    count = int((end - start) / HOUR) + 96
    walls = (wall for wall in range(begin, begin + count) if wall % cycle in schedule.slots)
    instants = {reached(zone, MONDAY + wall * HOUR) for wall in walls}
    return sorted(at for at in instants if start <= at < end)


@example(Schedule(1, tuple(range(2, 168, 24))), (ZoneInfo("Antarctica/Troll"), TWICE))
@example(Schedule(1, tuple(range(3, 168, 24))), (ZoneInfo("America/Caracas"), HALF_PAST))
@given(slotted(), PLACES)
def test_next_visit_is_first_slot_on_wall_clock(
    schedule: Schedule, place: tuple[ZoneInfo, datetime]
) -> None:
    zone, after = place
    end = after + timedelta(weeks=schedule.weeks, days=2)
    visits = slow_visits(schedule, zone, after + MILLISECOND, end)
    assert next_visit(schedule, zone, after) == visits[0]


@given(SCHEDULES, PLACES, st.floats(0, 1))
def test_no_visit_precedes_next_visit(
    schedule: Schedule, place: tuple[ZoneInfo, datetime], share: float
) -> None:
    zone, after = place
    visit = next_visit(schedule, zone, after)
    assert visit.tzinfo is UTC
    assert after < visit
    between = after + (visit - MILLISECOND - after) * share
    assert next_visit(schedule, zone, between) == visit
    assert next_visit(schedule, zone, visit) > visit


@given(SCHEDULES, PLACES)
def test_float_hours_neither_skip_nor_repeat_visits(
    schedule: Schedule, place: tuple[ZoneInfo, datetime]
) -> None:
    zone, after = place
    single, at = packed([schedule]), hours(after)
    for _ in range(5):
        (later,) = next_visits(single, zone, at)
        assert moment(later) == next_visit(schedule, zone, moment(at)) > moment(at)
        at = float(later)


@given(st.lists(SCHEDULES | st.just(Schedule()), max_size=30), PLACES)
def test_batch_of_schedules_matches_single_schedules(
    schedules: list[Schedule], place: tuple[ZoneInfo, datetime]
) -> None:
    zone, after = place
    visits = next_visits(packed(schedules), zone, hours(after))
    assert visits.shape == (len(schedules),)
    for schedule, visit in zip(schedules, visits, strict=True):
        if schedule.visits_per_week:
            assert moment(visit) == next_visit(schedule, zone, after)
        else:
            assert visit == np.inf


@given(
    st.lists(slotted() | st.just(Schedule()) | EVEN.filter(lambda even: even.every_hours > 1)),
    PLACES, st.integers(-1, 1000),
)  # fmt: skip
def test_visits_between_match_successive_next_visits(
    schedules: list[Schedule], place: tuple[ZoneInfo, datetime], length: int
) -> None:
    zone, start = place
    end = start + length * HOUR
    first, at = visits_between(packed(schedules), zone, hours(start), hours(end))
    assert len(first) == len(schedules) + 1
    assert first[-1] == len(at)
    for i, schedule in enumerate(schedules):
        visits = [moment(visit) for visit in at[first[i] : first[i + 1]]]
        if schedule.visits_per_week:
            assert visits == upcoming(
                schedule, zone, start - MILLISECOND, length - MILLISECOND / HOUR
            )
        else:
            assert not visits


@given(ZONES, st.integers(1972, 2037), st.integers(0, 23))
def test_daily_slot_has_one_visit_on_each_day_of_a_year(
    zone: ZoneInfo, year: int, hour: int
) -> None:
    assume(zone.key not in SKIPPED_DAYS)
    daily = packed([Schedule(1, tuple(range(hour, 168, 24)))])
    start, end = (reached(zone, datetime(any_year, 1, 1)) for any_year in (year, year + 1))
    first, at = visits_between(daily, zone, hours(start), hours(end))
    days = [moment(visit).astimezone(zone).date() for visit in at]
    assert len(days) == len(set(days)) == first[1]
    assert len(days) == (datetime(year + 1, 1, 1) - datetime(year, 1, 1)).days


@given(slotted(), ZONES, st.integers(1972, 2037))
def test_each_wall_clock_slot_of_a_year_is_visited_once(
    schedule: Schedule, zone: ZoneInfo, year: int
) -> None:
    walls = [
        datetime(year, 1, 1) + hour * HOUR
        for hour in range(365 * 24)
        if (datetime(year, 1, 1) + hour * HOUR - MONDAY) // HOUR % (schedule.weeks * 168)
        in schedule.slots
    ]
    instants = sorted({reached(zone, wall) for wall in walls})
    start, end = (reached(zone, datetime(year, 1, 1) + hour * HOUR) for hour in (0, 365 * 24))
    _, at = visits_between(packed([schedule]), zone, hours(start), hours(end))
    assert [moment(visit) for visit in at] == instants


@given(EVEN, PLACES)
def test_even_visits_are_multiples_of_interval_from_phase(
    schedule: Schedule, place: tuple[ZoneInfo, datetime]
) -> None:
    zone, after = place
    visit = hours(next_visit(schedule, zone, after))
    turns = (visit - schedule.phase_hours) / schedule.every_hours
    assert abs(turns - round(turns)) * schedule.every_hours * 3_600_000 < 1
    assert visit - hours(after) <= schedule.every_hours + 1 / 3_600_000
