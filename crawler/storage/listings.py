"""`listings`: which list page shows which item in which category, one edge per document.

An edge that a list page no longer shows stays with `shown: false` until the run ends, so that an
item that only moved to the next list page is not marked as unlisted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pymongo import ReturnDocument, UpdateMany, UpdateOne

from crawler.extract.links import Traps
from crawler.items import CAPS_SEPARATOR, Fetched, Kind, Link, Target
from crawler.storage.client import (
    Database,
    Document,
    aggregated,
    in_batches,
    insert_new,
    keep_newest,
    write_all,
)
from crawler.storage.targets import ALIVE, MAX_CATEGORIES, hint_update, new_document
from crawler.utils.urls import of_same_list

BATCH = 1000
# Items that come and go in the random boxes of a page: each takes a query.
MAX_BOX_ITEMS = 200
# MongoDB's resolution of times.
MILLISECOND = timedelta(milliseconds=1)
# A page with more new links to list pages than this is an index of lists. The next pages of a list
# or of a calendar are fewer.
MAX_CHAIN_LINKS = 10
# Maximum number of list pages of an item to search for one of the same list.
MAX_EDGES = 200
# An item that this many other pages of the same list show, in any category, is in a sidebar of all
# pages. Without this limit, a calendar whose months are categories would have no end: no other page
# shows the items of the sidebar in the category of that month.
MANY_PAGES = 10
# Change hints: dates in sitemaps, and digests of the entries of list pages.
LASTMOD, LIST = "lastmod", "list"
# The newest times at which an entry was another than before, which tell how much a list shows.
MAX_SHOWN = 8
# Hints of a kind are trusted while this share of the latest visits that they caused found a change,
# and while there are fewer than MIN_JUDGED such visits.
SAMPLE, MIN_JUDGED, MIN_SHARE = 100, 10, 0.2


class Patterns:
    """Numbers of targets by URL pattern, for the limits of the site definition."""

    def __init__(self, db: Database, traps: Traps) -> None:
        self._db = db
        self._spider = traps.wrapper.name
        self._counted: set[str] = set()
        self.traps = traps

    async def open(self) -> None:
        """Load the counts of former runs."""
        site = await self._db.sites.find_one({"_id": self._spider}, {"patterns": 1})
        self.traps.targets |= (site or {}).get("patterns", {})

    async def admitted(self, links: Sequence[Link], depth: int, redundant_lists: int) -> list[Link]:
        """Return the new links that may become targets; see `Traps.within_caps`."""
        # Stored counts may be too high, because targets are deleted: count again at a limit.
        for pattern in self.traps.over_caps(links) - self._counted:
            self._counted.add(pattern)
            query = {"spider": self._spider, "pattern": pattern}
            n = await self._db.targets.count_documents(query)
            counted: Document = {"$set": {f"patterns.{pattern}": n}}
            await self._db.sites.update_one({"_id": self._spider}, counted)
            self.traps.targets[pattern] = n
        return self.traps.within_caps(links, depth, redundant_lists)

    async def added(self, links: Sequence[Link]) -> None:
        """Count links that became targets, and load the counts of other processes."""
        new = Counter(link.pattern for link in links if link.pattern)
        if not new:
            return
        more: Document = {"$inc": {f"patterns.{name}": n for name, n in new.items()}}
        site = await self._db.sites.find_one_and_update(
            {"_id": self._spider}, more, {"patterns": 1}, return_document=ReturnDocument.AFTER
        )
        self.traps.targets |= (site or {}).get("patterns", {})


async def record(db: Database, fetched: Fetched, due: datetime, patterns: Patterns) -> int:
    """Update edges and targets to the links of a page; return the number of new targets."""
    target, wrapper = fetched.target, patterns.traps.wrapper
    discovered, left_out = 0, patterns.traps.left_out
    items: list[Link] = []
    # Items first: the items of a page decide whether its links to list pages are followed.
    redundant_lists = 0
    for kind in (Kind.ITEM, Kind.LIST):
        of_kind = [link for link in fetched.links or () if link.kind is kind]
        if kind is Kind.LIST:
            pages = of_same_list(target.url)
            is_redundant = not discovered and not await _shows_own_item(db, target, items, pages)
            redundant_lists = target.redundant_lists + 1 if is_redundant else 0
            if target.kind is kind and is_redundant is not target.is_redundant:
                noted: Document = {"$set": {"redundant": is_redundant}}
                await db.targets.update_one({"_id": target.key}, noted)
            # Sorted and filtered lists usually have a query.
            is_new = target.kind is kind and target.content_hash is None
            may_be_copy = is_new and "?" in target.url and items and not discovered
            if may_be_copy and not await _shows_own_item(db, target, items):
                patterns.traps.copied_lists += 1
                patterns.traps.copied_list = target.url
        for part in in_batches(of_kind, BATCH):
            depth = target.depth + 1
            links, new = await discover(db, part, patterns, depth, fetched.at, due, redundant_lists)
            discovered += new
            await _record_lastmods(db, fetched, links, due)
            items += [link for link in links if link.kind is Kind.ITEM]
    await _update_edges(db, fetched, items, due)
    has_too_many = patterns.traps.left_out > left_out
    fetched.selector_digest = (
        wrapper.capped_digest(target) if has_too_many else wrapper.selector_digest(target.kind)
    )
    return discovered


async def shows_news(db: Database, fetched: Fetched) -> bool:
    """Return whether a list page says something new.

    That is a link that is no target yet, a new date of one that is, or an item that has come or
    gone and that no other list page shows. Items of random boxes come and go, too, but other list
    pages show them.

    Also True for a page with more links than the caps allow: the others never become targets.
    """
    target = fetched.target
    if CAPS_SEPARATOR in (target.selector_digest or ""):
        return True
    links = {f"{target.spider} {link.url}": link for link in fetched.links or ()}
    for keys in in_batches(list(links), BATCH):
        unknown = {links[key].url for key in keys}
        async for stored in db.targets.find({"_id": {"$in": keys}}, {"url": 1, "lastmod": 1}):
            stated = links[stored["_id"]].lastmod
            if stated is not None and _differs(stored.get("lastmod"), stated):
                return True
            unknown.discard(stored["url"])
        if unknown:
            query: Document = {"spider": target.spider, "aliases": {"$in": list(unknown)}}
            async for owner in db.targets.find(query, {"aliases": 1}):
                unknown.difference_update(owner["aliases"])
        if unknown:
            return True
    return await _items_moved(db, target, fetched.links or ())


async def _items_moved(db: Database, page: Target, links: Iterable[Link]) -> bool:
    """Return whether an item has come or gone that no other list page shows."""
    shown: Document = {"spider": page.spider, "shown": True}
    edges = db.listings.find(shown | {"list": page.url}, {"item": 1})
    before = {edge["item"] async for edge in edges}
    moved = before ^ {link.url for link in links if link.kind is Kind.ITEM}
    if len(moved) > MAX_BOX_ITEMS:
        return True
    for item in moved:
        elsewhere = shown | {"item": item, "list": {"$ne": page.url}}
        if await db.listings.find_one(elsewhere, {"_id": 1}) is None:
            return True
    return False


async def _shows_own_item(
    db: Database, page: Target, items: Sequence[Link], pattern: str = ""
) -> bool:
    """Return whether a page shows an item that no other page shows in the same category.

    pattern: regular expression of the URLs of the other pages; empty: all pages. With a pattern,
             items that MANY_PAGES of them show in other categories do not count, either

    Items that moved to the page from a page that was read before count as its own: on a growing
    site, the last page of a list has only such items.
    """
    categories = list({link.category for link in items})
    other: Document = {
        "shown": True,
        "$and": [{"list": {"$ne": page.url}}, {"list": {"$regex": pattern}}],
    }
    without_others = _without_others(db, page, other | {"category": {"$in": categories}}, 1)
    if pattern and any(categories):
        without_others += _without_others(db, page, other, MANY_PAGES)
    for part in in_batches(items, BATCH):
        pipeline: list[Document] = [
            {"$match": {"_id": {"$in": [f"{page.spider} {link.url}" for link in part]}}},
            *without_others,
            {"$limit": 1},
            {"$project": {"_id": 1}},
        ]
        if await aggregated(db.targets, pipeline):
            return True
    return False


def _without_others(db: Database, page: Target, other: Document, pages: int) -> list[Document]:
    """Return stages that leave out items with at least `pages` edges that match `other`."""
    return [
        {
            "$lookup": {
                "from": db.listings.name,
                "localField": "url",
                "foreignField": "item",
                "pipeline": [
                    {"$match": {"spider": page.spider}},
                    # An item may be on a hundred thousand lists.
                    {"$limit": MAX_EDGES},
                    {"$match": other},
                    {"$skip": pages - 1},
                    {"$limit": 1},
                    {"$project": {"_id": 1}},
                ],
                "as": "others",
            }
        },
        {"$match": {"others": []}},
    ]


async def discover(
    db: Database,
    links: Iterable[Link],
    patterns: Patterns,
    depth: int,
    now: datetime,
    due: datetime,
    redundant_lists: int = 0,
) -> tuple[list[Link], int]:
    """Add new links as targets; return all links that are targets, and the number of new ones.

    depth:           number of links from a start URL to them
    redundant_lists: number of redundant list pages in a row before these links
    """
    spider = patterns.traps.wrapper.name
    by_url = {link.url: link for link in links}
    query: Document = {"spider": spider, "aliases": {"$in": list(by_url)}}
    async for owner in db.targets.find(query, {"url": 1, "aliases": 1}):
        for alias in owner["aliases"]:
            if (link := by_url.pop(alias, None)) and alias != owner["url"]:
                by_url.setdefault(owner["url"], replace(link, url=owner["url"]))
    by_key = {f"{spider} {link.url}": link for link in by_url.values()}
    stored = {
        target["_id"]: target
        async for target in db.targets.find(
            {"_id": {"$in": list(by_key)}}, {"depth": 1, "redundant_lists": 1}
        )
    }
    unknown = [link for key, link in by_key.items() if key not in stored]
    if sum(link.kind is Kind.LIST for link in unknown) > MAX_CHAIN_LINKS:
        # A page of an index of lists, such as all categories, does not show items itself.
        redundant_lists = 0
    for name, value in (("depth", depth), ("redundant_lists", redundant_lists)):
        higher = [key for key, target in stored.items() if target.get(name, value) > value]
        if higher:
            nearer: Document = {"_id": {"$in": higher}, name: {"$gt": value}}
            await db.targets.update_many(nearer, {"$set": {name: value}})
    admitted = await patterns.admitted(unknown, depth, redundant_lists)
    documents = []
    for link in admitted:
        categories = [link.category] if link.category and link.kind is Kind.ITEM else []
        document = new_document(spider, link.url, link.kind, due, now, categories)
        if link.kind is Kind.LIST and redundant_lists:
            document["redundant_lists"] = redundant_lists
        documents.append(document | {"depth": depth, "pattern": link.pattern})
    inserted = await insert_new(db.targets, documents)
    await patterns.added(admitted)
    return [link for key, link in by_key.items() if key in stored] + admitted, inserted


async def _record_lastmods(
    db: Database, fetched: Fetched, links: Iterable[Link], due: datetime
) -> None:
    """Store new values of `lastmod`; if trusted, make targets due that were visited earlier."""
    page = fetched.target
    stated = {f"{page.spider} {link.url}": link for link in links if link.lastmod is not None}
    if not stated:
        return
    before = {
        row["_id"]: row.get("lastmod")
        async for row in db.targets.find({"_id": {"$in": list(stated)}}, {"lastmod": 1})
    }
    new = {
        key: link.lastmod
        for key, link in stated.items()
        if link.lastmod is not None and (key not in before or _differs(before[key], link.lastmod))
    }
    writes = []
    if await is_trusted(db, page.spider, LASTMOD):
        writes = [
            UpdateOne(
                {"_id": key, "visited_at": {"$lt": at}, "plan.follows": {"$ne": False}} | ALIVE,
                hint_update(due, LASTMOD),
            )
            for key, at in new.items()
        ]
    edges = [
        UpdateOne({"_id": f"{key} {page.url}"}, _showed(fetched))
        for key in new
        if before.get(key) is not None
    ]
    # Hints first: after a crash, the repetition skips dates that are stored.
    await write_all(db.targets, writes)
    await write_all(db.listings, edges)
    await write_all(
        db.targets, [UpdateOne({"_id": key}, {"$set": {"lastmod": at}}) for key, at in new.items()]
    )


def _differs(before: datetime | None, stated: datetime) -> bool:
    """Return whether a date is another than the stored one, in MongoDB's resolution of times."""
    return before is None or abs(stated - before) >= MILLISECOND


def _showed(fetched: Fetched) -> Document:
    """Return the update of an edge whose list page shows another content of the item."""
    return {"$push": {"showed": {"$each": [fetched.at], "$slice": -MAX_SHOWN}}}


async def _update_edges(db: Database, fetched: Fetched, links: list[Link], due: datetime) -> None:
    """Hide the edges of items that a page no longer shows, and show those of new ones."""
    page = fetched.target
    spider = page.spider
    query = {"spider": spider, "list": page.url}
    old = {edge["item"]: edge async for edge in db.listings.find(query)}
    urls = {link.url for link in links}
    hidden = [e["_id"] for item, e in old.items() if item not in urls and e["shown"]]
    for ids in in_batches(hidden, BATCH):
        await db.listings.update_many({"_id": {"$in": ids}}, {"$set": {"shown": False}})
    changed = [
        link
        for link in links
        if (edge := old.get(link.url)) is None
        or not edge["shown"]
        or edge.get("category") != link.category
    ]
    for part in in_batches(changed, BATCH):
        by_category: dict[str, list[str]] = defaultdict(list)
        for link in part:
            if link.category:
                by_category[link.category].append(f"{spider} {link.url}")
        # The same updates for targets and for posts: both have the same `_id`.
        categories = [
            update
            for category, keys in by_category.items()
            for update in keep_newest(
                {"_id": {"$in": keys}}, "categories", [category], MAX_CATEGORIES
            )
        ]
        of_items: Document = {"_id": {"$in": [f"{spider} {link.url}" for link in part]}}
        unlisted, gone = {"unlisted_at": {"$type": "date"}}, {"consecutive_gone": {"$gt": 0}}
        listed_again = [
            UpdateMany(of_items | unlisted, {"$set": {"unlisted_at": None}}),
            UpdateMany(of_items | gone | ALIVE, {"$set": {"next_visit": due}}),
        ]
        # Targets first: after a crash, the repetition skips links whose edge is stored.
        await db.targets.bulk_write([*listed_again, *categories], ordered=False)
        await write_all(db.posts, categories)
        new = [
            {
                "_id": f"{spider} {link.url} {page.url}",
                "spider": spider,
                "list": page.url,
                "item": link.url,
                "category": link.category,
                "digest": link.digest,
                "shown": True,
                "since": fetched.at,
            }
            for link in part
            if link.url not in old
        ]
        await insert_new(db.listings, new)
        updates = [
            UpdateOne(
                {"_id": old[link.url]["_id"]}, {"$set": {"shown": True, "category": link.category}}
            )
            for link in part
            if link.url in old
        ]
        await write_all(db.listings, updates)


async def record_digests(db: Database, fetched: Fetched, due: datetime) -> None:
    """Store the digests of a list's entries; if trusted, make items with a new digest due."""
    page = fetched.target
    digests = {
        f"{page.spider} {link.url} {page.url}": link.digest
        for link in fetched.links or ()
        if link.digest is not None
    }
    for keys in in_batches(list(digests), BATCH):
        cursor = db.listings.find({"_id": {"$in": keys}}, {"item": 1, "digest": 1})
        changed = [edge async for edge in cursor if edge.get("digest") != digests[edge["_id"]]]
        items = [
            f"{page.spider} {edge['item']}" for edge in changed if edge.get("digest") is not None
        ]
        # Items first: after a crash, the repetition skips edges whose digest is stored.
        if items and await is_trusted(db, page.spider, LIST):
            # Skips items that were visited in this run, and those that change too fast to follow.
            query: Document = {
                "_id": {"$in": items},
                "visited_at": {"$lt": due},
                "consecutive_gone": 0,
                "plan.follows": {"$ne": False},
            } | ALIVE
            await db.targets.update_many(query, hint_update(due, LIST))
        writes = [
            UpdateOne(
                {"_id": edge["_id"]},
                {"$set": {"digest": digests[edge["_id"]]}}
                | ({} if edge.get("digest") is None else _showed(fetched)),
            )
            for edge in changed
        ]
        await write_all(db.listings, writes)


async def is_trusted(db: Database, spider: str, hint: str) -> bool:
    """Return whether enough of the latest visits caused by these hints found a change."""
    query = {"spider": spider, "hint": hint}
    cursor = db.visits.find(query, {"changed": 1}).sort("at", -1).limit(SAMPLE)
    changed = [row["changed"] async for row in cursor]
    return len(changed) < MIN_JUDGED or sum(changed) / len(changed) >= MIN_SHARE


async def drop_all(db: Database, target: Target) -> None:
    """Hide all edges of a page that is gone or leads to another one."""
    query = {"spider": target.spider, "list": target.url, "shown": True}
    await db.listings.update_many(query, {"$set": {"shown": False}})


async def hand_over(db: Database, page: Target, owner: str) -> None:
    """Move the edges of a list page to the list page with URL `owner`, to which it now leads.

    The owner's own edges stay. If it was not visited yet, its items are not marked until then.
    """
    query = {"spider": page.spider, "list": page.url, "shown": True}
    edges = await db.listings.find(query).to_list(None)
    copies = [
        edge | {"_id": f"{page.spider} {edge['item']} {owner}", "list": owner} for edge in edges
    ]
    await insert_new(db.listings, copies)
    await drop_all(db, page)


async def settle(db: Database, spider: str, at: datetime) -> int:
    """Delete hidden edges after a run, and mark the items that no list shows anymore.

    Returns the number of items marked.
    """
    hidden_items: list[Document] = [
        {"$match": {"spider": spider, "shown": False}},
        {"$limit": BATCH},
        {"$group": {"_id": "$item"}},
    ]
    marked = 0
    while items := [row["_id"] async for row in await db.listings.aggregate(hidden_items)]:
        query: Document = {"spider": spider, "item": {"$in": items}}
        categories: dict[str, set[str]] = {}
        async for edge in db.listings.find(query | {"shown": True}, {"item": 1, "category": 1}):
            categories.setdefault(edge["item"], set()).update(filter(None, [edge.get("category")]))
        unlisted: Document = {
            "_id": {"$in": [f"{spider} {item}" for item in items if item not in categories]},
            "kind": str(Kind.ITEM),
            "unlisted_at": None,
        }
        result = await db.targets.update_many(unlisted, {"$set": {"unlisted_at": at}})
        marked += result.modified_count
        updates = [
            UpdateOne(
                {"_id": f"{spider} {item}"},
                {"$set": {"categories": sorted(names)[:MAX_CATEGORIES]}},
            )
            for item, names in categories.items()
        ]
        if updates:
            await db.targets.bulk_write(updates, ordered=False)
            await db.posts.bulk_write(updates, ordered=False)
        await db.listings.delete_many(query | {"shown": False})
    return marked
