"""`cells`: the cell store, one document per cell with its content and refresh state.

The paper's tuple <I, P, Eq, Rq, r> with <C_id, C_data> (Ha et al. 2002, section 3) is stored as
`_id`, `period_seconds`, `execution_seconds`, `requested`, `refreshed`, `name`, `content`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pymongo import UpdateOne

from crawler.extract.cells import StoredCell
from crawler.items import CELL, SEEN, Kind, Target, Visit
from crawler.storage import leases
from crawler.storage.client import Database, Document
from crawler.storage.targets import PERIOD, from_document, new_document
from crawler.utils.text import period
from crawler.utils.time import NEVER
from schedules.schedule import WEEK_HOURS

HOUR_SECONDS = 3600
WEEK_DAYS = 7
AFTER_CELL = CELL[:-1] + chr(ord(CELL[-1]) + 1)
# Fields of a plan that change with the period of a cell.
PERIOD_FIELDS = ("policy", "every_hours", "phase_hours")


async def read(db: Database, *, content: bool = True) -> list[Document]:
    """Return all cells by spider and name, optionally without their content."""
    fields = None if content else {"content": 0}
    return await db.cells.find({"retired": {"$ne": True}}, fields).sort("_id").to_list(None)


async def columns(db: Database, target: Target) -> list[str] | None:
    """Return the columns of a query's last result; None without a result."""
    cell = await db.cells.find_one({"_id": target.key}, {"content.columns": 1})
    return ((cell or {}).get("content") or {}).get("columns")


async def targets_of(db: Database, spider: str, names: Sequence[str]) -> list[Target]:
    """Return the targets of some cells of a spider."""
    keys = [f"{spider} {CELL}{name}" for name in names]
    cursor = db.targets.find({"_id": {"$in": keys}}, {"last_visit": 0})
    return [from_document(document) async for document in cursor]


async def requests_per_day(db: Database, spiders: Sequence[str]) -> float:
    """Return the daily requests of cells with a fixed period, which no plan counts."""
    per_week = 0.0
    for spider in spiders:
        query = _cells_of(spider) | {"plan.policy": PERIOD, "gone": {"$ne": True}}
        async for target in db.targets.find(query, {"plan.visits_per_week": 1}):
            per_week += target["plan"]["visits_per_week"]
    return per_week / WEEK_DAYS


async def define(db: Database, spider: str, cells: Sequence[StoredCell], now: datetime) -> None:
    """Add new cells as due targets, and retire cells that are no longer defined.

    Retired cells keep their history, versions and content, in case they are defined again.
    """
    fields = {"host": 1, "retired": 1} | {f"plan.{name}": 1 for name in PERIOD_FIELDS}
    stored = {target["_id"]: target async for target in db.targets.find(_cells_of(spider), fields)}
    defined = {f"{spider} {CELL}{cell.name}": cell for cell in cells}
    if dropped := [key for key in stored if key not in defined and not stored[key].get("retired")]:
        query: Document = {"_id": {"$in": dropped}}
        await db.cells.update_many(query, {"$set": {"retired": True}})
        out: Document = {"gone": True, "retired": True, "next_visit": NEVER}
        await db.targets.update_many(query, {"$set": out})
    changed = [cell for key, cell in defined.items() if not _is_stored(cell, stored.get(key))]
    if not changed:
        return
    cell_updates: list[UpdateOne] = []
    for cell in changed:
        definition: Document = {"spider": spider, "name": cell.name, "group": cell.group}
        unread: Document = {
            "execution_seconds": None, "requested": 0, "refreshed": 0, "refreshed_at": None,
            "changed_at": None, "error": None, "content_hash": None, "content": None,
        }  # fmt: skip
        if cell.every_hours is None:
            unread["period_seconds"] = None
        else:
            definition["period_seconds"] = cell.every_hours * HOUR_SECONDS
        update: Document = {"$set": definition, "$setOnInsert": unread, "$unset": {"retired": ""}}
        key = f"{spider} {CELL}{cell.name}"
        cell_updates.append(UpdateOne({"_id": key}, update, upsert=True))
    # Cells first: after a crash, a stored target is skipped and would never get its cell.
    await db.cells.bulk_write(cell_updates, ordered=False)
    await db.targets.bulk_write(
        [update for cell in changed for update in _target_updates(spider, cell, now)]
    )


def _cells_of(spider: str) -> Document:
    """Return a query for the cells of a spider by `_id`: it may have a million other targets."""
    return {"_id": {"$gte": f"{spider} {CELL}", "$lt": f"{spider} {AFTER_CELL}"}}


def _is_stored(cell: StoredCell, target: Document | None) -> bool:
    """Return whether a target matches the definition of its cell."""
    if target is None or target.get("retired") or target.get("host") != cell.host:
        return False
    stored, defined = target.get("plan") or {}, _plan(cell)
    if defined is None:
        return stored.get("policy") != PERIOD
    return all(stored.get(name) == defined[name] for name in PERIOD_FIELDS)


def _target_updates(spider: str, cell: StoredCell, now: datetime) -> list[UpdateOne]:
    """Return the updates that add or restore a cell's target and set its period."""
    document = new_document(spider, f"{CELL}{cell.name}", Kind.CELL, now, now)
    key, plan = document.pop("_id"), _plan(cell)
    del document["host"]
    back: Document = {
        "$set": {"gone": False, "next_visit": now, "consecutive_gone": 0},
        "$unset": {"retired": ""},
    }
    update: Document = {"$setOnInsert": document, "$set": {"host": cell.host}}
    updates = [
        UpdateOne({"_id": key}, update, upsert=True),
        UpdateOne({"_id": key, "retired": True}, back),
    ]
    if plan is None:
        periodic = {"_id": key, "plan.policy": PERIOD}
        return [*updates, UpdateOne(periodic, {"$unset": {"plan": ""}})]
    same = {f"plan.{name}": plan[name] for name in PERIOD_FIELDS}
    sooner: Document = {"$set": {"plan": plan}, "$min": {"next_visit": now}}
    return [*updates, UpdateOne({"_id": key, "$nor": [same]}, sooner)]


def _plan(cell: StoredCell) -> Document | None:
    """Return the plan that visits a cell once per period; None without a period."""
    if cell.every_hours is None:
        return None
    return {
        "id": PERIOD,
        "policy": PERIOD,
        "visits_per_week": WEEK_HOURS / cell.every_hours,
        "weeks": 1,
        "slots": [],
        "every_hours": cell.every_hours,
        "phase_hours": cell.every_hours * cell.phase,
        "frequency_class": cell.group,
        "windows": [f"every {period(cell.every_hours)}"],
    }


async def note(db: Database, batch: list[Visit]) -> None:
    """Store the results of visits of cells; safe to repeat. Failures keep the stored content."""
    updates = []
    for visit in batch:
        fetched, target = visit.fetched, visit.fetched.target
        if target.kind is not Kind.CELL:
            continue
        is_seen = visit.outcome in SEEN
        if target.plan is not None:
            hours = WEEK_HOURS / target.plan.schedule.visits_per_week
            period_seconds = hours * HOUR_SECONDS
        else:
            period_seconds = (visit.next_visit - fetched.at).total_seconds()
        state: Document = {
            "fence": target.fence,
            "requested": target.visits + 1 + target.missed_visits + visit.missed_visits,
            "refreshed": target.refreshed + is_seen,
            "period_seconds": period_seconds,
            "execution_seconds": visit.execution_ms and visit.execution_ms / 1000,
            "error": None if is_seen else visit.reason or str(visit.outcome),
        }
        if is_seen:
            state["refreshed_at"] = fetched.at
        if visit.stores_content:
            state |= {"content": fetched.content, "content_hash": fetched.content_hash}
        if visit.has_new_content:
            state["changed_at"] = fetched.at
        query = {"_id": target.key} | leases.unless_passed(target.fence)
        updates.append(UpdateOne(query, {"$set": state}))
    await leases.write_unless_passed(db.cells, updates)
