"""What a run does before its first request and after its last: repairs, starts, counts."""

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
from crawler.extract.wrapper import Wrapper
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
# All processes go by MongoDB's clock, as far as each has read it: that is exact to less than this.
CLOCKS = timedelta(minutes=1)
Counts = dict[str, float]
# Items whose fields were read; and, before a field's name, those that do not have it.
ITEMS_READ, WITHOUT = "items read", "without "
NOT_STORED = frozenset({"missed visits", "dead", ITEMS_READ, *LinkCount})
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
    """Make everything ready for a run that begins; return its `_id`. Safe to repeat.

    run: of one that is taken over from workers that died
    """
    spider = wrapper.name
    if since := await runs.unfinished_since(db, spider):
        # The processes of what was interrupted may be asleep, and not dead.
        await targets.take_over_due(db, spider, started)
        await make_whole(db, registry, spider, since, started)
        await runs.close_unfinished(db, spider, started, but=run)
    is_edited = await sites.is_edited(db, wrapper)
    await plans.finish(db, started, [spider])
    run = run or await runs.begin(db, spider, started)
    await targets.ensure_starts(db, spider, wrapper.start_matches, started, started)
    for old, new in await aliases.rename_moved(db, spider, config.gone_confirmations):
        logger.info("%s has moved for good to %s", old, new)
    await cells.define(db, spider, definitions(wrapper), started)
    await sampling_phases.follow(db, spider, started)
    if full:
        await runs.mark_full(db, run)
        await targets.make_all_due(db, spider, started)
        logger.info("%s: full run: all targets are due, and the caps of plans are ignored", spider)
    if is_edited:
        # Another site definition may read these otherwise, or may read them at all.
        failed, read = await targets.make_edited_due(db, wrapper, started)
        if failed or read:
            logger.info(
                "%s: the site definition changed since the last run: due again are %s that failed "
                "and %s that it may read differently",
                spider, count(failed, "target"), count(read, "other"),
            )  # fmt: skip
    # Last: where this is cut off, the next run finds that the wrapper was edited.
    await sites.note(db, wrapper, started)
    return run


async def make_whole(
    db: Database, registry: Registry | None, spider: str, since: datetime, now: datetime
) -> None:
    """What workers stored in part before they died is completed, or undone."""
    since = max(since - CLOCKS, await recovery.logged_since(db, spider))
    await visits.recover(db, spider, since)
    await recovery.undo(db, registry, spider, since, now)
    if registry is not None:
        await edits.recover(db, registry, spider, since, now)


def counts_of(visit: Visit) -> Counts:
    """The counts of one stored visit, by name; none is 0."""
    fetched = visit.fetched
    kind = f"{fetched.target.kind} pages"
    counts = {"visits": 1.0, str(visit.outcome): 1, kind: 1, "bytes": fetched.size}
    counts["missed visits"] = visit.missed
    if visit.collected is not None:
        counts["posts"] = len(visit.collected.new)
        counts["edited posts"] = len(visit.collected.edited)
        counts["missed posts"] = visit.collected.missed
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
    """Counts of a run by what is stored, where workers that died may have told it twice or never.

    by_outcome, by_kind: as `storage.visits` has them. What is not stored (missed visits, pages left
    for dead, links, fields that were not found) stays as it was counted.
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
    """Counts as whole numbers; estimates are rounded."""
    return Counter({name: round(value) for name, value in counts.items()})


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves to later ones. held: hosts of due targets, and until when."""

    outlook: RemainingTargets
    held: dict[str, datetime]


@dataclass(frozen=True, slots=True)
class Ending:
    """A run that ends. Both of what it does may be repeated."""

    db: Database
    registry: Registry | None
    spider: str
    started: datetime
    now: datetime

    async def counted_anew(self, counts: Counts) -> Counts:
        """Make whole what workers that died have left, and count the run by its log."""
        db, spider = self.db, self.spider
        await self.make_whole()
        since = await runs.unfinished_since(db, spider) or self.started
        outcomes = await visits.by_outcome(db, spider, since)
        return recounted(counts, outcomes, await visits.by_kind(db, spider, since))

    async def make_whole(self) -> None:
        """Repair what workers have left that died, or could not reach the server."""
        await make_whole(self.db, self.registry, self.spider, self.started, self.now)

    async def with_what_is_left(self, counts: Counts) -> tuple[Counter[str], Left]:
        """Counts, with what is off the lists, what is watched and what is still due."""
        of_run = dict(counts)
        # An item is off the lists only when all lists that are due have been read.
        if not await targets.lists_are_due(self.db, self.spider, self.started):
            of_run["unlisted"] = await listings.settle(self.db, self.spider, self.now)
        outlook = await targets.remaining(self.db, self.spider, self.started, self.now)
        of_run["targets"] = outlook.targets
        of_run["due"] = await targets.count_due(self.db, self.spider, self.started)
        held = await targets.held(self.db, self.spider, self.started, self.now)
        return whole(of_run), Left(outlook, held)
