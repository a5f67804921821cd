"""Simulate a crawl of pages whose changes lists show: each list is a target that shows its items.

A visit of a list flags the items of which it shows something new since its last visit. Flags that
are worth a visit are followed immediately. The recall of the lists is learned from the visits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from schedules.allocation.plan import Plan, plan
from schedules.allocation.signals import LEAST_WEIGHT, Coverage, believed
from schedules.allocation.trust import Learned, Shown, flag_scale, learned
from schedules.evaluation.pages import first_week, polled
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
)
from schedules.history import DAY_HOURS, Flags, Floats, Histories, Ints, Times, offsets
from schedules.population import Population
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import Terms

# Pages of a source with fewer pages have no list.
MIN_ITEMS = 10


@dataclass(frozen=True)
class Lists:
    """Hold what lists show of the changes of n pages.

    first, item: (l + 1,) offsets into (m,) pages: those of each list
    shown:       (k,) whether a list shows each change of the world
    false:       share of the entries that a visit flags although nothing has changed
    fails:       time from which lists show no change, in hours since 1970; inf: never
    """

    first: Ints
    item: Ints
    shown: Flags
    false: float = 0.0
    fails: float = np.inf

    def __len__(self) -> int:
        return len(self.first) - 1

    @classmethod
    def drawn(
        cls, world: World, source: Ints, per_list: int, recall: float, rng: Generator
    ) -> Lists:
        """Return lists of all sources with enough pages, which show a share of the changes.

        source:   (n,) of each page
        per_list: entries of a list
        recall:   share of the changes that lists show, drawn for each change
        """
        counts, items = [], []
        for number in range(int(source.max(initial=-1)) + 1):
            rows = np.flatnonzero(source == number)
            if len(rows) >= MIN_ITEMS:
                items.append(rows)
                begins = range(0, len(rows), per_list)
                counts += [min(per_list, len(rows) - begin) for begin in begins]
        item = np.concatenate([np.empty(0, np.int64), *items])
        shown = rng.random(len(world.changes.at)) < recall
        return cls(offsets(np.array(counts, np.int64)), item, shown)


class Crawled(NamedTuple):
    """Hold the result of a simulated crawl with lists.

    visits:      of the n pages
    list_visits: of the l lists
    followed:    times of the visits of pages that lists have caused
    recall:      (r, l) learned recall at each replan
    """

    visits: Times
    list_visits: Times
    followed: Floats
    recall: Floats


class _Watch:
    """Follow plans with lists, visit by visit."""

    def __init__(self, world: World, lists: Lists, terms: Terms, rng: Generator) -> None:
        self.world, self.lists, self.terms, self.rng = world, lists, terms, rng
        n, m = len(world), len(lists)
        self.n, self.population = n, _with_lists(world.population, lists)
        self.current = Schedules.none(n + m)
        self.last_list = np.full(m, np.nan)
        self.shown = _shown_only(world.changes, lists.shown)
        self.list_of = np.full(n, -1)
        self.list_of[lists.item] = np.repeat(np.arange(m), np.diff(lists.first))
        self.site = self.population.site[n:]
        # Whether flags of each page are followed, as of the last plan.
        self.follows = np.zeros(n, np.bool_)
        # Times at which lists have shown something new of each page, and of the visits of lists.
        self.showed: list[list[float]] = [[] for _ in range(n)]
        self.looks: list[list[float]] = [[] for _ in range(m)]
        self.lost = np.zeros(m, np.bool_)
        # Flags of the last weeks that were followed, and that plans expected before scaling.
        self.asked = self.expected = 0.0
        self.done: list[tuple[Ints, Floats]] = []
        self.followed: list[float] = []

    @property
    def coverage(self) -> Coverage:
        """Return which pages each list shows, as far as it is not learned."""
        lists = self.lists
        sources = np.arange(self.n, len(self.population))
        return Coverage(sources, lists.first, lists.item, np.zeros(len(lists.item)))

    def learned(self, past: Histories, now: float) -> Learned:
        """Return what visits have found about the lists."""
        items = self.lists.item
        shown = Shown(
            _times([self.showed[row] for row in items.tolist()]),
            np.full(len(items), -np.inf), _times(self.looks),
        )  # fmt: skip
        return learned(self.coverage, self._with_lists(past), shown, self.site, now)

    def replan(self, past: Histories, now: float) -> Plan:
        """Plan the pages that exist now, and all lists."""
        there, n, m = self.world.there(now), self.n, len(self.lists)
        rows = np.concatenate([there, np.arange(n, n + m)])
        recall = self.recall = self.learned(past, now).judged().recall(self.site)
        self.scale = flag_scale(self.asked, self.expected)
        coverage = replace(
            self.coverage, recall=np.repeat(recall, np.diff(self.lists.first)), scale=self.scale
        )
        made = plan(
            self.population.of(rows), self._histories(past, recall).of(rows), self.terms, now,
            self.current.of(rows), coverage.of(rows, n + m),
        )  # fmt: skip
        self.current = placed(made.schedules, rows, n + m)
        self.follows = np.zeros(n, np.bool_)
        self.follows[there] = made.follows[: len(there)]
        return made

    def expect(self, made: Plan, hours: float) -> None:
        """Remember how many flags a plan expected in some hours."""
        self.expected += made.flags_per_day / self.scale * hours / DAY_HOURS
        kept = 0.5 ** (hours / WEEK_HOURS)
        self.expected, self.asked = self.expected * kept, self.asked * kept

    def _histories(self, past: Histories, recall: Floats) -> Histories:
        """Return the histories of pages and lists.

        A page of which its list has shown nothing since its last visit is probably unchanged.
        """
        whole = self._with_lists(past)
        until = np.append(past.until, np.full(len(self.lists), np.nan))
        rows = np.flatnonzero(self.list_of >= 0)
        number = self.list_of[rows]
        until[rows] = believed(past.until[rows], self.last_list[number], recall[number])
        return replace(whole, since=np.where(np.isnan(until), np.nan, whole.since), until=until)

    def _with_lists(self, past: Histories) -> Histories:
        """Return the histories of pages and lists; lists themselves have no changes."""
        m = len(self.lists)
        begun = np.array([looks[0] if looks else np.nan for looks in self.looks])
        return Histories(
            np.append(past.since, begun), np.append(past.until, self.last_list),
            np.append(past.first, np.full(m, past.first[self.n])), past.after, past.by,
        )  # fmt: skip

    def visits(self, past: Histories, now: float, until: float) -> Histories:
        """Visit what is due in a period and what is flagged; return the histories afterwards."""
        due = visits_of(self.current, self.population, now, until)
        unseen = self.world.there(now)
        unseen = unseen[np.isnan(past.until[unseen])]
        due = joined(
            self.n + len(self.lists),
            [due, times_of(len(self.current), [(unseen, np.full(len(unseen), now))])],
        )
        owner, at = by_time(due)
        last = past.until.copy()
        since = past.since.copy()
        found: list[tuple[int, float, float]] = []
        for row, time in zip(owner.tolist(), at.tolist(), strict=True):
            if row >= self.n:
                self._visit_list(row - self.n, time, last, since, found)
            elif self._is_there(row, time) and not time <= last[row]:
                self._visit(row, time, last, since, found)
        return _extended(past, since, last, found)

    def audit(self, past: Histories, now: float) -> tuple[Histories, bool]:
        """Visit items of silent lists; return whether a list has lost its trust since the plan."""
        last, since, found = past.until.copy(), past.since.copy(), list[tuple[int, float, float]]()
        result = self.learned(past, now)
        for row in result.to_audit(self.coverage, self._with_lists(past), now).tolist():
            if self._is_there(row, now) and last[row] < now:
                self._visit(row, now, last, since, found)
        is_lost = bool((result.is_lost & ~self.lost).any())
        self.lost = result.is_lost
        return _extended(past, since, last, found), is_lost

    def _is_there(self, row: int, time: float) -> bool:
        return not self.world.began[row] > time and bool(self.world.ends[row] >= time)

    def look_daily(self, since: float, until: float) -> None:
        """Visit all lists daily, as in a first week without a plan, in which no flag is needed."""
        for number in range(len(self.lists)):
            first = since + self.rng.uniform(0, DAY_HOURS)
            for time in np.arange(first, until, DAY_HOURS).tolist():
                self._visit_list(number, time, *self._no_visits())

    def _no_visits(self) -> tuple[Floats, Floats, list[tuple[int, float, float]]]:
        return np.full(self.n, np.nan), np.full(self.n, np.nan), []

    def _visit_list(
        self, number: int, time: float, last: Floats, since: Floats,
        found: list[tuple[int, float, float]],
    ) -> None:  # fmt: skip
        lists, before = self.lists, self.last_list[number]
        self.last_list[number] = time
        self.looks[number].append(time)
        self.done.append((np.array([self.n + number]), np.array([time])))
        if np.isnan(before):
            return
        rows = lists.item[lists.first[number] : lists.first[number + 1]]
        new = _counts(self.shown, rows, before, min(time, lists.fails)) > 0
        new |= self.rng.random(len(rows)) < lists.false
        for row in rows[new].tolist():
            self.showed[row].append(time)
        for row in rows[new & self.follows[rows]].tolist():
            if self._is_there(row, time) and last[row] < time:
                self.followed.append(time)
                self.asked += 1
                self._visit(row, time, last, since, found)

    def _visit(
        self, row: int, time: float, last: Floats, since: Floats,
        found: list[tuple[int, float, float]],
    ) -> None:  # fmt: skip
        before = last[row]
        self.done.append((np.array([row]), np.array([time])))
        last[row] = time
        if np.isnan(before):
            since[row] = time
            return
        if not _counts(self.world.changes, np.array([row]), before, time)[0]:
            return
        found.append((row, before, time))


def simulate_lists(
    world: World, lists: Lists, terms: Terms, span: Span, rng: Generator,
    *, replan_hours: float = WEEK_HOURS, closed_loop: bool = False,
) -> Crawled:  # fmt: skip
    """Return all visits of the policy `optimal` with lists, as `pages.simulate` does without."""
    watch, past, now = _Watch(world, lists, terms, rng), never(len(world)), span.start
    begun: list[Times] = []
    if closed_loop:
        now = min(span.start + WEEK_HOURS, span.stop)
        begun.append(first_week(world, span.start, now))
        past = seen(past, begun[0], world.changes)
        watch.look_daily(span.start, now)
    else:
        past, now = polled(world, span.start, span.split), span.split
    recalls, due = list[Floats](), now
    while now < span.stop:
        # A list that has lost its trust changes the plan.
        past, is_lost = watch.audit(past, now)
        if is_lost or now >= due:
            made, due = watch.replan(past, now), now + replan_hours
            recalls.append(watch.recall)
        until = min(now + DAY_HOURS, due, span.stop)
        past = watch.visits(past, now, until)
        watch.expect(made, until - now)
        now = until
    visits = times_of(watch.n + len(lists), watch.done)
    n = watch.n
    pages = Times(visits.first[: n + 1], visits.at[: visits.first[n]])
    rest = Times(visits.first[n:] - visits.first[n], visits.at[visits.first[n] :])
    return Crawled(joined(n, [*begun, pages]), rest, np.array(watch.followed), np.array(recalls))


def _with_lists(population: Population, lists: Lists) -> Population:
    """Return pages and then their lists, which cost a request and hardly have a weight."""
    m = len(lists)
    first = lists.item[lists.first[:-1]]
    # Lists need keys of their own.
    key = population.key[first] * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    return replace(
        population,
        key=np.append(population.key, key),
        site=np.append(population.site, population.site[first]),
        group=np.append(population.group, population.group[first]),
        weight=np.append(population.weight, np.full(m, LEAST_WEIGHT)),
        cost=np.append(population.cost, np.ones(m)),
        min_hours=np.append(population.min_hours, np.ones(m)),
        max_hours=np.append(population.max_hours, population.max_hours[first]),
    )


def _times(rows: list[list[float]]) -> Times:
    at = [time for row in rows for time in row]
    return Times(offsets(np.array([len(row) for row in rows], np.int64)), np.array(at, np.float64))


def _shown_only(changes: Times, shown: Flags) -> Times:
    """Return the changes that lists show."""
    first = np.append(0, np.cumsum(shown))[changes.first]
    return Times(first, changes.at[shown])


def _counts(changes: Times, rows: Ints, after: float, until: float) -> Ints:
    """Return the number of changes of some pages after one time, and up to another."""
    result = np.zeros(len(rows), np.int64)
    for place, row in enumerate(rows.tolist()):
        at = changes.at[changes.first[row] : changes.first[row + 1]]
        low, high = np.searchsorted(at, (after, until), "right")
        result[place] = max(high - low, 0)
    return result


def _extended(
    past: Histories, since: Floats, until: Floats, found: list[tuple[int, float, float]]
) -> Histories:
    """Return the histories with more changes. found: row and interval of each."""
    rows = np.array([row for row, _, _ in found], np.int64)
    of = np.concatenate([np.repeat(np.arange(len(past)), np.diff(past.first)), rows])
    order = np.argsort(of, kind="stable")
    after = np.append(past.after, [after for _, after, _ in found])[order]
    by = np.append(past.by, [by for _, _, by in found])[order]
    return Histories(since, until, offsets(np.bincount(of, minlength=len(past))), after, by)
