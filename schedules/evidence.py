"""What the past of a target says: in which hours of the week it changed, and how often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.compiled import compiled
from schedules.history import DAY_HOURS, Floats, Ints
from schedules.schedule import WEEK_HOURS

BURST_HOURS = 24.0
# An interval of a week and more says nothing about the hour.
BLURRED_HOURS = 168.0
# The least expected exposure of an interval that saw a change, in weeks: some seconds.
LEAST_WEEKS = 1e-5


class Past(NamedTuple):
    """History of one target as the kernels take it, in hours since 1970 (UTC); after, by: (c,)."""

    since: float
    until: float
    after: Floats
    by: Floats


class Wall(NamedTuple):
    """Wall clock of one zone: hours[k] is the wall hour at the start of UTC hour `base` + k."""

    base: int
    hours: Ints


@compiled
def hour_counts(past: Past, wall: Wall, spread: Floats) -> Floats:
    """(168,) changes by hour of the local week; those of one day count as one together.

    spread: (168,) a change is shared out over the hours in which it may have happened, like this
    """
    counts = np.zeros(WEEK_HOURS)
    i = 0
    while i < len(past.by):
        day, end = _day(past.by[i], wall), i + 1
        while end < len(past.by) and _day(past.by[end], wall) == day:
            end += 1
        for j in range(i, end):
            _share_out(past.after[j], past.by[j], wall, spread, 1.0 / (end - i), counts)
        i = end
    return counts


@compiled
def _day(at: float, wall: Wall) -> int:
    """The local day, as a number."""
    day: int = wall.hours[int(np.floor(at)) - wall.base] // DAY_HOURS
    return day


@compiled
def _share_out(
    after: float, by: float, wall: Wall, spread: Floats, weight: float, counts: Floats
) -> None:
    if by - after >= BLURRED_HOURS:
        return
    first, last = int(np.floor(after)), int(np.ceil(by)) - 1
    total = 0.0
    for hour in range(first, last + 1):
        inside = min(by, hour + 1) - max(after, hour)
        total += inside * spread[wall.hours[hour - wall.base] % WEEK_HOURS]
    if total <= 0:
        return
    # A wide interval says little: it counts by the share of the week that it leaves out.
    weight *= (1 - (by - after) / BLURRED_HOURS) / total
    for hour in range(first, last + 1):
        inside = min(by, hour + 1) - max(after, hour)
        h = wall.hours[hour - wall.base] % WEEK_HOURS
        counts[h] += weight * inside * spread[h]


@compiled
def even_counts(past: Past, wall: Wall, total: float) -> Floats:
    """(168,) what `total` changes would be like if they came evenly while the target was watched.

    A past of ten days has seen three weekdays twice. An hour counts as it was on the wall clock,
    so that a day of 23 or 25 hours is one of 23 or 25.
    """
    seen = np.zeros(WEEK_HOURS)
    first, last = int(np.floor(past.since)) - wall.base, int(np.floor(past.until)) - wall.base
    if last <= first:
        return seen + total / WEEK_HOURS
    share, whole = total / (last - first), (last - first) // WEEK_HOURS
    # Whole weeks without a change of the clock hold each hour as often as any other.
    if wall.hours[first + whole * WEEK_HOURS] - wall.hours[first] == whole * WEEK_HOURS:
        seen += whole * share
        first += whole * WEEK_HOURS
    hour = wall.hours[first] % WEEK_HOURS
    for t in range(first, last):
        seen[hour] += share
        hour += wall.hours[t + 1] - wall.hours[t]
        if hour < 0 or hour >= WEEK_HOURS:
            hour %= WEEK_HOURS
    return seen


@compiled
def running(profile: Floats) -> Floats:
    """(169,) running sum of a profile."""
    mass = np.zeros(WEEK_HOURS + 1)
    for h in range(WEEK_HOURS):
        mass[h + 1] = mass[h] + profile[h]
    return mass


@compiled
def exposure(mass: Floats, wall: Wall, begin: float, end: float) -> float:
    """Weeks of expected change between two moments: as much of a week as the profile has there."""
    weeks = 0.0
    for at, sign in ((end, 1.0), (begin, -1.0)):
        hour = int(np.floor(at))
        week, h = divmod(wall.hours[hour - wall.base], WEEK_HOURS)
        weeks += sign * (week + mass[h] + (at - hour) * (mass[h + 1] - mass[h]))
    return weeks


@compiled
def log_likelihood(past: Past, mass: Floats, wall: Wall, rates: Floats) -> Floats:
    """(g,) log likelihood of the past under each rate (changes a week).

    Looks within a day are taken together: a burst of edits is one change. A span e that saw a
    change has the likelihood 1 - e^(-r e), one that saw none e^(-r e).
    """
    result = np.zeros(len(rates))
    silent, begin, i = 0.0, past.since, 0
    while i < len(past.by):
        days = np.floor((past.after[i] - begin) / BURST_HOURS)
        if days > 0:
            silent += exposure(mass, wall, begin, begin + days * BURST_HOURS)
            begin += days * BURST_HOURS
        if past.by[i] > begin + BURST_HOURS:
            # The change is not of this day alone, and it is known that it was not before `after`.
            silent += max(exposure(mass, wall, begin, past.after[i]), 0.0)
            begin = max(begin, past.after[i])
        end = max(past.by[i], min(begin + BURST_HOURS, past.until))
        span = max(exposure(mass, wall, begin, end), LEAST_WEEKS)
        for g in range(len(rates)):
            result[g] += np.log(-np.expm1(-rates[g] * span))
        begin = end
        # What is left of a change that began before this is no second one.
        while i < len(past.by) and past.by[i] <= begin:
            i += 1
    if past.until > begin:
        silent += exposure(mass, wall, begin, past.until)
    for g in range(len(rates)):
        result[g] -= rates[g] * silent
    return result
