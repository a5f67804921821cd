"""Find targets that have been silent for longer than live targets usually are.

A target that changes at random times, in bursts, or as regularly as a clock has gaps of different
shapes, so the rate alone does not show how long a gap may last. The gaps of a target are modeled
as Weibull: with shape k and mean m, a gap is longer than x with the probability
exp(-(Γ(1 + 1/k) x / m)^k). Gaps of shape 1 are those of random changes; larger shapes are more
regular, smaller ones come in bursts. Time is counted in weeks of exposure, weighted by the target's
weekly profile, so that a weekend or a night without changes does not count as silence. Shape and
mean are unknown: each target has a posterior over a grid of both, with a prior from its group and
its site.

A silent gap is rated by its score z = -ln(p) + ln(m) with p its probability in the model, and m the
mean gap in weeks. If the model were exact, a live target would exceed z in e^-z gaps per week,
whatever its rate. A common threshold for the score therefore gives each target the same share
of the false alarms, which minimizes the mean delay of true alarms, in gaps of the targets.

Real targets pause for reasons that no model has (holidays, a moved office), so the rate of false
alarms is measured: each past gap is rated by the gaps before it, and the tail of these scores is
extrapolated to the allowed rate (`calibrated`). Pauses of a site are shared by its pages, so only
the highest scores of a site within four weeks count: as many as would raise separate alarms.
"""

from __future__ import annotations

from math import gamma
from typing import NamedTuple, Self

import numpy as np

from schedules.compiled import Part, compiled, parts, spread_over
from schedules.estimation.estimate import Pasts, past_of, pasts_of, profiles_of, sites_of
from schedules.estimation.rates import Mixtures, Past, Wall, exposure, fit_prior, running
from schedules.history import Flags, Floats, Histories, Ints
from schedules.population import Population, Walls
from schedules.schedule import WEEK_HOURS
from schedules.vectorized import exponentials, inner, lowest, total

# Changes within a day of the first one are one burst.
BURST_HOURS = 24.0
# A target with fewer bursts is not rated: its own gaps show neither its mean nor its shape.
MIN_BURSTS = 3
# Shorter gaps count as this long (10 minutes), which keeps log() finite.
MIN_GAP_WEEKS = 1e-3
SHAPES: Floats = np.array([0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0])
# Grid of mean gaps, from an hour to four years.
MEANS: Floats = np.geomspace(1 / WEEK_HOURS, 200.0, 40)
# Maximum number of targets from which the priors and the threshold are estimated.
MAX_SAMPLE = 20_000
# Past gaps are rated if they ended within this time.
CALIBRATION_WEEKS = 8.0
# Silent targets of a site are combined into one alarm if they reach both this number and this share
# of the site's rated targets within this time.
MIN_SHARED, SHARED_SHARE, EPISODE_WEEKS = 3, 0.02, 4.0
# The tail is fitted to at least this many scores, and to this multiple of the allowed number.
TAIL_SCORES, TAIL_FACTOR = 20, 5.0
# Prior of the mean excess of a score, and its weight in scores. It is 1 in the model.
TYPICAL_EXCESS, EXCESS_SCORES = 3.0, 5.0
# No target has more false alarms per week than this, however few targets there are.
MAX_FALSE_PER_TARGET = 0.01


class Grid(NamedTuple):
    """Hold the combinations of shape and mean gap, (g,) each.

    shape, mean:        index of the shape in SHAPES, and mean gap in weeks
    log_density, scale: of a gap x: ln of the density is log_density + (k - 1) ln(x) - scale x^k
    """

    shape: Ints
    mean: Floats
    log_density: Floats
    scale: Floats


def _grid() -> Grid:
    shape = np.repeat(np.arange(len(SHAPES)), len(MEANS))
    mean, power = np.tile(MEANS, len(SHAPES)), SHAPES[shape]
    log_scale = power * (np.log([gamma(1 + 1 / k) for k in SHAPES])[shape] - np.log(mean))
    return Grid(shape, mean, np.log(power) + log_scale, np.exp(log_scale))


GRID = _grid()


class Ratings(NamedTuple):
    """Hold the current silence of n targets, as of their last observation.

    score:    (n,) see the module; -inf if the target is not rated, or silent for less than a gap
    since:    (n,) last change, in hours since 1970 (UTC); NaN without changes
    expected: (n,) time by which the next change was due on average, in hours since 1970 (UTC);
              NaN if the target is not rated
    gap:      (n,) mean gap in weeks; NaN if the target is not rated
    """

    score: Floats
    since: Floats
    expected: Floats
    gap: Floats

    @property
    def rated(self) -> Flags:
        """Return (n,) flags of the targets with enough changes for an alarm."""
        result: Flags = ~np.isnan(self.gap)
        return result


class Calibration(NamedTuple):
    """Describe the tail of the scores of past gaps, those that have ended.

    start:  score at which the tail begins
    rate:   gaps of a live target per week with a higher score
    excess: mean excess of these scores
    """

    start: float
    rate: float
    excess: float

    def threshold(self, false_per_week: float) -> float:
        """Return the score that a live target exceeds `false_per_week` > 0 times a week."""
        ideal = -np.log(false_per_week)
        measured = self.start + self.excess * np.log(max(self.rate / false_per_week, 1.0))
        return float(max(ideal, measured))

    def chance(self, score: Floats, gap: Floats) -> Floats:
        """Return the probability that a gap of a live target reaches this score.

        score: (m,) of silent targets   gap: (m,) their mean gaps in weeks
        """
        measured = self.rate * np.exp(-np.maximum(score - self.start, 0.0) / self.excess)
        result: Floats = np.minimum(1.0, gap * np.maximum(measured, np.exp(-score)))
        return result


class Silences(NamedTuple):
    """Flag the targets that have been silent for too long, among n targets.

    silent:    (n,) flags
    shared:    (s,) flags of the sites with enough silent targets to count as silent themselves
    chance:    (n,) probability that a live target is silent for this long; NaN if not rated
    threshold: score from which a target is silent for too long
    """

    ratings: Ratings
    silent: Flags
    shared: Flags
    chance: Floats
    threshold: float


class GapModel(NamedTuple):
    """Hold what rates silence: profiles of sites, the prior of gaps, the tail of past scores.

    allowed: false alarms per target and week
    """

    mixtures: Mixtures
    prior: Floats
    tail: Calibration
    allowed: float

    @classmethod
    def of(
        cls,
        population: Population,
        histories: Histories,
        mixtures: Mixtures,
        allowed: float,
        *,
        combined: bool = True,
    ) -> Self:
        """Estimate the model from targets, or from fields. combined: as in `shared_from`."""
        prior = fit_gaps(population, histories, mixtures)
        tail = calibrated(population, histories, mixtures, prior, allowed, combined=combined)
        return cls(mixtures, prior, tail, allowed)

    def rated(self, population: Population, histories: Histories) -> Silences:
        """Find the targets, or fields, that have been silent for too long."""
        ratings = rate_silences(population, histories, self.mixtures, self.prior)
        threshold = self.tail.threshold(self.allowed)
        silent, rated = ratings.score >= threshold, ratings.rated
        chance = np.full(len(silent), np.nan)
        chance[rated] = self.tail.chance(ratings.score[rated], ratings.gap[rated])
        count = np.bincount(population.site[silent], minlength=population.sites)
        of_site = np.bincount(population.site[rated], minlength=population.sites)
        return Silences(ratings, silent, count >= shared_from(of_site), chance, threshold)


def allowed_per_target(false_per_week: float, targets: int) -> float:
    """Return the false alarms per week that each target may have."""
    return min(false_per_week / max(1, targets), MAX_FALSE_PER_TARGET)


def shared_from(rated: Ints, *, combined: bool = True) -> Ints:
    """Return the (s,) number of silent targets from which a site gets one alarm for all.

    rated:    (s,) number of rated targets of each site
    combined: False for feeds of different publishers, which get separate alarms
    """
    if not combined:
        return np.full(len(rated), np.iinfo(np.int64).max)
    share: Ints = np.ceil(SHARED_SHARE * rated).astype(np.int64)
    return np.maximum(MIN_SHARED, share)


def fit_gaps(population: Population, histories: Histories, mixtures: Mixtures) -> Floats:
    """Fit the (p, g) distribution of shapes and mean gaps in each group, from a sample."""
    rows = _sample(population)
    some, past, sites = population.of(rows), histories.of(rows), sites_of(mixtures)
    likelihood = np.empty((len(rows), len(GRID.mean)), np.float32)

    def work(part: Part) -> None:
        profile = profiles_of(some, past, sites, part)
        zone = some.zone[some.site[part]]
        likelihood[part] = _likelihoods(
            pasts_of(past, part), some.walls, zone, profile, SHAPES, GRID
        )

    spread_over(work, parts(len(rows)))
    return fit_prior(likelihood, some.group, some.parent)


def rate_silences(
    population: Population, histories: Histories, mixtures: Mixtures, prior: Floats
) -> Ratings:
    """Rate the current silence of all targets. prior: (p, g) as of `fit_gaps`."""
    changes, n = np.diff(histories.first), len(population)
    score, since, gap = np.full(n, -np.inf), np.full(n, np.nan), np.full(n, np.nan)
    changed, sites = changes > 0, sites_of(mixtures)
    since[changed] = histories.by[histories.first[1:][changed] - 1]

    def work(part: Part) -> None:
        rows = part.start + np.flatnonzero(changes[part] >= MIN_BURSTS)
        some, past, every = population.of(rows), histories.of(rows), slice(0, len(rows))
        profile = profiles_of(some, past, sites, every)
        model = Model(profile, some.group, prior, SHAPES, GRID)
        zone = some.zone[some.site]
        score[rows], gap[rows] = _rated(pasts_of(past, every), some.walls, zone, model)

    spread_over(work, parts(n))
    return Ratings(score, since, since + WEEK_HOURS * gap, gap)


def calibrated(
    population: Population,
    histories: Histories,
    mixtures: Mixtures,
    prior: Floats,
    false_per_week: float,
    *,
    combined: bool = True,
) -> Calibration:
    """Fit the tail of the scores of past gaps, each rated by the gaps before it.

    false_per_week: rate of false alarms per target near which the tail has to be accurate
    """
    rows = _sample(population)
    some, past, sites = population.of(rows), histories.of(rows), sites_of(mixtures)
    last = float(np.nanmax(past.until, initial=0.0))
    begin = last - CALIBRATION_WEEKS * WEEK_HOURS

    def work(part: Part) -> tuple[Floats, Floats, Ints]:
        profile = profiles_of(some, past, sites, part)
        zone, pasts = some.zone[some.site[part]], pasts_of(past, part)
        model = Model(profile, some.group[part], prior, SHAPES, GRID)
        score, ended, row = _past_scores(pasts, some.walls, zone, model, begin)
        return score, ended, row + part.start

    columns = zip(*spread_over(work, parts(len(rows))), strict=True)
    score, ended, row = (np.concatenate(column) for column in columns)
    observed = past.until - np.maximum(past.since, begin)
    weeks = float(np.nansum(np.maximum(observed, 0.0))) / WEEK_HOURS
    rated = np.bincount(some.site[np.unique(row)], minlength=some.sites)
    kept = alarms_of_sites(score, ended, some.site[row], shared_from(rated, combined=combined))
    return fit_tail(kept, weeks, false_per_week)


def alarms_of_sites(score: Floats, at: Floats, site: Ints, most: Ints) -> Floats:
    """Return the scores of the gaps that would raise separate alarms, at any threshold.

    score, at, site: (k,) scores and ends of gaps, and the sites of their targets
    most:            (s,) number of alarms of a site in four weeks, of which the last is the site's
    """
    episode = np.floor(at / (EPISODE_WEEKS * WEEK_HOURS)).astype(np.int64)
    order = np.lexsort((-score, episode, site))
    is_first = np.append(True, (np.diff(site[order]) != 0) | (np.diff(episode[order]) != 0))
    begins = np.flatnonzero(is_first[: len(order)])
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    result: Floats = score[order][rank < most[site[order]]]
    return result


def fit_tail(score: Floats, weeks: float, false_per_week: float) -> Calibration:
    """Fit an exponential tail to the highest scores.

    score: (k,) scores of past gaps   weeks: sum of the observed weeks of all their targets
    false_per_week: rate per target near which the tail has to be accurate
    """
    number = int(max(TAIL_SCORES, TAIL_FACTOR * false_per_week * weeks))
    highest = np.sort(score)[::-1][: number + 1]
    start = max(0.0, float(highest[-1]) if len(highest) > number else 0.0)
    above = highest[highest > start]
    total = float((above - start).sum()) + EXCESS_SCORES * TYPICAL_EXCESS
    excess = max(1.0, total / (len(above) + EXCESS_SCORES))
    # Count one gap more than observed, so that the rate of few targets is not underestimated.
    rate = min(1.0, (len(above) + 1) / (weeks + 1))
    return Calibration(start, rate, excess)


def _sample(population: Population) -> Ints:
    """Return the rows of at most MAX_SAMPLE targets, the same ones in each replan."""
    if len(population) <= MAX_SAMPLE:
        return np.arange(len(population))
    return np.sort(np.argpartition(population.key, MAX_SAMPLE)[:MAX_SAMPLE])


class Model(NamedTuple):
    """Hold the model for m targets.

    profile: (m, 168)   group: (m,) row of each target in `prior`   prior: (p, g)
    shapes:  SHAPES, as compiled functions take arrays only as arguments
    """

    profile: Floats
    group: Ints
    prior: Floats
    shapes: Floats
    grid: Grid


class Gaps(NamedTuple):
    """Hold the gaps of one target between bursts, in weeks of exposure.

    before: time before the first burst, or all time without bursts
    length: (k,) from the end of each burst to the middle of the interval of the next change
    silent: (k,) from the end of each burst to the last observation without a change
    ended:  (k,) that observation, in hours since 1970 (UTC)
    now:    time since the last burst; 0 without bursts
    """

    before: float
    length: Floats
    silent: Floats
    ended: Floats
    now: float


@compiled
def gaps_of(past: Past, mass: Floats, wall: Wall) -> Gaps:
    """Return the gaps of one target.

    mass: (169,) running sum of its profile
    """
    length, silent = np.empty(len(past.by)), np.empty(len(past.by))
    ended = np.empty(len(past.by))
    before, k, i, end = 0.0, 0, 0, past.since
    while i < len(past.by):
        after, by = max(past.after[i], end), past.by[i]
        silent_weeks = exposure(mass, wall, end, after)
        if i == 0:
            before = silent_weeks
        else:
            middle = exposure(mass, wall, end, (after + by) / 2)
            silent[k], length[k], ended[k] = silent_weeks, max(middle, MIN_GAP_WEEKS), after
            k += 1
        first = by
        while i < len(past.by) and past.by[i] <= first + BURST_HOURS:
            end = past.by[i]
            i += 1
    now = exposure(mass, wall, end, max(end, past.until))
    if len(past.by) == 0:
        before, now = now, 0.0
    return Gaps(before, length[:k], silent[:k], ended[:k], now)


@compiled
def _posterior(
    count: int, log_sum: float, powers: Floats, prior: Floats, shapes: Floats, grid: Grid
) -> Floats:
    """Return the (g,) posterior of shape and mean; with an even prior, the scaled likelihood.

    count, log_sum: number of gaps, sum of their logarithms
    powers:         (shapes,) sum of their powers, with the time before the first burst
    """
    # Negative logarithms.
    result = np.empty(len(grid.mean))
    for g in range(len(result)):
        k = grid.shape[g]
        result[g] = grid.scale[g] * powers[k] - count * grid.log_density[g]
        result[g] -= (shapes[k] - 1) * log_sum
    least = result[lowest(result)]
    for g in range(len(result)):
        result[g] = least - result[g]
    exponentials(result)
    for g in range(len(result)):
        result[g] *= prior[g]
    return result


@compiled
def _score(posterior: Floats, gap: float, shapes: Floats, grid: Grid) -> tuple[float, float]:
    """Return the score of a silent gap, and the mean gap in weeks.

    posterior: (g,) up to a factor   gap: in weeks of exposure
    """
    whole = total(posterior)
    mean = inner(posterior, grid.mean) / whole
    if gap < mean:
        return -np.inf, mean
    power, tail = powers_of(gap, shapes), np.empty(len(posterior))
    for g in range(len(tail)):
        tail[g] = -grid.scale[g] * power[grid.shape[g]]
    exponentials(tail)
    return np.log(mean) - np.log(max(inner(posterior, tail) / whole, 1e-300)), mean


@compiled
def powers_of(gap: float, shapes: Floats) -> Floats:
    """Return (shapes,) the powers of a gap >= 0."""
    power: Floats = shapes * np.log(gap)
    exponentials(power)
    return power


@compiled
def _likelihoods(
    pasts: Pasts, walls: Walls, zone: Ints, profile: Floats, shapes: Floats, grid: Grid
) -> Floats:
    """Return the (m, g) likelihood of each shape and mean; even without history."""
    result, even = np.ones((len(zone), len(grid.mean))), np.ones(len(grid.mean))
    for i in range(len(zone)):
        if pasts.until[i] > pasts.since[i]:
            wall = Wall(walls.base, walls.hours[zone[i]])
            gaps = gaps_of(past_of(pasts, i), running(profile[i]), wall)
            # Count the current silence as well. Otherwise, the prior would reflect only gaps that
            # have ended.
            powers = powers_of(gaps.before, shapes) + powers_of(gaps.now, shapes)
            log_sum = 0.0
            for gap in gaps.length:
                powers += powers_of(gap, shapes)
                log_sum += np.log(gap)
            result[i] = _posterior(len(gaps.length), log_sum, powers, even, shapes, grid)
    return result


@compiled
def _rated(pasts: Pasts, walls: Walls, zone: Ints, model: Model) -> tuple[Floats, Floats]:
    """Return score and mean gap of m targets, as in Ratings."""
    n = len(zone)
    score, mean = np.full(n, -np.inf), np.full(n, np.nan)
    for i in range(n):
        wall = Wall(walls.base, walls.hours[zone[i]])
        gaps = gaps_of(past_of(pasts, i), running(model.profile[i]), wall)
        if len(gaps.length) < MIN_BURSTS - 1:
            continue
        powers, log_sum = powers_of(gaps.before, model.shapes), 0.0
        for gap in gaps.length:
            powers += powers_of(gap, model.shapes)
            log_sum += np.log(gap)
        own = model.prior[model.group[i]]
        posterior = _posterior(len(gaps.length), log_sum, powers, own, model.shapes, model.grid)
        score[i], mean[i] = _score(posterior, gaps.now, model.shapes, model.grid)
    return score, mean


@compiled
def _past_scores(
    pasts: Pasts, walls: Walls, zone: Ints, model: Model, begin: float
) -> tuple[Floats, Floats, Ints]:
    """Return score, end and target of the gaps that ended after `begin`, rated by earlier gaps."""
    most = pasts.first[len(zone)]
    score, ended, row = np.empty(most), np.empty(most), np.empty(most, np.int64)
    k = 0
    for i in range(len(zone)):
        if pasts.first[i + 1] - pasts.first[i] < MIN_BURSTS:
            continue
        wall = Wall(walls.base, walls.hours[zone[i]])
        gaps = gaps_of(past_of(pasts, i), running(model.profile[i]), wall)
        powers, log_sum = powers_of(gaps.before, model.shapes), 0.0
        prior = model.prior[model.group[i]]
        for j in range(len(gaps.length)):
            if j >= MIN_BURSTS - 1 and gaps.ended[j] > begin:
                posterior = _posterior(j, log_sum, powers, prior, model.shapes, model.grid)
                rated, _ = _score(posterior, gaps.silent[j], model.shapes, model.grid)
                score[k], ended[k], row[k] = rated, gaps.ended[j], i
                k += 1
            powers += powers_of(gaps.length[j], model.shapes)
            log_sum += np.log(gaps.length[j])
    return score[:k], ended[:k], row[:k]
