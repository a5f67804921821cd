"""What a list page shows of its items, compared with what it showed before."""

from __future__ import annotations

from datetime import datetime

from pymongo import UpdateOne

from crawler.items import Fetched
from crawler.storage import hints
from crawler.storage.bulk import in_batches
from crawler.storage.client import Database

BATCH = 1000


async def record(db: Database, fetched: Fetched, due: datetime) -> None:
    """Items with another card than at the list's last visit are due, if such hints are right."""
    page = fetched.target
    cards = {
        f"{page.spider} {link.url} {page.url}": link.card
        for link in fetched.links or ()
        if link.card is not None
    }
    for keys in in_batches(list(cards), BATCH):
        cursor = db.listings.find({"_id": {"$in": keys}}, {"item": 1, "card": 1})
        other = [edge async for edge in cursor if edge.get("card") != cards[edge["_id"]]]
        known = [edge["item"] for edge in other if edge.get("card") is not None]
        # Items first: once a card is kept, a repetition after a crash takes it for done.
        await hints.of_list(db, page.spider, known, due)
        writes = [
            UpdateOne({"_id": edge["_id"]}, {"$set": {"card": cards[edge["_id"]]}})
            for edge in other
        ]
        if writes:
            await db.listings.bulk_write(writes, ordered=False)
