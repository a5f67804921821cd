"""Compute the budget curves of pages and feeds from the database, and the moves of a new plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Self

import numpy as np

from crawler.config import Config
from crawler.planning.budget_curve import (
    FEEDS,
    PAGES,
    BudgetCurve,
    BudgetResults,
    Measure,
    PartCurve,
)
from crawler.planning.options import (
    BALANCED,
    OBJECTIVES,
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
from crawler.planning.report_types import BudgetPreview, SiteMoves
from crawler.storage import plans, targets
from crawler.storage.client import Database
from crawler.utils.process import Say
from crawler.utils.text import count
from schedules.allocation.optimal import demand, outlook, price_grid, sampled_by_site
from schedules.estimation.estimate import estimate
from schedules.feeds.plan import FeedOutlook, FeedsPlan, feed_outlook, plan_feeds
from schedules.feeds.post_rates import Posting
from schedules.history import DAY_HOURS, Flags, Floats, Ints
from schedules.placement.load import even_phase
from schedules.population import Population, min_per_day
from schedules.schedule import WEEK_DAYS, Schedules, chosen_of
from schedules.terms import Terms

# Points of the curve of pages.
POINTS = 64
# Maximum number of pages from which the curve is computed, and minimum number from each site.
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


class Sums(NamedTuple):
    """Hold sums over the targets of each of g groups: sites, or single targets.

    per_day: (g,) requests a day
    amount:  (g,) number of pages, or of posts a day
    lost:    (g,) number of stale pages, or of missed posts a day
    hours:   (g,) total age of pages, or total delay of the collected posts of a day
    aged:    (g,) number of pages, or of collected posts a day
    """

    per_day: Floats
    amount: Floats
    lost: Floats
    hours: Floats
    aged: Floats

    @classmethod
    def of_pages(cls, schedules: Schedules, stale: Floats, age_days: Floats) -> Self:
        """Return the sums of single pages."""
        ones = np.ones(len(stale))
        return cls(schedules.visits_per_week / WEEK_DAYS, ones, stale, age_days * DAY_HOURS, ones)

    @classmethod
    def of_feeds(
        cls, posting: Posting, schedules: Schedules, expected: FeedOutlook | FeedsPlan
    ) -> Self:
        """Return the sums of single feeds. expected: of `feed_outlook`, or the plan itself."""
        posts, missed = posting.per_week / WEEK_DAYS, expected.missed / WEEK_DAYS
        # Without collected posts, the mean delay is infinite.
        delay = np.where(np.isfinite(expected.delay_hours), expected.delay_hours, 0.0)
        collected = posts - missed
        per_day = schedules.visits_per_week / WEEK_DAYS
        return cls(per_day, posts, missed, delay * collected, collected)

    def by_site(self, population: Population, scale: Floats | float = 1.0) -> Self:
        """Return the sums by site. scale: number of targets that each target represents."""
        site, n = population.site, population.sites
        return type(self)(
            *(np.bincount(site, column * scale, n).astype(np.float64) for column in self)
        )

    def results(self, measure: Measure, rows: Ints, scale: float = 1.0) -> BudgetResults:
        """Return the results of some groups together, each of which represents `scale` groups."""
        per_day, amount, lost, hours, aged = (float(column[rows].sum()) for column in self)
        share = lost / amount if amount > 0 else 0.0
        mean = hours / aged if aged > 0 else 0.0
        return {
            "requests_per_day": per_day * scale,
            "share": 1 - share if measure.is_gain else share,
            "hours": mean if math.isfinite(mean) else None,
        }


class Group(NamedTuple):
    """Name the groups of `Sums` that a curve has as one. scale: what each of them represents."""

    site: str
    url: str
    rows: Ints
    scale: float = 1.0


class Points(NamedTuple):
    """Hold what a curve is made of.

    results: sums at each point of the curve
    price:   what the last request saves at each point
    current: sums with the current schedules
    groups:  all groups together, and those that have a curve of their own
    sampled: number of targets behind the sums
    """

    results: Sequence[Sums]
    price: Sequence[float]
    current: Sums
    groups: Sequence[Group]
    sampled: int


async def curve_of(
    db: Database, config: Config, measure: Measure, objective: str | None, say: Say
) -> BudgetCurve:
    """Return the curve of all pages or feeds. Raises ConfigError if there are none."""
    say(f"reading {measure.name}")
    now = config.clock.now()
    stored, of_feeds = await targets.spiders(db), await targets.feed_spiders(db)
    request = request_of(measure, None, objective, dry_run=True)
    (part,) = parts_of(request, stored, of_feeds, config)
    gathered = await gathered_of(db, config, now, part.spiders)
    effect = await effect_of(db, gathered.watched, now, everything=True)
    per_day = budget_of(gathered, PlanOptions(), effect, hours_of(now)).per_day
    warnings = []
    if measure is PAGES:
        objective = part.options.objective or BALANCED
        points = _points_of_pages(gathered, objective, say)
        if not (gathered.histories.until > gathered.histories.since).any():
            warnings.append(
                "no page has been observed twice yet: this is the curve of average pages"
            )
    else:
        points = _points_of_feeds(gathered, now, say)
    whole, *parts = [_curve_of(measure, points, group) for group in points.groups]
    return {
        "kind": measure.name,
        "at": now,
        "objective": objective,
        "targets": len(gathered.population),
        "sampled": points.sampled,
        "budget_per_day": per_day if math.isfinite(per_day) else None,
        "plans": await plans_in_effect(db, config, measure),
        "amount": whole["amount"],
        "requests_per_day": whole["requests_per_day"],
        "price": [float(f"{price:.5g}") if price < np.inf else None for price in points.price],
        "share": whole["share"],
        "hours": whole["hours"],
        "current": whole["current"],
        "parts": parts,
        "warnings": warnings,
    }


def _curve_of(measure: Measure, points: Points, group: Group) -> PartCurve:
    site, url, rows, scale = group
    results = [sums.results(measure, rows, scale) for sums in points.results]
    return {
        "site": site,
        "url": url[:MAX_URL_CHARACTERS],
        "amount": round(float(points.current.amount[rows].sum()) * scale, DIGITS),
        "requests_per_day": rounded([each["requests_per_day"] for each in results]),
        "share": rounded([each["share"] for each in results]),
        "hours": rounded([each["hours"] or 0.0 for each in results]),
        "current": points.current.results(measure, rows, scale),
    }


def _points_of_pages(gathered: Gathered, objective: str, say: Say) -> Points:
    say(f"estimating the change rates of {count(len(gathered.watched), 'page')}")
    estimates = estimate(gathered.population, gathered.histories)
    population, aim = gathered.population, OBJECTIVES[objective]
    rows, scale = sampled_by_site(population.key, population.site, MAX_TARGETS, MIN_OF_SITE)
    sample = estimates if len(rows) == len(population) else estimates.of(rows)
    say(f"computing the curve from {count(len(rows), 'page')}")
    result = demand(sample, scale, aim, price_grid(sample, aim, POINTS))
    schedules = in_effect(gathered, rows)
    single = Sums.of_pages(schedules, *outlook(sample, schedules))
    current = single.by_site(sample.population, scale)
    results = [
        Sums(per_day, current.amount, stale, age_days * DAY_HOURS, current.aged)
        for per_day, stale, age_days in zip(
            result.requests_per_day, result.stale, result.age_days, strict=True
        )
    ]
    everything = Group("", "", np.arange(population.sites))
    groups = [everything, *_sites(gathered, current.amount, current.per_day)]
    return Points(results, result.price.tolist(), current, groups, len(rows))


def _points_of_feeds(gathered: Gathered, now: datetime, say: Say) -> Points:
    rows = np.argsort(gathered.population.key)[:MAX_FEEDS]
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
    posting, schedules = made_plans[0].posting, in_effect(gathered, rows)
    order = np.argsort(-posting.per_week, kind="stable")
    groups = [Group("", "", np.arange(len(rows)), len(gathered.population) / len(rows))]
    for row in order[:MAX_SHOWN_FEEDS].tolist():
        site, _, url = gathered.watched.ids[rows[row]].partition(" ")
        groups.append(Group(site, url, np.array([row])))
    if len(rest := order[MAX_SHOWN_FEEDS:]):
        others = len(gathered.population) - MAX_SHOWN_FEEDS
        groups.append(Group("", "", rest, others / len(rest)))
    return Points(
        [Sums.of_feeds(plan.posting, plan.schedules, plan) for plan in made_plans],
        [plan.price for plan in made_plans],
        Sums.of_feeds(posting, schedules, feed_outlook(posting, window, schedules)),
        groups,
        len(rows),
    )


def _sites(gathered: Gathered, counts: Floats | Ints, order: Floats) -> list[Group]:
    """Return the shown sites, largest `order` first; the others as one group."""
    sites = np.argsort(-order, kind="stable")
    sites = sites[counts[sites] > 0]
    groups = [Group(gathered.sites[i].name, "", np.array([i])) for i in sites[:MAX_SITES].tolist()]
    return groups + ([Group("", "", sites[MAX_SITES:])] if len(sites) > MAX_SITES else [])


def rounded(values: Sequence[float]) -> list[float]:
    """Return values with DIGITS digits, for JSON."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def in_effect(gathered: Gathered, rows: Ints) -> Schedules:
    """Return the current schedules of some targets; fixed intervals for those without a plan."""
    planned = gathered.watched.schedules.of(rows)
    per_week = gathered.fixed[rows] * WEEK_DAYS
    fixed = Schedules.even(per_week, even_phase(gathered.population.key[rows]))
    return chosen_of(planned.visits_per_week > 0, planned, fixed)


def request_of(
    measure: Measure, budget: float | None, objective: str | None = None, *, dry_run: bool
) -> ReplanRequest:
    """Return the request of `scrapy replan --kind KIND --policy optimal --budget N`."""
    options = PlanOptions("optimal", objective, budget)
    options.check(feeds=measure is FEEDS)
    return ReplanRequest(options, None, measure.name, dry_run=dry_run)


async def preview_of(
    db: Database, config: Config, measure: Measure, budget: float, objective: str | None, say: Say
) -> BudgetPreview:
    """Return the moves of a replan with this budget, without storing the plan."""
    plan_ids = await plans_in_effect(db, config, measure)
    request = request_of(measure, budget, objective, dry_run=True)
    made: list[Replan] = []
    (report,) = await replan_parts(db, config, request, say, made.append)
    say("comparing the plans")
    (replan,) = made
    gathered, written = replan.gathered, replan.written
    population, everything = gathered.population, np.arange(len(gathered.population))
    old = in_effect(gathered, everything)
    # Targets in a sampling phase keep their schedules.
    new = chosen_of(written, replan.plan.schedules, old)
    current, planned, rates = _outcomes(replan, old, new)
    before, after = old.visits_per_week, new.visits_per_week
    changed = written & (np.abs(after - before) > MIN_MOVE)

    def by_site(flags: Flags) -> Ints:
        return np.bincount(population.site[flags], minlength=population.sites)

    of_sites, planned_of_sites = current.by_site(population), planned.by_site(population)
    number = by_site(np.ones(len(written), bool))
    updated, more, fewer = map(by_site, (written, changed & (after > before),
                                         changed & (after < before)))  # fmt: skip
    sites: list[SiteMoves] = [
        {
            "site": site,
            "targets": int(number[rows].sum()),
            "updated": int(updated[rows].sum()),
            "more": int(more[rows].sum()),
            "fewer": int(fewer[rows].sum()),
            "current": of_sites.results(measure, rows),
            "planned": planned_of_sites.results(measure, rows),
        }
        for site, _, rows, _ in _sites(
            gathered, number, np.abs(planned_of_sites.per_day - of_sites.per_day)
        )
    ]
    return {
        "report": report,
        "plans": plan_ids,
        "current": current.results(measure, everything),
        "planned": planned.results(measure, everything),
        "sites": sites,
        "moves": [
            {
                "site": site,
                "url": url[:MAX_URL_CHARACTERS],
                "per_week": float(rates[row]),
                "visits_per_week_before": float(before[row]),
                "visits_per_week": float(after[row]),
                "share_before": current.results(measure, np.array([row]))["share"],
                "share": planned.results(measure, np.array([row]))["share"],
            }
            for row in _biggest_moves(population, before, after, changed)
            for site, _, url in [gathered.watched.ids[row].partition(" ")]
        ],
    }


def _outcomes(replan: Replan, old: Schedules, new: Schedules) -> tuple[Sums, Sums, Floats]:
    """Return the results of the old and new schedules, and (n,) changes or posts a week."""
    plan = replan.plan
    if isinstance(plan, FeedsPlan):
        posting, window = plan.posting, windows_of(replan.gathered)
        current, planned = (
            Sums.of_feeds(posting, schedules, feed_outlook(posting, window, schedules))
            for schedules in (old, new)
        )
        return current, planned, posting.per_week
    expected = outlook(plan.estimates, old)
    stale = np.where(replan.written, plan.stale, expected.stale)
    age_days = np.where(replan.written, plan.age_days, expected.age_days)
    return Sums.of_pages(old, *expected), Sums.of_pages(new, stale, age_days), plan.rate


async def plans_in_effect(db: Database, config: Config, measure: Measure) -> list[str]:
    """Return the ids of the latest plans of all spiders of a kind, without duplicates."""
    now = config.clock.now()
    of_feeds = set(await targets.feed_spiders(db))
    stored = await targets.spiders(db)
    names = [name for name in stored if (name in of_feeds) == (measure is FEEDS)]
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
