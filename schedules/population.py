"""The targets to be planned, without their pasts: where they belong, what they weigh."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from schedules.calendar import HOUR, WallClock
from schedules.history import DAY_HOURS, Floats, Ints

PER_TARGET = ("key", "site", "group", "weight", "cost", "min_hours", "max_hours")
# 1970 began on a Thursday; weeks are counted from the Monday after.
MONDAY_HOURS = 96

Keys = NDArray[np.uint64]


class Walls(NamedTuple):
    """Wall clocks of z zones over h hours.

    base: the first hour since 1970 (UTC)
    hours: (z, h) wall hour since Monday 1970-01-05 at the start of each UTC hour from `base` on
    """

    base: int
    hours: NDArray[np.int64]


def walls_of(zones: tuple[ZoneInfo, ...], since_hours: float, until_hours: float) -> Walls:
    """The wall clocks of zones from one moment to another (hours since 1970, UTC)."""
    base = int(np.floor(since_hours)) - 1
    at = (base + np.arange(int(np.ceil(until_hours)) + 2 - base)) * HOUR
    clocks = [WallClock.of(zone, int(at[0]), int(at[-1])).wall(at) // HOUR for zone in zones]
    return Walls(base, np.array(clocks, np.int64))


@dataclass(frozen=True)
class Population:
    """n targets in p groups of s sites.

    key:    (n,) a number that stays with the target, for choices that are to look random
    site:   (n,) 0 to s - 1       group: (n,) 0 to p - 1      parent: (p,) site of each group
    zones:  of each site          open_hours: (s, 168) hours of the local week for visits
    weight: (n,) importance       cost: (n,) of a request
    min_hours, max_hours: (n,) between two visits
    site_day, site_hour: (s,) requests at most to each site on a UTC day, in an hour; inf: no cap
    """

    key: Keys
    site: Ints
    group: Ints
    parent: Ints
    zones: tuple[ZoneInfo, ...]
    open_hours: NDArray[np.bool_]
    weight: Floats
    cost: Floats
    min_hours: Floats
    max_hours: Floats
    site_day: Floats
    site_hour: Floats
    walls: Walls

    def __len__(self) -> int:
        return len(self.key)

    @property
    def sites(self) -> int:
        """How many sites there are."""
        return len(self.zones)

    @cached_property
    def zone(self) -> Ints:
        """(s,) row of each site's zone in `walls`."""
        distinct = list(dict.fromkeys(self.zones))
        return np.array([distinct.index(zone) for zone in self.zones], np.int64)

    def ahead(self, now_hours: float) -> Ints:
        """(s,) hours that the wall clock of each site is ahead of UTC, rounded up.

        So a full local hour less this is the hour of UTC in which it is reached.
        """
        hour = int(np.floor(now_hours))
        at = np.array([hour * HOUR])
        zones = dict.fromkeys(self.zones)
        walls = [WallClock.of(zone, int(at[0]), int(at[0])).wall(at)[0] for zone in zones]
        ahead: Ints = -(((hour - MONDAY_HOURS) * HOUR - np.array(walls, np.int64)) // HOUR)
        return ahead[self.zone]

    def of(self, rows: Ints) -> Population:
        """Some of the targets."""
        own = {name: getattr(self, name)[rows] for name in PER_TARGET}
        return replace(self, **own)


# Twenty minutes are not a whole number of binary hours.
ALMOST = 1e-9


def polls_per_day(every_hours: float) -> int:
    """Polls of one page on one day at most; `every_hours` > 0."""
    return math.ceil(DAY_HOURS / every_hours - ALMOST)


def pages_at_once(requests_per_day: float, every_hours: float) -> int:
    """Pages that so many requests can poll at a time."""
    return int(requests_per_day / polls_per_day(every_hours) + ALMOST)


def joining_order(key: Keys, stratum: Ints) -> Ints:
    """(n,) the pages in the order in which they join a sample.

    key:     (n,) a number of each page that looks random and stays the same
    stratum: (n,) where each page belongs, >= 0

    First one of each stratum, of the largest first; then seats are given by Webster's method, so
    that after any number of pages each stratum has its share, rounded.
    """
    by_stratum = np.lexsort((key, stratum))
    size = np.bincount(stratum)
    rank = np.empty(len(key), np.int64)
    rank[by_stratum] = np.arange(len(key)) - np.repeat(np.cumsum(size) - size, size)
    claim = size[stratum] / (2 * rank + 1)
    return np.lexsort((key, -claim, rank > 0))


def turns_of(key: Keys, stratum: Ints, at_once: int) -> Ints:
    """(n,) which turn each page of a sample has, from 0 on; `at_once` >= 1 pages in each at most.

    All turns have the same number of pages, but for one, and the same share of each stratum.
    """
    count = -(-len(key) // at_once)
    turn = np.empty(len(key), np.int64)
    turn[np.lexsort((key, stratum))] = np.arange(len(key)) % max(count, 1)
    return turn


def phases(key: Keys, turn: Ints, every_hours: float) -> Floats:
    """(n,) hours in [0, every_hours): the place of each page in the grid, evenly in its turn."""
    order = np.lexsort((key, turn))
    size = np.bincount(turn)
    place = np.empty(len(key), np.int64)
    place[order] = np.arange(len(key)) - np.repeat(np.cumsum(size) - size, size)
    return every_hours * place / size[turn]
