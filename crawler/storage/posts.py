"""`posts`: the collected items as they are now, one document each."""

from __future__ import annotations

from pymongo import UpdateOne

from crawler.items import Fetched
from crawler.storage.client import Document


def update_of(fetched: Fetched) -> UpdateOne:
    """The write that makes an item's document hold what a fetch brought."""
    target = fetched.target
    current: Document = {
        "fields": {k: v for k, v in (fetched.content or {}).items() if k not in _TEXT},
        "title": (fetched.content or {}).get("title"),
        "text": (fetched.content or {}).get("main_text"),
        "categories": list(target.categories),
        "content_hash": fetched.content_hash,
        "changed_at": fetched.at,
    }
    constant = {"spider": target.spider, "url": target.url, "first_seen": fetched.at}
    return UpdateOne({"_id": target.key}, {"$set": current, "$setOnInsert": constant}, upsert=True)


_TEXT = frozenset({"main_text"})
