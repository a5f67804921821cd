"""Estimate from a target's history how often, and in which hours of the week, it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.compiled import compiled
from schedules.history import DAY_HOURS, Flags, Floats, Histories, Ints
from schedules.schedule import WEEK_HOURS
from schedules.vectorized import complements, inner, total

# Observations within a day are combined, so that a burst of edits counts as one change.
BURST_HOURS = 24.0
# An interval of a week or more carries no information about the hour.
BLURRED_HOURS = 168.0
# Lower limit of the exposure of an interval with a change (6 seconds), which keeps log() finite.
MIN_WEEKS = 1e-5

DAYS, HOURS = 7, 24
# Weight of the hour x weekday product in a site's profile: a number of changes plus a share of the
# counted changes.
PRODUCT_WEIGHT = 12.0
PRODUCT_SHARE = 0.5
# Changes, spread evenly over all days and hours, that every product starts with.
EVEN_WEIGHT = 14.0
# Weight of the site's profile in a target's profile, in changes.
PROFILE_SITE_WEIGHT = 8.0
NEIGHBORS = 0.2
FLOOR = 1e-4

MAX_COMPONENTS = 4
# A target needs more changes than this to distinguish components, and each component needs this
# many such targets.
TELLING_CHANGES = 2.0
TARGETS_OF_A_COMPONENT = 8
FIT_ROUNDS = 15
# Weight of the site's profile in each component, and in each starting profile, in changes.
SITE_WEIGHT = 40.0
START_WEIGHT = 20.0
MIN_SHARE = 1e-7

# Grid of change rates a week, from once in four years to hourly.
RATES: Floats = np.geomspace(0.005, 168.0, 48)
# Number of probabilities whose product does not underflow: each is at least MIN_WEEKS * RATES[0].
MAX_FACTORS = 32
PRIOR_ROUNDS = 20
# NumPy's pairwise summation keeps LANES partial sums, and halves rows longer than PAIRWISE.
LANES, PAIRWISE = 8, 128
# Weight of the parent's prior in a group's prior, in targets.
PARENT_WEIGHT = 1.0
# Maximum number of targets from which a group's prior is fitted; fewer if there are many groups.
MAX_OF_A_GROUP, MIN_OF_A_GROUP = 5_000, 200
MAX_SAMPLE = 100_000

# Requirements for reliable dates: number of dated changes, share of correct dates, and maximum
# number of visits with a new date but unchanged content, relative to dated changes.
MIN_DATED = 20
MIN_CORRECT = 0.9
MAX_FALSE_DATES = 0.1
# A date this close to the visit is the date of the request, not of a change.
REQUEST_DATE_HOURS = 2 / 60
# Rates are estimated from days with and without changes (`log_likelihood`), so within a day the
# exact time of the last change loses nothing. In a longer gap the last change would be taken for
# the only one.
MAX_GAP_HOURS = 24.0
# Histories are in whole minutes: a change at 10:07 happened between 10:07 and 10:08.
MINUTE = 1 / 60

Likelihood = NDArray[np.float32]


class Past(NamedTuple):
    """Hold the history of one target for the kernels, in hours since 1970 (UTC)."""

    since: float
    until: float
    after: Floats
    by: Floats


class Wall(NamedTuple):
    """Hold the wall clock of one zone.

    hours[k] is the wall hour at the start of UTC hour base + k.
    """

    base: int
    hours: Ints


@compiled
def hour_counts(past: Past, wall: Wall, spread: Floats) -> Floats:
    """Return the (168,) changes by hour of the local week; all changes of a day count as one.

    spread: (168,) weights that distribute a change over the hours in which it may have happened
    """
    counts, inside = np.zeros(WEEK_HOURS), np.ones(int(BLURRED_HOURS) + 1)
    i = 0
    while i < len(past.by):
        day, end = _day(past.by[i], wall), i + 1
        while end < len(past.by) and _day(past.by[end], wall) == day:
            end += 1
        for j in range(i, end):
            if past.by[j] - past.after[j] < BLURRED_HOURS:
                _add_change(
                    counts, inside, 1.0 / (end - i), past.after[j], past.by[j], wall, spread
                )
        i = end
    return counts


@compiled
def _add_change(
    counts: Floats,
    inside: Floats,
    share: float,
    after: float,
    by: float,
    wall: Wall,
    spread: Floats,
) -> None:
    """Add a share of a change in (after, by], which is less than BLURRED_HOURS long, to counts.

    inside: (BLURRED_HOURS + 1,) ones; holds the part of each hour that is in the interval meanwhile
    spread: as in `hour_counts`
    """
    first, last = int(np.floor(after)), int(np.ceil(by)) - 1
    if last < first:
        return
    inside[last - first] = by - last
    inside[0] = min(by, first + 1) - after
    begin, stop, total = first - wall.base, last + 1 - wall.base, 0.0
    t = begin
    while t < stop:
        hour, run = _run(wall, t, stop)
        part, weights = inside[t - begin :], spread[hour:]
        for k in range(run):
            total += part[k] * weights[k]
        t += run
    if total > 0:
        # A wide interval carries little information, so its weight is the share of the week outside
        # it.
        weight = share * ((1 - (by - after) / BLURRED_HOURS) / total)
        t = begin
        while t < stop:
            hour, run = _run(wall, t, stop)
            part, weights, to = inside[t - begin :], spread[hour:], counts[hour:]
            for k in range(run):
                to[k] += weight * part[k] * weights[k]
            t += run
    inside[last - first] = 1.0


@compiled
def _run(wall: Wall, t: int, stop: int) -> tuple[int, int]:
    """Return the local hour of the week at UTC hour base + t, and the length of its run in hours.

    A run is of consecutive local hours. It ends before `stop` and with the local week.
    """
    hour = wall.hours[t] % WEEK_HOURS
    run = min(stop - t, WEEK_HOURS - hour)
    # With a clock change until then, go hour by hour.
    if wall.hours[t + run - 1] - wall.hours[t] != run - 1:
        run = 1
    return hour, run


@compiled
def _day(at: float, wall: Wall) -> int:
    """Return the number of the local day."""
    day: int = wall.hours[int(np.floor(at)) - wall.base] // DAY_HOURS
    return day


@compiled
def even_counts(past: Past, wall: Wall, total: float) -> Floats:
    """Return the (168,) counts of `total` changes spread evenly over the observed period.

    A history of ten days covers three weekdays twice. Hours are counted by the wall clock, so that
    days with a clock change have 23 or 25 hours.
    """
    seen = np.zeros(WEEK_HOURS)
    first, last = int(np.floor(past.since)) - wall.base, int(np.floor(past.until)) - wall.base
    if last <= first:
        return seen + total / WEEK_HOURS
    share, whole = total / (last - first), (last - first) // WEEK_HOURS
    # Whole weeks without a clock change contain each hour equally often.
    if wall.hours[first + whole * WEEK_HOURS] - wall.hours[first] == whole * WEEK_HOURS:
        seen += whole * share
        first += whole * WEEK_HOURS
    while first < last:
        hour, run = _run(wall, first, last)
        for k in range(hour, hour + run):
            seen[k] += share
        first += run
    return seen


@compiled
def running(profile: Floats) -> Floats:
    """Return the (169,) running sum of a profile."""
    mass = np.zeros(WEEK_HOURS + 1)
    for h in range(WEEK_HOURS):
        mass[h + 1] = mass[h] + profile[h]
    return mass


@compiled
def exposure(mass: Floats, wall: Wall, begin: float, end: float) -> float:
    """Return the weeks of exposure between two times, weighted by the profile."""
    weeks = 0.0
    for at, sign in ((end, 1.0), (begin, -1.0)):
        hour = int(np.floor(at))
        week, h = divmod(wall.hours[hour - wall.base], WEEK_HOURS)
        weeks += sign * (week + mass[h] + (at - hour) * (mass[h + 1] - mass[h]))
    return weeks


@compiled
def log_likelihood(past: Past, mass: Floats, wall: Wall, rates: Floats) -> Floats:
    """Return the (g,) log likelihood of the history under each rate (changes a week).

    Observations within a day are combined, so that a burst of edits counts as one change. With r
    the rate and e the exposure, an interval with a change has the likelihood 1 - e^(-r e), one
    without a change e^(-r e).
    """
    result, chance, changed = np.zeros(len(rates)), np.ones(len(rates)), np.empty(len(rates))
    silent, begin, i, factors = 0.0, past.since, 0, 0
    while i < len(past.by):
        days = np.floor((past.after[i] - begin) / BURST_HOURS)
        if days > 0:
            silent += exposure(mass, wall, begin, begin + days * BURST_HOURS)
            begin += days * BURST_HOURS
        if past.by[i] > begin + BURST_HOURS:
            # The change may have happened after this day, but not before `after`, so start there.
            silent += max(exposure(mass, wall, begin, past.after[i]), 0.0)
            begin = max(begin, past.after[i])
        end = max(past.by[i], min(begin + BURST_HOURS, past.until))
        span = max(exposure(mass, wall, begin, end), MIN_WEEKS)
        for g in range(len(rates)):
            changed[g] = -rates[g] * span
        complements(changed)
        for g in range(len(rates)):
            chance[g] *= changed[g]
        factors += 1
        if factors % MAX_FACTORS == 0:
            _add_logarithms(result, chance)
        begin = end
        # Skip changes that end within this interval: they belong to the same burst.
        while i < len(past.by) and past.by[i] <= begin:
            i += 1
    if past.until > begin:
        silent += exposure(mass, wall, begin, past.until)
    _add_logarithms(result, chance)
    for g in range(len(rates)):
        result[g] -= rates[g] * silent
    return result


@compiled
def _add_logarithms(result: Floats, chance: Floats) -> None:
    """Add the logarithms of probabilities to the result, and begin again with 1."""
    for g in range(len(chance)):
        result[g] += np.log(chance[g])
        chance[g] = 1.0


@compiled
def product(counts: Floats, even: Floats) -> Floats:
    """Return the (168,) hour x weekday product of counts; sums to 1, nearly even for few counts.

    counts: (168,)
    even:   (168,) the same number of changes without any pattern, see `even_counts`
    """
    table, flat = counts.copy().reshape((DAYS, HOURS)), even.copy().reshape((DAYS, HOURS))
    days = (table.sum(1) + EVEN_WEIGHT / DAYS) / (flat.sum(1) + EVEN_WEIGHT / DAYS)
    hours = (table.sum(0) + EVEN_WEIGHT / HOURS) / (flat.sum(0) + EVEN_WEIGHT / HOURS)
    result = np.empty(WEEK_HOURS)
    for day in range(DAYS):
        for hour in range(HOURS):
            result[day * HOURS + hour] = days[day] * hours[hour]
    normal: Floats = result / result.sum()
    return normal


def pooled(counts: Floats, even: Floats) -> Floats:
    """Return the (168,) profile of many targets from the sums of their counts; sums to 1."""
    weight = PRODUCT_WEIGHT + PRODUCT_SHARE * counts.sum()
    profile = (counts + weight * product(counts, even)) / (WEEK_HOURS * even + weight)
    result: Floats = profile / profile.sum()
    return result


def smoothed(profiles: Floats) -> Floats:
    """Return (..., 168) profiles in which each hour shares a part with its neighbors."""
    neighbors = np.roll(profiles, 1, -1) + np.roll(profiles, -1, -1)
    result: Floats = (1 - 2 * NEIGHBORS) * profiles + NEIGHBORS * neighbors
    return result


@compiled
def target_profile(
    counts: Floats, even: Floats, component: Floats, log_component: Floats, share: Floats
) -> Floats:
    """Return the (168,) profile of a target from its counts and its site's components; sums to 1.

    counts, even:             (168,) as in `product`
    component, log_component: (k, 168)
    share:                    (k,) share of the site's targets that follow each component, 0 if
                              unused
    """
    changes, belongs, best = total(counts), np.empty(len(share)), -np.inf
    for k in range(len(share)):
        belongs[k] = np.log(max(share[k], 1e-300))
        if changes > 0:
            belongs[k] += inner(counts, log_component[k])
            belongs[k] -= changes * np.log(inner(even, component[k]))
        best = max(best, belongs[k])
    for k in range(len(share)):
        belongs[k] = np.exp(belongs[k] - best)
    whole = belongs.sum()
    profile = np.empty(WEEK_HOURS)
    for h in range(WEEK_HOURS):
        profile[h] = counts[h]
    for k in range(len(share)):
        weight, own = PROFILE_SITE_WEIGHT * belongs[k] / whole, component[k]
        for h in range(WEEK_HOURS):
            profile[h] += weight * own[h]
    for h in range(WEEK_HOURS):
        profile[h] /= WEEK_HOURS * even[h] + PROFILE_SITE_WEIGHT
    scale, least = (1 - FLOOR) / total(profile), FLOOR / WEEK_HOURS
    for h in range(WEEK_HOURS):
        profile[h] = scale * profile[h] + least
    return profile


class Mixtures(NamedTuple):
    """Hold the weekly profiles shared by the targets of each of s sites, as mixture components.

    profile: (s, 4, 168), each sums to 1
    share:   (s, 4) share of the targets that follow each component, 0 if unused
    """

    profile: Floats
    share: Floats


def uniform_mixtures(sites: int) -> Mixtures:
    """Return one uniform component for each site."""
    profile = np.full((sites, MAX_COMPONENTS, WEEK_HOURS), 1 / WEEK_HOURS)
    share = np.zeros((sites, MAX_COMPONENTS))
    share[:, 0] = 1
    return Mixtures(profile, share)


class Counts(NamedTuple):
    """Hold the changes of m targets by hour of the local week.

    seen: (m, 168)
    even: (m, 168) the same number without any pattern, see `even_counts`
    """

    seen: Floats
    even: Floats

    def of(self, rows: slice | NDArray[np.bool_]) -> Counts:
        """Return the counts of some targets."""
        return Counts(self.seen[rows], self.even[rows])


def fit_mixture(counts: Counts) -> Mixtures:
    """Fit the mixture of one site (s = 1) to the counts of its targets."""
    whole = smoothed(pooled(counts.seen.sum(0), counts.even.sum(0)))
    telling = counts.of(counts.seen.sum(1) > TELLING_CHANGES)
    k = min(MAX_COMPONENTS, max(1, len(telling.seen) // TARGETS_OF_A_COMPONENT))
    mixture = uniform_mixtures(1)
    mixture.profile[0, :] = whole
    if k == 1:
        return mixture
    # Start from the site's profile, then add the targets that the chosen profiles explain worst.
    own = (telling.seen + START_WEIGHT * whole) / (WEEK_HOURS * telling.even + START_WEIGHT)
    own = smoothed(own / own.sum(1, keepdims=True))
    best = (telling.seen * np.log(own + MIN_SHARE)).sum(1) - telling.seen.sum(1) * np.log(
        (telling.even * own).sum(1) + MIN_SHARE
    )
    chosen = [whole]
    for _ in range(k - 1):
        explained = _likelihood(telling, np.array(chosen)).max(1)
        chosen.append(own[np.argmax(best - explained)])

    profile, share = np.array(chosen), np.full(k, 1 / k)
    for _ in range(FIT_ROUNDS):
        of = memberships(telling, profile, share)
        share = (of.sum(0) + 1) / (of.sum() + k)
        for i, (seen, even) in enumerate(
            zip(of.T @ telling.seen, of.T @ telling.even, strict=True)
        ):
            weight = seen.sum()
            mean = (weight * pooled(seen, even) + SITE_WEIGHT * whole) / (weight + SITE_WEIGHT)
            profile[i] = smoothed(mean)
    mixture.profile[0, :k], mixture.share[0] = profile, 0
    mixture.share[0, :k] = share
    return mixture


def memberships(counts: Counts, profile: Floats, share: Floats) -> Floats:
    """Return the (m, k) probability that each target follows each component.

    profile: (k, 168)
    share:   (k,)
    """
    log = _likelihood(counts, profile) + np.log(np.maximum(share, 1e-300))
    of = np.exp(log - log.max(1, keepdims=True))
    result: Floats = of / of.sum(1, keepdims=True)
    return result


def _likelihood(counts: Counts, profile: Floats) -> Floats:
    """Return the (m, k) log likelihood of each target's hours, up to a constant per target.

    It is conditional on the hours in which the target was observed.
    """
    total = counts.seen.sum(1, keepdims=True)
    among = np.log(counts.even @ profile.T + MIN_SHARE)
    result: Floats = counts.seen @ np.log(profile + MIN_SHARE).T - total * among
    return result


def fit_prior(likelihood: Likelihood, group: Ints, parent: Ints) -> Floats:
    """Fit the (p, g) distribution of rates in each group by expectation maximization.

    likelihood: (n, g) likelihood of each target's history under each of RATES, up to a factor
    group:      (n,) 0 to p - 1
    parent:     (p,) site of each group, 0 to s - 1

    Groups are shrunk to their site, and sites to all targets (hierarchical prior).
    """
    sites = int(parent.max(initial=0)) + 1
    everywhere = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    of_site = np.tile(everywhere, (sites, 1))
    of_group = np.tile(everywhere, (len(parent), 1))
    order = np.argsort(group, kind="stable")
    for _ in range(PRIOR_ROUNDS):
        sums = _posterior_sums(likelihood, of_group.astype(np.float32), group, order)
        site_sums = np.zeros_like(of_site)
        np.add.at(site_sums, parent, sums)
        everywhere = _normal(site_sums.sum(0) + 1e-9)
        of_site = _normal(site_sums + PARENT_WEIGHT * everywhere)
        of_group = _normal(sums + PARENT_WEIGHT * of_site[parent])
    return of_group


@compiled
def _posterior_sums(likelihood: Likelihood, prior: Likelihood, group: Ints, order: Ints) -> Floats:
    """Return the (p, g) sums of the posteriors of each group, of n targets in this order."""
    sums = np.zeros((len(prior), likelihood.shape[1]))
    posterior = np.empty(likelihood.shape[1], np.float32)
    for i in order:
        own = prior[group[i]]
        for g in range(len(posterior)):
            posterior[g] = likelihood[i, g] * own[g]
        total, to = _sum(posterior), sums[group[i]]
        for g in range(len(posterior)):
            to[g] += posterior[g] / total
    return sums


@compiled
def _sum(values: Likelihood) -> np.float32:
    """Return the sum of small numbers, pairwise as NumPy does, for the same rounding."""
    n = len(values)
    if n > PAIRWISE:
        half = n // 2 - n // 2 % LANES
        return _sum(values[:half]) + _sum(values[half:])
    lanes = np.zeros(LANES, np.float32)
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        for k in range(LANES):
            lanes[k] += values[i + k]
    total: np.float32 = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + (
        (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
    )
    for i in range(whole, n):
        total += values[i]
    return total


def _normal(rows: Floats) -> Floats:
    """Return rows scaled to the sum 1."""
    result: Floats = rows / rows.sum(-1, keepdims=True)
    return result


def sample(group: Ints, key: NDArray[np.uint64]) -> Ints:
    """Return rows to fit: all of a small group, some of a large one, independent of their order."""
    groups = len(np.unique(group))
    most = np.full(int(group.max(initial=-1)) + 1, most_of_a_group(groups))
    return first_of_each(group, key, most)


def most_of_a_group(groups: int) -> int:
    """Return the maximum number of targets from which the prior of a group is fitted."""
    return int(np.clip(MAX_SAMPLE // max(1, groups), MIN_OF_A_GROUP, MAX_OF_A_GROUP))


def first_of_each(group: Ints, key: NDArray[np.uint64], most: Ints) -> Ints:
    """Return the rows with the lowest keys of each group, ordered by group and key.

    most: (p,) number of rows of each group
    """
    order = np.lexsort((key, group))
    begins = np.searchsorted(group[order], group[order], side="left")
    rows: Ints = order[np.arange(len(order)) - begins < most[group[order]]]
    return rows


def correct_dates(histories: Histories, stated: Floats) -> Flags:
    """Return (c,) flags of the changes whose stated date lies between the two observations.

    stated: (c,) hours since 1970 (UTC); NaN if the page states no date

    A date at the time of the second observation is not counted as correct, because it may be the
    date of the request.
    """
    tolerance = MINUTE / 2
    inside: Flags = stated >= histories.after - tolerance
    inside &= stated < histories.by - REQUEST_DATE_HOURS + tolerance
    return inside


class DateCounts(NamedTuple):
    """Count the dates that the targets of each of s sites state.

    dated, correct: (s,) changes with a date, and with a correct one
    false_dates:    (s,) visits with a new date but unchanged content
    """

    dated: Ints
    correct: Ints
    false_dates: Ints

    @classmethod
    def of(
        cls, histories: Histories, stated: Floats, false_dates: Ints, site: Ints, sites: int
    ) -> DateCounts:
        """Count the dates of n targets. false_dates, site: (n,)."""
        of = np.repeat(site, np.diff(histories.first))
        dated = np.bincount(of[~np.isnan(stated)], minlength=sites)
        correct = np.bincount(of[correct_dates(histories, stated)], minlength=sites)
        false = np.bincount(site, false_dates, sites).astype(np.int64)
        return cls(dated, correct, false)

    def reliable(self) -> Flags:
        """Return (s,) flags of the sites whose dates have proved reliable."""
        result: Flags = (self.dated >= MIN_DATED) & (self.correct >= MIN_CORRECT * self.dated)
        return result & (self.false_dates <= MAX_FALSE_DATES * self.dated)


def timed(
    histories: Histories, stated: Floats, trusted: Flags, each_dated: Flags | None = None
) -> Histories:
    """Return the histories with changes at the minute that the page states, if it is trusted.

    trusted:    (n,) flags of the targets whose dates are reliable
    each_dated: (n,) flags of targets that date every change, such as feeds, not only the last one
    """
    if not trusted.any():
        return histories
    exact = correct_dates(histories, stated) & np.repeat(trusted, np.diff(histories.first))
    short = histories.by - histories.after <= MAX_GAP_HOURS
    if each_dated is not None:
        short |= np.repeat(each_dated, np.diff(histories.first))
    exact &= short
    after = np.where(exact, np.maximum(stated, histories.after), histories.after)
    by = np.where(exact, after + MINUTE, histories.by)
    return replace(histories, after=after, by=by)
