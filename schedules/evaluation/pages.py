"""A simulated crawl of pages: it follows plans or adapts, under a daily cap.

`simulate` gives the visits of a policy, `daily` those to compare them with.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from schedules.allocation.plan import Terms, plan
from schedules.calendar import next_interval, next_visits
from schedules.dispatch.dispatch import Capacity, Waiting, dispatch, room
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
from schedules.schedule import MAX_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import GROUPED

# Slots follow the wall clock.
CLOCK_CHANGE_HOURS = 1.0
MAX_INTERVAL_HOURS = MAX_WEEKS * WEEK_HOURS
POLL_HOURS = 1 / 3
# The golden section of a day.
GOLDEN = (5**0.5 - 1) / 2
# Moments as sums of hours are not exact; this is less than the second that files tell.
TOUCH = 1e-6


class CappedDispatcher:
    """Lets visits go under a hard daily cap (UTC), the most valuable first."""

    def __init__(self, cap: float | None) -> None:
        self._cap = int(cap or 0)
        self._day, self._used = -1, 0

    @property
    def is_strict(self) -> bool:
        """Whether there is a cap at all."""
        return self._cap > 0

    def let_go(self, hour: int, value: Floats, waited: Floats, every: Floats) -> Ints:
        """Which of the due ones go in this hour since 1970; arguments as in `Waiting`."""
        if hour // DAY_HOURS != self._day:
            self._day, self._used = hour // DAY_HOURS, 0
        left = room(self._cap, self._used)
        chosen = np.arange(len(value))
        if left is not None and len(value) > left:
            n = len(value)
            none, overdue = np.zeros(n), np.maximum(np.nan_to_num(waited - every), 0)
            # Nothing is known of visits that were missed before.
            waiting = Waiting(
                value, every, waited, overdue, np.ones(n), none, np.full(n, np.nan),
                none.astype(np.int64),
            )  # fmt: skip
            chosen = dispatch("value", waiting.due(MAX_INTERVAL_HOURS), Capacity(left))
        self._used += len(chosen)
        return chosen


class Planned:
    """Follows plans: slots and even intervals."""

    def __init__(self, world: World, terms: Terms) -> None:
        n = len(world)
        self._world, self._terms, self._dispatcher = world, terms, CappedDispatcher(terms.daily_cap)
        self._present, self._value = Schedules.none(n), np.full(n, np.nan)
        self._waiting = np.zeros(n, np.bool_)

    def replan(self, past: Histories, now: float) -> None:
        """Plan anew for those that are there, from what they follow now."""
        rows, n = self._world.there(now), len(self._world)
        self._value = np.full(n, np.nan)
        if not len(rows):
            self._present = Schedules.none(n)
            return
        population, current = self._world.population.of(rows), self._present.of(rows)
        made = plan(population, past.of(rows), self._terms, now, current)
        self._present = placed(made.schedules, rows, n)
        self._value[rows] = made.value

    def visits(self, past: Histories, now: float, until: float) -> Times:
        """The visits of a period."""
        population = self._world.population
        due = visits_of(self._present, population, now, until)
        due = joined(len(past), [due, self._overdue(due, past.until, now, until)])
        due = while_there(self._world, due)
        return (
            self._under_cap(due, past.until.copy(), now, until)
            if self._dispatcher.is_strict
            else due
        )

    def _overdue(self, due: Times, last: Floats, now: float, until: float) -> Times:
        """Visits that keep the longest interval where a plan moved a target past it.

        last: (n,) the last look; NaN where there was none: such targets are due at once
        """
        some = np.diff(due.first) > 0
        coming = np.full(len(last), np.inf)
        coming[some] = due.at[due.first[:-1][some]]
        latest = np.fmax(last + self._world.population.max_hours, now)
        rows = self._world.there(now)
        rows = rows[(latest[rows] < until) & (coming[rows] > latest[rows] + CLOCK_CHANGE_HOURS)]
        return times_of(len(last), [(rows, latest[rows])])

    def _under_cap(self, due: Times, last: Floats, now: float, until: float) -> Times:
        """Hour by hour: who waits and who comes due, as many as may go."""
        owner, at = by_time(due)
        hours = np.arange(np.floor(now), until)
        bounds = np.searchsorted(at, np.append(hours, np.inf))
        done: list[tuple[Ints, Floats]] = []
        for hour, begin, end in zip(hours, bounds[:-1], bounds[1:], strict=True):
            self._waiting &= self._world.ends > hour
            rows, times = self._candidates(owner[begin:end], at[begin:end], max(hour, now))
            if not len(rows):
                continue
            go = self._dispatcher.let_go(int(hour), *self._claims(rows, hour - last[rows]))
            self._waiting[rows] = True
            self._waiting[rows[go]] = False
            last[rows[go]] = times[go]
            done.append((rows[go], times[go]))
        return times_of(len(last), done)

    def _candidates(self, rows: Ints, at: Floats, now: float) -> tuple[Ints, Floats]:
        """Those that wait, at once, and those that come due in this hour, each at its time."""
        waiting = np.flatnonzero(self._waiting)
        fresh = ~self._waiting[rows]
        rows = np.concatenate([waiting, rows[fresh]])
        at = np.concatenate([np.full(len(waiting), now), at[fresh]])
        # Equally valuable ones go in the order of their keys.
        order = np.argsort(self._world.population.key[rows], kind="stable")
        return rows[order], at[order]

    def _claims(self, rows: Ints, waited: Floats) -> tuple[Floats, Floats, Floats]:
        """Value of the visits, hours waited and hours between visits by plan."""
        often = self._present.visits_per_week[rows]
        every = np.divide(WEEK_HOURS, often, where=often > 0, out=np.full(len(rows), np.inf))
        return self._value[rows], np.nan_to_num(waited, nan=MAX_INTERVAL_HOURS), every


class Adaptive:
    """Shorter intervals after a change, longer after none; every visit decides about the next."""

    def __init__(self, world: World, terms: Terms) -> None:
        n = len(world)
        self._world, self._terms, self._dispatcher = world, terms, CappedDispatcher(terms.daily_cap)
        self._every, self._next = np.full(n, np.nan), np.full(n, np.inf)
        # Equally valuable ones go in the order of their keys.
        self._by_key = np.argsort(world.population.key)
        # Changes of each target that lie behind its last visit; -1 before the first.
        self._known = np.full(n, -1)

    def replan(self, past: Histories, now: float) -> None:
        """First intervals for those that have none."""
        rows = self._world.there(now)
        rows = rows[np.isnan(self._every[rows])]
        if not len(rows):
            return
        population, terms = self._world.population.of(rows), self._terms
        begun = plan(population, past.of(rows), terms, now).schedules
        self._every[rows] = begun.every_hours
        self._next[rows] = next_visits(begun, population.zones[0], now)
        looked = rows[~np.isnan(past.until[rows])]
        self._known[looked] = [self._behind(row, past.until[row]) for row in looked]

    def visits(self, past: Histories, now: float, until: float) -> Times:
        """The visits of a period, hour by hour."""
        last, done = past.until.copy(), list[tuple[Ints, Floats]]()
        for hour in np.arange(np.floor(now), until):
            self._next[self._next > self._world.ends] = np.inf
            end = min(hour + 1, until)
            while len(rows := self._by_key[self._next[self._by_key] < end]):
                waited = np.nan_to_num(hour - last[rows], nan=MAX_INTERVAL_HOURS)
                value = np.full(len(rows), np.nan)
                rows = rows[self._dispatcher.let_go(int(hour), value, waited, self._every[rows])]
                if not len(rows):
                    break
                last[rows] = np.maximum(self._next[rows], max(hour, now))
                done.append((rows, last[rows]))
                for row in rows.tolist():
                    self._follow(row, float(last[row]))
        return times_of(len(last), done)

    def _follow(self, row: int, at: float) -> None:
        """What a visit sees decides when the next one is."""
        before, self._known[row] = self._known[row], self._behind(row, at)
        population = self._world.population
        bounds = population.min_hours[row], population.max_hours[row]
        every = self._every[row]
        if before >= 0:
            every = next_interval(every, *bounds, changed=bool(before < self._known[row]))
        self._every[row], self._next[row] = every, at + every

    def _behind(self, row: int, at: float) -> int:
        changes = self._world.changes
        mine = changes.at[changes.first[row] : changes.first[row + 1]]
        return int(np.searchsorted(mine, at, "right"))


class _Crawl(Protocol):
    """What carries a plan out."""

    def replan(self, past: Histories, now: float) -> None:
        """Plan anew."""

    def visits(self, past: Histories, now: float, until: float) -> Times:
        """The visits of a period."""


def simulate(
    world: World,
    terms: Terms,
    span: Span,
    *,
    replan_hours: float = WEEK_HOURS,
    closed_loop: bool = False,
) -> Times:
    """All visits of a policy, ascending for each target.

    Open loop: it knows what polls every 20 minutes saw from `start` to `split`, and visits from
    `split` on; the paper's groups stay as those polls made them. Closed loop: it visits from
    `start` on and knows nothing; in its first week it looks at each target daily, at another hour
    each day, whatever the budget and the cap. Only the adaptive policy goes its own way at once.
    """
    crawl: _Crawl = Adaptive(world, terms) if terms.policy == "adaptive" else Planned(world, terms)
    learns = closed_loop or terms.policy not in GROUPED
    past, done, now = never(len(world)), list[Times](), span.start
    if not closed_loop:
        past, now = polled(world, span.start, span.split), span.split
    elif terms.policy != "adaptive":
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
    """Each target once a day, at an hour that looks random and stays with the target."""
    n = len(world)
    hour = (world.population.key % np.uint64(DAY_HOURS)).astype(np.float64)
    schedules = Schedules.even(np.full(n, WEEK_HOURS / DAY_HOURS), hour / DAY_HOURS)
    return while_there(world, visits_of(schedules, world.population, start, stop))


def first_week(world: World, start: float, stop: float) -> Times:
    """Each target once a day, at hours that differ from day to day by the golden section.

    At one hour of the day nothing would be learned of the others; the golden section spreads a few
    days over all hours most evenly.
    """
    n, days = len(world), int(np.ceil((stop - start) / DAY_HOURS))
    begin = (world.population.key % np.uint64(DAY_HOURS)).astype(np.float64)[:, None]
    hour = np.floor(begin + DAY_HOURS * GOLDEN * np.arange(days)) % DAY_HOURS
    at = start + np.arange(days) * DAY_HOURS + hour
    return while_there(world, times_of(n, [(np.repeat(np.arange(n), days), at.ravel())]))


def polled(world: World, start: float, stop: float) -> Histories:
    """What looks at all targets every 20 minutes see, both ends included.

    The same as `world.seen` of `world.polls`, from the changes alone.
    """
    n, changes = len(world), world.changes
    # The first and the last poll of each target; the last is less if none is.
    since = np.ceil((np.fmax(world.began, start) - start) / POLL_HOURS - TOUCH)
    until = np.floor((np.minimum(world.ends, stop) - start) / POLL_HOURS + TOUCH)
    owner = np.repeat(np.arange(n), np.diff(changes.first))
    poll = np.ceil((changes.at - start) / POLL_HOURS - TOUCH)
    watched = (poll > since[owner]) & (poll <= until[owner])
    owner, poll = owner[watched], poll[watched]
    new = (np.diff(owner, prepend=-1) > 0) | (np.diff(poll, prepend=-1) > 0)
    owner, poll = owner[new], poll[new]
    first = np.searchsorted(owner, np.arange(n + 1))
    known = since <= until
    return Histories(
        np.where(known, start + since * POLL_HOURS, np.nan),
        np.where(known, start + until * POLL_HOURS, np.nan),
        first, start + (poll - 1) * POLL_HOURS, start + poll * POLL_HOURS,
    )  # fmt: skip
