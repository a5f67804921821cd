"""`alarms`: silent targets and fields, and broken pages, one document per silence and per breakage.

An alarm stays open until a later check or run no longer finds its cause. Ended alarms are deleted
after KEPT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo import ASCENDING, UpdateOne
from typing_extensions import TypedDict

from crawler.items import Breakage, Wanted
from crawler.storage.client import Database, Document, count_by, in_batches, write_all
from crawler.storage.targets import ALIVE
from crawler.utils.shapes import copied
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
SEE_SILENCE = "scrapy silence lists broken pages, docs/how-to/find-silent-pages.md has fixes"
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
    db: Database,
    spiders: Sequence[str],
    silent: Sequence[Silence],
    now: datetime,
    wanted: Mapping[str, Wanted | None],
) -> int:
    """Store the silences of all targets of these spiders; return the number of new alarms.

    wanted: by spider with silences, the events that rules of notifications select; None: no rule is
            about it. Other alarms are not marked for notifications

    Alarms of these spiders that are not in `silent` end. Safe to repeat.
    """
    worst = sorted(silent, key=lambda each: (each.chance, each.spider, each.target, each.field))
    of_spiders: Document = {"spider": {"$in": list(spiders)}, "event": SILENT} | OPEN
    rows = db.alarms.find(of_spiders | {"target": ""}, {"spider": 1, "field": 1})
    open_sites = {(row["spider"], row.get("field", "")): row["_id"] async for row in rows}
    alarms: dict[str, tuple[Document, Document]] = {}
    for each in worst[:MAX_ALARMS]:
        # The last change of a site's silent pages varies, but the site keeps the same alarm.
        key = f"{each.spider} {each.target} {each.since:%Y-%m-%dT%H:%M} {SILENT}"
        key = f"{key} {each.field}" if each.field else key
        key = key if each.target else open_sites.get((each.spider, each.field), key)
        begun: Document = {
            "spider": each.spider, "target": each.target, "event": SILENT, "since": each.since,
            "expected_at": each.expected_at,
        }  # fmt: skip
        if each.field:
            begun["field"] = each.field
        alarms[key] = begun, {"chance": each.chance, "text": each.text}
    return await _record(db, of_spiders, alarms, now, wanted)


async def digests_of_broken(db: Database, spider: str) -> frozenset[str]:
    """Return the digests of contents that took the place of many pages of a spider."""
    how = str(Breakage.LOGIN)
    # Without `broken`, the partial index cannot be used.
    query: Document = {"spider": spider, "broken": {"$exists": True}, "broken.how": how}
    digests = await db.targets.distinct("broken.digest", query)
    return frozenset(filter(None, digests))


async def record_broken(
    db: Database, spider: str, visits: int, now: datetime, wanted: Wanted | None
) -> list[str]:
    """Store the alarms of a spider's broken pages; return warnings about new ones.

    Only alarms of sites and of list pages have a warning: a single item may lack a field because it
    is sold out, and visits of replaced pages failed, and were logged.

    visits: number of visits in the run that is ending
    wanted: events of the spider that rules of notifications select; None: no rule is about it

    Alarms of pages that work again end. Safe to repeat.
    """
    broken: Document = {"spider": spider, "broken": {"$exists": True}} | ALIVE
    of_spider: Document = {"spider": spider, "event": BROKEN} | OPEN
    open_sites = set(await db.alarms.distinct("_id", of_spider | {"target": ""}))
    alarms: dict[str, tuple[Document, Document]] = {}
    of_site: dict[str, str] = {}
    of_lists: dict[str, str] = {}
    for how in Breakage:
        pages = broken | {"broken.how": str(how)}
        n = await db.targets.count_documents(pages)
        rows = db.targets.find(pages, {"url": 1, "broken": 1}).sort("url")
        open_site = min((k for k in open_sites if k.startswith(f"{spider}  {how} ")), default=None)
        is_shared = n >= MIN_SITE_PAGES and (open_site or n >= MIN_SITE_SHARE * visits)
        async for row in rows.limit(1 if is_shared else MAX_ALARMS):
            target, since, text = row["url"], row["broken"]["since"], row["broken"]["text"]
            if is_shared:
                target, text = "", f"{count(n, 'page')} {WHAT_BROKE[how]}, such as {row['url']}"
            key = f"{spider} {target} {how} {since:%Y-%m-%dT%H:%M:%S} {BROKEN}"
            # The first broken page varies, but the site keeps the same alarm.
            key = open_site or key if is_shared else key
            begun: Document = {
                "spider": spider, "target": target, "event": BROKEN, "since": since, "chance": 0.0,
            }  # fmt: skip
            alarms[key] = begun, {"text": text}
            if is_shared:
                of_site[key] = text
            elif how is Breakage.SHRUNK:
                of_lists[key] = f"{row['url']}: {text}"
    stored = set[str]()
    if warned := [*of_site, *of_lists]:
        stored = set(await db.alarms.distinct("_id", {"_id": {"$in": warned}}))
    await _record(db, of_spider, alarms, now, {spider: wanted})
    lines = [text for key, text in of_site.items() if key not in stored]
    if new := [text for key, text in of_lists.items() if key not in stored]:
        lines.append(f"{count(len(new), 'list page')} may be broken, for example {new[0]}")
    return [f"{line}; {SEE_SILENCE}" for line in lines]


async def broken_sites(db: Database, spider: str) -> list[str]:
    """Return the texts of the open alarms about many pages of a spider that broke."""
    query: Document = OPEN | {"spider": spider, "event": BROKEN, "target": ""}
    return [row["text"] async for row in db.alarms.find(query, {"text": 1}).sort("_id")]


async def _record(
    db: Database,
    query: Document,
    alarms: Mapping[str, tuple[Document, Document]],
    now: datetime,
    wanted: Mapping[str, Wanted | None],
) -> int:
    """Store the open alarms of a query, and end its others; return the number of new alarms.

    alarms: by `_id`, the fields that a new alarm gets, and those that may change
    wanted: by spider, the events that rules of notifications select
    """
    writes = []
    for key, (begun, state) in alarms.items():
        new: Document = begun | {"at": now}
        selected = wanted[begun["spider"]]
        if selected is not None and begun["event"] in selected.events:
            new["notify"] = True
        update: Document = {"$setOnInsert": new, "$set": state | {"ended_at": None}}
        writes.append(UpdateOne({"_id": key}, update, upsert=True))
    added = sum([await write_all(db.alarms, part) for part in in_batches(writes, BATCH)])
    ended: Document = {"$set": {"ended_at": now}}
    await db.alarms.update_many(query | {"_id": {"$nin": list(alarms)}}, ended)
    await db.alarms.delete_many(old(now))
    return added


async def end_of_target(db: Database, key: str, now: datetime) -> None:
    """End the open alarms of a target by its `_id`; those of its whole site stay open."""
    spider, _, url = key.partition(" ")
    query: Document = OPEN | {"spider": spider, "target": url}
    await db.alarms.update_many(query, {"$set": {"ended_at": now}})


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
    return await count_by(db.alarms, "spider", OPEN | {"spider": {"$in": list(spiders)}})


async def open_alarms(
    db: Database, spiders: Sequence[str] | None = None, limit: int = MAX_ALARMS
) -> list[AlarmReport]:
    """Return the open alarms of some spiders, of all if None; the least probable ones first."""
    query = OPEN if spiders is None else OPEN | {"spider": {"$in": list(spiders)}}
    cursor = db.alarms.find(query).sort([("chance", ASCENDING), ("_id", ASCENDING)]).limit(limit)
    return [{**copied(AlarmReport, row), "field": row.get("field", "")} async for row in cursor]
