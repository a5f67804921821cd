"""Which pages to poll while the planner learns, and when: a few stand for all.

A sample has every stratum (a kind and category) in proportion, at least one page of each, and who
is in it depends on the pages alone: a larger sample holds the smaller one. Where not all of a
sample can be polled at a time, its pages take turns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from schedules.history import DAY_HOURS, Floats, Ints

Keys = NDArray[np.uint64]
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
