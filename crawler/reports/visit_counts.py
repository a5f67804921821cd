"""Numbers of visits and changes of sites by hour. Past hours are counted once and cached.

A site with a million visits a week takes seconds to count, so the board counts only the last hours
again. The first count goes day by day, with pauses for requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from crawler.items import Outcome
from crawler.planning.report import sums
from crawler.storage import change_events, overview, visits
from crawler.storage.client import Database, Document
from crawler.storage.paging import PART, resting
from crawler.storage.sites import Site
from schedules.history import Floats

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
FAILED = (Outcome.ERROR, Outcome.BLOCKED)
# A visit has the time of its response, but is stored later; after an outage, much later.
SETTLING = HOUR
# Everything is counted again after this time, because visits are removed with their targets.
MAX_AGE = timedelta(hours=6)
# Maximum number of sites whose hours are cached, with about 60 kB each.
MAX_SITES = 150
# Maximum number of cached sites, with 56 days of 168 numbers of 4 bytes, 45 kB each.
MAX_CHANGE_SITES = 50


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
        name, minutes = site.name, _minutes_of(site.zone, now)
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
            for row in await resting(overview.visits_by_hour(db, name, minutes, begin, end)):
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


def _minutes_of(zone: ZoneInfo, now: datetime) -> int:
    """Return how many minutes after the hours of UTC those of a zone begin, 0 to 59."""
    offset = now.astimezone(zone).utcoffset() or timedelta()
    return round(-offset / timedelta(minutes=1)) % 60
