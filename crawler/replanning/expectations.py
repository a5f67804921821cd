"""What is expected of pages, besides any plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.replanning.population import Gathered, gather
from crawler.replanning.replan import hours_of
from crawler.storage import histories
from crawler.storage.client import Database
from schedules.chunks import parts
from schedules.estimate import Estimate
from schedules.history import Floats
from schedules.schedule import WEEK_HOURS

# So many targets tell when all of them change.
ENOUGH = 50_000


async def gathered_of(
    db: Database, config: Config, now: datetime, spiders: Sequence[str] | None
) -> Gathered:
    """All that is known of the targets of some spiders; ConfigError where there are none."""
    watched = await histories.read(db, now, spiders)
    if not len(watched):
        raise ConfigError("no targets to plan for (scrapy crawl finds them)")
    return await gather(db, watched, config, hours_of(now))


def changes_by_hour(believed: Estimate) -> Floats:
    """(168,) changes a week expected in each hour of the local week, of all targets together."""
    n = len(believed.population)
    if n > ENOUGH:
        believed = believed.of(np.argsort(believed.population.key)[:ENOUGH])
    week = np.zeros(WEEK_HOURS)
    for part in parts(len(believed.population)):
        week += believed.rates(part).mean @ believed.profiles(part)
    return week * (n / max(1, len(believed.population)))
