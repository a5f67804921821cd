"""Estimate change rates for targets in shards.

Two statistics are global: the weekly profiles that the targets of a site share, and the prior of
the rates of a group. Both are fitted to a limited number of targets. Shards count first, so that
together they send just these.
"""

from __future__ import annotations

import numpy as np

from schedules.estimation.estimate import (
    Estimate,
    Rates,
    likelihoods,
    mixtures_of,
    most_telling,
    rates_of,
)
from schedules.estimation.rates import (
    Likelihood,
    Mixtures,
    first_of_each,
    fit_prior,
    most_of_a_group,
)
from schedules.history import Floats, Histories, Ints
from schedules.population import Population
from schedules.shards import Columns, Shards


def estimate_shards(shards: Shards) -> None:
    """Estimate the targets of shards: set their columns `mixtures`, `prior` and `rates`.

    Their columns `population` have the same groups and sites, and their histories are in
    `histories`.
    """
    mixtures = _mixtures(shards)
    counts = np.array(shards.each(count_groups))
    most = np.full(counts.shape[1], most_of_a_group(int(np.count_nonzero(counts.sum(axis=0)))))
    rows = shards.each(fit_rates, mixtures, own=[(own,) for own in first_rows(counts, most)])
    population = Population.joined([own for own, _ in rows])
    likelihood = np.concatenate([own for _, own in rows])
    order = first_of_each(population.group, population.key, most)
    prior = fit_prior(likelihood[order], population.group[order], population.parent)
    shards.each(set_prior, prior)


def lowest_keys(shards: Shards, counts: Ints, most: int) -> Estimate:
    """Return the estimates of the targets with the lowest keys, at most `most`, by key.

    counts: (h,) number of targets of each shard
    """
    wanted = enumerate(first_rows(counts, most).tolist())
    pieces = [shards.one(number, first_targets, rows) for number, rows in wanted if rows]
    return Estimate(
        Population.joined([piece.population for piece in pieces]),
        Histories.joined([piece.histories for piece in pieces]),
        pieces[0].mixtures,
        pieces[0].prior,
        Rates.joined([piece.all_rates for piece in pieces]),
    )


def first_rows(counts: Ints, most: Ints | int) -> Ints:
    """Return how many rows of each shard are among the first `most` of all shards.

    counts: (h, ...) number of rows
    """
    before = np.cumsum(counts, axis=0) - counts
    rows: Ints = np.clip(most - before, 0, counts)
    return rows


def _mixtures(shards: Shards) -> Mixtures:
    """Fit the weekly profiles of all sites to the targets with the most changes."""
    by_changes = shards.each(count_changes)
    width = max(counts.shape[1] for counts in by_changes)
    counts = np.array([np.pad(own, ((0, 0), (0, width - own.shape[1]))) for own in by_changes])
    most = most_telling(counts.shape[1])
    # (s, c) number of targets with at least so many changes.
    from_changes = counts.sum(axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1]
    # All targets with more changes than the least are used, and some with the least.
    least = np.maximum((from_changes >= most).sum(axis=1) - 1, 0)
    sites = np.arange(len(least))
    above = np.pad(from_changes, ((0, 0), (0, 1)))[sites, least + 1]
    at_least = counts[:, sites, least]
    wanted = first_rows(at_least, most - above)
    rows = shards.each(telling, least, own=[(own,) for own in wanted])
    population = Population.joined([population for population, _ in rows])
    histories = Histories.joined([histories for _, histories in rows])
    changes = np.diff(histories.first)
    order = np.lexsort((population.key, -changes, population.site))
    return mixtures_of(population.of(order), histories.of(order))


def count_changes(columns: Columns) -> Ints:
    """Return the (s, c) number of a shard's targets by site and number of changes."""
    population, changes = columns["population"], np.diff(columns["histories"].first)
    width = int(changes.max(initial=0)) + 1
    place = population.site * width + changes
    counts: Ints = np.bincount(place, minlength=population.sites * width)
    return counts.reshape(population.sites, width)


def telling(columns: Columns, least: Ints, most: Ints) -> tuple[Population, Histories]:
    """Return the targets of a shard with many changes.

    least: (s,) number of changes of each site
    most:  (s,) number of targets with exactly so many changes
    """
    population, histories = columns["population"], columns["histories"]
    changes, limit = np.diff(histories.first), least[population.site]
    even = np.flatnonzero(changes == limit)
    chosen = even[first_of_each(population.site[even], population.key[even], most)]
    rows = np.concatenate([np.flatnonzero(changes > limit), chosen])
    return population.of(rows), histories.of(rows)


def count_groups(columns: Columns) -> Ints:
    """Return the (p,) number of a shard's targets in each group."""
    population = columns["population"]
    counts: Ints = np.bincount(population.group, minlength=len(population.parent))
    return counts


def fit_rates(columns: Columns, mixtures: Mixtures, most: Ints) -> tuple[Population, Likelihood]:
    """Compute the likelihoods of a shard; return `most` targets of each group, (p,)."""
    population, histories = columns["population"], columns["histories"]
    likelihood = likelihoods(population, histories, mixtures)
    columns["mixtures"], columns["likelihood"] = mixtures, likelihood
    rows = first_of_each(population.group, population.key, most)
    return population.of(rows), likelihood[rows]


def set_prior(columns: Columns, prior: Floats) -> None:
    """Compute the rates of a shard from the prior of all."""
    likelihood: Likelihood = columns.pop("likelihood")
    columns["rates"] = rates_of(likelihood, prior, columns["population"].group)
    columns["prior"] = prior


def first_targets(columns: Columns, most: int) -> Estimate:
    """Return the estimates of the targets of a shard with the lowest keys."""
    rows = np.argsort(columns["population"].key)[:most]
    return Estimate(
        columns["population"].of(rows), columns["histories"].of(rows), columns["mixtures"],
        columns["prior"], columns["rates"].of(rows),
    )  # fmt: skip
