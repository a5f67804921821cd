"""Simulate a crawl of pages that follows plans or adapts, under a daily cap.

`simulate` returns the visits of a policy, `daily` those of a baseline.
"""

from __future__ import annotations

import numpy as np

from schedules.allocation.plan import plan
from schedules.calendar import next_visits
from schedules.dispatch import Capacity, Waiting, dispatch
from schedules.evaluation.world import (
    Span,
    World,
    by_time,
    joined,
    never,
    placed,
    seen,
    times_of,
    visits_of,
    while_there,
)
from schedules.history import DAY_HOURS, Floats, Histories, Ints, Times
from schedules.intervals import next_interval
from schedules.schedule import MAX_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import GROUPED, Terms

# Slots follow the wall clock, so a planned visit can be an hour off the longest interval.
CLOCK_CHANGE_HOURS = 1.0
MAX_INTERVAL_HOURS = MAX_WEEKS * WEEK_HOURS
POLL_HOURS = 1 / 3
# Golden ratio conjugate; its multiples modulo 1 fill an interval evenly.
GOLDEN = (5**0.5 - 1) / 2
# Tolerance for sums of hours, which are inexact; below the one-second resolution of trace files.
TOUCH = 1e-6


class CappedDispatcher:
    """Choose the visits that go ahead under a hard daily cap (UTC), most valuable first."""

    def __init__(self, cap: float | None) -> None:
        self._cap = int(cap or 0)
        self._day, self._used = -1, 0

    @property
    def is_strict(self) -> bool:
        """Return whether there is a cap."""
        return self._cap > 0

    def choose(self, hour: int, value: Floats, waited: Floats, every: Floats) -> Ints:
        """Return the indices of the due visits that go ahead in this hour since 1970.

        The other arguments are as in `Waiting`.
        """
        if hour // DAY_HOURS != self._day:
            self._day, self._used = hour // DAY_HOURS, 0
        left = self._cap - self._used
        chosen = np.arange(len(value))
        if self.is_strict and len(value) > left:
            n = len(value)
            none, overdue = np.zeros(n), np.maximum(np.nan_to_num(waited - every), 0)
            # The number of earlier missed visits is unknown.
            waiting = Waiting(
                value, every, waited, overdue, np.ones(n), none, np.full(n, np.nan),
                none.astype(np.int64),
            )  # fmt: skip
            chosen = dispatch("value", waiting.due(MAX_INTERVAL_HOURS), Capacity(left))
        self._used += len(chosen)
        return chosen


class Planned:
    """Follow plans of slots and even intervals."""

    def __init__(self, world: World, terms: Terms) -> None:
        n = len(world)
        self._world, self._terms, self._dispatcher = world, terms, CappedDispatcher(terms.daily_cap)
        self._current, self._value = Schedules.none(n), np.full(n, np.nan)
        self._waiting = np.zeros(n, np.bool_)

    def replan(self, past: Histories, now: float) -> None:
        """Plan the targets that exist now, starting from their current schedules."""
        rows, n = self._world.there(now), len(self._world)
        self._value = np.full(n, np.nan)
        if not len(rows):
            self._current = Schedules.none(n)
            return
        population, current = self._world.population.of(rows), self._current.of(rows)
        made = plan(population, past.of(rows), self._terms, now, current)
        self._current = placed(made.schedules, rows, n)
        self._value[rows] = made.value

    def visits(self, past: Histories, now: float, until: float) -> Times:
        """Return the visits of a period."""
        population = self._world.population
        due = visits_of(self._current, population, now, until)
        due = joined(len(past), [due, self._overdue(due, past.until, now, until)])
        due = while_there(self._world, due)
        return (
            self._under_cap(due, past.until.copy(), now, until)
            if self._dispatcher.is_strict
            else due
        )

    def _overdue(self, due: Times, last: Floats, now: float, until: float) -> Times:
        """Return extra visits for targets that a new plan moved past their longest interval.

        last: (n,) last observation; NaN if there was none: such targets are due immediately
        """
        some = np.diff(due.first) > 0
        coming = np.full(len(last), np.inf)
        coming[some] = due.at[due.first[:-1][some]]
        latest = np.fmax(last + self._world.population.max_hours, now)
        rows = self._world.there(now)
        rows = rows[(latest[rows] < until) & (coming[rows] > latest[rows] + CLOCK_CHANGE_HOURS)]
        return times_of(len(last), [(rows, latest[rows])])

    def _under_cap(self, due: Times, last: Floats, now: float, until: float) -> Times:
        """Return the visits of a period under the cap, choosing among due targets hour by hour."""
        owner, at = by_time(due)
        hours = np.arange(np.floor(now), until)
        bounds = np.searchsorted(at, np.append(hours, np.inf))
        done: list[tuple[Ints, Floats]] = []
        for hour, begin, end in zip(hours, bounds[:-1], bounds[1:], strict=True):
            self._waiting &= self._world.ends > hour
            rows, times = self._candidates(owner[begin:end], at[begin:end], max(hour, now))
            if not len(rows):
                continue
            waited = np.nan_to_num(hour - last[rows], nan=MAX_INTERVAL_HOURS)
            weekly = self._current.visits_per_week[rows]
            every = np.divide(WEEK_HOURS, weekly, where=weekly > 0, out=np.full(len(rows), np.inf))
            go = self._dispatcher.choose(int(hour), self._value[rows], waited, every)
            self._waiting[rows] = True
            self._waiting[rows[go]] = False
            last[rows[go]] = times[go]
            done.append((rows[go], times[go]))
        return times_of(len(last), done)

    def _candidates(self, rows: Ints, at: Floats, now: float) -> tuple[Ints, Floats]:
        """Return targets and times: waiting ones now, and those due in this hour on time."""
        waiting = np.flatnonzero(self._waiting)
        fresh = ~self._waiting[rows]
        rows = np.concatenate([waiting, rows[fresh]])
        at = np.concatenate([np.full(len(waiting), now), at[fresh]])
        # Break ties by key.
        order = np.argsort(self._world.population.key[rows], kind="stable")
        return rows[order], at[order]


class Adaptive:
    """Shorten the interval after a visit that finds a change, and lengthen it after any other."""

    def __init__(self, world: World, terms: Terms) -> None:
        n = len(world)
        self._world, self._terms, self._dispatcher = world, terms, CappedDispatcher(terms.daily_cap)
        self._every, self._next = np.full(n, np.nan), np.full(n, np.inf)
        # Break ties by key.
        self._by_key = np.argsort(world.population.key)
        # Number of changes of each target before its last visit; -1 before the first visit.
        self._changes_seen = np.full(n, -1)

    def replan(self, past: Histories, now: float) -> None:
        """Set the first interval of targets that have none."""
        rows = self._world.there(now)
        rows = rows[np.isnan(self._every[rows])]
        if not len(rows):
            return
        population, terms = self._world.population.of(rows), self._terms
        first_schedules = plan(population, past.of(rows), terms, now).schedules
        self._every[rows] = first_schedules.every_hours
        self._next[rows] = next_visits(first_schedules, population.zones[0], now)
        observed = rows[~np.isnan(past.until[rows])]
        self._changes_seen[observed] = [self._behind(row, past.until[row]) for row in observed]

    def visits(self, past: Histories, now: float, until: float) -> Times:
        """Return the visits of a period, simulated hour by hour."""
        last, done = past.until.copy(), list[tuple[Ints, Floats]]()
        for hour in np.arange(np.floor(now), until):
            self._next[self._next > self._world.ends] = np.inf
            end = min(hour + 1, until)
            while len(rows := self._by_key[self._next[self._by_key] < end]):
                waited = np.nan_to_num(hour - last[rows], nan=MAX_INTERVAL_HOURS)
                value = np.full(len(rows), np.nan)
                rows = rows[self._dispatcher.choose(int(hour), value, waited, self._every[rows])]
                if not len(rows):
                    break
                last[rows] = np.maximum(self._next[rows], max(hour, now))
                done.append((rows, last[rows]))
                for row in rows.tolist():
                    self._follow(row, float(last[row]))
        return times_of(len(last), done)

    def _follow(self, row: int, at: float) -> None:
        """Schedule the next visit from what this one observes."""
        before, self._changes_seen[row] = self._changes_seen[row], self._behind(row, at)
        population = self._world.population
        bounds = population.min_hours[row], population.max_hours[row]
        every = self._every[row]
        if before >= 0:
            every = next_interval(every, *bounds, changed=bool(before < self._changes_seen[row]))
        self._every[row], self._next[row] = every, at + every

    def _behind(self, row: int, at: float) -> int:
        """Return the number of changes of a target up to this time."""
        changes = self._world.changes
        target_changes = changes.at[changes.first[row] : changes.first[row + 1]]
        return int(np.searchsorted(target_changes, at, "right"))


def simulate(
    world: World,
    terms: Terms,
    span: Span,
    *,
    replan_hours: float = WEEK_HOURS,
    closed_loop: bool = False,
) -> Times:
    """Return all visits of a policy, ascending for each target.

    In the open loop, the policy knows what polls every 20 minutes observed from `start` to `split`,
    and visits from `split`. The frequency classes keep the assignment from these polls.

    In the closed loop, the policy knows nothing at first and visits from `start`. In the first week
    it visits each target daily at changing hours, regardless of budget and cap. Only the adaptive
    policy starts with its own intervals.
    """
    adaptive = terms.policy == "adaptive"
    crawl: Adaptive | Planned = (Adaptive if adaptive else Planned)(world, terms)
    learns = closed_loop or terms.policy not in GROUPED
    past, done, now = never(len(world)), list[Times](), span.start
    if not closed_loop:
        past, now = polled(world, span.start, span.split), span.split
    elif not adaptive:
        now = min(span.start + WEEK_HOURS, span.stop)
        done.append(first_week(world, span.start, now))
        past = seen(past, done[0], world.changes)
    training = past
    while now < span.stop:
        until = min(now + replan_hours, span.stop)
        crawl.replan(training, now)
        visits = crawl.visits(past, now, until)
        past = seen(past, visits, world.changes)
        training = past if learns else training
        done.append(visits)
        now = until
    return joined(len(world), done)


def daily(world: World, start: float, stop: float) -> Times:
    """Return one visit a day to each target, at a pseudorandom but fixed hour."""
    n = len(world)
    hour = (world.population.key % np.uint64(DAY_HOURS)).astype(np.float64)
    schedules = Schedules.even(np.full(n, WEEK_HOURS / DAY_HOURS), hour / DAY_HOURS)
    return while_there(world, visits_of(schedules, world.population, start, stop))


def first_week(world: World, start: float, stop: float) -> Times:
    """Return one visit a day to each target, at hours that advance by the golden ratio.

    Visits at a fixed hour would show nothing about the other hours. Golden-ratio steps cover all
    hours most evenly within a few days.
    """
    n, days = len(world), int(np.ceil((stop - start) / DAY_HOURS))
    begin = (world.population.key % np.uint64(DAY_HOURS)).astype(np.float64)[:, None]
    hour = np.floor(begin + DAY_HOURS * GOLDEN * np.arange(days)) % DAY_HOURS
    at = start + np.arange(days) * DAY_HOURS + hour
    return while_there(world, times_of(n, [(np.repeat(np.arange(n), days), at.ravel())]))


def polled(world: World, start: float, stop: float) -> Histories:
    """Return the histories that polls every 20 minutes would observe, both ends included.

    Equal to `world.seen` of these polls, but computed from the changes only.
    """
    n, changes = len(world), world.changes
    # First and last poll of each target. If a target was never polled, the last precedes the first.
    since = np.ceil((np.fmax(world.began, start) - start) / POLL_HOURS - TOUCH)
    until = np.floor((np.minimum(world.ends, stop) - start) / POLL_HOURS + TOUCH)
    owner = np.repeat(np.arange(n), np.diff(changes.first))
    poll = np.ceil((changes.at - start) / POLL_HOURS - TOUCH)
    watched = (poll > since[owner]) & (poll <= until[owner])
    owner, poll = owner[watched], poll[watched]
    new = (np.diff(owner, prepend=-1) > 0) | (np.diff(poll, prepend=-1) > 0)
    owner, poll = owner[new], poll[new]
    first = np.searchsorted(owner, np.arange(n + 1))
    was_polled = since <= until
    return Histories(
        np.where(was_polled, start + since * POLL_HOURS, np.nan),
        np.where(was_polled, start + until * POLL_HOURS, np.nan),
        first, start + (poll - 1) * POLL_HOURS, start + poll * POLL_HOURS,
    )  # fmt: skip
