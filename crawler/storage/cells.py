"""`cells`: the cell base, one document a cell: what it is now, and how often it is refreshed.

The paper's tuple <I, P, Eq, Rq, r> with <C_id, C_data> (Ha et al. 2002, section 3) is `_id`,
`period_seconds`, `execution_seconds`, `requested`, `refreshed`, `name`, `content`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from crawler.extract.cells import Defined
from crawler.items import CELL, SEEN, Kind, Planned, Target, Visit
from crawler.storage import fences
from crawler.storage.client import Database, Document
from crawler.storage.targets import PERIOD, from_document, new_document
from crawler.utils.text import period
from crawler.utils.time import NEVER
from schedules.schedule import WEEK_HOURS

HOUR_SECONDS = 3600
WEEK_DAYS = 7
AFTER_CELL = CELL[:-1] + chr(ord(CELL[-1]) + 1)
OF_PERIODS = ("policy", "every_hours", "phase_hours")
KNOWN = {"host": 1, "retired": 1} | {f"plan.{name}": 1 for name in OF_PERIODS}


async def read(db: Database, *, content: bool = True) -> list[Document]:
    """All cells, by spider and name; without what they hold where only their state is wanted."""
    wanted = None if content else {"content": 0}
    return await db.cells.find({"retired": {"$ne": True}}, wanted).sort("_id").to_list(None)


async def columns(db: Database, target: Target) -> list[str] | None:
    """The columns that a query's result had at the last look; None where there was none."""
    found = await db.cells.find_one({"_id": target.key}, {"content.columns": 1})
    return ((found or {}).get("content") or {}).get("columns")


async def others(db: Database, spider: str, names: Sequence[str]) -> list[Target]:
    """The targets of these cells of a spider."""
    keys = [f"{spider} {CELL}{name}" for name in names]
    cursor = db.targets.find({"_id": {"$in": keys}}, {"last_visit": 0})
    return [from_document(found) async for found in cursor]


async def requests_per_day(db: Database, spiders: Sequence[str]) -> float:
    """What the periods of cells ask for, which no plan has in its budget."""
    per_week = 0.0
    for spider in spiders:
        query = _all_of(spider) | {"plan.policy": PERIOD, "gone": {"$ne": True}}
        async for found in db.targets.find(query, {"plan.visits_per_week": 1}):
            per_week += found["plan"]["visits_per_week"]
    return per_week / WEEK_DAYS


async def define(db: Database, spider: str, cells: Sequence[Defined], now: datetime) -> None:
    """Cells become targets, due when new; those that are defined no longer are retired.

    Their past, versions and content stay, and count again should they come back.
    """
    wanted = {f"{spider} {CELL}{cell.name}": cell for cell in cells}
    known = {found["_id"]: found async for found in db.targets.find(_all_of(spider), KNOWN)}
    left = [key for key in known if key not in wanted and not known[key].get("retired")]
    if left:
        await _retire(db, left)
    other = [cell for key, cell in wanted.items() if not _is_as(cell, known.get(key))]
    if other:
        # A target without its place in the base would never get one.
        await db.cells.bulk_write([_base_of(spider, cell) for cell in other], ordered=False)
        updates = [one for cell in other for one in _updates_of(spider, cell, now)]
        await db.targets.bulk_write(updates)


def _all_of(spider: str) -> Document:
    """The cells of a spider by the index of `_id`; it may have a million other targets."""
    return {"_id": {"$gte": f"{spider} {CELL}", "$lt": f"{spider} {AFTER_CELL}"}}


def _is_as(cell: Defined, found: Document | None) -> bool:
    """Whether a target is as its cell is defined."""
    if found is None or found.get("retired") or found.get("host") != cell.host:
        return False
    plan, given = found.get("plan") or {}, _plan(cell)
    if given is None:
        return plan.get("policy") != PERIOD
    return all(plan.get(name) == given[name] for name in OF_PERIODS)


async def _retire(db: Database, keys: list[str]) -> None:
    query: Document = {"_id": {"$in": keys}}
    await db.cells.update_many(query, {"$set": {"retired": True}})
    out: Document = {"gone": True, "retired": True, "next_visit": NEVER}
    await db.targets.update_many(query, {"$set": out})


def _updates_of(spider: str, cell: Defined, now: datetime) -> list[UpdateOne]:
    """Make the target, bring it back, and give it its period or take that away."""
    url = f"{CELL}{cell.name}"
    made = new_document(spider, url, Kind.CELL, now, now)
    key, plan = made.pop("_id"), _plan(cell)
    del made["host"]
    back: Document = {
        "$set": {"gone": False, "next_visit": now, "consecutive_gone": 0},
        "$unset": {"retired": ""},
    }
    update: Document = {"$setOnInsert": made, "$set": {"host": cell.host}}
    updates = [
        UpdateOne({"_id": key}, update, upsert=True),
        UpdateOne({"_id": key, "retired": True}, back),
    ]
    if plan is None:
        periodic = {"_id": key, "plan.policy": PERIOD}
        return [*updates, UpdateOne(periodic, {"$unset": {"plan": ""}})]
    same = {f"plan.{name}": plan[name] for name in OF_PERIODS}
    sooner: Document = {"$set": {"plan": plan}, "$min": {"next_visit": now}}
    return [*updates, UpdateOne({"_id": key, "$nor": [same]}, sooner)]


def _plan(cell: Defined) -> Document | None:
    """The plan that a period stands for; visits at equal distances."""
    if cell.every_hours is None:
        return None
    return {
        "plan": PERIOD,
        "policy": PERIOD,
        "visits_per_week": WEEK_HOURS / cell.every_hours,
        "weeks": 1,
        "slots": [],
        "every_hours": cell.every_hours,
        "phase_hours": cell.every_hours * cell.phase,
        "group": cell.group,
        "windows": [f"every {period(cell.every_hours)}"],
    }


def _base_of(spider: str, cell: Defined) -> UpdateOne:
    """A cell that was never read, or is defined otherwise than before."""
    period = None if cell.every_hours is None else cell.every_hours * HOUR_SECONDS
    kept: Document = {"spider": spider, "name": cell.name, "group": cell.group}
    unread: Document = {
        "execution_seconds": None, "requested": 0, "refreshed": 0, "refreshed_at": None,
        "changed_at": None, "error": None, "content_hash": None, "content": None,
    }  # fmt: skip
    update: Document = {"$set": kept, "$setOnInsert": unread, "$unset": {"retired": ""}}
    if period is None:
        unread["period_seconds"] = None
    else:
        kept["period_seconds"] = period
    return UpdateOne({"_id": f"{spider} {CELL}{cell.name}"}, update, upsert=True)


async def note(db: Database, batch: list[Visit]) -> None:
    """Write down what visits of cells found; safe to repeat."""
    updates = [_update_of(visit) for visit in batch if visit.fetched.target.kind is Kind.CELL]
    await fences.write(db.cells, updates)


def _update_of(visit: Visit) -> UpdateOne:
    """What failed keeps the content that was there before."""
    fetched, target = visit.fetched, visit.fetched.target
    state: dict[str, Any] = {
        "fence": target.fence,
        "requested": target.visits + 1 + target.missed + visit.missed,
        "refreshed": target.refreshed + (visit.outcome in SEEN),
        "period_seconds": period_seconds(target.plan, visit),
        "execution_seconds": visit.execution_ms and visit.execution_ms / 1000,
        "error": None if visit.outcome in SEEN else visit.reason or str(visit.outcome),
    }
    if visit.outcome in SEEN:
        state["refreshed_at"] = fetched.at
    if visit.stores_content:
        state |= {"content": fetched.content, "content_hash": fetched.content_hash}
    if visit.has_new_content:
        state["changed_at"] = fetched.at
    query = {"_id": target.key} | fences.passed(target.fence)
    return UpdateOne(query, {"$set": state})


def period_seconds(plan: Planned | None, visit: Visit) -> float:
    """The mean time between two looks: by the plan, else until the next one."""
    if plan is not None:
        return WEEK_HOURS / plan.schedule.visits_per_week * HOUR_SECONDS
    return (visit.next_visit - visit.fetched.at).total_seconds()
