"""What a pass needs before its first request: logs made whole, starts, cells, what is due."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from bson import ObjectId

from crawler.cells.definitions import definitions
from crawler.config import Config
from crawler.storage import cells, learnings, moves, plans, runs, sites, targets, visits
from crawler.storage.client import Database
from crawler.storage.duplicates import leaving
from crawler.storage.duplicates.registry import Registry
from crawler.wrapper import Wrapper

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beginning:
    """A pass that is to begin; run: of one that is taken over from workers that died."""

    db: Database
    registry: Registry | None
    wrapper: Wrapper
    config: Config
    started: datetime
    run: ObjectId | None = None


async def prepare(one: Beginning, *, full: bool) -> ObjectId:
    """Make everything ready; the `_id` of the run. Safe to repeat."""
    db, spider, started = one.db, one.wrapper.name, one.started
    await _recover(one)
    await sites.note(db, one.wrapper, started)
    await plans.finish(db, started, [spider])
    run = one.run or await runs.begin(db, spider, started)
    await targets.ensure_starts(db, spider, one.wrapper.start_matches, started, started)
    for old, new in await moves.rename_moved(db, spider, one.config.gone_confirmations):
        logger.info("%s has moved for good to %s", old, new)
    await cells.define(db, spider, definitions(one.wrapper), started)
    if full:
        await targets.make_all_due(db, spider, started)
    await learnings.follow(db, spider, started)
    return run


async def _recover(one: Beginning) -> None:
    """Make whole what passes left that were cut off."""
    spider = one.wrapper.name
    if since := await runs.unfinished_since(one.db, spider):
        await make_whole(one.db, one.registry, spider, since, one.started)
        await runs.close_unfinished(one.db, spider, one.started, but=one.run)


async def make_whole(
    db: Database, registry: Registry | None, spider: str, since: datetime, now: datetime
) -> None:
    """What workers stored in part before they died is completed, or undone."""
    await visits.recover(db, spider, since)
    if registry is not None:
        await leaving.recover(db, registry, spider, since, now)
