"""The silence alarm on real pages and feeds: `make bench ARGS="--silence FOLDER"`.

FOLDER has `pages/changes.csv.gz`, `pages/pages.csv`, `feeds/busy/posts.csv.gz` and `feeds.csv`. The
targets are visited hourly. On each day of the test weeks, the alarm is computed from the past only,
with its own threshold. All alarms of these days count as false. Then each target is stopped after
its last change before each Monday, and stays silent. The fixed limit is a multiple of the same mean
gap. It is chosen in hindsight to raise the same number of alarms, and its alarms of one site are
combined in the same way.

No public data has the history of single fields. Their changes are therefore those of real pages:
FIELDS pages of a site are the fields of an item, which changes whenever one of them does. Freshet
stores only the newest changes of such an item, so a field that changes seldom has a short history.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from crawler.planning.traces import read_feed_trace, read_trace
from schedules.estimation import silence
from schedules.estimation.estimate import site_mixtures
from schedules.evaluation.world import even_population
from schedules.history import MAX_FIELD_CHANGES, Floats, Histories, Ints, Times, offsets, places_of
from schedules.population import Population
from schedules.schedule import WEEK_HOURS

HOUR = 3600
# Greater than any time in hours since 1970.
HOURS = 1_000_000.0
WITHIN = (2.0, 4.0, 8.0)
ALLOWED = (1.0, 2.0, 5.0)
# Number of fields of an item.
FIELDS = 8


@dataclass(frozen=True)
class Real:
    """The trace of real targets. start, split, stop: in hours since 1970 (UTC).

    combined: alarms of one site are combined
    item:     (n,) the item of each field; None: the targets are whole pages or feeds
    """

    name: str
    changes: Times
    began: Floats
    site: Ints
    start: float
    split: float
    stop: float
    combined: bool
    item: Ints | None = None

    @property
    def kind(self) -> Ints:
        """Return the (n,) groups of combined alarms: sites, or fields of the items of a site."""
        if self.item is None:
            return self.site
        begins = np.searchsorted(self.item, self.item)
        return self.site * FIELDS + np.arange(len(self.item)) - begins

    @cached_property
    def items(self) -> Real:
        """Return the items of fields, or the targets themselves if they are not fields."""
        if self.item is None:
            return self
        n = int(self.item[-1]) + 1
        first = np.searchsorted(self.item, np.arange(n + 1))
        changes = Times(self.changes.first[first], self.changes.at)
        began = np.fmin.reduceat(self.began, first[:-1])
        return replace(self, changes=changes, began=began, site=self.site[first[:-1]], item=None)

    def population(self) -> Population:
        """Return the targets without visit limits."""
        n = len(self.site)
        key = np.random.default_rng(1).integers(0, 2**63, n).astype(np.uint64)
        until = self.stop + 60 * WEEK_HOURS
        return even_population(key, self.site, np.ones(n), (1.0, 672.0), self.start, until)

    def seen(self, until: float) -> Histories:
        """Return the histories as of a time, of hourly visits since the start."""
        target = np.repeat(np.arange(len(self.site)), np.diff(self.changes.first))
        since = np.minimum(np.ceil(np.maximum(np.nan_to_num(self.began), self.start)), until)
        by = np.ceil(self.changes.at)
        kept = (by > since[target]) & (by <= until)
        found = np.unique(np.stack([target[kept], by[kept].astype(np.int64)]), axis=1)
        first = offsets(np.bincount(found[0], minlength=len(self.site)))
        at = found[1].astype(np.float64)
        return self.until(Histories(since, np.full(len(since), until), first, at - 1, at))

    def until(self, past: Histories, until: Floats | None = None) -> Histories:
        """Return histories that end later, without changes since.

        Histories of fields are limited to the newest changes of their item.
        """
        past = past if until is None else replace(past, until=until)
        if self.item is None:
            return past
        found = self._changes_of_items
        after = np.searchsorted(found, self.item * HOURS + past.until, "right")
        oldest = after - MAX_FIELD_CHANGES - 1
        is_full = (oldest >= 0) & (found[oldest] // HOURS == self.item)
        since = np.where(is_full, np.fmax(past.since, found[oldest] % HOURS), past.since)
        target = np.repeat(np.arange(len(past)), np.diff(past.first))
        kept = past.by > since[target]
        first = offsets(np.bincount(target[kept], minlength=len(past)))
        return Histories(since, past.until, first, past.after[kept], past.by[kept])

    @cached_property
    def _changes_of_items(self) -> Floats:
        """Return the hours of changes of all items in order, each with its item times HOURS."""
        changes = self.items.changes
        item = np.repeat(np.arange(len(self.items.site)), np.diff(changes.first))
        return np.unique(item * HOURS + np.ceil(changes.at))


def run(folder: Path) -> int:
    """Print the false alarms and the share of stopped targets that are detected."""
    table = Table("targets", "alarm", "false alarms", "allowed", *(f"{k:g} gaps" for k in WITHIN))
    pages = pages_of(folder / "pages")
    for real in (pages, feeds_of(folder / "feeds" / "busy"), fields_of(pages)):
        began = time.process_time()
        for row in compared(real):
            table.add_row(real.name, *row)
        Console(stderr=True).print(f"{real.name}: {time.process_time() - began:.0f} s of CPU time")
    Console().print(table)
    return 0


def compared(real: Real) -> list[tuple[str, ...]]:
    """Return two table rows: the detector, and the fixed limit with the same number of alarms."""
    population, days = real.population(), np.arange(real.split, real.stop + 1, 24.0)
    items = real.items.population()
    alpha = {a: a / 1000 * len(population) for a in ALLOWED}
    ours, fixed, since, thresholds = [], [], [], {a: [] for a in ALLOWED}
    stopped: list[tuple[Floats, Floats, float]] = []
    for day, now in enumerate(days):
        past = real.seen(now)
        mixtures = site_mixtures(items, real.items.seen(now))
        prior = silence.fit_gaps(population, past, mixtures)
        ratings = silence.rate_silences(population, past, mixtures, prior)
        for a in ALLOWED:
            rate = silence.allowed_per_target(alpha[a], len(population))
            tail = silence.calibrated(
                population, past, mixtures, prior, rate, combined=real.combined
            )
            thresholds[a].append(tail.threshold(rate))
        ours.append(ratings.score)
        fixed.append(np.nan_to_num((now - ratings.since) / WEEK_HOURS / ratings.gap))
        since.append(np.nan_to_num(ratings.since))
        if day % 7 == 0 and day + 1 < len(days):
            rated = np.flatnonzero(ratings.rated)
            for within in WITHIN:
                gap = np.nan_to_num(ratings.gap) * WEEK_HOURS
                until = np.where(gap > 0, np.nan_to_num(ratings.since) + within * gap, now)
                until = np.minimum(until, real.stop + 50 * WEEK_HOURS)
                later = silence.rate_silences(population, real.until(past, until), mixtures, prior)
                stopped.append((later.score[rated], np.full(len(rated), within), float(day)))
    weeks = (real.stop - real.split) / WEEK_HOURS
    kind = real.kind
    rated = silence.shared_from(
        np.bincount(kind[ratings.rated], minlength=int(kind.max()) + 1), combined=real.combined
    )
    rows = []
    for a in ALLOWED:
        limits = np.array(thresholds[a])
        count = messages(np.array(ours), np.array(since), kind, limits, rated)
        shares = [
            np.concatenate(
                [score >= limits[int(day)] for score, gaps, day in stopped if gaps[0] == within]
            ).mean()
            for within in WITHIN
        ]
        rows.append(_row("silence alarm", count, alpha[a], weeks, shares))
        limit = same_number(np.array(fixed), np.array(since), kind, rated, count)
        of_limit = [float(within >= limit) for within in WITHIN]
        rows.append(_row(f"{limit:.1f} mean gaps", count, alpha[a], weeks, of_limit))
    return rows


def _row(
    name: str, count: int, allowed: float, weeks: float, shares: list[float]
) -> tuple[str, ...]:
    found = (f"{share:.1%}" for share in shares)
    return name, f"{count / weeks:.2f} a week", f"{allowed:.2f} a week", *found


def messages(score: Floats, since: Floats, site: Ints, limits: Floats, shared: Ints) -> int:
    """Return the number of alarms; alarms of one site are combined as in the product.

    score, since: (days, n)   limits: (days,)   shared: (s,) number of silent targets from which a
    site's alarms are combined
    """
    alarmed = np.where(score[0] >= limits[0], since[0], -1.0)
    was_shared = np.zeros(len(shared), np.bool_)
    total = 0
    for day in range(1, len(score)):
        open_before = alarmed == since[day]
        new = (score[day] >= limits[day]) & ~open_before
        alarmed = np.where(new, since[day], alarmed)
        is_open = open_before | new
        is_shared = np.bincount(site[is_open], minlength=len(shared)) >= shared
        total += int((is_shared & ~was_shared).sum()) + int((new & ~is_shared[site]).sum())
        was_shared = is_shared
    return total


def same_number(score: Floats, since: Floats, site: Ints, shared: Ints, count: int) -> float:
    """Return the smallest fixed limit with at most `count` alarms."""
    candidates = np.geomspace(1.0, 100.0, 200)
    for limit in candidates:
        if messages(score, since, site, np.full(len(score), limit), shared) <= count:
            return float(limit)
    return float(candidates[-1])


def pages_of(folder: Path) -> Real:
    """Return the trace of pages: three training weeks and six test weeks."""
    trace = read_trace(folder / "changes.csv.gz")
    days = map(hours, ("2024-01-01T00:00Z", "2024-01-22T00:00Z", "2024-03-04T00:00Z"))
    return Real("pages", trace.changes, trace.began, trace.source, *days, combined=True)


def feeds_of(folder: Path) -> Real:
    """Return the trace of feeds: three training weeks and three test weeks."""
    trace = read_feed_trace(folder / "posts.csv.gz")
    n = len(trace)
    days = map(hours, ("2024-01-01T00:00Z", "2024-01-22T00:00Z", "2024-02-12T00:00Z"))
    return Real(
        "feeds", trace.posts, np.full(n, np.nan), np.zeros(n, np.int64), *days, combined=False
    )


def fields_of(pages: Real) -> Real:
    """Return the pages as fields: FIELDS pages of a site, in the order of the file, are an item."""
    order = np.argsort(pages.site, kind="stable")
    site = pages.site[order]
    place = np.arange(len(site)) - np.searchsorted(site, site)
    item = np.cumsum(place % FIELDS == 0) - 1
    first, at = places_of(order, pages.changes.first)
    changes = Times(first, pages.changes.at[at])
    return replace(
        pages, name="fields", changes=changes, began=pages.began[order], site=site, item=item
    )


def hours(text: str) -> float:
    """Return hours since 1970 (UTC)."""
    return datetime.fromisoformat(text).timestamp() / HOUR
