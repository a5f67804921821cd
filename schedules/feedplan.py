"""From the posts of feeds to a plan: estimate, allocate, place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from schedules import aggregation
from schedules.caps import Caps
from schedules.feedoutlook import feed_outlook
from schedules.feedschedules import FeedLimits, optimal_schedules
from schedules.history import DAY_HOURS, Flags, Floats, Histories, Ints, Times
from schedules.hours import levelled
from schedules.phases import balanced, even_phase, fullest_week, in_time
from schedules.population import MONDAY_HOURS, Population
from schedules.posting import Posting, posting
from schedules.schedule import FEED_CYCLES, LONGEST_WEEKS, WEEK_HOURS, Schedules
from schedules.terms import (
    KEPT,
    PRICE,
    PRIOR,
    RULE,
    WEEK_DAYS,
    BudgetTooSmall,
    Terms,
    least_per_day,
    least_visits,
)

OPTIMAL = "optimal"
# Hours and batches of a feed are those of the last weeks, or, where it posts rarely, of its last
# posts. Rates change sooner: a feed falls silent or wakes up within days.
RECENT_HOURS, RECENT_POSTS = 42 * DAY_HOURS, 50
FRESH_HOURS, FRESH_POSTS = 7 * DAY_HOURS, 100
# Of all visits, those that go to feeds only because of their longest intervals, at most.
WATCH_SHARE = 0.1
# The period of the paper's policies.
PERIOD_WEEKS = 4
QUANTILES = (0.05, 0.95)
TRIES = 4
HALVINGS = 40


@dataclass(frozen=True, slots=True)
class FeedsPlan:
    """A schedule for each of n feeds, and what it rests on.

    believed: how they post      missed: (n,) posts lost in a week, expected
    delay_hours: (n,) mean wait of those collected     value, worth, bound: as in `plan.Plan`, in
    posts    moved: (n,) not as at present     price: posts that a fetch has to save
    """

    believed: Posting
    schedules: Schedules
    missed: Floats
    delay_hours: Floats
    value: Floats
    worth: Floats
    bound: NDArray[np.uint8]
    moved: Flags
    price: float

    def figures(self, rows: Ints) -> dict[str, Floats]:
        """What is expected of some feeds, by name: posts a week, losses, waiting."""
        posts, hours = self.believed.posts[rows], self.believed.hours[rows]
        low, high = (gammaincinv(posts, share) * WEEK_HOURS / hours for share in QUANTILES)
        return {
            "rate_per_week": self.believed.per_week[rows],
            "rate_low": low,
            "rate_high": high,
            "batch": self.believed.batch[rows],
            "missed_per_week": self.missed[rows],
            "delay_hours": self.delay_hours[rows],
        }

    @property
    def requests_per_day(self) -> float:
        """Mean fetches a day."""
        return float(self.schedules.visits_per_week.sum() / WEEK_DAYS)


def plan_feeds(
    population: Population,
    histories: Histories,
    window: Ints,
    terms: Terms,
    now_hours: float,
    present: Schedules,
) -> FeedsPlan:
    """A plan for all feeds from `now_hours` on; BudgetTooSmall if it cannot be.

    histories: a record for each post     window: (n,) posts that the documents hold
    present:   what they follow now, no slots where that is nothing
    """
    least = least_per_day(population)
    if terms.budget_per_day < least * (1 - 1e-9):
        raise BudgetTooSmall(least, len(population))
    believed = believed_of(population, histories, now_hours)
    if terms.policy == OPTIMAL:
        made = _optimal(population, histories, believed, window, terms, now_hours, present)
    else:
        made = _even(population, believed, window, terms, present)
    schedules, value, worth, bound, price = made
    schedules = _within_hours(schedules, population, terms, now_hours, present)
    missed, delay = feed_outlook(believed, window, schedules)
    moved = ~schedules.same_as(present)
    bound = np.where((bound == PRICE) & ~moved, KEPT, bound)
    bound = np.where(np.isnan(histories.until), PRIOR, bound).astype(np.uint8)
    return FeedsPlan(believed, schedules, missed, delay, value, worth, bound, moved, price)


def believed_of(population: Population, histories: Histories, now_hours: float) -> Posting:
    """How feeds post, on the clocks of their sites."""
    times, since = _posts_of(histories)
    recent = np.maximum(since, np.minimum(now_hours - RECENT_HOURS, _nth_last(times, RECENT_POSTS)))
    known = ~np.isnan(histories.until)
    since = np.where(known, recent, 0.0)
    until = np.where(known, histories.until, 0.0)
    fresh = np.minimum(until - FRESH_HOURS, _nth_last(times, FRESH_POSTS))
    fresh = np.where(known, np.maximum(since, fresh), 0.0)
    owner = np.repeat(np.arange(len(known)), np.diff(times.first))
    at = _local(population, owner, times.at)
    feeds = np.arange(len(known))
    order = np.lexsort((at, owner))
    return posting(
        Times(times.first, at[order]),
        np.where(known, _local(population, feeds, since), 0.0),
        np.where(known, _local(population, feeds, until), 0.0),
        np.where(known, _local(population, feeds, fresh), 0.0),
    )


def _posts_of(histories: Histories) -> tuple[Times, Floats]:
    """Moments of posts, ascending for each feed; those of one wide interval are spread over it."""
    count = np.diff(histories.first)
    owner = np.repeat(np.arange(len(count)), count)
    order = np.lexsort((histories.by, histories.after, owner))
    after, by = histories.after[order], histories.by[order]
    begins = (np.diff(owner, prepend=-1) != 0) | (np.diff(after, prepend=np.nan) != 0)
    begins |= np.diff(by, prepend=np.nan) != 0
    run = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    size = np.diff(np.append(first, len(run)))
    place = np.arange(len(run)) - first[run] if len(run) else run
    at = after + (by - after) * (place + 0.5) / size[run] if len(run) else after
    ascending = np.lexsort((at, owner))
    return Times(histories.first, at[ascending]), np.nan_to_num(histories.since)


def _nth_last(times: Times, posts: int) -> Floats:
    """(n,) moment of each feed's post with so many after it; of its first where there are fewer."""
    count = np.diff(times.first)
    place = np.maximum(times.first[1:] - posts - 1, times.first[:-1])
    found = np.append(times.at, 0.0)[np.minimum(place, len(times.at))]
    result: Floats = np.where(count > posts, found, -np.inf)
    return result


def _local(population: Population, feed: Ints, at: Floats) -> Floats:
    """Hours since 1970 on the clock of each feed's site, from hours since 1970 (UTC)."""
    walls = population.walls
    zone = population.zone[population.site[feed]]
    hour = np.floor(at).astype(np.int64)
    place = np.clip(hour - walls.base, 0, walls.hours.shape[1] - 1)
    ahead = walls.hours[zone, place] + MONDAY_HOURS - (place + walls.base)
    result: Floats = at + ahead
    return result


Made = tuple[Schedules, Floats, Floats, NDArray[np.uint8], float]


def _optimal(
    population: Population,
    histories: Histories,
    believed: Posting,
    window: Ints,
    terms: Terms,
    now: float,
    present: Schedules,
) -> Made:
    whole = terms.budget_per_day * WEEK_DAYS
    population = _watched(population, whole)
    limits = FeedLimits(
        population.key, window, population.weight, population.cost, population.min_hours,
        population.max_hours, population.site, population.open_hours,
    )  # fmt: skip
    least, last = least_per_day(population) * WEEK_DAYS, histories.until
    budget = max(whole - 1, least)
    for _ in range(TRIES):
        found = optimal_schedules(believed, limits, present, visits_per_week=budget)
        schedules = found.schedules
        schedules = in_time(schedules, ~schedules.same_as(present), population, last, now)
        schedules = balanced(schedules, population, last, now)
        over = fullest_week(schedules) - whole
        if over <= 1e-6:
            break
        budget = max(budget - over, least)
    return schedules, found.value, found.worth, found.bound, found.price


def _even(
    population: Population, believed: Posting, window: Ints, terms: Terms, present: Schedules
) -> Made:
    """The paper's policies: fetches of a period, at even intervals."""
    visits = fetches(population, believed, window, terms) / PERIOD_WEEKS
    schedules = Schedules.even(visits, even_phase(population.key))
    unknown = np.full(len(population), np.nan)
    return schedules, unknown, unknown, np.full(len(population), RULE, np.uint8), np.nan


def fetches(population: Population, believed: Posting, window: Ints, terms: Terms) -> Floats:
    """(n,) fetches of each feed in a period, which need not be whole at the bounds.

    None is fetched less often than its longest interval needs, nor more often than its shortest
    one allows; the policy shares out what is left.
    """
    least = least_visits(population) * PERIOD_WEEKS
    most = np.maximum(least, PERIOD_WEEKS * WEEK_HOURS / population.min_hours)
    rate, whole = believed.per_week * PERIOD_WEEKS, terms.budget_per_day * WEEK_DAYS
    budget = whole * PERIOD_WEEKS
    low, high = 0, int(min(budget, most.sum())) + 1
    for _ in range(HALVINGS):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        shares = _shares(terms.policy, rate, window, population.weight, middle)
        fits = np.clip(shares, least, most).sum() <= budget * (1 + 1e-9)
        low, high = (middle, high) if fits else (low, middle)
    shares = _shares(terms.policy, rate, window, population.weight, low)
    result: Floats = np.clip(shares, least, most).astype(np.float64)
    return result


def _shares(policy: str, rate: Floats, window: Ints, weight: Floats, total: int) -> Ints:
    if policy == "uniform":
        return aggregation.uniform(rate, total)
    if policy == "min-delay":
        return aggregation.min_delay(rate, weight, total)
    return aggregation.min_missing(rate, window.astype(np.float64), total)


def _watched(population: Population, visits_per_week: float) -> Population:
    """The feeds with the shortest longest interval that takes a small share of the visits.

    A plan takes what was silent for weeks to stay so. Visits at long intervals find out whether it
    does, and cost next to nothing where there are many visits.
    """
    for weeks in sorted(cycle for cycle in FEED_CYCLES if cycle >= LONGEST_WEEKS):
        max_hours = np.minimum(population.max_hours, weeks * WEEK_HOURS)
        watched = replace(population, max_hours=max_hours)
        if least_visits(watched).sum() <= WATCH_SHARE * visits_per_week:
            return watched
    return population


def _within_hours(
    schedules: Schedules, population: Population, terms: Terms, now: float, present: Schedules
) -> Schedules:
    """The schedules with the hours kept under their caps, of each site and of all."""
    caps = Caps.of(terms, population)
    if not caps.by_hour:
        return schedules
    return levelled(schedules, present, population, caps, population.ahead(now))
