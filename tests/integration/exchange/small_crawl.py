"""A small crawl of a shop and a feed with known answers, written directly to the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from crawler.items import Kind
from crawler.storage.targets import new_document
from tests.integration.harness import Db, Row

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
SHOP, FEEDS = "shop", "feeds"
ITEM, OTHER, BROKEN = (f"https://shop.example/item/{n}" for n in (1, 2, 3))
FEED = "https://blog.example/feed"
MONDAY = datetime(2026, 3, 2, 6, 30, tzinfo=UTC)
# Texts that a spreadsheet would run.
FORMULA, TABBED = '=HYPERLINK("http://a.test")', "\t+1"


def ago(days: int, hour: int = 8) -> datetime:
    """Return an hour of a day some days before today."""
    return TODAY - days * DAY + hour * HOUR


def visit(at: datetime, outcome: str, target: str = ITEM, **fields: Any) -> Row:
    """Return a row of the change log."""
    row = {
        "_id": ObjectId(), "spider": FEEDS if target == FEED else SHOP, "target": target, "at": at,
        "outcome": outcome, "changed": int(outcome == "changed"), "status": 200, "get_size": 1000,
        "elapsed_ms": 2000 if target == OTHER else 100, "fence": 1,
    }  # fmt: skip
    return row | fields


def version(content_hash: str, at: datetime, **content: Any) -> Row:
    """Return a stored version of the item."""
    key = f"{SHOP} {ITEM} {content_hash}"
    place = {"_id": key, "spider": SHOP, "target": ITEM, "content_hash": content_hash}
    return place | {"at": at, "size": 500, "content": content, "fence": 1}


def post(url: str, **fields: Any) -> Row:
    """Return a post."""
    spider = fields.get("spider", SHOP)
    row = {"_id": f"{spider} {url}", "spider": spider, "url": url, "content_hash": "h"}
    return row | {"first_seen": ago(5), "changed_at": ago(5), "title": "Tea"} | fields


def fill(db: Db) -> None:
    """Store two sites with five days of visits, none of them today or yesterday."""
    db.visits.insert_many([
        visit(ago(6), "new", content_hash="a"),
        visit(ago(5), "unchanged", content_hash="a"),
        visit(ago(4), "changed", content_hash="b"),
        visit(ago(3), "changed", content_hash="a"),
        visit(ago(6, 9), "new", OTHER, content_hash="c"),
        visit(ago(2, 9), "changed", OTHER, content_hash="d", reason=FORMULA),
        visit(ago(6, 10), "error", BROKEN, reason=TABBED, status=None, get_size=0),
        visit(ago(3, 10), "not_modified", BROKEN, get_size=0),
        visit(ago(3, 11), "changed", FEED, missed_posts=2.5, posts_new=3),
        visit(ago(2, 11), "unchanged", FEED, pushed=True),
    ])  # fmt: skip
    db.versions.insert_many([
        version("a", ago(6), title="Tea", price=10, main_text="green"),
        version("b", ago(4), title="Tea", price=12.5, main_text="green"),
    ])  # fmt: skip
    db.posts.insert_many([
        post(ITEM, categories=["toys"], fields={"price": 10}),
        post(OTHER, categories=["toys", "garden"], duplicate_of=f"{SHOP} {ITEM}", similarity=0.9),
        post("https://blog.example/1", spider=FEEDS, feed=FEED, guid="1", published=MONDAY),
        post("https://blog.example/2", spider=FEEDS, feed=FEED, guid="2", published=None),
    ])  # fmt: skip
    kinds = {ITEM: Kind.ITEM, OTHER: Kind.ITEM, BROKEN: Kind.ITEM, FEED: Kind.FEED}
    db.targets.insert_many(
        new_document(FEEDS if kind is Kind.FEED else SHOP, url, kind, ago(-1), ago(6))
        for url, kind in kinds.items()
    )
    push = {"state": "active", "token": "SECRET-TOKEN", "secret": "SECRET-KEY"}
    feed = {"_id": f"{FEEDS} {FEED}", "spider": FEEDS, "url": FEED, "title": "Blog", "push": push}
    db.feeds.insert_one(feed | {"posts": 2, "missed_posts": 2.5})
    plan = {"_id": ObjectId(), "at": ago(2), "spiders": [SHOP], "state": "active"}
    db.plans.insert_one(plan | {"kind": "pages", "targets": 3, "totals": {"freshness": 0.9}})
