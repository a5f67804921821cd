"""Reports on sites: the rows of the board, runs in progress, and what a site's page shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.items import FAILED, Kind, Outcome
from crawler.reports.estimates import SiteEstimates
from crawler.reports.site_history import VisitCounts
from crawler.storage import leases, site_queries, sites
from crawler.storage.client import Database
from crawler.storage.site_queries import SiteState
from crawler.storage.sites import Marks, Site
from crawler.utils.shapes import copied

DAY = timedelta(days=1)
WEEK_DAYS = 7
MAX_TAGS, MAX_TAG_CHARACTERS = 20, 40
MAX_TITLE = 100
SiteKind = Literal["site", "feeds", "cells"]
# By the first kind of its targets.
SITE_KINDS: Mapping[Kind | None, SiteKind] = {Kind.CELL: "cells", Kind.FEED: "feeds"}


class DayVisits(TypedDict):
    """Visits of a site on a day, in the zone of the site."""

    day: date
    """The day."""
    visits: int
    """Number of visits."""
    new: int
    """Number of new pages."""
    changed: int
    """Number of changes."""
    gone: int
    """Number of pages that were found gone for the first time."""
    errors: int
    """Number of visits that failed or were blocked."""


class SiteFigures(TypedDict):
    """Numbers of a site, which take longer to compute with more targets and visits."""

    at: datetime
    """Time at which they were read."""
    targets: int
    """Stored targets, including gone ones and aliases."""
    due: int
    """Targets that are due."""
    overdue: int
    """Targets that have been due for more than an hour."""
    errors: int
    """Targets whose last visit failed."""
    requests_last_day: int
    """Requests in the last 24 hours, in full hours."""
    today: DayVisits
    """Visits since midnight in the zone of the site."""
    week: list[DayVisits]
    """Visits on the last seven days, today last."""


class BoardSite(TypedDict):
    """The state of a site."""

    name: str
    """Name of the site."""
    title: str
    """Name that people see: one that users gave it, or else `name`."""
    kind: SiteKind
    """`feeds` or `cells` for the spiders of feeds and cells, else `site`."""
    tags: list[str]
    """Tags that users gave it."""
    paused_at: datetime | None
    """Time since which the service starts no runs of the site; null: not paused."""
    is_running: bool
    """Whether a run is in progress."""
    last_run: datetime | None
    """Start of the last run; null before the first."""
    last_reason: str | None
    """How the last run ended; null while it is in progress and before the first."""
    last_error: str | None
    """Why the last run failed; null if it did not."""
    last_visits: int | None
    """Number of visits of the last run; null if it has not ended normally."""
    next_visit: datetime | None
    """Earliest planned visit, not before the end of its host's pause; null if none is planned."""
    planned_per_day: float | None
    """Requests per day that the plan needs; null without a plan."""
    freshness: float | None
    """Estimated share of copies that are current; null if unknown."""
    expected_freshness: float | None
    """Share of time that copies are current, as the plan expects; null without a plan."""
    estimated_at: datetime | None
    """Time at which `planned_per_day` and both kinds of freshness were read; null before."""
    open_alarms: int
    """Number of open alarms, as `scrapy silence` lists them."""
    figures: SiteFigures | None
    """Numbers of targets and visits; null while they are being computed for the first time."""


class RunningSite(TypedDict):
    """A run in progress."""

    name: str
    """Name of the site."""
    started: datetime
    """Start of the run."""
    visits: int
    """Number of stored visits so far."""
    new: int
    """Number of new pages so far."""
    changed: int
    """Number of changes so far."""
    errors: int
    """Number of failed visits so far."""
    due: int
    """Number of targets that are still due, at most 100,000."""


class SiteMarks(TypedDict):
    """What users set for a site."""

    name: str
    """Name of the site."""
    paused_at: datetime | None
    """Time since which the service starts no runs of the site; null: not paused."""
    tags: list[str]
    """Tags of the site."""
    title: str
    """Name that people see: one that users gave it, or else `name`."""


@dataclass(frozen=True, slots=True)
class SiteFilter:
    """Conditions on the sites of the board; None: all. text: part of a name or of a tag."""

    text: str | None = None
    tag: str | None = None

    def matches(self, name: str, marks: Marks) -> bool:
        """Return whether a site fulfills the conditions."""
        if self.tag is not None and self.tag not in marks.tags:
            return False
        text = (self.text or "").casefold()
        return any(text in value.casefold() for value in (name, marks.title, *marks.tags))


async def figures_of(db: Database, name: str, now: datetime, counts: VisitCounts) -> SiteFigures:
    """Count the targets and the last week's visits of a site. counts: kept between calls."""
    (site,) = await sites.of_spiders(db, [name])
    zone = site.zone
    today = now.astimezone(zone).date()
    numbers = await site_queries.target_numbers(db, name, now)
    hours = await counts.by_hour(db, site, now - (WEEK_DAYS + 1) * DAY, now)
    days = [today - offset * DAY for offset in range(WEEK_DAYS - 1, -1, -1)]
    by_day: dict[date, DayVisits] = {
        day: {"day": day, "visits": 0, "new": 0, "changed": 0, "gone": 0, "errors": 0}
        for day in days
    }
    for hour, each in hours.items():
        if (day := by_day.get(hour.astimezone(zone).date())) is not None:
            day["visits"] += each.visits
            day["new"] += each.new
            day["changed"] += each.changed
            day["gone"] += each.gone
            day["errors"] += each.errors
    requests = sum(each.requests for hour, each in hours.items() if hour >= now - DAY)
    week = list(by_day.values())
    return {
        **copied(SiteFigures, numbers),
        "at": now,
        "requests_last_day": requests,
        "today": week[-1],
        "week": week,
    }


def board_site(
    state: SiteState,
    figures: SiteFigures | None,
    read: SiteEstimates | None,
    open_alarms: int,
    *,
    is_running: bool,
) -> BoardSite:
    """Return the row of a site.

    read:        estimates of all sites; None if they are being computed
    open_alarms: number of open alarms of the site
    """
    estimates = read.of_sites.get(state.name) if read else None
    reason = state.reason
    if reason is None and state.started is not None and not is_running:
        # Nobody holds the lease of the run: its process has ended without storing the end.
        reason = "interrupted"
    return {
        "name": state.name,
        "title": state.marks.title or state.name,
        "kind": SITE_KINDS.get(state.kind, "site"),
        "tags": list(state.marks.tags),
        "paused_at": state.marks.paused_at,
        "is_running": is_running,
        "last_run": state.started,
        "last_reason": reason,
        "last_error": state.error,
        "last_visits": state.counts.get("visits", 0) if state.finished else None,
        "next_visit": state.next_visit,
        "planned_per_day": _none_if_nan(estimates.requests_per_day) if estimates else None,
        "freshness": _none_if_nan(estimates.present_freshness) if estimates else None,
        "expected_freshness": _none_if_nan(estimates.expected_freshness) if estimates else None,
        "estimated_at": read.at if read else None,
        "open_alarms": open_alarms,
        "figures": figures,
    }


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


async def running_names(db: Database) -> dict[str, datetime]:
    """Return the sites with a run in progress, and the times when the runs took the lease."""
    holders = await leases.active(db, leases.CRAWL)
    return {
        lease.removeprefix(leases.CRAWL): min(holder.since for holder in each)
        for lease, each in holders.items()
    }


async def progress_of(db: Database, name: str, since: datetime, now: datetime) -> RunningSite:
    """Return the progress of a run. since: time at which it took the lease."""
    state = await site_queries.state_of(db, name)
    # The run's document is stored after the lease was taken.
    is_begun = state.started is not None and state.finished is None
    started = state.started if is_begun and state.started is not None else since
    counts = await site_queries.visits_of_run(db, name, started)
    return {
        "name": name,
        "started": started,
        "visits": sum(counts.values()),
        "new": counts.get(Outcome.NEW, 0),
        "changed": counts.get(Outcome.CHANGED, 0),
        "errors": sum(counts.get(outcome, 0) for outcome in FAILED),
        "due": await site_queries.count_waiting(db, name, now),
    }


async def marks_of(db: Database, name: str) -> SiteMarks:
    """Return what users set for a site."""
    marks = (await sites.marks(db)).get(name, site_queries.NO_MARKS)
    return {
        "name": name, "paused_at": marks.paused_at, "tags": list(marks.tags),
        "title": marks.title or name,
    }  # fmt: skip


def checked_title(text: str) -> str:
    """Return a name that people see, without extra spaces; raises ConfigError."""
    title = " ".join(text.split())
    if len(title) > MAX_TITLE or not title.isprintable():
        raise ConfigError(f"title: at most {MAX_TITLE} printable characters")
    return title


def tags_of(text: str) -> list[str]:
    """Parse tags that are separated by commas; raises ConfigError."""
    return checked_tags(text.split(","))


def checked_tags(texts: Sequence[str]) -> list[str]:
    """Return tags without duplicates and extra spaces; raises ConfigError."""
    tags = [tag for tag in dict.fromkeys(" ".join(text.split()) for text in texts) if tag]
    if len(tags) > MAX_TAGS:
        raise ConfigError(f"{len(tags)} tags are too many. Use at most {MAX_TAGS}")
    for tag in tags:
        if len(tag) > MAX_TAG_CHARACTERS or not tag.isprintable() or "," in tag:
            raise ConfigError(
                f"not a tag: {tag[:MAX_TAG_CHARACTERS]!r}. Use at most {MAX_TAG_CHARACTERS} "
                "printable characters, and commas between tags"
            )
    return tags


class FailureExample(TypedDict):
    """A target that failed for some cause."""

    url: str
    """URL of the target."""
    at: datetime | None
    """Time of its last visit."""
    status: int | None
    """HTTP status; null without a response."""


class FailureGroup(TypedDict):
    """Targets whose last visits failed for the same cause."""

    reason: str
    """The cause."""
    targets: int
    """Number of targets."""
    first: FailureExample
    """The target that failed first."""
    last: FailureExample
    """The target that failed last."""


async def failures_of(db: Database, name: str) -> list[FailureGroup]:
    """Return the failing targets of a site by cause, most targets first."""
    return [
        {
            "reason": row["reason"] or "unknown",
            "targets": row["targets"],
            "first": _example(row["first"]),
            "last": _example(row["last"]),
        }
        for row in await site_queries.failures_of(db, name)
    ]


def _example(row: dict[str, Any]) -> FailureExample:
    return copied(FailureExample, row)


async def known_site(db: Database, name: str) -> Site:
    """Return the settings of a site; raises ConfigError if nothing is stored for it."""
    state = await site_queries.state_of(db, name)
    is_crawled = state.kind is not None or state.started is not None
    if not is_crawled and not await sites.is_stored(db, name):
        raise ConfigError(f"site not found: {name!r}")
    (site,) = await sites.of_spiders(db, [name])
    return site
