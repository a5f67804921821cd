"""What is to be known of a plan as a whole: its document in `plans`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from crawler.replanning.budgets import Budget
from crawler.replanning.population import Gathered
from crawler.replanning.wishes import BALANCED, Wish
from crawler.storage.client import Document
from crawler.storage.parts import ADAPTIVE
from crawler.utils.text import amount, count, is_known, listed
from schedules.history import DAY_HOURS, Floats
from schedules.outlook import outlook
from schedules.plan import BOUNDS, Plan, Terms
from schedules.population import Population
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import UNBOUNDED, WEEK_DAYS, least_visits

# So many targets tell the mean of all.
ENOUGH = 20_000
DIGITS = 5


def document_of(
    gathered: Gathered, wish: Wish, terms: Terms, budget: Budget, made: Plan, learning: int
) -> Document:
    """The document of a plan, as it will stand in `plans`.

    learning: how many targets are left alone
    """
    watched = gathered.watched
    document: Document = {
        "kind": "pages",
        "spiders": sorted(watched.spiders),
        "policy": terms.policy,
        "objective": wish.objective or BALANCED,
        **spending_of(terms, budget),
        "price": _number(made.price),
        "targets": len(watched),
        "unplanned": int(np.count_nonzero(watched.plan < 0)),
        "learning": learning,
        "totals": _totals(made) | _against_daily(made),
        "bounds": _bounds(made),
        "ignored": {"future": watched.ahead},
        "dated": sorted(np.array(watched.spiders)[gathered.believed].tolist()),
        "warnings": _warnings(gathered, terms, made, learning),
    }
    return document | ({"limits": limits_of(gathered)} if terms.policy == ADAPTIVE else {})


def spending_of(terms: Terms, budget: Budget) -> Document:
    """What a plan may spend, and where that is from."""
    return {
        "budget_per_day": _number(budget.per_day),
        "budget_from": budget.source,
        "budget_kept": budget.kept,
        "budget_added": _number(budget.added),
        "daily_cap": int(terms.daily_cap or 0),
        "hourly_cap": int(terms.hourly_cap or 0),
    }


def _totals(made: Plan) -> Document:
    population = made.believed.population
    return {
        "requests_per_day": round(made.requests_per_day, DIGITS),
        "least_per_day": round(float(least_visits(population).sum() / WEEK_DAYS), DIGITS),
        "known": is_known(float(np.nansum(made.rate_low)), float(np.nansum(made.rate_high))),
        "freshness": _number(1 - _mean(made.stale)),
        "age_days": _number(_mean(made.age_days)),
    }


def _against_daily(made: Plan) -> Document:
    """What visiting every target once a day would take and give."""
    believed, n = made.believed, len(made.stale)
    if n > ENOUGH:
        believed = believed.of(np.argsort(believed.population.key)[:ENOUGH])
    daily = outlook(believed, _daily(believed.population))
    return {
        "load": round(made.requests_per_day / n, DIGITS),
        "daily": {
            "requests_per_day": n,
            "freshness": _number(1 - _mean(daily.stale)),
            "age_days": _number(_mean(daily.age_days)),
        },
    }


def _daily(population: Population) -> Schedules:
    """A visit a day to each target, at an hour of its own."""
    n = len(population)
    hour = (population.key % np.uint64(DAY_HOURS)).astype(np.int64)
    slots = hour[:, None] + np.arange(WEEK_DAYS) * DAY_HOURS
    none, first = np.zeros(n), np.arange(n + 1) * WEEK_DAYS
    return Schedules(np.ones(n, np.uint8), first, slots.ravel().astype(np.uint16), none, none)


def _bounds(made: Plan) -> dict[str, int]:
    """How many targets were bound by what."""
    counts = Counter(made.bound.tolist())
    return {BOUNDS[code]: n for code, n in sorted(counts.items())}


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _number(value: float) -> float | None:
    return round(float(value), DIGITS) if math.isfinite(value) else None


def _warnings(gathered: Gathered, terms: Terms, made: Plan, learning: int) -> list[str]:
    """What the user should know about this plan, a sentence each."""
    return [
        *_of_the_past(gathered, learning),
        *_of_the_sites(gathered),
        *_of_the_hours(made),
        *_of_the_spending(terms, made),
    ]


def _of_the_past(gathered: Gathered, learning: int) -> Iterator[str]:
    watched, past = gathered.watched, gathered.histories
    if not (past.until > past.since).any():
        yield "no page was seen twice so far: rates and hours are guesses that hold for any page"
    elif not len(past.by):
        yield "no page was seen to change so far"
    if watched.ahead:
        yield f"{count(watched.ahead, 'target')} had visits in the future, which were ignored"
    if learning:
        yield f"{count(learning, 'target')} are being learned and keep their visits until then"


def _of_the_sites(gathered: Gathered) -> Iterator[str]:
    population = gathered.population
    if unknown := [one.name for one in gathered.sites if one.at is None]:
        yield (
            f"no crawl has noted the wrapper of {listed(unknown)} so far: UTC, weight 1 and all "
            "hours are assumed"
        )
    least = np.bincount(population.site, least_visits(population), population.sites) / WEEK_DAYS
    for one, needs in zip(gathered.sites, least.tolist(), strict=True):
        caps = {"requests_per_day": needs, "requests_per_hour": needs / DAY_HOURS}
        for name, needed in caps.items():
            cap = getattr(one, name)
            if cap is not None and cap < needed:
                yield (
                    f"{one.name}: {name} {cap} is below the {amount(needed)} that its targets "
                    "need at their longest intervals; it will fall behind"
                )


def _of_the_hours(made: Plan) -> Iterator[str]:
    """Some policies have fixed times, whatever the wrapper's hours are."""
    population, schedules = made.believed.population, made.schedules
    site = np.repeat(population.site, np.diff(schedules.first))
    shut = ~population.open_hours[site, schedules.slots % WEEK_HOURS]
    if shut.any():
        share = np.count_nonzero(shut) / len(shut)
        yield (
            f"{share:.0%} of the visits are planned for hours that wrappers close; they wait until "
            "the site opens"
        )


def _of_the_spending(terms: Terms, made: Plan) -> Iterator[str]:
    spends = made.requests_per_day
    if terms.policy in UNBOUNDED and terms.daily_cap and spends > terms.daily_cap:
        yield (
            f"the policy wants {amount(spends)} requests a day, over the daily cap "
            f"{terms.daily_cap:,.0f}: the crawl will fall behind"
        )


def limits_of(gathered: Gathered) -> list[Document]:
    """Between which intervals the targets of each site may adapt."""
    population = gathered.population
    _, first = np.unique(population.site, return_index=True)
    names = [gathered.watched.spiders[number] for number in population.site[first]]
    hours = population.min_hours[first].tolist(), population.max_hours[first].tolist()
    rows = [
        {"spider": name, "min_hours": least, "max_hours": most}
        for name, least, most in zip(names, *hours, strict=True)
    ]
    return sorted(rows, key=lambda row: str(row["spider"]))
