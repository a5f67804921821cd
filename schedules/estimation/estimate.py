"""Estimate the weekly profiles and change rates of all targets from their histories.

Targets may be in shards. Two statistics are global: the weekly profiles that the targets of a site
share, and the prior of the rates of a group. Both are fitted to a limited number of targets. The
shards report counts first, so that together they send only these targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from schedules.compiled import Part, compiled, parts, spread_over
from schedules.estimation.rates import (
    MIN_SHARE,
    RATES,
    Counts,
    Likelihood,
    Mixtures,
    Past,
    Wall,
    even_counts,
    first_of_each,
    fit_mixture,
    fit_prior,
    hour_counts,
    log_likelihood,
    most_of_a_group,
    running,
    sample,
    target_profile,
    uniform_mixtures,
)
from schedules.history import Floats, Histories, Ints
from schedules.population import Population, Shards, Walls
from schedules.schedule import WEEK_HOURS
from schedules.vectorized import exponentials, total

# Number of equally weighted values that represent the posterior of a rate.
NODES = 4
# The pooled profile locates a change within a wide interval, and is itself estimated from such
# changes. Iterate.
POOLING_ROUNDS = 16
# Weight the hours of a wide interval by this power of the profile. Plain expectation maximization
# (power 1) converges to the same peaks, but much more slowly.
SHARPENED = 1.25
# Maximum number of targets from which a site's mixture is fitted; fewer if there are many sites.
MAX_TELLING, MIN_TELLING, MAX_TELLING_TOTAL = 500, 50, 50_000
LOW, HIGH = 0.05, 0.95


class Pasts(NamedTuple):
    """Hold the histories of m targets for the kernels; fields as in Histories."""

    since: Floats
    until: Floats
    first: Ints
    after: Floats
    by: Floats


class Rates(NamedTuple):
    """Hold the estimated rates of n targets, in changes a week.

    node:            (n, NODES) equally likely values
    mean, low, high: (n,) with 5 % and 95 % quantiles
    """

    node: Floats
    mean: Floats
    low: Floats
    high: Floats

    @classmethod
    def joined(cls, parts: Sequence[Rates]) -> Rates:
        """Return the rates of all targets of these parts."""
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def of(self, rows: Ints | Part) -> Rates:
        """Return the rates of some of the targets."""
        return Rates(self.node[rows], self.mean[rows], self.low[rows], self.high[rows])


@dataclass(frozen=True)
class GivenProfiles:
    """Hold the weekly profiles of targets whose own histories do not determine them.

    row:     (s,) ascending rows of these targets
    profile: (s, 168), each sums to 1
    """

    row: Ints
    profile: Floats

    def of(self, rows: Ints) -> GivenProfiles:
        """Return the profiles of some of the targets, given by rows in any order."""
        place = np.minimum(np.searchsorted(self.row, rows), max(len(self.row) - 1, 0))
        found = np.flatnonzero(self.row[place] == rows) if len(self.row) else np.empty(0, np.int64)
        return GivenProfiles(found, self.profile[place[found]])


@dataclass(frozen=True)
class Estimate:
    """Hold the estimates for n targets in s sites and p groups.

    mixtures: weekly profiles of the sites
    prior:    (p, g) of each rate
    given:    profiles that replace those from the histories; None: of no target
    """

    population: Population
    histories: Histories
    mixtures: Mixtures
    prior: Floats
    all_rates: Rates
    given: GivenProfiles | None = None

    def profiles(self, part: Part) -> Floats:
        """Return the (m, 168) profiles of the targets of a part."""
        profiles = profiles_of(self.population, self.histories, self._sites, part)
        if self.given is not None:
            begin, end = np.searchsorted(self.given.row, (part.start, part.stop))
            profiles[self.given.row[begin:end] - part.start] = self.given.profile[begin:end]
        return profiles

    @cached_property
    def _sites(self) -> Sites:
        return sites_of(self.mixtures)

    def rates(self, part: Part) -> Rates:
        """Return the rates of the targets of a part."""
        return self.all_rates.of(part)

    def of(self, rows: Ints) -> Estimate:
        """Return the estimates for some of the targets."""
        population, histories = self.population.of(rows), self.histories.of(rows)
        given = None if self.given is None else self.given.of(rows)
        return Estimate(
            population, histories, self.mixtures, self.prior, self.all_rates.of(rows), given
        )


def estimate(population: Population, histories: Histories) -> Estimate:
    """Estimate profiles and rates of all targets from scratch."""
    mixtures = site_mixtures(population, histories)
    likelihood = likelihoods(population, histories, mixtures)
    rows = sample(population.group, population.key)
    prior = fit_prior(likelihood[rows], population.group[rows], population.parent)
    all_rates = rates_of(likelihood, prior, population.group)
    return Estimate(population, histories, mixtures, prior, all_rates)


def likelihoods(population: Population, histories: Histories, mixtures: Mixtures) -> Likelihood:
    """Return the (n, g) likelihood of each rate for each target."""
    likelihood, sites = np.empty((len(population), len(RATES)), np.float32), sites_of(mixtures)

    def work(part: Part) -> None:
        profile = profiles_of(population, histories, sites, part)
        zone = population.zone[population.site[part]]
        pasts = pasts_of(histories, part)
        likelihood[part] = _likelihoods(pasts, population.walls, zone, profile, RATES)

    spread_over(work, parts(len(population)))
    return likelihood


def rates_of(likelihood: Likelihood, prior: Floats, group: Ints) -> Rates:
    """Return the rates of n targets. prior: (p, g); group: (n,)."""
    pieces = spread_over(
        lambda part: _rates(likelihood[part], prior, group[part], RATES), parts(len(group))
    )
    return Rates.joined([Rates(*piece) for piece in pieces])


def site_mixtures(population: Population, histories: Histories) -> Mixtures:
    """Fit the mixtures of all sites, from the targets with the most changes."""
    changes = np.diff(histories.first)
    order = np.lexsort((population.key, -changes, population.site))
    begins = np.searchsorted(population.site[order], population.site[order], side="left")
    rows = order[np.arange(len(order)) - begins < most_telling(population.sites)]
    return mixtures_of(population.of(rows), histories.of(rows))


def most_telling(sites: int) -> int:
    """Return the maximum number of targets from which the mixture of a site is fitted."""
    return int(np.clip(MAX_TELLING_TOTAL // sites, MIN_TELLING, MAX_TELLING))


def mixtures_of(population: Population, histories: Histories) -> Mixtures:
    """Fit the mixtures of all sites from these targets, in the order of their sites.

    If a change is only known to lie in a wide interval, the profile determines where in it, and
    such changes in turn determine the profile. This is solved by expectation maximization, too.
    """
    site, pasts = population.site, pasts_of(histories, slice(0, len(population)))
    begins = np.searchsorted(site, np.arange(population.sites + 1))
    mixtures = uniform_mixtures(population.sites)
    for _ in range(POOLING_ROUNDS):
        zone = population.zone[site]
        counts = Counts(*_counts_of_part(pasts, population.walls, zone, site, sites_of(mixtures)))
        each = [fit_mixture(counts.of(slice(begin, end))) for begin, end in pairwise(begins)]
        mixtures = Mixtures(*(np.concatenate(column) for column in zip(*each, strict=True)))
    return mixtures


def pasts_of(histories: Histories, part: Part) -> Pasts:
    """Return the histories of a part."""
    first = histories.first[part.start : part.stop + 1]
    after, by = (times[first[0] : first[-1]] for times in (histories.after, histories.by))
    return Pasts(histories.since[part], histories.until[part], first - first[0], after, by)


class Sites(NamedTuple):
    """Hold the input of the kernels for s sites with k components each.

    spread:                   (s, 168) weights that distribute a change over the hours of its
                              interval
    component, log_component: (s, k, 168)
    share:                    (s, k)
    """

    spread: Floats
    component: Floats
    log_component: Floats
    share: Floats


def sites_of(mixtures: Mixtures) -> Sites:
    """Return the mixtures as input of the kernels."""
    profile, share = mixtures
    sharp = profile**SHARPENED
    sharp /= sharp.sum(-1, keepdims=True)
    spread = (sharp * share[:, :, None]).sum(1)
    return Sites(spread, profile, np.log(profile + MIN_SHARE), share)


def profiles_of(population: Population, past: Histories, sites: Sites, part: Part) -> Floats:
    """Return the (m, 168) profiles of the targets of a part."""
    site, pasts = population.site[part], pasts_of(past, part)
    return _profiles_of_part(pasts, population.walls, population.zone[site], site, sites)


@compiled
def past_of(pasts: Pasts, i: int) -> Past:
    """Return the history of one target."""
    begin, end = pasts.first[i], pasts.first[i + 1]
    return Past(pasts.since[i], pasts.until[i], pasts.after[begin:end], pasts.by[begin:end])


@compiled
def _counted(pasts: Pasts, i: int, wall: Wall, spread: Floats) -> tuple[Floats, Floats]:
    """Return the (168,) counts of one target, as in Counts."""
    if pasts.first[i + 1] == pasts.first[i]:
        return np.zeros(WEEK_HOURS), np.zeros(WEEK_HOURS)
    past = past_of(pasts, i)
    seen = hour_counts(past, wall, spread)
    return seen, even_counts(past, wall, total(seen))


@compiled
def _counts_of_part(
    pasts: Pasts, walls: Walls, zone: Ints, site: Ints, sites: Sites
) -> tuple[Floats, Floats]:
    """Return the (m, 168) observed and even counts of m targets."""
    seen, even = np.empty((len(zone), WEEK_HOURS)), np.empty((len(zone), WEEK_HOURS))
    for i in range(len(zone)):
        wall = Wall(walls.base, walls.hours[zone[i]])
        own, usual = _counted(pasts, i, wall, sites.spread[site[i]])
        for hour in range(WEEK_HOURS):
            seen[i, hour], even[i, hour] = own[hour], usual[hour]
    return seen, even


@compiled
def _profiles_of_part(pasts: Pasts, walls: Walls, zone: Ints, site: Ints, sites: Sites) -> Floats:
    """Return the (m, 168) profiles, shrunk toward the mixtures of the sites."""
    profiles = np.empty((len(zone), WEEK_HOURS))
    for i in range(len(zone)):
        s = site[i]
        wall = Wall(walls.base, walls.hours[zone[i]])
        seen, even = _counted(pasts, i, wall, sites.spread[s])
        component, log_component = sites.component[s], sites.log_component[s]
        profile = target_profile(seen, even, component, log_component, sites.share[s])
        for hour in range(WEEK_HOURS):
            profiles[i, hour] = profile[hour]
    return profiles


@compiled
def _likelihoods(
    pasts: Pasts, walls: Walls, zone: Ints, profile: Floats, rates: Floats
) -> Likelihood:
    """Return the (m, g) likelihood of each rate, scaled to a maximum of 1; 1 without history."""
    result = np.ones((len(zone), len(rates)), np.float32)
    for i in range(len(zone)):
        if pasts.until[i] > pasts.since[i]:
            wall = Wall(walls.base, walls.hours[zone[i]])
            log = log_likelihood(past_of(pasts, i), running(profile[i]), wall, rates)
            log -= log.max()
            exponentials(log)
            for g in range(len(rates)):
                result[i, g] = log[g]
    return result


@compiled
def _rates(
    likelihood: Likelihood, prior: Floats, group: Ints, rates: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return nodes, mean and quantiles of each posterior.

    Node k is the mean of the k-th of NODES parts of equal probability.
    """
    n, step, last = len(likelihood), rates[1] / rates[0], len(rates) - 1
    node = np.zeros((n, NODES))
    mean, low, high = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        posterior = likelihood[i] * prior[group[i]]
        posterior /= posterior.sum()
        below = 0.0
        low[i] = high[i] = rates[0]
        for g in range(len(rates)):
            above = below + posterior[g]
            # A node stands for half a step to both sides: with many changes, the posterior is
            # narrower than a step.
            if below < LOW and (above >= LOW or g == last):
                low[i] = rates[g] * step ** (min(1.0, (LOW - below) / posterior[g]) - 0.5)
            if below < HIGH and (above >= HIGH or g == last):
                high[i] = rates[g] * step ** (min(1.0, (HIGH - below) / posterior[g]) - 0.5)
            for k in range(int(below * NODES), NODES):
                share = min(above, (k + 1) / NODES) - max(below, k / NODES)
                if share <= 0:
                    break
                node[i, k] += share * NODES * rates[g]
            below = above
        mean[i] = (posterior * rates).sum()
        # The mean of a skewed posterior may be outside of its quantiles.
        low[i] = max(rates[0], min(low[i], mean[i]))
        high[i] = min(rates[-1], max(high[i], mean[i]))
    return node, mean, low, high


@dataclass
class RatedShard:
    """Hold the targets of a shard, and what `estimate_shards` sets: mixtures, prior and rates.

    given: as in Estimate
    """

    population: Population
    histories: Histories
    given: GivenProfiles | None = None
    mixtures: Mixtures = field(init=False)
    likelihood: Likelihood = field(init=False)
    prior: Floats = field(init=False)
    rates: Rates = field(init=False)

    @property
    def estimates(self) -> Estimate:
        """Return the estimates of the shard's targets."""
        return Estimate(
            self.population, self.histories, self.mixtures, self.prior, self.rates, self.given
        )


def estimate_shards(shards: Shards[RatedShard]) -> None:
    """Estimate the targets of shards, whose populations have the same groups and sites."""
    mixtures = _mixtures(shards)
    counts = np.array(shards.each(count_groups))
    most = np.full(counts.shape[1], most_of_a_group(int(np.count_nonzero(counts.sum(axis=0)))))
    rows = shards.each(fit_rates, mixtures, own=[(own,) for own in first_rows(counts, most)])
    population = Population.joined([own for own, _ in rows])
    likelihood = np.concatenate([own for _, own in rows])
    order = first_of_each(population.group, population.key, most)
    prior = fit_prior(likelihood[order], population.group[order], population.parent)
    shards.each(set_prior, prior)


def lowest_keys(shards: Shards[RatedShard], counts: Ints, most: int) -> Estimate:
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


def _mixtures(shards: Shards[RatedShard]) -> Mixtures:
    """Fit the weekly profiles of all sites to the targets with the most changes."""
    by_changes = shards.each(count_changes)
    width = max(counts.shape[1] for counts in by_changes)
    counts = np.array([np.pad(own, ((0, 0), (0, width - own.shape[1]))) for own in by_changes])
    most = most_telling(counts.shape[1])
    # (s, c) number of targets with at least c changes.
    from_changes = counts.sum(axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1]
    # Use all targets with more than `least` changes, and some of those with exactly `least`.
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


def count_changes(shard: RatedShard) -> Ints:
    """Return the (s, c) number of a shard's targets by site and number of changes."""
    population, changes = shard.population, np.diff(shard.histories.first)
    width = int(changes.max(initial=0)) + 1
    place = population.site * width + changes
    counts: Ints = np.bincount(place, minlength=population.sites * width)
    return counts.reshape(population.sites, width)


def telling(shard: RatedShard, least: Ints, most: Ints) -> tuple[Population, Histories]:
    """Return the targets of a shard with many changes.

    least: (s,) minimum number of changes, for each site
    most:  (s,) maximum number of targets with exactly `least` changes
    """
    population, histories = shard.population, shard.histories
    changes, limit = np.diff(histories.first), least[population.site]
    even = np.flatnonzero(changes == limit)
    chosen = even[first_of_each(population.site[even], population.key[even], most)]
    rows = np.concatenate([np.flatnonzero(changes > limit), chosen])
    return population.of(rows), histories.of(rows)


def count_groups(shard: RatedShard) -> Ints:
    """Return the (p,) number of a shard's targets in each group."""
    population = shard.population
    counts: Ints = np.bincount(population.group, minlength=len(population.parent))
    return counts


def fit_rates(shard: RatedShard, mixtures: Mixtures, most: Ints) -> tuple[Population, Likelihood]:
    """Compute a shard's likelihoods; return those of up to `most` (p,) targets of each group."""
    population, histories = shard.population, shard.histories
    likelihood = likelihoods(population, histories, mixtures)
    shard.mixtures, shard.likelihood = mixtures, likelihood
    rows = first_of_each(population.group, population.key, most)
    return population.of(rows), likelihood[rows]


def set_prior(shard: RatedShard, prior: Floats) -> None:
    """Compute the rates of a shard from the common prior."""
    shard.rates = rates_of(shard.likelihood, prior, shard.population.group)
    shard.prior = prior
    del shard.likelihood


def first_targets(shard: RatedShard, most: int) -> Estimate:
    """Return the estimates of the targets of a shard with the lowest keys."""
    return shard.estimates.of(np.argsort(shard.population.key)[:most])
