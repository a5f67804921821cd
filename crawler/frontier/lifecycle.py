"""What a pass needs before its first request: logs made whole, starts, cells, what is due."""

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
from crawler.storage import aliases as moves
from crawler.storage import cells, listings, plans, runs, sampling_phases, sites, targets, visits
from crawler.storage import recovery as interrupted
from crawler.storage.client import Database
from crawler.storage.dedup import edits
from crawler.storage.dedup.registry import Registry
from crawler.storage.targets import Outlook
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
    await sampling_phases.follow(db, spider, started)
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
        await edits.recover(db, registry, spider, since, now)


Counts = dict[str, float]
NOT_STORED = frozenset({"missed visits", "dead", *LinkCount})
# Items whose fields were read; and, before a field's name, those that do not have it.
ITEMS_READ, WITHOUT = "items read", "without "
SUMMED = ("visits", "bytes", "posts", "edited posts", "missed posts")


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
    """Counts of a pass by what is stored, where workers that died may have told it twice or never.

    by_outcome, by_kind: as `storage.visits` has them. What is not stored (missed visits, pages left
    for dead, links, fields that were not found) stays as it was counted.
    """
    found = Counter[str]()
    for row in by_outcome:
        found[row["_id"]] += row["visits"]
        for name in SUMMED:
            found[name] += row[name]
    kinds = {f"{row['_id']} pages": row["pages"] for row in by_kind}
    left = {name: n for name, n in counts.items() if _is_not_stored(name)}
    return {name: value for name, value in (found | left | kinds).items() if value}


def _is_not_stored(name: str) -> bool:
    return name in NOT_STORED or name == ITEMS_READ or name.startswith(WITHOUT)


def whole(counts: Mapping[str, float]) -> Counter[str]:
    """Counts as whole numbers; estimates are rounded."""
    return Counter({name: round(value) for name, value in counts.items()})


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves to later ones. held: hosts of due targets, and until when."""

    outlook: Outlook
    held: dict[str, datetime]


@dataclass(frozen=True, slots=True)
class Ending:
    """A pass that ends. Both of what it does may be repeated."""

    db: Database
    registry: Registry | None
    spider: str
    started: datetime
    now: datetime

    async def counted_anew(self, counts: Counts) -> Counts:
        """Make whole what workers that died have left, and count the pass by its log."""
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
        found = dict(counts)
        # An item is off the lists only when all lists that are due have been read.
        if not await targets.lists_are_due(self.db, self.spider, self.started):
            found["unlisted"] = await listings.settle(self.db, self.spider, self.now)
        outlook = await targets.outlook(self.db, self.spider, self.started, self.now)
        found["targets"] = outlook.targets
        found["due"] = await targets.count_due(self.db, self.spider, self.started)
        held = await targets.held(self.db, self.spider, self.started, self.now)
        return whole(found), Left(outlook, held)
