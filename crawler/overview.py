"""The plans in effect, and the changes found so far, summed up for people."""

from __future__ import annotations

from datetime import datetime

from crawler import weeks
from crawler.storage import changes, timetables
from crawler.storage.client import Database, Document
from crawler.storage.sites import Site
from crawler.utils.text import is_known
from schedules.groups import NAMES
from schedules.history import DAY_HOURS
from schedules.windows import DAYS

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
    week = weeks.requests(slots, even)
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
        "totals": _totals(planned, documents),
        "timetable": weeks.matrix(week),
        "even": {key: sum(row[key] for row in even) for key in ("targets", "per_week")},
    }
    if count <= FEW:
        found["pages"] = await timetables.planned(db, names)
    return found


def _brief(one: Document) -> Document:
    return {name: one.get(name) for name in OF_A_PLAN}


def _totals(groups: list[Document], documents: list[Document]) -> Document:
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
        "delay_hours": _mean([row["delay_hours"] for row in groups], of_groups),
        "requests_per_day": round(per_day, 3),
        "load": round(per_day / n, 5) if n else None,
        "freshness": _mean([row["freshness"] for row in groups], of_groups),
        "age_days": _mean([row["age_days"] for row in groups], of_groups),
        "daily": {
            "requests_per_day": n,
            "freshness": _mean([one["freshness"] for one in daily], weights),
            "age_days": _mean([one["age_days"] for one in daily], weights),
        },
    }


def _mean(values: list[float | None], weights: list[float]) -> float | None:
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w]
    total = sum(w for _, w in known)
    return round(sum(v * w for v, w in known) / total, 5) if total else None


async def of_changes(db: Database, site: Site, since: datetime | None, most: int) -> Document:
    """Changes found at a site by URL (the `most` that changed most), weekday and hour."""
    hours = await changes.by_hour(db, site.name, site.zone, since)
    urls = await changes.by_url(db, site.name, site.zone, since, most)
    for row in urls:
        week = weeks.sums(row.pop("hours"), "changes").reshape(len(DAYS), DAY_HOURS)
        row["weekdays"] = dict(zip(DAYS, week.sum(1).astype(int).tolist(), strict=True))
        row["hours"] = week.sum(0).astype(int).tolist()
    tables = {key: weeks.matrix(weeks.sums(hours, key)) for key in changes.SUMS}
    total = {key: sum(row[key] for row in hours) for key in changes.SUMS}
    return {"spider": site.name, "timezone": site.timezone, "total": total, "urls": urls} | tables
