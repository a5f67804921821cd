"""Place the fetches of one feed, each in the hour that saves the most posts and waiting time.

The hours of a plan are an axis from Monday 00:00. `begin` is the first fetch of a cycle and `end`
the first fetch of the next cycle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.compiled import compiled
from schedules.feeds.post_rates import Table, looked_up
from schedules.history import Flags, Floats, Ints
from schedules.placement.placement import allowed, next_gap
from schedules.schedule import WEEK_HOURS

# Long intervals are searched in this many steps, then around the best step.
STEPS = 72
SWEEPS = 4
# An interval starts in the first week; `interval_posts` reads at most two more weeks.
AXIS_HOURS = 3 * WEEK_HOURS
NO_FETCH = -1


class Course(NamedTuple):
    """Hold the expected posts of a feed along its axis of hours.

    mass:  (h,) posts up to each hour
    lever: (h,) sum of the posts up to each hour, each times its hour
    table: losses of intervals
    delay: cost of one hour of waiting of one post, in missed posts
    """

    mass: Floats
    lever: Floats
    table: Table
    delay: float


class Room(NamedTuple):
    """Limit where fetches may be placed.

    begin, end:           of the axis
    open_hours:           (168,)
    min_hours, max_hours: shortest and longest interval between two fetches
    """

    begin: int
    end: int
    open_hours: Flags
    min_hours: float
    max_hours: float


@compiled
def course(profile: Floats, per_week: float) -> tuple[Floats, Floats]:
    """Return (AXIS_HOURS + 1,) mass and lever from Monday 00:00. profile: (168,) sums to 1."""
    mass, lever = np.empty(AXIS_HOURS + 1), np.empty(AXIS_HOURS + 1)
    mass[0] = lever[0] = 0.0
    hour = 0
    for t in range(AXIS_HOURS):
        posts = per_week * profile[hour]
        mass[t + 1] = mass[t] + posts
        lever[t + 1] = lever[t] + posts * (t + 0.5)
        hour = hour + 1 if hour + 1 < WEEK_HOURS else 0
    return mass, lever


@compiled
def interval_cost(c: Course, a: int, n: int) -> float:
    """Return the cost of the interval between fetches at `a` and `n`, in missed posts.

    Posts that are not missed add the cost of their waiting time.
    """
    posts, wait = interval_posts(c.mass, c.lever, a, n)
    lost, share = looked_up(c.table.lost, c.table.wait, c.table.top, posts)
    return lost + c.delay * share * wait


@compiled
def interval_posts(mass: Floats, lever: Floats, a: int, n: int) -> tuple[float, float]:
    """Return the posts of the hours from `a` to `n`, and the sum of their waiting hours until `n`.

    All weeks are identical, so further whole weeks are computed, not looked up.
    """
    weeks = max((n - a) // WEEK_HOURS, 0)
    b = n - weeks * WEEK_HOURS
    posts: float = mass[b] - mass[a]
    wait: float = b * posts - (lever[b] - lever[a])
    if weeks:
        end = b + WEEK_HOURS
        of_week = mass[end] - mass[b]
        of_week_waits = end * of_week - (lever[end] - lever[b])
        wait += weeks * (WEEK_HOURS * posts + of_week_waits)
        wait += of_week * WEEK_HOURS * weeks * (weeks - 1) / 2
        posts += weeks * of_week
    return posts, wait


@compiled
def _split(c: Course, room: Room, a: int, z: int, n: int) -> float:
    """Return the cost of the hours from `a` to `n` with a fetch at `z`."""
    return _search(c, room, a, n, z, z, 1)[0]


@compiled
def _search(
    c: Course, room: Room, a: int, n: int, first: int, last: int, stride: int
) -> tuple[float, int]:
    """Return the lowest cost of the hours from `a` to `n` with a fetch in between, and its hour."""
    # Copy to locals, because taking an array out of a tuple costs as much as all other operations.
    mass, lever, lost, wait = c.mass, c.lever, c.table.lost, c.table.wait
    top, delay, is_open = c.table.top, c.delay, room.open_hours
    cost, where = np.inf, NO_FETCH
    before, early, after, late = mass[a], lever[a], mass[n], lever[n]
    for z in range(first, last + 1, stride):
        if not is_open[z % WEEK_HOURS]:
            continue
        posts, later = mass[z] - before, after - mass[z]
        gone, share = looked_up(lost, wait, top, posts)
        split = gone + delay * share * (z * posts - (lever[z] - early))
        gone, share = looked_up(lost, wait, top, later)
        split += gone + delay * share * (n * later - (late - lever[z]))
        if split < cost:
            cost, where = split, z
    return cost, where


@compiled
def best_split(c: Course, room: Room, a: int, n: int) -> tuple[float, int]:
    """Return the saving and the hour of the best fetch between `a` and `n`; NO_FETCH if none."""
    first, last = allowed(a, n, room.min_hours, room.max_hours)
    stride = max(1, (last - first) // STEPS)
    cost, where = _search(c, room, a, n, first, last, stride)
    if stride > 1 and where >= 0:
        low, high = max(first, where - stride + 1), min(last, where + stride - 1)
        cost, where = _search(c, room, a, n, low, high, 1)
    if where < 0 and n - a > room.max_hours:
        # Fall back to the last open hour that the longest interval after `a` allows.
        least = max(1, int(np.ceil(room.min_hours)))
        for z in range(min(a + int(room.max_hours), n - least), a + least - 1, -1):
            if room.open_hours[z % WEEK_HOURS]:
                where = z
                break
        cost = np.inf if where < 0 else _split(c, room, a, where, n)
    return interval_cost(c, a, n) - cost, where


@compiled
def insert(c: Course, room: Room, least: float, most: int) -> tuple[Floats, Ints, int, bool]:
    """Insert up to `most` fetches, one at a time, while each saves more than `least`.

    Returns the saving and the hour of each fetch in the order of insertion, the number of fetches
    that the longest interval requires, and whether no further fetch fits.
    """
    at, where = np.empty(most + 2, np.int64), np.empty(most + 2, np.int64)
    gain, saved = np.empty(most + 2), np.empty(most)
    order = np.empty(most, np.int64)
    at[0], at[1] = room.begin, room.end
    gain[0], where[0] = best_split(c, room, at[0], at[1])
    count, needed = 0, 0
    i = next_gap(at, gain, where, 1, room.max_hours)
    while i >= 0 and count < most:
        forced = at[i + 1] - at[i] > room.max_hours
        if not forced and gain[i] <= least:
            break
        saved[count], order[count] = gain[i], where[i]
        count += 1
        needed = count if forced else needed
        for j in range(count, i, -1):
            at[j + 1] = at[j]
            gain[j], where[j] = gain[j - 1], where[j - 1]
        at[i + 1] = order[count - 1]
        gain[i], where[i] = best_split(c, room, at[i], at[i + 1])
        gain[i + 1], where[i + 1] = best_split(c, room, at[i + 1], at[i + 2])
        i = next_gap(at, gain, where, count + 1, room.max_hours)
    return saved[:count], order[:count], needed, i < 0


@compiled
def refine(c: Course, room: Room, fetches: Ints) -> Ints:
    """Move each fetch to the best hour between its neighbors, SWEEPS times; return them sorted."""
    at = np.empty(len(fetches) + 2, np.int64)
    at[0], at[-1], at[1:-1] = room.begin, room.end, np.sort(fetches)
    for _ in range(SWEEPS):
        moved = False
        for j in range(1, len(at) - 1):
            a, z, n = at[j - 1], at[j], at[j + 1]
            saved, where = best_split(c, room, a, n)
            now = interval_cost(c, a, n) - _split(c, room, a, z, n)
            if where >= 0 and saved > now + 1e-12 and where != z:
                at[j], moved = where, True
        if not moved:
            break
    return at[1:-1].copy()
