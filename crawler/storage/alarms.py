"""`alarms`: targets that have been silent for too long, one document per silence.

An alarm stays open until a later check no longer finds the silence. Ended alarms are deleted after
KEPT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo import ASCENDING, UpdateOne
from typing_extensions import TypedDict

from crawler.storage.client import Database, Document
from crawler.storage.outages import in_batches

SILENT = "silent"
# Maximum number of open alarms of one check; the least probable silences come first.
MAX_ALARMS = 1000
KEPT = timedelta(days=365)
BATCH = 500
OPEN: Document = {"ended_at": None}


@dataclass(frozen=True, slots=True)
class Silence:
    """A target that has been silent for too long.

    target:      its URL; empty for a whole site
    since:       last change; for a site, the last one of its silent pages
    expected_at: mean time of the next change
    chance:      probability that a living target is silent for so long
    """

    spider: str
    target: str
    since: datetime
    expected_at: datetime
    chance: float
    text: str


class AlarmReport(TypedDict):
    """An open alarm."""

    spider: str
    """Name of the spider."""
    target: str
    """URL of the target; empty for a whole site."""
    event: str
    """`silent`: no change for too long."""
    at: datetime
    """Time when the alarm was raised."""
    since: datetime
    """Time of the last change."""
    expected_at: datetime
    """Time by which the next change was expected on average."""
    chance: float
    """Probability that a target that still changes is silent for so long."""
    text: str
    """What is wrong, in one sentence."""


async def record_silences(
    db: Database, spiders: Sequence[str], silent: Sequence[Silence], now: datetime
) -> int:
    """Store the silences of all targets of these spiders; return the number of new alarms.

    Alarms of these spiders that are not in `silent` end. Safe to repeat.
    """
    worst = sorted(silent, key=lambda each: (each.chance, each.spider, each.target))[:MAX_ALARMS]
    of_spiders: Document = {"spider": {"$in": list(spiders)}, "event": SILENT} | OPEN
    rows = db.alarms.find(of_spiders | {"target": ""}, {"spider": 1})
    open_sites = {row["spider"]: row["_id"] async for row in rows}
    new, current = 0, []
    for part in in_batches(worst, BATCH):
        writes = []
        for each in part:
            # The last change of a site's silent pages varies, but its alarm stays the same one.
            key = f"{each.spider} {each.target} {each.since:%Y-%m-%dT%H:%M} {SILENT}"
            key = key if each.target else open_sites.get(each.spider, key)
            current.append(key)
            begun: Document = {
                "spider": each.spider, "target": each.target, "event": SILENT, "at": now,
                "since": each.since, "expected_at": each.expected_at, "notify": True,
            }  # fmt: skip
            state: Document = {"chance": each.chance, "text": each.text, "ended_at": None}
            update: Document = {"$setOnInsert": begun, "$set": state}
            writes.append(UpdateOne({"_id": key}, update, upsert=True))
        new += (await db.alarms.bulk_write(writes, ordered=False)).upserted_count
    ended: Document = {"$set": {"ended_at": now}}
    await db.alarms.update_many(of_spiders | {"_id": {"$nin": current}}, ended)
    await db.alarms.delete_many({"ended_at": {"$lt": now - KEPT}})
    return new


async def open_alarms(
    db: Database, spiders: Sequence[str] | None = None, limit: int = MAX_ALARMS
) -> list[AlarmReport]:
    """Return the open alarms of some spiders, of all if None; the least probable ones first."""
    query = OPEN if spiders is None else OPEN | {"spider": {"$in": list(spiders)}}
    cursor = db.alarms.find(query).sort([("chance", ASCENDING), ("_id", ASCENDING)]).limit(limit)
    return [
        {
            "spider": row["spider"],
            "target": row["target"],
            "event": row["event"],
            "at": row["at"],
            "since": row["since"],
            "expected_at": row["expected_at"],
            "chance": row["chance"],
            "text": row["text"],
        }
        async for row in cursor
    ]
