"""What the past of a target says: in which hours of the week it changed, and how often."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.compiled import compiled
from schedules.history import DAY_HOURS, Flags, Floats, Histories, Ints
from schedules.schedule import WEEK_HOURS

# Looks within a day are taken together: a burst of edits is one change.
BURST_HOURS = 24.0
# An interval of a week and more says nothing about the hour.
BLURRED_HOURS = 168.0
# The least expected exposure of an interval that saw a change: some seconds.
MIN_WEEKS = 1e-5

DAYS, HOURS = 7, 24
# Changes that the product stands for in a site's profile, and its share of those counted.
PRODUCT_WEIGHT = 12.0
PRODUCT_SHARE = 0.5
# Changes, spread over all days and hours, that every product begins with.
EVEN_WEIGHT = 14.0
# Changes that the site's profile stands for in a target's.
PROFILE_SITE_WEIGHT = 8.0
NEIGHBOURS = 0.2
FLOOR = 1e-4

MAX_COMPONENTS = 4
# A target that tells the components apart has so many changes; each has so many such targets.
TELLING_CHANGES = 2.0
TARGETS_OF_A_COMPONENT = 8
FIT_ROUNDS = 15
# Changes of the whole site that each component begins with.
SITE_WEIGHT = 40.0
START_WEIGHT = 20.0
MIN_SHARE = 1e-7

# Changes a week: once in four years to hourly.
RATES: Floats = np.geomspace(0.005, 168.0, 48)
PRIOR_ROUNDS = 20
# A group leans on its parent as much as on so many targets of its own.
LEANING = 1.0
# So many targets tell all about their group, or fewer where there are very many groups.
MAX_OF_A_GROUP, MIN_OF_A_GROUP = 5_000, 200
MAX_SAMPLE = 100_000

# What makes the dates of a site reliable: so many, so many of them right, so many visits at most,
# of the dated changes, that met a new date on the old content.
MIN_DATED = 20
MIN_RIGHT = 0.9
MAX_LIES = 0.1
# So near to the visit a date is that of the asking.
ASKING_HOURS = 2 / 60
# A rate is told by days with and without changes (`log_likelihood`), so within a day the exact hour
# of the last change takes nothing from it. In a longer gap it would pass for the only change.
MAX_GAP_HOURS = 24.0
# Histories are in whole minutes: a change at 10:07 happened in the minute that begins there.
MINUTE = 1 / 60

Likelihood = NDArray[np.float32]


class Past(NamedTuple):
    """History of one target as the kernels take it, in hours since 1970 (UTC); after, by: (c,)."""

    since: float
    until: float
    after: Floats
    by: Floats


class Wall(NamedTuple):
    """Wall clock of one zone: hours[k] is the wall hour at the start of UTC hour `base` + k."""

    base: int
    hours: Ints


@compiled
def hour_counts(past: Past, wall: Wall, spread: Floats) -> Floats:
    """(168,) changes by hour of the local week; those of one day count as one together.

    spread: (168,) a change is shared out over the hours in which it may have happened, like this
    """
    counts = np.zeros(WEEK_HOURS)
    i = 0
    while i < len(past.by):
        day, end = _day(past.by[i], wall), i + 1
        while end < len(past.by) and _day(past.by[end], wall) == day:
            end += 1
        for j in range(i, end):
            after, by = past.after[j], past.by[j]
            if by - after >= BLURRED_HOURS:
                continue
            first, last = int(np.floor(after)), int(np.ceil(by)) - 1
            total = 0.0
            for hour in range(first, last + 1):
                inside = min(by, hour + 1) - max(after, hour)
                total += inside * spread[wall.hours[hour - wall.base] % WEEK_HOURS]
            if total <= 0:
                continue
            # A wide interval says little: it counts by the share of the week that it leaves out.
            weight = 1.0 / (end - i) * ((1 - (by - after) / BLURRED_HOURS) / total)
            for hour in range(first, last + 1):
                inside = min(by, hour + 1) - max(after, hour)
                h = wall.hours[hour - wall.base] % WEEK_HOURS
                counts[h] += weight * inside * spread[h]
        i = end
    return counts


@compiled
def _day(at: float, wall: Wall) -> int:
    """The local day, as a number."""
    day: int = wall.hours[int(np.floor(at)) - wall.base] // DAY_HOURS
    return day


@compiled
def even_counts(past: Past, wall: Wall, total: float) -> Floats:
    """(168,) what `total` changes would be like if they came evenly while the target was watched.

    A past of ten days has seen three weekdays twice. An hour counts as it was on the wall clock,
    so that a day of 23 or 25 hours is one of 23 or 25.
    """
    seen = np.zeros(WEEK_HOURS)
    first, last = int(np.floor(past.since)) - wall.base, int(np.floor(past.until)) - wall.base
    if last <= first:
        return seen + total / WEEK_HOURS
    share, whole = total / (last - first), (last - first) // WEEK_HOURS
    # Whole weeks without a change of the clock hold each hour as often as any other.
    if wall.hours[first + whole * WEEK_HOURS] - wall.hours[first] == whole * WEEK_HOURS:
        seen += whole * share
        first += whole * WEEK_HOURS
    hour = wall.hours[first] % WEEK_HOURS
    for t in range(first, last):
        seen[hour] += share
        hour += wall.hours[t + 1] - wall.hours[t]
        if hour < 0 or hour >= WEEK_HOURS:
            hour %= WEEK_HOURS
    return seen


@compiled
def running(profile: Floats) -> Floats:
    """(169,) running sum of a profile."""
    mass = np.zeros(WEEK_HOURS + 1)
    for h in range(WEEK_HOURS):
        mass[h + 1] = mass[h] + profile[h]
    return mass


@compiled
def exposure(mass: Floats, wall: Wall, begin: float, end: float) -> float:
    """Weeks of expected change between two moments: as much of a week as the profile has there."""
    weeks = 0.0
    for at, sign in ((end, 1.0), (begin, -1.0)):
        hour = int(np.floor(at))
        week, h = divmod(wall.hours[hour - wall.base], WEEK_HOURS)
        weeks += sign * (week + mass[h] + (at - hour) * (mass[h + 1] - mass[h]))
    return weeks


@compiled
def log_likelihood(past: Past, mass: Floats, wall: Wall, rates: Floats) -> Floats:
    """(g,) log likelihood of the past under each rate (changes a week).

    Looks within a day are taken together: a burst of edits is one change. A span e that saw a
    change has the likelihood 1 - e^(-r e), one that saw none e^(-r e).
    """
    result = np.zeros(len(rates))
    silent, begin, i = 0.0, past.since, 0
    while i < len(past.by):
        days = np.floor((past.after[i] - begin) / BURST_HOURS)
        if days > 0:
            silent += exposure(mass, wall, begin, begin + days * BURST_HOURS)
            begin += days * BURST_HOURS
        if past.by[i] > begin + BURST_HOURS:
            # The change is not of this day alone, and it is known that it was not before `after`.
            silent += max(exposure(mass, wall, begin, past.after[i]), 0.0)
            begin = max(begin, past.after[i])
        end = max(past.by[i], min(begin + BURST_HOURS, past.until))
        span = max(exposure(mass, wall, begin, end), MIN_WEEKS)
        for g in range(len(rates)):
            result[g] += np.log(-np.expm1(-rates[g] * span))
        begin = end
        # What is left of a change that began before this is no second one.
        while i < len(past.by) and past.by[i] <= begin:
            i += 1
    if past.until > begin:
        silent += exposure(mass, wall, begin, past.until)
    for g in range(len(rates)):
        result[g] -= rates[g] * silent
    return result


@compiled
def product(counts: Floats, even: Floats) -> Floats:
    """(168,) hour x weekday product of counts, sums to 1; even until there are more than a few.

    counts: (168,)   even: (168,) what as many would be without any pattern, see `even_counts`
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
    """(168,) profile of many targets from the sums of their counts; sums to 1."""
    weight = PRODUCT_WEIGHT + PRODUCT_SHARE * counts.sum()
    profile = (counts + weight * product(counts, even)) / (WEEK_HOURS * even + weight)
    result: Floats = profile / profile.sum()
    return result


def smoothed(profiles: Floats) -> Floats:
    """(..., 168) profiles with a share of each hour given to its neighbours."""
    beside = np.roll(profiles, 1, -1) + np.roll(profiles, -1, -1)
    result: Floats = (1 - 2 * NEIGHBOURS) * profiles + NEIGHBOURS * beside
    return result


@compiled
def target_profile(
    counts: Floats, even: Floats, component: Floats, log_component: Floats, share: Floats
) -> Floats:
    """(168,) profile of a target from its own counts and its site's components; sums to 1.

    counts, even: (168,) as in `product`   component, log_component: (k, 168)
    share: (k,) of the site's targets that follow each component, 0 for those unused
    """
    belongs, likely = np.log(np.maximum(share, 1e-300)), np.zeros(len(share))
    profile, total = counts.copy(), counts.sum()
    for h in range(WEEK_HOURS):
        for k in range(len(share)):
            belongs[k] += counts[h] * log_component[k, h]
            likely[k] += even[h] * component[k, h]
    if total > 0:
        belongs -= total * np.log(likely)
    belongs = np.exp(belongs - belongs.max())
    belongs /= belongs.sum()
    for k in range(len(share)):
        weight = PROFILE_SITE_WEIGHT * belongs[k]
        for h in range(WEEK_HOURS):
            profile[h] += weight * component[k, h]
    for h in range(WEEK_HOURS):
        profile[h] /= WEEK_HOURS * even[h] + PROFILE_SITE_WEIGHT
    scale, least = (1 - FLOOR) / profile.sum(), FLOOR / WEEK_HOURS
    for h in range(WEEK_HOURS):
        profile[h] = scale * profile[h] + least
    return profile


class Mixtures(NamedTuple):
    """The weekly profiles that the targets of each of s sites share, as components of a mixture.

    profile: (s, 4, 168), each sums to 1   share: (s, 4) of the targets that follow it, 0 where none
    """

    profile: Floats
    share: Floats


def uniform_mixtures(sites: int) -> Mixtures:
    """One uniform component for each site."""
    profile = np.full((sites, MAX_COMPONENTS, WEEK_HOURS), 1 / WEEK_HOURS)
    share = np.zeros((sites, MAX_COMPONENTS))
    share[:, 0] = 1
    return Mixtures(profile, share)


class Counts(NamedTuple):
    """Changes of m targets by hour of the local week.

    seen: (m, 168)   even: (m, 168) what as many would be without any pattern, see `even_counts`
    """

    seen: Floats
    even: Floats

    def of(self, rows: slice | NDArray[np.bool_]) -> Counts:
        """Those of some targets."""
        return Counts(self.seen[rows], self.even[rows])


def fit_mixture(counts: Counts) -> Mixtures:
    """The mixture of one site (s = 1), from the counts of its targets."""
    whole = smoothed(pooled(counts.seen.sum(0), counts.even.sum(0)))
    telling = counts.of(counts.seen.sum(1) > TELLING_CHANGES)
    k = min(MAX_COMPONENTS, max(1, len(telling.seen) // TARGETS_OF_A_COMPONENT))
    mixture = uniform_mixtures(1)
    mixture.profile[0, :] = whole
    if k == 1:
        return mixture
    # Profiles to begin with: the site's, and of targets that those before explain worst.
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
        of = belonging(telling, profile, share)
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


def belonging(counts: Counts, profile: Floats, share: Floats) -> Floats:
    """(m, k) how probably each target follows each component. profile: (k, 168); share: (k,)."""
    log = _likelihood(counts, profile) + np.log(np.maximum(share, 1e-300))
    of = np.exp(log - log.max(1, keepdims=True))
    result: Floats = of / of.sum(1, keepdims=True)
    return result


def _likelihood(counts: Counts, profile: Floats) -> Floats:
    """(m, k) log likelihood, up to a constant of each target, of its hours among those watched."""
    total = counts.seen.sum(1, keepdims=True)
    among = np.log(counts.even @ profile.T + MIN_SHARE)
    result: Floats = counts.seen @ np.log(profile + MIN_SHARE).T - total * among
    return result


def fit_prior(likelihood: Likelihood, group: Ints, parent: Ints) -> Floats:
    """(p, g) the distribution of rates in each group.

    likelihood: (n, g) of each target's past under each of RATES, up to a factor
    group:      (n,) 0 to p - 1       parent: (p,) the site of each group, 0 to s - 1
    """
    sites = int(parent.max(initial=0)) + 1
    everywhere = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    of_site = np.tile(everywhere, (sites, 1))
    of_group = np.tile(everywhere, (len(parent), 1))
    for _ in range(PRIOR_ROUNDS):
        posterior = likelihood * of_group.astype(np.float32)[group]
        posterior /= posterior.sum(1, keepdims=True)
        sums = _summed(posterior, group, len(parent))
        site_sums = _summed(sums, parent, sites)
        everywhere = _normal(site_sums.sum(0) + 1e-9)
        of_site = _normal(site_sums + LEANING * everywhere)
        of_group = _normal(sums + LEANING * of_site[parent])
    return of_group


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
    most = np.clip(MAX_SAMPLE // max(1, groups), MIN_OF_A_GROUP, MAX_OF_A_GROUP)
    rows: Ints = order[np.arange(len(order)) - begins < most]
    return rows


def right(histories: Histories, stated: Floats) -> Flags:
    """(c,) which changes have a date that lies between the two looks, and not at the second.

    stated: (c,) hours since 1970 (UTC); NaN where the page says nothing
    """
    tolerance = MINUTE / 2
    inside: Flags = stated >= histories.after - tolerance
    inside &= stated < histories.by - ASKING_HOURS + tolerance
    return inside


def reliable(histories: Histories, stated: Floats, lies: Ints, site: Ints, sites: int) -> Flags:
    """(s,) whether each site's dates have proved right.

    lies: (n,) visits with a new date and the old content   site: (n,) 0 to s - 1
    """
    of = np.repeat(site, np.diff(histories.first))
    dated = np.bincount(of[~np.isnan(stated)], minlength=sites)
    proved = np.bincount(of[right(histories, stated)], minlength=sites)
    lied = np.bincount(site, lies, sites)
    result: Flags = (dated >= MIN_DATED) & (proved >= MIN_RIGHT * dated)
    return result & (lied <= MAX_LIES * dated)


def timed(
    histories: Histories, stated: Floats, trusted: Flags, each_dated: Flags | None = None
) -> Histories:
    """The histories with changes at the minute that the page says, where it is trusted.

    trusted:   (n,) whose dates are
    each_dated: (n,) targets that date every change and not only the last, such as feeds
    """
    if not trusted.any():
        return histories
    exact = right(histories, stated) & np.repeat(trusted, np.diff(histories.first))
    short = histories.by - histories.after <= MAX_GAP_HOURS
    if each_dated is not None:
        short |= np.repeat(each_dated, np.diff(histories.first))
    exact &= short
    after = np.where(exact, np.maximum(stated, histories.after), histories.after)
    by = np.where(exact, after + MINUTE, histories.by)
    return replace(histories, after=after, by=by)
