"""Describe the current plans and the changes found, for `scrapy plan`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import numpy as np
from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.planning.report_types import DailyTotals
from crawler.storage import plans, runs, visits
from crawler.storage.client import Database
from crawler.storage.sites import Site
from crawler.utils.shapes import copied
from crawler.utils.text import is_known, moment
from schedules.calendar import DAYS
from schedules.history import DAY_HOURS, Floats
from schedules.schedule import FREQUENCY_CLASSES, WEEK_HOURS

# Maximum number of distinct hours with a table column each.
MAX_COLUMNS = 8
# Up to this number, pages are listed by name.
MAX_LISTED = 30

Row = Mapping[str, Any]


class PlanSummary(TypedDict):
    """A plan, as of its replan."""

    id: str
    """Id of the plan."""
    at: datetime
    """Time of the replan."""
    spiders: list[str]
    """Names of the planned spiders."""
    policy: str
    """Allocation policy."""
    objective: str | None
    """For pages: objective of the policy `optimal`."""
    budget_per_day: float | None
    """Mean requests per day; null if the policy ignores the budget."""
    daily_cap: int
    """Maximum visits per UTC day; 0: no cap."""
    hourly_cap: int
    """Maximum visits per hour; 0: no cap."""
    shadow_price: float | None
    """Hours of staleness that a visit has to save; for feeds: posts per fetch."""
    updated: int
    """Number of targets whose plan was changed."""
    targets: int
    """Number of planned targets."""
    warnings: list[str]
    """Warnings of the replan."""


class PlanClass(TypedDict):
    """Targets of a frequency class."""

    frequency_class: str
    """Frequency class, such as `G7` for 7 visits per week."""
    targets: int
    """Number of targets."""
    requests_per_day: float
    """Mean requests per day."""
    known: bool
    """Whether change rates are known well enough."""
    freshness: float | None
    """For pages: mean expected freshness."""
    age_days: float | None
    """For pages: mean expected age in days."""
    missed_per_week: float
    """For feeds: expected missed posts per week."""
    delay_hours: float | None
    """For feeds: mean expected delay of collected posts in hours."""


class PlanTotals(TypedDict):
    """Expected results of all plans."""

    known: bool
    """Whether change rates are known well enough."""
    requests_per_day: float
    """Mean requests per day."""
    load: float | None
    """Requests as a share of those of daily crawling."""
    freshness: float | None
    """For pages: mean expected freshness."""
    age_days: float | None
    """For pages: mean expected age in days."""
    missed_per_week: float
    """For feeds: expected missed posts per week."""
    delay_hours: float | None
    """For feeds: mean expected delay of collected posts in hours."""
    daily: DailyTotals
    """The same figures for daily crawling."""


class EvenTargets(TypedDict):
    """Targets with even intervals."""

    targets: int
    """Number of targets."""
    per_week: float
    """Mean visits per week."""


class PlannedTarget(TypedDict):
    """The schedule of a target."""

    spider: str
    """Name of the spider."""
    url: str
    """URL of the target."""
    frequency_class: str | None
    """Frequency class."""
    windows: list[str]
    """The schedule in words."""
    weeks: int
    """Length of the schedule's cycle in weeks."""
    slots: list[int]
    """Hours of the cycle with a visit; 0 = Monday 00:00, in the site's time zone."""
    every_hours: float
    """Even interval in hours; 0 for a schedule with slots."""
    visits_per_week: float
    """Mean number of visits per week."""


class PlanOverview(TypedDict):
    """The current plans of some spiders."""

    kind: Literal["pages", "feeds"]
    """`feeds` if all plans are for feeds, else `pages`."""
    spiders: list[str]
    """Names of the spiders."""
    plans: list[PlanSummary]
    """Their latest plans."""
    targets: int
    """Number of targets."""
    unplanned: int
    """Number of targets found since the replan."""
    learning: int
    """Number of targets in a sampling phase."""
    groups: list[PlanClass]
    """Targets by frequency class, most frequent first."""
    totals: PlanTotals
    """Expected results of all plans."""
    timetable: dict[str, list[float]]
    """Mean requests by day of the week and hour, in each site's time zone."""
    even: EvenTargets
    """Targets with even intervals, which are in the timetable, too."""
    second_requests: int
    """Second requests of the last 7 days, which find random text; no budget counts them."""
    pages: list[PlannedTarget] | None
    """Schedules of all targets; null if there are more than 30."""
    calendar: str | None
    """With `--calendar`: path of the heat map."""


class ChangeSums(TypedDict):
    """Number and sizes of changes."""

    changes: int
    """Number of changes."""
    update_size: int
    """Bytes by which bodies differed from the previous ones."""
    diff_size: int
    """Characters inserted and deleted."""


class UrlChanges(TypedDict):
    """Changes of a URL."""

    url: str
    """URL of the target."""
    changes: int
    """Number of changes."""
    update_size: int
    """Bytes by which bodies differed from the previous ones."""
    diff_size: int
    """Characters inserted and deleted."""
    weekdays: dict[str, int]
    """Number of changes by day of the week."""
    hours: list[int]
    """Number of changes in each of the 24 hours."""


class SpiderChanges(TypedDict):
    """Changes of a spider, by the local time of the visit that found them."""

    spider: str
    """Name of the spider."""
    timezone: str
    """IANA time zone of the site."""
    total: ChangeSums
    """Sums of all changes."""
    urls: list[UrlChanges]
    """URLs with the most changes."""
    changes: dict[str, list[float]]
    """Number of changes by day of the week and hour."""
    update_size: dict[str, list[float]]
    """Bytes by which bodies differed, by day of the week and hour."""
    diff_size: dict[str, list[float]]
    """Characters inserted and deleted, by day of the week and hour."""


class ChangesOverview(TypedDict):
    """The changes found, by spider."""

    since: datetime | None
    """With `--weeks`: time from which changes count."""
    changes: list[SpiderChanges]
    """Changes by spider."""


def requests(slots: Iterable[Row], even: Iterable[Row] = ()) -> Floats:
    """Return the (168,) mean requests in each hour of the local week.

    slots: rows of `weeks`, `slot` and `targets`
    even:  rows of `per_week`, at any hour
    """
    week = np.zeros(WEEK_HOURS)
    for row in slots:
        week[row["slot"] % WEEK_HOURS] += row["targets"] / (row["weeks"] or 1)
    even_visits: float = sum(row["per_week"] for row in even)
    return week + even_visits / WEEK_HOURS


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


async def current_plans(db: Database, spiders: list[str], now: datetime) -> PlanOverview:
    """Return an overview of the current plans of some spiders.

    Raises ConfigError if there are none, or if all of them begin after `now`.
    """
    latest = [await plans.latest(db, name, now) for name in spiders]
    documents = list({str(plan["_id"]): plan for plan in latest if plan is not None}.values())
    if not documents:
        if (later := await plans.earliest_after(db, spiders, now)) is None:
            raise ConfigError("no plan yet. Run scrapy replan first")
        raise ConfigError(
            "no current plan: scrapy replan ran with a clock that was ahead, so its plan begins at "
            f"{moment(later['at'], now)}. Run scrapy replan again to plan from now on"
        )
    rows = await plans.groups(db, spiders)
    slots, even = await plans.week(db, spiders)
    week = requests(slots, even)
    # Other classes are those of targets without a plan, and of targets in a sampling phase.
    planned = sorted(
        (row for row in rows if row["frequency_class"] in FREQUENCY_CLASSES),
        key=lambda row: -FREQUENCY_CLASSES.index(row["frequency_class"]),
    )
    count = sum(row["targets"] for row in rows)
    learning = sum(row["targets"] for row in rows if row.get("frequency_class") == plans.LEARNING)
    return {
        "kind": "feeds" if {plan.get("kind") for plan in documents} == {"feeds"} else "pages",
        "spiders": spiders,
        "plans": [{**copied(PlanSummary, plan), "id": str(plan["_id"])} for plan in documents],
        "targets": count,
        "unplanned": count - learning - sum(row["targets"] for row in planned),
        "learning": learning,
        "groups": [
            {**copied(PlanClass, row), "known": is_known(row["rate_low"], row["rate_high"])}
            for row in planned
        ],
        "totals": _totals_of_groups(planned, documents),
        "timetable": matrix(week),
        "even": {
            "targets": sum(row["targets"] for row in even),
            "per_week": sum(row["per_week"] for row in even),
        },
        "second_requests": await runs.second_requests(db, spiders, now),
        "pages": await _planned_targets(db, spiders) if count <= MAX_LISTED else None,
        "calendar": None,
    }


async def _planned_targets(db: Database, spiders: list[str]) -> list[PlannedTarget]:
    return [
        {**copied(PlannedTarget, row), "weeks": row.get("weeks", 1)}
        for row in await plans.planned(db, spiders)
    ]


def _totals_of_groups(groups: Sequence[Row], documents: Iterable[Row]) -> PlanTotals:
    """Return the expected results of plans, and the same for daily visits."""
    n = sum(row["targets"] for row in groups)
    totals = [plan["totals"] for plan in documents if "daily" in (plan.get("totals") or {})]
    daily = [(each["daily"], each["daily"]["requests_per_day"]) for each in totals]
    weighted = [(row, row["targets"]) for row in groups]
    per_day = sum(row["requests_per_day"] for row in groups)
    low, high = (sum(row[name] for row in groups) for name in ("rate_low", "rate_high"))
    return {
        "known": is_known(low, high),
        "requests_per_day": round(per_day, 3),
        "load": round(per_day / n, 5) if n else None,
        "freshness": _weighted_mean("freshness", weighted),
        "age_days": _weighted_mean("age_days", weighted),
        "missed_per_week": round(sum(row["missed_per_week"] for row in groups), 3),
        "delay_hours": _weighted_mean("delay_hours", weighted),
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


async def changes_found(
    db: Database, sites: Iterable[Site], since: datetime | None, n_urls: int
) -> ChangesOverview:
    """Return the changes of some sites by weekday and hour, and by URL for `n_urls` URLs each."""
    changes: list[SpiderChanges] = []
    for site in sites:
        hours = await visits.by_hour(db, site.name, site.zone, since)
        rows = await visits.by_url(db, site.name, site.zone, since, n_urls)
        changes.append(
            {
                "spider": site.name,
                "timezone": site.timezone,
                "total": {
                    "changes": sum(row["changes"] for row in hours),
                    "update_size": sum(row["update_size"] for row in hours),
                    "diff_size": sum(row["diff_size"] for row in hours),
                },
                "urls": [
                    {
                        **copied(UrlChanges, row),
                        "weekdays": dict(zip(DAYS, week.sum(1).astype(int).tolist(), strict=True)),
                        "hours": week.sum(0).astype(int).tolist(),
                    }
                    for row in rows
                    for week in [sums(row["hours"], "changes").reshape(len(DAYS), DAY_HOURS)]
                ],
                "changes": matrix(sums(hours, "changes")),
                "update_size": matrix(sums(hours, "update_size")),
                "diff_size": matrix(sums(hours, "diff_size")),
            }
        )
    return {"since": since, "changes": changes}
