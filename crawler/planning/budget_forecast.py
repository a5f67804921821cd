"""Compute the budget curves of pages and feeds from the database, and the moves of a new plan."""

from __future__ import annotations

import math
from datetime import datetime
from typing import NamedTuple, Self

import numpy as np

from crawler.config import Config
from crawler.planning.budget_curve import (
    BudgetCurve,
    FeedBudgetCurve,
    FeedCurve,
    FeedResults,
    PageResults,
    SiteCurve,
)
from crawler.planning.options import (
    BALANCED,
    FEEDS,
    OBJECTIVES,
    PAGES,
    Part,
    PlanOptions,
    ReplanRequest,
    budget_of,
    parts_of,
)
from crawler.planning.population import Gathered
from crawler.planning.replan import (
    Replan,
    effect_of,
    gathered_of,
    hours_of,
    replan_parts,
    windows_of,
)
from crawler.planning.report_types import (
    BudgetPreview,
    FeedBudgetPreview,
    FeedMove,
    ReplanReport,
    SiteMoves,
)
from crawler.storage import plans, targets
from crawler.storage.client import Database
from crawler.utils.process import Say
from crawler.utils.text import count
from schedules.allocation.optimal import demand, outlook, price_grid, sampled_by_site
from schedules.allocation.plan import Plan
from schedules.estimation.estimate import estimate
from schedules.feeds.plan import FeedOutlook, FeedsPlan, feed_outlook, plan_feeds
from schedules.feeds.post_rates import Posting
from schedules.history import DAY_HOURS, Flags, Floats, Ints
from schedules.placement.load import even_phase
from schedules.population import Population, min_per_day
from schedules.schedule import WEEK_DAYS, Schedules, chosen_of
from schedules.terms import Terms

# Points of the curve.
POINTS = 64
# Maximum number of targets from which the curve is computed, and minimum number from each site.
MAX_TARGETS, MIN_OF_SITE = 10_000, 50
# Maximum number of sites whose curve or moves are shown separately; the others are combined.
MAX_SITES = 300
# Targets listed with their old and new visits, and the smallest change of visits a week.
MAX_MOVES, MIN_MOVE = 50, 1e-9
MAX_URL_CHARACTERS = 2000
# Points of the curve of feeds. Each of them is a whole plan.
FEED_POINTS = 20
# Maximum number of feeds from which the curve is computed, and of feeds with a curve of their own.
MAX_FEEDS, MAX_SHOWN_FEEDS = 2_000, 200
# The next point of that curve has at least this many times the fetches of the one before.
MIN_STEP = 1.005
DIGITS = 6


async def curve_of(db: Database, config: Config, objective: str | None, say: Say) -> BudgetCurve:
    """Return the curve of all pages. Raises ConfigError if there are none."""
    part, gathered, budget_per_day, now = await _read(db, config, PAGES, objective, say)
    say(f"estimating the change rates of {count(len(gathered.watched), 'page')}")
    estimates = estimate(gathered.population, gathered.histories)
    objective = part.options.objective or BALANCED
    population, aim = gathered.population, OBJECTIVES[objective]
    rows, scale = sampled_by_site(population.key, population.site, MAX_TARGETS, MIN_OF_SITE)
    sample = estimates if len(rows) == len(population) else estimates.of(rows)
    say(f"computing the curve from {count(len(rows), 'page')}")
    result = demand(sample, scale, aim, price_grid(sample, aim, POINTS))
    schedules = in_effect(gathered, rows)
    current = _SiteSums.of(sample.population, scale, schedules, *outlook(sample, schedules))
    counts, everything = current.counts, np.arange(population.sites)
    sites: list[SiteCurve] = [
        {
            "site": name,
            "targets": int(counts[group].sum()),
            "requests_per_day": rounded(result.requests_per_day[:, group].sum(axis=1)),
            "freshness": rounded(1 - _mean(result.stale, group, counts)),
            "age_days": rounded(_mean(result.age_days, group, counts)),
            "current": current.results(group),
        }
        for name, group in _groups(gathered, counts, current.per_day)
    ]
    warnings = []
    if not (gathered.histories.until > gathered.histories.since).any():
        warnings.append("no page has been observed twice yet: this is the curve of average pages")
    return {
        "at": now,
        "objective": objective,
        "targets": len(population),
        "sampled": len(rows),
        "budget_per_day": budget_per_day,
        "plans": await plans_in_effect(db, config, PAGES),
        "requests_per_day": rounded(result.requests_per_day.sum(axis=1)),
        "price": [float(f"{price:.5g}") if price < np.inf else None for price in result.price],
        "freshness": rounded(1 - _mean(result.stale, everything, counts)),
        "age_days": rounded(_mean(result.age_days, everything, counts)),
        "current": current.results(everything),
        "sites": sites,
        "warnings": warnings,
    }


async def _read(
    db: Database, config: Config, kind: str, objective: str | None, say: Say
) -> tuple[Part, Gathered, float | None, datetime]:
    """Return all targets of a kind, their current budget if it is bounded, and the time."""
    say(f"reading {kind}")
    now = config.clock.now()
    stored, of_feeds = await targets.spiders(db), await targets.feed_spiders(db)
    request = request_of(kind, None, objective, dry_run=True)
    (part,) = parts_of(request, stored, of_feeds, config)
    gathered = await gathered_of(db, config, now, part.spiders)
    effect = await effect_of(db, gathered.watched, now, everything=True)
    per_day = budget_of(gathered, PlanOptions(), effect, hours_of(now)).per_day
    return part, gathered, per_day if math.isfinite(per_day) else None, now


class _SiteSums(NamedTuple):
    """Hold sums over all targets of each of s sites.

    counts:     (s,) number of targets
    per_day:    (s,) requests a day
    stale, age: (s,) expected number of stale targets, and sum of their ages in days
    """

    counts: Ints
    per_day: Floats
    stale: Floats
    age: Floats

    @classmethod
    def of(cls, population: Population, scale: Floats, schedules: Schedules, stale: Floats,
           age_days: Floats) -> Self:  # fmt: skip
        """Return the sums over targets, each of which represents `scale` targets."""
        site, n = population.site, population.sites
        per_week = np.bincount(site, schedules.visits_per_week * scale, n)
        return cls(
            np.rint(np.bincount(site, scale, n)).astype(np.int64),
            per_week.astype(np.float64) / WEEK_DAYS,
            np.bincount(site, stale * scale, n).astype(np.float64),
            np.bincount(site, age_days * scale, n).astype(np.float64),
        )

    def results(self, group: Ints) -> PageResults:
        """Return the results of a group of sites together."""
        n = max(1, int(self.counts[group].sum()))
        mean_age = float(self.age[group].sum() / n)
        return {
            "requests_per_day": float(self.per_day[group].sum()),
            "freshness": float(1 - self.stale[group].sum() / n),
            "age_days": mean_age if math.isfinite(mean_age) else None,
        }


def _groups(gathered: Gathered, counts: Ints, order: Floats) -> list[tuple[str, Ints]]:
    """Return the shown sites with their names, largest `order` first; the others as one group."""
    sites = np.argsort(-order, kind="stable")
    sites = sites[counts[sites] > 0]
    groups = [(gathered.sites[i].name, np.array([i])) for i in sites[:MAX_SITES].tolist()]
    return groups + ([("", sites[MAX_SITES:])] if len(sites) > MAX_SITES else [])


def _mean(sums: Floats, group: Ints, counts: Ints) -> Floats:
    """Return the (g,) means over all targets of a group of sites from the (g, s) sums."""
    mean: Floats = sums[:, group].sum(axis=1) / max(1, int(counts[group].sum()))
    return mean


def rounded(values: Floats) -> list[float]:
    """Return values with DIGITS digits, for JSON."""
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def in_effect(gathered: Gathered, rows: Ints) -> Schedules:
    """Return the current schedules of some targets; fixed intervals for those without a plan."""
    planned = gathered.watched.schedules.of(rows)
    per_week = gathered.fixed[rows] * WEEK_DAYS
    fixed = Schedules.even(per_week, even_phase(gathered.population.key[rows]))
    return chosen_of(planned.visits_per_week > 0, planned, fixed)


def request_of(
    kind: str, budget: float | None, objective: str | None = None, *, dry_run: bool
) -> ReplanRequest:
    """Return the request of `scrapy replan --kind KIND --policy optimal --budget N`."""
    options = PlanOptions("optimal", objective, budget)
    options.check(feeds=kind == FEEDS)
    return ReplanRequest(options, None, kind, dry_run=dry_run)


async def preview_of(
    db: Database, config: Config, budget: float, objective: str | None, say: Say
) -> BudgetPreview:
    """Return the moves of a replan with this budget, without storing the plan."""
    plan_ids = await plans_in_effect(db, config, PAGES)
    request = request_of(PAGES, budget, objective, dry_run=True)
    replan, report = await _planned(db, config, request, say)
    gathered, made, written = replan.gathered, replan.plan, replan.written
    assert isinstance(made, Plan), "plans of feeds have neither freshness nor age"
    population, rows = gathered.population, np.arange(len(gathered.population))
    old = in_effect(gathered, rows)
    # Targets in a sampling phase keep their schedules.
    new = chosen_of(written, made.schedules, old)
    before, after = old.visits_per_week, new.visits_per_week
    expected = outlook(made.estimates, old)
    stale = np.where(written, made.stale, expected.stale)
    age_days = np.where(written, made.age_days, expected.age_days)
    ones = np.ones(len(rows))
    current = _SiteSums.of(population, ones, old, *expected)
    planned = _SiteSums.of(population, ones, new, stale, age_days)
    changed = written & (np.abs(after - before) > MIN_MOVE)

    def number(flags: Flags, group: Ints) -> int:
        return int(np.count_nonzero(flags & np.isin(population.site, group)))

    by_site: list[SiteMoves] = [
        {
            "site": name,
            "targets": int(current.counts[group].sum()),
            "updated": number(written, group),
            "more": number(changed & (after > before), group),
            "fewer": number(changed & (after < before), group),
            "current": current.results(group),
            "planned": planned.results(group),
        }
        for name, group in _groups(
            gathered, current.counts, np.abs(planned.per_day - current.per_day)
        )
    ]
    everything = np.arange(population.sites)
    return {
        "report": report,
        "plans": plan_ids,
        "current": current.results(everything),
        "planned": planned.results(everything),
        "sites": by_site,
        "moves": [
            {
                "site": site,
                "url": url[:MAX_URL_CHARACTERS],
                "visits_per_week_before": float(before[row]),
                "visits_per_week": float(after[row]),
                "freshness_before": float(1 - expected.stale[row]),
                "freshness": float(1 - stale[row]),
                "changes_per_week": float(made.rate[row]),
            }
            for row in _biggest_moves(population, before, after, changed)
            for site, _, url in [gathered.watched.ids[row].partition(" ")]
        ],
    }


async def _planned(
    db: Database, config: Config, request: ReplanRequest, say: Say
) -> tuple[Replan, ReplanReport]:
    """Make the plan of a request for one kind of targets."""
    made: list[Replan] = []
    (report,) = await replan_parts(db, config, request, say, made.append)
    say("comparing the plans")
    return made[0], report


async def plans_in_effect(db: Database, config: Config, kind: str) -> list[str]:
    """Return the ids of the latest plans of all spiders of a kind, without duplicates."""
    now = config.clock.now()
    of_feeds = set(await targets.feed_spiders(db))
    stored = await targets.spiders(db)
    names = [name for name in stored if (name in of_feeds) == (kind == FEEDS)]
    latest = [await plans.latest(db, name, now) for name in names]
    return sorted({str(plan["_id"]) for plan in latest if plan is not None})


def _biggest_moves(
    population: Population, before: Floats, after: Floats, changed: Flags
) -> list[int]:
    """Return the targets whose visits a week change most, among the changed ones."""
    # The key breaks ties, so that the list does not depend on the order in the database.
    biggest = np.lexsort((population.key, -np.abs(after - before)))[:MAX_MOVES]
    rows: list[int] = biggest[changed[biggest]].tolist()
    return rows


async def feed_curve_of(db: Database, config: Config, say: Say) -> FeedBudgetCurve:
    """Return the curve of all feeds. Raises ConfigError if there are none."""
    _, gathered, budget_per_day, now = await _read(db, config, FEEDS, None, say)
    rows = np.argsort(gathered.population.key)[:MAX_FEEDS]
    scale = len(gathered.population) / len(rows)
    population, histories = gathered.population.of(rows), gathered.histories.of(rows)
    window, none = windows_of(gathered)[rows], Schedules.none(len(rows))
    lowest = min_per_day(population)
    highest = max(float((DAY_HOURS / population.min_hours).sum()), lowest * MIN_STEP)
    made_plans: list[FeedsPlan] = []
    for number, budget in enumerate(np.geomspace(lowest, highest, FEED_POINTS).tolist(), 1):
        say(f"planning {count(len(rows), 'feed')}: {number} of {FEED_POINTS} budgets")
        made = plan_feeds(
            population, histories, window, Terms(budget_per_day=budget), hours_of(now), none
        )
        if not made_plans or made.requests_per_day > made_plans[-1].requests_per_day * MIN_STEP:
            made_plans.append(made)
    posting = made_plans[0].posting
    sums = [_FeedSums.of(plan.posting, plan.schedules, plan) for plan in made_plans]
    effective = in_effect(gathered, rows)
    current = _FeedSums.of(posting, effective, feed_outlook(posting, window, effective))
    everything = np.arange(len(rows))
    whole = _columns(sums, everything, scale)
    order = np.argsort(-posting.per_week, kind="stable")
    curves = [
        _feed_curve(gathered.watched.ids[rows[row]], sums, current, np.array([row]), 1.0)
        for row in order[:MAX_SHOWN_FEEDS].tolist()
    ]
    if len(rest := order[MAX_SHOWN_FEEDS:]):
        others = len(gathered.population) - MAX_SHOWN_FEEDS
        curves.append(_feed_curve("", sums, current, rest, others / len(rest)))
    return {
        "at": now,
        "feeds": len(gathered.population),
        "sampled": len(rows),
        "budget_per_day": budget_per_day,
        "plans": await plans_in_effect(db, config, FEEDS),
        "posts_per_day": float(posting.per_week.sum() * scale / WEEK_DAYS),
        "requests_per_day": whole[0],
        "price": rounded(np.array([plan.price for plan in made_plans])),
        "missed_share": whole[1],
        "delay_hours": whole[2],
        "current": current.results(everything, scale),
        "curves": curves,
    }


class _FeedSums(NamedTuple):
    """Hold the expected results of n feeds with some schedules.

    per_day: (n,) fetches a day
    posts, missed, wait: (n,) posts a week, missed ones, and total hours that the others wait
    """

    per_day: Floats
    posts: Floats
    missed: Floats
    wait: Floats

    @classmethod
    def of(cls, posting: Posting, schedules: Schedules, expected: FeedOutlook | FeedsPlan) -> Self:
        """Return the results of schedules. expected: of `feed_outlook`, or the plan itself."""
        posts, missed, delay = posting.per_week, expected.missed, expected.delay_hours
        # Without collected posts, the mean delay is infinite.
        wait = np.where(np.isfinite(delay), delay, 0.0) * (posts - missed)
        return cls(schedules.visits_per_week / WEEK_DAYS, posts, missed, wait)

    def results(self, group: Ints, scale: float = 1.0) -> FeedResults:
        """Return the results of a group of feeds, each of which represents `scale` feeds."""
        posts, missed = float(self.posts[group].sum()), float(self.missed[group].sum())
        collected = posts - missed
        return {
            "requests_per_day": float(self.per_day[group].sum() * scale),
            "missed_share": missed / posts if posts > 0 else 0.0,
            "delay_hours": float(self.wait[group].sum()) / collected if collected > 0 else 0.0,
        }


def _columns(
    sums: list[_FeedSums], group: Ints, scale: float
) -> tuple[list[float], list[float], list[float]]:
    """Return requests, missed share and delay of a group of feeds at each point of the curve."""
    points = [each.results(group, scale) for each in sums]
    return (
        rounded(np.array([each["requests_per_day"] for each in points])),
        rounded(np.array([each["missed_share"] for each in points])),
        rounded(np.array([each["delay_hours"] for each in points])),
    )


def _feed_curve(
    key: str, sums: list[_FeedSums], current: _FeedSums, group: Ints, scale: float
) -> FeedCurve:
    """Return the curve of a feed or, with an empty key, of several feeds."""
    spider, _, url = key.partition(" ")
    per_day, missed, delay = _columns(sums, group, scale)
    return {
        "spider": spider,
        "url": url[:MAX_URL_CHARACTERS],
        "posts_per_day": float(current.posts[group].sum() * scale / WEEK_DAYS),
        "requests_per_day": per_day,
        "missed_share": missed,
        "delay_hours": delay,
        "current": current.results(group, scale),
    }


async def feed_preview_of(
    db: Database, config: Config, budget: float, say: Say
) -> FeedBudgetPreview:
    """Return the moves of a replan of feeds with this budget, without storing the plan."""
    plan_ids = await plans_in_effect(db, config, FEEDS)
    request = request_of(FEEDS, budget, dry_run=True)
    replan, report = await _planned(db, config, request, say)
    gathered, plan, written = replan.gathered, replan.plan, replan.written
    assert isinstance(plan, FeedsPlan), "plans of pages have neither misses nor delays"
    everything = np.arange(len(gathered.population))
    old, window = in_effect(gathered, everything), windows_of(gathered)
    new = chosen_of(written, plan.schedules, old)
    current, planned = (
        _FeedSums.of(plan.posting, schedules, feed_outlook(plan.posting, window, schedules))
        for schedules in (old, new)
    )
    before, after = old.visits_per_week, new.visits_per_week
    changed = written & (np.abs(after - before) > MIN_MOVE)
    moves: list[FeedMove] = []
    for row in _biggest_moves(gathered.population, before, after, changed):
        spider, _, url = gathered.watched.ids[row].partition(" ")
        moves.append(
            {
                "spider": spider,
                "url": url[:MAX_URL_CHARACTERS],
                "posts_per_week": float(planned.posts[row]),
                "visits_per_week_before": float(current.per_day[row] * WEEK_DAYS),
                "visits_per_week": float(planned.per_day[row] * WEEK_DAYS),
                "missed_share_before": current.results(np.array([row]))["missed_share"],
                "missed_share": planned.results(np.array([row]))["missed_share"],
            }
        )
    return {
        "report": report,
        "plans": plan_ids,
        "current": current.results(everything),
        "planned": planned.results(everything),
        "more": int(np.count_nonzero(changed & (after > before))),
        "fewer": int(np.count_nonzero(changed & (after < before))),
        "moves": moves,
    }
