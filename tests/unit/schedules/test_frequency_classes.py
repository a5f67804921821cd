"""Frequency classes: the paper's fifteen URLs and its timetable."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from schedules.allocation.policies import (
    by_night,
    group,
    timetable,
)
from schedules.allocation.policies import six_groups as six
from schedules.calendar import times_of, visits_between
from schedules.history import Histories
from schedules.schedule import (
    FEED_CYCLES,
    FREQUENCY_CLASSES,
    VISITS_OF_CLASSES,
    WEEK_HOURS,
    Schedule,
    nearest_class,
)
from tests.unit.populations import NOW, population

WEEKS = 3
# Changes in three weeks, in the paper's order.
CHANGES = {
    "u1": 14, "u5": 10, "u3": 10, "u2": 8, "u4": 7, "u11": 7, "u10": 6, "u9": 3, "u8": 3, "u7": 3,
    "u6": 3, "u12": 3, "u15": 2, "u13": 1, "u14": 0,
}  # fmt: skip
GROUPS = {
    "u1": "G5", "u5": "G3", "u3": "G3", "u2": "G3", "u4": "G2", "u11": "G2", "u10": "G2",
    "u9": "G1", "u8": "G1", "u7": "G1", "u6": "G1", "u12": "G1", "u15": "G1", "u13": "2G1",
    "u14": "4G1",
}  # fmt: skip
SIX_GROUPS = GROUPS | {"u1": "G7", "u4": "G3", "u11": "G3", "u10": "G3"}
NIGHTLY = {"u6", "u7", "u8", "u9", "u12", "u15"}


def names(groups: np.ndarray) -> list[str]:
    return [FREQUENCY_CLASSES[code] for code in groups]


def codes(*classes: str) -> np.ndarray:
    return np.array([FREQUENCY_CLASSES.index(name) for name in classes], np.uint8)


def changes_of(url: str) -> np.ndarray:
    """Return (168,) changes of a URL, all on Tuesday at 10:00 or at 22:00."""
    hours = np.zeros(168)
    hours[24 + (22 if url in NIGHTLY else 10)] = CHANGES[url]
    return hours


def test_frequency_classes_of_paper_urls() -> None:
    weekly = np.array(list(CHANGES.values())) / WEEKS
    assert dict(zip(CHANGES, names(group(weekly)), strict=True)) == GROUPS
    assert dict(zip(CHANGES, names(six(group(weekly))), strict=True)) == SIX_GROUPS


def test_visits_in_any_cycle_have_unique_descriptions() -> None:
    for weeks in FEED_CYCLES[:-1]:
        texts = [times_of(Schedule(weeks, (week * 168 + 132,))) for week in range(weeks)]
        assert len({str(text) for text in texts}) == weeks
    assert times_of(Schedule(6, (132,))) == [("1st Sat of 6 weeks", "12:00")]
    assert times_of(Schedule(24, (21 * 168 + 132,))) == [("22nd Sat of 24 weeks", "12:00")]


def by_night_of_paper() -> np.ndarray:
    return np.array([url in NIGHTLY for url in CHANGES])


def test_timetable_of_paper() -> None:
    """Put midnight in the row of the day that begins, as in the paper."""
    changes = np.array([changes_of(url) for url in CHANGES])
    groups = six(group(changes.sum(axis=1) / WEEKS))
    table = defaultdict(set)
    for url, code, night in zip(CHANGES, groups, by_night_of_paper(), strict=True):
        schedule = timetable(np.array([code]), np.array([night]))[0]
        for window in times_of(schedule):
            table[window].add(url)
    assert table == {
        ("daily", "00:00"): {"u1"},
        ("Mon,Wed,Fri", "00:00"): {"u2", "u3", "u4", "u5", "u10", "u11"},
        ("Sat", "12:00"): NIGHTLY,
        # The paper shows only the 2nd, one visit in four weeks; 2G1 means one visit in two weeks.
        ("2nd and 4th Sat", "00:00"): {"u13"},
        ("3rd Sat", "00:00"): {"u14"},
    }


def test_visits_of_paper_timetable() -> None:
    """Visit the paper's URLs for four weeks, from the first week of a cycle on."""
    changes = np.array([changes_of(url) for url in CHANGES])
    schedules = timetable(six(group(changes.sum(axis=1) / WEEKS)), by_night_of_paper())
    start = 168 * 4 * 700 + 96
    first, at = visits_between(schedules, ZoneInfo("UTC"), start, start + 28 * 24)
    visits = {
        url: [divmod(int(hour) - start, 24) for hour in at[first[i] : first[i + 1]]]
        for i, url in enumerate(CHANGES)
    }
    assert datetime.fromtimestamp(start * 3600, UTC).strftime("%a %H") == "Mon 00"
    assert visits["u1"] == [(day, 0) for day in range(28)]
    assert visits["u4"] == [(week * 7 + day, 0) for week in range(4) for day in (0, 2, 4)]
    assert visits["u9"] == [(week * 7 + 5, 12) for week in range(4)]
    assert visits["u13"] == [(12, 0), (26, 0)]
    assert visits["u14"] == [(19, 0)]


@pytest.mark.parametrize(
    ("weekly", "expected"),
    [
        (0, "4G1"), (0.2499, "4G1"), (0.25, "2G1"), (0.4999, "2G1"), (0.5, "G1"), (1.4999, "G1"),
        (1.5, "G2"), (6.5, "G7"), (7.4999, "G7"), (13.4999, "G13"), (13.5, "G14"), (14.5, "G14"),
        (1e6, "G14"),
    ],
)  # fmt: skip
def test_halves_round_up(weekly: float, expected: str) -> None:
    assert names(group(np.array([weekly]))) == [expected]


def test_six_classes_replace_sixteen() -> None:
    assert names(six(np.arange(16, dtype=np.uint8))) == [
        "4G1", "2G1", "G1", *["G3"] * 3, *["G7"] * 6, *["G14"] * 4,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("visits", "expected"),
    [
        (0, "4G1"), (0.25, "4G1"), (1 / 3, "4G1"), (0.4, "2G1"), (0.5, "2G1"), (0.75, "G1"),
        (1, "G1"), (1.5, "G2"), (7, "G7"), (13.5, "G14"), (168, "G14"),
    ],
)  # fmt: skip
def test_any_number_of_visits_has_a_nearest_class(visits: float, expected: str) -> None:
    assert names(nearest_class(np.array([visits]))) == [expected]


def test_class_is_nearest_to_its_own_rate() -> None:
    assert nearest_class(VISITS_OF_CLASSES).tolist() == list(range(16))


def test_night_changes_are_from_18_to_9() -> None:
    after = NOW - WEEK_HOURS + np.array([8, 9, 17, 18, 24 * 6 + 23, 3, 12])
    first = np.array([0, 1, 2, 3, 4, 5, 7])
    past = Histories(np.full(6, NOW - WEEK_HOURS), np.full(6, NOW), first, after, after + 1)
    nights = by_night(population(6, (ZoneInfo("UTC"),)), past)
    assert nights.tolist() == [True, False, False, True, True, False]


@pytest.mark.parametrize("night", [False, True])
def test_visit_rate_matches_class_name(night: bool) -> None:
    groups = np.arange(16, dtype=np.uint8)
    schedules = timetable(groups, np.full(16, night))
    assert schedules.visits_per_week.tolist() == VISITS_OF_CLASSES.tolist()
    for i in range(16):
        slots = schedules[i].slots
        assert list(slots) == sorted(set(slots))
        assert {slot % 24 for slot in slots} <= {0, 12}
        if i <= FREQUENCY_CLASSES.index("G7"):
            assert {slot % 24 for slot in slots} == {12 if night else 0}


def test_days_of_class_are_spread_evenly() -> None:
    schedules = timetable(codes("G2", "G3", "G4", "G5", "G6", "G7"), np.zeros(6, bool))
    for i in range(6):
        days = np.array(schedules[i].slots) // 24
        gaps = np.diff([*days, days[0] + 7])
        assert gaps.max() - gaps.min() <= 1


def test_timetable_of_no_targets_is_empty() -> None:
    assert len(timetable(codes(), np.zeros(0, bool))) == 0


def test_classes_are_described_by_days_and_time() -> None:
    table = timetable(np.arange(16, dtype=np.uint8), np.ones(16, bool))
    descriptions = {name: times_of(table[code]) for code, name in enumerate(FREQUENCY_CLASSES)}
    assert descriptions["4G1"] == [("3rd Sat", "12:00")]
    assert descriptions["G4"] == [("Mon,Wed,Fri,Sat", "12:00")]
    assert descriptions["G6"] == [("Mon-Sat", "12:00")]
    assert descriptions["G9"] == [("Mon,Fri", "00:00"), ("daily", "12:00")]
    assert descriptions["G14"] == [("daily", "00:00"), ("daily", "12:00")]


def test_schedules_are_described_by_days_and_time() -> None:
    assert times_of(Schedule()) == []
    assert times_of(Schedule(weeks=3, slots=(9, 168 + 9, 400))) == [
        ("1st and 2nd Mon of 3 weeks", "09:00"), ("3rd Wed of 3 weeks", "16:00"),
    ]  # fmt: skip
    assert times_of(Schedule(weeks=2, slots=(9, 33, 168 + 9))) == [
        ("Mon", "09:00"), ("1st and 3rd Tue", "09:00"),
    ]  # fmt: skip


def test_corrected_load_of_paper_plan() -> None:
    """Check 240 URLs twice a day, 144 daily, 216 three times a week, 480 weekly, and 60 + 60 rarer.

    The paper has 644 requests a day, 53.8 % of daily crawling. It counts three visits a week as 7
    requests a day and weekly ones as 6, but 216 * 3 / 7 = 92.6 and 480 / 7 = 68.6 are correct.
    """
    count = {"G14": 240, "G7": 144, "G3": 216, "G1": 480, "2G1": 60, "4G1": 60}
    groups = np.repeat(codes(*count), list(count.values()))
    assert len(groups) == 1200
    load = VISITS_OF_CLASSES[groups].mean() / 7
    assert load * 1200 == pytest.approx(791.6, abs=0.05)
    assert load == pytest.approx(0.660, abs=0.0005)
