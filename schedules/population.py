"""Describe the targets to plan, without their history, as a whole or in shards.

A population has their sites, groups, weights, costs and limits. A shard has the targets whose keys
are in one range, so that several processes or machines can plan one population. A step is a
function of a shard; it may set attributes of the shard, and returns little: sums, or a limited
number of rows. Shards are in the order of their keys, so a computation in the order of all keys
goes through one shard after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Concatenate, Generic, NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from schedules.calendar import HOUR, WallClock
from schedules.history import DAY_HOURS, Floats, Ints
from schedules.schedule import FEED_CYCLES, WEEK_DAYS, WEEK_HOURS

PER_TARGET = ("key", "site", "group", "weight", "cost", "min_hours", "max_hours")
# 1970-01-01 was a Thursday. Weeks are counted from the following Monday.
MONDAY_HOURS = 96

Keys = NDArray[np.uint64]
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
Own = Sequence[tuple[Any, ...]]


class Walls(NamedTuple):
    """Hold the wall clocks of z zones over h hours.

    base:  first hour, counted since 1970 (UTC)
    hours: (z, h) wall hour since Monday 1970-01-05 at the start of each UTC hour from `base`
    """

    base: int
    hours: NDArray[np.int64]


def walls_of(zones: tuple[ZoneInfo, ...], since_hours: float, until_hours: float) -> Walls:
    """Return the wall clocks of zones over a period given in hours since 1970 (UTC)."""
    base = int(np.floor(since_hours)) - 1
    at = (base + np.arange(int(np.ceil(until_hours)) + 2 - base)) * HOUR
    clocks = [WallClock.of(zone, int(at[0]), int(at[-1])).wall(at) // HOUR for zone in zones]
    return Walls(base, np.array(clocks, np.int64))


@dataclass(frozen=True)
class Population:
    """Describe n targets in p groups and s sites.

    key:                  (n,) stable pseudorandom number of each target, used to break ties and to
                          sample
    site:                 (n,) 0 to s - 1
    group:                (n,) 0 to p - 1
    parent:               (p,) site of each group
    zones:                of each site
    open_hours:           (s, 168) visiting hours in the local week
    weight:               (n,) importance
    cost:                 (n,) relative cost of a request
    min_hours, max_hours: (n,) shortest and longest interval between two visits
    site_day:             (s,) maximum requests to each site per UTC day; inf: no cap
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
    walls: Walls

    def __len__(self) -> int:
        return len(self.key)

    @property
    def sites(self) -> int:
        """Return the number of sites."""
        return len(self.zones)

    @cached_property
    def closed(self) -> Floats:
        """Return the (s, 168) surcharges of hours alone: inf for closed hours, else 0."""
        return np.where(self.open_hours, 0.0, np.inf)

    @cached_property
    def zone(self) -> Ints:
        """Return the (s,) row of each site's zone in `walls`."""
        distinct = list(dict.fromkeys(self.zones))
        return np.array([distinct.index(zone) for zone in self.zones], np.int64)

    def ahead(self, now_hours: float) -> Ints:
        """Return the (s,) hours by which each site's wall clock is ahead of UTC, rounded up.

        Subtracting this number from a full local hour gives the UTC hour in which it is reached.
        """
        hour = int(np.floor(now_hours))
        at = np.array([hour * HOUR])
        zones = dict.fromkeys(self.zones)
        walls = [WallClock.of(zone, int(at[0]), int(at[0])).wall(at)[0] for zone in zones]
        ahead: Ints = -(((hour - MONDAY_HOURS) * HOUR - np.array(walls, np.int64)) // HOUR)
        return ahead[self.zone]

    def of(self, rows: Ints | slice) -> Population:
        """Return the population of some of the targets."""
        own = {name: getattr(self, name)[rows] for name in PER_TARGET}
        return replace(self, **own)

    @classmethod
    def joined(cls, populations: Sequence[Population]) -> Population:
        """Return all targets of populations that have the same groups and sites."""
        own: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in populations])
            for name in PER_TARGET
        }
        return replace(populations[0], **own)


def least_visits(population: Population) -> Floats:
    """Return the (n,) visits a week that keep each target's longest interval."""
    # FEED_CYCLES contains the shorter cycles of pages, too.
    cycles = np.array(FEED_CYCLES[::-1])
    place = np.searchsorted(cycles, population.max_hours / WEEK_HOURS, "right")
    weeks = cycles[np.maximum(place - 1, 0)]
    often = np.ceil(WEEK_HOURS / np.maximum(population.max_hours, 1))
    result: Floats = np.where(population.max_hours >= WEEK_HOURS, 1 / weeks, often)
    return result


def shortest_hours(population: Population) -> Floats:
    """Return the (n,) shortest intervals, shortened where the longest one could not be kept.

    The intervals of a schedule add up to whole weeks. None of 200 to 300 hours do, and neither do
    90 to 100 hours. The longest interval then decides, because a visit is never later than that.
    """
    cycle = WEEK_HOURS / least_visits(population)
    # Slots are whole hours.
    visits = np.ceil(WEEK_HOURS / np.maximum(np.floor(population.max_hours), 1))
    possible = np.where(population.max_hours >= WEEK_HOURS, cycle, np.floor(WEEK_HOURS / visits))
    result: Floats = np.minimum(population.min_hours, possible)
    return result


def min_per_day(population: Population) -> float:
    """Return the requests a day that keep every target's longest interval."""
    return float(least_visits(population).sum() / WEEK_DAYS)


# Tolerance for 20 minutes, which floating-point hours cannot represent exactly.
ALMOST = 1e-9


def polls_per_day(every_hours: float) -> int:
    """Return the maximum number of polls of one page on one day. `every_hours` must be positive."""
    return math.ceil(DAY_HOURS / every_hours - ALMOST)


def pages_at_once(requests_per_day: float, every_hours: float) -> int:
    """Return the number of pages that a daily number of requests can poll concurrently."""
    return int(requests_per_day / polls_per_day(every_hours) + ALMOST)


def joining_order(key: Keys, stratum: Ints) -> Ints:
    """Return the (n,) pages in the order in which they join a sample.

    key:     (n,) stable pseudorandom number of each page
    stratum: (n,) stratum of each page, >= 0

    The first pages are one of each stratum, largest strata first. The remaining seats follow
    Webster's method, so that after any number of pages each stratum has its proportional share,
    rounded.
    """
    by_stratum = np.lexsort((key, stratum))
    size = np.bincount(stratum)
    rank = np.empty(len(key), np.int64)
    rank[by_stratum] = np.arange(len(key)) - np.repeat(np.cumsum(size) - size, size)
    claim = size[stratum] / (2 * rank + 1)
    return np.lexsort((key, -claim, rank > 0))


def rotations_of(key: Keys, stratum: Ints, at_once: int) -> Ints:
    """Return the (n,) turn of each page of a sample, from 0, with at most `at_once` >= 1 per turn.

    Every turn except one has the same number of pages, and each has the same share of each stratum.
    """
    count = -(-len(key) // at_once)
    turn = np.empty(len(key), np.int64)
    turn[np.lexsort((key, stratum))] = np.arange(len(key)) % max(count, 1)
    return turn


def phases(key: Keys, turn: Ints, every_hours: float) -> Floats:
    """Return the (n,) offset of each page in [0, every_hours), evenly spread within its turn."""
    order = np.lexsort((key, turn))
    size = np.bincount(turn)
    place = np.empty(len(key), np.int64)
    place[order] = np.arange(len(key)) - np.repeat(np.cumsum(size) - size, size)
    return every_hours * place / size[turn]


class Shards(Protocol[S_co]):
    """Run steps on shards."""

    def __len__(self) -> int: ...

    def each(
        self, step: Callable[Concatenate[S_co, ...], R], *common: Any, own: Own | None = None
    ) -> list[R]:
        """Run a step on all shards, in any order, and return its results in their order.

        common: arguments after the shard
        own:    further arguments of each shard
        """

    def one(self, number: int, step: Callable[Concatenate[S_co, ...], R], *args: Any) -> R:
        """Run a step on one shard."""


class InMemory(Generic[S]):
    """Hold shards in memory, and run steps one after the other."""

    def __init__(self, shards: Sequence[S]) -> None:
        self.shards = shards

    def __len__(self) -> int:
        return len(self.shards)

    def each(
        self, step: Callable[Concatenate[S, ...], R], *common: Any, own: Own | None = None
    ) -> list[R]:
        """Run a step on all shards."""
        more = [()] * len(self) if own is None else own
        return [step(shard, *common, *args) for shard, args in zip(self.shards, more, strict=True)]

    def one(self, number: int, step: Callable[Concatenate[S, ...], R], *args: Any) -> R:
        """Run a step on one shard."""
        return step(self.shards[number], *args)


def shard_of(key: NDArray[np.uint64], count: int) -> Ints:
    """Return the (n,) shard of each target: `count` ranges of keys, equally long."""
    half = np.uint64(32)
    number: Ints = ((key >> half) * np.uint64(count) >> half).astype(np.int64)
    return number
