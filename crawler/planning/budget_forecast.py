"""Compute the budget curve from the database, and describe the moves of a new plan."""

from __future__ import annotations

import math
from datetime import datetime
from typing import NamedTuple, Self

import numpy as np

from crawler.config import Config
from crawler.planning.budget_curve import BudgetCurve, SiteCurve, Standing
from crawler.planning.options import (
    BALANCED,
    FEEDS,
    OBJECTIVES,
    PAGES,
    PlanOptions,
    ReplanRequest,
    budget_of,
    parts_of,
)
from crawler.planning.population import Gathered
from crawler.planning.replan import Replan, Say, effect_of, gathered_of, hours_of, replan_parts
from crawler.planning.replan_report import BudgetPreview, ReplanReport, SiteMoves
from crawler.storage import plans, targets
from crawler.storage.client import Database
from crawler.utils.time import Clock
from schedules.allocation.demand import demand, price_grid, sampled_by_site
from schedules.allocation.optimal import outlook
from schedules.allocation.plan import Plan
from schedules.estimation.estimate import Estimate, estimate
from schedules.history import Flags, Floats, Ints
from schedules.placement.load import even_phase
from schedules.population import Population
from schedules.schedule import WEEK_DAYS, Schedules, chosen_of

# Points of the curve.
POINTS = 64
# Maximum number of targets from which the curve is computed, and minimum number from each site.
MAX_TARGETS, MIN_OF_SITE = 10_000, 50
# Maximum number of sites whose curve or moves are shown separately; the others are combined.
MAX_SITES = 300
# Targets listed with their old and new visits.
MAX_MOVES = 50
MAX_URL_CHARACTERS = 2000
DIGITS = 6


async def curve_of(db: Database, config: Config, objective: str | None, say: Say) -> BudgetCurve:
    """Return the curve of all pages. Raises ConfigError if there are none."""
    say("reading pages")
    now = Clock(config.clock_offset_hours).now()
    order = ReplanRequest(PlanOptions("optimal", objective), None, PAGES)
    stored, of_feeds = await targets.spiders(db), await targets.feed_spiders(db)
    (part,) = parts_of(order, stored, of_feeds, config)
    gathered = await gathered_of(db, config, now, part.spiders)
    effect = await effect_of(db, gathered.watched, now, everything=True)
    budget = budget_of(gathered, PlanOptions(), effect, hours_of(now))
    say(f"estimating the change rates of {len(gathered.watched):,} pages")
    estimates = estimate(gathered.population, gathered.histories)
    aim = part.options.objective or BALANCED
    curve = _curve(gathered, estimates, aim, now, say)
    warnings = []
    if not (gathered.histories.until > gathered.histories.since).any():
        warnings.append("no page has been observed twice yet: this is the curve of average pages")
    return curve | {
        "budget_per_day": budget.per_day if math.isfinite(budget.per_day) else None,
        "plans": await plans_in_effect(db, config),
        "warnings": warnings,
    }


def _curve(
    gathered: Gathered, estimates: Estimate, objective: str, now: datetime, say: Say
) -> BudgetCurve:
    """Return the curve; current budget, plans and warnings are added later."""
    population, aim = gathered.population, OBJECTIVES[objective]
    rows, scale = sampled_by_site(population.key, population.site, MAX_TARGETS, MIN_OF_SITE)
    sample = estimates if len(rows) == len(population) else estimates.of(rows)
    say(f"computing the curve from {len(rows):,} pages")
    result = demand(sample, scale, aim, price_grid(sample, aim, POINTS))
    schedules = in_effect(gathered, rows)
    current = _Sums.of(sample.population, scale, schedules, *outlook(sample, schedules))
    counts, everything = current.counts, np.arange(population.sites)
    sites: list[SiteCurve] = [
        {
            "site": name,
            "targets": int(counts[group].sum()),
            "requests_per_day": rounded(result.requests_per_day[:, group].sum(axis=1)),
            "freshness": rounded(1 - _mean(result.stale, group, counts)),
            "age_days": rounded(_mean(result.age_days, group, counts)),
            "current": current.standing(group),
        }
        for name, group in _groups(gathered, counts, current.per_day)
    ]
    return {
        "at": now,
        "objective": objective,
        "targets": len(population),
        "sampled": len(rows),
        "budget_per_day": None,
        "plans": [],
        "requests_per_day": rounded(result.requests_per_day.sum(axis=1)),
        "price": [float(f"{price:.5g}") if price < np.inf else None for price in result.price],
        "freshness": rounded(1 - _mean(result.stale, everything, counts)),
        "age_days": rounded(_mean(result.age_days, everything, counts)),
        "current": current.standing(everything),
        "sites": sites,
        "warnings": [],
    }


class _Sums(NamedTuple):
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

    def standing(self, group: Ints) -> Standing:
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


def request_of(budget: float, objective: str | None, *, dry_run: bool) -> ReplanRequest:
    """Return the request of `scrapy replan --kind pages --policy optimal --budget N`."""
    options = PlanOptions("optimal", objective, budget)
    options.check(feeds=False)
    return ReplanRequest(options, None, PAGES, dry_run=dry_run)


async def preview_of(
    db: Database, config: Config, budget: float, objective: str | None, say: Say
) -> BudgetPreview:
    """Return the moves of a replan with this budget, without storing the plan."""
    made: list[Replan] = []
    current = await plans_in_effect(db, config)
    order = request_of(budget, objective, dry_run=True)
    (report,) = await replan_parts(db, config, order, say, made.append)
    say("comparing the plans")
    return moves_of(made[0], report) | {"plans": current}


async def plans_in_effect(db: Database, config: Config, kind: str = PAGES) -> list[str]:
    """Return the ids of the latest plans of all spiders of a kind, without duplicates."""
    now = Clock(config.clock_offset_hours).now()
    of_feeds = set(await targets.feed_spiders(db))
    stored = await targets.spiders(db)
    names = [name for name in stored if (name in of_feeds) == (kind == FEEDS)]
    latest = [await plans.latest(db, name, now) for name in names]
    return sorted({str(plan["_id"]) for plan in latest if plan is not None})


def moves_of(replan: Replan, report: ReplanReport) -> BudgetPreview:
    """Return the moves of a plan by site, and its biggest ones; plans are added later."""
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
    current = _Sums.of(population, ones, old, *expected)
    planned = _Sums.of(population, ones, new, stale, age_days)
    changed = written & (np.abs(after - before) > 1e-9)

    def number(flags: Flags, group: Ints) -> int:
        return int(np.count_nonzero(flags & np.isin(population.site, group)))

    by_site: list[SiteMoves] = [
        {
            "site": name,
            "targets": int(current.counts[group].sum()),
            "updated": number(written, group),
            "more": number(changed & (after > before), group),
            "fewer": number(changed & (after < before), group),
            "current": current.standing(group),
            "planned": planned.standing(group),
        }
        for name, group in _groups(
            gathered, current.counts, np.abs(planned.per_day - current.per_day)
        )
    ]
    # The key breaks ties, so that the list does not depend on the order in the database.
    biggest = np.lexsort((population.key, -np.abs(after - before)))[:MAX_MOVES]
    everything = np.arange(population.sites)
    return {
        "report": report,
        "plans": [],
        "current": current.standing(everything),
        "planned": planned.standing(everything),
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
            for row in biggest[changed[biggest]].tolist()
            for site, _, url in [gathered.watched.ids[row].partition(" ")]
        ],
    }
