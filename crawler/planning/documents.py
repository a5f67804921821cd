"""Describe whole plans: their documents in `plans`, and the report of `scrapy replan`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crawler.planning.options import BALANCED, Budget, PlanOptions
from crawler.planning.population import Gathered
from crawler.planning.report_types import ReplanReport, ReplanTotals
from crawler.storage.client import Document
from crawler.storage.sites import Site
from crawler.utils.shapes import copied
from crawler.utils.text import amount, count, is_known, listed
from schedules.allocation.optimal import outlook
from schedules.allocation.plan import Plan
from schedules.feeds.plan import FeedsPlan
from schedules.history import DAY_HOURS, Flags, Floats, Ints
from schedules.placement.load import site_hours
from schedules.population import Population, least_visits, min_per_day
from schedules.schedule import WEEK_DAYS, WEEK_HOURS, Schedules
from schedules.terms import LIMITS, UNBOUNDED, Terms

# Maximum number of targets used for the expected results of daily visits.
MAX_SAMPLE = 20_000
DIGITS = 5


def replan_report(
    document: Document,
    updated: int,
    second_requests: int,
    seconds: float,
    planning_seconds: float,
    *,
    dry_run: bool,
) -> ReplanReport:
    """Return the report of a new plan.

    document: of `document_of` or `document_of_feeds`, with the time of the replan
    updated:  number of targets whose plan was changed
    second_requests: number of second requests of the last week
    """
    return {
        **copied(ReplanReport, document),
        "updated": updated,
        "totals": copied(ReplanTotals, document["totals"]),
        "second_requests": second_requests,
        "dry_run": dry_run,
        "seconds": seconds,
        "planning_seconds": planning_seconds,
    }


class Figures(NamedTuple):
    """Hold sums over the targets of a plan or of a part of it. Sums of parts can be added.

    limited_by:         (l,) number of targets by index of LIMITS
    seen_twice:         number of targets that were observed twice
    min_visits:         (s,) visits a week that the limits require, of each site
    stale, age_days:    sums over the targets with finite values, whose number follows
    closed, slots:      number of slots in closed hours, and of all
    lists_per_day:      planned visits of list pages and sitemaps that show changes of items
    flags_per_day:      expected visits of items that these make due, besides the planned ones
    hours:              (s, 168) visits of each site in each UTC hour of the week
    daily_stale, daily_age_days: with daily visits, sums over a sample whose size follows
    """

    targets: int
    unplanned: int
    ahead: int
    learning: int
    updated: int
    seen_twice: int
    changes: int
    limited_by: Ints
    visits_per_week: float
    min_visits: Floats
    rate_low: float
    rate_high: float
    stale: float
    stale_known: int
    age_days: float
    age_known: int
    closed: int
    slots: int
    lists_per_day: float
    flags_per_day: float
    hours: Floats
    daily_stale: float
    daily_age_days: float
    daily_known: int

    @classmethod
    def of(
        cls,
        gathered: Gathered,
        made: Plan,
        now_hours: float,
        learning: int,
        updated: int,
        sample: Ints,
    ) -> Figures:
        """Return the sums over the targets of a plan that begins at `now_hours`.

        learning: number of targets whose plans are kept because they are being sampled
        updated:  number of targets whose plan is written
        sample:   targets for which the results of daily visits are computed
        """
        population, past = gathered.population, gathered.histories
        site = np.repeat(population.site, np.diff(made.schedules.first))
        opened = population.open_hours[site, made.schedules.slots % WEEK_HOURS]
        stale, age = np.isfinite(made.stale), np.isfinite(made.age_days)
        # Daily visits at pseudorandom but fixed hours. Of targets at even intervals, the plan takes
        # changes as equally likely at all hours; so must these, or the two could not be compared.
        sampled, m = made.estimates.of(sample), len(sample)
        hour = (sampled.population.key % np.uint64(DAY_HOURS)).astype(np.int64)
        slots = (hour[:, None] + np.arange(WEEK_DAYS) * DAY_HOURS).ravel().astype(np.uint16)
        every = np.where(made.schedules.every_hours[sample] > 0, float(DAY_HOURS), 0.0)
        first = np.arange(m + 1) * WEEK_DAYS
        visits = Schedules(np.ones(m, np.uint8), first, slots, every, np.zeros(m))
        daily = outlook(sampled, visits)
        min_visits = np.zeros(population.sites)
        np.add.at(min_visits, population.site, least_visits(population))
        return cls(
            targets=len(population),
            unplanned=int(np.count_nonzero(gathered.watched.plan < 0)),
            ahead=gathered.watched.ahead,
            learning=learning,
            updated=updated,
            seen_twice=int(np.count_nonzero(past.until > past.since)),
            changes=len(past.by),
            limited_by=np.bincount(made.bound, minlength=len(LIMITS)),
            visits_per_week=float(made.schedules.visits_per_week.sum()),
            min_visits=min_visits,
            rate_low=float(np.nansum(made.rate_low)),
            rate_high=float(np.nansum(made.rate_high)),
            stale=float(made.stale[stale].sum()),
            stale_known=int(np.count_nonzero(stale)),
            age_days=float(made.age_days[age].sum()),
            age_known=int(np.count_nonzero(age)),
            closed=int(np.count_nonzero(~opened)),
            slots=len(opened),
            lists_per_day=made.lists_per_day,
            flags_per_day=made.flags_per_day,
            hours=_hours(population, made.schedules, now_hours),
            daily_stale=float(daily.stale.sum()),
            daily_age_days=float(daily.age_days.sum()),
            daily_known=len(sample),
        )

    @classmethod
    def joined(cls, parts: Sequence[Figures]) -> Figures:
        """Return the sums over all parts."""
        return cls(*(sum(column) for column in zip(*parts, strict=True)))

    @property
    def requests_per_day(self) -> float:
        """Return the mean number of requests a day, planned and expected."""
        return self.visits_per_week / WEEK_DAYS + self.flags_per_day

    @property
    def freshness(self) -> float:
        """Return the expected mean freshness; NaN if it is unknown."""
        return 1 - self.stale / self.stale_known if self.stale_known else math.nan

    @property
    def mean_age_days(self) -> float:
        """Return the expected mean age in days; NaN if it is unknown."""
        return self.age_days / self.age_known if self.age_known else math.nan

    def warnings(self, sites: Sequence[Site], terms: Terms) -> Iterator[str]:
        """Yield warnings about history, site definitions, caps and closed hours."""
        if not self.seen_twice:
            yield (
                "no page has been observed twice yet: rates and hours are those of an average page"
            )
        elif not self.changes:
            yield "no page has been observed to change yet"
        if self.ahead:
            yield f"ignored visits dated in the future of {count(self.ahead, 'target')}"
        if self.learning:
            yield f"{count(self.learning, 'target')} in a sampling phase, polled until it ends"
        yield from self._warnings_of_sites(sites)
        # The frequency classes have fixed times, regardless of the site's visiting hours.
        if self.closed:
            yield (
                f"{self.closed / self.slots:.0%} of the visits are planned for closed hours and "
                "wait until the site opens"
            )
        yield from warnings_of_hours(sites, terms, self.hours)
        spends = self.requests_per_day
        if terms.policy in UNBOUNDED and terms.daily_cap and spends > terms.daily_cap:
            yield (
                f"the policy needs {amount(spends)} requests a day, more than the daily cap of "
                f"{terms.daily_cap:,.0f}: the crawl will fall behind"
            )

    def _warnings_of_sites(self, sites: Sequence[Site]) -> Iterator[str]:
        """Yield warnings about missing site definitions and caps that are too low."""
        if unknown := [site.name for site in sites if site.at is None]:
            yield (
                f"no crawl has stored the site definition of {listed(unknown)} yet: assuming UTC, "
                "weight 1 and no closed hours"
            )
        for site, visits in zip(sites, self.min_visits.tolist(), strict=True):
            open_hours = int(site.open_hours.sum())
            caps = {"requests_per_day": WEEK_DAYS, "requests_per_hour": open_hours}
            for name, times in caps.items():
                needed = visits / times
                cap = getattr(site, name)
                if cap is not None and cap < needed:
                    yield (
                        f"{site.name}: {name} {cap} is below the {amount(needed)} that its targets "
                        "need at their longest intervals; the crawl will fall behind"
                    )


def warnings_of_hours(sites: Sequence[Site], terms: Terms, hours: Floats) -> Iterator[str]:
    """Yield warnings about hourly caps that are below the visits planned in one hour.

    hours: (s, 168) visits of each site in each UTC hour of the week
    """
    caps = [("the hourly cap", terms.hourly_cap, hours.sum(axis=0))] + [
        (f"{site.name}: requests_per_hour", site.requests_per_hour, of_site)
        for site, of_site in zip(sites, hours, strict=True)
    ]
    for name, cap, visits in caps:
        # Rounded, because sums of rare visits depend on their order.
        if cap and (fullest := round(float(visits.max()), DIGITS)) > cap:
            yield (
                f"{name} {cap:,.0f} is below the {math.ceil(fullest):,} visits that are planned in "
                "one hour; crawls make the others in the hours after it"
            )


def _hours(population: Population, schedules: Schedules, now_hours: float) -> Floats:
    """Return the (s, 168) visits of each site in each UTC hour of the week."""
    ahead = population.ahead(now_hours)[population.site]
    return site_hours(schedules, ahead, population.site, population.sites)


def document_of(
    sites: Sequence[Site],
    dated: Flags,
    options: PlanOptions,
    terms: Terms,
    budget: Budget,
    price: float,
    figures: Figures,
) -> Document:
    """Return the document of a plan for pages, as stored in `plans`.

    dated: (s,) whether the dates of each site are reliable
    """
    names = [site.name for site in sites]
    return {
        **_beginning("pages", names, terms, budget, price),
        **_counts(figures.targets, figures.unplanned, figures.ahead, figures.limited_by),
        "objective": options.objective or BALANCED,
        "learning": figures.learning,
        "totals": {
            "requests_per_day": round(figures.requests_per_day, DIGITS),
            "min_per_day": round(float(figures.min_visits.sum() / WEEK_DAYS), DIGITS),
            "known": is_known(figures.rate_low, figures.rate_high),
            "freshness": _number(figures.freshness),
            "age_days": _number(figures.mean_age_days),
            "lists_per_day": round(figures.lists_per_day, DIGITS),
            "flags_per_day": round(figures.flags_per_day, DIGITS),
            "load": round(figures.requests_per_day / figures.targets, DIGITS),
            # Expected results of daily visits to every target.
            "daily": {
                "requests_per_day": figures.targets,
                "freshness": _number(1 - figures.daily_stale / figures.daily_known),
                "age_days": _number(figures.daily_age_days / figures.daily_known),
            },
        },
        "dated": sorted(name for name, is_dated in zip(names, dated, strict=True) if is_dated),
        "warnings": [*figures.warnings(sites, terms)],
    }


def daily_sample(key: NDArray[np.uint64], limit: int = MAX_SAMPLE) -> Ints:
    """Return the targets for which the results of daily visits are computed."""
    rows: Ints = np.argsort(key)[:limit]
    return rows


def document_of_feeds(
    gathered: Gathered, terms: Terms, budget: Budget, made: FeedsPlan, now_hours: float
) -> Document:
    """Return the document of a plan for feeds from `now_hours`, as stored in `plans`."""
    posts, missed = made.posting.per_week, made.missed
    rates = made.figures(np.arange(len(posts)))
    collected = posts - missed
    has_delay = np.isfinite(made.delay_hours) & (collected > 0)
    post_hours = float((made.delay_hours[has_delay] * collected[has_delay]).sum())
    delayed_posts = float(collected[has_delay].sum())
    warnings = []
    if unseen := int(np.isnan(gathered.histories.until).sum()):
        warnings.append(
            f"{unseen:,} of the feeds were never read and are planned like an average feed"
        )
    if ahead := gathered.watched.ahead:
        warnings.append(f"ignored visits dated in the future of {count(ahead, 'feed')}")
    spends = made.requests_per_day
    if terms.daily_cap and spends > terms.daily_cap:
        warnings.append(
            f"the plan needs {amount(spends)} requests a day, more than the daily cap of "
            f"{terms.daily_cap:,.0f}: the crawl will fall behind"
        )
    hours = _hours(gathered.population, made.schedules, now_hours)
    warnings += warnings_of_hours(gathered.sites, terms, hours)
    return {
        **_beginning("feeds", gathered.watched.spiders, terms, budget, made.price),
        **_counts(
            len(gathered.watched),
            int(np.count_nonzero(gathered.watched.plan < 0)),
            gathered.watched.ahead,
            np.bincount(made.bound, minlength=len(LIMITS)),
        ),
        "totals": {
            "requests_per_day": round(spends, DIGITS),
            "min_per_day": round(min_per_day(gathered.population), DIGITS),
            "known": is_known(rates["rate_low"].sum(), rates["rate_high"].sum()),
            "posts_per_day": _number(float(posts.sum()) / WEEK_DAYS),
            "missed_share": _number(float(missed.sum()) / float(posts.sum())),
            "delay_hours": _number(post_hours / delayed_posts if delayed_posts else math.nan),
        },
        "warnings": warnings,
    }


def _beginning(
    kind: str, spiders: Sequence[str], terms: Terms, budget: Budget, price: float
) -> Document:
    """Return the fields that documents of pages and of feeds have in common."""
    return {
        "kind": kind,
        "spiders": sorted(spiders),
        "policy": terms.policy,
        "budget_per_day": _number(budget.per_day),
        "budget_from": budget.source,
        "budget_kept": budget.kept,
        "budget_added": _number(budget.added),
        "daily_cap": int(terms.daily_cap or 0),
        "hourly_cap": int(terms.hourly_cap or 0),
        "shadow_price": _number(price),
    }


def _counts(targets: int, unplanned: int, ahead: int, limited_by: Ints) -> Document:
    """Return the numbers of targets in a document."""
    return {
        "targets": targets,
        "unplanned": unplanned,
        "limited_by": {LIMITS[code]: n for code, n in enumerate(limited_by.tolist()) if n},
        "ignored": {"future": ahead},
    }


def _number(value: float) -> float | None:
    """Return the rounded value; None for NaN and inf, which JSON does not support."""
    return round(float(value), DIGITS) if math.isfinite(value) else None


def limits_of(gathered: Gathered) -> list[Document]:
    """Return the limits of the adaptive intervals of each site."""
    population = gathered.population
    _, first = np.unique(population.site, return_index=True)
    names = [gathered.watched.spiders[number] for number in population.site[first]]
    hours = population.min_hours[first].tolist(), population.max_hours[first].tolist()
    rows = [
        {"spider": name, "min_hours": shortest, "max_hours": longest}
        for name, shortest, longest in zip(names, *hours, strict=True)
    ]
    return sorted(rows, key=lambda row: str(row["spider"]))
