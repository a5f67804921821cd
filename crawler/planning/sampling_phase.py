"""Plan a sampling phase: check its options, select its pages, and report its progress."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from bson import ObjectId
from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.storage import histories, sampling_phases, sites
from crawler.storage.client import Database, Document
from crawler.storage.histories import Watched
from crawler.storage.sampling_phases import Phase
from crawler.storage.sites import Site
from crawler.utils.shapes import copied
from crawler.utils.text import period, plain, span
from schedules import population
from schedules.history import Ints
from schedules.schedule import WEEK_HOURS

WEEK_DAYS = 7
HOUR_SECONDS = 3600
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MAX_PHASE_WEEKS = 52
MIN_POLL_HOURS, MAX_POLL_HOURS = 1 / 60, 24.0
DEFAULT_WEEKS, DEFAULT_POLL_HOURS = 3.0, 1 / 3
# Maximum share of the time between two polls; the rest is left for other due targets.
SHARE_OF_TIME = 0.5
BUDGET = "the budget"


class SampledPage(TypedDict):
    """A page of the sample."""

    url: str
    """URL of the page."""
    kind: str
    """Kind of target."""
    categories: list[str]
    """Categories of the page."""
    rotation: int
    """Rotation in which the page is polled, from 0."""
    polls: int
    """Number of polls."""
    changes: int
    """Number of changes found."""


class PhaseReport(TypedDict):
    """A sampling phase."""

    spider: str
    """Name of the spider."""
    at: datetime
    """Start of the phase."""
    until: datetime
    """Planned end of the phase."""
    ended: datetime | None
    """End of the phase; null while it is running."""
    learning: bool
    """Whether the phase is running."""
    begun: bool
    """Whether this command started or changed the phase."""
    weeks: float
    """Duration in weeks."""
    every: str
    """Interval of polls in words."""
    every_hours: float
    """Interval of polls in hours."""
    budget_per_day: float
    """Maximum polls per day."""
    sample: int | None
    """Requested number of pages; null: as many as the budget allows."""
    pages: int
    """Number of pages."""
    rotations: int
    """Number of groups of pages that are polled in turn."""
    rotation: int | None
    """Current rotation, from 0; null after the phase."""
    days_left: float | None
    """Days until the planned end; null after the phase."""
    polls: int
    """Number of polls."""
    polls_due: int | None
    """Number of polls that were due so far; null after the phase."""
    changes: int
    """Number of changes found."""
    urls: list[SampledPage] | None
    """Pages of the sample; null after the phase."""
    notes: list[str]
    """Notes on what the sample does not cover."""


@dataclass(frozen=True, slots=True)
class PhaseOptions:
    """Hold the options of a sampling phase; None where an option is not given.

    sample: number of pages, polled in rotation if necessary; None: as many as can be polled
            concurrently
    """

    weeks: float | None = None
    every_hours: float | None = None
    sample: int | None = None
    requests_per_day: float | None = None

    def check(self) -> None:
        """Raise ConfigError for options that are invalid for every spider."""
        if self.weeks is not None and not 0 < self.weeks <= MAX_PHASE_WEEKS:
            raise ConfigError(
                f"--weeks {self.weeks:g} is out of range. "
                f"Use more than 0 and at most {MAX_PHASE_WEEKS}"
            )
        if self.sample is not None and self.sample < 1:
            raise ConfigError(f"--sample {self.sample} is too small. Use 1 or more")
        every = self.every_hours
        if every is not None and not MIN_POLL_HOURS <= every <= MAX_POLL_HOURS:
            raise ConfigError(f"--every {period(every)} is out of range. Use one minute to one day")

    def differs_from(self, phase: Phase) -> bool:
        """Return whether an option is given that differs from a phase."""
        options = ((name, getattr(self, name)) for name in PhaseOptions.__dataclass_fields__)
        return any(value is not None and value != getattr(phase, name) for name, value in options)

    def over(self, phase: Phase) -> PhaseOptions:
        """Return these options, completed from a phase."""
        return replace(
            self,
            weeks=self.weeks or phase.weeks,
            every_hours=self.every_hours or phase.every_hours,
            sample=self.sample or phase.sample,
            requests_per_day=self.requests_per_day or phase.requests_per_day,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """Hold a phase that has not begun: pages with rotation and offset, notes for the user."""

    phase: Phase
    places: list[tuple[str, int, float]]
    notes: list[str]


async def choose(db: Database, spider: str, options: PhaseOptions, now: datetime) -> Choice:
    """Return the phase for these options. Raises ConfigError if it is impossible."""
    watched = await histories.read(db, now, [spider])
    rows = np.flatnonzero(watched.refreshed > 0)
    if not len(rows):
        raise ConfigError(f"no page of {spider!r} has been visited yet. Run scrapy crawl first")
    site = (await sites.of_spiders(db, [spider]))[0]
    pace = await sampling_phases.seconds_per_visit(db, spider)
    every, weeks = options.every_hours or DEFAULT_POLL_HOURS, options.weeks or DEFAULT_WEEKS
    per_day = options.requests_per_day
    polls = population.polls_per_day(every)
    if per_day is None:
        raise ConfigError(
            f"--budget is required. Polling one page every {period(every)} takes {polls}/day"
        )
    if per_day < polls:
        longer = f", or --every {math.ceil(24 * 60 / per_day)}m" if per_day >= 1 else ""
        raise ConfigError(
            f"budget {plain(per_day)}/day is too small to poll one page: every {period(every)} "
            f"takes {polls}/day. Use --budget {polls}/day or more{longer}"
        )
    at_once, limit = _max_at_once(per_day, every, site, pace)
    n = min(options.sample or at_once, len(rows))
    rotations, days = -(-n // at_once), int(weeks * WEEK_DAYS)
    if rotations > max(days, 1):
        raise ConfigError(
            f"--sample {n} is too large: each page's rotation would be shorter than a day. "
            f"Use --sample {at_once * max(days, 1)} or less, or longer --weeks"
        )
    until = now + timedelta(weeks=weeks)
    phase = Phase(
        ObjectId(), spider, now, until, weeks, every, per_day, options.sample, n, rotations
    )  # fmt: skip
    keys, stratum = watched.key[rows], strata(watched)[rows]
    chosen = population.joining_order(keys, stratum)[:n]
    missed = len(np.unique(stratum)) - len(np.unique(stratum[chosen]))
    rotation = population.rotations_of(keys[chosen], stratum[chosen], at_once)
    at = population.phases(keys[chosen], rotation, every)
    ids = [watched.ids[row] for row in rows[chosen].tolist()]
    notes = [*_notes(phase, missed, site)]
    if limit != BUDGET and n < len(rows):
        notes.insert(0, f"{limit} allows only {at_once:,} concurrent pages, fewer than the budget")
    return Choice(phase, list(zip(ids, rotation.tolist(), at.tolist(), strict=True)), notes)


def _max_at_once(per_day: float, every: float, site: Site, pace: float | None) -> tuple[int, str]:
    """Return how many pages can be polled concurrently and what limits the number.

    Raises ConfigError if not even one page can be polled.
    """
    limits = [(population.pages_at_once(per_day, every), BUDGET)]
    if site.requests_per_day:
        pages = population.pages_at_once(site.requests_per_day, every)
        limits.append((pages, f"the site's requests_per_day {site.requests_per_day}"))
    if site.requests_per_hour:
        pages = int(site.requests_per_hour * every + population.ALMOST)
        limits.append((pages, f"the site's requests_per_hour {site.requests_per_hour}"))
    if pace:
        pages = int(SHARE_OF_TIME * every * HOUR_SECONDS / pace)
        limits.append((pages, f"politeness (runs took {pace:.2g} s per page)"))
    pages, limit = min(limits)
    if not pages:
        raise ConfigError(f"{limit} leaves no room for a poll every {period(every)}")
    return pages, limit


def _notes(phase: Phase, missed: int, site: Site) -> Iterator[str]:
    """Yield notes on what the sample does not cover. missed: strata without a page."""
    if missed:
        yield (
            f"{missed} of the kinds and categories have no page in the sample; "
            f"--sample {phase.pages + missed} would include all of them, in rotation"
        )
    hours = (phase.until - phase.at) / HOUR / phase.rotations
    if hours < WEEK_HOURS:
        polled = span(hours * HOUR_SECONDS)
        yield f"each page is polled for {polled}, which does not cover all hours of the week"
    closed = WEEK_HOURS - int(site.open_hours.sum())
    if closed:
        yield f"no polls in {closed} hours a week, which visiting_hours and blackout close"


def strata(watched: Watched) -> Ints:
    """Return an (n,) number for each kind and category, in alphabetical order of their names."""
    # Alphabetical rank of the missing name "" and of each name.
    kinds, categories = (
        np.argsort(np.argsort(np.array(["", *names])))
        for names in (watched.kinds, watched.categories)
    )
    place = kinds[watched.kind + 1] * len(categories) + categories[watched.category + 1]
    numbers: Ints = np.unique(place, return_inverse=True)[1]
    return numbers


async def progress(db: Database, phase: Phase, now: datetime) -> PhaseReport:
    """Return the progress of a phase."""
    rows = [row async for row in sampling_phases.polls(db, phase, now)]
    due = 0.0
    for rotation in range(phase.rotations):
        since, until = (
            phase.rotation_begins(rotation),
            min(now, phase.rotation_begins(rotation + 1)),
        )
        pages = sum(row["rotation"] == rotation for row in rows)
        due += pages * max(0.0, (until - since) / HOUR) / phase.every_hours
    report = outcome(phase.document())
    report["learning"] = True
    report["days_left"] = round((phase.until - now) / DAY, 2)
    report["rotation"] = phase.rotation_at(now)
    report["polls"] = sum(row["polls"] for row in rows)
    report["polls_due"] = int(due)
    report["changes"] = sum(row["changes"] for row in rows)
    report["urls"] = [copied(SampledPage, row) for row in rows]
    return report


def outcome(document: Document) -> PhaseReport:
    """Return the result of a finished phase from its document."""
    totals = document.get("totals") or {}
    return {
        **copied(PhaseReport, document),
        "spider": document["samples"],
        "every": period(document["every_hours"]),
        "polls": totals.get("polls", 0),
        "changes": totals.get("changes", 0),
    }
