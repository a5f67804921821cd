"""Reports on a site's past: changes by hour of the week, single visits, and freshness by day."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import numpy as np
from typing_extensions import TypedDict

from crawler.planning.report import requests
from crawler.reports.sites import CategoryNode, category_tree
from crawler.reports.visit_counts import ChangeCounts
from crawler.storage import overview, site_targets
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key
from crawler.storage.sites import Site
from schedules.history import CHANGE, Floats

# Weeks of changes in the pattern of the week.
CHANGES_WEEKS = 8
FRESHNESS_DAYS = 28
# Targets to estimate the freshness from: its standard error is at most 0.02.
SAMPLE_SIZE = 1000
MINUTE_SECONDS = 60


class WeekPattern(TypedDict):
    """Changes and planned visits of a site in each hour of the local week."""

    timezone: str
    """IANA time zone of the site."""
    since: datetime
    """Time from which changes count."""
    changes: list[float]
    """Number of changes by the hour of the visit that found them; 168 hours from Monday 00:00."""
    visits: list[float]
    """Mean number of planned visits in each of the 168 hours."""


class DayFreshness(TypedDict):
    """Freshness of a site at noon of a day."""

    day: date
    """The day."""
    freshness: float | None
    """Estimated share of copies that were current; null if no target was observed."""
    targets: int
    """Number of sampled targets that were observed before and after."""


@dataclass(frozen=True, slots=True)
class SiteProfile:
    """The categories of a site as a tree, parents first, and its week."""

    categories: list[CategoryNode]
    week: WeekPattern


async def site_profile(
    db: Database, site: Site, now: datetime, counts: ChangeCounts
) -> SiteProfile:
    """Return the categories of a site, and its changes and planned visits by hour of the week.

    counts: kept between calls
    """
    since = (now - timedelta(weeks=CHANGES_WEEKS)).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    changes = await counts.by_hour_of_week(db, site, since, now)
    profile = await site_targets.profile_of(db, site.name)
    week: WeekPattern = {
        "timezone": site.timezone,
        "since": since,
        "changes": changes.tolist(),
        "visits": np.round(requests(profile.slots, profile.even), 3).tolist(),
    }
    return SiteProfile(category_tree(profile.categories), week)


async def freshness_by_day(db: Database, site: Site, now: datetime) -> list[DayFreshness]:
    """Estimate a site's freshness at noon of the last days from the changes found since.

    A change is assumed to be equally likely at any time between two observations. The copy was
    outdated from the change until the second observation.
    """
    histories = await site_targets.sample_histories(db, site.name, SAMPLE_SIZE)
    today = now.astimezone(site.zone).date()
    days = [today - timedelta(days=offset) for offset in range(FRESHNESS_DAYS, 0, -1)]
    noons = [datetime(day.year, day.month, day.day, 12, tzinfo=site.zone) for day in days]
    minutes = np.array([noon.timestamp() / MINUTE_SECONDS for noon in noons])
    values = await asyncio.to_thread(_freshness, histories, minutes)
    return [
        {"day": day, "freshness": fresh / n if n else None, "targets": n}
        for day, (fresh, n) in zip(days, values, strict=True)
    ]


def _freshness(histories: Sequence[Document], minutes: Floats) -> list[tuple[float, int]]:
    """Return the expected number of current copies, and the number of known ones, at each time."""
    fresh, counts = np.zeros(len(minutes)), np.zeros(len(minutes), int)
    for history in histories:
        since, until = (history[name].timestamp() / MINUTE_SECONDS for name in ("since", "until"))
        is_known = (minutes >= since) & (minutes <= until)
        changes = np.frombuffer(history["changes"], CHANGE)
        share_fresh = np.ones(len(minutes))
        if len(changes):
            before, by = changes["after"] + 0.0, changes["by"] + 0.0
            # The last change whose earlier observation was before this time.
            at = np.maximum(np.searchsorted(before, minutes, side="right") - 1, 0)
            passed = (minutes - before[at]) / np.maximum(by[at] - before[at], 1e-9)
            share_fresh = np.where((passed < 0) | (passed >= 1), 1.0, 1 - passed)
        counts += is_known
        fresh += np.where(is_known, share_fresh, 0.0)
    return list(zip(fresh.tolist(), counts.tolist(), strict=True))


DAY_HOURS = 24


class SiteVisit(TypedDict):
    """A visit of a site."""

    at: datetime
    """Time of the response."""
    url: str
    """URL of the target, or `cell:NAME`."""
    outcome: str
    """Result of the visit."""
    reason: str | None
    """Cause of an error, a refusal or a redirect."""
    status: int | None
    """HTTP status; null without a response."""
    elapsed_ms: float | None
    """Time to the response in milliseconds."""
    event: bool
    """Whether the page is new, changed, gone for the first time, or back."""
    diff_size: int
    """Characters inserted into and deleted from the content."""


@dataclass(frozen=True, slots=True)
class VisitFilter:
    """Conditions on visits.

    weekday, hour: of the local week, 0 = Monday; None: all
    only_events:   only visits that found a page new, changed, gone or back
    """

    weekday: int | None = None
    hour: int | None = None
    only_events: bool = False

    @property
    def hour_of_week(self) -> int | None:
        """Return the hour of the week from Monday 00:00; None: all hours."""
        if self.weekday is None or self.hour is None:
            return None
        return self.weekday * DAY_HOURS + self.hour


@dataclass(frozen=True, slots=True)
class SiteVisits:
    """A page of visits. last: key after which the next page begins; None: no more visits."""

    visits: list[SiteVisit]
    last: Key | None


async def site_visits(
    db: Database,
    site: Site,
    wanted: VisitFilter,
    now: datetime,
    limit: int,
    before: datetime | None,
) -> SiteVisits:
    """Return visits of the last weeks, newest first.

    before: time of the last visit of the page before; None: first page
    """
    times = (now - timedelta(weeks=CHANGES_WEEKS), before or now + timedelta(hours=1))
    hour = wanted.hour_of_week
    place = None if hour is None else (hour, site.zone)
    part = await overview.page_of_visits(
        db, site.name, times, place, limit, only_events=wanted.only_events
    )
    visits: list[SiteVisit] = [
        {
            "at": row["at"],
            "url": row["target"],
            "outcome": row["outcome"],
            "reason": row.get("reason"),
            "status": row.get("status"),
            "elapsed_ms": row.get("elapsed_ms"),
            "event": bool(row.get("event")),
            "diff_size": row.get("diff_size", 0),
        }
        for row in part.rows
    ]
    return SiteVisits(visits, part.last)
