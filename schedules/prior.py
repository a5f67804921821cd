"""How fast the targets of a group change: the distribution of their rates, fitted to all of them.

Empirical Bayes: expectation maximisation over a grid of rates, refitted at each replan. A group
(site, category and kind) leans on its site, a site on all, each as much as a few targets; so a new
URL begins as its neighbours are, and a silent one never falls to zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedules.history import Floats, Ints

# Changes a week: once in four years to hourly.
RATES: Floats = np.geomspace(0.005, 168.0, 48)
ROUNDS = 20
# A group leans on its parent as much as on so many targets of its own.
LEANING = 1.0
# So many targets tell all about their group, or fewer where there are very many groups.
MOST_OF_A_GROUP, LEAST_OF_A_GROUP = 5_000, 200
ENOUGH = 100_000
Likelihood = NDArray[np.float32]


def fit(likelihood: Likelihood, group: Ints, parent: Ints) -> Floats:
    """(p, g) the distribution of rates in each group.

    likelihood: (n, g) of each target's past under each of RATES, up to a factor
    group:      (n,) 0 to p - 1       parent: (p,) the site of each group, 0 to s - 1
    """
    sites = int(parent.max(initial=0)) + 1
    everywhere = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    of_site = np.tile(everywhere, (sites, 1))
    of_group = np.tile(everywhere, (len(parent), 1))
    for _ in range(ROUNDS):
        sums = _posterior_sums(likelihood, group, of_group)
        site_sums = _summed(sums, parent, sites)
        everywhere = _normal(site_sums.sum(0) + 1e-9)
        of_site = _normal(site_sums + LEANING * everywhere)
        of_group = _normal(sums + LEANING * of_site[parent])
    return of_group


def _posterior_sums(likelihood: Likelihood, group: Ints, prior: Floats) -> Floats:
    """(p, g) posteriors summed over the targets of each group."""
    posterior = likelihood * prior.astype(np.float32)[group]
    posterior /= posterior.sum(1, keepdims=True)
    return _summed(posterior, group, len(prior))


def _summed(rows: NDArray[np.floating], group: Ints, groups: int) -> Floats:
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(groups))
    result = np.zeros((groups, rows.shape[1]))
    filled = np.diff(np.append(bounds, len(group))) > 0
    if filled.any():
        result[filled] = np.add.reduceat(rows[order], bounds[filled], axis=0, dtype=np.float64)
    return result


def _normal(rows: Floats) -> Floats:
    result: Floats = rows / rows.sum(-1, keepdims=True)
    return result


def sample(group: Ints, key: NDArray[np.uint64]) -> Ints:
    """Rows enough to fit: all of a small group, some of a large one; the same in any order."""
    order = np.lexsort((key, group))
    begins = np.searchsorted(group[order], group[order], side="left")
    groups = len(np.unique(group))
    most = np.clip(ENOUGH // max(1, groups), LEAST_OF_A_GROUP, MOST_OF_A_GROUP)
    rows: Ints = order[np.arange(len(order)) - begins < most]
    return rows
