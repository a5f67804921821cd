"""`feeds`: what is known of a feed besides its target: window, losses, hubs, the last trouble."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pymongo import UpdateOne

from crawler.dedup.model import Verdicts
from crawler.feeds.subscriptions import Subscription
from crawler.items import (
    SEEN,
    Bounds,
    Collected,
    FeedDocument,
    Fetched,
    Kind,
    KnownPost,
    Monitor,
    Post,
    Target,
    Visit,
)
from crawler.storage import fences
from crawler.storage import posts as versions
from crawler.storage import recovery as interrupted
from crawler.storage.client import Database, Document
from crawler.storage.dedup import boilerplate
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.registry import Registry
from crawler.storage.posts import with_field, with_field_names, with_words_and_verdict
from crawler.storage.retry import in_batches, insert_new
from crawler.storage.targets import MAX_CATEGORIES, new_document
from crawler.utils.urls import canonical
from schedules.history import CHANGE

BATCH = 1000
FEED = str(Kind.FEED)
NAMED = {"spider": 1, "url": 1, "title": 1, "categories": 1, "alias_of": 1, "gone": 1}
# Of a history the number of its records is enough.
SHOWN: Document = dict.fromkeys(
    (
        "url", "title", "categories", "visited_at", "next_visit", "outcome", "refreshed",
        "consecutive_errors", "consecutive_gone", "gone", "alias_of", "window", "plan",
        "history.since", "history.until", "last_visit.reason", "last_visit.outcome",
    ),
    1,
) | {"change_bytes": {"$binarySize": {"$ifNull": ["$history.changes", None]}}}  # fmt: skip


@dataclass(slots=True)
class Added:
    """How many feeds were new, and how many there already."""

    added: int = 0
    known: int = 0


def all_of(spider: str) -> Document:
    """A query for the feeds of a spider."""
    return {"_id": _below(spider), "kind": FEED}


def of_urls(spider: str, urls: Sequence[str]) -> Document:
    """A query for the feeds with exactly these canonical URLs."""
    return {"_id": {"$in": [f"{spider} {url}" for url in urls]}, "kind": FEED}


def within(category: str) -> Document:
    """A query for what is in a category, or in one below it."""
    return {"categories": {"$regex": f"^{re.escape(category)}(/|$)"}}


def _named(spider: str, urls: Sequence[str]) -> Document:
    """A query for the feeds that have one of these URLs, as their own or as an alias."""
    names = [
        {"_id": {"$in": [f"{spider} {url}" for url in urls]}},
        {"spider": spider, "aliases": {"$in": list(urls)}},
    ]
    return {"kind": FEED, "$or": names}


def _below(key: str) -> Document:
    """Keys that begin with `key` and a space."""
    return {"$gte": f"{key} ", "$lt": f"{key}!"}


async def add(
    db: Database, spider: str, feeds: Sequence[Subscription], now: datetime, *, singly: bool = False
) -> Added:
    """Put feeds in, due at once; those already there gain categories, and a title if they had none.

    singly: the user means these very feeds: a title counts, and one that is gone is due at once
    """
    total = Added()
    for some in in_batches(feeds, BATCH):
        known = await _known(db, spider, [feed.url for feed in some])
        new = [_new(spider, feed, now) for feed in some if feed.url not in known]
        added = await insert_new(db.targets, new)
        if added < len(new):  # somebody else put them in at the same time
            known = await _known(db, spider, [feed.url for feed in some])
        there = [(feed, known[feed.url]) for feed in some if feed.url in known]
        if more := [x for one in there if (x := _more(*one, now, singly=singly))]:
            await db.targets.bulk_write(more, ordered=False)
        total.added += added
        total.known += len(some) - added
    return total


async def _known(db: Database, spider: str, urls: list[str]) -> dict[str, Document]:
    """The feeds that are there, by each of these URLs that is theirs, aliases included."""
    found = await db.targets.find(_named(spider, urls), NAMED | {"aliases": 1}).to_list(None)
    owners = {alias: one for one in found for alias in one.get("aliases", ())}
    return owners | {one["url"]: one for one in found if "alias_of" not in one}


def _new(spider: str, feed: Subscription, now: datetime) -> Document:
    made = new_document(spider, feed.url, Kind.FEED, now, now, feed.categories)
    return made | {"title": feed.title}


def _more(feed: Subscription, known: Document, now: datetime, *, singly: bool) -> UpdateOne | None:
    """What a feed that is there gains; None if that is nothing."""
    update: Document = {}
    if missing := [name for name in feed.categories if name not in known.get("categories", ())]:
        update["$push"] = {"categories": {"$each": missing, "$slice": -MAX_CATEGORIES}}
    if feed.title and (singly or not known.get("title")):
        update["$set"] = {"title": feed.title}
    if singly and known.get("gone"):
        update["$min"] = {"next_visit": now}
    return UpdateOne({"_id": known["_id"]}, update) if update else None


async def exported(db: Database, spider: str) -> list[Subscription]:
    """All feeds but aliases, sorted by URL."""
    query = all_of(spider) | {"alias_of": {"$exists": False}}
    feeds = []
    async for target, monitor in _with_monitors(db, query, NAMED, {"title": 1, "site": 1}):
        title = target.get("title") or monitor.get("title")
        categories = tuple(target.get("categories", ()))
        feeds.append(Subscription(target["url"], title, monitor.get("site"), categories))
    return feeds


async def shown_feeds(db: Database, query: Document) -> AsyncIterator[tuple[Document, Document]]:
    """Targets and monitors of feeds, sorted by URL; memory does not grow with their number.

    A target has `changes` besides: how many posts its history holds.
    """
    async for target, monitor in _with_monitors(
        db, query, SHOWN, {"ids": 0, "push.secret": 0, "push.token": 0}
    ):
        target["changes"] = (target.pop("change_bytes", None) or 0) // CHANGE.itemsize
        yield target, monitor


async def _with_monitors(
    db: Database, query: Document, of_target: Document, of_monitor: Document
) -> AsyncIterator[tuple[Document, Document]]:
    cursor = db.targets.find(query, of_target).sort("_id").batch_size(BATCH)
    while targets := await cursor.to_list(BATCH):
        keys = [target["_id"] for target in targets]
        found = db.feeds.find({"_id": {"$in": keys}}, of_monitor)
        monitors = {monitor["_id"]: monitor async for monitor in found}
        for target in targets:
            yield target, monitors.get(target["_id"], {})


async def feeds_named(db: Database, spider: str, names: Sequence[str]) -> list[str]:
    """URLs of the feeds that have one of these canonical URLs, as their own or as an alias.

    A feed comes with all its aliases: what one of them knows is the same feed.
    """
    found = await db.targets.find(_named(spider, names), NAMED).to_list(None)
    owners = sorted({one.get("alias_of") or one["url"] for one in found})
    query = {"spider": spider, "kind": FEED, "alias_of": {"$in": owners}}
    aliases = await db.targets.distinct("url", query) if owners else []
    return sorted({*owners, *aliases})


async def remove(
    db: Database,
    registry: Registry,
    spider: str,
    urls: Sequence[str],
    now: datetime,
    *,
    really: bool,
) -> dict[str, int]:
    """Remove feeds and all that came of them; counts by collection. Repeat it after a crash."""
    counts: dict[str, int] = {}
    for url in urls:
        for collection, query in await _queries(db, spider, url):
            if really and collection == "posts":
                await release_posts(db, registry, query, now)
            if really:
                n = (await db[collection].delete_many(query)).deleted_count
            else:
                n = await db[collection].count_documents(query)
            counts[collection] = counts.get(collection, 0) + n
        if really:
            await boilerplate.forget(db, spider, url)
    return counts


async def _queries(db: Database, spider: str, url: str) -> list[tuple[str, Document]]:
    """What belongs to a feed, the target last: after a crash it can be removed again."""
    key = f"{spider} {url}"
    target = await db.targets.find_one({"_id": key}, {"aliases": 1}) or {}
    # Posts of a feed that was renamed are known by its old name.
    names = [url, *target.get("aliases", ())]
    of_posts: Document = {
        "spider": spider, "$or": [{"post": _below(f"{spider} {name}")} for name in names],
    }  # fmt: skip
    pages = [page["url"] async for page in db.targets.find(of_posts, {"url": 1})]
    of_pages: list[tuple[str, Document]] = [
        (collection, {"spider": spider, "target": {"$in": some}})
        for some in in_batches([url, *pages], BATCH)
        for collection in ("versions", "visits", "days")
    ]
    return [
        ("pushes", {"spider": spider, "url": url}),
        ("posts", {"spider": spider, "feed": url}),
        *(("versions", {"spider": spider, "target": _below(name)}) for name in names),
        *of_pages,
        ("feeds", {"_id": key}),
        ("targets", of_posts),
        ("targets", {"_id": key}),
    ]


FEEDPOSTS_BATCH = 1000
KNOWN = ("guid", "url", "content_hash", "first_seen", "changed_at", "fence", "visit")


async def known(db: Database, target: Target, ids: Sequence[str]) -> dict[str, KnownPost]:
    """Those of a feed's posts with these ids that are stored, by id."""
    found: dict[str, KnownPost] = {}
    for some in in_batches(ids, FEEDPOSTS_BATCH):
        query = {"spider": target.spider, "feed": target.url, "guid": {"$in": some}}
        for post in (await _known_feedposts(db, target, query)).values():
            found[post["guid"]] = _as_known(post)
    return found


async def _known_feedposts(db: Database, target: Target, query: Document) -> dict[str, Document]:
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
    for some in in_batches(list(by_url), FEEDPOSTS_BATCH):
        query = own | {"url": {"$in": some}}
        for post in (await _known_feedposts(db, target, query)).values():
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
    for some in in_batches(rows, FEEDPOSTS_BATCH):
        await versions.store_versions(db, [_version(*row) for row in some])
        await fences.write(db.posts, [_update_of_feedposts(*row, verdicts) for row in some])


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


def _update_of_feedposts(visit: Visit, key: str, post: Post, verdicts: Verdicts) -> UpdateOne:
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
    update = with_field_names({"$set": current, "$setOnInsert": constant}, visit.fetched)
    update = with_words_and_verdict(update, current, verdicts.get(key))
    update = with_field(update, "item", visit.items.get(key))
    update = with_field(update, "link", visit.links.get(key))
    query = {"_id": key} | fences.passed(target.fence)
    return UpdateOne(query, update, upsert=True)


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
