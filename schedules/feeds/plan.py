"""Make a plan for feeds from their posts: estimate, allocate, place."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from schedules.compiled import Part, compiled, parts, spread_over
from schedules.feeds.optimal import FeedLimits, FeedPlan, course, interval_posts, optimal_schedules
from schedules.feeds.post_rates import (
    Hours,
    Posting,
    estimate_posting,
    expected,
    looked_up,
    profile_of,
    table,
)
from schedules.history import DAY_HOURS, Flags, Floats, Histories, Ints, Times
from schedules.placement.load import balanced, even_phase, fullest_week, in_time
from schedules.population import (
    MONDAY_HOURS,
    Population,
    least_visits,
    min_per_day,
    shortest_hours,
)
from schedules.schedule import FEED_CYCLES, MAX_WEEKS, WEEK_DAYS, WEEK_HOURS, Schedules
from schedules.terms import BUDGET, KEPT, PRIOR, RULE, BudgetTooSmall, Terms

OPTIMAL = "optimal"
# Hours and batch sizes are estimated from recent weeks or, for feeds that post rarely, from the
# latest posts. Rates use a shorter period, because a feed can fall silent or become active within
# days.
RECENT_HOURS, RECENT_POSTS = 42 * DAY_HOURS, 50
FRESH_HOURS, FRESH_POSTS = 7 * DAY_HOURS, 100
# Maximum share of all visits that feeds get only because of their longest interval.
WATCH_SHARE = 0.1
# Period of the policies of the papers, in weeks.
PERIOD_WEEKS = 4
QUANTILES = (0.05, 0.95)
TRIES = 4
# Small budgets, in visits a week, are used completely.
SMALL_BUDGET = 500
HALVINGS = 40
# Tolerance for rounding errors in numbers of posts.
RESIDUE = 1e-9


def whole(shares: Floats, total: int) -> Ints:
    """Return (n,) whole numbers proportional to `shares` with the sum `total` (largest remainder).

    shares: (n,) >= 0. Ties go to the lowest index.
    """
    if not len(shares):
        return np.empty(0, np.int64)
    even = np.full(len(shares), 1 / len(shares))
    exact = total * (shares / shares.sum() if shares.sum() > 0 else even)
    result = np.floor(exact + RESIDUE).astype(np.int64)
    order = np.argsort(-(exact - result), kind="stable")
    result[order[: total - int(result.sum())]] += 1
    return result


def uniform(rate: Floats, fetches: int) -> Ints:
    """Return the (n,) fetches of the policy uniform: m = M / n."""
    return whole(np.ones(len(rate)), fetches)


def min_delay(rate: Floats, weight: Floats, fetches: int) -> Ints:
    """Return the (n,) fetches with minimum delay (Sia and Cho 2007): m = k sqrt(weight rate)."""
    return whole(np.sqrt(weight * rate), fetches)


def min_missing(rate: Floats, window: Floats, fetches: int) -> Ints:
    """Return the (n,) fetches with the fewest missed posts (minimum missing).

    rate:   (n,) posts in the period
    window: (n,) posts that the document holds, >= 1

    A fetch collects PPA = min(TP, S) of the TP posts that are left. The feed with the largest PPA
    is fetched next, ties going to the lowest index. When no posts are left, all feeds start again.
    Because PPA never increases along a feed's fetches, a heap of each feed's next fetch suffices:
    O((n + M) log n). Rounds that use up all posts are identical, so they are counted instead of
    simulated.
    """
    if not (rate > 0).any():
        return uniform(rate, fetches)
    round_of = np.maximum(np.ceil(rate / window * (1 - RESIDUE)), rate > 0).astype(np.int64)
    rounds, left = divmod(fetches, int(round_of.sum()))
    result: Ints = rounds * round_of + np.bincount(choices(rate, window, left), minlength=len(rate))
    return result


def choices(rate: Floats, window: Floats, fetches: int) -> Ints:
    """Return the (fetches,) feeds that `min_missing` chooses, in order."""
    return _choices(rate.astype(np.float64), window.astype(np.float64), fetches)


@compiled
def _choices(rate: Floats, window: Floats, fetches: int) -> Ints:
    """Return the feeds that the greedy policy chooses; see `min_missing`."""
    chosen = np.empty(fetches, np.int64)
    left = rate.copy()
    heap = _heap_of(rate, window)
    for j in range(fetches):
        if not len(heap):
            left[:] = rate
            heap = _heap_of(rate, window)
        # The smallest pair has the most posts, then the lowest index.
        posts, i = heapq.heappop(heap)
        chosen[j] = i
        left[i] += posts
        if left[i] > RESIDUE * rate[i]:
            heapq.heappush(heap, (-min(left[i], window[i]), i))
    return chosen


@compiled
def _heap_of(rate: Floats, window: Floats) -> list[tuple[float, int]]:
    """Return a heap of (-PPA, feed) for the first fetch of each feed."""
    heap = [(-min(rate[i], window[i]), i) for i in range(len(rate)) if rate[i] > 0]
    heapq.heapify(heap)
    return heap


class FeedOutlook(NamedTuple):
    """Hold the expected results of n feeds.

    missed:      (n,) posts missed a week
    delay_hours: (n,) mean wait of collected posts
    """

    missed: Floats
    delay_hours: Floats


def feed_outlook(posting: Posting, window: Ints, schedules: Schedules) -> FeedOutlook:
    """Return the outlook of any schedules; window: (n,) posts that the documents hold.

    A feed without visits misses all posts.
    """

    def work(part: Part) -> tuple[Floats, Floats]:
        cells, first = posting.cells_of(part), schedules.first[part.start : part.stop + 1]
        return _outlook_of_part(
            (posting.per_week[part], posting.batch[part]),
            (cells.first, cells.hour, posting.common),
            window[part],
            schedules.weeks[part].astype(np.int64),
            (first - first[0], schedules.slots[first[0] : first[-1]].astype(np.int64)),
            schedules.every_hours[part],
        )

    pieces = spread_over(work, parts(len(schedules)))
    missed, wait = (np.concatenate(column) for column in zip(*pieces, strict=True))
    got = posting.per_week - missed
    delay = np.divide(wait, got, where=got > 0, out=np.full(len(got), np.inf))
    return FeedOutlook(missed, delay)


@compiled
def _outlook_of_part(
    rates: tuple[Floats, Floats],
    cells: tuple[Ints, Hours, Floats],
    window: Ints,
    weeks: Ints,
    slots: tuple[Ints, Ints],
    every: Floats,
) -> tuple[Floats, Floats]:
    """Return the posts missed a week, and the total hours that the other posts wait."""
    missed, wait = rates[0].copy(), np.zeros(len(window))
    for i in range(len(window)):
        own = slots[1][slots[0][i] : slots[0][i + 1]]
        per_week, batch = rates[0][i], rates[1][i]
        if every[i] > 0:
            mean = per_week * every[i] / WEEK_HOURS
            lost, share = expected(mean, batch, window[i])
            missed[i] = lost * WEEK_HOURS / every[i]
            wait[i] = share * per_week * every[i] / 2
        elif len(own):
            profile = profile_of(cells[1][cells[0][i] : cells[0][i + 1]], cells[2])
            mass, lever = course(profile, per_week)
            t = table(FEED_CYCLES[0] * per_week, batch, window[i])
            missed[i], wait[i] = 0.0, 0.0
            for j in range(len(own)):
                later = own[j + 1] if j + 1 < len(own) else own[0] + weeks[i] * WEEK_HOURS
                a = own[j] % WEEK_HOURS
                posts, waits = interval_posts(mass, lever, a, a + later - own[j])
                lost, share = looked_up(t.lost, t.wait, t.top, posts)
                missed[i] += lost
                wait[i] += share * waits
            missed[i], wait[i] = missed[i] / weeks[i], wait[i] / weeks[i]
    return missed, wait


@dataclass(frozen=True, slots=True)
class FeedsPlan:
    """Hold a schedule for each of n feeds, and the estimates behind it.

    posting:             estimates of how the feeds post
    missed:              (n,) expected posts missed a week
    delay_hours:         (n,) mean wait of collected posts
    value, worth, bound: as in `allocation.plan.Plan`, in posts
    updated:             (n,) whether the schedule is new
    price:               posts that a fetch must save
    """

    posting: Posting
    schedules: Schedules
    missed: Floats
    delay_hours: Floats
    value: Floats
    worth: Floats
    bound: NDArray[np.uint8]
    updated: Flags
    price: float

    def figures(self, rows: Ints) -> dict[str, Floats]:
        """Return the expected figures of some feeds by name: posts a week, misses, waiting."""
        posts, hours = self.posting.posts[rows], self.posting.hours[rows]
        low, high = (gammaincinv(posts, share) * WEEK_HOURS / hours for share in QUANTILES)
        return {
            "rate_per_week": self.posting.per_week[rows],
            "rate_low": low,
            "rate_high": high,
            "batch": self.posting.batch[rows],
            "missed_per_week": self.missed[rows],
            "delay_hours": self.delay_hours[rows],
        }

    @property
    def requests_per_day(self) -> float:
        """Return the mean number of fetches a day."""
        return float(self.schedules.visits_per_week.sum() / WEEK_DAYS)


def plan_feeds(
    population: Population,
    histories: Histories,
    window: Ints,
    terms: Terms,
    now_hours: float,
    current: Schedules,
) -> FeedsPlan:
    """Return a plan for all feeds from `now_hours`, in hours since 1970 (UTC).

    histories: one record for each post
    window:    (n,) posts that the documents hold
    current:   schedules so far, without slots for unplanned feeds

    Raises BudgetTooSmall if the budget does not keep every feed's longest interval.
    """
    least = min_per_day(population)
    if terms.budget_per_day < least * (1 - 1e-9):
        raise BudgetTooSmall(least, len(population))
    posting = posting_of(population, histories, now_hours)
    if terms.policy == OPTIMAL:
        best = _optimal(population, histories, posting, window, terms, now_hours, current)
        schedules, value, worth, bound, price = best
    else:
        # The policies of the papers give the fetches of a period, at even intervals.
        visits = fetches(population, posting, window, terms) / PERIOD_WEEKS
        schedules = Schedules.even(visits, even_phase(population.key))
        value, worth = (np.full(len(population), np.nan) for _ in range(2))
        bound, price = np.full(len(population), RULE, np.uint8), np.nan
    missed, delay = feed_outlook(posting, window, schedules)
    moved = ~schedules.same_as(current)
    bound = np.where((bound == BUDGET) & ~moved, KEPT, bound)
    bound = np.where(np.isnan(histories.until), PRIOR, bound).astype(np.uint8)
    return FeedsPlan(posting, schedules, missed, delay, value, worth, bound, moved, price)


def posting_of(population: Population, histories: Histories, now_hours: float) -> Posting:
    """Estimate how feeds post, on the wall clocks of their sites."""
    times, since = _post_times(histories)
    recent = np.maximum(since, np.minimum(now_hours - RECENT_HOURS, _nth_last(times, RECENT_POSTS)))
    was_seen = ~np.isnan(histories.until)
    since = np.where(was_seen, recent, 0.0)
    until = np.where(was_seen, histories.until, 0.0)
    fresh = np.minimum(until - FRESH_HOURS, _nth_last(times, FRESH_POSTS))
    fresh = np.where(was_seen, np.maximum(since, fresh), 0.0)
    feeds = np.arange(len(was_seen))
    owner = np.repeat(feeds, np.diff(times.first))
    at = _to_wall_clock(population, owner, times.at)
    order = np.lexsort((at, owner))
    return estimate_posting(
        Times(times.first, at[order]),
        *(
            np.where(was_seen, _to_wall_clock(population, feeds, t), 0.0)
            for t in (since, until, fresh)
        ),
    )


def _post_times(histories: Histories) -> tuple[Times, Floats]:
    """Return the times of posts, ascending for each feed, and the start of each history.

    Posts of the same wide interval are spread evenly over it.

    """
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
    """Return the (n,) time of the post that has `posts` later ones; -inf if there are fewer."""
    count = np.diff(times.first)
    place = np.maximum(times.first[1:] - posts - 1, times.first[:-1])
    moment = np.append(times.at, 0.0)[np.minimum(place, len(times.at))]
    result: Floats = np.where(count > posts, moment, -np.inf)
    return result


def _to_wall_clock(population: Population, feed: Ints, at: Floats) -> Floats:
    """Convert hours since 1970 (UTC) to hours since 1970 on the wall clock of each feed's site."""
    walls = population.walls
    zone = population.zone[population.site[feed]]
    hour = np.floor(at).astype(np.int64)
    place = np.clip(hour - walls.base, 0, walls.hours.shape[1] - 1)
    ahead = walls.hours[zone, place] + MONDAY_HOURS - (place + walls.base)
    result: Floats = at + ahead
    return result


def _optimal(
    population: Population,
    histories: Histories,
    posting: Posting,
    window: Ints,
    terms: Terms,
    now: float,
    current: Schedules,
) -> FeedPlan:
    """Return the best plan whose fullest week stays within the budget."""
    whole, min_hours = terms.budget_per_day * WEEK_DAYS, shortest_hours(population)
    # A plan assumes that a feed that was silent for weeks stays silent. Visits at long intervals
    # verify this, and cost almost nothing if the budget is large. Use the shortest of the longest
    # intervals that takes only a small share of the budget.
    for weeks in sorted(cycle for cycle in FEED_CYCLES if cycle >= MAX_WEEKS):
        max_hours = np.minimum(population.max_hours, weeks * WEEK_HOURS)
        watched = replace(population, max_hours=max_hours)
        if least_visits(watched).sum() <= WATCH_SHARE * whole:
            population = watched
            break
    limits = FeedLimits(
        population.key, window, population.weight, population.cost, min_hours, population.max_hours,
        population.site, population.open_hours,
    )  # fmt: skip
    least, last = min_per_day(population) * WEEK_DAYS, histories.until
    # Visits are whole, so the fullest week can have one more than the mean.
    is_small = whole <= SMALL_BUDGET
    budget = max(whole if is_small else whole - 1, least)
    most = float(np.ceil(whole - 1e-6)) if is_small else whole
    for _ in range(TRIES):
        try:
            best = optimal_schedules(posting, limits, current, visits_per_week=budget)
        except BudgetTooSmall as error:
            # On a site with closed hours, the longest intervals may need more visits.
            least = error.min_per_day * WEEK_DAYS
            if least > whole * (1 + 1e-6):
                raise
            best = optimal_schedules(posting, limits, current, visits_per_week=least)
        schedules = best.schedules
        schedules = in_time(schedules, ~schedules.same_as(current), population, last, now)
        schedules = balanced(schedules, population, last, now)
        over = fullest_week(schedules) - most
        if over <= 1e-6:
            break
        budget = max(budget - over, least)
    return best._replace(schedules=schedules)


def fetches(population: Population, posting: Posting, window: Ints, terms: Terms) -> Floats:
    """Return the (n,) fetches of each feed in a period; not whole numbers where a limit applies.

    Each feed gets at least the fetches of its longest interval and at most those of its shortest
    one. The policy allocates the rest.
    """
    least = least_visits(population) * PERIOD_WEEKS
    most = np.maximum(least, PERIOD_WEEKS * WEEK_HOURS / population.min_hours)
    rate, whole = posting.per_week * PERIOD_WEEKS, terms.budget_per_day * WEEK_DAYS
    budget = whole * PERIOD_WEEKS
    low, high = 0, int(min(budget, most.sum())) + 1
    for _ in range(HALVINGS):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        shares = shares_of(terms.policy, rate, window, population.weight, middle)
        fits = np.clip(shares, least, most).sum() <= budget * (1 + 1e-9)
        low, high = (middle, high) if fits else (low, middle)
    shares = shares_of(terms.policy, rate, window, population.weight, low)
    result: Floats = np.clip(shares, least, most).astype(np.float64)
    return result


def shares_of(policy: str, rate: Floats, window: Ints, weight: Floats, total: int) -> Ints:
    """Return the (n,) whole numbers of fetches that a policy of the papers gives each feed."""
    if policy == "uniform":
        return uniform(rate, total)
    if policy == "min-delay":
        return min_delay(rate, weight, total)
    return min_missing(rate, window.astype(np.float64), total)
