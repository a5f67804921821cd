"""`feeds`: what is known of a feed besides its target: window, losses, hubs, the last trouble."""

from __future__ import annotations

from pymongo import UpdateOne

from crawler.items import (
    SEEN,
    Bounds,
    Collected,
    FeedDocument,
    Fetched,
    Kind,
    Monitor,
    Target,
    Visit,
)
from crawler.storage import fences
from crawler.storage.client import Database, Document

COUNTED = ("window", "full", "posts", "missed", "lapses", "lapsed_at", "newest")


async def monitor(db: Database, target: Target) -> Monitor:
    """What is known of a feed; nothing before its first visit."""
    found = await db.feeds.find_one({"_id": target.key})
    return of_document(found or {})


def of_document(found: Document) -> Monitor:
    """What a document of the collection says."""
    bounds = found.get("bounds") or {}
    return Monitor(
        **{name: found[name] for name in COUNTED if name in found},
        ids=bytes(found.get("ids") or b""),
        bounds=Bounds(
            bounds.get("every_hours"),
            tuple(bounds.get("skip_hours") or ()),
            tuple(bounds.get("skip_days") or ()),
        ),
        push=found.get("push") or {},
    )


async def of_key(db: Database, key: str) -> Document:
    """The document of a feed; empty before its first visit."""
    return await db.feeds.find_one({"_id": key}) or {}


async def twin(db: Database, fetched: Fetched) -> str | None:
    """URL of another feed of this spider whose document was the same at its last visit.

    Its title and site have to be the same too: a category of a blog may well have the posts of the
    whole blog for a while.
    """
    target, document = fetched.target, fetched.document
    query: Document = {
        "spider": target.spider,
        "kind": str(Kind.FEED),
        "content_hash": fetched.content_hash,
        "url": {"$ne": target.url},
        "alias_of": {"$exists": False},
        "gone": {"$ne": True},
    }
    found = await db.targets.find_one(query, {"url": 1}, sort=[("first_seen", 1)])
    if found is None or document is None:
        return None
    known = await of_key(db, found["_id"])
    same = (known.get("title"), known.get("site")) == (document.title, document.site)
    return found["url"] if same else None


async def note(db: Database, batch: list[Visit]) -> None:
    """Write down what visits of feeds found; safe to repeat."""
    updates = [_update_of(visit) for visit in batch if visit.fetched.target.kind is Kind.FEED]
    await fences.write(db.feeds, updates)


def _update_of(visit: Visit) -> UpdateOne:
    fetched, target = visit.fetched, visit.fetched.target
    state: Document = {"spider": target.spider, "url": target.url, "error": None}
    state["fence"] = target.fence
    if visit.outcome not in SEEN:
        state["error"] = visit.reason or str(visit.outcome)
    else:
        state["seen_at"] = fetched.at
    if fetched.document is not None and visit.collected is not None:
        state |= _counted(visit.collected)
        # A delivery may be an old one, and need not name the hubs that headers name.
        if fetched.push is None:
            state |= _of_feed(fetched.document)
    query = {"_id": target.key} | fences.passed(target.fence)
    return UpdateOne(query, {"$set": state}, upsert=True)


def _of_feed(document: FeedDocument) -> Document:
    """What the document says of the feed itself."""
    bounds = document.bounds
    return {
        "title": document.title,
        "site": document.site,
        "format": document.format,
        "bounds": {
            "every_hours": bounds.every_hours,
            "skip_hours": list(bounds.skip_hours),
            "skip_days": list(bounds.skip_days),
        },
        "hubs": list(document.hubs),
        "topic": document.topic,
        "problems": list(document.problems),
    }


def _counted(collected: Collected) -> Document:
    after = collected.monitor
    return {name: getattr(after, name) for name in COUNTED} | {"ids": after.ids}
