"""Plan with signals: pages that show changes of other pages, such as lists that show prices.

A visit of a source (a list page, a sitemap, a feed) shows a share of the changes of each item that
it covers, the recall. So the changes of an item are two processes: those that its source shows, and
those that only a visit of the item finds. The plan follows from that:

- An item is polled for what its source misses: with recall q, at the rate (1 - q) r.
- A source is worth the sum over its items. It is planned as one target whose weight is the sum of
  q w over its items, whose profile is that of the changes it shows, and whose rates are those of
  its items.
- Shown changes cost visits of items. These are estimated and taken from the budget before.

So one price clears polls and sources. An item that changes so fast that a copy is out of date again
before it has repaid its visit is polled as without a source, and its flags are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from schedules.cost import Objective
from schedules.estimation.estimate import NODES, Estimate, GivenProfiles, Rates
from schedules.history import Flags, Floats, Ints, offsets, places_of
from schedules.schedule import WEEK_HOURS

# A flag is followed if the copy is expected to stay current for this share of the price of a visit.
# On the public pages, 0.25 to 0.5 give the same freshness, 1 gives 0.01 less.
WORTHWHILE = 0.35
# Rates of items that are polled for what their source misses are at least this.
LEAST_RATE = 1e-4
# A source without items is planned like a target that never changes.
LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class Coverage:
    """Hold which of n targets show changes of which others.

    source: (s,) ascending rows of the targets that show changes of others
    first:  (s + 1,) offsets into `item`
    item:   (m,) rows that each source shows; an item has at most one source
    recall: (m,) expected share of the item's changes that its source shows, below 1
    scale:  flags that were followed so far, divided by those that were expected
    """

    source: Ints
    first: Ints
    item: Ints
    recall: Floats
    scale: float = 1.0

    @classmethod
    def none(cls) -> Coverage:
        """Return the coverage of targets without any source."""
        no_rows = np.empty(0, np.int64)
        return cls(no_rows, np.zeros(1, np.int64), no_rows, np.empty(0))

    @classmethod
    def of_edges(cls, item: Ints, source: Ints, recall: Floats) -> Coverage:
        """Return the coverage of edges as of `one_source_each`.

        item, source: (m,) rows of the targets of each edge, by source
        recall: (m,) of each edge
        """
        sources, counts = np.unique(source, return_counts=True)
        return cls(sources, offsets(counts), item, recall)

    def with_items(self, kept: Flags) -> Coverage:
        """Return the coverage of some items. kept: (m,)."""
        counts = np.bincount(self.owner[kept], minlength=len(self.source))
        return replace(self, first=offsets(counts), item=self.item[kept], recall=self.recall[kept])

    def of(self, rows: Ints, n: int) -> Coverage:
        """Return the coverage of some of n targets. rows: ascending."""
        number = np.full(n, -1)
        number[rows] = np.arange(len(rows))
        kept = np.flatnonzero(number[self.source] >= 0)
        first, place = places_of(kept, self.first)
        owner = np.repeat(np.arange(len(kept)), np.diff(first))
        there = number[self.item[place]] >= 0
        counts = np.bincount(owner[there], minlength=len(kept))
        return Coverage(
            number[self.source[kept]], offsets(counts), number[self.item[place[there]]],
            self.recall[place[there]], self.scale,
        )  # fmt: skip

    @property
    def owner(self) -> Ints:
        """Return the (m,) number of each item's source."""
        return np.repeat(np.arange(len(self.source)), np.diff(self.first))


def one_source_each(item: Ints, source: Ints, recall: Floats) -> Ints:
    """Return the (m,) edges, by source, that give each item one of the sources that show it.

    item, source: (k,) rows of the targets of each edge
    recall: (k,) of each edge: the highest counts, then the source that shows most items
    """
    shows = np.bincount(source, minlength=1)[source]
    order = np.lexsort((source, -shows, -recall, item))
    best = order[np.flatnonzero(np.diff(item[order], prepend=-1))]
    chosen: Ints = best[np.lexsort((item[best], source[best]))]
    return chosen


def believed(until: Floats, looked: Floats, recall: Floats) -> Floats:
    """Return until when items are taken to be unchanged, of which their sources have shown nothing.

    until:  (m,) last observation of each item
    looked: (m,) last observation of its source
    recall: (m,) share of the item's changes that the source shows
    """
    believed: Floats = until + recall * np.maximum(np.nan_to_num(looked - until), 0)
    return believed


def is_worthwhile(rate: Floats, worth: Floats, price: float, aim: Objective) -> Flags:
    """Return the (n,) flags of targets whose copies stay current long enough to repay a visit.

    rate:  (n,) changes a week
    worth: (n,) importance divided by cost
    price: of a request
    """
    current_hours = WEEK_HOURS / np.maximum(rate, LEAST_RATE)
    worthwhile: Flags = aim.stale * worth * current_hours >= WORTHWHILE * price
    return worthwhile


class Signaled(NamedTuple):
    """Hold the estimates with which sources are planned, and what they show.

    estimates: of n targets; items have the rates that their sources miss
    shown:     the coverage of the items whose flags are worth a visit
    node:      (m, NODES) rates of these items, of all of their changes
    """

    estimates: Estimate
    shown: Coverage
    node: Floats

    def flagged(self, visits: Floats) -> Floats:
        """Return the (s,) flags a week that are followed. visits: (s,) of the sources, a week."""
        often = np.maximum(visits, 1e-9)[self.shown.owner, None]
        seen = self.shown.recall[:, None] * self.node / often
        flags = (often * -np.expm1(-seen)).mean(axis=1) * self.shown.scale
        return np.asarray(np.bincount(self.shown.owner, flags, len(self.shown.source)), np.float64)

    def stale_shown(self, visits: Floats) -> Floats:
        """Return the (m,) share of time in which a shown change waits for the next source visit.

        visits: (s,) of the sources, a week
        """
        often = np.maximum(visits, 1e-9)[self.shown.owner, None]
        x = np.maximum(self.shown.recall[:, None] * self.node / often, 1e-9)
        result: Floats = (1 + np.expm1(-x) / x).mean(axis=1)
        return result


def signaled(estimates: Estimate, coverage: Coverage, price: float, aim: Objective) -> Signaled:
    """Return the estimates for a plan in which sources show changes of items.

    price: of a request
    """
    rates, population = estimates.all_rates, estimates.population
    worth = population.weight / population.cost
    items = coverage.item
    shown = coverage.with_items(is_worthwhile(rates.mean[items], worth[items], price, aim))
    node, weight = rates.node.copy(), population.weight.copy()
    full = node[shown.item]
    node[shown.item] = np.maximum(full * (1 - shown.recall)[:, None], LEAST_RATE)
    # What a source changes itself, such as new links, counts like one more item that it shows.
    source = shown.source
    owner = np.concatenate([shown.owner, np.arange(len(source))])
    members = np.concatenate([shown.item, source])
    own = weight[members] * np.concatenate([shown.recall, np.ones(len(source))])
    weight[source] = np.maximum(np.bincount(owner, own, len(source)), LEAST_WEIGHT)
    node[source] = _quantiles(owner, rates.node[members], own, len(source))
    given = GivenProfiles(source, _shown_profiles(estimates, members, owner, own, len(source)))
    mean = node.mean(axis=1)
    is_changed = np.zeros(len(population), np.bool_)
    is_changed[shown.item] = is_changed[source] = True
    changed = Rates(
        node, np.where(is_changed, mean, rates.mean),
        np.where(is_changed, np.minimum(rates.low, mean), rates.low),
        np.where(is_changed, np.maximum(rates.high, mean), rates.high),
    )  # fmt: skip
    planned = replace(
        estimates, population=replace(population, weight=weight), all_rates=changed, given=given
    )
    return Signaled(planned, shown, full)


def _quantiles(owner: Ints, node: Floats, weight: Floats, s: int) -> Floats:
    """Return (s, NODES) equally likely rates for the weighted rates of the members of each source.

    owner: (k,) source of each member; weight: (k,); node: (k, NODES) rates of a member
    """
    rate, each = node.ravel(), np.repeat(weight / NODES, NODES)
    of = np.repeat(owner, NODES)
    order = np.lexsort((rate, of))
    rate, each, of = rate[order], each[order], of[order]
    begins = np.searchsorted(of, np.arange(s))
    total = np.maximum(np.bincount(of, each, s), 1e-300)
    running = np.cumsum(each)
    before = running - each - np.append(0.0, running)[begins][of]
    low, high = before / total[of], (before + each) / total[of]
    result = np.empty((s, NODES))
    for k in range(NODES):
        share = np.clip(np.minimum(high, (k + 1) / NODES) - np.maximum(low, k / NODES), 0, None)
        result[:, k] = np.bincount(of, share * rate, s) * NODES
    return np.maximum(result, LEAST_RATE)


def _shown_profiles(
    estimates: Estimate, members: Ints, owner: Ints, weight: Floats, s: int
) -> Floats:
    """Return the (s, 168) profiles of the changes that each source shows."""
    share = weight * estimates.all_rates.mean[members]
    total = np.zeros((s, WEEK_HOURS))
    for part in member_parts(len(members)):
        rows = members[part]
        order = np.unique(rows)
        own = estimates.of(order).profiles(slice(0, len(order)))
        place = np.searchsorted(order, rows)
        np.add.at(total, owner[part], own[place] * share[part, None])
    return np.asarray(total / np.maximum(total.sum(axis=1, keepdims=True), 1e-300))


def member_parts(n: int) -> list[slice]:
    """Return the parts in which members are read, so that profiles need little memory."""
    size = 20_000
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
