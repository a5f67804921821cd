"""What is to be known of a plan as a whole: its document in `plans`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np

from crawler.planning.budget import Budget
from crawler.planning.population import Gathered
from crawler.planning.request import BALANCED, Wish
from crawler.storage import plans as timetables
from crawler.storage import visits as changes
from crawler.storage.client import Database, Document
from crawler.storage.sites import Site
from crawler.storage.targets import ADAPTIVE
from crawler.utils.text import amount, count, is_known, listed
from schedules.allocation.outlook import outlook
from schedules.allocation.plan import BOUNDS, Plan, Terms
from schedules.allocation.policies import NAMES
from schedules.history import DAY_HOURS, Floats
from schedules.population import Population
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import UNBOUNDED, WEEK_DAYS, least_visits
from schedules.windows import DAYS

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


Row = Mapping[str, Any]
COLUMNS = 8


def requests(slots: Iterable[Row], even: Iterable[Row] = ()) -> Floats:
    """(168,) mean requests in each hour of the local week.

    slots: rows of `weeks`, `slot` and `targets`   even: rows of `per_week`, at any hour
    """
    week = np.zeros(WEEK_HOURS)
    for row in slots:
        week[row["slot"] % WEEK_HOURS] += row["targets"] / (row["weeks"] or 1)
    every: float = sum(row["per_week"] for row in even)
    return week + every / WEEK_HOURS


def sums(rows: Iterable[Row], name: str) -> Floats:
    """(168,) what rows of `day` (0 = Monday) and `hour` give under a name."""
    week = np.zeros(WEEK_HOURS)
    for row in rows:
        week[row["day"] * DAY_HOURS + row["hour"]] += row[name]
    return week


def matrix(week: Floats, digits: int = 3) -> dict[str, list[float]]:
    """Each day's 24 hours, by its name."""
    table = np.round(week.reshape(len(DAYS), DAY_HOURS), digits)
    return {day: row.tolist() for day, row in zip(DAYS, table, strict=True)}


def columns(week: Floats) -> tuple[list[str], Floats]:
    """Times of the day and (7, c) sums: hours apart where they are few, else three together."""
    table = week.reshape(len(DAYS), DAY_HOURS)
    used = np.flatnonzero(table.sum(0))
    if len(used) <= COLUMNS:
        return [f"{hour:02}:00" for hour in used], table[:, used]
    wide = DAY_HOURS // COLUMNS
    return (
        [f"{hour:02}-{hour + wide:02}" for hour in range(0, DAY_HOURS, wide)],
        table.reshape(len(DAYS), COLUMNS, wide).sum(2),
    )


# So many pages are listed by name.
FEW = 30
OF_A_PLAN = (
    "_id", "at", "spiders", "policy", "objective", "budget_per_day", "daily_cap", "hourly_cap",
    "price", "moved", "targets", "warnings",
)  # fmt: skip


async def of_plans(db: Database, names: list[str], documents: list[Document]) -> Document:
    """What plans say of the targets of some spiders. documents: the latest plans of these."""
    groups = await timetables.groups(db, names)
    slots, even = await timetables.slots(db, names), await timetables.even(db, names)
    week = requests(slots, even)
    for row in groups:
        row["known"] = is_known(row["rate_low"], row["rate_high"])
    planned = sorted(
        (row for row in groups if row["group"] in NAMES),
        key=lambda row: -NAMES.index(row["group"]),
    )
    count = sum(row["targets"] for row in groups)
    learning = sum(row["targets"] for row in groups if row.get("group") == timetables.LEARNING)
    found = {
        "kind": "feeds" if {one.get("kind") for one in documents} == {"feeds"} else "pages",
        "spiders": names,
        "plans": [_brief(one) for one in documents],
        "targets": count,
        "unplanned": count - learning - sum(row["targets"] for row in planned),
        "learning": learning,
        "groups": planned,
        "totals": _totals_overview(planned, documents),
        "timetable": matrix(week),
        "even": {key: sum(row[key] for row in even) for key in ("targets", "per_week")},
    }
    if count <= FEW:
        found["pages"] = await timetables.planned(db, names)
    return found


def _brief(one: Document) -> Document:
    return {name: one.get(name) for name in OF_A_PLAN}


def _totals_overview(groups: list[Document], documents: list[Document]) -> Document:
    """Requests a day, expected freshness and age, and the same for daily crawling."""
    n = sum(row["targets"] for row in groups)
    daily = [one["totals"]["daily"] for one in documents if "daily" in (one.get("totals") or {})]
    weights = [one["requests_per_day"] for one in daily]
    per_day = sum(row["requests_per_day"] for row in groups)
    of_groups = [row["targets"] for row in groups]
    low, high = (sum(row[name] for row in groups) for name in ("rate_low", "rate_high"))
    return {
        "known": is_known(low, high),
        "missed_per_week": round(sum(row["missed_per_week"] for row in groups), 3),
        "delay_hours": _mean_overview([row["delay_hours"] for row in groups], of_groups),
        "requests_per_day": round(per_day, 3),
        "load": round(per_day / n, 5) if n else None,
        "freshness": _mean_overview([row["freshness"] for row in groups], of_groups),
        "age_days": _mean_overview([row["age_days"] for row in groups], of_groups),
        "daily": {
            "requests_per_day": n,
            "freshness": _mean_overview([one["freshness"] for one in daily], weights),
            "age_days": _mean_overview([one["age_days"] for one in daily], weights),
        },
    }


def _mean_overview(values: list[float | None], weights: list[float]) -> float | None:
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w]
    total = sum(w for _, w in known)
    return round(sum(v * w for v, w in known) / total, 5) if total else None


async def of_changes(db: Database, site: Site, since: datetime | None, most: int) -> Document:
    """Changes found at a site by URL (the `most` that changed most), weekday and hour."""
    hours = await changes.by_hour(db, site.name, site.zone, since)
    urls = await changes.by_url(db, site.name, site.zone, since, most)
    for row in urls:
        week = sums(row.pop("hours"), "changes").reshape(len(DAYS), DAY_HOURS)
        row["weekdays"] = dict(zip(DAYS, week.sum(1).astype(int).tolist(), strict=True))
        row["hours"] = week.sum(0).astype(int).tolist()
    tables = {key: matrix(sums(hours, key)) for key in changes.SUMS}
    total = {key: sum(row[key] for row in hours) for key in changes.SUMS}
    return {"spider": site.name, "timezone": site.timezone, "total": total, "urls": urls} | tables
