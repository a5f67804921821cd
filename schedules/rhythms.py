"""A site's rhythms: the few profiles that its targets share among them.

The pages of one site do not all change at the same hours: some follow the office, some a nightly
job. A mixture of multinomials, fitted by expectation maximisation to the hourly counts of a site's
targets, finds up to four such rhythms; a target's profile leans on the rhythms that its own changes
look like, and on all of them where it has shown none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.history import Floats
from schedules.profile import pooled, smoothed
from schedules.schedule import WEEK_HOURS

MOST_RHYTHMS = 4
# A target that tells rhythms apart has so many changes; a rhythm has so many such targets.
TELLING_CHANGES = 2.0
TARGETS_OF_A_RHYTHM = 8
ROUNDS = 15
# Changes of the whole site that each rhythm begins with.
SITE_WEIGHT = 40.0
START_WEIGHT = 20.0
LEAST = 1e-7


class Rhythms(NamedTuple):
    """The rhythms of s sites. profile: (s, 4, 168), each sums to 1; share: (s, 4), 0 where none."""

    profile: Floats
    share: Floats


def alike(sites: int) -> Rhythms:
    """One uniform rhythm for each site."""
    profile = np.full((sites, MOST_RHYTHMS, WEEK_HOURS), 1 / WEEK_HOURS)
    share = np.zeros((sites, MOST_RHYTHMS))
    share[:, 0] = 1
    return Rhythms(profile, share)


class Counts(NamedTuple):
    """Changes of m targets by hour of the local week.

    seen: (m, 168)   even: (m, 168) what as many would be without any rhythm, see `even_counts`
    """

    seen: Floats
    even: Floats

    def of(self, rows: slice | NDArray[np.bool_]) -> Counts:
        """Those of some targets."""
        return Counts(self.seen[rows], self.even[rows])


def fit(counts: Counts) -> Rhythms:
    """The rhythms of one site (s = 1), from the counts of its targets."""
    whole = smoothed(pooled(counts.seen.sum(0), counts.even.sum(0)))
    telling = counts.of(counts.seen.sum(1) > TELLING_CHANGES)
    k = min(MOST_RHYTHMS, max(1, len(telling.seen) // TARGETS_OF_A_RHYTHM))
    found = alike(1)
    found.profile[0, :] = whole
    if k == 1:
        return found
    profile, share = _begin(telling, whole, k), np.full(k, 1 / k)
    for _ in range(ROUNDS):
        of = belonging(telling, profile, share)
        share = (of.sum(0) + 1) / (of.sum() + k)
        own = zip(of.T @ telling.seen, of.T @ telling.even, strict=True)
        profile = np.array([_rhythm(seen, even, whole) for seen, even in own])
    found.profile[0, :k], found.share[0] = profile, 0
    found.share[0, :k] = share
    return found


def belonging(counts: Counts, profile: Floats, share: Floats) -> Floats:
    """(m, k) how probably each target follows each rhythm. profile: (k, 168); share: (k,)."""
    log = _likelihood(counts, profile) + np.log(np.maximum(share, 1e-300))
    of = np.exp(log - log.max(1, keepdims=True))
    result: Floats = of / of.sum(1, keepdims=True)
    return result


def _likelihood(counts: Counts, profile: Floats) -> Floats:
    """(m, k) log likelihood, up to a constant of each target, of its hours among those watched."""
    total = counts.seen.sum(1, keepdims=True)
    among = np.log(counts.even @ profile.T + LEAST)
    result: Floats = counts.seen @ np.log(profile + LEAST).T - total * among
    return result


def _rhythm(seen: Floats, even: Floats, whole: Floats) -> Floats:
    own = seen.sum()
    return smoothed((own * pooled(seen, even) + SITE_WEIGHT * whole) / (own + SITE_WEIGHT))


def _begin(counts: Counts, whole: Floats, k: int) -> Floats:
    """(k, 168) profiles to begin with: the site's, and targets that those before explain worst."""
    own = (counts.seen + START_WEIGHT * whole) / (WEEK_HOURS * counts.even + START_WEIGHT)
    own = smoothed(own / own.sum(1, keepdims=True))
    best = (counts.seen * np.log(own + LEAST)).sum(1) - counts.seen.sum(1) * np.log(
        (counts.even * own).sum(1) + LEAST
    )
    chosen = [whole]
    for _ in range(k - 1):
        explained = _likelihood(counts, np.array(chosen)).max(1)
        chosen.append(own[np.argmax(best - explained)])
    return np.array(chosen)
