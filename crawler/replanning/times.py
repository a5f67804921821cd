"""The times of many schedules in words, such as `Mon,Wed,Fri 00:00`."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crawler.utils.text import period
from schedules import groups
from schedules.history import DAY_HOURS, Ints
from schedules.schedule import Schedule, Schedules
from schedules.windows import day_names

Words = list[list[str]]
DAY_SETS = 2**7


def in_words(schedules: Schedules) -> Words:
    """The times of each of n schedules, the same as `groups.times_of` has for one."""
    single = np.diff(schedules.first) == 1
    rare = np.flatnonzero((schedules.weeks > 1) & single)
    rest = np.flatnonzero(((schedules.weeks > 1) & ~single) | (schedules.every_hours > 0))
    result = _weekly(schedules)
    weeks, slots = schedules.weeks[rare].tolist(), schedules.slots[schedules.first[rare]].tolist()
    for row, words in zip(rare.tolist(), map(_rare, weeks, slots), strict=True):
        result[row] = [words]
    for row in rest.tolist():
        result[row] = _of_one(schedules[row])
    return result


def _weekly(schedules: Schedules) -> Words:
    """Those of one week; nothing for others."""
    owner = np.repeat(np.arange(len(schedules)), np.diff(schedules.first))
    here = schedules.weeks[owner] == 1
    begins, words = _runs(owner[here], schedules.slots[here])
    bounds = np.searchsorted(begins, np.arange(len(schedules) + 1)).tolist()
    return [words[begin:end] for begin, end in pairwise(bounds)]


def _runs(owner: Ints, slots: NDArray[np.uint16]) -> tuple[Ints, list[str]]:
    """Target and words of each hour of the day at which one has visits."""
    day, hour = np.divmod(slots.astype(np.int64), DAY_HOURS)
    order = np.lexsort((hour, owner))
    owner, day, hour = owner[order], day[order], hour[order]
    begins = np.flatnonzero(np.diff(owner * DAY_HOURS + hour, prepend=-1))
    days = np.bitwise_or.reduceat(1 << day, begins) if len(begins) else begins
    return owner[begins], _all_words()[hour[begins] * DAY_SETS + days].tolist()


@cache
def _all_words() -> NDArray[Any]:
    """(3072,) words for each hour of the day on each set of weekdays."""
    days = [[day for day in range(7) if chosen >> day & 1] for chosen in range(DAY_SETS)]
    names = [day_names(listed) or "daily" for listed in days]
    return np.array([f"{name} {hour:02}:00" for hour in range(DAY_HOURS) for name in names], object)


@lru_cache(maxsize=4096)
def _rare(weeks: int, slot: int) -> str:
    return _of_one(Schedule(weeks, (slot,)))[0]


def _of_one(schedule: Schedule) -> list[str]:
    if schedule.every_hours:
        return [f"every {period(schedule.every_hours)}"]
    return [" ".join(time) for time in groups.times_of(schedule)]
