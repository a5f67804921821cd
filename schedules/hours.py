"""Caps of the hour: visits of a full hour go to others near by that have room.

An hour more or less costs a visit little, so hours have no price as days have: each visit goes to
the nearest hour that the caps, the site's open hours and the target's intervals allow. What a
target has at present is left alone unless a move brings it nearer to what was drawn: a plan that
was levelled yesterday is not levelled in another way today.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.caps import Caps
from schedules.compiled import compiled
from schedules.history import Flags, Floats, Ints
from schedules.population import Population
from schedules.schedule import ROUND_WEEKS, WEEK_HOURS, Schedules, chosen_of, replace_slots

# Loads are whole numbers, so that their sums know no order: a weekly visit is so many parts, a
# rarer one fewer.
PARTS = ROUND_WEEKS
UNCAPPED = 2**62
# A visit before its best hour misses what changes until then: it loses as much as if it came so
# many times later.
EARLIER = 4
# Other hours have to save so much of the way to those drawn to be worth a move.
DEAD_BAND = 0.5
# Where one target leaves, another may come.
ROUNDS = 3
# A site that needs more than this share of the hours it has cannot wait for what others leave.
CROWDED = 0.5


class _Room(NamedTuple):
    """What is left, in parts, and where visits may go.

    common: (168,) in hours of the UTC week   own: (s, 168) of each site
    opened: (s, 168) of the local week
    """

    common: Ints
    own: NDArray[np.int64]
    opened: Flags


class _Targets(NamedTuple):
    """Of n targets: (n + 1,) offsets into slots, hours of the cycle, site, hours ahead of UTC.

    least, most: (n,) hours between two visits
    """

    first: Ints
    cycle: Ints
    site: Ints
    ahead: Ints
    least: Floats
    most: Floats


class _Target(NamedTuple):
    """One of them. part: what a visit takes of an hour."""

    part: int
    cycle: int
    site: int
    ahead: int
    least: float
    most: float


def levelled(
    drawn: Schedules, present: Schedules, population: Population, caps: Caps, ahead: Ints
) -> Schedules:
    """The schedules drawn, with no UTC hour of the week over its caps, as far as there is room.

    present: what targets follow now   ahead: (s,) hours that each site's clock is ahead of UTC
    """
    targets, present = _targets(drawn, population, ahead), _in_the_same_week(present, drawn)
    slots = drawn.slots.astype(np.int64)
    had = (drawn.weeks == present.weeks) & (np.diff(drawn.first) == np.diff(present.first))
    had &= _allowed(targets, population.open_hours, present.first, present.slots, had)
    begun = chosen_of(had, present, drawn).slots.astype(np.int64)
    # Who is new is asked last.
    order, room = np.lexsort((population.key, ~had)), _room(caps, population.open_hours)
    first = _crowded(room, targets)[targets.site[order]]
    for some in (order[first], order[~first]):
        _level(room, targets, slots, begun, some)
    return replace(drawn, slots=begun.astype(np.uint16))


def _targets(drawn: Schedules, population: Population, ahead: Ints) -> _Targets:
    """Their limits are no tighter than those that the drawn schedules keep."""
    cycle, site = drawn.weeks.astype(np.int64) * WEEK_HOURS, population.site
    least, most = np.maximum(population.min_hours, 1.0), population.max_hours.copy()
    targets = _Targets(drawn.first, cycle, site, ahead[site], least, most)
    _loosen(targets, drawn.slots)
    return targets


def _room(caps: Caps, opened: Flags) -> _Room:
    common, own = np.full(WEEK_HOURS, caps.hour), np.repeat(caps.site_hour, WEEK_HOURS)
    return _Room(_parts(common), _parts(own).reshape(opened.shape), opened)


def _parts(cap: Floats) -> Ints:
    parts = np.minimum(cap * PARTS * (1 + 1e-9), UNCAPPED)
    return np.floor(parts).astype(np.int64)


def _crowded(room: _Room, t: _Targets) -> Flags:
    """(s,) whether a site needs much of what its own cap leaves to it."""
    needed = PARTS * WEEK_HOURS // t.cycle * np.diff(t.first)
    has = np.where(room.opened, room.own.astype(np.float64), 0).sum(1)
    crowded: Flags = np.bincount(t.site, needed, len(has)) > CROWDED * has
    return crowded


def _in_the_same_week(present: Schedules, drawn: Schedules) -> Schedules:
    """Single slots in the week nearest to the drawn one: which week it is, others decide."""
    single = (np.diff(present.first) == 1) & (np.diff(drawn.first) == 1)
    rows = np.flatnonzero(single & (present.weeks == drawn.weeks))
    wanted = drawn.slots[drawn.first[rows]].astype(np.int64)
    shift = present.slots[present.first[rows]] - wanted + WEEK_HOURS // 2
    slots = wanted + shift % WEEK_HOURS - WEEK_HOURS // 2
    return replace_slots(present, rows, slots % (drawn.weeks[rows].astype(np.int64) * WEEK_HOURS))


@compiled
def _loosen(t: _Targets, slots: NDArray[np.uint16]) -> None:
    for i in range(len(t.cycle)):
        for j in range(t.first[i], t.first[i + 1]):
            gap = _gap(slots, j, t.first[i], t.first[i + 1], t.cycle[i])
            t.least[i], t.most[i] = min(t.least[i], gap), max(t.most[i], gap)


@compiled
def _gap(slots: NDArray[np.uint16], j: int, begin: int, end: int, cycle: int) -> int:
    """Hours from slot j of those from `begin` to `end` to the next."""
    later = int(slots[j + 1]) if j + 1 < end else int(slots[begin]) + cycle
    return later - int(slots[j])


@compiled
def _allowed(
    t: _Targets, opened: Flags, first: Ints, slots: NDArray[np.uint16], asked: Flags
) -> Flags:
    """(n,) which of those asked for keep their limits with such slots."""
    allowed = asked.copy()
    for i in np.flatnonzero(asked):
        for j in range(first[i], first[i + 1]):
            gap = _gap(slots, j, first[i], first[i + 1], t.cycle[i])
            allowed[i] &= opened[t.site[i], slots[j] % WEEK_HOURS]
            allowed[i] &= t.least[i] <= gap <= t.most[i]
    return allowed


@compiled
def _level(room: _Room, t: _Targets, drawn: Ints, slots: Ints, order: Ints) -> None:
    """Change slots, in place, from those at the beginning to others nearer to those drawn."""
    placed = np.zeros(len(slots), np.bool_)
    for i in order:
        begin, end = t.first[i], t.first[i + 1]
        _take(room, _target(t, i), slots[begin:end], placed[begin:end])
    for _ in range(ROUNDS):
        moved = False
        for i in order:
            begin, end = t.first[i], t.first[i + 1]
            wanted, had, fine = drawn[begin:end], slots[begin:end], placed[begin:end]
            if not (np.all(fine) and np.all(wanted == had)):
                moved |= _moved(room, _target(t, i), wanted, had, fine)
        if not moved:
            break


@compiled
def _target(t: _Targets, i: int) -> _Target:
    part = PARTS * WEEK_HOURS // t.cycle[i]
    return _Target(part, t.cycle[i], t.site[i], t.ahead[i], t.least[i], t.most[i])


@compiled
def _moved(room: _Room, one: _Target, drawn: Ints, slots: Ints, placed: Flags) -> bool:
    """Whether there was room for a target nearer to what was drawn; it has it then."""
    _add(room, one, slots[placed], one.part)
    tried, found = drawn.copy(), np.zeros(len(drawn), np.bool_)
    _take(room, one, tried, found)
    _spread(room, one, tried, found)
    gained = int(np.sum(found)) - int(np.sum(placed))
    far, was = _distance(drawn, tried, one.cycle), _distance(drawn, slots, one.cycle)
    if gained > 0 or (gained == 0 and far < (1 - DEAD_BAND) * was):
        order = np.argsort(tried)
        slots[:], placed[:] = tried[order], found[order]
        return True
    _add(room, one, tried[found], one.part)
    _add(room, one, slots[placed], -one.part)
    return False


@compiled
def _spread(room: _Room, one: _Target, slots: Ints, placed: Flags) -> None:
    """Take the nearest room for each slot that has found none."""
    for j in range(len(slots)):
        if not placed[j]:
            way = _way(room, one, slots, j)
            slots[j], placed[j] = (slots[j] + way) % one.cycle, way != 0
            if placed[j]:
                _add(room, one, slots[j : j + 1], -one.part)


@compiled
def _take(room: _Room, one: _Target, slots: Ints, placed: Flags) -> None:
    """Take the room that slots need, and mark those that found it."""
    for j in range(len(slots)):
        placed[j] = _fits(room, one, slots[j])
        if placed[j]:
            _add(room, one, slots[j : j + 1], -one.part)


@compiled
def _fits(room: _Room, one: _Target, slot: int) -> bool:
    hour = (slot - one.ahead) % WEEK_HOURS
    return bool(min(room.common[hour], room.own[one.site, hour]) >= one.part)


@compiled
def _add(room: _Room, one: _Target, slots: Ints, part: int) -> None:
    for slot in slots:
        hour = (slot - one.ahead) % WEEK_HOURS
        room.common[hour] += part
        room.own[one.site, hour] += part


@compiled
def _way(room: _Room, one: _Target, slots: Ints, j: int) -> int:
    """Hours from slot j to the nearest room, < 0: earlier; 0: none."""
    later, earlier = _search(room, one, slots, j, 1), _search(room, one, slots, j, -1)
    return later if earlier == 0 or 0 < later <= EARLIER * earlier else -earlier


@compiled
def _search(room: _Room, one: _Target, slots: Ints, j: int, step: int) -> int:
    """How many steps from slot j there is room in an open hour that keeps limits; 0: nowhere."""
    for way in range(1, WEEK_HOURS):
        at = slots[j] + step * way
        opened = room.opened[one.site, at % WEEK_HOURS]
        if opened and _fits(room, one, at) and _keeps_limits(one, slots, j, at):
            return way
    return 0


@compiled
def _keeps_limits(one: _Target, slots: Ints, j: int, at: int) -> bool:
    """Whether intervals are still neither too short nor too long with slot j at another hour."""
    before, after = _neighbours(one.cycle, slots, j, at)
    left, right = _neighbours(one.cycle, slots, j, slots[j])
    between = (at - slots[j]) % one.cycle < right or (slots[j] - at) % one.cycle < left
    longest = max(before, after) if between else max(before, after, left + right)
    return one.least <= min(before, after) and longest <= one.most


@compiled
def _neighbours(cycle: int, slots: Ints, j: int, at: int) -> tuple[int, int]:
    """Hours from the slot before an hour, and to the one after it, slot j left out."""
    before, after = cycle, cycle
    for k in range(len(slots)):
        if k != j:
            before = min(before, (at - slots[k]) % cycle)
            after = min(after, (slots[k] - at) % cycle)
    return before, after


@compiled
def _distance(drawn: Ints, slots: Ints, cycle: int) -> int:
    """Hours from the slots drawn to others, in pairs that keep the order and are nearest."""
    n, least = len(drawn), UNCAPPED
    for turn in range(n):
        total = 0
        for j in range(n):
            later = (slots[(j + turn) % n] - drawn[j]) % cycle
            total += min(later, EARLIER * (cycle - later))
        least = min(least, total)
    return least
