"""What the plans that are in effect say of the targets, summed up by the server."""

from __future__ import annotations

from collections.abc import Sequence

from bson import ObjectId
from bson.errors import InvalidId

from crawler.storage.client import Database, Document
from crawler.storage.targets import to_plan

WEEK_DAYS = 7
LEARNING = "learning"


async def plans_of(db: Database, ids: Sequence[str]) -> dict[str, Document]:
    """Plans by their ids as text; those that are not kept any more are left out."""
    cursor = db.plans.find({"_id": {"$in": [_id_of(text) for text in ids]}})
    return {str(found["_id"]): found async for found in cursor}


def _id_of(text: str) -> object:
    try:
        return ObjectId(text)
    except InvalidId:
        return text


async def groups(db: Database, spiders: Sequence[str] | None = None) -> list[Document]:
    """Per group: targets, requests a day, mean expected freshness and age, bounds of its rate.

    Of feeds instead: posts missed in a week, and mean delay in hours. The group of those
    without a plan is None, of those in a learning phase LEARNING.
    """
    learns = {"$gt": ["$plan.until", None]}
    pipeline: list[Document] = [
        {"$match": to_plan(spiders)},
        {
            "$group": {
                "_id": {"$cond": [learns, LEARNING, "$plan.group"]},
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
        {"$set": {"group": "$_id", "_id": "$$REMOVE"}},
    ]
    return await (await db.targets.aggregate(pipeline)).to_list(None)


async def slots(db: Database, spiders: Sequence[str] | None = None) -> list[Document]:
    """How many targets have each slot: rows of `spider`, `weeks`, `slot`, `targets`."""
    pipeline: list[Document] = [
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
    return await (await db.targets.aggregate(pipeline)).to_list(None)


async def even(db: Database, spiders: Sequence[str] | None = None) -> list[Document]:
    """Targets that are visited at even intervals: rows of `spider`, `targets`, `per_week`."""
    pipeline: list[Document] = [
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
    return await (await db.targets.aggregate(pipeline)).to_list(None)


async def planned(
    db: Database, spiders: Sequence[str] | None = None, limit: int = 0
) -> list[Document]:
    """URL, group, windows, weeks and slots of planned targets, `limit` at most if it is not 0."""
    query = to_plan(spiders) | {"plan": {"$exists": True}}
    names = ("group", "windows", "weeks", "slots", "every_hours", "visits_per_week")
    fields = {"_id": 0, "spider": 1, "url": 1} | {f"plan.{name}": 1 for name in names}
    cursor = db.targets.find(query, fields).sort("_id").limit(limit)
    return [{**found.pop("plan"), **found} async for found in cursor]


async def left_over(db: Database, spider: str) -> int:
    """How many targets the last pass of a spider left waiting, as a cap was reached."""
    query: Document = {"spider": spider, "finished": {"$ne": None}}
    found = await db.runs.find_one(query, sort=[("started", -1)])
    return int(((found or {}).get("counts") or {}).get("over_cap", 0))
