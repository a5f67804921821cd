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
from schedules.allocation.signals import LEAST_WEIGHT, Coverage, Signaled, believed
from schedules.allocation.trust import AUDITED, Trust
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
from schedules.population import MONDAY_HOURS, Population
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
        # Last visit of each page that has found a change.
        self.found_at = np.full(n, -np.inf)
        # Last time at which a list showed something new of a page that may have been known.
        self.unclear_at = np.full(n, -np.inf)
        # Of each page, as of the last plan: changes a week, and whether flags are followed.
        self.rate, self.follows = np.zeros(n), np.zeros(n, np.bool_)
        self.trust = Trust.of(m)
        self.done: list[tuple[Ints, Floats]] = []
        self.followed: list[float] = []

    def replan(self, past: Histories, now: float) -> Plan:
        """Plan the pages that exist now, and all lists."""
        there, n, m = self.world.there(now), self.n, len(self.lists)
        rows = np.concatenate([there, np.arange(n, n + m)])
        recall = self.recall = self.trust.recall(self.site)
        self.scale = self.trust.scale
        coverage = Coverage(
            np.arange(n, n + m), self.lists.first, self.lists.item,
            np.repeat(recall, np.diff(self.lists.first)), self.scale,
        )  # fmt: skip
        made = plan(
            self.population.of(rows), self._histories(past, recall).of(rows), self.terms, now,
            self.current.of(rows), coverage.of(rows, n + m),
        )  # fmt: skip
        self.current = placed(made.schedules, rows, n + m)
        self.rate, self.follows = np.zeros(n), np.zeros(n, np.bool_)
        self.rate[there] = made.rate[: len(there)]
        self.follows[there] = made.follows[: len(there)]
        self._expect(made.signals)
        return made

    def _expect(self, signals: Signaled | None) -> None:
        """Remember what each list is expected to show, by the hour of the week."""
        m = len(self.lists)
        self.shown_rate, self.shown_mass = np.zeros(m), np.zeros((m, WEEK_HOURS + 1))
        if signals is not None and signals.estimates.given is not None:
            self.shown_rate = signals.shown_rate
            self.shown_mass[:, 1:] = np.cumsum(signals.estimates.given.profile, axis=1)

    def _expected(self, number: int, after: float, until: float) -> float:
        """Return the number of changes that a list is expected to show of a period (UTC clock)."""
        weeks, hours = np.divmod(np.array([after, until]) - MONDAY_HOURS, WEEK_HOURS)
        mass = weeks + np.interp(hours, np.arange(WEEK_HOURS + 1), self.shown_mass[number])
        return float(self.shown_rate[number] * (mass[1] - mass[0]))

    def _histories(self, past: Histories, recall: Floats) -> Histories:
        """Return the histories of pages and lists.

        A page of which its list has shown nothing since its last visit is probably unchanged.
        """
        n, m = self.n, len(self.lists)
        since, until = (
            np.append(past.since, np.full(m, np.nan)),
            np.append(past.until, np.full(m, np.nan)),
        )
        rows = np.flatnonzero(self.list_of >= 0)
        number = self.list_of[rows]
        until[rows] = believed(past.until[rows], self.last_list[number], recall[number])
        return Histories(
            since, until, np.append(past.first, np.full(m, past.first[n])), past.after, past.by
        )

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
                self._visit(row, time, last, since, found, flagged_after=None)
        return _extended(past, since, last, found)

    def audit(self, past: Histories, now: float) -> tuple[Histories, bool]:
        """Visit items of lists that are suspiciously silent; return whether any trust is lost."""
        last, since, found = past.until.copy(), past.since.copy(), list[tuple[int, float, float]]()
        is_lost = False
        for number in self.trust.suspects().tolist():
            rows = self.lists.item[self.lists.first[number] : self.lists.first[number + 1]]
            rows = rows[self.follows[rows] & ~(last[rows] >= now)]
            likely = np.argsort(-self.rate[rows] * (now - last[rows]), kind="stable")
            before = len(found)
            for row in rows[likely][:AUDITED].tolist():
                if self._is_there(row, now):
                    self._visit(row, now, last, since, found, flagged_after=None)
            is_lost |= self.trust.audited(number, len(found) - before)
        return _extended(past, since, last, found), is_lost

    def _is_there(self, row: int, time: float) -> bool:
        return not self.world.began[row] > time and bool(self.world.ends[row] >= time)

    def _visit_list(
        self, number: int, time: float, last: Floats, since: Floats,
        found: list[tuple[int, float, float]],
    ) -> None:  # fmt: skip
        lists, before = self.lists, self.last_list[number]
        self.last_list[number] = time
        self.done.append((np.array([self.n + number]), np.array([time])))
        if np.isnan(before):
            return
        rows = lists.item[lists.first[number] : lists.first[number + 1]]
        new = _counts(self.shown, rows, before, min(time, lists.fails)) > 0
        new |= self.rng.random(len(rows)) < lists.false
        is_quiet = not new[self.follows[rows]].any()
        self.trust.looked(number, self._expected(number, before, time), is_quiet=is_quiet)
        # What a visit since then has found is new on the list, but no longer to us.
        is_known = self.found_at[rows] > before
        self.unclear_at[rows[new & is_known]] = time
        new &= ~is_known
        for row in rows[new & self.follows[rows]].tolist():
            if self._is_there(row, time) and last[row] < time:
                self.followed.append(time)
                self._visit(row, time, last, since, found, flagged_after=before)

    def _visit(
        self, row: int, time: float, last: Floats, since: Floats,
        found: list[tuple[int, float, float]], flagged_after: float | None,
    ) -> None:  # fmt: skip
        before, number = last[row], int(self.list_of[row])
        self.done.append((np.array([row]), np.array([time])))
        last[row] = time
        if np.isnan(before):
            since[row] = time
            return
        is_changed = bool(_counts(self.world.changes, np.array([row]), before, time)[0])
        if flagged_after is not None:
            self.trust.followed(number, hit=is_changed)
        if not is_changed:
            return
        is_clear = self.unclear_at[row] <= before
        if flagged_after is None and number >= 0 and self.follows[row] and is_clear:
            # The list has missed a change that came before its last visit.
            looked = np.nan_to_num(self.last_list[number], nan=before)
            share = float(np.clip((looked - before) / (time - before), 0, 1))
            changes = float(self.rate[row]) * (time - before) / WEEK_HOURS
            self.trust.missed(number, share, float(self.recall[number]), changes)
        self.found_at[row] = time
        after = before if flagged_after is None else max(before, flagged_after)
        found.append((row, after, time))


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
    else:
        past, now = polled(world, span.start, span.split), span.split
    recalls, due = list[Floats](), now
    while now < span.stop:
        # A list that has lost its trust changes the plan.
        past, is_lost = watch.audit(past, now)
        if is_lost or now >= due:
            made, due = watch.replan(past, now), now + replan_hours
            recalls.append(watch.trust.recall(watch.site))
        until = min(now + DAY_HOURS, due, span.stop)
        past = watch.visits(past, now, until)
        unscaled = made.flags_per_day / watch.scale
        watch.trust.expected += unscaled * (until - now) / DAY_HOURS
        watch.trust.forget(until - now)
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
