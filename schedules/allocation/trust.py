"""Learn how many of the changes of their items sources show, and notice when they stop.

A crawl knows it from its own visits: a change that the source has shown is a hit, and a change that
a visit found is a miss if the next visit of the source does not show it, either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from schedules.allocation.signals import Coverage
from schedules.history import MINUTES, Flags, Floats, Histories, Ints, Times
from schedules.population import MONDAY_HOURS
from schedules.schedule import WEEK_HOURS

# The prior of a source: what the sources of its site have shown, with the weight of this many
# changes; and that of a site: one of four changes is shown, with the weight of four.
PRIOR_CHANGES, SITE_HITS, SITE_CHANGES = 4.0, 1.0, 4.0
# Even a source that has shown all changes misses some of the next ones; and items need visits that
# would notice.
MAX_RECALL = 0.98
# Expected flags are believed like this number of them.
EXPECTED_FLAGS, SCALES = 20.0, (0.5, 1.5)
# A source that shows nothing although this many changes were expected is audited: this many of its
# items are visited. If so many have changed, it has lost its trust, as if it had missed so many.
SILENCE, AUDITED, LOST_CHANGES, LOST_MISSES = 5.0, 6, 2, 10.0
# Changes of the last weeks count; their weight halves in a shorter time.
EVIDENCE_HOURS, HALF_LIFE_HOURS = 8.0 * WEEK_HOURS, 4.0 * WEEK_HOURS
# Misses depend on the recall, so both are found together, in this many rounds.
RECALL_ROUNDS = 4
# A change that was not shown stands for at most this many.
MAX_STANDS_FOR = 5.0
# When a source shows changes is smoothed over some hours to both sides, and mixed with as many
# changes at all hours.
BLUR_HOURS, EVEN_CHANGES = 3, 10.0
# Hours in floating point may be a little less than whole minutes.
MINUTE_ERROR = 1e-4
# A source and an item may be visited in the same minute of a crawl, in any order.
SAME_VISIT = 1 / MINUTES


def flag_scale(followed: float, expected: float) -> float:
    """Return the flags that were followed, divided by those that were expected."""
    scale = (followed + EXPECTED_FLAGS) / (expected + EXPECTED_FLAGS)
    return float(np.clip(scale, *SCALES))


@dataclass
class Trust:
    """Hold what is known about s sources.

    hits:   (s,) changes that each has shown
    misses: (s,) changes that a visit found and each had not shown
    quiet:  (s,) changes that each was expected to show since it last showed one
    """

    hits: Floats
    misses: Floats
    quiet: Floats

    @classmethod
    def of(cls, s: int) -> Self:
        """Return the trust in sources about which nothing is known."""
        return cls(np.zeros(s), np.zeros(s), np.zeros(s))

    def recall(self, site: Ints) -> Floats:
        """Return the (s,) expected share of changes that each source shows. site: (s,)."""
        hits, found = np.bincount(site, self.hits), np.bincount(site, self.hits + self.misses)
        of_site = (hits + SITE_HITS) / (found + SITE_CHANGES)
        own = self.hits + PRIOR_CHANGES * of_site[site]
        recall = own / (self.hits + self.misses + PRIOR_CHANGES)
        return np.minimum(recall, MAX_RECALL)


class Shown(NamedTuple):
    """Hold what s sources have shown of their m items.

    at:    (m,) newest times at which the source of each item showed another content of it
    since: (m,) time from which `at` is complete
    looks: (s,) times of the visits of each source
    """

    at: Times
    since: Floats
    looks: Times


class Learned(NamedTuple):
    """Hold what the log says about s sources.

    trust:  hits, misses, and the changes that each was expected to show since it last showed one
    missed: (s,) number of changes since then that visits found and the source did not show
    looked: (s,) number of changes since then that visits of items would have found
    """

    trust: Trust
    missed: Floats
    looked: Floats

    def judged(self) -> Trust:
        """Return the trust, in which sources that are silent and have missed changes have lost."""
        trust, lost = self.trust, self.is_lost
        hits, misses = np.where(lost, 0, trust.hits), np.where(lost, LOST_MISSES, trust.misses)
        return replace(trust, hits=hits, misses=misses)

    @property
    def is_suspect(self) -> Flags:
        """Return the (s,) flags of sources that show nothing although they should."""
        suspect: Flags = self.trust.quiet > SILENCE
        return suspect

    @property
    def is_lost(self) -> Flags:
        """Return the (s,) flags of sources that no longer show what they did."""
        lost: Flags = self.is_suspect & (self.missed >= LOST_CHANGES)
        return lost

    def to_audit(self, coverage: Coverage, histories: Histories, now: float) -> Ints:
        """Return the items to visit, which tell whether a silent source still shows changes."""
        silent = np.flatnonzero(self.is_suspect & ~self.is_lost & (self.looked < SILENCE))
        audited = [np.empty(0, np.int64)]
        for source in silent.tolist():
            items = coverage.item[coverage.first[source] : coverage.first[source + 1]]
            likely = _rates(histories, items) * (now - histories.until[items])
            audited.append(items[np.argsort(-likely, kind="stable")[:AUDITED]])
        return np.concatenate(audited)


def learned(
    coverage: Coverage, histories: Histories, shown: Shown, site: Ints, now: float
) -> Learned:
    """Return what the visits of the last weeks say about s sources.

    coverage: which targets each source shows; its recall is not used
    site:     (s,) whose sources are alike
    """
    s, n, items = len(coverage.source), len(histories), coverage.item
    place_of = np.full(n, -1)
    place_of[items] = np.arange(len(items))
    place = place_of[np.repeat(np.arange(n), np.diff(histories.first))]
    found = np.flatnonzero(place >= 0)
    found = found[np.argsort(place[found], kind="stable")]
    place, after, by = place[found], histories.after[found], histories.by[found]
    looks = _moments(shown.looks)
    shows = _as_found(shown, coverage.owner, looks, place, by)

    since = np.maximum(shown.since, now - EVIDENCE_HOURS)
    recent = after >= since[place] - 1 / MINUTES
    place, after, by = place[recent], after[recent], by[recent]
    owner, weight = coverage.owner[place], 0.5 ** ((now - by) / HALF_LIFE_HOURS)
    flags = _ends(shows, place, by + SAME_VISIT) - _ends(shows, place, after)
    until = np.nan_to_num(histories.until[coverage.source], nan=-np.inf)
    # A later visit of the source would have shown the change. If it has shown something before, it
    # may have been this change.
    given = _moments(shown.at)
    is_shown = _ends(given, place, by + SAME_VISIT) > _ends(given, place, after)
    is_missed = (flags == 0) & ~is_shown & (until[owner] > by + SAME_VISIT)
    # A visit that a shown change has caused does not tell whether there was another change, too. So
    # a missed change stands for those of all the time of its item.
    begun = np.maximum(np.nan_to_num(histories.since[items], nan=np.inf), since)
    hours = np.maximum(np.nan_to_num(histories.until[items]) - begun, 1.0)
    masked = np.bincount(place, (by - after) * (flags > 0), len(items))
    stands_for = 1 / np.maximum(1 - masked / hours, 1 / MAX_STANDS_FOR)

    trust = Trust.of(s)
    trust.hits = _sums(owner, weight * flags, s)
    changes = _rates(histories, items[place]) * (by - after)
    for _ in range(RECALL_ROUNDS):
        # A visit finds several changes as one.
        hidden = np.maximum((1 - trust.recall(site)[owner]) * changes, 1e-9)
        several = stands_for[place] * hidden / -np.expm1(-hidden)
        trust.misses = _sums(owner, weight * several * is_missed, s)
    last = np.full(s, -np.inf)
    showing = np.repeat(coverage.owner, np.diff(shown.at.first))
    np.maximum.at(last, showing, shown.at.at)
    counted = _sums(owner, is_missed & (by > last[owner]), s)

    begun = np.nan_to_num(histories.since[coverage.source], nan=np.inf)
    rates = _sums(coverage.owner, _rates(histories, items), s) * WEEK_HOURS
    weeks = _weeks(showing, shown.at.at, s, np.maximum(last, begun), until)
    trust.quiet = trust.recall(site) * rates * weeks
    calm = np.maximum(last, begun)[coverage.owner]
    visited = np.maximum(np.nan_to_num(histories.until[items]) - calm, 0)
    found_by_now = _sums(coverage.owner, _rates(histories, items) * visited, s)
    return Learned(trust, counted, found_by_now)


def _weeks(showing: Ints, at: Floats, s: int, since: Floats, until: Floats) -> Floats:
    """Return the (s,) lengths of periods in weeks, by when each source usually shows changes.

    showing, at: source and time of each shown change
    """
    hour = ((at - MONDAY_HOURS) % WEEK_HOURS).astype(np.int64)
    counts = np.bincount(showing * WEEK_HOURS + hour, minlength=s * WEEK_HOURS)
    each: Floats = counts.reshape(s, WEEK_HOURS).astype(np.float64)
    near = each.copy()
    for k in range(1, BLUR_HOURS + 1):
        near += np.roll(each, k, axis=1) + np.roll(each, -k, axis=1)
    usual = near / (2 * BLUR_HOURS + 1) + EVEN_CHANGES / WEEK_HOURS
    mass = np.cumsum(usual, axis=1) / usual.sum(axis=1, keepdims=True)
    mass = np.concatenate([np.zeros((s, 1)), mass], axis=1)
    rows = np.arange(s)

    def place(time: Floats) -> Floats:
        weeks, hours = np.divmod(time - MONDAY_HOURS, WEEK_HOURS)
        whole = hours.astype(np.int64)
        before, after = mass[rows, whole], mass[rows, whole + 1]
        return np.asarray(weeks + before + (hours - whole) * (after - before))

    is_period = np.isfinite(since) & np.isfinite(until) & (until > since)
    since, until = np.where(is_period, since, 0.0), np.where(is_period, until, 0.0)
    return place(until) - place(since)


def _as_found(shown: Shown, source: Ints, looks: Ints, place: Ints, by: Floats) -> Ints:
    """Return the moments at which items were shown with another content, or changed before.

    A source shows a change that a visit has found since the source's visit before, too. Such a
    moment counts as that of the change, else it would count for the next one.

    source: (m,) of each item
    looks:  moments of the visits of the sources
    place, by: (c,) item and time of each found change, in this order
    """
    item = np.repeat(np.arange(len(source)), np.diff(shown.at.first))
    at, owner = shown.at.at, source[item]
    before = _last(looks, shown.looks.at, owner, np.searchsorted(looks, _keys(owner, at)))
    changes = _keys(place, by)
    known = _last(changes, by, item, _ends(changes, item, at + SAME_VISIT))
    moments = _keys(item, np.where(known > before, np.minimum(known, at), at))
    return np.sort(moments)


def _last(moments: Ints, at: Floats, row: Ints, end: Ints) -> Floats:
    """Return the time of the last moment of each row before a place; -inf without one."""
    if not len(moments):
        return np.full(len(row), -np.inf)
    place = np.maximum(end - 1, 0)
    times: Floats = np.where((end > 0) & (moments[place] >> 32 == row), at[place], -np.inf)
    return times


def _ends(moments: Ints, row: Ints, at: Floats) -> Ints:
    """Return how many of the ordered moments are not later than a time of each row."""
    return np.searchsorted(moments, _keys(row, np.maximum(at, 0)), side="right")


def _moments(times: Times) -> Ints:
    """Return a number for each time, ordered by row and time."""
    return _keys(np.repeat(np.arange(len(times.first) - 1), np.diff(times.first)), times.at)


def _keys(row: Ints, at: Floats) -> Ints:
    """Return a number for each row and minute; histories have whole minutes."""
    keys: Ints = (row << 32) | np.floor(at * MINUTES + MINUTE_ERROR).astype(np.int64)
    return keys


def _sums(owner: Ints, weight: Floats, s: int) -> Floats:
    """Return the (s,) sums of the weights of each source."""
    return np.asarray(np.bincount(owner, weight, s), np.float64)


def _rates(histories: Histories, rows: Ints) -> Floats:
    """Return the observed changes of some targets an hour; 0 before the second observation."""
    watched = np.nan_to_num(histories.until[rows] - histories.since[rows])
    rates: Floats = np.diff(histories.first)[rows] / np.maximum(watched, WEEK_HOURS)
    return rates
