"""`posts` of feeds: found by feed and id, stored with the visit that brought them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from pymongo import UpdateOne

from crawler.dedup.model import Verdicts
from crawler.items import Kind, KnownPost, Post, Target, Visit
from crawler.storage import fences, interrupted, versions
from crawler.storage.bulk import in_batches, insert_new
from crawler.storage.client import Database, Document
from crawler.storage.shown import fielded, naming, shown
from crawler.storage.targets import new_document
from crawler.utils.urls import canonical

BATCH = 1000
KNOWN = ("guid", "url", "content_hash", "first_seen", "changed_at", "fence", "visit")


async def known(db: Database, target: Target, ids: Sequence[str]) -> dict[str, KnownPost]:
    """Those of a feed's posts with these ids that are stored, by id."""
    found: dict[str, KnownPost] = {}
    for some in in_batches(ids, BATCH):
        query = {"spider": target.spider, "feed": target.url, "guid": {"$in": some}}
        for post in (await _known(db, target, query)).values():
            found[post["guid"]] = _as_known(post)
    return found


async def _known(db: Database, target: Target, query: Document) -> dict[str, Document]:
    """Stored posts by `_id`, as far as they count: what an interrupted visit stored does not."""
    found = {post["_id"]: post async for post in db.posts.find(query, KNOWN)}
    if target.again:
        since = await interrupted.logged_since(db, target.spider)
        doubtful = [
            post
            for post in found.values()
            if post.get("fence", 0) >= fences.first(target.fence) and post["changed_at"] >= since
        ]
        for post in await interrupted.without_visit(db, doubtful):
            if post["changed_at"] == post["first_seen"]:
                del found[post["_id"]]
            else:
                post["content_hash"] = ""
    return found


def _as_known(post: Document) -> KnownPost:
    return KnownPost(post["_id"], post["content_hash"], post["first_seen"])


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
    own = {"spider": target.spider, "feed": target.url, "item": {"$exists": True}}
    for some in in_batches(list(by_url), BATCH):
        query = own | {"url": {"$in": some}}
        for post in (await _known(db, target, query)).values():
            found[by_url[post["url"]]] = _as_known(post)
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
        await versions.store(db, [_version(*row) for row in some])
        await fences.write(db.posts, [_update_of(*row, verdicts) for row in some])


def _version(visit: Visit, key: str, post: Post) -> Document:
    """As `versions.row_of` makes it of a page; the target's name is the post's."""
    spider = visit.fetched.target.spider
    return {
        "_id": f"{key} {post.content_hash}",
        "spider": spider,
        "target": key.removeprefix(f"{spider} "),
        "content_hash": post.content_hash,
        "visit": visit.id,
        "fence": visit.fetched.target.fence,
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
        "visit": visit.id,
        "fence": target.fence,
    }
    constant = {"spider": target.spider, "guid": post.id, "first_seen": at}
    update = naming({"$set": current, "$setOnInsert": constant}, visit.fetched)
    update = shown(update, current, verdicts.get(key))
    update = fielded(update, "item", visit.items.get(key))
    update = fielded(update, "link", visit.links.get(key))
    query = {"_id": key} | fences.passed(target.fence)
    return UpdateOne(query, update, upsert=True)
