"""Settings that users make for single targets: due now, muted, and limits of the interval.

Plans and crawls honor these settings: `targets.ALIVE` excludes muted targets from both, a replan
reads the limits as those of the site, and each visit applies them to the next one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from crawler.storage import alarms, runs
from crawler.storage.client import Database, Document
from crawler.storage.targets import HOUR_MILLISECONDS, MUTED
from crawler.utils.time import NEVER

# Maximum number of targets that a search returns.
MAX_FOUND = 50


async def find(db: Database, key: str) -> Document | None:
    """Return the target with this `_id`; None if there is none."""
    return await db.targets.find_one({"_id": key})


async def make_due(db: Database, key: str, now: datetime) -> bool:
    """Make a target due, even if it was dead-lettered; return False if it is muted or retired.

    A visit that is in progress sets the next visit again.
    """
    query: Document = {
        "_id": key, "muted_at": {"$exists": False}, "retired": {"$exists": False},
    }  # fmt: skip
    sooner: Document = {"$min": {"next_visit": now}}
    if (await db.targets.update_one(query, sooner)).matched_count == 0:
        return False
    await runs.retry_dead_letters(db, [key], now)
    return True


async def mute(db: Database, key: str, now: datetime) -> bool:
    """Stop the visits of a target until `unmute`; return False if it is already muted.

    Its alarms end, and the budget of its visits goes to other targets with the next replan. A visit
    that is in progress is not stored.
    """
    state: Document = {"muted_at": now, "next_visit": NEVER}
    unmuted: Document = {"_id": key, "muted_at": {"$exists": False}}
    done = await db.targets.update_one(unmuted, {"$set": state, "$inc": {"fence": 1}})
    await alarms.end_of_target(db, key, now)
    return done.matched_count == 1


async def unmute(db: Database, key: str, now: datetime) -> bool:
    """Make a muted target due; return False if it is not muted.

    Retired cells and dead letters still wait.
    """
    muted: Document = {"_id": key} | MUTED
    is_visited: Document = {
        "$and": [
            {"$eq": [{"$type": f"${name}"}, "missing"]} for name in ("retired", "dead_lettered_at")
        ]
    }
    when: Document = {"$cond": [is_visited, now, "$next_visit"]}
    update: list[Document] = [{"$set": {"next_visit": when}}, {"$unset": "muted_at"}]
    return (await db.targets.update_one(muted, update)).matched_count == 1


async def set_limits(
    db: Database, key: str, min_hours: float | None, max_hours: float | None
) -> bool:
    """Set the limits of the interval between two visits; return False if there is no such target.

    min_hours, max_hours: None: the limit of the site

    Moves the planned next visit into the limits, except after a failure, for a page that is gone or
    due because of a change hint, and before the first visit.
    """
    given = {"min_hours": min_hours, "max_hours": max_hours}
    limits = {name: float(hours) for name, hours in given.items() if hours is not None}
    update: list[Document] = [{"$set": {"limits": {"$literal": limits}}}]
    if not limits:
        update = [{"$unset": "limits"}]
    when: Any = "$next_visit"
    if min_hours is not None:
        when = {"$max": [when, {"$add": ["$visited_at", min_hours * HOUR_MILLISECONDS]}]}
    if max_hours is not None:
        when = {"$min": [when, {"$add": ["$visited_at", max_hours * HOUR_MILLISECONDS]}]}
    is_planned: Document = {
        "$and": [
            {"$gt": ["$visited_at", None]},
            {"$lt": ["$next_visit", NEVER]},
            {"$lte": ["$consecutive_errors", 0]},
            {"$lte": ["$consecutive_gone", 0]},
            {"$ne": ["$hinted", True]},
            {"$ne": [{"$type": "$alias_of"}, "string"]},
        ]
    }
    update.append({"$set": {"next_visit": {"$cond": [is_planned, when, "$next_visit"]}}})
    return (await db.targets.update_one({"_id": key}, update)).matched_count == 1


async def find_by_prefix(db: Database, texts: list[str], spider: str | None) -> list[Document]:
    """Return targets whose URL begins with one of some texts, at most MAX_FOUND, by URL."""
    ranges: list[Document] = [
        {"url": {"$gte": text, "$lt": f"{text}\U0010ffff"}} for text in texts if text
    ]
    if not ranges:
        return []
    query: Document = {"$or": ranges} | ({} if spider is None else {"spider": spider})
    return await db.targets.find(query).sort("url").limit(MAX_FOUND).to_list(None)
