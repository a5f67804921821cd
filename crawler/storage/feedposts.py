"""`posts` of feeds: found by feed and id, stored with the visit that brought them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from pymongo import UpdateOne

from crawler.items import Kind, Target, Visit
from crawler.posts import KnownPost, Post
from crawler.sketches.claim import Verdicts
from crawler.storage.bulk import in_batches, insert_new
from crawler.storage.client import Database, Document
from crawler.storage.shown import fielded, naming, shown
from crawler.storage.targets import new_document
from crawler.urls import canonical

BATCH = 1000


async def known(db: Database, target: Target, ids: Sequence[str]) -> dict[str, KnownPost]:
    """Those of a feed's posts with these ids that are stored, by id."""
    found: dict[str, KnownPost] = {}
    fields = {"guid": 1, "content_hash": 1, "first_seen": 1}
    for some in in_batches(ids, BATCH):
        query = {"spider": target.spider, "feed": target.url, "guid": {"$in": some}}
        async for post in db.posts.find(query, fields):
            found[post["guid"]] = KnownPost(post["_id"], post["content_hash"], post["first_seen"])
    return found


async def known_by_link(
    db: Database, target: Target, posts: Sequence[Post]
) -> dict[str, KnownPost]:
    """Those of a feed's posts whose links are stored, by their ids of now.

    For a feed that gives all its posts new ids, so that none is known by its own. A link that
    several posts share tells nothing of them.
    """
    shared = Counter(post.url for post in posts)
    by_url = {post.url: post.id for post in posts if post.url and shared[post.url] == 1}
    found: dict[str, KnownPost] = {}
    fields = {"url": 1, "content_hash": 1, "first_seen": 1}
    own = {"spider": target.spider, "feed": target.url, "item": {"$exists": True}}
    for some in in_batches(list(by_url), BATCH):
        query = own | {"url": {"$in": some}}
        async for post in db.posts.find(query, fields):
            known_post = KnownPost(post["_id"], post["content_hash"], post["first_seen"])
            found[by_url[post["url"]]] = known_post
    return found


async def follow(db: Database, visit: Visit, due: datetime) -> int:
    """The pages of a visit's posts become targets that are fetched once; how many are new."""
    if visit.collected is None or not visit.fetched.follow:
        return 0
    target, at = visit.fetched.target, visit.fetched.at
    links = [(canonical(post.url), key) for key, post in visit.collected.posts if post.url]
    pages = {url: key for url, key in links if url != target.url}
    new = [
        new_document(target.spider, url, Kind.ITEM, due, at, target.categories) | {"post": key}
        for url, key in pages.items()
    ]
    if edited := [key for key, _ in visit.collected.edited]:
        query: Document = {"spider": target.spider, "post": {"$in": edited}}
        await db.targets.update_many(query, {"$set": {"next_visit": due}})
    return await insert_new(db.targets, new)


async def store(db: Database, batch: list[Visit], verdicts: Verdicts) -> None:
    """Posts and their versions, as visits brought them; safe to repeat."""
    rows = [(v, key, post) for v in batch if v.collected for key, post in v.collected.posts]
    for some in in_batches(rows, BATCH):
        await insert_new(db.versions, [_version(*row) for row in some])
        await db.posts.bulk_write([_update_of(*row, verdicts) for row in some], ordered=False)


def _version(visit: Visit, key: str, post: Post) -> Document:
    """As `versions.row_of` makes it of a page; the target's name is the post's."""
    spider = visit.fetched.target.spider
    return {
        "_id": f"{key} {post.content_hash}",
        "spider": spider,
        "target": key.removeprefix(f"{spider} "),
        "content_hash": post.content_hash,
        "at": visit.fetched.at,
        "size": len(str(post.content).encode()),
        "content": post.content,
    }


def _update_of(visit: Visit, key: str, post: Post, verdicts: Verdicts) -> UpdateOne:
    target, at, content = visit.fetched.target, visit.fetched.at, post.content
    current: Document = {
        "feed": target.url,
        "url": post.url,
        "title": content.get("title"),
        "text": content.get("main_text"),
        "fields": {name: value for name, value in content.items() if name != "main_text"},
        "categories": list(target.categories),
        "published": post.published,
        "content_hash": post.content_hash,
        "changed_at": at,
    }
    constant = {"spider": target.spider, "guid": post.id, "first_seen": at}
    update = naming({"$set": current, "$setOnInsert": constant}, visit.fetched)
    update = shown(update, current, verdicts.get(key))
    update = fielded(update, "item", visit.items.get(key))
    update = fielded(update, "link", visit.links.get(key))
    return UpdateOne({"_id": key}, update, upsert=True)
