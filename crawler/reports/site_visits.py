"""Report on the visits of a site, newest first, of all hours or of one hour of the week."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from typing_extensions import TypedDict

from crawler.reports.site_history import CHANGES_WEEKS
from crawler.storage import overview
from crawler.storage.client import Database
from crawler.storage.paging import Key
from crawler.storage.sites import Site

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
    """Return visits of the last weeks, newest first. before: None: from the newest on."""
    times = (now - timedelta(weeks=CHANGES_WEEKS), before or now + timedelta(hours=1))
    hour = wanted.hour_of_week
    place = None if hour is None else (hour, site.zone)
    found = await overview.page_of_visits(
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
        for row in found.rows
    ]
    return SiteVisits(visits, None if found.before is None else (found.before,))
