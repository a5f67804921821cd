"""`posts`: the collected items as they are now, one document each."""

from __future__ import annotations

from pymongo import UpdateOne

from crawler.items import Fetched
from crawler.storage.client import Database, Document


async def store(db: Database, items: list[Fetched]) -> None:
    """Make the items' documents hold what was fetched, under the categories of this moment."""
    if not items:
        return
    query = {"_id": {"$in": [item.target.key for item in items]}}
    found = db.targets.find(query, {"categories": 1})
    categories = {target["_id"]: target["categories"] async for target in found}
    updates = [
        _page_of_post(item)
        if item.target.post
        else _update_of(item, categories.get(item.target.key, []))
        for item in items
    ]
    await db.posts.bulk_write(updates, ordered=False)


def _page_of_post(fetched: Fetched) -> UpdateOne:
    """The text of a feed's post is that of its page; what the feed said of it stays."""
    content = fetched.content or {}
    page = {"url": fetched.target.url, "at": fetched.at, "content_hash": fetched.content_hash}
    fields = {name: value for name, value in content.items() if name != "main_text"}
    current: Document = {"page": page | {"fields": fields}}
    if content.get("main_text"):
        current["text"] = content["main_text"]
    return UpdateOne({"_id": fetched.target.post}, {"$set": current})


def _update_of(fetched: Fetched, categories: list[str]) -> UpdateOne:
    target, content = fetched.target, fetched.content or {}
    current: Document = {
        "fields": {name: value for name, value in content.items() if name != "main_text"},
        "title": content.get("title"),
        "text": content.get("main_text"),
        "categories": categories,
        "content_hash": fetched.content_hash,
        "changed_at": fetched.at,
    }
    constant = {"spider": target.spider, "url": target.url, "first_seen": fetched.at}
    return UpdateOne({"_id": target.key}, {"$set": current, "$setOnInsert": constant}, upsert=True)
