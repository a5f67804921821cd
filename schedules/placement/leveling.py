"""Enforce hourly caps: move visits out of full hours, one target after another.

Hours have no surcharge, because an hour more or less costs a visit little: each visit moves to the
nearest hour that the caps, the site's visiting hours and the target's intervals allow. Current
slots stay unless a move brings them closer to the slots of the draft (the drawn slots), so that a
replan does not level an already leveled plan differently.

Room that one target takes is not available to the next, so targets are processed in the order of
their keys. Each shard passes the remaining room on to the next one, in several rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.compiled import compiled
from schedules.history import Flags, Floats, Ints
from schedules.placement.load import Caps
from schedules.population import Columns, InMemory, Population, Shards
from schedules.schedule import ROUND_WEEKS, WEEK_HOURS, Schedules, chosen_of, replace_slots

# Room is counted in whole numbers, so that sums do not depend on their order. A weekly visit takes
# PARTS, a rarer one proportionally fewer.
PARTS = ROUND_WEEKS
UNCAPPED = 2**62
# A visit before its best hour misses the changes until then, so an hour earlier costs as much as
# this many hours later.
EARLIER = 4
# Moving to other hours must save this share of the distance to the drawn hours.
DEAD_BAND = 0.5
# A target that leaves an hour makes room for another one, so repeat.
ROUNDS = 3
# Sites that need more than this share of their available hours are leveled first, because they
# cannot use room that other sites leave.
CROWDED = 0.5
# Targets by whether their site is crowded, and whether they have allowed current slots.
TURNS = ((True, True), (True, False)), ((False, True), (False, False))


class Room(NamedTuple):
    """Hold the remaining room of all targets.

    common: (168,) by hour of the UTC week
    own:    (s, 168) of each site
    """

    common: Ints
    own: NDArray[np.int64]


class _Space(NamedTuple):
    """Hold the room and the visiting hours for the kernels.

    opened: (s, 168) by hour of the local week
    """

    common: Ints
    own: NDArray[np.int64]
    opened: Flags


class _Targets(NamedTuple):
    """Hold n targets for the kernels.

    first:       (n + 1,) offsets into slots
    cycle:       (n,) length in hours
    site:        (n,)
    ahead:       (n,) hours ahead of UTC
    least, most: (n,) shortest and longest hours between two visits
    """

    first: Ints
    cycle: Ints
    site: Ints
    ahead: Ints
    least: Floats
    most: Floats


class _Target(NamedTuple):
    """Hold one of the targets. part: room that a visit takes in an hour."""

    part: int
    cycle: int
    site: int
    ahead: int
    least: float
    most: float


@dataclass(slots=True)
class Leveling:
    """Hold n targets while they are leveled.

    drawn, slots: (k,) wanted slots, and those so far
    placed:       (k,) whether a slot has room
    has_current:  (n,) whether a target has current slots that are allowed
    key:          (n,)
    """

    targets: _Targets
    opened: Flags
    drawn: Ints
    slots: Ints
    placed: Flags
    has_current: Flags
    key: NDArray[np.uint64]

    @classmethod
    def of(
        cls, drawn: Schedules, current: Schedules, population: Population, ahead: Ints
    ) -> Leveling:
        """Return the targets with their current slots, where those are allowed, else as drawn."""
        # The limits are no tighter than those that the drawn schedules keep.
        cycle, site = drawn.weeks.astype(np.int64) * WEEK_HOURS, population.site
        shortest, longest = np.maximum(population.min_hours, 1.0), population.max_hours.copy()
        targets = _Targets(drawn.first, cycle, site, ahead[site], shortest, longest)
        _relax_limits(targets, drawn.slots)

        # Compare single slots in the week nearest to the drawn one, because the week is chosen
        # elsewhere.
        single = (np.diff(current.first) == 1) & (np.diff(drawn.first) == 1)
        rows = np.flatnonzero(single & (current.weeks == drawn.weeks))
        wanted = drawn.slots[drawn.first[rows]].astype(np.int64)
        shift = current.slots[current.first[rows]] - wanted + WEEK_HOURS // 2
        nearest = (wanted + shift % WEEK_HOURS - WEEK_HOURS // 2) % cycle[rows]
        current = replace_slots(current, rows, nearest)

        opened = population.open_hours
        had = (drawn.weeks == current.weeks) & (np.diff(drawn.first) == np.diff(current.first))
        had &= _allowed(targets, opened, current.first, current.slots, had)
        slots = chosen_of(had, current, drawn).slots.astype(np.int64)
        placed = np.zeros(len(slots), np.bool_)
        wanted = drawn.slots.astype(np.int64)
        return cls(targets, opened, wanted, slots, placed, had, population.key)

    def needed(self) -> Ints:
        """Return the (s,) room that the targets of each site need."""
        need = PARTS * WEEK_HOURS // self.targets.cycle * np.diff(self.targets.first)
        result = np.zeros(len(self.opened), np.int64)
        np.add.at(result, self.targets.site, need)
        return result

    def rows(self, crowded: Flags, *, is_crowded: bool, has_current: bool) -> Ints:
        """Return the targets of a turn in the order of their keys; `crowded` is (s,)."""
        rows = np.flatnonzero(
            (crowded[self.targets.site] == is_crowded) & (self.has_current == has_current)
        )
        return rows[np.argsort(self.key[rows], kind="stable")]


def leveled(
    drawn: Schedules, current: Schedules, population: Population, caps: Caps, ahead: Ints
) -> Schedules:
    """Return the drawn schedules with no UTC hour of the week above its caps, if there is room.

    current: schedules so far
    ahead:   (s,) hours that each site's clock is ahead of UTC
    """
    columns: Columns = {"schedules": drawn, "current": current, "population": population}
    level(InMemory([columns]), caps, population.open_hours, ahead)
    result: Schedules = columns["schedules"]
    return result


def level(shards: Shards, caps: Caps, opened: Flags, ahead: Ints) -> None:
    """Level the schedules of shards, in place.

    opened: (s, 168) visiting hours of each site
    ahead:  (s,) as in `leveled`
    """
    common, own = np.full(WEEK_HOURS, caps.hour), np.repeat(caps.site_hour, WEEK_HOURS)
    room = Room(_parts(common), _parts(own).reshape(opened.shape))
    needed = np.sum(shards.each(begin, ahead), axis=0)
    # Sites that need much of their own caps go first. New targets go last.
    has = np.where(opened, room.own.astype(np.float64), 0).sum(1)
    crowded: Flags = needed > CROWDED * has
    counts = shards.each(count_turns, crowded)

    def in_turn(turns: Sequence[tuple[bool, bool]], *, moves: bool) -> bool:
        """Pass the room through all shards; return whether any target moved."""
        nonlocal room
        is_changed = False
        for turn in turns:
            for number in range(len(shards)):
                if counts[number][turn]:
                    room, moved = shards.one(number, serve, crowded, room, turn, moves)
                    is_changed |= moved
        return is_changed

    for turns in TURNS:
        in_turn(turns, moves=False)
        for _ in range(ROUNDS):
            if not in_turn(turns, moves=True):
                break
    shards.each(finish)


def begin(columns: Columns, ahead: Ints) -> Ints:
    """Prepare the leveling of a shard; return the (s,) room that its targets need."""
    population = columns["population"]
    leveling = Leveling.of(columns["schedules"], columns["current"], population, ahead)
    columns["leveling"] = leveling
    return leveling.needed()


def count_turns(columns: Columns, crowded: Flags) -> dict[tuple[bool, bool], int]:
    """Return the number of targets of each turn."""
    leveling: Leveling = columns["leveling"]
    return {
        (is_crowded, has_current): len(
            leveling.rows(crowded, is_crowded=is_crowded, has_current=has_current)
        )
        for turns in TURNS
        for is_crowded, has_current in turns
    }


def serve(
    columns: Columns, crowded: Flags, room: Room, turn: tuple[bool, bool], moves: bool
) -> tuple[Room, bool]:
    """Take the room for the current slots, or move them toward the drawn ones.

    Returns the remaining room, and whether any target moved.
    """
    leveling: Leveling = columns["leveling"]
    rows = leveling.rows(crowded, is_crowded=turn[0], has_current=turn[1])
    space = _Space(room.common.copy(), room.own.copy(), leveling.opened)
    t, slots, placed, moved = leveling.targets, leveling.slots, leveling.placed, False
    if moves:
        moved = bool(_move_all(space, t, leveling.drawn, slots, placed, rows))
    else:
        _take_all(space, t, slots, placed, rows)
    # Engines store a column when it is set.
    columns["leveling"] = leveling
    return Room(space.common, space.own), moved


def finish(columns: Columns) -> None:
    """Replace the schedules of a shard by the leveled ones."""
    slots = columns.pop("leveling").slots.astype(np.uint16)
    columns["schedules"] = replace(columns["schedules"], slots=slots)


def _parts(cap: Floats) -> Ints:
    """Return caps in parts; UNCAPPED for inf."""
    parts = np.minimum(cap * PARTS * (1 + 1e-9), UNCAPPED)
    return np.floor(parts).astype(np.int64)


@compiled
def _relax_limits(t: _Targets, slots: NDArray[np.uint16]) -> None:
    """Widen the limits of targets in place, to include the intervals of these slots."""
    for i in range(len(t.cycle)):
        for j in range(t.first[i], t.first[i + 1]):
            gap = _gap(slots, j, t.first[i], t.first[i + 1], t.cycle[i])
            t.least[i], t.most[i] = min(t.least[i], gap), max(t.most[i], gap)


@compiled
def _gap(slots: NDArray[np.uint16], j: int, begin: int, end: int, cycle: int) -> int:
    """Return the hours from slot j to the next of the slots from `begin` to `end`."""
    later = int(slots[j + 1]) if j + 1 < end else int(slots[begin]) + cycle
    return later - int(slots[j])


@compiled
def _allowed(
    t: _Targets, opened: Flags, first: Ints, slots: NDArray[np.uint16], candidates: Flags
) -> Flags:
    """Return (n,) flags of the candidates that keep their limits with these slots."""
    allowed = candidates.copy()
    for i in np.flatnonzero(candidates):
        for j in range(first[i], first[i + 1]):
            gap = _gap(slots, j, first[i], first[i + 1], t.cycle[i])
            allowed[i] &= opened[t.site[i], slots[j] % WEEK_HOURS]
            allowed[i] &= t.least[i] <= gap <= t.most[i]
    return allowed


@compiled
def _take_all(room: _Space, t: _Targets, slots: Ints, placed: Flags, order: Ints) -> None:
    """Take the room that the slots of some targets need, as far as it is available."""
    for i in order:
        begin, end = t.first[i], t.first[i + 1]
        _take_room(room, _target(t, i), slots[begin:end], placed[begin:end])


@compiled
def _move_all(
    room: _Space, t: _Targets, drawn: Ints, slots: Ints, placed: Flags, order: Ints
) -> bool:
    """Move slots in place, from their current hours toward the drawn ones."""
    moved = False
    for i in order:
        begin, end = t.first[i], t.first[i + 1]
        wanted, had, fine = drawn[begin:end], slots[begin:end], placed[begin:end]
        if not (np.all(fine) and np.all(wanted == had)):
            moved |= _try_move(room, _target(t, i), wanted, had, fine)
    return moved


@compiled
def _target(t: _Targets, i: int) -> _Target:
    """Return one of the targets."""
    part = PARTS * WEEK_HOURS // t.cycle[i]
    return _Target(part, t.cycle[i], t.site[i], t.ahead[i], t.least[i], t.most[i])


@compiled
def _try_move(room: _Space, target: _Target, drawn: Ints, slots: Ints, placed: Flags) -> bool:
    """Try to move a target closer to the drawn slots; return whether there was room."""
    _add_room(room, target, slots[placed], target.part)
    tried, fits = drawn.copy(), np.zeros(len(drawn), np.bool_)
    _take_room(room, target, tried, fits)
    is_changed = True
    # A slot that moves may give others room: the longest interval no longer stops them.
    while is_changed:
        is_changed = False
        for j in range(len(tried)):
            if fits[j]:
                continue
            # Take the nearest room; an earlier hour only if it is much nearer.
            later, earlier = (
                _nearest_room(room, target, tried, j, 1),
                _nearest_room(room, target, tried, j, -1),
            )
            way = later if earlier == 0 or 0 < later <= EARLIER * earlier else -earlier
            if way != 0:
                tried[j], fits[j], is_changed = (tried[j] + way) % target.cycle, True, True
                _add_room(room, target, tried[j : j + 1], -target.part)
    gained = int(np.sum(fits)) - int(np.sum(placed))
    far, was = _distance(drawn, tried, target.cycle), _distance(drawn, slots, target.cycle)
    if gained > 0 or (gained == 0 and far < (1 - DEAD_BAND) * was):
        order = np.argsort(tried)
        slots[:], placed[:] = tried[order], fits[order]
        return True
    _add_room(room, target, tried[fits], target.part)
    _add_room(room, target, slots[placed], -target.part)
    return False


@compiled
def _take_room(room: _Space, target: _Target, slots: Ints, placed: Flags) -> None:
    """Take the room that slots need, and mark those that got it."""
    for j in range(len(slots)):
        placed[j] = _has_room(room, target, slots[j])
        if placed[j]:
            _add_room(room, target, slots[j : j + 1], -target.part)


@compiled
def _has_room(room: _Space, target: _Target, slot: int) -> bool:
    """Return whether an hour has room for one more visit."""
    hour = (slot - target.ahead) % WEEK_HOURS
    return bool(min(room.common[hour], room.own[target.site, hour]) >= target.part)


@compiled
def _add_room(room: _Space, target: _Target, slots: Ints, part: int) -> None:
    """Change the room in the hours of these slots."""
    for slot in slots:
        hour = (slot - target.ahead) % WEEK_HOURS
        room.common[hour] += part
        room.own[target.site, hour] += part


@compiled
def _nearest_room(room: _Space, target: _Target, slots: Ints, j: int, step: int) -> int:
    """Return how many steps from slot j an open hour has room and keeps the limits; 0: none."""
    left, right = _neighbors(target.cycle, slots, j, slots[j])
    for way in range(1, WEEK_HOURS):
        at = slots[j] + step * way
        if target.cycle > WEEK_HOURS and at // WEEK_HOURS != slots[j] // WEEK_HOURS:
            # The weeks of rare visits are balanced already.
            return 0
        if not (room.opened[target.site, at % WEEK_HOURS] and _has_room(room, target, at)):
            continue
        # With slot j there, no interval may be shorter or longer than allowed.
        before, after = _neighbors(target.cycle, slots, j, at)
        between = (at - slots[j]) % target.cycle < right or (slots[j] - at) % target.cycle < left
        longest = max(before, after) if between else max(before, after, left + right)
        if target.least <= min(before, after) and longest <= target.most:
            return way
    return 0


@compiled
def _neighbors(cycle: int, slots: Ints, j: int, at: int) -> tuple[int, int]:
    """Return the hours from the previous slot to an hour, and to the next, ignoring slot j."""
    before, after = cycle, cycle
    for k in range(len(slots)):
        if k != j:
            before = min(before, (at - slots[k]) % cycle)
            after = min(after, (slots[k] - at) % cycle)
    return before, after


@compiled
def _distance(drawn: Ints, slots: Ints, cycle: int) -> int:
    """Return the hours between drawn and other slots, for the best order-preserving pairing."""
    n, least = len(drawn), UNCAPPED
    for turn in range(n):
        total = 0
        for j in range(n):
            later = (slots[(j + turn) % n] - drawn[j]) % cycle
            total += min(later, EARLIER * (cycle - later))
        least = min(least, total)
    return least
