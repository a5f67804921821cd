"""Describe whole plans: their documents in `plans`, and the report of `scrapy replan`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from crawler.planning.options import BALANCED, Budget, PlanOptions
from crawler.planning.population import Gathered
from crawler.planning.replan_report import ReplanReport
from crawler.storage.client import Document
from crawler.storage.targets import ADAPTIVE
from crawler.utils.text import amount, count, is_known, listed
from schedules.allocation.outlook import outlook
from schedules.allocation.plan import LIMITS, Plan, Terms
from schedules.feeds.plan import FeedsPlan
from schedules.history import DAY_HOURS, Floats
from schedules.schedule import WEEK_DAYS, WEEK_HOURS, Schedules
from schedules.terms import UNBOUNDED, least_per_day, least_visits

# Maximum number of targets used for the expected results of daily visits.
MAX_SAMPLE = 20_000
DIGITS = 5


def replan_report(
    document: Document, updated: int, seconds: float, planning_seconds: float, *, dry_run: bool
) -> ReplanReport:
    """Return the report of a new plan.

    document: of `document_of` or `document_of_feeds`, with the time of the replan
    updated:  number of targets whose plan was changed
    """
    totals = document["totals"]
    return {
        "kind": document["kind"],
        "at": document["at"],
        "spiders": document["spiders"],
        "policy": document["policy"],
        "objective": document.get("objective"),
        "budget_per_day": document["budget_per_day"],
        "budget_from": document["budget_from"],
        "budget_kept": document["budget_kept"],
        "budget_added": document["budget_added"],
        "daily_cap": document["daily_cap"],
        "hourly_cap": document["hourly_cap"],
        "shadow_price": document["shadow_price"],
        "targets": document["targets"],
        "unplanned": document["unplanned"],
        "updated": updated,
        "learning": document.get("learning", 0),
        "dated": document.get("dated", []),
        "limited_by": document["limited_by"],
        "totals": {
            "requests_per_day": totals["requests_per_day"],
            "least_per_day": totals["least_per_day"],
            "known": totals["known"],
            "freshness": totals.get("freshness"),
            "age_days": totals.get("age_days"),
            "load": totals.get("load"),
            "daily": totals.get("daily"),
            "posts_per_day": totals.get("posts_per_day"),
            "missed_share": totals.get("missed_share"),
            "delay_hours": totals.get("delay_hours"),
        },
        "ignored": document["ignored"],
        "limits": document.get("limits", []),
        "warnings": document["warnings"],
        "dry_run": dry_run,
        "seconds": seconds,
        "planning_seconds": planning_seconds,
    }


def document_of(
    gathered: Gathered,
    options: PlanOptions,
    terms: Terms,
    budget: Budget,
    made: Plan,
    learning: int,
) -> Document:
    """Return the document of a plan for pages, as stored in `plans`.

    learning: number of targets that are left alone because they are being sampled
    """
    document = {
        **_beginning("pages", gathered, terms, budget, made),
        "objective": options.objective or BALANCED,
        "learning": learning,
        "totals": _totals(made),
        "dated": sorted(np.array(gathered.watched.spiders)[gathered.reliable_dates].tolist()),
        "warnings": [
            *_warnings_of_the_past(gathered, learning),
            *_warnings_of_the_sites(gathered),
            *_warnings_of_the_plan(terms, made),
        ],
    }
    return document | ({"limits": limits_of(gathered)} if terms.policy == ADAPTIVE else {})


def document_of_feeds(
    gathered: Gathered, terms: Terms, budget: Budget, made: FeedsPlan
) -> Document:
    """Return the document of a plan for feeds, as stored in `plans`."""
    posts, missed = made.posting.per_week, made.missed
    rates = made.figures(np.arange(len(posts)))
    got = posts - missed
    collected = np.isfinite(made.delay_hours) & (got > 0)
    waited = float((made.delay_hours[collected] * got[collected]).sum())
    all_got = float(got[collected].sum())
    warnings = []
    if unseen := int(np.isnan(gathered.histories.until).sum()):
        warnings.append(
            f"{unseen:,} of the feeds were never read and are planned like an average feed"
        )
    if ahead := gathered.watched.ahead:
        warnings.append(f"{ahead:,} feeds have visits dated in the future, which were ignored")
    spends = made.requests_per_day
    if terms.daily_cap and spends > terms.daily_cap:
        warnings.append(
            f"the plan needs {amount(spends)} requests a day, more than the daily cap of "
            f"{terms.daily_cap:,.0f}: the crawl will fall behind"
        )
    return {
        **_beginning("feeds", gathered, terms, budget, made),
        "totals": {
            "requests_per_day": round(spends, DIGITS),
            "least_per_day": round(least_per_day(gathered.population), DIGITS),
            "known": is_known(rates["rate_low"].sum(), rates["rate_high"].sum()),
            "posts_per_day": _number(float(posts.sum()) / WEEK_DAYS),
            "missed_share": _number(float(missed.sum()) / float(posts.sum())),
            "delay_hours": _number(waited / all_got if all_got else math.nan),
        },
        "warnings": warnings,
    }


def _beginning(
    kind: str, gathered: Gathered, terms: Terms, budget: Budget, made: Plan | FeedsPlan
) -> Document:
    """Return the fields that documents of pages and of feeds have in common."""
    watched = gathered.watched
    return {
        "kind": kind,
        "spiders": sorted(watched.spiders),
        "policy": terms.policy,
        "budget_per_day": _number(budget.per_day),
        "budget_from": budget.source,
        "budget_kept": budget.kept,
        "budget_added": _number(budget.added),
        "daily_cap": int(terms.daily_cap or 0),
        "hourly_cap": int(terms.hourly_cap or 0),
        "shadow_price": _number(made.price),
        "targets": len(watched),
        "unplanned": int(np.count_nonzero(watched.plan < 0)),
        "limited_by": {LIMITS[code]: n for code, n in sorted(Counter(made.bound.tolist()).items())},
        "ignored": {"future": watched.ahead},
    }


def _number(value: float) -> float | None:
    """Return the rounded value; None for NaN and inf, which JSON does not support."""
    return round(float(value), DIGITS) if math.isfinite(value) else None


def _mean(values: Floats) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def _totals(made: Plan) -> Document:
    """Return requests and freshness of a plan, and of daily visits to every target."""
    estimates, n = made.estimates, len(made.stale)
    least = least_visits(estimates.population)
    if n > MAX_SAMPLE:
        estimates = estimates.of(np.argsort(estimates.population.key)[:MAX_SAMPLE])
    # Visit each target daily at a pseudorandom but fixed hour.
    key, m = estimates.population.key, len(estimates.population)
    hour = (key % np.uint64(DAY_HOURS)).astype(np.int64)
    slots = (hour[:, None] + np.arange(WEEK_DAYS) * DAY_HOURS).ravel().astype(np.uint16)
    none, first = np.zeros(m), np.arange(m + 1) * WEEK_DAYS
    daily = outlook(estimates, Schedules(np.ones(m, np.uint8), first, slots, none, none))
    return {
        "requests_per_day": round(made.requests_per_day, DIGITS),
        "least_per_day": round(float(least.sum() / WEEK_DAYS), DIGITS),
        "known": is_known(float(np.nansum(made.rate_low)), float(np.nansum(made.rate_high))),
        "freshness": _number(1 - _mean(made.stale)),
        "age_days": _number(_mean(made.age_days)),
        "load": round(made.requests_per_day / n, DIGITS),
        "daily": {
            "requests_per_day": n,
            "freshness": _number(1 - _mean(daily.stale)),
            "age_days": _number(_mean(daily.age_days)),
        },
    }


def _warnings_of_the_past(gathered: Gathered, learning: int) -> Iterator[str]:
    """Yield warnings about missing or implausible history."""
    watched, past = gathered.watched, gathered.histories
    if not (past.until > past.since).any():
        yield "no page has been observed twice yet: rates and hours are those of an average page"
    elif not len(past.by):
        yield "no page has been observed to change yet"
    if watched.ahead:
        yield f"ignored visits dated in the future of {count(watched.ahead, 'target')}"
    if learning:
        yield f"{count(learning, 'target')} in a sampling phase, polled until it ends"


def _warnings_of_the_sites(gathered: Gathered) -> Iterator[str]:
    """Yield warnings about missing site definitions and caps that are too low."""
    population = gathered.population
    if unknown := [site.name for site in gathered.sites if site.at is None]:
        yield (
            f"no crawl has stored the site definition of {listed(unknown)} yet: assuming UTC, "
            "weight 1 and no closed hours"
        )
    least = np.bincount(population.site, least_visits(population), population.sites) / WEEK_DAYS
    for site, needs in zip(gathered.sites, least.tolist(), strict=True):
        caps = {"requests_per_day": needs, "requests_per_hour": needs / DAY_HOURS}
        for name, needed in caps.items():
            cap = getattr(site, name)
            if cap is not None and cap < needed:
                yield (
                    f"{site.name}: {name} {cap} is below the {amount(needed)} that its targets "
                    "need at their longest intervals; the crawl will fall behind"
                )


def _warnings_of_the_plan(terms: Terms, made: Plan) -> Iterator[str]:
    """Yield warnings about closed hours and exceeded caps."""
    # The frequency classes have fixed times, regardless of the site's visiting hours.
    population, schedules = made.estimates.population, made.schedules
    site = np.repeat(population.site, np.diff(schedules.first))
    shut = ~population.open_hours[site, schedules.slots % WEEK_HOURS]
    if shut.any():
        share = np.count_nonzero(shut) / len(shut)
        yield (
            f"{share:.0%} of the visits are planned for closed hours and wait until the site opens"
        )
    spends = made.requests_per_day
    if terms.policy in UNBOUNDED and terms.daily_cap and spends > terms.daily_cap:
        yield (
            f"the policy needs {amount(spends)} requests a day, more than the daily cap of "
            f"{terms.daily_cap:,.0f}: the crawl will fall behind"
        )


def limits_of(gathered: Gathered) -> list[Document]:
    """Return the limits of the adaptive intervals of each site."""
    population = gathered.population
    _, first = np.unique(population.site, return_index=True)
    names = [gathered.watched.spiders[number] for number in population.site[first]]
    hours = population.min_hours[first].tolist(), population.max_hours[first].tolist()
    rows = [
        {"spider": name, "min_hours": least, "max_hours": most}
        for name, least, most in zip(names, *hours, strict=True)
    ]
    return sorted(rows, key=lambda row: str(row["spider"]))
