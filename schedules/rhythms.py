"""A site's rhythms: the few profiles that its targets share among them.

The pages of one site do not all change at the same hours: some follow the office, some a nightly
job. A mixture of multinomials, fitted by expectation maximisation to the hourly counts of a site's
targets, finds up to four such rhythms; a target's profile leans on the rhythms that its own changes
look like, and on all of them where it has shown none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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


def fit(counts: Floats) -> Rhythms:
    """The rhythms of one site (s = 1).

    counts: (m, 168) changes by hour of its targets
    """
    whole = smoothed(pooled(counts.sum(0)))
    telling = counts[counts.sum(1) > TELLING_CHANGES]
    k = min(MOST_RHYTHMS, max(1, len(telling) // TARGETS_OF_A_RHYTHM))
    found = alike(1)
    found.profile[0, :] = whole
    if k == 1:
        return found
    profile, share = _begin(telling, whole, k), np.full(k, 1 / k)
    for _ in range(ROUNDS):
        of = belonging(telling, profile, share)
        share = (of.sum(0) + 1) / (of.sum() + k)
        profile = np.array([_rhythm(row, whole) for row in of.T @ telling])
    found.profile[0, :k], found.share[0] = profile, 0
    found.share[0, :k] = share
    return found


def belonging(counts: Floats, profile: Floats, share: Floats) -> Floats:
    """(m, k) how probably each target follows each rhythm. profile: (k, 168); share: (k,)."""
    log = counts @ np.log(profile + LEAST).T + np.log(np.maximum(share, 1e-300))
    of = np.exp(log - log.max(1, keepdims=True))
    result: Floats = of / of.sum(1, keepdims=True)
    return result


def _rhythm(counts: Floats, whole: Floats) -> Floats:
    own = counts.sum()
    return smoothed((own * pooled(counts) + SITE_WEIGHT * whole) / (own + SITE_WEIGHT))


def _begin(counts: Floats, whole: Floats, k: int) -> Floats:
    """(k, 168) profiles to begin with: the site's, and targets that those before explain worst."""
    own = smoothed((counts + START_WEIGHT * whole) / (counts.sum(1) + START_WEIGHT)[:, None])
    best = (counts * np.log(own + LEAST)).sum(1)
    chosen = [whole]
    for _ in range(k - 1):
        explained = (counts @ np.log(np.array(chosen) + LEAST).T).max(1)
        chosen.append(own[np.argmax(best - explained)])
    return np.array(chosen)
