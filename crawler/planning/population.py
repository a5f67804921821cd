"""Convert stored targets and sites to the arrays of `schedules`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.extract.keys import CATEGORY_PREFIX
from crawler.items import Kind
from crawler.planning.signals import Signals
from crawler.storage import sites
from crawler.storage.client import Database
from crawler.storage.columns import Keys, keys_of_texts
from crawler.storage.histories import Watched
from crawler.storage.sites import Site
from crawler.utils.regex import compiled
from schedules.estimation.rates import DateCounts, timed
from schedules.history import DAY_HOURS, Flags, Floats, Histories, Ints
from schedules.population import Population, walls_of
from schedules.schedule import MAX_FEED_WEEKS, MAX_WEEKS, WEEK_DAYS, WEEK_HOURS

MAX_INTERVAL_HOURS = MAX_WEEKS * WEEK_HOURS
MIN_INTERVAL_HOURS = 1.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """Hold the input of a plan, for n targets of s spiders.

    sites:          of `watched.spiders`, in that order
    histories:      with exact times where the stated dates are reliable
    reliable_dates: (s,) whether the dates of each site are reliable
    fixed:          (n,) visits a day at the fixed intervals, for targets without a plan
    signals:        what list pages and sitemaps show; None: not read
    """

    watched: Watched
    sites: tuple[Site, ...]
    population: Population
    histories: Histories
    reliable_dates: Flags
    fixed: Floats
    signals: Signals | None = None


async def gather(db: Database, watched: Watched, config: Config, now_hours: float) -> Gathered:
    """Return the input of a plan. Raises ConfigError if a site's settings contradict each other."""
    stored = await sites.of_spiders(db, watched.spiders)
    dates = date_counts(watched)
    return await gather_some(db, watched, stored, dates.reliable(), config, now_hours)


async def gather_some(
    db: Database,
    watched: Watched,
    stored: tuple[Site, ...],
    reliable_dates: Flags,
    config: Config,
    now_hours: float,
    groups: Ints | None = None,
) -> Gathered:
    """Return the input of a plan for some of its targets.

    stored:         sites of `watched.spiders`, in order
    reliable_dates: (s,) whether their dates are reliable
    groups:         as in `population_of`
    """
    site = watched.spider.astype(np.int64)

    async def in_category(spider: str, category: str) -> Keys:
        return keys_of_texts(await sites.keys_in_category(db, spider, category))

    weight = await weights_of(watched, stored, in_category)
    with_window = watched.feed_size > 0
    trusted = reliable_dates[site] | with_window
    histories = timed(watched.histories, watched.stated, trusted, with_window)
    population = population_of(watched, stored, weight, config, now_hours, groups)
    # Visits a day at the fixed intervals.
    lists = np.array([s.list_interval_hours or config.list_interval_hours for s in stored])
    items = np.array([s.item_interval_hours or config.item_interval_hours for s in stored])
    feeds, cells = are(watched, Kind.FEED), are(watched, Kind.CELL)
    hours = np.where(are(watched, Kind.LIST), lists[watched.spider], items[watched.spider])
    hours = np.where(feeds, config.feed_interval_hours, hours)
    hours = np.where(cells, config.cell_interval_hours, hours)
    longest = np.where(feeds, config.longest_hours(feeds=True), config.longest_hours(feeds=False))
    fixed: Floats = DAY_HOURS / np.minimum(hours, longest)
    return Gathered(watched, stored, population, histories, reliable_dates, fixed)


def date_counts(watched: Watched) -> DateCounts:
    """Return the counts that decide whether the dates of each site are reliable."""
    site = watched.spider.astype(np.int64)
    return DateCounts.of(
        watched.histories, watched.stated, watched.false_dates, site, len(watched.spiders)
    )


async def weights_of(
    watched: Watched,
    stored: tuple[Site, ...],
    in_category: Callable[[str, str], Awaitable[Keys]],
) -> Floats:
    """Return the (n,) importance: the value of the first matching pattern in `weights`."""
    weight = np.array([each.weight for each in stored])[watched.spider]
    for number, each in enumerate(stored):
        rows = np.flatnonzero(watched.spider == number) if each.weights else np.empty(0, np.int64)
        # The first matching pattern counts, so write it last.
        for pattern, value in reversed(each.weights):
            if pattern.startswith(CATEGORY_PREFIX):
                category = pattern.removeprefix(CATEGORY_PREFIX)
                fits = np.isin(watched.key[rows], await in_category(each.name, category))
            else:
                try:
                    search = compiled(pattern).search
                except ValueError as error:
                    raise ConfigError(f"{each.name}: weights: {error}") from None
                first, data = watched.ids.first, watched.ids.data
                bounds = zip(first[rows].tolist(), first[rows + 1].tolist(), strict=True)
                urls = (data[begin:end].partition(b" ")[2] for begin, end in bounds)
                fits = np.fromiter((search(url) is not None for url in urls), np.bool_, len(rows))
            weight[rows[fits]] = value
    return weight


def population_of(
    watched: Watched,
    stored: tuple[Site, ...],
    weight: Floats,
    config: Config,
    now_hours: float,
    groups: Ints | None = None,
) -> Population:
    """Return the targets as input of the planner; weight: (n,).

    groups: (p,) all `group_numbers` of the population, if these are only some of its targets
    """
    site, names = watched.spider.astype(np.int64), (len(watched.categories), len(watched.kinds))
    place = group_numbers(site, watched.category, watched.kind, *names)
    groups = np.unique(place) if groups is None else groups
    group = np.searchsorted(groups, place)
    of_pages, of_feeds = (
        np.array([_interval(each, config, feeds=feeds) for each in stored]).reshape(-1, 2)
        for feeds in (False, True)
    )
    are_feeds = are(watched, Kind.FEED)
    shortest, longest = np.where(are_feeds[:, None], of_feeds[site], of_pages[site]).T
    limit = np.where(
        are_feeds, longest_interval(config, feeds=True), longest_interval(config, feeds=False)
    )
    # A limit of a target replaces that of its site, even if it contradicts the site's other limit.
    has_min, has_max = watched.min_hours > 0, watched.max_hours > 0
    own_min = np.clip(watched.min_hours, MIN_INTERVAL_HOURS, limit)
    own_max = np.clip(watched.max_hours, MIN_INTERVAL_HOURS, limit)
    shortest = np.where(has_max, np.minimum(shortest, own_max), shortest)
    shortest = np.where(has_min, own_min, shortest)
    longest = np.maximum(shortest, np.where(has_max, own_max, longest))
    zones = tuple(each.zone for each in stored)
    open_hours = np.array([each.open_hours for each in stored]).reshape(-1, WEEK_HOURS)
    per_day, per_hour = (
        np.array([getattr(each, name) or np.inf for each in stored])
        for name in ("requests_per_day", "requests_per_hour")
    )
    longest_day = open_hours.reshape(-1, WEEK_DAYS, DAY_HOURS).sum(2).max(1)
    since = min(
        now_hours,
        np.nanmin(watched.histories.since, initial=now_hours),
        watched.histories.after.min(initial=now_hours),
    )
    return Population(
        key=watched.key,
        site=site,
        group=group,
        parent=groups // ((names[0] + 1) * (names[1] + 1)),
        zones=zones,
        open_hours=open_hours,
        weight=weight,
        cost=np.array([each.cost for each in stored])[site],
        min_hours=np.clip(watched.feed_min_hours, shortest, longest),
        max_hours=longest,
        site_day=np.minimum(per_day, per_hour * longest_day),
        walls=walls_of(tuple(dict.fromkeys(zones)), since, now_hours),
    )


def group_numbers(
    spider: NDArray[np.integer],
    category: NDArray[np.integer],
    kind: NDArray[np.integer],
    categories: int,
    kinds: int,
) -> Ints:
    """Return the (n,) group number of each target. A group has one spider, category and kind.

    spider, category, kind: (n,) as in Watched
    categories, kinds:      number of categories and of kinds
    """
    place = spider.astype(np.int64) * (categories + 1) + category + 1
    numbers: Ints = place * (kinds + 1) + kind + 1
    return numbers


def longest_interval(config: Config, *, feeds: bool) -> float:
    """Return the longest interval between two planned visits of feeds or of pages, in hours."""
    cycle = MAX_FEED_WEEKS if feeds else MAX_WEEKS
    return min(cycle * WEEK_HOURS, config.longest_hours(feeds=feeds))


def _interval(site: Site, config: Config, *, feeds: bool) -> tuple[float, float]:
    """Return the shortest and longest interval between two visits of feeds or pages, in hours."""
    limit = longest_interval(config, feeds=feeds)
    shortest = site.min_interval_hours or MIN_INTERVAL_HOURS
    longest = min(site.max_interval_hours or limit, limit)
    if longest < MIN_INTERVAL_HOURS:
        raise ConfigError(
            f"{site.name}: the longest interval, {longest:g} hours, is too short: plans need at "
            "least one hour. Raise max_interval_hours or FRESHET_MAX_INTERVAL_HOURS"
        )
    if shortest > longest:
        raise ConfigError(
            f"{site.name}: min_interval_hours {shortest:g} exceeds the longest interval, "
            f"{longest:g} h. Lower it, or raise max_interval_hours or FRESHET_MAX_INTERVAL_HOURS"
        )
    return shortest, longest


def are(watched: Watched, kind: Kind) -> Flags:
    """Return (n,) flags of the targets of this kind."""
    if kind not in watched.kinds:
        return np.zeros(len(watched), np.bool_)
    result: Flags = watched.kind == watched.kinds.index(kind)
    return result
