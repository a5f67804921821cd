"""Reports on a site's past: numbers by hour, the week, freshness by day, and single visits.

Past hours are counted once and cached. A site with a million visits a week takes seconds to count,
so the board counts only the last hours again. The first count goes day by day, with pauses for
requests.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import numpy as np
from typing_extensions import TypedDict

from crawler.items import FAILED, Outcome
from crawler.planning.report import requests, sums
from crawler.reports.items import described
from crawler.storage import change_events, site_queries, visits
from crawler.storage.client import Database, Document
from crawler.storage.paging import PART, Key, resting
from crawler.storage.sites import Site
from crawler.utils.shapes import copied
from crawler.utils.urls import target_id
from schedules.history import CHANGE, Floats

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
# A visit has the time of its response, but is stored later; after an outage, much later.
SETTLING = HOUR
# Everything is counted again after this time, because visits are removed with their targets.
MAX_AGE = timedelta(hours=6)
# Maximum number of sites whose hours are cached, with about 60 kB each.
MAX_SITES = 150
# Maximum number of cached sites, with 56 days of 168 numbers of 4 bytes, 45 kB each.
MAX_CHANGE_SITES = 50
# Weeks of changes in the pattern of the week.
CHANGES_WEEKS = 8
FRESHNESS_DAYS = 28
# Targets to estimate the freshness from: its standard error is at most 0.02.
SAMPLE_SIZE = 1000
MINUTE_SECONDS = 60
DAY_HOURS = 24
# Levels of the tree of categories.
MAX_LEVELS = 6


@dataclass(frozen=True, slots=True)
class HourVisits:
    """Numbers of visits in an hour; the names are those of `DayVisits`."""

    visits: int = 0
    new: int = 0
    changed: int = 0
    gone: int = 0
    errors: int = 0
    requests: int = 0

    def plus(self, row: Document) -> HourVisits:
        """Return the numbers with those of a row of `site_queries.visits_by_hour`."""
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
    """Hours of a site, all before `until`.

    at:      time of the first count
    minutes: how many minutes after the hours of UTC the hours begin
    """

    hours: Mapping[datetime, HourVisits]
    since: datetime
    until: datetime
    at: datetime
    minutes: int


@dataclass(frozen=True, slots=True)
class _Weeks:
    """Changes by hour of the local week, of each day (UTC) by its start. at: of the first count."""

    days: Mapping[datetime, Floats]
    zone: str
    at: datetime


class ChangeCounts:
    """Counts changes, and keeps the numbers of the last MAX_CHANGE_SITES sites requested."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Weeks] = OrderedDict()

    async def by_hour_of_week(
        self, db: Database, site: Site, since: datetime, now: datetime
    ) -> Floats:
        """Return the (168,) changes of a site by hour of its local week, from Monday 00:00.

        since: start of a day (UTC)

        For a site with many changes, each day is a separate query, followed by a pause, and past
        days are not counted again for MAX_AGE.
        """
        kept = self._kept.pop(site.name, None)
        if await change_events.count(db, since, PART, site.name) < PART:
            return sums(await visits.by_hour(db, site.name, site.zone, since), "changes")
        if kept is None or kept.zone != site.timezone or not now - MAX_AGE <= kept.at <= now:
            kept = _Weeks({}, site.timezone, now)
        days: dict[datetime, Floats] = {}
        day = since
        while day < now:
            if (week := kept.days.get(day)) is None:
                read = visits.by_hour(db, site.name, site.zone, day, day + DAY)
                week = sums(await resting(read), "changes").astype(np.float32)
            days[day] = week
            day += DAY
        closed = {day: week for day, week in days.items() if day + DAY <= now - SETTLING}
        self._kept[site.name] = replace(kept, days=closed)
        while len(self._kept) > MAX_CHANGE_SITES:
            self._kept.popitem(last=False)
        total: Floats = np.sum(list(days.values()), axis=0, dtype=np.float64)
        return total


class VisitCounts:
    """Counts visits, and keeps the numbers of the last MAX_SITES sites requested."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Counted] = OrderedDict()

    async def by_hour(
        self, db: Database, site: Site, since: datetime, now: datetime
    ) -> dict[datetime, HourVisits]:
        """Return the visits of a site by the start of its local hour, for hours with visits.

        Local hours, because in zones such as Asia/Kolkata (+5:30) a day begins at 18:30 UTC.

        since: `now` minus a constant time; the hour that includes it is counted as a whole
        """
        # How many minutes after the hours of UTC those of the zone begin, 0 to 59.
        offset = now.astimezone(site.zone).utcoffset() or timedelta()
        name, minutes = site.name, round(-offset / timedelta(minutes=1)) % 60
        start = _hour_of(since, minutes)
        kept = self._kept.pop(name, None)
        if (
            kept is None
            or kept.minutes != minutes
            or now - kept.at > MAX_AGE
            or not kept.since <= start <= kept.until <= now
        ):
            kept = _Counted({}, start, start, now, minutes)
        hours = {hour: each for hour, each in kept.hours.items() if hour >= start}
        begin = kept.until
        while begin < now:
            end = begin + DAY if begin + DAY < now else None
            for row in await resting(site_queries.visits_by_hour(db, name, minutes, begin, end)):
                hours[row["hour"]] = hours.get(row["hour"], HourVisits()).plus(row)
            if end is None:
                break
            begin = end
        until = max(start, _hour_of(now - SETTLING, minutes))
        closed = {hour: each for hour, each in hours.items() if hour < until}
        self._kept[name] = replace(kept, hours=closed, since=start, until=until)
        while len(self._kept) > MAX_SITES:
            self._kept.popitem(last=False)
        return hours


def _hour_of(at: datetime, minutes: int) -> datetime:
    """Return the start of the hour, where hours begin some minutes after those of UTC."""
    shift = timedelta(minutes=minutes)
    return (at - shift).replace(minute=0, second=0, microsecond=0) + shift


class CategoryNode(TypedDict):
    """A category, or a common beginning of categories."""

    name: str
    """Last part of the category, such as `poetry` of `books/poetry`."""
    category: str | None
    """Category to filter by; null if no target has exactly this one."""
    level: int
    """Number of parts before it."""
    targets: int
    """Targets in the category, and in those that begin with it."""


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
    profile = await site_queries.profile_of(db, site.name)
    week: WeekPattern = {
        "timezone": site.timezone,
        "since": since,
        "changes": changes.tolist(),
        "visits": np.round(requests(profile.slots, profile.even), 3).tolist(),
    }
    return SiteProfile(category_tree(profile.categories), week)


def category_tree(counts: Mapping[str, int]) -> list[CategoryNode]:
    """Return categories as a tree, parents first; `/` and `>` separate the parts of a category.

    counts: targets by category. A target in several categories counts in each of them.
    """
    nodes: dict[tuple[str, ...], CategoryNode] = {}
    for category, n in counts.items():
        parts = [part.strip() for part in category.replace(">", "/").split("/", MAX_LEVELS - 1)]
        path = tuple(part for part in parts if part) or (category,)
        for level in range(len(path)):
            node = nodes.setdefault(
                path[: level + 1],
                {"name": path[level], "category": None, "level": level, "targets": 0},
            )
            node["targets"] += n
        nodes[path]["category"] = category
    return [nodes[path] for path in sorted(nodes)]


async def freshness_by_day(db: Database, site: Site, now: datetime) -> list[DayFreshness]:
    """Estimate a site's freshness at noon of the last days from the changes found since.

    A change is assumed to be equally likely at any time between two observations. The copy was
    outdated from the change until the second observation.
    """
    histories = await site_queries.sample_histories(db, site.name, SAMPLE_SIZE)
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


class SiteVisit(TypedDict):
    """A visit of a site."""

    at: datetime
    """Time of the response."""
    id: str
    """Id of the target in URLs, such as `/api/v1/targets/ID`."""
    url: str
    """URL of the target, or `cell:NAME`."""
    name: str
    """Name of an item: its title, or what its URL says of it."""
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
    part = await site_queries.page_of_visits(
        db, site.name, times, place, limit, only_events=wanted.only_events
    )
    names = await described(db, [(site.name, row["target"]) for row in part.rows])
    rows: list[SiteVisit] = [
        {
            **copied(SiteVisit, row),
            "id": target_id(f"{site.name} {row['target']}"),
            "url": row["target"],
            "name": name,
        }
        for row, (name, _) in zip(part.rows, names, strict=True)
    ]
    return SiteVisits(rows, part.last)
