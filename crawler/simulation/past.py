"""The past visits in the database, and the budget of the current plan."""

from __future__ import annotations

import asyncio

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.replanning.budgets import budget_of
from crawler.replanning.orders import FEEDS
from crawler.replanning.population import Gathered, gather
from crawler.replanning.replan import effect_of, hours_of
from crawler.replanning.wishes import Wish
from crawler.storage import histories, targets
from crawler.storage.histories import Watched
from crawler.storage.store import opened
from crawler.utils.time import Clock
from schedules.history import Flags


def gathered(config: Config, spider: str) -> Gathered:
    """The targets of a spider, of all if ""; ConfigError where it has none."""
    return asyncio.run(_gathered(config, spider))


def current_budget(config: Config, spider: str, kind: str) -> float:
    """Return the requests a day that `scrapy replan --kind KIND` without a budget would plan.

    spider: a spider with targets, "" for all that have targets of the kind
    kind:   "pages" or "feeds"
    """
    return asyncio.run(_current_budget(config, spider, kind))


async def _current_budget(config: Config, spider: str, kind: str) -> float:
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        known, feeds = await targets.spiders(db), await targets.feed_spiders(db)
        of_kind = [name for name in known if (name in feeds) == (kind == FEEDS)]
        names = [spider] if spider else of_kind
        watched = await histories.read(db, now, names)
        gathered = await gather(db, watched, config, hours_of(now))
        effect = await effect_of(db, watched, now, everything=set(names) >= set(of_kind))
        wish = Wish.of_config(config, feeds=kind == FEEDS)
        return budget_of(gathered, wish, effect, hours_of(now)).per_day


async def _gathered(config: Config, spider: str) -> Gathered:
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        known = await targets.spiders(db)
        if spider and spider not in known:
            names = ", ".join(known) or "none; run scrapy crawl first"
            raise ConfigError(f"no targets of {spider!r}; spiders with targets: {names}")
        watched = await histories.read(db, now, [spider] if spider else None)
        return await gather(db, watched, config, hours_of(now))


def are_feeds(watched: Watched) -> Flags:
    """(n,) which of the targets are feeds."""
    if Kind.FEED not in watched.kinds:
        return np.zeros(len(watched), np.bool_)
    are: Flags = watched.kind == watched.kinds.index(Kind.FEED)
    return are
