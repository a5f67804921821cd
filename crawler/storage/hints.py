"""Hints that a page changed: a sitemap's `lastmod`, or another card on a list page.

Believed as long as they prove right.

Sitemap dates were right for about 4 % of the URLs of one large set, so each visit that a hint
caused is marked in the change log, and a spider whose hints of that kind brought too few changes is
no longer hurried. What a list page says besides, such as how many look at an item, is no better.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pymongo import UpdateOne

from crawler.items import Link
from crawler.storage.client import Database, Document

LASTMOD, LIST = "lastmod", "list"
SAMPLE = 100
BENEFIT_OF_DOUBT = 10
LEAST_SHARE = 0.2


async def record(db: Database, spider: str, links: Iterable[Link], due: datetime) -> None:
    """Keep each link's `lastmod`; a target last visited before it is due, if hints are right."""
    dated = [link for link in links if link.lastmod is not None]
    if not dated:
        return
    writes = []
    if await trusted(db, spider, LASTMOD):
        writes = [
            UpdateOne(
                {
                    "_id": f"{spider} {link.url}",
                    "lastmod": {"$ne": link.lastmod},
                    "visited_at": {"$lt": link.lastmod},
                },
                {"$set": {"next_visit": due, "hinted": True, "hint": LASTMOD}},
            )
            for link in dated
        ]
    writes += [
        UpdateOne({"_id": f"{spider} {link.url}"}, {"$set": {"lastmod": link.lastmod}})
        for link in dated
    ]
    await db.targets.bulk_write(writes)


async def of_list(db: Database, spider: str, items: list[str], due: datetime) -> None:
    """These items are due, if such hints are right: a list shows them otherwise than before."""
    if not items or not await trusted(db, spider, LIST):
        return
    # Who is due anyway, or was visited in this pass, needs no hint.
    query: Document = {
        "_id": {"$in": [f"{spider} {item}" for item in items]},
        "next_visit": {"$gt": due},
        "visited_at": {"$lt": due},
        "consecutive_gone": 0,
    }
    await db.targets.update_many(query, {"$set": {"next_visit": due, "hinted": True, "hint": LIST}})


async def trusted(db: Database, spider: str, hint: str) -> bool:
    """Whether enough of the latest visits that such a hint caused found a change."""
    query = {"spider": spider, "hint": hint}
    cursor = db.visits.find(query, {"changed": 1}).sort("at", -1).limit(SAMPLE)
    found = [row["changed"] async for row in cursor]
    return len(found) < BENEFIT_OF_DOUBT or sum(found) / len(found) >= LEAST_SHARE
