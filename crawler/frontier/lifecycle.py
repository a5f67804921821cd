"""Prepare a run before its first request, and repair and count it after its last."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from crawler.config import Config
from crawler.extract.list_wrappers import definitions
from crawler.extract.site_definition import Wrapper
from crawler.items import LinkCount, Visit
from crawler.storage import (
    aliases,
    cells,
    listings,
    plans,
    recovery,
    runs,
    sampling_phases,
    sites,
    targets,
    visits,
)
from crawler.storage.client import Database
from crawler.storage.dedup import edits
from crawler.storage.dedup.registry import Registry
from crawler.storage.targets import RemainingTargets
from crawler.utils.text import count

logger = logging.getLogger(__name__)
# All processes use MongoDB's clock; their readings of it differ by less than this.
MAX_CLOCK_ERROR = timedelta(minutes=1)
Counts = dict[str, float]
# Names of counts: items whose fields were extracted, and (before a field's name) items without it.
ITEMS_READ, WITHOUT = "items read", "without "
NOT_STORED = frozenset({"missed visits", "dead_lettered", ITEMS_READ, *LinkCount})
SUMMED = ("visits", "bytes", "posts", "edited posts", "missed posts")


async def prepare(
    db: Database,
    registry: Registry | None,
    wrapper: Wrapper,
    config: Config,
    started: datetime,
    run: ObjectId | None = None,
    *,
    full: bool,
) -> ObjectId:
    """Prepare a run and return its `_id`; can be repeated.

    run: `_id` of a run to take over from crashed workers
    """
    spider = wrapper.name
    if since := await runs.unfinished_since(db, spider):
        # Take over first: processes of the interrupted run may be suspended, not dead.
        await targets.take_over_due(db, spider, started)
        await repair_log(db, registry, spider, since, started)
        await runs.close_unfinished(db, spider, started, but=run)
    is_edited = await sites.is_edited(db, wrapper)
    await plans.finish(db, started, [spider])
    run = run or await runs.begin(db, spider, started)
    await targets.ensure_starts(db, spider, wrapper.start_matches, started, started)
    for old, new in await aliases.rename_moved(db, spider, config.gone_confirmations):
        logger.info("%s moved permanently to %s", old, new)
    await cells.define(db, spider, definitions(wrapper), started)
    await sampling_phases.follow(db, spider, started)
    if full:
        await runs.mark_full(db, run)
        await targets.make_all_due(db, spider, started)
        logger.info("%s: full run: all targets are due; the caps of plans are ignored", spider)
    if is_edited:
        # The new site definition may fix failed targets, or extract other content.
        failed, read = await targets.make_edited_due(db, wrapper, started)
        if failed or read:
            logger.info(
                "%s: site definition changed since the last run; due again: %s that failed and %s "
                "whose content may differ",
                spider, count(failed, "target"), count(read, "other"),
            )  # fmt: skip
    # Last: if preparation is interrupted, the next run detects the edit again.
    await sites.note(db, wrapper, started)
    return run


async def repair_log(
    db: Database, registry: Registry | None, spider: str, since: datetime, now: datetime
) -> None:
    """Complete or undo visits that crashed workers stored in part."""
    since = max(since - MAX_CLOCK_ERROR, await recovery.logged_since(db, spider))
    await visits.recover(db, spider, since)
    await recovery.undo(db, registry, spider, since, now)
    if registry is not None:
        await edits.recover(db, registry, spider, since, now)


def counts_of(visit: Visit) -> Counts:
    """Return the nonzero counts of one stored visit, by name."""
    fetched = visit.fetched
    kind = f"{fetched.target.kind} pages"
    counts = {"visits": 1.0, str(visit.outcome): 1, kind: 1, "bytes": fetched.size}
    counts["missed visits"] = visit.missed_visits
    if visit.collected is not None:
        counts["posts"] = len(visit.collected.new)
        counts["edited posts"] = len(visit.collected.edited)
        counts["missed posts"] = visit.collected.missed_posts
    if fetched.link_counts is not None:
        counts |= fetched.link_counts.counts
    if fetched.empty_fields is not None:
        counts[ITEMS_READ] = 1
        counts |= {f"{WITHOUT}{name}": 1 for name in fetched.empty_fields}
    return {str(name): value for name, value in counts.items() if value}


def recounted(
    counts: Mapping[str, float],
    by_outcome: Iterable[Mapping[str, Any]],
    by_kind: Iterable[Mapping[str, Any]],
) -> Counts:
    """Return the counts of a run, recounted from stored visits.

    Crashed workers may have reported a visit twice or not at all. Counts that are not stored
    (missed visits, dead-lettered pages, links, missing fields) are taken from `counts`.

    by_outcome, by_kind: results of the functions in `storage.visits`
    """
    stored = Counter[str]()
    for row in by_outcome:
        stored[row["_id"]] += row["visits"]
        for name in SUMMED:
            stored[name] += row[name]
    kinds = {f"{row['_id']} pages": row["pages"] for row in by_kind}
    not_stored = {
        name: n for name, n in counts.items() if name in NOT_STORED or name.startswith(WITHOUT)
    }
    return {name: value for name, value in (stored | not_stored | kinds).items() if value}


def whole(counts: Mapping[str, float]) -> Counter[str]:
    """Round all counts; some are estimates."""
    return Counter({name: round(value) for name, value in counts.items()})


@dataclass(frozen=True, slots=True)
class Left:
    """State of a spider after a run.

    outlook: state of the spider's targets
    held:    paused hosts of due targets, and the end of each pause
    """

    outlook: RemainingTargets
    held: dict[str, datetime]


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a run; all steps can be repeated."""

    db: Database
    registry: Registry | None
    spider: str
    started: datetime
    now: datetime

    async def recount(self, counts: Counts) -> Counts:
        """Repair visits of crashed workers, and return the run's counts from the change log."""
        db, spider = self.db, self.spider
        await self.repair()
        since = await runs.unfinished_since(db, spider) or self.started
        outcomes = await visits.by_outcome(db, spider, since)
        return recounted(counts, outcomes, await visits.by_kind(db, spider, since))

    async def repair(self) -> None:
        """Repair visits of workers that crashed or lost their connection."""
        await repair_log(self.db, self.registry, self.spider, self.started, self.now)

    async def with_remaining(self, counts: Counts) -> tuple[Counter[str], Left]:
        """Add the counts of unlisted items, of all targets and of targets that remain due."""
        of_run = dict(counts)
        # Items are marked as unlisted only after all due list pages were read.
        if not await targets.lists_are_due(self.db, self.spider, self.started):
            of_run["unlisted"] = await listings.settle(self.db, self.spider, self.now)
        outlook = await targets.remaining(self.db, self.spider, self.started, self.now)
        of_run["targets"] = outlook.targets
        of_run["due"] = await targets.count_due(self.db, self.spider, self.started)
        held = await targets.held(self.db, self.spider, self.started, self.now)
        return whole(of_run), Left(outlook, held)
