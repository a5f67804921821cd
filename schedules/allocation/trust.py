"""Learn how many of the changes of their items sources show, and notice when they stop.

A crawl knows it from its own visits: a flag that found a change is a hit, and a change that a visit
found without a flag is a miss, if it came before the last visit of the source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from schedules.allocation.signals import Coverage
from schedules.history import MINUTES, Flags, Floats, Histories, Ints, Times
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
# Evidence counts half after this time, and flags that were expected after a shorter one.
HALF_LIFE_HOURS, RECENT_HOURS = 4.0 * WEEK_HOURS, float(WEEK_HOURS)


@dataclass
class Trust:
    """Learn how many of the changes of their items s sources show.

    hits:   (s,) changes that were found because of a flag
    misses: (s,) changes that a visit found which the source had not shown
    quiet:  (s,) changes that each source was expected to show since it last showed one
    expected: number of flags that plans expected to be followed, before they were scaled
    asked:    number of these that were
    """

    hits: Floats
    misses: Floats
    quiet: Floats
    expected: float = 0.0
    asked: float = 0.0

    @classmethod
    def of(cls, s: int) -> Self:
        """Return the trust in sources about which nothing is known."""
        return cls(np.zeros(s), np.zeros(s), np.zeros(s))

    def followed(self, source: int, *, hit: bool) -> None:
        """Count a visit that a flag has caused. hit: whether it found a change."""
        self.hits[source] += hit
        self.asked += 1

    def missed(self, source: int, share: float, recall: float, changes: float) -> None:
        """Count a change that a source has not shown, if it came before the source's last visit.

        share:   share of the time since the previous visit that is before the source's last visit
        recall:  share of changes that the source shows, as expected so far; what a source had shown
                 would have been flagged, so the change came rather after its visit
        changes: expected number of changes since the previous visit; a visit finds several as one
        """
        self.misses[source] += float(missed_changes(share, recall, changes))

    def looked(self, source: int, expected: float, *, is_quiet: bool) -> None:
        """Count a visit of a source.

        expected: number of changes that it was expected to show
        is_quiet: whether it showed none
        """
        self.quiet[source] = self.quiet[source] + expected if is_quiet else 0.0

    def suspects(self) -> Ints:
        """Return the sources that show nothing although they should: audit some of their items."""
        return np.flatnonzero(self.quiet > SILENCE)

    def audited(self, source: int, changed: int) -> bool:
        """Judge a suspect by the number of audited items that have changed; return if it is lost.

        The evidence for a source that is lost counts no more: it has changed.
        """
        self.quiet[source] = 0.0
        if changed < LOST_CHANGES:
            return False
        self.hits[source], self.misses[source] = 0.0, LOST_MISSES
        return True

    def forget(self, hours: float) -> None:
        """Let evidence lose weight with time."""
        kept = 0.5 ** (hours / HALF_LIFE_HOURS)
        self.hits, self.misses = self.hits * kept, self.misses * kept
        recent = 0.5 ** (hours / RECENT_HOURS)
        self.expected, self.asked = self.expected * recent, self.asked * recent

    @property
    def scale(self) -> float:
        """Return the flags that were followed, divided by those that were expected."""
        scale = (self.asked + EXPECTED_FLAGS) / (self.expected + EXPECTED_FLAGS)
        return float(np.clip(scale, *SCALES))

    def recall(self, site: Ints) -> Floats:
        """Return the (s,) expected share of changes that each source shows. site: (s,)."""
        hits, found = np.bincount(site, self.hits), np.bincount(site, self.hits + self.misses)
        of_site = (hits + SITE_HITS) / (found + SITE_CHANGES)
        own = self.hits + PRIOR_CHANGES * of_site[site]
        recall = own / (self.hits + self.misses + PRIOR_CHANGES)
        return np.minimum(recall, MAX_RECALL)


def missed_changes(
    share: Floats | float, recall: Floats | float, changes: Floats | float
) -> Floats:
    """Return the expected number of changes that sources have missed, for each found change.

    share, recall, changes: as in `Trust.missed`
    """
    before = (1 - np.asarray(recall)) * share
    hidden = np.maximum(before * changes, 1e-9)
    several = hidden / -np.expm1(-hidden)
    missed: Floats = several * before / np.maximum(before + 1 - share, 1e-9)
    return missed


# Changes of the last weeks count, with the weight that HALF_LIFE_HOURS leaves them.
EVIDENCE_HOURS = 8.0 * WEEK_HOURS
# Misses depend on the recall, so both are found together, in this many rounds.
RECALL_ROUNDS = 4
# Hours in floating point may be a little less than whole minutes.
MINUTE_ERROR = 1e-4
# A source and an item may be visited in the same minute of a crawl, in any order.
SAME_VISIT_MINUTES = 1


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
    """

    trust: Trust
    missed: Floats

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
        silent = np.flatnonzero(self.is_suspect & ~self.is_lost)
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
    since = np.maximum(shown.since, now - EVIDENCE_HOURS)
    recent = np.flatnonzero(place >= 0)
    recent = recent[histories.after[recent] >= since[place[recent]] - 1 / MINUTES]
    place, after, by = place[recent], histories.after[recent], histories.by[recent]
    owner, weight = coverage.owner[place], 0.5 ** ((now - by) / HALF_LIFE_HOURS)
    moments = _moments(shown.at)
    latest = by + SAME_VISIT_MINUTES / MINUTES
    is_shown = _ends(moments, place, latest) > _ends(moments, place, after)
    trust = Trust.of(s)
    trust.hits = _sums(owner[is_shown], weight[is_shown], s)
    last = np.full(s, -np.inf)
    np.maximum.at(
        last, coverage.owner[np.repeat(np.arange(len(items)), np.diff(shown.at.first))], shown.at.at
    )

    place, owner, weight = place[~is_shown], owner[~is_shown], weight[~is_shown]
    after, by = after[~is_shown], by[~is_shown]
    looks = _moments(shown.looks)
    look = np.maximum(_ends(looks, owner, by) - 1, 0)
    looked = np.full(len(owner), -np.inf)
    if len(looks):
        looked = np.where(looks[look] >> 32 == owner, shown.looks.at[look], -np.inf)
    share = np.clip((looked - after) / np.maximum(by - after, 1 / MINUTES), 0, 1)
    changes = _rates(histories, items[place]) * (by - after)
    for _ in range(RECALL_ROUNDS):
        missed = weight * missed_changes(share, trust.recall(site)[owner], changes)
        trust.misses = _sums(owner, missed, s)
    counted = _sums(owner, share * (by > last[owner]), s)

    until = np.nan_to_num(histories.until[coverage.source], nan=-np.inf)
    begun = np.nan_to_num(histories.since[coverage.source], nan=np.inf)
    rates = _sums(coverage.owner, _rates(histories, items), s)
    trust.quiet = trust.recall(site) * rates * np.maximum(until - np.maximum(last, begun), 0)
    is_new = shown.at.at > now - RECENT_HOURS
    trust.asked = float(np.count_nonzero(is_new))
    trust.expected = float(np.count_nonzero(is_shown & (histories.by[recent] > now - RECENT_HOURS)))
    return Learned(trust, counted)


def _ends(moments: Ints, row: Ints, at: Floats) -> Ints:
    """Return how many of the ordered moments are not later than a time of each row."""
    wanted = (row << 32) | np.floor(np.maximum(at, 0) * MINUTES + MINUTE_ERROR).astype(np.int64)
    return np.searchsorted(moments, wanted, side="right")


def _moments(times: Times) -> Ints:
    """Return a number for each time, ordered by row and minute; histories have whole minutes."""
    row = np.repeat(np.arange(len(times.first) - 1), np.diff(times.first))
    moments: Ints = (row << 32) | np.floor(times.at * MINUTES + MINUTE_ERROR).astype(np.int64)
    return moments


def _sums(owner: Ints, weight: Floats, s: int) -> Floats:
    """Return the (s,) sums of the weights of each source."""
    return np.asarray(np.bincount(owner, weight, s), np.float64)


def _rates(histories: Histories, rows: Ints) -> Floats:
    """Return the observed changes of some targets an hour; 0 before the second observation."""
    watched = np.nan_to_num(histories.until[rows] - histories.since[rows])
    rates: Floats = np.diff(histories.first)[rows] / np.maximum(watched, WEEK_HOURS)
    return rates
