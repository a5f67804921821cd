"""Data for the pages of sites: reports of `crawler.reports`, with cached numbers.

Numbers that take longer to compute than a page may take are cached until they are too old. The age
up to which a number is used grows with the time that it took, and with the time that all numbers in
use took together. So computing takes a small share of the time, whatever the size of the database
and the number of sites.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from fastapi import FastAPI
from typing_extensions import TypedDict

from crawler.errors import FreshetError
from crawler.reports import sites as reports
from crawler.reports.estimates import read_estimates
from crawler.reports.site_history import (
    CategoryNode,
    ChangeCounts,
    DayFreshness,
    VisitCounts,
    WeekPattern,
    freshness_by_day,
    site_profile,
)
from crawler.reports.sites import BoardSite, FailureGroup, RunningSite, SiteFilter
from crawler.storage import alarms, due, items, leases, site_queries, sites
from crawler.storage.alarms import AlarmReport
from crawler.storage.client import raising_unreachable
from crawler.storage.paging import Key
from crawler.storage.site_queries import SiteState
from crawler.storage.sites import Site
from crawler.storage.store import Store
from crawler.utils.process import end_tasks
from crawler.web.dependencies import WebDatabase
from crawler.web.subprocesses import Crawl, Crawls

# Time for which numbers are shown again without computing them, so that a page is consistent.
# Categories and patterns change little; a run changes them before.
PATTERN_SECONDS, ESTIMATE_SECONDS = 600.0, 30.0
logger = logging.getLogger(__name__)
# Time for which a page waits for numbers before it uses the previous ones.
PATIENCE_SECONDS = 0.2
# Age up to which a number is used, as a multiple of the time it took; 20: 5 % of the time.
AGE_FACTOR = 20.0
# The same as a multiple of the time that all numbers in use took; 5: 20 % of the time.
TOTAL_AGE_FACTOR = 5.0
MAX_SECONDS = 120.0
MAX_KEYS = 2000
# Alarms that the page of a site shows.
MAX_ALARMS = 50
# Largest categories of items that the page of a site offers.
MAX_CATEGORIES = 40
# Time to wait for computations in progress when the app ends; opening a connection takes less.
CLOSE_SECONDS = 0.3
# Maximum number of quick and of slow computations at a time: requests need the server, too.
MAX_QUICK, MAX_SLOW = 2, 1
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Board:
    """A part of the sites.

    tags:   tags of all sites
    last:   key after which the next part begins; None: no more sites
    number: number of all sites, whether they fulfill the conditions or not
    """

    sites: list[BoardSite]
    tags: list[str]
    last: Key | None
    number: int


async def board(
    app: FastAPI, store: Store, now: datetime, wanted: SiteFilter, limit: int, after: str | None
) -> Board:
    """Return the sites that fulfill conditions, by name. after: last name of the page before."""
    marks = await sites.marks(store.db)
    names = await site_queries.site_names(store.db)
    none = site_queries.NO_MARKS
    chosen = [
        name
        for name in names
        if (after is None or name > after) and wanted.matches(name, marks.get(name, none))
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
    states = await site_queries.states_of(store.db, list(names), now)
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
    """The details of a site, without its targets; null: being computed for the first time."""

    site: BoardSite
    """State of the site."""
    timezone: str
    """IANA time zone of the site."""
    kinds: dict[str, int] | None
    """Number of targets by kind."""
    alarms: list[AlarmReport]
    """The first open alarms, as `scrapy silence` lists them."""
    paused_hosts: dict[str, datetime] | None
    """Hosts of due targets that requested a pause, with its end."""
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
    state = await site_queries.state_of(db, name, now)
    version = state.started, state.finished

    async def of_run(key: str, compute: Callable[[], Awaitable[Any]]) -> Any:
        return await figures.get((key, name), compute, PATTERN_SECONDS, version)

    # Concurrently, because each waits a moment for its number.
    (row,), opened, paused, kinds, failures, profile, freshness = await asyncio.gather(
        board_sites(app, store, now, [name]),
        alarms.open_alarms(db, [name], MAX_ALARMS),
        figures.get(("paused", name), lambda: due.held(db, name, now, now), version=version),
        figures.get(("kinds", name), lambda: site_queries.kinds_of(db, name)),
        figures.get(("failures", name), lambda: reports.failures_of(db, name)),
        of_run("profile", lambda: site_profile(db, site, now, changes)),
        of_run("freshness", lambda: freshness_by_day(db, site, now)),
    )
    return {
        "site": row,
        "timezone": site.timezone,
        "kinds": kinds,
        "alarms": opened,
        "paused_hosts": paused,
        "categories": None if profile is None else profile.categories,
        "failures": failures,
        "week": None if profile is None else profile.week,
        "freshness": freshness,
    }


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """Numbers of items of a site.

    categories: names and numbers of items, most first, at most MAX_CATEGORIES; None: being counted
    more:       number of further categories
    """

    items: int | None
    categories: list[tuple[str, int]] | None
    more: int = 0


async def item_counts(app: FastAPI, store: Store, now: datetime, site: Site) -> ItemCounts:
    """Return the numbers of items of a site and of its categories."""
    figures: Figures = app.state.figures
    db, name = store.db, site.name
    changes: ChangeCounts = app.state.change_counts
    state = await site_queries.state_of(db, name, now)
    # The same number as that of `details`.
    version = state.started, state.finished
    profile, total = await asyncio.gather(
        figures.get(
            ("profile", name), lambda: site_profile(db, site, now, changes), PATTERN_SECONDS,
            version,
        ),
        figures.get(("items", name), lambda: items.count(db, name)),
    )  # fmt: skip
    if profile is None:
        return ItemCounts(total, None)
    nodes = [(node["targets"], node["category"]) for node in profile.categories]
    largest = sorted((-n, each) for n, each in nodes if each is not None)
    names = tuple(each for _, each in largest[:MAX_CATEGORIES])

    async def count() -> list[tuple[str, int]]:
        numbers = [await items.count(db, name, each) for each in names]
        found = [(each, n) for each, n in zip(names, numbers, strict=True) if n]
        return sorted(found, key=lambda row: (-row[1], row[0]))

    counted = await figures.get(("item categories", name), count, version=names)
    return ItemCounts(total, counted, max(0, len(largest) - MAX_CATEGORIES))


async def runs_in_progress(app: FastAPI, store: Store) -> list[RunningSite]:
    """Return the runs in progress on any machine, by name of the site."""
    figures: Figures = app.state.figures
    now = store.config.clock.now()
    running = await reports.running_names(store.db)

    async def of(name: str, since: datetime) -> RunningSite | None:
        return await figures.get(
            ("run", name, since), lambda: reports.progress_of(store.db, name, since, now), 0.5
        )

    runs = await asyncio.gather(*(of(name, since) for name, since in sorted(running.items())))
    return [run for run in runs if run is not None]


async def start_run(app: FastAPI, store: Store, now: datetime, name: str, by: str) -> Crawl:
    """Start a crawl of the due pages of a site; raises Busy if one is running, and ConfigError."""
    crawls: Crawls = app.state.crawls
    await reports.known_site(store.db, name)
    busy = f"{name} is already being crawled"
    await leases.refuse_second(store.db, f"{leases.CRAWL}{name}", busy, shares=False)
    return crawls.start(name, by, now)


async def start_first_run(app: FastAPI, store: Store, now: datetime, name: str, by: str) -> None:
    """Start a crawl of new targets if the app runs the service, which notices them in a minute.

    The service also follows if the crawl cannot be started, for example if too many are running.
    """
    if app.state.service.is_started:
        with suppress(FreshetError):
            await start_run(app, store, now, name, by)


async def check_all(app: FastAPI, store: Store, now: datetime, name: str, by: str) -> Crawl:
    """Start a crawl of all pages of a site, after the crawl in progress; see Crawls.start_full."""
    crawls: Crawls = app.state.crawls
    database: WebDatabase = app.state.database
    await reports.known_site(store.db, name)

    async def is_free() -> bool:
        async with database.opened() as current:
            return not await leases.is_held(current.db, f"{leases.CRAWL}{name}")

    return await crawls.start_full(name, by, now, is_free)


@dataclass(slots=True)
class _Entry:
    """A number, and its computation in progress.

    value:   None before the first computation has ended
    version: version of the value
    since:   time of the monotonic clock after which another version is computed
    until:   time of the monotonic clock up to which the value is used
    seconds: time that the last computation took
    """

    value: Any = None
    version: Hashable = None
    since: float = 0.0
    until: float = 0.0
    seconds: float = 0.0
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Figures:
    """Computes numbers in the background and keeps the newest of each.

    patience_seconds: time for which `get` waits for a number that is missing or too old
    """

    patience_seconds: float = PATIENCE_SECONDS
    _entries: OrderedDict[Hashable, _Entry] = field(default_factory=OrderedDict)
    _quick: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_QUICK))
    _slow: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SLOW))

    async def get(
        self,
        key: Hashable,
        compute: Callable[[], Awaitable[Value]],
        min_seconds: float = 0.0,
        version: Hashable = None,
    ) -> Value | None:
        """Return a number; an old one if it takes too long, None if there is none.

        If computing took longer than `patience_seconds` the last time, returns the old number
        immediately, because waiting would hardly help.

        min_seconds: age up to which the number is used in any case
        version:     numbers of other versions are too old, for example of the time before a run;
                     slow ones are still used for AGE_FACTOR times the time they took
        """
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        self._forget_oldest()
        now = time.monotonic()
        is_old = now >= entry.until or (entry.version != version and now >= entry.since)
        if entry.task is None and is_old:
            entry.task = asyncio.create_task(self._compute(entry, compute, min_seconds, version))
        if entry.task is not None and not (
            entry.value is not None and entry.seconds > self.patience_seconds
        ):
            # The task continues if the request is cancelled or times out.
            await asyncio.wait({entry.task}, timeout=self.patience_seconds)
        value: Value | None = entry.value
        return value

    async def close(self) -> None:
        """Wait a moment for computations in progress, then cancel them."""
        tasks = [entry.task for entry in self._entries.values() if entry.task]
        if tasks:
            # The driver does not close a connection that it was opening when it was cancelled.
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            await end_tasks(*tasks)

    async def _compute(
        self,
        entry: _Entry,
        compute: Callable[[], Awaitable[Any]],
        min_seconds: float,
        version: Hashable,
    ) -> None:
        try:
            async with self._slow if entry.seconds > self.patience_seconds else self._quick:
                began = time.monotonic()
                try:
                    async with asyncio.timeout(MAX_SECONDS):
                        with raising_unreachable():
                            entry.value = await compute()
                except TimeoutError:
                    logger.warning("Site statistics not computed within %g s", MAX_SECONDS)
                except FreshetError as error:
                    # Pages report an unavailable database on their own.
                    logger.warning("Site statistics not computed: %s", error)
                except Exception:
                    # Nobody awaits the result of the task.
                    logger.exception("Site statistics not computed")
                ended = time.monotonic()
                entry.version = version
                entry.seconds = ended - began
                in_use = sum(each.seconds for each in self._entries.values() if each.until > began)
                age = AGE_FACTOR * entry.seconds, TOTAL_AGE_FACTOR * (in_use + entry.seconds)
                if entry.seconds > self.patience_seconds:
                    # The service may run a site every minute.
                    entry.since = ended + age[0]
                entry.until = ended + max(min_seconds, *age)
        finally:
            entry.task = None

    def _forget_oldest(self) -> None:
        for key in list(self._entries):
            if len(self._entries) <= MAX_KEYS:
                break
            if self._entries[key].task is None:
                del self._entries[key]
