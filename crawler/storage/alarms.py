"""`alarms`: silent targets and fields, and broken pages, one document per silence and per breakage.

An alarm stays open until a later check or run no longer finds its cause. Ended alarms are deleted
after KEPT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo import ASCENDING, UpdateOne
from typing_extensions import TypedDict

from crawler.items import Breakage
from crawler.storage.client import Database, Document, in_batches
from crawler.storage.targets import ALIVE
from crawler.utils.text import count

SILENT, BROKEN = "silent", "broken"
# Minimum number of pages that broke in the same way, and their minimum share of the run's visits,
# for one alarm about the whole site.
MIN_SITE_PAGES, MIN_SITE_SHARE = 3, 0.02
WHAT_BROKE = {
    Breakage.SELECTOR: "lost fields that they had before",
    Breakage.SHRUNK: "lost at least half of their links to items",
    Breakage.LOGIN: "were replaced by a login, consent, captcha or error page",
}
# Maximum number of open alarms of one check; the least probable silences come first.
MAX_ALARMS = 1000
KEPT = timedelta(days=365)
BATCH = 500
MAX_TEXTS = 10
OPEN: Document = {"ended_at": None}


@dataclass(frozen=True, slots=True)
class Silence:
    """A target that has been silent for too long.

    target:      its URL; empty for a whole site
    since:       time of the last change; for a site, the last one of its silent pages
    expected_at: mean time of the next change
    chance:      probability that a target that still changes is silent for this long
    field:       the field that is silent; empty for the whole page
    """

    spider: str
    target: str
    since: datetime
    expected_at: datetime
    chance: float
    text: str
    field: str = ""


class AlarmReport(TypedDict):
    """An open alarm."""

    spider: str
    """Name of the spider."""
    target: str
    """URL of the target; empty for a whole site."""
    field: str
    """Field that is silent; empty for a whole page."""
    event: str
    """`silent`: no change for too long; `broken`: a page broke rather than changed."""
    at: datetime
    """Time when the alarm was raised."""
    since: datetime
    """Time of the last change; for a broken page, of the visit that found it."""
    expected_at: datetime | None
    """Time by which the next change was expected on average; null for broken pages."""
    chance: float
    """Probability that a target that still changes is silent for so long; 0 for broken pages."""
    text: str
    """What is wrong, in one sentence."""


async def record_silences(
    db: Database, spiders: Sequence[str], silent: Sequence[Silence], now: datetime
) -> int:
    """Store the silences of all targets of these spiders; return the number of new alarms.

    Alarms of these spiders that are not in `silent` end. Safe to repeat.
    """
    worst = sorted(silent, key=lambda each: (each.chance, each.spider, each.target, each.field))[
        :MAX_ALARMS
    ]
    of_spiders: Document = {"spider": {"$in": list(spiders)}, "event": SILENT} | OPEN
    rows = db.alarms.find(of_spiders | {"target": ""}, {"spider": 1, "field": 1})
    open_sites = {(row["spider"], row.get("field", "")): row["_id"] async for row in rows}
    new, current = 0, []
    for part in in_batches(worst, BATCH):
        writes = []
        for each in part:
            # The last change of a site's silent pages varies, but the site keeps the same alarm.
            key = f"{each.spider} {each.target} {each.since:%Y-%m-%dT%H:%M} {SILENT}"
            key = f"{key} {each.field}" if each.field else key
            key = key if each.target else open_sites.get((each.spider, each.field), key)
            current.append(key)
            begun: Document = {
                "spider": each.spider, "target": each.target, "event": SILENT, "at": now,
                "since": each.since, "expected_at": each.expected_at, "notify": True,
            }  # fmt: skip
            if each.field:
                begun["field"] = each.field
            state: Document = {"chance": each.chance, "text": each.text, "ended_at": None}
            update: Document = {"$setOnInsert": begun, "$set": state}
            writes.append(UpdateOne({"_id": key}, update, upsert=True))
        new += (await db.alarms.bulk_write(writes, ordered=False)).upserted_count
    await _end_others(db, of_spiders, current, now)
    return new


async def record_broken(db: Database, spider: str, visits: int, now: datetime) -> int:
    """Store the alarms of a spider's broken pages; return the number of new alarms.

    visits: number of visits in the run that is ending

    Alarms of pages that work again end. Safe to repeat.
    """
    broken: Document = {"spider": spider, "broken": {"$exists": True}} | ALIVE
    of_spider: Document = {"spider": spider, "event": BROKEN} | OPEN
    open_sites = set(await db.alarms.distinct("_id", of_spider | {"target": ""}))
    new, current, writes = 0, [], []
    for how in Breakage:
        pages = broken | {"broken.how": str(how)}
        n = await db.targets.count_documents(pages)
        rows = db.targets.find(pages, {"url": 1, "broken": 1}).sort("url")
        is_open = any(key.startswith(f"{spider}  {how} ") for key in open_sites)
        is_shared = n >= MIN_SITE_PAGES and (is_open or n >= MIN_SITE_SHARE * visits)
        async for row in rows.limit(1 if is_shared else MAX_ALARMS):
            target = "" if is_shared else row["url"]
            since, page_text = row["broken"]["since"], row["broken"]["text"]
            text = f"{count(n, 'page')} {WHAT_BROKE[how]}, such as {row['url']}"
            key = f"{spider} {target} {how} {since:%Y-%m-%dT%H:%M:%S} {BROKEN}"
            if is_shared:
                # The first broken page varies, but the site keeps the same alarm.
                key = min((k for k in open_sites if k.startswith(f"{spider}  {how} ")), default=key)
            current.append(key)
            begun: Document = {
                "spider": spider, "target": target, "event": BROKEN, "at": now, "since": since,
                "chance": 0.0, "notify": True,
            }  # fmt: skip
            state: Document = {"text": text if is_shared else page_text, "ended_at": None}
            update: Document = {"$setOnInsert": begun, "$set": state}
            writes.append(UpdateOne({"_id": key}, update, upsert=True))
    for part in in_batches(writes, BATCH):
        new += (await db.alarms.bulk_write(part, ordered=False)).upserted_count
    await _end_others(db, of_spider, current, now)
    return new


async def end_of_target(db: Database, key: str, now: datetime) -> None:
    """End the open alarms of a target by its `_id`; those of its whole site stay open."""
    spider, _, url = key.partition(" ")
    query: Document = OPEN | {"spider": spider, "target": url}
    await db.alarms.update_many(query, {"$set": {"ended_at": now}})


async def _end_others(db: Database, query: Document, current: list[str], now: datetime) -> None:
    """End the open alarms of a query, except the current ones, and delete old ones."""
    ended: Document = {"$set": {"ended_at": now}}
    await db.alarms.update_many(query | {"_id": {"$nin": current}}, ended)
    await db.alarms.delete_many(old(now))


def old(now: datetime) -> Document:
    """Return the query for ended alarms that are old enough to delete."""
    return {"ended_at": {"$lt": now - KEPT}}


async def texts_of(db: Database, spider: str, target: str) -> list[str]:
    """Return the texts of the open alarms of a target and of its whole site."""
    query: Document = OPEN | {"spider": spider, "target": {"$in": [target, ""]}}
    rows = db.alarms.find(query, {"text": 1}).sort("_id").limit(MAX_TEXTS)
    return [row["text"] async for row in rows]


async def count_open(db: Database, spiders: Sequence[str]) -> dict[str, int]:
    """Return the number of open alarms by spider; spiders without alarms are missing."""
    pipeline: list[Document] = [
        {"$match": OPEN | {"spider": {"$in": list(spiders)}}},
        {"$group": {"_id": "$spider", "n": {"$sum": 1}}},
    ]
    rows = await (await db.alarms.aggregate(pipeline)).to_list(None)
    return {row["_id"]: row["n"] for row in rows}


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
            "field": row.get("field", ""),
            "event": row["event"],
            "at": row["at"],
            "since": row["since"],
            "expected_at": row.get("expected_at"),
            "chance": row["chance"],
            "text": row["text"],
        }
        async for row in cursor
    ]
