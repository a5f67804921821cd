"""Descriptions of the visit times of many schedules."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crawler.planning.replan import in_words
from schedules.calendar import times_of
from schedules.schedule import Schedule, Schedules


def schedules_of(*ones: Schedule) -> Schedules:
    return Schedules(
        np.array([schedule.weeks for schedule in ones], np.uint8),
        np.cumsum([0, *(len(schedule.slots) for schedule in ones)]),
        np.array([slot for schedule in ones for slot in schedule.slots], np.uint16),
        np.array([schedule.every_hours for schedule in ones]),
        np.zeros(len(ones)),
    )


def test_descriptions_of_visit_times() -> None:
    ones = {
        Schedule(1, (0, 48, 96)): ["Mon,Wed,Fri 00:00"],
        Schedule(2, (132 + 168,)): ["2nd and 4th Sat 12:00"],
        Schedule(1, tuple(range(0, 168, 24))): ["daily 00:00"],
        Schedule(every_hours=33.333): ["every 33.3 hours"],
        Schedule(1, (9, 33, 57, 18)): ["Mon-Wed 09:00", "Mon 18:00"],
        Schedule(): [],
    }
    assert in_words(schedules_of(*ones)) == list(ones.values())
    assert in_words(schedules_of()) == []


SCHEDULES = st.integers(1, 4).flatmap(
    lambda weeks: st.builds(
        lambda slots: Schedule(weeks, tuple(sorted(slots))),
        st.sets(st.integers(0, weeks * 168 - 1), min_size=1, max_size=20),
    )
)


@given(st.lists(SCHEDULES, max_size=5))
def test_batch_descriptions_match_single_descriptions(ones: list[Schedule]) -> None:
    expected = [[" ".join(time) for time in times_of(schedule)] for schedule in ones]
    assert in_words(schedules_of(*ones)) == expected
