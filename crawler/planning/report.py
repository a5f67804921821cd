"""Describe whole plans: their documents in `plans`, and overviews of plans and changes.

`replan` writes the documents. `scrapy plan` and the dashboards read the overviews.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np

from crawler.planning.options import BALANCED, Budget, PlanOptions
from crawler.planning.population import Gathered
from crawler.storage import plans, visits
from crawler.storage.client import Database, Document
from crawler.storage.sites import Site
from crawler.storage.targets import ADAPTIVE
from crawler.utils.text import amount, count, is_known, listed
from schedules.allocation.outlook import outlook
from schedules.allocation.plan import LIMITS, Plan, Terms
from schedules.allocation.policies import NAMES
from schedules.feeds.plan import FeedsPlan
from schedules.history import DAY_HOURS, Floats
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import UNBOUNDED, WEEK_DAYS, least_per_day, least_visits
from schedules.windows import DAYS

# Maximum number of targets used for the expected results of daily visits.
MAX_SAMPLE = 20_000
DIGITS = 5
# Maximum number of distinct hours with a table column each.
MAX_COLUMNS = 8
# Up to this number, pages are listed by name.
MAX_LISTED = 30
OF_A_PLAN = (
    "_id", "at", "spiders", "policy", "objective", "budget_per_day", "daily_cap", "hourly_cap",
    "shadow_price", "updated", "targets", "warnings",
)  # fmt: skip

Row = Mapping[str, Any]


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


def requests(slots: Iterable[Row], even: Iterable[Row] = ()) -> Floats:
    """Return the (168,) mean requests in each hour of the local week.

    slots: rows of `weeks`, `slot` and `targets`
    even:  rows of `per_week`, at any hour
    """
    week = np.zeros(WEEK_HOURS)
    for row in slots:
        week[row["slot"] % WEEK_HOURS] += row["targets"] / (row["weeks"] or 1)
    every: float = sum(row["per_week"] for row in even)
    return week + every / WEEK_HOURS


def sums(rows: Iterable[Row], name: str) -> Floats:
    """Return the (168,) sums of a field over rows of `day` (0 = Monday) and `hour`."""
    week = np.zeros(WEEK_HOURS)
    for row in rows:
        week[row["day"] * DAY_HOURS + row["hour"]] += row[name]
    return week


def matrix(week: Floats, digits: int = 3) -> dict[str, list[float]]:
    """Return the 24 hours of each day, by name of the day."""
    table = np.round(week.reshape(len(DAYS), DAY_HOURS), digits)
    return {day: row.tolist() for day, row in zip(DAYS, table, strict=True)}


def columns(week: Floats) -> tuple[list[str], Floats]:
    """Return column titles and (7, c) sums: the used hours if few, else blocks of three."""
    table = week.reshape(len(DAYS), DAY_HOURS)
    used = np.flatnonzero(table.sum(0))
    if len(used) <= MAX_COLUMNS:
        return [f"{hour:02}:00" for hour in used], table[:, used]
    wide = DAY_HOURS // MAX_COLUMNS
    return (
        [f"{hour:02}-{hour + wide:02}" for hour in range(0, DAY_HOURS, wide)],
        table.reshape(len(DAYS), MAX_COLUMNS, wide).sum(2),
    )


async def of_plans(db: Database, names: list[str], documents: list[Document]) -> Document:
    """Return an overview of the plans of some spiders. documents: their latest plans."""
    groups = await plans.groups(db, names)
    slots, even = await plans.slots(db, names), await plans.even(db, names)
    week = requests(slots, even)
    for row in groups:
        row["known"] = is_known(row["rate_low"], row["rate_high"])
    planned = sorted(
        (row for row in groups if row["frequency_class"] in NAMES),
        key=lambda row: -NAMES.index(row["frequency_class"]),
    )
    count = sum(row["targets"] for row in groups)
    learning = sum(row["targets"] for row in groups if row.get("frequency_class") == plans.LEARNING)
    overview = {
        "kind": "feeds" if {plan.get("kind") for plan in documents} == {"feeds"} else "pages",
        "spiders": names,
        "plans": [{name: plan.get(name) for name in OF_A_PLAN} for plan in documents],
        "targets": count,
        "unplanned": count - learning - sum(row["targets"] for row in planned),
        "learning": learning,
        "groups": planned,
        "totals": _totals_of_groups(planned, documents),
        "timetable": matrix(week),
        "even": {key: sum(row[key] for row in even) for key in ("targets", "per_week")},
    }
    if count <= MAX_LISTED:
        overview["pages"] = await plans.planned(db, names)
    return overview


def _totals_of_groups(groups: list[Document], documents: list[Document]) -> Document:
    """Return requests a day, expected freshness and age, and the same for daily visits."""
    n = sum(row["targets"] for row in groups)
    totals = [plan["totals"] for plan in documents if "daily" in (plan.get("totals") or {})]
    daily = [(each["daily"], each["daily"]["requests_per_day"]) for each in totals]
    weighted = [(row, row["targets"]) for row in groups]
    per_day = sum(row["requests_per_day"] for row in groups)
    low, high = (sum(row[name] for row in groups) for name in ("rate_low", "rate_high"))
    return {
        "known": is_known(low, high),
        "missed_per_week": round(sum(row["missed_per_week"] for row in groups), 3),
        "delay_hours": _weighted_mean("delay_hours", weighted),
        "requests_per_day": round(per_day, 3),
        "load": round(per_day / n, 5) if n else None,
        "freshness": _weighted_mean("freshness", weighted),
        "age_days": _weighted_mean("age_days", weighted),
        "daily": {
            "requests_per_day": n,
            "freshness": _weighted_mean("freshness", daily),
            "age_days": _weighted_mean("age_days", daily),
        },
    }


def _weighted_mean(name: str, rows: Iterable[tuple[Row, float]]) -> float | None:
    """Return the weighted mean of a field; None without weights."""
    pairs = [(row[name], weight) for row, weight in rows if row[name] is not None and weight]
    total = sum(weight for _, weight in pairs)
    return round(sum(value * weight for value, weight in pairs) / total, 5) if total else None


async def of_changes(db: Database, site: Site, since: datetime | None, most: int) -> Document:
    """Return the changes of a site by weekday and hour, and by URL for `most` URLs."""
    hours = await visits.by_hour(db, site.name, site.zone, since)
    urls = await visits.by_url(db, site.name, site.zone, since, most)
    for row in urls:
        week = sums(row.pop("hours"), "changes").reshape(len(DAYS), DAY_HOURS)
        row["weekdays"] = dict(zip(DAYS, week.sum(1).astype(int).tolist(), strict=True))
        row["hours"] = week.sum(0).astype(int).tolist()
    tables = {key: matrix(sums(hours, key)) for key in visits.SUMS}
    total = {key: sum(row[key] for row in hours) for key in visits.SUMS}
    return {"spider": site.name, "timezone": site.timezone, "total": total, "urls": urls} | tables
