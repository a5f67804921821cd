"""`plans`: one document per replan, its atomic activation, and queries about plans.

A plan has a state. `staging`: its part for each target is stored in a separate collection that
nothing reads; a crash leaves the old plan unchanged. `activating`: a single write activated it;
after a crash, the next process resumes copying it to the targets. `active`: all targets have it,
and the staged collection is deleted. `discarded`: it was never activated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from bson import ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, OperationFailure
from typing_extensions import TypedDict

from crawler.errors import StorageError
from crawler.storage import runs
from crawler.storage.client import UNJOURNALED, Database, Document, aggregated, in_short
from crawler.storage.targets import to_plan
from crawler.utils.shapes import copied

STAGING, ACTIVATING, ACTIVE, DISCARDED = "staging", "activating", "active", "discarded"
IN_EFFECT = {"$in": [ACTIVATING, ACTIVE]}
STAGED = "staged_"
# Staged documents that the server sends together.
BATCH = 4
# Maximum number of concurrent batch writes: two for the server, while a third one is prepared.
MAX_WRITES = 3
# Targets due within this time may be visited while a plan is copied to the targets.
MARGIN = timedelta(hours=1)
WEEK_DAYS = 7
# Frequency class that `groups` returns for targets in a sampling phase.
LEARNING = "learning"
RAW: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument, tz_aware=True)


class TargetPlan(NamedTuple):
    """The new plan of a target. plan: its field `plan`, without `id`."""

    key: str
    plan: Document
    next_visit: datetime


class VisitPlan(TypedDict):
    """The schedule of a target, as of the last replan that changed it."""

    id: str
    """Id of the plan, or `period` for a fixed period."""
    policy: str | None
    """Allocation policy; `period`: fixed period of a cell; `learn`: sampling phase."""
    frequency_class: str | None
    """Frequency class, such as `G7` for 7 visits per week."""
    windows: list[str]
    """The schedule in words."""
    weeks: int
    """Length of the schedule's cycle in weeks."""
    slots: list[int]
    """Hours of the cycle with a visit; 0 = Monday 00:00, in the site's time zone."""
    every_hours: float
    """Even interval in hours; 0 for a schedule with slots."""
    phase_hours: float
    """Offset of the even interval in hours."""
    min_hours: float | None
    """Minimum interval of the policy `adaptive`, in hours."""
    max_hours: float | None
    """Maximum interval of the policy `adaptive`, in hours."""
    until: datetime | None
    """End of validity, in a sampling phase; null: until the next plan."""
    visits_per_week: float
    """Mean number of visits per week."""
    rate_per_week: float | None
    """Estimated changes per week; for a feed: posts per week."""
    rate_low: float | None
    """5 % quantile of `rate_per_week`."""
    rate_high: float | None
    """95 % quantile of `rate_per_week`."""
    batch: float | None
    """For a feed: mean number of posts that appear together."""
    freshness: float | None
    """Expected share of time in which the copy is current."""
    age_days: float | None
    """Expected mean age of the copy in days."""
    missed_per_week: float | None
    """For a feed: expected missed posts per week."""
    delay_hours: float | None
    """For a feed: expected mean delay of collected posts in hours."""
    marginal_value: float | None
    """Hours of staleness that one more visit would save; for a feed: posts."""
    last_value: float | None
    """Hours of staleness that the last visit saves; for a feed: posts."""
    limited_by: str | None
    """What limits the number of visits, as in the collection `targets`."""
    shown: float | None
    """Share of its changes that a list page or a sitemap is expected to show; null: none does."""
    shows: int | None
    """Number of items of which it shows changes, as a list page or a sitemap."""
    follows: bool | None
    """False if change hints do not make it due, because it changes too fast."""


def plan_of(target: Document) -> VisitPlan | None:
    """Return the schedule of a stored target; None before the first plan and for aliases."""
    if not (plan := target.get("plan")):
        return None
    return {**copied(VisitPlan, plan), "id": str(plan.get("id")), "weeks": plan.get("weeks", 1)}


async def activate(
    db: Database, plan: Document, moved: Iterable[Sequence[TargetPlan]], longest: timedelta
) -> int:
    """Activate a new plan as a whole or not at all; return the number of targets it changes.

    plan:    the document of the replan: `at` (when the targets were read), `spiders`, and details
    moved:   the plans of the targets that change; each batch becomes one staged document
    longest: maximum time from `at` to a next visit

    Raises StorageError if another replan of these spiders has started meanwhile.
    """
    async with staging(db, plan) as staged:
        count = await stage(db, staged, moved, longest)
    await activate_staged(db, staged, count)
    return count


@asynccontextmanager
async def staging(db: Database, plan: Document) -> AsyncIterator[Document]:
    """Store a new plan and yield it to a block that stages it. Discard it after an error."""
    plan = {"_id": ObjectId()} | plan | {"state": STAGING}
    await recover(db, plan["at"], plan["spiders"])
    await db.plans.insert_one(plan)
    try:
        yield plan
    except BaseException:
        await _discard(db, plan)
        raise


async def stage(
    db: Database, plan: Document, moved: Iterable[Sequence[TargetPlan]], longest: timedelta
) -> int:
    """Stage the plans of some targets, and return their number. Several processes may do this.

    plan: its `_id` and `at`; other arguments as in `activate`
    """
    staged, until, count = _staged(db, plan), plan["at"] + longest, 0
    async with _ConcurrentWrites() as writes:
        for batch in moved:
            updates = [
                {"plan": {"id": plan["_id"], **of_target}, "next_visit": min(next_visit, until)}
                for _, of_target, next_visit in batch
            ]
            # Staged documents are copied in the order of their first targets, so that those of all
            # processes reach the same part of the collection together.
            keys = [key for key, _, _ in batch]
            row = {"_id": keys[0], "targets": keys, "updates": updates}
            await writes.begin(staged.insert_one(row))
            count += len(batch)
    return count


async def activate_staged(db: Database, plan: Document, count: int) -> None:
    """Activate a plan that is staged for `count` targets, as `activate` does."""
    if not await _change_state(db, plan, STAGING, ACTIVATING, {"updated": count}):
        await _staged(db, plan).drop()
        raise StorageError("another replan has started in the meantime: this one changed nothing")
    await _copy_to_targets(db, plan, plan["at"])


async def finish(db: Database, now: datetime, spiders: Sequence[str] | None = None) -> int:
    """Copy active plans to their remaining targets after a crash; return the number of plans.

    Several processes may do this concurrently, even with the replan itself.
    """
    unfinished = await _in_state(db, ACTIVATING, spiders)
    for plan in unfinished:
        await _copy_to_targets(db, plan, now)
    return len(unfinished)


async def recover(db: Database, now: datetime, spiders: Sequence[str] | None = None) -> int:
    """Finish active plans, discard unfinished ones; return the number of discarded plans.

    A replan of these spiders that is still running will fail, because its plan was discarded.
    """
    await finish(db, now, spiders)
    begun = await _in_state(db, STAGING, spiders)
    for plan in begun:
        await _discard(db, plan)
    # A crash may leave staged collections of plans that are active or discarded. The plans are read
    # after the collections: a replan of other sites stores its plan before it stages anything.
    staged = await db.list_collection_names(filter={"name": {"$regex": f"^{STAGED}"}})
    needed = await db.plans.distinct("_id", {"state": {"$in": [STAGING, ACTIVATING]}})
    for name in set(staged) - {f"{STAGED}{key}" for key in needed}:
        await db.drop_collection(name)
    return len(begun)


async def latest(db: Database, spider: str, now: datetime) -> Document | None:
    """Return the active plan of a spider; None before the first.

    Plans from the future, made with a wrong clock, are skipped.
    """
    query: Document = {"spiders": spider, "state": IN_EFFECT, "at": {"$lte": now}}
    return await db.plans.find_one(query, sort=[("at", DESCENDING)])


async def earliest_after(db: Database, spiders: Sequence[str], now: datetime) -> Document | None:
    """Return the first active plan of some spiders from the future; None without one."""
    query: Document = {"spiders": {"$in": list(spiders)}, "state": IN_EFFECT, "at": {"$gt": now}}
    return await db.plans.find_one(query, sort=[("at", ASCENDING)])


async def _discard(db: Database, plan: Document) -> None:
    """Discard a plan that was never active, with its staged collection."""
    if await _change_state(db, plan, STAGING, DISCARDED, {}):
        await _staged(db, plan).drop()


async def _copy_to_targets(db: Database, plan: Document, now: datetime) -> None:
    """Copy an active plan to its targets; safe to repeat."""
    try:
        async with _ConcurrentWrites() as writes:
            # Plans are copied without decoding them.
            staged = _staged(db, plan).with_options(codec_options=RAW)
            async for row in staged.find(batch_size=BATCH).sort("_id"):
                await writes.begin(_apply(db, plan, row, now))
    except OperationFailure:
        # Another process was faster and has dropped the staged collection.
        if await db.plans.find_one({"_id": plan["_id"], "state": ACTIVATING}):
            raise
        return
    await _change_state(db, plan, ACTIVATING, ACTIVE, {})
    await _staged(db, plan).drop()


async def _apply(db: Database, plan: Document, row: Mapping[str, Any], now: datetime) -> None:
    """Update some targets with their plans, and their next visits if those may change.

    Most targets get a plain update, which is fast. If a crawl may visit a target now, an update
    with conditions lets the server decide.
    """
    # Targets that a crawl may be visiting, or whose next visit the plan must not change.
    busy_conditions: list[Document] = [
        {"visited_at": {"$not": {"$lte": plan["at"]}}},
        {"next_visit": {"$lte": now + MARGIN}},
        {"consecutive_errors": {"$gt": 0}},
        {"consecutive_gone": {"$gt": 0}},
        {"hinted": True},
    ]
    keys = row["targets"]
    query = {"_id": {"$in": keys}, "$or": busy_conditions}
    busy = {target["_id"] async for target in db.targets.find(query, {"_id": 1})}
    updates = [
        UpdateOne(
            {"_id": key}, _conditional_update(plan, update) if key in busy else {"$set": update}
        )
        for key, update in zip(keys, row["updates"], strict=True)
    ]
    # The journaled state change that follows makes these writes durable too.
    targets = db.targets.with_options(write_concern=UNJOURNALED)
    try:
        # Staged plans need no validation, which would take a tenth of the time.
        await targets.bulk_write(updates, ordered=False, bypass_document_validation=True)
    except BulkWriteError as error:
        raise StorageError(f"plan not stored: {in_short(error)}") from None


def _conditional_update(plan: Document, update: Mapping[str, Any]) -> list[Document]:
    """Return an update that keeps the next visit if it was set since the targets were read.

    For example by a visit, a retry after an error, a pending first visit, or a change hint.
    """
    has_newer_visit = {
        "$or": [
            {"$gt": ["$visited_at", plan["at"]]},
            {"$lte": ["$visited_at", None]},
            {"$gt": ["$consecutive_errors", 0]},
            {"$gt": ["$consecutive_gone", 0]},
            {"$eq": ["$hinted", True]},
        ]
    }
    when = {"$cond": [has_newer_visit, "$next_visit", update["next_visit"]]}
    return [{"$set": {"plan": {"$literal": update["plan"]}, "next_visit": when}}]


async def _change_state(db: Database, plan: Document, old: str, new: str, more: Document) -> bool:
    """Change the state of a plan; return False if another process already did."""
    query = {"_id": plan["_id"], "state": old}
    return (await db.plans.update_one(query, {"$set": {"state": new} | more})).matched_count == 1


async def _in_state(db: Database, state: str, spiders: Sequence[str] | None) -> list[Document]:
    query: Document = {"state": state}
    if spiders is not None:
        query["spiders"] = {"$in": list(spiders)}
    return await db.plans.find(query).sort("at").to_list(None)


def _staged(db: Database, plan: Document) -> AsyncCollection[Document]:
    return db.get_collection(f"{STAGED}{plan['_id']}", write_concern=UNJOURNALED)


class _ConcurrentWrites:
    """A few concurrent writes: the server works while the next batch is built."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    async def __aenter__(self) -> _ConcurrentWrites:
        return self

    async def begin(self, write: Any) -> None:
        """Start a write as soon as fewer than MAX_WRITES are running."""
        while len(self._running) >= MAX_WRITES:
            await self._wait_for_one()
        self._running.add(asyncio.ensure_future(write))
        await asyncio.sleep(0)

    async def __aexit__(self, failed: object, *_: object) -> None:
        while self._running:
            await self._wait_for_one()

    async def _wait_for_one(self) -> None:
        done, self._running = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for write in done:
            write.result()


async def plans_of(db: Database, ids: Sequence[str]) -> dict[str, Document]:
    """Return plans by their ids as text, except those that were deleted."""
    keys = [ObjectId(text) if ObjectId.is_valid(text) else text for text in ids]
    return {str(plan["_id"]): plan async for plan in db.plans.find({"_id": {"$in": keys}})}


async def groups(db: Database, spiders: Sequence[str] | None = None) -> list[Document]:
    """Return targets, requests a day, mean expectations and bounds for each frequency class.

    For feeds: missed posts a week, and mean delay in hours. The class of targets without a plan is
    None, of targets in a sampling phase LEARNING.
    """
    is_sampled = {"$gt": ["$plan.until", None]}
    pipeline: list[Document] = [
        {"$match": to_plan(spiders)},
        {
            "$group": {
                "_id": {"$cond": [is_sampled, LEARNING, "$plan.frequency_class"]},
                "targets": {"$sum": 1},
                "requests_per_day": {"$sum": {"$divide": ["$plan.visits_per_week", WEEK_DAYS]}},
                "freshness": {"$avg": "$plan.freshness"},
                "age_days": {"$avg": "$plan.age_days"},
                "missed_per_week": {"$sum": "$plan.missed_per_week"},
                "delay_hours": {"$avg": "$plan.delay_hours"},
                "rate_low": {"$sum": "$plan.rate_low"},
                "rate_high": {"$sum": "$plan.rate_high"},
            }
        },
        {"$set": {"frequency_class": "$_id", "_id": "$$REMOVE"}},
    ]
    return await aggregated(db.targets, pipeline)


def slots(spiders: Sequence[str] | None = None) -> list[Document]:
    """Return the stages that count the targets in each slot.

    They give rows of `spider`, `weeks`, `slot` and `targets`. spiders: None: all
    """
    return [
        {"$match": to_plan(spiders) | {"plan.slots.0": {"$exists": True}}},
        {"$project": {"spider": 1, "weeks": "$plan.weeks", "slot": "$plan.slots"}},
        {"$unwind": "$slot"},
        {
            "$group": {
                "_id": {"spider": "$spider", "weeks": "$weeks", "slot": "$slot"},
                "targets": {"$sum": 1},
            }
        },
        {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$_id", {"targets": "$targets"}]}}},
        {"$sort": {"spider": 1, "weeks": 1, "slot": 1}},
    ]


def even(spiders: Sequence[str] | None = None) -> list[Document]:
    """Return the stages that count targets with even intervals.

    They give rows of `spider`, `targets` and `per_week`. spiders: None: all
    """
    return [
        {"$match": to_plan(spiders) | {"plan.every_hours": {"$gt": 0}}},
        {
            "$group": {
                "_id": "$spider",
                "targets": {"$sum": 1},
                "per_week": {"$sum": "$plan.visits_per_week"},
            }
        },
        {"$set": {"spider": "$_id", "_id": "$$REMOVE"}},
    ]


async def week(
    db: Database, spiders: Sequence[str] | None = None
) -> tuple[list[Document], list[Document]]:
    """Return the rows of `slots` and of `even`."""
    return (
        await aggregated(db.targets, slots(spiders)),
        await aggregated(db.targets, even(spiders)),
    )


async def planned(
    db: Database, spiders: Sequence[str] | None = None, limit: int = 0
) -> list[Document]:
    """Return spider, URL and main plan fields of planned targets; limit 0: of all."""
    query = to_plan(spiders) | {"plan": {"$exists": True}}
    names = ("frequency_class", "windows", "weeks", "slots", "every_hours", "visits_per_week")
    fields = {"_id": 0, "spider": 1, "url": 1} | {f"plan.{name}": 1 for name in names}
    cursor = db.targets.find(query, fields).sort("_id").limit(limit)
    return [{**target.pop("plan"), **target} async for target in cursor]


async def count_over_cap(db: Database, spider: str) -> int:
    """Return the number of targets that the last run left waiting because of a cap."""
    last = await runs.last_ended(db, spider) or {}
    return int((last.get("counts") or {}).get("over_cap", 0))
