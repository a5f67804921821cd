"""Sampling phases of `scrapy learn`: some targets are polled on a fixed grid for some weeks.

A phase is a document in `plans` without spiders (so it is never a spider's latest plan) whose field
`samples` names one. Its pages are marked with their rotation and their offset in the grid
(`learning` of the target). Each run of the spider calls `follow`, which updates the targets: pages
of the current rotation get a plan that ends with it and keeps the former plan; all others get their
former plans back. So only runs change rotations and end the phase, and the next run repairs what a
crash or another command left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self
from zoneinfo import ZoneInfo

from bson import ObjectId
from pymongo import ASCENDING, UpdateOne

from crawler.storage.client import Database, Document, aggregated, in_batches
from crawler.utils.text import period
from crawler.utils.time import start_of_day
from schedules.calendar import next_visit
from schedules.schedule import WEEK_HOURS, Schedule

POLICY = "learn"
BATCH = 1000
# Shorter runs reveal little about the time that a visit takes.
MIN_VISITS = 20
ANYWHERE = ZoneInfo("UTC")
DAY = timedelta(days=1)
READ = (
    "url", "kind", "categories", "next_visit", "consecutive_errors", "consecutive_gone", "gone",
    "alias_of", "plan.id", "learning",
)  # fmt: skip
# Fields of a phase that its document has under the same names.
STORED = ("at", "until", "weeks", "every_hours", "sample", "pages", "rotations")
FORMER: Document = {"$ifNull": ["$plan.former", "$$REMOVE"]}


@dataclass(frozen=True, slots=True)
class Phase:
    """A sampling phase of one spider.

    weeks, every_hours, requests_per_day, sample: as requested; sample None: as many as possible
    pages: number of pages, in `rotations` groups of equal size that are polled one after the other
    """

    id: ObjectId
    spider: str
    at: datetime
    until: datetime
    weeks: float
    every_hours: float
    requests_per_day: float
    sample: int | None
    pages: int
    rotations: int

    @classmethod
    def of(cls, document: Document) -> Self:
        """Return the phase that a document describes."""
        return cls(
            id=document["_id"],
            spider=document["samples"],
            requests_per_day=document["budget_per_day"],
            **{name: document[name] for name in STORED},
        )

    def document(self) -> Document:
        """Return the document of the phase in `plans`."""
        return {name: getattr(self, name) for name in STORED} | {
            "_id": self.id,
            "policy": POLICY,
            "state": "active",
            "spiders": [],
            "samples": self.spider,
            "budget_per_day": self.requests_per_day,
        }

    def rotation_at(self, now: datetime) -> int:
        """Return the rotation at a time."""
        passed = (now - self.at) / (self.until - self.at)
        return min(max(int(passed * self.rotations), 0), self.rotations - 1)

    def rotation_begins(self, rotation: int) -> datetime:
        """Return when a rotation begins; for the rotation after the last, when the phase ends."""
        return self.at + (self.until - self.at) * rotation / self.rotations

    def poll_after(self, phase_hours: float, moment: datetime) -> datetime:
        """Return the next poll of a page after a time."""
        grid = Schedule(every_hours=self.every_hours, phase_hours=phase_hours)
        return next_visit(grid, ANYWHERE, moment)


async def current(db: Database, spider: str) -> Phase | None:
    """Return a spider's phase that `end` has not ended yet; None without one."""
    query: Document = {"samples": spider, "ended": None}
    document = await db.plans.find_one(query, sort=[("at", -1)])
    return Phase.of(document) if document else None


async def latest(db: Database, spider: str) -> Document | None:
    """Return the document of the last completed phase of a spider."""
    query: Document = {"samples": spider, "ended": {"$type": "date"}}
    return await db.plans.find_one(query, sort=[("ended", -1)])


async def begin(db: Database, phase: Phase, places: Iterable[tuple[str, int, float]]) -> None:
    """Start a phase, which the last write activates; no other phase may be active.

    places: `_id`, rotation, and offset in the grid in hours of each page
    """
    await db.targets.create_index(
        [("spider", ASCENDING), ("learning.rotation", ASCENDING)],
        partialFilterExpression={"learning.rotation": {"$exists": True}},
    )
    marks = [
        UpdateOne(
            {"_id": key},
            {"$set": {"learning": {"of": phase.id, "rotation": rotation, "phase": at}}},
        )
        for key, rotation, at in places
    ]
    for batch in in_batches(marks, BATCH):
        await db.targets.bulk_write(batch, ordered=False)
    await db.plans.insert_one(phase.document())


async def follow(db: Database, spider: str, now: datetime) -> Phase | None:
    """Update a spider's targets to its phase at this time; return None without a phase."""
    phase = await current(db, spider)
    if phase is None:
        return None
    if now >= phase.until:
        await end(db, phase, phase.until)
        return None
    rotation = phase.rotation_at(now)
    await _restore_plans(db, phase, {"$gte": 0, "$ne": rotation})
    pages = await _pages(db, phase, rotation)
    left = max(0, int(phase.requests_per_day) - await _spent_today(db, phase, pages, rotation, now))
    pages = [row for row in pages if not (row.get("gone") or "alias_of" in row)]
    plan = {
        "id": phase.id,
        "policy": POLICY,
        "frequency_class": POLICY,
        "windows": [f"every {period(phase.every_hours)}"],
        "visits_per_week": WEEK_HOURS / phase.every_hours,
        "weeks": 1,
        "slots": [],
        "every_hours": phase.every_hours,
        "until": phase.rotation_begins(rotation + 1),
    }
    writes: list[UpdateOne] = []
    for row in pages:
        if row.get("plan", {}).get("id") != phase.id:
            poll_plan = {"$literal": plan | {"phase_hours": row["learning"]["phase"]}}
            held = {"$mergeObjects": [poll_plan, {"former": {"$ifNull": ["$plan", "$$REMOVE"]}}]}
            writes.append(UpdateOne({"_id": row["_id"]}, [{"$set": {"plan": held}}]))
    # Pages that would miss their next poll are moved to it, except retries of failing pages.
    latest = now + timedelta(hours=phase.every_hours)
    for row in pages if left else ():
        is_failing = row["consecutive_errors"] or row["consecutive_gone"]
        if row["next_visit"] > latest and not is_failing:
            writes.append(_move(row, phase.poll_after(row["learning"]["phase"], now)))
    # Pages due beyond the daily requests, for example because of retries, wait until tomorrow.
    last = start_of_day(now) + DAY - timedelta(milliseconds=1)
    due = [row for row in pages if row["next_visit"] <= now]
    writes += [_move(row, phase.poll_after(row["learning"]["phase"], last)) for row in due[left:]]
    for batch in in_batches(writes, BATCH):
        await db.targets.bulk_write(batch)
    return phase


async def end(db: Database, phase: Phase, at: datetime) -> None:
    """End a phase: restore the former plans of all targets, and store the totals."""
    await _restore_plans(db, phase, {"$gte": 0})
    rows = [row async for row in polls(db, phase, at)]
    totals = {name: sum(row[name] for row in rows) for name in ("polls", "changes")}
    marked = {"spider": phase.spider, "learning.rotation": {"$gte": 0}, "learning.of": phase.id}
    await db.targets.update_many(marked, {"$unset": {"learning": ""}})
    await db.plans.update_one({"_id": phase.id}, {"$set": {"ended": at, "totals": totals}})


async def requests_per_day(db: Database, spiders: Sequence[str], now: datetime) -> float:
    """Return the daily requests of these spiders' active phases, in addition to plans."""
    query = {"samples": {"$in": list(spiders)}, "ended": None, "until": {"$gt": now}}
    return float(sum([row["budget_per_day"] async for row in db.plans.find(query)]))


async def polls(db: Database, phase: Phase, now: datetime) -> AsyncIterator[Document]:
    """Yield each page with `url`, `kind`, `categories`, `rotation`, `polls` and `changes`."""
    for rotation in range(phase.rotations):
        pages = await _pages(db, phase, rotation)
        since, until = (
            phase.rotation_begins(rotation),
            min(now, phase.rotation_begins(rotation + 1)),
        )
        counts = await _counts(db, phase.spider, pages, since, until)
        for row in pages:
            page = {name: row[name] for name in ("url", "kind", "categories")}
            yield page | {"rotation": rotation} | counts.get(row["url"], {"polls": 0, "changes": 0})


async def seconds_per_visit(db: Database, spider: str) -> float | None:
    """Return the seconds per visit of the fastest run with MIN_VISITS; None without one."""
    long = {"spider": spider, "finished": {"$type": "date"}, "counts.visits": {"$gte": MIN_VISITS}}
    pace = {"$divide": [{"$subtract": ["$finished", "$started"]}, "$counts.visits"]}
    fastest = {"_id": None, "milliseconds": {"$min": pace}}
    pipeline: list[Document] = [{"$match": long}, {"$group": fastest}]
    rows = await aggregated(db.runs, pipeline)
    return float(rows[0]["milliseconds"]) / 1000 if rows else None


async def _pages(db: Database, phase: Phase, rotation: int) -> list[Document]:
    """Return the pages of a rotation, the most overdue first."""
    query = {"spider": phase.spider, "learning.rotation": rotation, "learning.of": phase.id}
    return await db.targets.find(query, dict.fromkeys(READ, 1)).sort("next_visit").to_list(None)


async def _restore_plans(db: Database, phase: Phase, rotation: Document) -> None:
    """Restore the former plans of the pages of some rotations; keep their next visits."""
    query = {"spider": phase.spider, "learning.rotation": rotation, "plan.id": phase.id}
    await db.targets.update_many(query, [{"$set": {"plan": FORMER}}])


def _move(row: Document, when: datetime) -> UpdateOne:
    """Return an update that sets another next visit, unless a crawl has set it meanwhile."""
    unless_visited = {"_id": row["_id"], "next_visit": row["next_visit"]}
    return UpdateOne(unless_visited, {"$set": {"next_visit": when}})


async def _spent_today(
    db: Database, phase: Phase, pages: list[Document], rotation: int, now: datetime
) -> int:
    """Return the visits since midnight (UTC) of the pages of this rotation and the one before."""
    midnight, begins = start_of_day(now), phase.rotation_begins(rotation)
    counts = await _counts(db, phase.spider, pages, midnight, now)
    if rotation and begins > midnight:
        before = await _pages(db, phase, rotation - 1)
        counts |= await _counts(db, phase.spider, before, midnight, begins)
    return sum(count["polls"] for count in counts.values())


async def _counts(
    db: Database, spider: str, pages: list[Document], since: datetime, until: datetime
) -> dict[str, Any]:
    """Return visits and changes of pages between two times, by URL."""
    counts: dict[str, Any] = {}
    for batch in in_batches([row["url"] for row in pages], BATCH):
        query = {"spider": spider, "target": {"$in": batch}, "at": {"$gte": since, "$lt": until}}
        sums = {"polls": {"$sum": 1}, "changes": {"$sum": "$changed"}}
        pipeline: list[Document] = [{"$match": query}, {"$group": {"_id": "$target"} | sums}]
        cursor = await db.visits.aggregate(pipeline)
        counts |= {row.pop("_id"): row async for row in cursor}
    return counts
