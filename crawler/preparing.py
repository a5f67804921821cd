"""What a pass needs before its first request: logs made whole, starts, cells, what is due."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from bson import ObjectId

from crawler.config import Config
from crawler.extract.list_wrappers import definitions
from crawler.extract.wrapper import Wrapper
from crawler.storage import (
    cells,
    interrupted,
    learnings,
    moves,
    plans,
    runs,
    sites,
    targets,
    visits,
)
from crawler.storage.client import Database
from crawler.storage.duplicates import leaving
from crawler.storage.duplicates.registry import Registry
from crawler.utils.text import count

logger = logging.getLogger(__name__)
# All processes go by MongoDB's clock, as far as each has read it: that is exact to less than this.
CLOCKS = timedelta(minutes=1)


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
    is_edited = await sites.is_edited(db, one.wrapper)
    await plans.finish(db, started, [spider])
    run = one.run or await runs.begin(db, spider, started)
    await targets.ensure_starts(db, spider, one.wrapper.start_matches, started, started)
    for old, new in await moves.rename_moved(db, spider, one.config.gone_confirmations):
        logger.info("%s has moved for good to %s", old, new)
    await cells.define(db, spider, definitions(one.wrapper), started)
    await learnings.follow(db, spider, started)
    if full:
        await runs.mark_full(db, run)
        await targets.make_all_due(db, spider, started)
        logger.info("%s: full run: all targets are due, and the caps of plans are ignored", spider)
    if is_edited:
        await _read_again(one)
    # Last: where this is cut off, the next run finds that the wrapper was edited.
    await sites.note(db, one.wrapper, started)
    return run


async def _read_again(one: Beginning) -> None:
    """Make due what another site definition may read otherwise, or may read at all."""
    failed, others = await targets.make_edited_due(one.db, one.wrapper, one.started)
    if failed or others:
        logger.info(
            "%s: the site definition changed since the last run: due again are %s that failed "
            "and %s that it may read differently",
            one.wrapper.name, count(failed, "target"), count(others, "other"),
        )  # fmt: skip


async def _recover(one: Beginning) -> None:
    """Make whole what passes left that were cut off."""
    spider = one.wrapper.name
    if since := await runs.unfinished_since(one.db, spider):
        # Its processes may be asleep, and not dead.
        await targets.take_over_due(one.db, spider, one.started)
        await make_whole(one.db, one.registry, spider, since, one.started)
        await runs.close_unfinished(one.db, spider, one.started, but=one.run)


async def make_whole(
    db: Database, registry: Registry | None, spider: str, since: datetime, now: datetime
) -> None:
    """What workers stored in part before they died is completed, or undone."""
    since = max(since - CLOCKS, await interrupted.logged_since(db, spider))
    await visits.recover(db, spider, since)
    await interrupted.undo(db, registry, spider, since, now)
    if registry is not None:
        await leaving.recover(db, registry, spider, since, now)
