"""Reports on a site's past: changes and visits by hour, single visits, and freshness by day.

A site with a million visits a week takes seconds to count. `VisitCounts` therefore keeps the
numbers of hours that are over, and counts only the last hours again. The first count goes day by
day, with pauses for requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import numpy as np
from typing_extensions import TypedDict

from crawler.items import Outcome
from crawler.planning.report import requests, sums
from crawler.storage import overview, plans, site_targets, visits
from crawler.storage.client import Database, Document
from crawler.storage.paging import Key
from crawler.storage.sites import Site
from schedules.history import CHANGE, Floats

# Changes of this time count for the week.
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


async def week_pattern(db: Database, site: Site, now: datetime) -> WeekPattern:
    """Return when a site changed in the last weeks, and when its plan visits it."""
    since = now - timedelta(weeks=CHANGES_WEEKS)
    changes = await visits.by_hour(db, site.name, site.zone, since)
    slots = await plans.slots(db, [site.name])
    even = await plans.even(db, [site.name])
    planned = requests(slots, even)
    return {
        "timezone": site.timezone,
        "since": since,
        "changes": sums(changes, "changes").tolist(),
        "visits": np.round(planned, 3).tolist(),
    }


async def freshness_by_day(db: Database, site: Site, now: datetime) -> list[DayFreshness]:
    """Estimate a site's freshness at noon of the last days from the changes found since.

    A change happened at any time between two observations with equal probability, and the copy was
    outdated from then on until the second one.
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
    """Return the number of current copies, and of known ones, at each time."""
    fresh, known = np.zeros(len(minutes)), np.zeros(len(minutes), int)
    for history in histories:
        since, until = (history[name].timestamp() / MINUTE_SECONDS for name in ("since", "until"))
        is_known = (minutes >= since) & (minutes <= until)
        changes = np.frombuffer(history["changes"], CHANGE)
        fresh_share = _probability_fresh(changes["after"] + 0.0, changes["by"] + 0.0, minutes)
        known += is_known
        fresh += np.where(is_known, fresh_share, 0.0)
    return list(zip(fresh.tolist(), known.tolist(), strict=True))


def _probability_fresh(before: Floats, found: Floats, minutes: Floats) -> Floats:
    """Return the probability that a copy is current at each time.

    before, found: (n,) observations before and after each change, in minutes
    """
    if not len(before):
        return np.ones(len(minutes))
    # The last change whose earlier observation was before this time.
    at = np.maximum(np.searchsorted(before, minutes, side="right") - 1, 0)
    spans = np.maximum(found[at] - before[at], 1e-9)
    passed = (minutes - before[at]) / spans
    result: Floats = np.where((passed < 0) | (passed >= 1), 1.0, 1 - passed)
    return result


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


DAY, HOUR = timedelta(days=1), timedelta(hours=1)
FAILED = (Outcome.ERROR, Outcome.BLOCKED)
# The time of a visit is that of the response, and it is stored later, after an outage much later.
SETTLING = HOUR
# Everything is counted again after this time, because visits are removed with their targets.
MAX_AGE = timedelta(hours=6)
# Sites whose hours are kept, with about 60 kB each.
MAX_SITES = 150


@dataclass(frozen=True, slots=True)
class HourVisits:
    """Numbers of visits in an hour; the names are those of `DayVisits`. requests: of the visits."""

    visits: int = 0
    new: int = 0
    changed: int = 0
    gone: int = 0
    errors: int = 0
    requests: int = 0

    def plus(self, row: Document) -> HourVisits:
        """Return the numbers with those of a row of `overview.visits_by_hour`."""
        n, outcome = row["n"], row["outcome"]
        return HourVisits(
            visits=self.visits + n,
            new=self.new + n * (outcome == Outcome.NEW),
            changed=self.changed + n * (outcome == Outcome.CHANGED),
            gone=self.gone + n * (outcome == Outcome.GONE and row["is_event"]),
            errors=self.errors + n * (outcome in FAILED),
            requests=self.requests + n * row["is_request"],
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Hours of a site (UTC), all before `until`. at: time of the first count."""

    hours: Mapping[datetime, HourVisits]
    since: datetime
    until: datetime
    at: datetime


class VisitCounts:
    """Counts visits, and keeps the numbers of the MAX_SITES sites that were last asked for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Counted] = OrderedDict()

    async def by_hour(
        self, db: Database, name: str, since: datetime, now: datetime
    ) -> dict[datetime, HourVisits]:
        """Return the visits of a site by the start of their hour (UTC); hours without are left out.

        since: `now` minus a constant time; the hour that includes it is counted as a whole
        """
        start = _hour_of(since)
        kept = self._kept.pop(name, None)
        if kept is None or now - kept.at > MAX_AGE or not kept.since <= start <= kept.until <= now:
            kept = _Counted({}, start, start, now)
        hours = {hour: each for hour, each in kept.hours.items() if hour >= start}
        begin = kept.until
        while begin < now:
            end = begin + DAY if begin + DAY < now else None
            started = time.monotonic()
            for row in await overview.visits_by_hour(db, name, begin, end):
                hours[row["hour"]] = hours.get(row["hour"], HourVisits()).plus(row)
            if end is None:
                break
            await asyncio.sleep(time.monotonic() - started)
            begin = end
        until = max(start, _hour_of(now - SETTLING))
        closed = {hour: each for hour, each in hours.items() if hour < until}
        self._kept[name] = replace(kept, hours=closed, since=start, until=until)
        while len(self._kept) > MAX_SITES:
            self._kept.popitem(last=False)
        return hours


def _hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
