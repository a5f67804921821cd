"""Policies that need no market: the paper's groups, even intervals, and the adaptive interval."""

from __future__ import annotations

import numpy as np

from schedules import even, groups
from schedules.chunks import parts
from schedules.draft import Draft
from schedules.estimate import Estimate
from schedules.history import DAY_HOURS, Flags, Histories
from schedules.outlook import outlook
from schedules.phases import even_phase
from schedules.population import Population
from schedules.schedule import WEEK_HOURS, Schedules, chosen_of
from schedules.terms import GROUPED, RULE, WEEK_DAYS, Terms, least_visits

# An even interval moves when it changes by more than this factor, e^0.25.
EVEN_BAND = 0.25
ADAPTIVE_HOURS = 24.0
TRIES = 8
NIGHT_BEGINS, NIGHT_ENDS = 18, 9


def draft(believed: Estimate, terms: Terms, present: Schedules) -> Draft:
    """The schedules of one of these policies."""
    if terms.policy in GROUPED:
        schedules = grouped(believed.population, believed.histories, six=terms.policy == "groups6")
    elif terms.policy == "adaptive":
        schedules = _adaptive(believed.population, present)
    else:
        schedules = _even(believed, terms, present)
    n = len(schedules)
    unknown, rule = np.full(n, np.nan), np.full(n, RULE, np.uint8)
    return Draft(schedules, outlook(believed, schedules), unknown, unknown, rule, np.nan)


def grouped(population: Population, histories: Histories, *, six: bool) -> Schedules:
    """The paper's timetable from mean changes a week and the share of them by night."""
    weeks = (histories.until - histories.since) / WEEK_HOURS
    changes = np.diff(histories.first)
    mean = np.divide(changes, weeks, where=weeks > 0, out=np.zeros(len(weeks)))
    codes = groups.group(mean)
    return groups.timetable(groups.six(codes) if six else codes, by_night(population, histories))


def by_night(population: Population, histories: Histories) -> Flags:
    """(n,) whether more changes of a target fall in its site's night than in its day."""
    n = len(population)
    owner = np.repeat(np.arange(n), np.diff(histories.first))
    hour = np.floor((histories.after + histories.by) / 2).astype(np.int64)
    zone = population.zone[population.site[owner]]
    local = population.walls.hours[zone, hour - population.walls.base] % DAY_HOURS
    night = (local >= NIGHT_BEGINS) | (local < NIGHT_ENDS)
    nights, all_of = np.bincount(owner, night, n), np.bincount(owner, minlength=n)
    result: Flags = 2 * nights > all_of
    return result


def _even(believed: Estimate, terms: Terms, present: Schedules) -> Schedules:
    """Even intervals that spend the budget; those that hardly change stay, and the rest pays."""
    population = believed.population
    rates = [believed.rates(part).mean for part in parts(len(population))]
    rate, weight = np.concatenate(rates), population.weight / population.cost
    least, most = least_visits(population), WEEK_HOURS / population.min_hours
    had, budget = present.visits_per_week, terms.budget_per_day * WEEK_DAYS
    is_even, spend = present.every_hours > 0, budget
    for _ in range(TRIES):
        visits = even.visits_per_week(terms.policy, rate, weight, spend, least, most)
        kept = is_even & (np.abs(np.log(np.maximum(had, 1e-9) / visits)) < EVEN_BAND)
        total = float(np.where(kept, had, visits).sum())
        if total <= budget * (1 + 1e-9):
            break
        spend -= total - budget
    else:
        kept = np.zeros(len(visits), np.bool_)
        visits = even.visits_per_week(terms.policy, rate, weight, budget, least, most)
    return chosen_of(kept, present, Schedules.even(visits, even_phase(population.key)))


def _adaptive(population: Population, present: Schedules) -> Schedules:
    """A daily visit to begin with; what follows is decided visit by visit."""
    daily = np.full(len(population), WEEK_HOURS / ADAPTIVE_HOURS)
    return chosen_of(
        present.every_hours > 0, present, Schedules.even(daily, even_phase(population.key))
    )
