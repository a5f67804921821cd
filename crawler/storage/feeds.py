"""`feeds`: the monitors of feeds (size, missed posts, hubs, the last error), and their posts.

Each feed is a target with an additional document here. Its posts are stored by the ids that the
feed gives them, and the pages that posts link to become targets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pymongo import UpdateOne

from crawler.dedup.posts import Verdicts
from crawler.feeds.subscriptions import Subscription
from crawler.items import (
    SEEN,
    Bounds,
    Fetched,
    Kind,
    KnownPost,
    Monitor,
    Post,
    Target,
    Visit,
)
from crawler.storage import leases, outbox, readers, recovery
from crawler.storage.client import (
    Database,
    Document,
    in_batches,
    insert_new,
    write_all,
)
from crawler.storage.dedup import boilerplate
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.signatures import Registry
from crawler.storage.paging import Key, keys_of
from crawler.storage.posts import of_feed, store_versions, update_of, version_of, with_field
from crawler.storage.targets import (
    ALIVE,
    MAX_CATEGORIES,
    URL_COLLECTIONS,
    feed_spiders,
    new_document,
)
from crawler.utils.time import HOUR_MILLISECONDS, NEVER
from crawler.utils.urls import canonical, is_http, item_key
from schedules.history import CHANGE

BATCH = 1000
MAX_FOLDERS = 1000
FEED = str(Kind.FEED)
NAMED = {"spider": 1, "url": 1, "title": 1, "categories": 1, "alias_of": 1, "gone": 1}
# Reads only the number of a history's records.
LISTED: Document = dict.fromkeys(
    (
        "url", "title", "categories", "visited_at", "next_visit", "outcome", "refreshed",
        "consecutive_errors", "consecutive_gone", "gone", "alias_of", "feed_size", "plan",
        "history.since", "history.until", "last_visit.reason", "last_visit.outcome",
    ),
    1,
) | {"change_bytes": {"$binarySize": {"$ifNull": ["$history.changes", None]}}}  # fmt: skip
KNOWN_POST_FIELDS = (
    "guid", "link", "title", "published", "content_hash", "first_seen", "changed_at", "fence",
    "visit",
)  # fmt: skip
# Numbers of stored posts that are compared by title with those of a document.
MIN_TITLES, MAX_TITLES = 50, 1000
# Fields of a monitor that a document has under the same names.
COUNTED = (
    "feed_size", "full", "posts", "missed_posts", "gaps", "last_gap_at", "newest", "false_dates",
    "edited_visits", "utc_offset_hours",
)  # fmt: skip


@dataclass(slots=True)
class Added:
    """Numbers of feeds that were new, and of those already stored."""

    added: int = 0
    known: int = 0


def all_of(spider: str) -> Document:
    """Return a query for the feeds of a spider."""
    return {"_id": keys_of(spider), "kind": FEED}


def of_urls(spider: str, urls: Sequence[str]) -> Document:
    """Return a query for the feeds with these canonical URLs."""
    return {"_id": {"$in": [f"{spider} {url}" for url in urls]}, "kind": FEED}


async def count_unfetched(db: Database) -> int:
    """Return the number of feeds that wait for their first fetch."""
    query: Document = {"kind": FEED, "visited_at": None, "next_visit": {"$lt": NEVER}}
    return await db.targets.count_documents(query)


def within(category: str) -> Document:
    """Return a query for a category and the categories below it."""
    return {"categories": {"$regex": f"^{re.escape(category)}(/|$)"}}


def _named(spider: str, urls: Sequence[str]) -> Document:
    """Return a query for the feeds with one of these URLs, as their own or as an alias."""
    names = [
        {"_id": {"$in": [f"{spider} {url}" for url in urls]}},
        {"spider": spider, "aliases": {"$in": list(urls)}},
    ]
    return {"kind": FEED, "$or": names}


async def add(
    db: Database, spider: str, feeds: Sequence[Subscription], now: datetime, *, singly: bool = False
) -> Added:
    """Insert feeds as due targets; stored ones gain categories, and a title if they had none.

    singly: the user named each feed, so titles replace stored ones, and gone feeds are due now
    """
    total = Added()
    for batch in in_batches(feeds, BATCH):
        urls = [feed.url for feed in batch]
        stored = await _load_named(db, spider, urls)
        new = [
            new_document(spider, feed.url, Kind.FEED, now, now, feed.categories)
            | {"title": feed.title}
            for feed in batch
            if feed.url not in stored
        ]
        added = await insert_new(db.targets, new)
        if added < len(new):  # another process inserted some of them concurrently
            stored = await _load_named(db, spider, urls)
        updates = []
        for feed in batch:
            if feed.url not in stored:
                continue
            target, update = stored[feed.url], Document()
            present = target.get("categories", ())
            if missing := [name for name in feed.categories if name not in present]:
                update["$push"] = {"categories": {"$each": missing, "$slice": -MAX_CATEGORIES}}
            if feed.title and (singly or not target.get("title")):
                update["$set"] = {"title": feed.title}
            if singly and target.get("gone"):
                update["$min"] = {"next_visit": now}
            if update:
                updates.append(UpdateOne({"_id": target["_id"]}, update))
        await write_all(db.targets, updates)
        total.added += added
        total.known += len(batch) - added
    return total


async def _load_named(db: Database, spider: str, urls: list[str]) -> dict[str, Document]:
    """Return the stored feeds with these URLs, by URL, including aliases."""
    fields = NAMED | {"aliases": 1}
    targets = await db.targets.find(_named(spider, urls), fields).to_list(None)
    owners = {alias: target for target in targets for alias in target.get("aliases", ())}
    return owners | {target["url"]: target for target in targets if "alias_of" not in target}


async def exported(db: Database, spider: str) -> list[Subscription]:
    """Return all feeds except aliases, sorted by URL."""
    query = all_of(spider) | {"alias_of": {"$exists": False}}
    feeds = []
    async for target, monitor in _with_monitors(db, query, NAMED, {"title": 1, "site": 1}):
        title = target.get("title") or monitor.get("title")
        categories = tuple(target.get("categories", ()))
        feeds.append(Subscription(target["url"], title, monitor.get("site"), categories))
    return feeds


async def listed(
    db: Database, query: Document, limit: int = 0
) -> AsyncIterator[tuple[Document, Document]]:
    """Yield targets and monitors of feeds, sorted by URL, in constant memory.

    limit: maximum number of feeds; 0: all

    Targets also get `changes`: the number of posts in their history.
    """
    of_monitor = {"ids": 0, "push.secret": 0, "push.token": 0}
    async for target, monitor in _with_monitors(db, query, LISTED, of_monitor, limit):
        target["changes"] = (target.pop("change_bytes", None) or 0) // CHANGE.itemsize
        yield target, monitor


async def page_of(
    db: Database, query: Document, limit: int, after: Key | None = None
) -> tuple[list[tuple[Document, Document]], Key | None]:
    """Return a page of feeds as `listed` yields them, and the key of the next page."""
    # Without these ranges, the server would also read the targets of sites without feeds.
    of_spiders = [{"_id": keys_of(name)} for name in await feed_spiders(db)]
    if not of_spiders:
        return [], None
    query = {"$and": [query, {"$or": of_spiders}]}
    if after is not None:
        query["$and"].append({"_id": {"$gt": after[0]}})
    rows: list[tuple[Document, Document]] = []
    async for row in listed(db, query, limit + 1):
        rows.append(row)
        if len(rows) > limit:
            return rows[:limit], (rows[limit - 1][0]["_id"],)
    return rows, None


async def edit(
    db: Database,
    key: str,
    title: str | None,
    categories: Sequence[str],
    before: tuple[str | None, Sequence[str]],
) -> bool:
    """Set title and categories of a feed; return False if the stored ones differ from `before`.

    title: None: use the title in the feed's document
    """
    query: Document = {"_id": key, "kind": FEED, "title": before[0]}
    query["categories"] = list(before[1]) if before[1] else {"$in": [None, []]}
    update = {"$set": {"title": title, "categories": list(categories)}}
    return (await db.targets.update_one(query, update)).matched_count > 0


async def edited(db: Database, key: str) -> tuple[str | None, list[str]]:
    """Return the values that `edit` changes: the title that a user gave a feed, and categories."""
    target = await db.targets.find_one({"_id": key}, {"title": 1, "categories": 1}) or {}
    return target.get("title"), target.get("categories") or []


async def folders(db: Database) -> list[tuple[str, int]]:
    """Return the categories of feeds with their numbers of feeds, by name, at most MAX_FOLDERS."""
    stages: list[Document] = [
        {"$match": {"kind": FEED, "alias_of": {"$exists": False}}},
        {"$unwind": "$categories"},
        {"$group": {"_id": "$categories", "feeds": {"$sum": 1}}},
        {"$sort": {"_id": 1}},
        {"$limit": MAX_FOLDERS},
    ]
    return [(row["_id"], row["feeds"]) async for row in await db.targets.aggregate(stages)]


async def _with_monitors(
    db: Database, query: Document, of_target: Document, of_monitor: Document, limit: int = 0
) -> AsyncIterator[tuple[Document, Document]]:
    cursor = db.targets.find(query, of_target).sort("_id").limit(limit).batch_size(BATCH)
    while targets := await cursor.to_list(BATCH):
        keys = [target["_id"] for target in targets]
        rows = db.feeds.find({"_id": {"$in": keys}}, of_monitor)
        monitors = {row["_id"]: row async for row in rows}
        for target in targets:
            yield target, monitors.get(target["_id"], {})


async def feeds_named(db: Database, spider: str, names: Sequence[str]) -> list[str]:
    """Return the URLs of feeds with one of these canonical URLs, as their own or an alias.

    Each feed is returned with all its aliases.
    """
    targets = await db.targets.find(_named(spider, names), NAMED).to_list(None)
    owners = sorted({target.get("alias_of") or target["url"] for target in targets})
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
    delete: bool,
) -> dict[str, int]:
    """Remove feeds with their posts and pages; return counts by collection.

    delete: False to only count
    """
    counts: Counter[str] = Counter()
    for url in urls:
        for collection, query in await _queries_to_remove(db, spider, url):
            if delete and collection == "posts":
                await release_posts(db, registry, query, now)
            counts[collection] += await outbox.remove_from(db, collection, query, delete=delete)
        if delete:
            await boilerplate.forget(db, spider, url)
            await readers.forget(db, spider, url)
    return counts


async def _queries_to_remove(db: Database, spider: str, url: str) -> list[tuple[str, Document]]:
    """Return queries for all documents of a feed, its target last."""
    key = f"{spider} {url}"
    target = await db.targets.find_one({"_id": key}, {"aliases": 1}) or {}
    # Posts of a renamed feed still have its old URL.
    names = [url, *target.get("aliases", ())]
    of_posts: Document = {
        "spider": spider, "$or": [{"post": keys_of(f"{spider} {name}")} for name in names],
    }  # fmt: skip
    pages = [page["url"] async for page in db.targets.find(of_posts, {"url": 1})]
    of_pages: list[tuple[str, Document]] = [
        (collection, {"spider": spider, field: {"$in": batch}})
        for batch in in_batches([url, *pages], BATCH)
        for collection, field in URL_COLLECTIONS.items()
        if collection not in ("targets", "posts")
    ]
    return [
        ("pushes", {"spider": spider, "url": url}),
        ("posts", of_feed(spider, url)),
        *(("versions", {"spider": spider, "target": keys_of(name)}) for name in names),
        *of_pages,
        ("feeds", {"_id": key}),
        ("targets", of_posts),
        ("targets", {"_id": key}),
    ]


async def known_posts(
    db: Database, target: Target, posts: Sequence[Post], monitor: Monitor
) -> dict[str, KnownPost]:
    """Return the stored posts of a document by id.

    If the feed is known, posts with other ids are found by link, and if there are none, by title.
    """
    stored = await _posts_by_id(db, target, [post.id for post in posts])
    if monitor.posts and len(stored) < len(posts):
        stored = await _posts_by_link(db, target, posts, stored)
    if monitor.posts and posts and not stored:
        stored = await _posts_by_title(db, target, posts)
    return stored


async def _posts_by_id(db: Database, target: Target, ids: Sequence[str]) -> dict[str, KnownPost]:
    """Return the stored posts of a feed with these ids, by id."""
    posts: dict[str, KnownPost] = {}
    for batch in in_batches(ids, BATCH):
        query = {"spider": target.spider, "feed": target.url, "guid": {"$in": batch}}
        for post in await _load_posts(db, target, query):
            posts[post["guid"]] = KnownPost(
                post["_id"], post["content_hash"], post["first_seen"], title=post.get("title")
            )
    return posts


async def _posts_by_link(
    db: Database, target: Target, posts: Sequence[Post], known: Mapping[str, KnownPost]
) -> dict[str, KnownPost]:
    """Return the known posts of a document, and the stored posts with the links of the others.

    posts: all posts of the document
    known: stored posts that have the id of one of them, by id

    For feeds that change ids, for example because the site moved to https or to another name with
    or without `www.`, or because another post got the link. Of posts that share a link, only those
    with the same date are found. Stored posts with another title and date are skipped: the feed may
    always link to one page.
    """
    links = {post.id: item_key(post.url) for post in posts}
    shared = Counter(links.values())
    unknown = [
        (_bare(link), post) for post in posts if post.id not in known and (link := links[post.id])
    ]
    of_link = {link: post for link, post in unknown if shared[links[post.id]] == 1}
    of_date = {(link, post.published): post for link, post in unknown if post.published}
    stored = dict(known)
    keys = {post.key for post in known.values()}
    with_page = {"spider": target.spider, "feed": target.url, "item": {"$exists": True}}
    both = [name for link, _ in unknown for name in (link, f"www.{link}")]
    for batch in in_batches(both, BATCH):
        for row in await _load_posts(db, target, with_page | {"link": {"$in": batch}}):
            link = _bare(row["link"])
            date = row.get("published")
            post = of_link.get(link) or (of_date.get((link, date)) if date else None)
            if row["_id"] in keys or post is None:
                continue
            has_date = post.published is not None and row.get("published") == post.published
            if has_date or row.get("title") == post.content.get("title"):
                stored[post.id] = KnownPost(
                    row["_id"],
                    row["content_hash"],
                    row["first_seen"],
                    row["guid"],
                    row.get("title"),
                )
    return stored


async def _posts_by_title(
    db: Database, target: Target, posts: Sequence[Post]
) -> dict[str, KnownPost]:
    """Return the latest stored posts with the titles and dates of posts of a document, by id.

    posts: all posts of the document

    For feeds that change ids and links together, at each visit or because the site moved. Posts
    without a date need the same text. Titles with a date or text that several posts share are
    skipped.
    """
    features = {
        post.id: (post.content.get("title"), post.published or post.content.get("main_text"))
        for post in posts
    }
    shared = Counter(features.values())
    of_features = {
        own: post
        for post in posts
        if shared[own := features[post.id]] == 1 and post.content.get("title")
    }
    query = of_feed(target.spider, target.url)
    number = min(2 * len(posts) + MIN_TITLES, MAX_TITLES)
    stored: dict[str, KnownPost] = {}
    for row in await _load_posts(db, target, query, latest=number):
        dated = (row.get("title"), row.get("published"))
        undated = (row.get("title"), row.get("text"))
        post = of_features.pop(dated, None) or of_features.pop(undated, None)
        if post is None:
            continue
        is_same = row.get("text") == post.content.get("main_text")
        is_same &= _without_query(row.get("url")) == _without_query(post.url)
        # A link that differs only in its parameters, such as a session id, is not an edit.
        content_hash = post.content_hash if is_same else row["content_hash"]
        stored[post.id] = KnownPost(
            row["_id"], content_hash, row["first_seen"], row["guid"], row.get("title")
        )
    return stored


def _without_query(url: str | None) -> str | None:
    return url and url.partition("#")[0].partition("?")[0]


def _bare(link: str) -> str:
    return link.removeprefix("www.")


async def _load_posts(
    db: Database, target: Target, query: Document, latest: int = 0
) -> list[Document]:
    """Return stored posts, except those that only an interrupted visit stored.

    latest: maximum number of posts, the latest first, with their texts; 0: all without texts
    """
    cursor = db.posts.find(query, KNOWN_POST_FIELDS)
    if latest:
        fields = (*KNOWN_POST_FIELDS, "url", "text")
        cursor = db.posts.find(query, fields).sort("first_seen", -1).limit(latest)
    posts = {post["_id"]: post async for post in cursor}
    if target.again:
        since = await recovery.logged_since(db, target.spider)
        doubtful = [
            post
            for post in posts.values()
            if post.get("fence", 0) >= leases.first_fence(target.fence)
            and post["changed_at"] >= since
        ]
        for post in await recovery.without_visit(db, doubtful):
            if post["changed_at"] == post["first_seen"]:
                del posts[post["_id"]]
            else:
                # No content has an empty hash, so this visit stores the post again.
                post["content_hash"] = ""
    return list(posts.values())


async def follow(db: Database, visit: Visit, due: datetime) -> int:
    """Add the pages of a visit's posts as targets to fetch once; return the number of new ones."""
    if visit.collected is None or not visit.fetched.follow:
        return 0
    target, at = visit.fetched.target, visit.fetched.at
    linked = [(post.url, key) for key, post in visit.collected.posts]
    links = [(canonical(url), key) for url, key in linked if url and is_http(url)]
    pages = {url: key for url, key in links if url != target.url}
    new = [
        new_document(target.spider, url, Kind.ITEM, due, at, target.categories) | {"post": key}
        for url, key in pages.items()
    ]
    if edited := [key for key, _ in visit.collected.edited]:
        query: Document = {"spider": target.spider, "post": {"$in": edited}} | ALIVE
        await db.targets.update_many(query, {"$set": {"next_visit": due}})
    return await insert_new(db.targets, new)


async def store(db: Database, batch: list[Visit], verdicts: Verdicts) -> None:
    """Store the posts of feed visits, and their versions; safe to repeat."""
    rows = [(v, key, post) for v in batch if v.collected for key, post in v.collected.posts]
    for part in in_batches(rows, BATCH):
        versions = [
            version_of(visit, key, post.content_hash, len(str(post.content).encode()), post.content)
            for visit, key, post in part
        ]
        await store_versions(db, versions)
        await leases.write_unless_passed(db.posts, [_post_update(*row, verdicts) for row in part])
    renamed = [
        UpdateOne(
            {"_id": key} | leases.unless_passed(v.fetched.target.fence), {"$set": {"guid": id_}}
        )
        for v in batch
        if v.collected
        for key, id_ in v.collected.renamed
    ]
    for updates in in_batches(renamed, BATCH):
        await leases.write_unless_passed(db.posts, updates)


def _post_update(visit: Visit, key: str, post: Post, verdicts: Verdicts) -> UpdateOne:
    target, content = visit.fetched.target, post.content
    current: Document = {
        "feed": target.url,
        "url": post.url,
        "title": content.get("title"),
        "text": content.get("main_text"),
        "categories": list(target.categories),
        "published": post.published,
        "content_hash": post.content_hash,
    }
    query, update = update_of(visit, key, content, current, {"guid": post.id}, verdicts)
    update = with_field(update, "stated", post.stated)
    assumed = visit.collected.monitor.utc_offset_hours if visit.collected else 0.0
    update = with_field(update, "utc_offset_hours", None if post.has_offset else assumed)
    return UpdateOne(query, with_field(update, "link", visit.links.get(key)), upsert=True)


async def settle_dates(db: Database, batch: list[Visit]) -> None:
    """Use stated dates that have passed, and the UTC offsets that feeds have at least.

    Safe to repeat.
    """
    seen = [visit.fetched for visit in batch if visit.outcome in SEEN]
    if not seen:
        return
    # Few posts have such a date: the partial index is tiny.
    passed: Document = {
        "feed": {"$in": [fetched.target.url for fetched in seen]},
        "stated": {"$lte": max(fetched.at for fetched in seen)},
    }
    await db.posts.update_many(passed, [{"$set": {"published": "$stated"}}, {"$unset": "stated"}])
    for visit in batch:
        hours = visit.collected.monitor.utc_offset_hours if visit.collected else 0.0
        if not hours:
            continue
        earlier = {"$multiply": [{"$subtract": [hours, "$utc_offset_hours"]}, HOUR_MILLISECONDS]}
        shift: Document = {
            "published": {"$subtract": ["$published", {"$toLong": earlier}]},
            "utc_offset_hours": hours,
        }
        own = of_feed(visit.fetched.target.spider, visit.fetched.target.url)
        await db.posts.update_many(own | {"utc_offset_hours": {"$lt": hours}}, [{"$set": shift}])


async def of_key(db: Database, key: str) -> Document:
    """Return the document of a feed; empty before its first visit."""
    return await db.feeds.find_one({"_id": key}) or {}


async def monitor(db: Database, target: Target) -> Monitor:
    """Return the monitor of a feed; empty before its first visit."""
    document = await of_key(db, target.key)
    bounds = document.get("bounds") or {}
    return Monitor(
        **{name: document[name] for name in COUNTED if name in document},
        ids=bytes(document.get("ids") or b""),
        bounds=Bounds(
            bounds.get("every_hours"),
            tuple(bounds.get("skip_hours") or ()),
            tuple(bounds.get("skip_days") or ()),
        ),
        push=document.get("push") or {},
    )


async def duplicate_of(db: Database, fetched: Fetched) -> str | None:
    """Return the URL of another feed of this spider that had the same document.

    Title and site must be equal too: the feed of a blog's category may have the same posts as the
    feed of the whole blog for a while.
    """
    target, document = fetched.target, fetched.document
    query: Document = {
        "spider": target.spider,
        "kind": FEED,
        "content_hash": fetched.content_hash,
        "url": {"$ne": target.url},
        "alias_of": {"$exists": False},
        "gone": {"$ne": True},
    }
    other = await db.targets.find_one(query, {"url": 1}, sort=[("first_seen", 1)])
    if other is None or document is None:
        return None
    stored = await of_key(db, other["_id"])
    is_same = (stored.get("title"), stored.get("site")) == (document.title, document.site)
    return other["url"] if is_same else None


async def note(db: Database, batch: list[Visit]) -> None:
    """Store the results of visits of feeds; safe to repeat."""
    updates = []
    for visit in batch:
        fetched, target = visit.fetched, visit.fetched.target
        if target.kind is not Kind.FEED:
            continue
        state: Document = {"spider": target.spider, "url": target.url, "fence": target.fence}
        if visit.outcome in SEEN:
            state |= {"error": None, "seen_at": fetched.at}
        else:
            state["error"] = visit.reason or str(visit.outcome)
        document = fetched.document
        if document is not None and visit.collected is not None:
            after = visit.collected.monitor
            state |= {name: getattr(after, name) for name in COUNTED} | {"ids": after.ids}
        # A hub delivery may be outdated, and lacks the hubs named in HTTP headers.
        if document is not None and visit.collected is not None and fetched.push is None:
            state |= {
                "title": document.title,
                "site": document.site,
                "format": document.format,
                "bounds": {
                    "every_hours": document.bounds.every_hours,
                    "skip_hours": list(document.bounds.skip_hours),
                    "skip_days": list(document.bounds.skip_days),
                },
                "hubs": list(document.hubs),
                "topic": document.topic,
                "problems": [*document.problems, *visit.collected.problems],
            }
        query = {"_id": target.key} | leases.unless_passed(target.fence)
        updates.append(UpdateOne(query, {"$set": state}, upsert=True))
    await leases.write_unless_passed(db.feeds, updates)
