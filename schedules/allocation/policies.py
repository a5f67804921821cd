"""Implement the policies for comparison, mainly the frequency classes of the paper.

In Cho, Lee and Choi (2013), a page that changes c times a week on average is in the class of the
nearest whole number of visits, G1 to G14. Pages with less than half a change a week are in 2G1 (a
visit every two weeks) or 4G1 (every four). Pages that change by day are visited at midnight, those
that change by night at noon, shortly after their changes.

The code of a class is its rank from the rarest, 0 for 4G1, to the most frequent, 15 for G14.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedules.compiled import parts
from schedules.estimation.estimate import Estimate
from schedules.history import DAY_HOURS, Flags, Floats, Histories
from schedules.placement.load import even_phase
from schedules.population import Population, least_visits
from schedules.schedule import (
    FREQUENCY_CLASSES,
    VISITS_OF_CLASSES,
    WEEK_DAYS,
    WEEK_HOURS,
    Schedule,
    Schedules,
    chosen_of,
)
from schedules.terms import GROUPED, Terms, visits_per_week

Codes = NDArray[np.uint8]

# (16,) replacement of each class by one of the six 4G1, 2G1, G1, G3, G7, G14.
SIX = np.array([0, 1, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8, 15, 15, 15, 15], np.uint8)

# The table of the paper gives G3 Monday, Wednesday and Friday, and rarer classes Saturday. The
# others are as even as whole days allow. From G2 to G7, each class has the days of the previous one
# and one more, so that a page that changes its class keeps its visits.
_DAYS = ((5,), (0, 4), (0, 2, 4), (0, 2, 4, 5), (0, 1, 2, 4, 5), tuple(range(6)), tuple(range(7)))
# 2G1 has the 2nd and 4th Saturday of four weeks. The table of the paper names only the 2nd, but
# that would be a visit every four weeks. 4G1 has the 3rd.
_RARE_WEEK = ((4, 2), (2, 1))
_MIDNIGHT, _NOON = 0, 12
NIGHT_BEGINS, NIGHT_ENDS = 18, 9
# An even interval is replaced only if it changes by more than this factor, e^0.25.
EVEN_BAND = 0.25
ADAPTIVE_HOURS = 24.0
TRIES = 8


def group(changes_per_week: Floats) -> Codes:
    """Return the (n,) codes for mean changes a week, >= 0: the nearest whole number, halves up."""
    nearest = np.clip(np.floor(changes_per_week + 0.5), 1, 14) + 1
    rare = np.where(changes_per_week < 0.25, 0, 1)
    return np.where(changes_per_week < 0.5, rare, nearest).astype(np.uint8)


def six_groups(groups: Codes) -> Codes:
    """Return the (n,) codes of the six classes that replace all sixteen."""
    return SIX[groups]


def timetable(groups: Codes, night: Flags) -> Schedules:
    """Return the fixed slots of n targets.

    groups: (n,) codes
    night:  (n,) whether they change by night
    """
    return _TABLE.of(groups.astype(np.int64) * 2 + night)


def _class_schedule(group: int, night: bool) -> Schedule:
    """Return the fixed slots of a class for pages that change by night, or by day."""
    first, second = (_NOON, _MIDNIGHT) if night else (_MIDNIGHT, _NOON)
    if group < len(_RARE_WEEK):
        weeks, week = _RARE_WEEK[group]
        return Schedule(weeks, (week * WEEK_HOURS + _DAYS[0][0] * DAY_HOURS + first,))
    visits = int(VISITS_OF_CLASSES[group])
    slots = [day * DAY_HOURS + first for day in _DAYS[min(visits, 7) - 1]]
    if visits > 7:
        slots += [day * DAY_HOURS + second for day in _DAYS[visits - 8]]
    return Schedule(1, tuple(sorted(slots)))


# The slots of each class, by day and by night: rows 2 * code and 2 * code + 1.
_TABLE = Schedules.of_each(
    [
        _class_schedule(group, night)
        for group in range(len(FREQUENCY_CLASSES))
        for night in (False, True)
    ]
)


def schedules_by_policy(estimates: Estimate, terms: Terms, current: Schedules) -> Schedules:
    """Return the schedules of one of these policies."""
    population = estimates.population
    n = len(population)
    if terms.policy in GROUPED:
        return grouped(population, estimates.histories, six=terms.policy == "groups6")
    if terms.policy == "adaptive":
        # Start with a daily visit; every visit then sets the next interval.
        daily = Schedules.even(np.full(n, WEEK_HOURS / ADAPTIVE_HOURS), even_phase(population.key))
        return chosen_of(current.every_hours > 0, current, daily)
    # Even intervals that use the budget, keeping intervals that would hardly change.
    rates = [estimates.rates(part).mean for part in parts(n)]
    rate, weight = np.concatenate(rates), population.weight / population.cost
    least, most = least_visits(population), WEEK_HOURS / population.min_hours
    current_visits, budget = current.visits_per_week, terms.budget_per_day * WEEK_DAYS
    is_even, spend = current.every_hours > 0, budget
    for _ in range(TRIES):
        visits = visits_per_week(terms.policy, rate, weight, spend, least, most)
        kept = is_even & (np.abs(np.log(np.maximum(current_visits, 1e-9) / visits)) < EVEN_BAND)
        total = float(np.where(kept, current_visits, visits).sum())
        if total <= budget * (1 + 1e-9):
            break
        spend -= total - budget
    else:
        kept = np.zeros(n, np.bool_)
        visits = visits_per_week(terms.policy, rate, weight, budget, least, most)
    return chosen_of(kept, current, Schedules.even(visits, even_phase(population.key)))


def grouped(population: Population, histories: Histories, *, six: bool) -> Schedules:
    """Return the timetable of the paper, from mean changes a week and their share by night."""
    weeks = (histories.until - histories.since) / WEEK_HOURS
    changes = np.diff(histories.first)
    mean = np.divide(changes, weeks, where=weeks > 0, out=np.zeros(len(weeks)))
    codes = group(mean)
    return timetable(six_groups(codes) if six else codes, by_night(population, histories))


def by_night(population: Population, histories: Histories) -> Flags:
    """Return (n,) flags of the targets with more changes in their site's night than in its day.

    A tie counts as day: a page without any change, such as u14 in the paper, is visited at
                  midnight.
    """
    n = len(population)
    owner = np.repeat(np.arange(n), np.diff(histories.first))
    hour = np.floor((histories.after + histories.by) / 2).astype(np.int64)
    zone = population.zone[population.site[owner]]
    local = population.walls.hours[zone, hour - population.walls.base] % DAY_HOURS
    night = (local >= NIGHT_BEGINS) | (local < NIGHT_ENDS)
    nights, all_of = np.bincount(owner, night, n), np.bincount(owner, minlength=n)
    result: Flags = 2 * nights > all_of
    return result
