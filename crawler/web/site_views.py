"""What the pages of sites show: reports of `crawler.reports`, with numbers of `figures`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import FastAPI
from typing_extensions import TypedDict

from crawler.reports import sites as reports
from crawler.reports.estimates import read_estimates
from crawler.reports.site_history import DayFreshness, WeekPattern, freshness_by_day, site_profile
from crawler.reports.sites import BoardSite, CategoryNode, FailureGroup, RunningSite, SiteFilter
from crawler.reports.visit_counts import ChangeCounts, VisitCounts
from crawler.storage import alarms, leases, overview, site_targets, sites
from crawler.storage.overview import SiteState
from crawler.storage.paging import Key
from crawler.storage.sites import Site
from crawler.storage.store import Store
from crawler.utils.time import Clock
from crawler.web.commands import Crawl, Crawls
from crawler.web.figures import Figures

# Time for which numbers are shown again without computing them, so that a page is consistent.
# Categories and patterns change little; a run changes them before.
PATTERN_SECONDS, ESTIMATE_SECONDS = 600.0, 30.0


@dataclass(frozen=True, slots=True)
class Board:
    """A part of the sites.

    tags:   of all sites
    last:   key after which the next part begins; None: no more sites
    number: of all sites, whether they fulfill the conditions or not
    """

    sites: list[BoardSite]
    tags: list[str]
    last: Key | None
    number: int


async def board(
    app: FastAPI, store: Store, now: datetime, wanted: SiteFilter, limit: int, after: str | None
) -> Board:
    """Return the sites that fulfill conditions, by name. after: name of the last one before."""
    marks = await sites.marks(store.db)
    names = await overview.site_names(store.db)
    none = overview.NO_MARKS
    chosen = [
        name
        for name in names
        if (after is None or name > after) and wanted.matches(name, marks.get(name, none).tags)
    ]
    rows = await board_sites(app, store, now, chosen[:limit])
    tags = {tag for each in marks.values() for tag in each.tags}
    last = (chosen[limit - 1],) if len(chosen) > limit else None
    return Board(rows, sorted(tags, key=str.casefold), last, len(names))


async def board_sites(
    app: FastAPI, store: Store, now: datetime, names: Sequence[str]
) -> list[BoardSite]:
    """Return the rows of some sites, in their order."""
    figures: Figures = app.state.figures
    counts: VisitCounts = app.state.visit_counts
    states = await overview.states_of(store.db, list(names))
    running = await reports.running_names(store.db)
    open_alarms = await alarms.count_open(store.db, names)

    async def of(state: SiteState) -> Any:
        # The page is loaded again at the end of a run, and shows the result.
        version, name = (state.started, state.finished), state.name
        return await figures.get(
            ("site", name), lambda: reports.figures_of(store.db, name, now, counts), version=version
        )

    async def estimated() -> Any:
        return await figures.get(
            "estimates", lambda: read_estimates(store.db, now), ESTIMATE_SECONDS
        )

    estimates, *of_sites = await asyncio.gather(estimated(), *map(of, states))
    return [
        reports.board_site(
            state,
            numbers,
            estimates,
            open_alarms.get(state.name, 0),
            is_running=state.name in running,
        )
        for state, numbers in zip(states, of_sites, strict=True)
    ]


class SiteDetails(TypedDict):
    """What a site's page shows besides its targets; null: being computed for the first time."""

    site: BoardSite
    """State of the site."""
    timezone: str
    """IANA time zone of the site."""
    kinds: dict[str, int] | None
    """Number of targets by kind."""
    categories: list[CategoryNode] | None
    """Categories as a tree, parents first."""
    failures: list[FailureGroup] | None
    """Failing targets by cause."""
    week: WeekPattern | None
    """Changes and planned visits by hour of the week."""
    freshness: list[DayFreshness] | None
    """Estimated freshness of the last days."""


async def details(app: FastAPI, store: Store, now: datetime, site: Site) -> SiteDetails:
    """Return the details of a site."""
    figures: Figures = app.state.figures
    db, name = store.db, site.name

    changes: ChangeCounts = app.state.change_counts
    state = await overview.state_of(db, name)
    version = state.started, state.finished

    async def of_run(key: str, compute: Callable[[], Awaitable[Any]]) -> Any:
        return await figures.get((key, name), compute, PATTERN_SECONDS, version)

    # Together, because each waits a moment for its number.
    (row,), kinds, failures, profile, freshness = await asyncio.gather(
        board_sites(app, store, now, [name]),
        figures.get(("kinds", name), lambda: site_targets.kinds_of(db, name)),
        figures.get(("failures", name), lambda: reports.failures_of(db, name)),
        of_run("profile", lambda: site_profile(db, site, now, changes)),
        of_run("freshness", lambda: freshness_by_day(db, site, now)),
    )
    return {
        "site": row,
        "timezone": site.timezone,
        "kinds": kinds,
        "categories": None if profile is None else profile.categories,
        "failures": failures,
        "week": None if profile is None else profile.week,
        "freshness": freshness,
    }


async def runs_in_progress(app: FastAPI, store: Store) -> list[RunningSite]:
    """Return the runs in progress on any machine, by name of the site."""
    figures: Figures = app.state.figures
    now = Clock(store.config.clock_offset_hours).now()
    running = await reports.running_names(store.db)

    async def of(name: str, since: datetime) -> RunningSite | None:
        return await figures.get(
            ("run", name, since), lambda: reports.progress_of(store.db, name, since, now), 0.5
        )

    runs = await asyncio.gather(*(of(name, since) for name, since in sorted(running.items())))
    return [run for run in runs if run is not None]


async def start_run(app: FastAPI, store: Store, now: datetime, name: str, by: str) -> Crawl:
    """Start a crawl of a site; raises Busy if one is in progress, and ConfigError."""
    crawls: Crawls = app.state.crawls
    await reports.known_site(store.db, name)
    busy = f"{name} is already being crawled"
    await leases.refuse_second(store.db, f"{leases.CRAWL}{name}", busy, shares=False)
    return crawls.start(name, by, now)
