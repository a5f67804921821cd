"""What the database knows of its own past."""

from __future__ import annotations

import asyncio

import numpy as np

from crawler.clock import Clock
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.replanning.population import Gathered, gather
from crawler.storage import histories, targets
from crawler.storage.histories import Watched
from crawler.storage.store import opened
from crawler.traces.files import HOUR_SECONDS
from schedules.history import Flags


def gathered(config: Config, spider: str) -> Gathered:
    """The targets of a spider, of all if ""; ConfigError where it has none."""
    return asyncio.run(_gathered(config, spider))


async def _gathered(config: Config, spider: str) -> Gathered:
    now = Clock(config.clock_offset_hours).now()
    async with opened(config) as db:
        known = await targets.spiders(db)
        if spider and spider not in known:
            names = ", ".join(known) or "none; run scrapy crawl first"
            raise ConfigError(f"no targets of {spider!r}; spiders with targets: {names}")
        watched = await histories.read(db, now, [spider] if spider else None)
        return await gather(db, watched, config, now.timestamp() / HOUR_SECONDS)


def are_feeds(watched: Watched) -> Flags:
    """(n,) which of the targets are feeds."""
    if Kind.FEED not in watched.kinds:
        return np.zeros(len(watched), np.bool_)
    are: Flags = watched.kind == watched.kinds.index(Kind.FEED)
    return are
