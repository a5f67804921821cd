"""The optimal policy: one price for a request over all targets, tolls where a day is full."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedules import optimal
from schedules.allocate import Purchase, buy, least_visits
from schedules.caps import Caps, day_tolls, site_days
from schedules.draft import Draft
from schedules.estimate import Estimate
from schedules.explore import exploring
from schedules.history import DAY_HOURS, Floats
from schedules.optimal import Offers
from schedules.phases import balanced, fullest_week, in_time
from schedules.schedule import PAGE_CYCLES, WEEK_HOURS, Schedules
from schedules.terms import CEILING, EXPLORATION, FLOOR, PRICE, WEEK_DAYS, BudgetTooSmall, Terms

# So many targets tell the price and the tolls for all.
ENOUGH = 4_000
# What nobody would buy at a much lower price need not be worked out.
WORTH_OFFERING = 0.7
FIRST_GUESS, LOWEST = 16.0, 1e-3
# Rare visits that may not wait can fill one week more than others; the next try spends less.
TRIES = 3


def draft(believed: Estimate, terms: Terms, now: float, present: Schedules) -> Draft:
    """The best schedules for the budget, those of the present where others are hardly better."""
    population = believed.population
    toll, price = _prices(believed, terms, now)
    offers = optimal.offers(believed, terms.aim, toll, WORTH_OFFERING * price)
    whole, least = terms.budget_per_day * WEEK_DAYS, least_visits(offers.steps)
    if least > whole * (1 + 1e-6):
        raise BudgetTooSmall(least / WEEK_DAYS, len(population))
    # Whole visits: the fullest of the weeks may have one more than their mean.
    budget = max(whole - 1, least)
    for _ in range(TRIES):
        bought = buy(offers.steps, population.key, budget, present.visits_per_week)
        made = _made(believed, terms, now, present, toll, offers, bought)
        over = fullest_week(made.schedules) - whole
        if over <= 1e-6:
            break
        budget = max(budget - over, least)
    return made


def _made(
    believed: Estimate,
    terms: Terms,
    now: float,
    present: Schedules,
    toll: Floats,
    offers: Offers,
    bought: Purchase,
) -> Draft:
    """What was bought, as schedules that keep the present ones where these are as good."""
    population, last = believed.population, believed.histories.until
    new = optimal.schedules_of(bought.chosen, offers, population.key, PAGE_CYCLES)
    schedules, outlook = optimal.settled(believed, terms.aim, toll, bought.price, new, present)
    schedules = in_time(schedules, ~schedules.same_as(present), population, last, now)
    schedules, outlook, explored = exploring(believed, schedules, outlook)
    schedules = balanced(schedules, population, last, now)
    value, worth, bound = why(offers, bought)
    bound = np.where(explored, EXPLORATION, bound).astype(np.uint8)
    return Draft(schedules, outlook, value, worth, bound, bought.price)


def why(offers: Offers, bought: Purchase) -> tuple[Floats, Floats, NDArray[np.uint8]]:
    """(n,) value of one more visit, worth of the last one bought, and what decided.

    The ceiling decided where there is no more to be had, the floor where none but the least was
    bought; the worth of that is not known, and at least that of the next.
    """
    steps = offers.steps
    last = bought.chosen == steps.first[1:] - 1
    following = np.minimum(bought.chosen + 1, len(steps.value) - 1)
    value = np.where(last, 0.0, steps.value[following])
    ceiling = last & offers.full & np.isfinite(steps.value[bought.chosen])
    floor = bought.chosen == steps.first[:-1]
    worth = np.where(floor, value, steps.value[bought.chosen])
    return value, worth, np.select([floor, ceiling], [FLOOR, CEILING], PRICE).astype(np.uint8)


def _prices(believed: Estimate, terms: Terms, now: float) -> tuple[Floats, float]:
    """(s, 168) tolls of the hours of the local week, inf where closed; the price of a request."""
    population = believed.population
    some, share = sampled(believed)
    sample = _Sample(some, terms, now, share)
    tolls = day_tolls(sample.loads, Caps.of(terms, population, share), population.sites)
    return sample.toll(tolls), sample.bought(tolls)[1]


def sampled(believed: Estimate) -> tuple[Estimate, float]:
    """Some of the targets where there are very many, and their share of all."""
    n = len(believed.population)
    if n <= ENOUGH:
        return believed, 1.0
    return believed.of(np.argsort(believed.population.key)[:ENOUGH]), ENOUGH / n


class _Sample:
    """The market in small: what targets buy at given tolls."""

    def __init__(self, some: Estimate, terms: Terms, now: float, share: float) -> None:
        self.some, self.aim = some, terms.aim
        self.budget = terms.budget_per_day * WEEK_DAYS * share
        self.ahead = some.population.ahead(now)
        local = np.arange(WEEK_HOURS) - self.ahead[:, None]
        self.utc_day = local % WEEK_HOURS // DAY_HOURS
        self.least = FIRST_GUESS

    def toll(self, tolls: Floats) -> Floats:
        """(s, 168) of the local hours, from (s, 7) of the UTC days."""
        closed = np.where(self.some.population.open_hours, 0.0, np.inf)
        return np.take_along_axis(tolls, self.utc_day, 1) + closed

    def bought(self, tolls: Floats) -> tuple[Schedules, float]:
        """What is bought, and the price of the last visit."""
        key, toll = self.some.population.key, self.toll(tolls)
        while True:
            offers = optimal.offers(self.some, self.aim, toll, self.least)
            purchase = buy(offers.steps, key, self.budget)
            # All was sold: there are buyers for less.
            if self.least <= LOWEST or not purchase.sold_out:
                break
            self.least = max(self.least / 4, LOWEST)
        self.least = max(min(WORTH_OFFERING * purchase.price, self.least), LOWEST)
        return optimal.schedules_of(purchase.chosen, offers, key, PAGE_CYCLES), purchase.price

    def loads(self, tolls: Floats) -> tuple[Floats, float]:
        """(s, 7) visits of each site on each UTC day of the week, and the price."""
        bought, price = self.bought(tolls)
        toll, none = self.toll(tolls), Schedules.none(len(bought))
        schedules, _ = optimal.settled(self.some, self.aim, toll, price, bought, none)
        site = self.some.population.site
        return site_days(schedules, self.ahead[site], site, self.some.population.sites), price
