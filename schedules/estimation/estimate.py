"""Estimate the weekly profiles and change rates of all targets from their histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    fit_mixture,
    fit_prior,
    hour_counts,
    log_likelihood,
    running,
    sample,
    target_profile,
    uniform_mixtures,
)
from schedules.history import Floats, Histories, Ints
from schedules.population import Population, Walls
from schedules.schedule import WEEK_HOURS

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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hold the estimates for n targets in s sites and p groups.

    mixtures: weekly profiles of the sites
    prior:    (p, g) of each rate
    """

    population: Population
    histories: Histories
    mixtures: Mixtures
    prior: Floats
    all_rates: Rates

    def profiles(self, part: Part) -> Floats:
        """Return the (m, 168) profiles of the targets of a part."""
        return profiles_of(self.population, self.histories, self.mixtures, part)

    def rates(self, part: Part) -> Rates:
        """Return the rates of the targets of a part."""
        return self.all_rates.of(part)

    def of(self, rows: Ints) -> Estimate:
        """Return the estimates for some of the targets."""
        population, histories = self.population.of(rows), self.histories.of(rows)
        return Estimate(population, histories, self.mixtures, self.prior, self.all_rates.of(rows))


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
    likelihood = np.empty((len(population), len(RATES)), np.float32)

    def work(part: Part) -> None:
        profile = profiles_of(population, histories, mixtures, part)
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
        counts = Counts(*_counts_of_part(pasts, population.walls, zone, site, _sites(mixtures)))
        each = [fit_mixture(counts.of(slice(begin, end))) for begin, end in pairwise(begins)]
        mixtures = Mixtures(*(np.concatenate(column) for column in zip(*each, strict=True)))
    return mixtures


def pasts_of(histories: Histories, part: Part) -> Pasts:
    """Return the histories of a part."""
    first = histories.first[part.start : part.stop + 1]
    after, by = (times[first[0] : first[-1]] for times in (histories.after, histories.by))
    return Pasts(histories.since[part], histories.until[part], first - first[0], after, by)


class Sites(NamedTuple):
    """Hold what the kernels need of s sites with k components each.

    spread:                   (s, 168) weights that distribute a change over the hours of its
                              interval
    component, log_component: (s, k, 168)
    share:                    (s, k)
    """

    spread: Floats
    component: Floats
    log_component: Floats
    share: Floats


def _sites(mixtures: Mixtures) -> Sites:
    """Return the mixtures as input of the kernels."""
    profile, share = mixtures
    sharp = profile**SHARPENED
    sharp /= sharp.sum(-1, keepdims=True)
    spread = (sharp * share[:, :, None]).sum(1)
    return Sites(spread, profile, np.log(profile + MIN_SHARE), share)


def profiles_of(population: Population, past: Histories, mixtures: Mixtures, part: Part) -> Floats:
    """Return the (m, 168) profiles of the targets of a part."""
    site, pasts = population.site[part], pasts_of(past, part)
    return _profiles_of_part(pasts, population.walls, population.zone[site], site, _sites(mixtures))


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
    return seen, even_counts(past, wall, seen.sum())


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
            most = log.max()
            for g in range(len(rates)):
                result[i, g] = np.exp(log[g] - most)
    return result


@compiled
def _rates(
    likelihood: Likelihood, prior: Floats, group: Ints, rates: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return nodes, mean and quantiles of each posterior.

    Node k is the mean of the k-th of NODES parts of equal probability.
    """
    n = len(likelihood)
    node = np.zeros((n, NODES))
    mean, low, high = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        posterior = likelihood[i] * prior[group[i]]
        posterior /= posterior.sum()
        below = 0.0
        low[i] = high[i] = rates[0]
        for g in range(len(rates)):
            above = below + posterior[g]
            low[i] = rates[g] if below < LOW else low[i]
            high[i] = rates[g] if below < HIGH else high[i]
            for k in range(int(below * NODES), NODES):
                share = min(above, (k + 1) / NODES) - max(below, k / NODES)
                if share <= 0:
                    break
                node[i, k] += share * NODES * rates[g]
            below = above
        mean[i] = (posterior * rates).sum()
        # The grid may be coarser than the posterior, so make the quantiles enclose the mean.
        low[i], high[i] = min(low[i], mean[i]), max(high[i], mean[i])
    return node, mean, low, high
